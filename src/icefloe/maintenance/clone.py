"""Clone a repository to another storage, or update an existing clone.

A clone contains the whole history or only its newest part. Chunks are copied first, then manifests,
transaction logs and snapshots, and finally the refs. If a clone is interrupted, the target is either
unchanged or not a repository yet. The next call copies only the missing objects.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from icefloe._internal.executor import Executor, Progress, ThreadExecutor
from icefloe._internal.ids import SnapshotId
from icefloe._internal.report import Report
from icefloe.config import RepositoryConfig
from icefloe.core.open import Layout, RepositoryParts, make_parts, open_parts
from icefloe.core.refs.base import read_only_format
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    Hint,
    InvalidInputError,
    RepositoryNotFoundError,
)
from icefloe.format.files import CHUNKS, CONFIG_PATH, MANIFESTS, OVERWRITTEN, SNAPSHOTS, TRANSACTIONS
from icefloe.format.id_columns import is_member, sort_ids
from icefloe.format.refs_v1 import REFS, RefFile, RefKind
from icefloe.format.repo_changes import Changed
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.updates import RepoStatus, Update, Updates
from icefloe.maintenance.commit_graph import History, load_history
from icefloe.maintenance.copy_objects import Copier, CopyLimits, find_missing, find_needed_rows
from icefloe.maintenance.listings import Ids, ObjectListing, list_folder, to_column
from icefloe.maintenance.reachable import list_chunks_used, list_manifests_used
from icefloe.maintenance.statistics.lifecycle import copy_statistics
from icefloe.ops import UpdateType
from icefloe.storage.base import Storage

_FOLDERS: Final = (CHUNKS, MANIFESTS, TRANSACTIONS, SNAPSHOTS)
_BEFORE_MAIN: Final = (REFS, CONFIG_PATH, OVERWRITTEN)
"""Files that version 1 writes before the `main` ref. That ref makes the location a repository."""


@dataclass(frozen=True, slots=True)
class CloneReport(Report):
    """The result of a clone: what was copied, or with `dry_run` what would be copied."""

    dry_run: bool
    """True if nothing was written."""
    snapshots: int = 0
    """Number of copied snapshots."""
    transaction_logs: int = 0
    """Number of copied transaction logs."""
    manifests: int = 0
    """Number of copied manifests."""
    chunks: int = 0
    """Number of copied chunk objects."""
    bytes_copied: int = 0
    """Size of all copied objects."""
    objects_there: int = 0
    """Number of objects that already existed at the target."""
    branches: tuple[str, ...] = ()
    """The branches that were created or moved at the target."""
    tags: tuple[str, ...] = ()
    """The tags that were created at the target."""


@dataclass(frozen=True, slots=True)
class CloneSelection:
    """The branches, tags and number of snapshots that select the part of a history to clone."""

    branches: Collection[str] | None = None
    tags: Collection[str] | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")

    def select(self, whole: History) -> History:
        """Return the part of a commit graph to clone. It always includes `main`."""
        names = None if self.branches is None else {*self.branches, MAIN}
        part = whole.with_refs(names, self.tags)
        return part if self.depth is None else part.newest(self.depth)


def clone(
    source: RepositoryParts,
    target: Storage,
    choice: CloneSelection,
    limits: CopyLimits,
    *,
    layouts: Sequence[Layout],
    read_back: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> CloneReport:
    """Clone an open repository to another storage; see `Repository.clone_to`."""
    if not source.refs.spec.writable:
        copy = Hint("{function} with {target} copies it", function="icefloe.migrate", target=None)
        raise read_only_format("a clone", copy)
    if not dry_run:
        target.check_writable()
    there, exists = _open_target(target, source, layouts)
    before = load_history(there.refs) if exists else None
    work = _CloneWork(
        source, there, before, choice, executor or ThreadExecutor(limits.max_concurrent_requests)
    )
    _check_branches(work, overwrite=overwrite)
    missing = work.missing()
    report = CloneReport(
        dry_run,
        snapshots=len(missing[SNAPSHOTS]),
        transaction_logs=len(missing[TRANSACTIONS]),
        manifests=len(missing[MANIFESTS]),
        chunks=len(missing[CHUNKS]),
        bytes_copied=sum(int(each.sizes.sum()) for each in missing.values()),
        objects_there=work.count - sum(map(len, missing.values())),
        branches=tuple(sorted(name for name, _ in work.moved_branches())),
        tags=tuple(sorted(name for name, _ in work.new_tags())),
    )
    if dry_run:
        return report
    if not work.exists:
        target.prepare_for_creation()
    copier = Copier(source.assets.storage, there.assets.storage, source.refs.spec, read_back)
    for folder in _FOLDERS:
        copier.copy_all(missing[folder], executor, limits, progress)
    work.rewrite_parents()
    work.check_sizes()
    work.move_refs()
    copy_statistics(source.assets.storage, there.assets.storage, work.executor)
    return report


def _open_target(
    target: Storage, source: RepositoryParts, layouts: Sequence[Layout]
) -> tuple[RepositoryParts, bool]:
    """Open the target repository, or prepare to create it. Also return True if it already exists."""
    try:
        opened = open_parts(target, layouts, None)
    except RepositoryNotFoundError:
        stray = next((info.key for info in target.list_prefix("") if not _may_be_from_clone(info.key)), None)
        if stray is not None:
            raise InvalidInputError(
                f"the target of a clone must be empty, but {target.place} contains {stray}",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            ) from None
        return make_parts(target, source.layout, RepositoryConfig()), False
    if type(opened.refs) is not type(source.refs):
        raise InvalidInputError(
            f"the repository in {target.place} has format version {opened.refs.spec.number}, but the"
            f" source has version {source.refs.spec.number}; upgrade one of them, or choose another location",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return opened, True


def _may_be_from_clone(key: str) -> bool:
    """Return True if a file at the target may be left over from an interrupted clone."""
    return key.partition("/")[0] in (*_FOLDERS, *_BEFORE_MAIN)


class _CloneWork:
    """The objects and refs missing at the target, computed from one state of the source and the target."""

    def __init__(
        self,
        source: RepositoryParts,
        there: RepositoryParts,
        before: History | None,
        choice: CloneSelection,
        executor: Executor,
    ) -> None:
        self.source, self.there, self.before, self.executor = source, there, before, executor
        self.whole = load_history(source.refs)
        self.part = choice.select(self.whole)
        self.since = 0 if before is None else there.refs.now()
        known = self.before.snapshots.ids if self.before is not None else self.whole.snapshots.ids[:0]
        snapshots = self.part.snapshots
        self.rows = np.flatnonzero(~is_member(snapshots.ids, known))
        self.new = {info.id: info for info in self._list_new_snapshots(known)}
        self.count = 0
        self._wanted: dict[str, ObjectListing] = {}

    @property
    def exists(self) -> bool:
        """True if there is a repository at the target."""
        return self.before is not None

    def _list_new_snapshots(self, known: Ids) -> Iterator[SnapshotInfo]:
        """Yield the snapshots to add to the target, each with its nearest ancestor at the target as its
        parent.
        """
        snapshots = self.whole.snapshots
        stays = is_member(snapshots.ids, known) | is_member(snapshots.ids, self.part.snapshots.ids)
        tied = self.whole.keep(stays).snapshots
        at_target = {known[row].tobytes() for row in range(len(known))}
        for info in map(tied.find, map(self.part.snapshots.id_at, self.rows.tolist())):
            if info is None:
                continue
            logs = info.pruned_ancestor_tx_logs
            # A snapshot that expired at the source may still exist at the target.
            last = next((at for at in range(len(logs), 0, -1) if bytes(logs[at - 1]) in at_target), 0)
            if last:
                yield replace(info, parent_id=logs[last - 1], pruned_ancestor_tx_logs=logs[last:])
            else:
                yield info

    def missing(self) -> dict[str, ObjectListing]:
        """Return the objects to copy, grouped by folder."""
        here, there = self.source.assets.storage, self.there.assets.storage
        # List objects before reading snapshots, so that an object deleted in the meantime raises an error.
        listed = {folder: list_folder(here, folder) for folder in _FOLDERS}
        needed = self._find_needed(listed[TRANSACTIONS].ids)
        missing = {}
        for folder in _FOLDERS:
            wanted = find_needed_rows(listed[folder], needed[folder], here)
            self._wanted[folder] = wanted
            self.count += len(wanted)
            missing[folder] = find_missing(wanted, list_folder(there, folder))
        return missing

    def _find_needed(self, logs_there: Ids) -> dict[str, Ids]:
        storage = self.source.assets.storage
        snapshots = self.part.snapshots.ids[self.rows]
        manifests = list_manifests_used(storage, snapshots, self.executor)
        required = [*(log for info in self.new.values() for log in info.pruned_ancestor_tx_logs)]
        required += [info.id for info in self.new.values() if info.parent_id is not None]
        wanted = to_column([] if self._is_v1 else required)
        # First snapshots may have no transaction log, and logs of version 1 may be missing.
        more = to_column([*required, *self.new])
        logs = sort_ids(np.concatenate([wanted, more[is_member(more, logs_there)]]))
        return {
            SNAPSHOTS: snapshots,
            TRANSACTIONS: logs,
            MANIFESTS: manifests,
            CHUNKS: list_chunks_used(storage, manifests, self.executor),
        }

    @property
    def _is_v1(self) -> bool:
        """True for format version 1, in which logs may be missing and snapshot files contain their parent's
        id.
        """
        return self.source.refs.spec.parent_in_snapshot

    def rewrite_parents(self) -> None:
        """Rewrite the version 1 snapshot files whose parent differs at the target."""
        if not self._is_v1:
            return
        for info in self.new.values():
            snapshot = self.source.assets.snapshot(info.id)
            if snapshot.parent_id != info.parent_id:
                self.there.assets.write_snapshot(replace(snapshot, parent_id=info.parent_id))

    def check_sizes(self) -> None:
        """Check that every copied object exists at the target with the same size."""
        storage = self.there.assets.storage
        for folder in _FOLDERS:
            wanted = self._wanted[folder]
            found = find_needed_rows(list_folder(storage, folder), wanted.ids, storage)
            if folder == SNAPSHOTS and self._is_v1:
                continue  # some snapshot files were rewritten
            short = found.sizes != wanted.sizes
            if short.any():
                raise ConflictError(
                    message=f"{found.take(short).paths()[0]} in {storage.place} changed while it was copied; "
                    "try again",
                    kind=ErrorKind.REPO_INFO_UPDATED,
                )

    # Refs

    def moved_branches(self) -> Iterator[tuple[str, SnapshotId]]:
        """Yield the branches to create or move at the target, main first."""
        known = {} if self.before is None else self.before.branches
        for name in sorted(self.part.branches, key=lambda name: (name != MAIN, name)):
            if known.get(name) != self.part.branches[name]:
                yield name, self.part.branches[name]

    def new_tags(self) -> Iterator[tuple[str, SnapshotId]]:
        """Yield the tags to create at the target."""
        known = {} if self.before is None else self.before.tags
        return ((name, id) for name, id in sorted(self.part.tags.items()) if name not in known)

    def move_refs(self) -> None:
        """Create or move refs at the target: atomically in a new repository, one by one in an existing
        one.
        """
        here, there = self.source.refs, self.there.refs
        if isinstance(there, RefStoreV2) and isinstance(here, RefStoreV2):
            if not self.exists:
                there.create(self._make_first_info(here.load()))
                return
            for name, tip in self.moved_branches():
                there.update(partial(self._with_branch, name=name, tip=tip))
            for name, tip in self.new_tags():
                there.update(partial(self._with_tag, name=name, target=tip))
        elif isinstance(there, RefStoreV1):
            self._move_files(there)

    def _make_first_info(self, at_source: RepoInfo) -> RepoInfo:
        now_us = time.time_ns() // 1000
        return replace(
            at_source,
            snapshots=SnapshotInfos.of(self.new.values()),
            branches=self.part.branches,
            tags=self.part.tags,
            deleted_tags=self.part.deleted_tags,
            status=RepoStatus(set_at_us=now_us),
            latest_updates=Updates.of([Update(UpdateType.RepoInitialized(), now_us)]),
            repo_before_updates=None,
        )

    def _with_branch(self, info: RepoInfo, name: str, tip: SnapshotId) -> Changed:
        before = info.branches.get(name)
        expected = None if self.before is None else self.before.branches.get(name)
        if before != expected:
            raise ConflictError(
                None if expected is None else str(expected),
                None if before is None else str(before),
                kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
            )
        changed = replace(self._with_history(info, tip), branches={**info.branches, name: tip})
        if before is None:
            return changed, UpdateType.BranchCreated(name)
        if changed.snapshots.row(before) in changed.snapshots.ancestry(tip):
            return changed, UpdateType.NewCommit(name, str(tip))
        return changed, UpdateType.BranchReset(name, str(before))

    def _with_tag(self, info: RepoInfo, name: str, target: SnapshotId) -> Changed:
        changed = replace(self._with_history(info, target), tags={**info.tags, name: target})
        return changed, UpdateType.TagCreated(name)

    def _with_history(self, info: RepoInfo, tip: SnapshotId) -> RepoInfo:
        """Return the target's repo info with a snapshot and its missing ancestors added."""
        if isinstance(self.there.refs, RefStoreV2) and self.there.refs.collected_since(info, self.since):
            raise ConflictError(
                message="a garbage collection ran at the target while objects were copied; try again",
                kind=ErrorKind.REPO_INFO_UPDATED,
            )
        at: SnapshotId | None = tip
        line: list[SnapshotInfo] = []
        while at is not None and info.snapshots.row(at) is None:
            line.append(self.new[at])
            at = line[-1].parent_id
        return replace(info, snapshots=SnapshotInfos.of([*info.snapshots, *line])) if line else info

    def _move_files(self, there: RefStoreV1) -> None:
        config = self.source.refs.config()
        if not self.exists and config is not None:
            there.save_config(config)
        for name, tip in self.moved_branches():
            if name == MAIN and not self.exists:
                continue  # main is created last, because it makes the target a repository
            self._move_file(there, name, tip)
        for name, target in self.new_tags():
            _create_tag(there, name, target)
        if not self.exists:
            self._copy_deleted_tags()
            there.create(self.part.branches[MAIN])

    def _copy_deleted_tags(self) -> None:
        """Copy the files of deleted tags, which keep their names from being reused."""
        here, there = self.source.assets.storage, self.there.assets.storage
        for name in self.part.deleted_tags:
            for deleted in (False, True):
                path = RefFile(RefKind.TAG, name, deleted).path
                if here.exists(path):
                    there.put(path, here.get(path)[0])

    def _move_file(self, there: RefStoreV1, name: str, tip: SnapshotId) -> None:
        if name in there.branches():
            expected = self.before.branches.get(name) if self.before is not None else None
            there.reset_branch(name, tip, expected)
        else:
            there.create_branch(name, tip)


