"""Garbage collection: delete objects that no snapshot uses and that are older than a given time.

Sessions write chunks and manifests long before a commit refers to them, and branches may move during a
collection. Three rules protect such objects. First, objects whose modification time in storage is at or after
the cutoff are never deleted. Second, objects are listed before refs are read for the last time, so every old
object in the listing is by then either referenced or garbage. Third, the collection is recorded (in the ops
log, or in a marker file in version 1) before anything is deleted, so that commits in progress notice it; see
`core/commit/gc_race.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task, ThreadExecutor
from icefloe._internal.retry import iterate_attempts
from icefloe._internal.table import Table
from icefloe._internal.times import from_microseconds, to_microseconds
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ConflictError, ErrorKind, StorageError
from icefloe.format.files import CHUNKS, MANIFESTS, OWN_FOLDERS, SNAPSHOTS, TRANSACTIONS, is_own_path
from icefloe.format.id_columns import IdIndex, is_member, sort_ids
from icefloe.format.pruning import get_inherited_logs, list_ancestors, prune_snapshots
from icefloe.format.repo_info import NO_PARENT, RepoInfo
from icefloe.maintenance.listings import NO_IDS, Ids, ObjectListing, filter_folder, list_folder
from icefloe.maintenance.reachable import (
    list_chunks_used,
    list_manifests_used,
    list_reachable_snapshots,
    mark_reachable,
)
from icefloe.maintenance.reachable_index import NO_INDEX, add_mark, read_index, write_index
from icefloe.maintenance.statistics.lifecycle import find_orphans
from icefloe.ops import GCSummary, UpdateType
from icefloe.storage.base import DeleteReport, Storage, StorageObjectInfo, SweepReport

_TRIES: Final = 10
_DELETE_BATCH: Final = 1_000
_SHOWN_ERRORS: Final = 10
_KINDS: Final = {
    "temporary_files": ("temporary file", "a writer was killed while it wrote this file"),
    "snapshots": ("snapshot", "no branch or tag leads to it"),
    "transaction_logs": ("transaction log", "no snapshot has it in its history"),
    "manifests": ("manifest", "no snapshot uses it"),
    "chunks": ("chunk", "no manifest refers to it"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Garbage:
    """The unused objects that a garbage collection deletes, grouped by folder in deletion order."""

    snapshots: ObjectListing
    transaction_logs: ObjectListing
    manifests: ObjectListing
    chunks: ObjectListing
    begun_us: int | None = None
    """When the collection was announced to other writers, in microseconds; only in version 1."""

    def phases(self) -> Iterator[tuple[str, ObjectListing]]:
        """Yield the garbage in each folder, with the name of its count in a summary."""
        return (
            (name, getattr(self, name)) for name in ("snapshots", "transaction_logs", "manifests", "chunks")
        )


@dataclass(frozen=True, slots=True)
class GCLimits:
    """Limits on the storage requests of a garbage collection."""

    max_concurrent_deletes: int = 10
    max_consecutive_delete_failures: int = 50


def collect(
    refs: RefStore,
    assets: AssetStore,
    older_than_us: int,
    executor: Executor,
    *,
    dry_run: bool,
    limits: GCLimits,
) -> GCSummary:
    """Delete unused objects that were created before a given time, snapshots first and chunks last.

    Because of this order, an interrupted collection never leaves a snapshot without its manifests or chunks.
    Equally old temporary files of killed writers are also deleted. If a reachable snapshot or manifest cannot
    be read, the collection fails before anything is deleted.
    """
    storage = assets.storage
    if dry_run:
        garbage = find_garbage(refs, assets, older_than_us, executor)
        orphans = find_orphans(storage, older_than_us, garbage.manifests.ids)
        found = _with_statistics(_summarize(garbage), orphans, DeleteReport(0))
        return _with_temporary_files(found, [find_temporary_files(storage, older_than_us)])
    swept: list[SweepReport] = []
    garbage = find_garbage(
        refs,
        assets,
        older_than_us,
        executor,
        release=True,
        when_found=lambda: swept.append(sweep(storage, older_than_us)),
    )
    try:
        done = _with_temporary_files(_delete_all(storage, garbage, limits, executor), swept)
        orphans = find_orphans(storage, older_than_us, NO_IDS)
        deleted = storage.delete([info.key for info in orphans]) if orphans else DeleteReport(0)
        return _with_statistics(done, orphans, deleted)
    finally:
        if isinstance(refs, RefStoreV1) and garbage.begun_us is not None:
            refs.note_end_of_collection(garbage.begun_us)


def find_temporary_files(storage: Storage, older_than_us: int) -> SweepReport:
    """Find the old temporary files of killed writers, which a garbage collection would delete."""
    return storage.sweep(from_microseconds(older_than_us), OWN_FOLDERS, is_own_path, dry_run=True)


def sweep(storage: Storage, older_than_us: int) -> SweepReport:
    """Delete the old temporary files of killed writers as part of a garbage collection."""
    return storage.sweep(from_microseconds(older_than_us), OWN_FOLDERS, is_own_path)


def find_garbage(
    refs: RefStore,
    assets: AssetStore,
    older_than_us: int,
    executor: Executor,
    *,
    release: bool = False,
    when_found: Callable[[], None] = lambda: None,
    dated: bool = False,
) -> Garbage:
    """Find the objects that a garbage collection would delete.

    With `release`, garbage snapshots are removed from the repository, and the collection is recorded. If the
    disk is full, garbage is deleted first to make room for that record. `when_found` is called before the
    repository changes. With `dated`, the listings include the modification times of objects.
    """
    for _ in iterate_attempts(_TRIES, 0.05, 0.5):
        try:
            plan = _Plan(refs, assets, older_than_us, executor, dated=dated)
            when_found()
            mark = plan.write_index() if release else None
            with assets.storage.make_room(plan.expendable):
                garbage = plan.release(mark) if release else plan.garbage
        except _RefMovedError:
            continue
        return garbage
    raise ConflictError(
        message=f"in each of {_TRIES} attempts, refs moved to snapshots that were about to be deleted;"
        " try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


class _RefMovedError(Exception):
    """Raised when a branch, tag or commit starts to use a snapshot that is about to be deleted."""


class _Plan:
    """A plan of the objects to delete, computed from one state of the refs.

    Objects that are reachable at the beginning are filtered out while folders are listed, which limits memory
    use. The refs are read again once all folders have been listed. An object written in between is either not
    listed or too new, and an object that became reachable in between is kept.
    """

    def __init__(
        self, refs: RefStore, assets: AssetStore, older_than_us: int, executor: Executor, *, dated: bool
    ) -> None:
        self._refs, self._assets, self._executor = refs, assets, executor
        self._older_than_us, self._dated = older_than_us, dated
        storage = assets.storage
        # First find reachable objects, then list existing objects, then find newly reachable objects. An
        # object that is first referenced after the first step belongs to a commit that the last step finds.
        before = list_reachable_snapshots(refs)
        self._index = read_index(storage, refs.seen(), before) if isinstance(refs, RefStoreV2) else NO_INDEX
        if not self._list_objects(before):
            self._index = NO_INDEX  # a file that was read earlier is now missing: report it
            self._list_objects(before)
        listed = list_folder(storage, SNAPSHOTS)
        young = listed.times_us >= older_than_us
        # A recent unreachable snapshot may belong to a commit in progress, so keep its objects.
        recent = listed.ids[young]
        self._snapshots = listed.take(~young)
        del listed
        if isinstance(refs, RefStoreV2):
            info = refs.load()
            self._known = info.snapshots.ids
            # An unreachable snapshot that is not listed or too new belongs to a commit or reset in progress.
            # Keep its entry, because its writer may still need it.
            listed_and_old = is_member(self._known, self._snapshots.ids)
            kept = self._known[mark_reachable(info) | ~listed_and_old]
        else:
            self._known, kept = NO_IDS, list_reachable_snapshots(refs)
        self._kept = sort_ids(np.concatenate([kept, recent]))
        self._snapshots = _find_unused(self._snapshots, self._kept)
        self._keep_objects(kept[~is_member(kept, before)])
        # Parts of a failed commit may be missing: an earlier or concurrent collection may have deleted them.
        self._keep_objects(recent[~is_member(recent, sort_ids(kept))], may_miss=True)

    def _list_objects(self, reachable: Ids) -> bool:
        """List old objects that reachable snapshots do not use. Return True if no manifest of these snapshots
        is missing.
        """
        manifests, added = self._read(reachable)
        self._walked = self._index.extend(reachable, manifests, added)
        present = 0

        def list_old(folder: str, *kept: IdIndex) -> ObjectListing:
            def select(part: ObjectListing) -> ObjectListing:
                nonlocal present
                used = np.logical_or.reduce([index.has(part.ids) for index in kept])
                present += int(used.sum())
                return part.take((part.times_us < self._older_than_us) & ~used)

            return filter_folder(self._assets.storage, folder, select, dated=self._dated)

        self._chunks = list_old(CHUNKS, self._index.chunks, IdIndex(added))
        present = 0
        self._manifests = list_old(MANIFESTS, IdIndex(manifests))
        complete = present == len(manifests)
        self._logs = list_old(TRANSACTIONS, IdIndex(reachable))
        return complete

    def _read(self, snapshots: Ids, *, may_miss: bool = False) -> tuple[Ids, Ids]:
        """Return the manifests in the index or used by the given snapshots, and the chunks of manifests
        outside the index.
        """
        storage, executor, index = self._assets.storage, self._executor, self._index
        unread = snapshots[~is_member(snapshots, index.snapshots)]
        manifests = list_manifests_used(storage, unread, executor, may_miss=may_miss)
        unread = manifests[~is_member(manifests, index.manifests)]
        chunks = list_chunks_used(storage, unread, executor, may_miss=may_miss)
        return sort_ids(np.concatenate([index.manifests, unread])), chunks

    def _keep_objects(self, snapshots: Ids, *, may_miss: bool = False) -> None:
        """Spare the manifests and chunks that the given snapshots use: remove them from the plan."""
        if not len(snapshots):
            return
        manifests, chunks = self._read(snapshots, may_miss=may_miss)
        self._manifests = _find_unused(self._manifests, manifests)
        self._chunks = _find_unused(self._chunks, chunks)

    @property
    def garbage(self) -> Garbage:
        """Return the objects to delete according to the current state of the plan."""
        info = self._remove_garbage(self._refs.load()) if isinstance(self._refs, RefStoreV2) else None
        return self._garbage(info)

    def expendable(self) -> Iterator[str]:
        """Yield the paths of all garbage in deletion order, followed by old backups of the repo info file."""
        for _, listing in self.garbage.phases():
            yield from listing.paths()
        if isinstance(self._refs, RefStoreV2):
            yield from self._refs.old_backups()

    def _garbage(self, info: RepoInfo | None) -> Garbage:
        logs = self._kept
        if info is not None:
            logs = sort_ids(np.concatenate([logs, get_inherited_logs(info.snapshots)]))
        return Garbage(self._snapshots, _find_unused(self._logs, logs), self._manifests, self._chunks)

    def release(self, mark: bytes | None) -> Garbage:
        """Record the collection, remove garbage snapshots from the repository, and return the objects to
        delete.

        The mark of a new reachability index is stored in the repo info.

        If a commit was added after the refs were read, its snapshot and objects are kept.
        """
        refs = self._refs
        if isinstance(refs, RefStoreV1):
            return self._release_v1(refs)
        after = None
        if isinstance(refs, RefStoreV2):
            # The entry in the ops log comes before the first deletion. A session that started earlier finds
            # it when it commits, and copies its chunks (`core.commit.gc_race`). Commits that came before the
            # entry are spared below.
            after = refs.update(lambda info: (add_mark(self._remove_garbage(info), mark), UpdateType.GCRan()))
            self._keep_snapshots(after.snapshots.ids[~is_member(after.snapshots.ids, self._known)])
        return self._garbage(after)

    def write_index(self) -> bytes | None:
        """Write a reachability index if it helps the next collection, and return its mark for the repo
        info.
        """
        if isinstance(self._refs, RefStoreV1) or self._walked is None:
            return None
        return write_index(self._assets.storage, self._walked)

    def _release_v1(self, refs: RefStoreV1) -> Garbage:
        if not any(len(listing) for _, listing in self.garbage.phases()):
            return self.garbage  # there is nothing to delete
        # Version 1 has no ops log, so the collection is announced in a file of its own. Announce first and
        # then read the refs again: a commit that did not see the announcement moved its branch earlier, and
        # is found here.
        begun_us = refs.note_collection()
        try:
            reached = list_reachable_snapshots(refs)
            self._keep_snapshots(reached[~is_member(reached, self._kept)])
        except BaseException:
            refs.note_end_of_collection(begun_us)
            raise
        return replace(self._garbage(None), begun_us=begun_us)

    def _keep_snapshots(self, added: Ids) -> None:
        self._keep_objects(added)
        self._kept = sort_ids(np.concatenate([self._kept, added]))
        self._snapshots = _find_unused(self._snapshots, self._kept)

    def _remove_garbage(self, info: RepoInfo) -> RepoInfo:
        """Remove unused snapshots from a repo info. The others get their nearest kept ancestor as their
        parent.

        Raises _RefMovedError if a branch, a tag or a new commit now uses one of the removed snapshots.
        """
        snapshots = info.snapshots
        appeared = ~is_member(snapshots.ids, self._known)
        keep = appeared | is_member(snapshots.ids, self._kept)
        tips = [snapshots.row(id) for id in (*info.branches.values(), *info.tags.values())]
        if any(row is not None and not keep[row] for row in tips):
            raise _RefMovedError
        parents = snapshots.parents.tolist()
        onto: dict[int, int] = {}
        skipped: dict[int, list[int]] = {}
        for row in np.flatnonzero(keep).tolist():
            if parents[row] == NO_PARENT or keep[parents[row]]:
                continue
            # A commit was added on top of a snapshot that is about to be deleted. Start again with the
            # current refs, which protect that snapshot.
            if appeared[row]:
                raise _RefMovedError
            line = list_ancestors(parents, row)
            stop = next((at for at, each in enumerate(line) if keep[each]), len(line))
            onto[row] = line[stop] if stop < len(line) else NO_PARENT
            skipped[row] = line[:stop]
        return (
            info if keep.all() else replace(info, snapshots=prune_snapshots(snapshots, keep, onto, skipped))
        )


def _find_unused(listing: ObjectListing, kept: Ids) -> ObjectListing:
    return listing.take(~is_member(listing.ids, kept)) if len(kept) and len(listing) else listing


# Deleting


def _summarize(garbage: Garbage) -> GCSummary:
    counts: dict[str, Any] = {f"{name}_deleted": len(listing) for name, listing in garbage.phases()}
    return GCSummary(bytes_deleted=sum(int(each.sizes.sum()) for _, each in garbage.phases()), **counts)


def _with_temporary_files(summary: GCSummary, swept: Sequence[SweepReport]) -> GCSummary:
    deleted = [info for report in swept for info in report.deleted]
    failed = dict(pair for report in swept for pair in report.failed)
    reasons = dict.fromkeys([*summary.delete_errors, *map(str, failed.values())])
    return replace(
        summary,
        temporary_files_deleted=len(deleted),
        bytes_deleted=summary.bytes_deleted + sum(info.size_bytes for info in deleted),
        objects_failed_to_delete=summary.objects_failed_to_delete + len(failed),
        delete_errors=list(reasons)[:_SHOWN_ERRORS],
    )


def _with_statistics(
    summary: GCSummary, orphans: Sequence[StorageObjectInfo], report: DeleteReport
) -> GCSummary:
    """Add the count and size of deleted statistics files to a garbage collection summary."""
    failed = {key for key, _ in report.failed}
    gone = [info for info in orphans if info.key not in failed]
    return replace(
        summary,
        statistics_deleted=len(gone),
        bytes_deleted=summary.bytes_deleted + sum(info.size_bytes for info in gone),
        objects_failed_to_delete=summary.objects_failed_to_delete + len(failed),
    )


def _delete_all(storage: Storage, garbage: Garbage, limits: GCLimits, executor: Executor) -> GCSummary:
    """Delete garbage folder by folder. If a folder has failures, leave later folders to the next
    collection.
    """
    counts: dict[str, Any] = {}
    failed: list[tuple[str, StorageError]] = []
    skipped: list[str] = []
    size = 0
    for name, listing in garbage.phases():
        # A snapshot or manifest that could not be deleted must stay readable, so everything that it may refer
        # to is left to the next collection.
        if failed:
            skipped.append(name)
            continue
        failed += _delete(storage, listing, limits, executor)
        gone = listing.take(~_find_rows(listing, [key for key, _ in failed])) if failed else listing
        counts[f"{name}_deleted"] = len(gone)
        size += int(gone.sizes.sum())
    reasons = list(dict.fromkeys(str(error) for _, error in failed))
    return GCSummary(
        bytes_deleted=size,
        objects_failed_to_delete=len(failed),
        delete_errors=reasons[:_SHOWN_ERRORS],
        skipped_phases=skipped,
        **counts,
    )


def _delete(
    storage: Storage, listing: ObjectListing, limits: GCLimits, executor: Executor
) -> list[tuple[str, StorageError]]:
    def delete_some(start: int) -> DeleteReport:
        return storage.delete(listing.take(slice(start, start + _DELETE_BATCH)).paths())

    failed: list[tuple[str, StorageError]] = []
    in_a_row = 0
    threads = 1 if storage.answers_at_once else limits.max_concurrent_deletes
    here = ThreadExecutor(
        threads, "delete", executor.progress
    )  # never on Spark, because only this process may delete objects
    for report in here.map(Task(delete_some, "delete requests"), range(0, len(listing), _DELETE_BATCH)):
        in_a_row = in_a_row + 1 if report.failed and not report.deleted else 0
        failed += report.failed
        if in_a_row >= limits.max_consecutive_delete_failures:
            raise StorageError(
                f"{in_a_row} consecutive delete requests failed, the last with: {failed[-1][1]}",
                kind=ErrorKind.GC_DELETES_FAILING,
            )
    return failed


def _find_rows(listing: ObjectListing, keys: list[str]) -> NDArray[np.bool_]:
    wanted = set(keys)
    return np.array([key in wanted for key in listing.paths()], np.bool_)


# Garbage as a table


def list_garbage(refs: RefStore, assets: AssetStore, older_than_us: int, executor: Executor) -> Table:
    """Return a table of the objects that a garbage collection would delete, in deletion order."""
    garbage = find_garbage(refs, assets, older_than_us, executor, dated=True)
    temporary = find_temporary_files(assets.storage, older_than_us).deleted
    now_us = time.time_ns() // 1000
    parts = list(garbage.phases())
    counts = [("temporary_files", len(temporary)), *((name, len(listing)) for name, listing in parts)]
    written_us = np.array([to_microseconds(info.created_at) for info in temporary], np.int64)
    sizes = np.array([info.size_bytes for info in temporary], np.int64)
    times = np.concatenate([written_us, *(listing.times_us for _, listing in parts)])
    return Table(
        {
            "object": [
                *(info.key for info in temporary),
                *(path for _, listing in parts for path in listing.paths()),
            ],
            "kind": _find_repeated((_KINDS[name][0], count) for name, count in counts),
            "bytes": np.concatenate([sizes, *(listing.sizes for _, listing in parts)]),
            "written_at": times.astype("M8[us]"),
            "age_s": (now_us - times) / 1e6,
            "reason": _find_repeated((_KINDS[name][1], count) for name, count in counts),
        }
    )


def _find_repeated(parts: Iterable[tuple[str, int]]) -> NDArray[np.object_]:
    return np.concatenate([np.full(count, text, object) for text, count in parts])
