"""Garbage collection: deletes the objects that no snapshot needs and that are older than a given time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task, ThreadExecutor
from icefloe._internal.retry import attempts
from icefloe._internal.table import Table
from icefloe._internal.times import from_microseconds, to_microseconds
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ConflictError, ErrorKind, StorageError
from icefloe.format.files import CHUNKS, MANIFESTS, OWN_FOLDERS, SNAPSHOTS, TRANSACTIONS, is_own_path
from icefloe.format.id_columns import IdIndex, is_member, sorted_ids
from icefloe.format.pruning import ancestors, inherited_logs, pruned
from icefloe.format.repo_info import NO_PARENT, RepoInfo
from icefloe.maintenance.listings import Listing, list_folder, sift_folder
from icefloe.maintenance.reachable import (
    NO_IDS,
    Ids,
    chunks_used,
    manifests_used,
    reachable,
    reachable_snapshots,
)
from icefloe.ops import GCSummary, UpdateType
from icefloe.storage.base import DeleteReport, Storage, SweepReport

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
    """What nothing needs, by folder, in the order in which it is deleted."""

    snapshots: Listing
    transaction_logs: Listing
    manifests: Listing
    chunks: Listing
    begun_us: int | None = None
    """When others were told that it is being deleted, where nothing else tells of it."""

    def phases(self) -> Iterator[tuple[str, Listing]]:
        """Each folder's, with its name in a summary."""
        return (
            (name, getattr(self, name)) for name in ("snapshots", "transaction_logs", "manifests", "chunks")
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard a collection may press the storage."""

    max_concurrent_deletes: int = 10
    max_consecutive_delete_failures: int = 50


def collect(
    refs: RefStore,
    assets: AssetStore,
    older_than_us: int,
    executor: Executor,
    *,
    dry_run: bool,
    limits: Limits,
) -> GCSummary:
    """Delete what no snapshot needs and the storage dates before a time, snapshots first and chunks last.

    Temporary files that killed writers left before that time are also deleted. A manifest or snapshot that
    cannot be read stops it before anything is deleted.
    """
    storage = assets.storage
    if dry_run:
        garbage = find_garbage(refs, assets, older_than_us, executor)
        return _with_temporary_files(_summary(garbage), [find_temporary_files(storage, older_than_us)])
    swept: list[SweepReport] = []
    garbage = find_garbage(
        refs,
        assets,
        older_than_us,
        executor,
        let_go=True,
        when_found=lambda: swept.append(sweep(storage, older_than_us)),
    )
    try:
        return _with_temporary_files(_deleted(storage, garbage, limits, executor), swept)
    finally:
        if isinstance(refs, RefStoreV1) and garbage.begun_us is not None:
            refs.note_end_of_collection(garbage.begun_us)


def find_temporary_files(storage: Storage, older_than_us: int) -> SweepReport:
    """Find the temporary files that killed writers left before a time."""
    return storage.sweep(from_microseconds(older_than_us), OWN_FOLDERS, is_own_path, dry_run=True)


def sweep(storage: Storage, older_than_us: int) -> SweepReport:
    """Delete the temporary files that killed writers left before a time."""
    return storage.sweep(from_microseconds(older_than_us), OWN_FOLDERS, is_own_path)


def find_garbage(
    refs: RefStore,
    assets: AssetStore,
    older_than_us: int,
    executor: Executor,
    *,
    let_go: bool = False,
    when_found: Callable[[], None] = lambda: None,
    dated: bool = False,
) -> Garbage:
    """What a collection would delete; with `let_go` the repository does not list it any more afterwards.

    Where the disk is full, the record that it was let go is written in the room of what is deleted anyway.
    """
    for _ in attempts(_TRIES, 0.05, 0.5):
        try:
            plan = _Plan(refs, assets, older_than_us, executor, dated=dated)
            when_found()
            with assets.storage.making_room(plan.expendable):
                garbage = plan.let_go() if let_go else plan.garbage
        except _MovedOnError:
            continue
        return garbage
    raise ConflictError(
        message=f"refs were moved to what was about to be deleted, {_TRIES} times over; try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


class _MovedOnError(Exception):
    """Somebody made use of a snapshot that was about to go."""


class _Plan:
    """What to delete, worked out from one state of the refs.

    What refs lead to at the beginning is a sieve for the listings: of these only what falls through is held.
    What is deleted is decided by the refs as they are after all was listed, so that what is written in
    between is too new, never unlisted and old.
    """

    def __init__(
        self, refs: RefStore, assets: AssetStore, older_than_us: int, executor: Executor, *, dated: bool
    ) -> None:
        self._refs, self._assets, self._executor = refs, assets, executor
        storage = assets.storage
        sieve = reachable_snapshots(refs)
        manifests = manifests_used(storage, sieve, executor)

        def old(folder: str, kept: IdIndex) -> Listing:
            def sift(part: Listing) -> Listing:
                return part.take((part.times_us < older_than_us) & ~kept.has(part.ids))

            return sift_folder(storage, folder, sift, dated=dated)

        self._chunks = old(CHUNKS, IdIndex(chunks_used(storage, manifests, executor)))
        self._manifests = old(MANIFESTS, IdIndex(manifests))
        self._logs = old(TRANSACTIONS, IdIndex(sieve))
        listed = list_folder(storage, SNAPSHOTS)
        young = listed.times_us >= older_than_us
        # A file nobody knows may be a commit under way.
        recent = listed.ids[young]
        self._snapshots = listed.take(~young)
        del listed
        if isinstance(refs, RefStoreV2):
            info = refs.load()
            self._known = info.snapshots.ids
            listed_and_old = is_member(self._known, self._snapshots.ids)
            kept = self._known[reachable(info) | ~listed_and_old]
        else:
            self._known, kept = NO_IDS, reachable_snapshots(refs)
        self._kept = sorted_ids(np.concatenate([kept, recent]))
        self._snapshots = _not_in(self._snapshots, self._kept)
        self._spare(kept[~is_member(kept, sieve)])
        # Of one that failed an earlier collection may have taken a part, or another may right now.
        self._spare(recent[~is_member(recent, sorted_ids(kept))], may_miss=True)

    def _spare(self, snapshots: Ids, *, may_miss: bool = False) -> None:
        """Leave alone what some more snapshots need."""
        if not len(snapshots):
            return
        storage, executor = self._assets.storage, self._executor
        manifests = manifests_used(storage, snapshots, executor, may_miss=may_miss)
        self._manifests = _not_in(self._manifests, manifests)
        chunks = chunks_used(storage, manifests, executor, may_miss=may_miss)
        self._chunks = _not_in(self._chunks, chunks)

    @property
    def garbage(self) -> Garbage:
        """What would be deleted as things stand."""
        info = self._dropped(self._refs.load()) if isinstance(self._refs, RefStoreV2) else None
        return self._garbage(info)

    def expendable(self) -> Iterator[str]:
        """Give the paths of all garbage in the order in which it is deleted, then those of old backups."""
        for _, listing in self.garbage.phases():
            yield from listing.paths()
        if isinstance(self._refs, RefStoreV2):
            yield from self._refs.old_backups()

    def _garbage(self, info: RepoInfo | None) -> Garbage:
        logs = self._kept
        if info is not None:
            logs = sorted_ids(np.concatenate([logs, inherited_logs(info.snapshots)]))
        return Garbage(self._snapshots, _not_in(self._logs, logs), self._manifests, self._chunks)

    def let_go(self) -> Garbage:
        """Take the snapshots off the list of the repository; what can be deleted thereafter."""
        refs = self._refs
        if isinstance(refs, RefStoreV1):
            return self._let_go_v1(refs)
        after = None
        if isinstance(refs, RefStoreV2):
            after = refs.update(lambda info: (self._dropped(info), UpdateType.GCRan()))
            self._spare_snapshots(after.snapshots.ids[~is_member(after.snapshots.ids, self._known)])
        return self._garbage(after)

    def _let_go_v1(self, refs: RefStoreV1) -> Garbage:
        if not any(len(listing) for _, listing in self.garbage.phases()):
            return self.garbage  # nobody has to know
        begun_us = refs.note_collection()
        try:
            reached = reachable_snapshots(refs)
            self._spare_snapshots(reached[~is_member(reached, self._kept)])
        except BaseException:
            refs.note_end_of_collection(begun_us)
            raise
        return replace(self._garbage(None), begun_us=begun_us)

    def _spare_snapshots(self, added: Ids) -> None:
        self._spare(added)
        self._kept = sorted_ids(np.concatenate([self._kept, added]))
        self._snapshots = _not_in(self._snapshots, self._kept)

    def _dropped(self, info: RepoInfo) -> RepoInfo:
        """A repo info without the snapshots that go; those above are tied to the nearest that stays."""
        snapshots = info.snapshots
        appeared = ~is_member(snapshots.ids, self._known)
        keep = appeared | is_member(snapshots.ids, self._kept)
        tips = [snapshots.row(id) for id in (*info.branches.values(), *info.tags.values())]
        if any(row is not None and not keep[row] for row in tips):
            raise _MovedOnError
        parents = snapshots.parents.tolist()
        onto: dict[int, int] = {}
        skipped: dict[int, list[int]] = {}
        for row in np.flatnonzero(keep).tolist():
            if parents[row] == NO_PARENT or keep[parents[row]]:
                continue
            if appeared[row]:
                raise _MovedOnError
            line = ancestors(parents, row)
            stop = next((at for at, each in enumerate(line) if keep[each]), len(line))
            onto[row] = line[stop] if stop < len(line) else NO_PARENT
            skipped[row] = line[:stop]
        return info if keep.all() else replace(info, snapshots=pruned(snapshots, keep, onto, skipped))


def _not_in(listing: Listing, kept: Ids) -> Listing:
    return listing.take(~is_member(listing.ids, kept)) if len(kept) and len(listing) else listing


# Deleting


def _summary(garbage: Garbage) -> GCSummary:
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


def _deleted(storage: Storage, garbage: Garbage, limits: Limits, executor: Executor) -> GCSummary:
    """Delete phase by phase. After failures in one the later ones wait for the next run."""
    counts: dict[str, Any] = {}
    failed: list[tuple[str, StorageError]] = []
    skipped: list[str] = []
    size = 0
    for name, listing in garbage.phases():
        if failed:
            skipped.append(name)
            continue
        failed += _delete(storage, listing, limits, executor)
        gone = listing.take(~_rows_of(listing, [key for key, _ in failed])) if failed else listing
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
    storage: Storage, listing: Listing, limits: Limits, executor: Executor
) -> list[tuple[str, StorageError]]:
    def delete_some(start: int) -> DeleteReport:
        return storage.delete(listing.take(slice(start, start + _DELETE_BATCH)).paths())

    failed: list[tuple[str, StorageError]] = []
    in_a_row = 0
    threads = 1 if storage.answers_at_once else limits.max_concurrent_deletes
    here = ThreadExecutor(threads, "delete", executor.progress)  # never on Spark: only the driver deletes
    for report in here.map(Task(delete_some, "requests to delete"), range(0, len(listing), _DELETE_BATCH)):
        in_a_row = in_a_row + 1 if report.failed and not report.deleted else 0
        failed += report.failed
        if in_a_row >= limits.max_consecutive_delete_failures:
            raise StorageError(
                f"{in_a_row} requests to delete failed one after the other, the last with: {failed[-1][1]}",
                kind=ErrorKind.GC_DELETES_FAILING,
            )
    return failed


def _rows_of(listing: Listing, keys: list[str]) -> NDArray[np.bool_]:
    wanted = set(keys)
    return np.array([key in wanted for key in listing.paths()], np.bool_)


# Garbage as a table


def list_garbage(refs: RefStore, assets: AssetStore, older_than_us: int, executor: Executor) -> Table:
    """Make a table of the objects that a collection would delete, in that order: temporary files first."""
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
            "kind": _repeated((_KINDS[name][0], count) for name, count in counts),
            "bytes": np.concatenate([sizes, *(listing.sizes for _, listing in parts)]),
            "written_at": times.astype("M8[us]"),
            "age_s": (now_us - times) / 1e6,
            "reason": _repeated((_KINDS[name][1], count) for name, count in counts),
        }
    )


def _repeated(parts: Iterable[tuple[str, int]]) -> NDArray[np.object_]:
    return np.concatenate([np.full(count, text, object) for text, count in parts])
