"""The methods of a repository for its long life that the official one has not: retention, tables, copies.

What does the work is loaded when it is asked for: whoever opens a repository need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.concurrency import async_twin
from icefloe._internal.ids import ChunkId, SnapshotId
from icefloe._internal.times import to_microseconds
from icefloe.core.open import Opened
from icefloe.core.refs.v2 import check_writable
from icefloe.errors import ErrorKind, SnapshotNotFoundError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.storage.base import Storage
from icefloe.upkeep import Upkeep

if TYPE_CHECKING:
    from icefloe._internal.executor import Progress
    from icefloe._internal.table import Table
    from icefloe.maintenance.clone import CloneReport
    from icefloe.maintenance.history import History
    from icefloe.maintenance.integrity.repair import ChunkSource, RepairReport
    from icefloe.maintenance.retention import Kept, RetentionPolicy
    from icefloe.maintenance.storage_breakdown import Freed
    from icefloe.session import Session

_THREADS = 64


def chunks_of(session: Session) -> ChunkSource:
    """The chunks of a session, of a clone for example, as a source for `Repository.repair`."""

    def read(path: str, coords: tuple[int, ...]) -> bytes | None:
        workspace = session.workspace
        ref = workspace.ref(workspace.array(path), coords)
        return None if ref is None else workspace.read(ref, 0, ref.length, f"{list(coords)} of {path}")

    return read


def _write_values(session: Session, path: str, coords: tuple[int, ...], values: NDArray[Any]) -> None:
    """One chunk of an array, through its codecs."""
    import zarr

    array = zarr.open_array(session.store, path=path.strip("/"))
    sizes = array.shards or array.chunks
    region = tuple(
        slice(at * size, min((at + 1) * size, length))
        for at, size, length in zip(coords, sizes, array.shape, strict=True)
    )
    array[region] = values[tuple(slice(0, part.stop - part.start) for part in region)]


class Care(Upkeep):
    """What `Repository` has for its long life."""

    _opened: Opened

    # Keeping it small

    def garbage(self, delete_object_older_than: datetime) -> Table:
        """What `garbage_collect` would delete, one row per object.

        Columns: object, kind, bytes, written_at, age_s, reason. Nothing is changed.
        """
        from icefloe.maintenance.garbage import garbage_table
        from icefloe.maintenance.gc import find_garbage, find_temporary_files

        self._require_present_format("looking for garbage")
        cutoff = to_microseconds(delete_object_older_than)
        executor = self._spread_reads(_THREADS)
        garbage = find_garbage(self._refs, self._assets, cutoff, executor, dated=True)
        return garbage_table(garbage, find_temporary_files(self._assets.storage, cutoff).deleted)

    garbage_async = async_twin(garbage)

    def preview_expiration(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> Table:
        """What `expire_snapshots` would do, one row per snapshot on a branch or tag, newest first.

        Columns: snapshot, written_at, message, kept, reason. Nothing is changed.
        """
        from icefloe.maintenance.expire import kept_by_time
        from icefloe.maintenance.retention import retention_table

        history = self._history("looking at an expiration")
        return retention_table(
            history,
            kept_by_time(
                history,
                to_microseconds(older_than),
                delete_branches=delete_expired_branches,
                delete_tags=delete_expired_tags,
            ),
        )

    preview_expiration_async = async_twin(preview_expiration)

    def apply_retention(self, policy: RetentionPolicy, *, dry_run: bool = False) -> Table:
        """Take snapshots that a policy does not keep out of the history; the data goes with the next `gc`.

        Gives one row per snapshot on a branch or tag, newest first: snapshot, written_at, message, kept and
        reason. Each snapshot that stays is tied to its nearest ancestor that does, and inherits the
        transaction logs of those between. With `dry_run` nothing is changed.
        """
        from icefloe.maintenance.retention import retain

        if not dry_run:
            check_writable(self._refs.status())
        self._require_present_format("retention")
        return retain(self._refs, self._assets, policy, dry_run=dry_run)

    apply_retention_async = async_twin(apply_retention)

    # Who holds the bytes

    def storage_by_snapshot(self) -> Table:
        """The bytes of chunks that each snapshot on a branch or tag refers to, newest first.

        Columns: snapshot, written_at, message, native_bytes, virtual_bytes, inlined_bytes, unique_bytes,
        which no other snapshot refers to, and shared_bytes. Both leave virtual chunks out.
        """
        from icefloe.maintenance.storage_breakdown import by_snapshot

        history = self._history("counting chunks")
        return by_snapshot(self._assets, history, self._spread(_THREADS))

    storage_by_snapshot_async = async_twin(storage_by_snapshot)

    def storage_by_array(self, *, snapshot_id: str | None = None) -> Table:
        """The bytes of chunks of each array, in one snapshot or in all on branches and tags, largest first.

        Columns: array, chunks, native_bytes, virtual_bytes, inlined_bytes, unique_bytes, which no other
        array refers to, and shared_bytes. Both leave virtual chunks out. An array that no tip has any more
        is named by the id of its node.
        """
        from icefloe.maintenance.storage_breakdown import by_array

        history = self._history("counting chunks")
        ids = history.snapshots.ids
        if snapshot_id is not None:
            one = self._refs.snapshot(SnapshotId.parse(snapshot_id)).id
            ids = np.frombuffer(one, np.uint8).reshape(1, -1)
        return by_array(self._assets, history, ids, self._spread(_THREADS))

    storage_by_array_async = async_twin(storage_by_array)

    def what_if(
        self,
        *,
        older_than: datetime | None = None,
        policy: RetentionPolicy | None = None,
        kept: Iterable[str] | None = None,
    ) -> Freed:
        """What a collection could delete after an expiration, a policy, or if some snapshots alone were kept.

        One of the three is given.
        """
        from icefloe.maintenance.storage_breakdown import what_if

        if sum(each is not None for each in (older_than, policy, kept)) != 1:
            raise ValueError("give one of older_than, policy and kept")
        history = self._history("counting chunks")
        if kept is not None:
            stay = set(kept)
            names = [str(history.snapshots.id_at(row)) for row in range(len(history.snapshots))]
            keep = np.array([name in stay for name in names], np.bool_)
        else:
            keep = self._kept(history, older_than, policy).keep
        return what_if(self._assets, history, keep, self._spread(_THREADS))

    what_if_async = async_twin(what_if)

    def _kept(self, history: History, older_than: datetime | None, policy: RetentionPolicy | None) -> Kept:
        from icefloe.maintenance.expire import kept_by_time
        from icefloe.maintenance.retention import apply_policy

        if policy is not None:
            return apply_policy(policy, history, datetime.now(UTC))
        cutoff = to_microseconds(older_than) if older_than is not None else 0
        return kept_by_time(history, cutoff, delete_branches=False, delete_tags=False)

    def _history(self, what: str) -> History:
        from icefloe.maintenance.history import history_of

        self._require_present_format(what)
        return history_of(self._refs)

    # Checking it

    def record_checksums(self, *, progress: Progress | None = None) -> int:
        """Record the checksums of all objects in use that have none yet, for `verify`; of how many.

        They are kept below `icefloe/` in the repository's place, where other readers do not look and garbage
        collection deletes nothing. Every such object is read once. What is damaged already is recorded as it
        is: verify first, at the level `chunks`.
        """
        from icefloe.maintenance.integrity.catalogue import FOLDERS
        from icefloe.maintenance.integrity.checksums import record_checksums
        from icefloe.maintenance.listings import list_folder
        from icefloe.maintenance.reachable import chunks_used, logs_used, manifests_used, reachable_snapshots

        self._require_present_format("recording checksums")
        storage, executor = self._assets.storage, self._spread(_THREADS)
        storage.check_writable()
        snapshots = reachable_snapshots(self._refs)
        manifests = manifests_used(storage, snapshots, executor)
        listed = {folder: list_folder(storage, folder) for folder in FOLDERS}
        used = {
            SNAPSHOTS: snapshots,
            TRANSACTIONS: logs_used(self._refs, snapshots),
            MANIFESTS: manifests,
            CHUNKS: chunks_used(storage, manifests, executor),
        }
        return record_checksums(storage, listed, used, executor, progress)

    record_checksums_async = async_twin(record_checksums)

    def repair(
        self,
        branch: str = "main",
        *,
        sources: ChunkSource | Mapping[str, ChunkSource] | None = None,
        drop: bool = False,
        checksums: bool = False,
        virtual: bool = False,
        relocate: Mapping[str, str] | None = None,
        dry_run: bool = False,
        message: str = "Repair",
    ) -> RepairReport:
        """Repair what the tip of a branch, and the history that leads to it, have lost.

        Chunks that are gone or too short, with `checksums` also those with other bytes than were recorded,
        and chunks of manifests that are gone are asked of `sources`: a function of an array's path and a
        chunk's coordinates, or one for each path, which gives the stored bytes, the values, or None;
        `chunks_of` a clone, for example, or `icefloe.ingest.LedgerChunks` for the files that were ingested.
        With `virtual` the files of virtual references are looked at too; those that moved are found by
        `relocate`, which has the new beginning of a location for an old one. With `drop` a reference that
        nobody knows is let go, so that the chunk reads as fill value, and a snapshot that is gone leaves the
        history; without it such things are left as they are. Transaction logs that are gone are computed from
        the snapshots around them.

        The branch gets one commit with all this. Snapshots before it stay as they are; verify the tip alone
        with `verify(branch=..., history=False)`, and expire the others.
        """
        from icefloe.maintenance.integrity.repair import RepairReport, as_source, drop_snapshots, rebuild_logs
        from icefloe.maintenance.integrity.repair_virtual import broken_sources, repair_virtual

        if not dry_run:
            check_writable(self._refs.status())
        self._require_present_format("a repair")
        report = RepairReport(dry_run)
        level = "sources" if virtual or relocate else "objects"
        findings = self.verify(level, branch=branch, checksums=checksums).findings
        drop_snapshots(self._refs, self._assets, findings, report, drop=drop)
        rebuild_logs(self._refs, self._assets, findings, report)
        damaged = {
            ChunkId.parse(found.object.partition("/")[2])
            for found in findings
            if found.kind == "checksum" and found.object.startswith(f"{CHUNKS}/")
        }
        try:
            session = self.readonly_session(branch) if dry_run else self.writable_session(branch)
        except SnapshotNotFoundError as gone:
            raise SnapshotNotFoundError(
                f"{gone.message}, the tip of {branch}; reset the branch to a snapshot that is there",
                kind=ErrorKind.SNAPSHOT_NOT_FOUND,
            ) from None
        self._repair_tip(session, as_source(sources), damaged, report, drop=drop)
        repair_virtual(session.workspace, broken_sources(findings), relocate or {}, report, drop=drop)
        if session.has_uncommitted_changes:
            report.snapshot_id = session.commit(message)
        return report

    repair_async = async_twin(repair)

    def _repair_tip(
        self,
        session: Session,
        source: ChunkSource | None,
        damaged: set[ChunkId],
        report: RepairReport,
        *,
        drop: bool,
    ) -> None:
        from icefloe.maintenance.integrity.repair import find_lost, repair_array
        from icefloe.maintenance.listings import list_folder

        workspace = session.workspace
        for lost in find_lost(workspace, list_folder(self._assets.storage, CHUNKS), damaged):
            repair_array(workspace, lost, source, partial(_write_values, session), report, drop=drop)

    # Copies

    def clone_to(
        self,
        target: Storage,
        *,
        branches: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        depth: int | None = None,
        read_back: bool = False,
        overwrite: bool = False,
        dry_run: bool = False,
        max_concurrent_requests: int = 64,
        max_memory_bytes: int = 512 << 20,
        progress: Progress | None = None,
    ) -> CloneReport:
        """Copy this repository to another place, where it has the same ids, branches, tags and history.

        Some `branches` and `tags` can be chosen; main always comes along. With a `depth` only so many of the
        newest snapshots of each are copied, and the first one of all, like after an expiration.

        Where the target is such a copy already, what is new is added to it; branches that have commits of
        their own there are refused with ConflictError, or with `overwrite` follow the source. A call that was
        broken off goes on when it is made again. Refs move after all objects were found at the target in
        their full size; `read_back` reads every copy again and compares its bytes.

        Virtual chunks stay where they are. The ops log of the source is not copied.
        """
        from icefloe.legacy.layout import ALL_LAYOUTS
        from icefloe.maintenance.clone import Choice, clone_parts
        from icefloe.maintenance.copy_objects import Limits

        chosen = Choice(
            None if branches is None else frozenset(branches),
            None if tags is None else frozenset(tags),
            depth,
        )
        return clone_parts(
            self._opened,
            target,
            chosen,
            Limits(max_concurrent_requests, max_memory_bytes),
            layouts=ALL_LAYOUTS,
            read_back=read_back,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
            executor=self._executor,
        )

    clone_to_async = async_twin(clone_to)
