"""The methods of a repository for its upkeep: expiration, garbage collection, statistics, verification.

What does the work is loaded when it is asked for: whoever opens a repository need not wait for it.
"""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from icefloe._internal.concurrency import async_twin
from icefloe._internal.executor import Executor, ThreadExecutor
from icefloe._internal.ids import SnapshotId, encode_column
from icefloe._internal.times import to_microseconds
from icefloe.config import ManifestSplittingConfig
from icefloe.core.assets import AssetStore
from icefloe.core.handle import Recipe
from icefloe.core.refs.base import RefStore, read_only_format
from icefloe.core.refs.v2 import check_writable
from icefloe.encoding.envelope import PLAUSIBLE_BYTES
from icefloe.errors import IcechunkError
from icefloe.format.id_columns import is_member, sorted_ids

if TYPE_CHECKING:
    import zarr

    from icefloe.maintenance.integrity.findings import Report
    from icefloe.maintenance.reachable import Ids
    from icefloe.ops import ChunkStorageStats, GCSummary
    from icefloe.session import Session

_MIB = 1 << 20
_COMMIT_METHODS = ("new_commit", "amend")


class Upkeep:
    """What `Repository` has for its upkeep."""

    _refs: RefStore
    _assets: AssetStore
    _recipe: Recipe
    _executor: Executor | None = None

    def working_with(self, executor: Executor) -> Self:
        """The same repository, whose upkeep runs on something else than threads: Spark, for example.

        Objects are read, copied and decoded there. Refs are moved, and objects deleted, from here.
        """
        other = copy.copy(self)
        other._executor = executor
        return other

    @property
    def executor(self) -> Executor | None:
        """What upkeep runs on in place of threads."""
        return self._executor

    def _spread(self, max_concurrent_requests: int) -> Executor:
        """Return the given executor, or one with this many threads."""
        return self._executor or ThreadExecutor(max_concurrent_requests)

    def _spread_reads(self, max_concurrent_requests: int) -> Executor:
        """The same for reading small files: no threads where the storage answers at once."""
        return self._spread(1 if self._assets.storage.answers_at_once else max_concurrent_requests)

    @abstractmethod
    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A view of one snapshot."""

    @abstractmethod
    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        """Take snapshots made before a time out of the history; their ids.

        The tip of main stays, as do the tips of branches and tags unless those may be deleted too. The data
        stays until the next garbage collection.
        """
        from icefloe.maintenance.expire import expire

        self._require_present_format("an expiration")
        check_writable(self._refs.status())
        released = expire(
            self._refs,
            self._assets,
            to_microseconds(older_than),
            delete_branches=delete_expired_branches,
            delete_tags=delete_expired_tags,
        )
        return set(encode_column(released))

    expire_snapshots_async = async_twin(expire_snapshots)

    def garbage_collect(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete objects that no snapshot needs and that were written before a time.

        Choose a time before any session that is still open began: what such a session has written is not
        needed by a snapshot yet.
        """
        from icefloe.maintenance.gc import Limits, collect

        threads = _threads(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        limits = {
            "max_concurrent_deletes": max_concurrent_deletes,
            "max_consecutive_delete_failures": max_consecutive_delete_failures,
        }
        _check_positive(**limits, max_concurrent_listings=max_concurrent_listings)
        self._require_present_format("garbage collection")
        check_writable(self._refs.status())
        cutoff = to_microseconds(delete_object_older_than)
        return collect(
            self._refs,
            self._assets,
            cutoff,
            self._spread_reads(threads),
            dry_run=dry_run,
            limits=Limits(**limits),
        )

    garbage_collect_async = async_twin(garbage_collect)

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """How many bytes of chunks the snapshots on branches and tags refer to, each chunk counted once."""
        from icefloe.maintenance.storage_stats import chunk_storage

        threads = _threads(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        self._require_present_format("counting chunks")
        return chunk_storage(self._refs, self._assets, self._spread_reads(threads))

    chunk_storage_stats_async = async_twin(chunk_storage_stats)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Bytes of native chunks; deprecated, see `chunk_storage_stats`."""
        warnings.warn(
            "total_chunks_storage is deprecated; chunk_storage_stats tells more",
            DeprecationWarning,
            stacklevel=2,
        )
        stats = self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return stats.native_bytes

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 512 * _MIB,
        max_decoded_manifest_mem_bytes: int = 4096 * _MIB,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Bytes of native chunks; deprecated, see `chunk_storage_stats_async`."""
        # Not a twin: a warning from a thread of ours would name no line of the caller's.
        warnings.warn(
            "total_chunks_storage_async is deprecated; chunk_storage_stats_async tells more",
            DeprecationWarning,
            stacklevel=2,
        )
        stats = await self.chunk_storage_stats_async(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return stats.native_bytes

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: str = "new_commit",
    ) -> str:
        """Write all manifests of a branch anew, split as configured now, in a commit of its own; its id.

        With the `commit_method` "amend" the commit takes the place of the branch's tip.
        """
        from icefloe.core.commit.flush import OWN_METADATA
        from icefloe.maintenance.rewrite_manifests import rewrite_ahead

        if commit_method not in _COMMIT_METHODS:
            raise ValueError(f"Invalid commit method: '{commit_method}'. Expected 'new_commit' or 'amend'.")
        session = self.writable_session(branch)
        session.workspace.all_anew = True
        if self._executor is not None:
            rewrite_ahead(session.workspace, self._recipe, self._executor)
        properties = dict(metadata or {})
        known = properties.get(OWN_METADATA)
        splitting = ManifestSplittingConfig(self._assets.config.split_sizes)
        properties[OWN_METADATA] = {
            **(known if isinstance(known, dict) else {}),
            "splitting_config": splitting.to_plain(),
        }
        if commit_method == "amend":
            return session.amend(message, metadata=properties, allow_empty=True)
        return session.commit(message, properties, allow_empty=True)

    rewrite_manifests_async = async_twin(rewrite_manifests)

    def verify(
        self,
        level: str = "graph",
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        history: bool = True,
        checksums: bool = False,
        incremental: bool = False,
        dry_run: bool = False,
        max_concurrent_requests: int = 64,
    ) -> Report:
        """Look whether all that branches and tags lead to is there and as it should be; nothing is changed.

        The level `graph` reads refs, snapshots, transaction logs and manifests; `objects` looks for every
        chunk object besides, `sources` for every file that virtual references point into, and `chunks`
        decodes all chunks. What is wrong is reported, not raised.

        One `branch`, `tag` or snapshot can be chosen, with its history or, with `history=False`, alone.
        `checksums` reads all objects whose checksum was recorded by `record_checksums` and compares, as the
        level `chunks` does anyway. An `incremental` verification leaves out the snapshots that an earlier one
        at the same level or a deeper one found well, looks only at what others add to them, and remembers
        what it found well beside the repository, where it must be able to write. With `dry_run` the report
        tells how many snapshots there are to look at, and nothing is looked at.
        """
        from icefloe.maintenance.integrity import verify as verified
        from icefloe.maintenance.integrity.findings import Level, Report
        from icefloe.maintenance.integrity.verify_chunks import check_chunks
        from icefloe.maintenance.integrity.verify_graph import verify
        from icefloe.maintenance.reachable import NO_IDS, reachable_snapshots

        if level not in list(Level):
            raise ValueError(f"no level {level!r} of verification; choose one of {', '.join(Level)}")
        _check_positive(max_concurrent_requests=max_concurrent_requests)
        self._require_present_format("verification")
        executor = self._spread(max_concurrent_requests)
        depth = Level(level)
        whole = self._snapshots_to_verify(branch, tag, snapshot_id, history=history)
        done = verified.load(self._assets.storage, depth) if incremental else NO_IDS
        wanted = whole[~is_member(whole, done)]
        if dry_run:
            return Report(depth, snapshots=len(wanted), skipped=len(whole) - len(wanted))
        settled, after = self._around(wanted, done) if len(done) else (NO_IDS, NO_IDS)
        report = verify(
            self._refs,
            self._assets,
            executor,
            depth,
            wanted,
            settled=settled,
            checksums=checksums or depth.includes(Level.CHUNKS),
        )
        report.skipped = len(whole) - len(wanted)
        if depth.includes(Level.CHUNKS) and report.ok:
            check_chunks(wanted, self._assets, self._array_to_read, executor, report, after)
        if incremental and report.ok:
            verified.record(self._assets.storage, depth, wanted, reachable_snapshots(self._refs))
        return report

    def _snapshots_to_verify(
        self, branch: str | None, tag: str | None, snapshot_id: str | None, *, history: bool
    ) -> Ids:
        from icefloe.maintenance.reachable import led_to

        given = [each for each in (branch, tag, snapshot_id) if each is not None]
        if len(given) > 1:
            raise ValueError("give one of branch, tag and snapshot_id")
        if not given:
            if not history:
                raise ValueError("history=False needs a branch, a tag or a snapshot_id")
            return led_to(self._refs, {*self._refs.branches().values(), *self._refs.tags().values()})
        if branch is not None:
            tip = self._refs.branch(branch)
        elif tag is not None:
            tip = self._refs.tag(tag)
        else:
            tip = self._refs.snapshot(SnapshotId.parse(snapshot_id or "")).id
        return led_to(self._refs, {tip}) if history else _sorted({bytes(tip)})

    def _around(self, wanted: Ids, done: Ids) -> tuple[Ids, Ids]:
        """The verified snapshots that come right before some, and which of those come after verified ones.

        Only what stands in a log of its own counts: one that inherited logs is looked at in full.
        """
        from icefloe.maintenance.reachable import each_id

        ids, known = set(each_id(wanted)), set(each_id(done))
        before, after = set[bytes](), set[bytes]()
        for id in ids:
            try:
                info = self._refs.snapshot(SnapshotId(id))
            except IcechunkError:  # it is reported later
                continue
            parent = None if info.parent_id is None else bytes(info.parent_id)
            if parent in known:
                before.add(parent)
            if (parent in known or parent in ids) and not info.pruned_ancestor_tx_logs:
                after.add(id)
        return _sorted(before), _sorted(after)

    def _array_to_read(self, snapshot: SnapshotId, path: str) -> zarr.Array[Any]:
        import zarr

        session = self.readonly_session(snapshot_id=str(snapshot))
        with zarr.config.set(
            {"array.rectilinear_chunks": True}
        ):  # zarr asks for it where it is an experiment
            return zarr.open_array(session.store, path=path.strip("/"), mode="r")

    verify_async = async_twin(verify)

    def _require_present_format(self, what: str) -> None:
        """Refuse what reads files as versions 1 and 2 have them; `migrate` looks through older ones."""
        if not self._refs.spec.writable:
            raise read_only_format(what)


def _sorted(ids: set[bytes]) -> Ids:
    return sorted_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, SnapshotId.SIZE))


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"invalid zero value: {name} is {count}, and must be at least 1")


def _threads(**counts: int) -> int:
    """How many files may be read at once so that all limits hold, whatever their sizes."""
    _check_positive(**counts)
    by_count = min(counts["max_snapshots_in_memory"], counts["max_concurrent_manifest_fetches"])
    by_size = counts["max_decoded_manifest_mem_bytes"] // PLAUSIBLE_BYTES
    return max(1, min(by_count, by_size))