def _create_tag(there: RefStoreV1, name: str, target: SnapshotId) -> None:
    try:
        there.create_tag(name, target)
    except AlreadyExistsError:
        if there.tag(name) != target:
            raise


def _check_branches(work: _CloneWork, *, overwrite: bool) -> None:
    """Raise ConflictError if the target has commits or tags that the source lacks."""
    if work.before is None or overwrite:
        return
    snapshots = work.whole.snapshots
    for name, tip in work.moved_branches():
        at_target = work.before.branches.get(name)
        if at_target is None:
            continue
        line = snapshots.ancestry(tip)
        known = {snapshots.id_at(row) for row in line}
        known |= {log for row in line for log in snapshots[row].pruned_ancestor_tx_logs}
        if at_target not in known:
            raise ConflictError(
                message=f"branch {name} of the target is at {at_target}, which is not in the history of"
                " the branch at the source, so commits of the target would be lost",
                kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
            ).with_hint(Hint("{overwrite} moves it anyway", overwrite=True))
    for name, target in work.part.tags.items():
        at_target = work.before.tags.get(name)
        if at_target is not None and at_target != target:
            raise ConflictError(
                message=f"tag {name} is at {at_target} in the target and at {target} in the source",
                kind=ErrorKind.TAG_ALREADY_EXISTS,
            )
