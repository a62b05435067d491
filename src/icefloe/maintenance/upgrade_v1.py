"""Upgrade repositories from format version 1 to version 2.

Branches, tags, history and configuration move to a new repo info file. All other objects are unchanged.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore, make_object_metadata
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    Hint,
    IcechunkError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.config_flexbuffers import encode_config
from icefloe.format.files import (
    CONFIG_PATH,
    REPO_PATH,
    SNAPSHOTS,
    read_repo_info,
    read_snapshot_info,
    write_repo_info,
)
from icefloe.format.refs_v1 import REFS, RefFile, RefKind
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.spec import V2
from icefloe.format.updates import RepoStatus, StoredUpdate, Update, Updates
from icefloe.maintenance.listings import iterate_ids, list_folder
from icefloe.ops import UpdateType
from icefloe.storage.base import ABSENT, ConditionNotMetError, Storage

_MOMENT_US: Final = 1000
"""The assumed time in microseconds between a commit and the creation of a branch or tag, which version 1 does
not record.
"""


def upgrade(
    refs: RefStore, assets: AssetStore, executor: Executor, *, dry_run: bool, delete_old_files: bool
) -> bool:
    """Upgrade a version 1 repository: write its repo info file, and leave its ref files in place.

    Returns True if the repo info file was written. If the repository was already upgraded, any leftover
    version 1 files are deleted. If a branch or tag moves in the meantime, the new file is removed and
    ConflictError is raised.
    """
    storage = assets.storage
    if refs.spec.refs_in_repo_info and delete_old_files and has_files_of_version_1(storage):
        if not dry_run:
            delete_files_of_version_1(storage)
        return False
    if not isinstance(refs, RefStoreV1):
        raise SessionStateError(
            f"invalid repository version ({refs.spec.number}.0), this function can only migrate repositories "
            "that use version 1.0 of the specification, to repositories with spec version 2.0",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        ).with_hint(Hint("{function} upgrades older formats", function="icefloe.migrate"))
    storage.check_writable()
    before = refs.all_refs()
    data = write_repo_info(_repo_info(assets, refs, before, executor), V2, assets.config.compression_level)
    read_repo_info(data)  # raise errors before anything is written
    if dry_run:
        return False
    try:
        storage.put(REPO_PATH, data, ABSENT, metadata=make_object_metadata(V2, "repo-info"))
    except ConditionNotMetError:
        raise ConflictError(
            message="another process has upgraded this repository", kind=ErrorKind.REPO_INFO_UPDATED
        ) from None
    if refs.all_refs() != before:
        storage.delete([REPO_PATH])
        raise ConflictError(
            message="a branch or tag changed during the upgrade, which was undone; stop all writers and"
            " try again",
            kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
        )
    return True


def delete_files_of_version_1(storage: Storage) -> None:
    """Delete the version 1 (V1) files that an upgraded repository no longer uses, starting with main."""
    main = RefFile(RefKind.BRANCH, MAIN).path
    storage.delete([main])
    report = storage.delete(list(_list_ref_files(storage)))
    if report.failed:
        path, reason = report.failed[0]
        raise SessionStateError(
            f"the repository was upgraded, but {path} of version 1 could not be deleted: {reason}",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    storage.delete([CONFIG_PATH])


def has_files_of_version_1(storage: Storage) -> bool:
    """Return True if an upgraded repository still has version 1 (V1) files."""
    return next(_list_ref_files(storage), None) is not None or storage.exists(CONFIG_PATH)


def _list_ref_files(storage: Storage) -> Iterator[str]:
    """Yield the paths of branch and tag files, without other files in their folders."""
    return (info.key for info in storage.list_prefix(f"{REFS}/") if RefFile.parse(info.key) is not None)


def _repo_info(
    assets: AssetStore, refs: RefStoreV1, files: Mapping[RefFile, SnapshotId | None], executor: Executor
) -> RepoInfo:
    branches = {file.name: id for file, id in files.items() if id is not None and file.kind is RefKind.BRANCH}
    tags = {file.name: id for file, id in files.items() if id is not None and file.kind is RefKind.TAG}
    gone = {file.name for file in files if file.deleted}
    known = _read_snapshots(assets, executor)
    reached: dict[SnapshotId, SnapshotInfo] = {}
    for id in (*branches.values(), *(id for tag, id in tags.items() if tag not in gone)):
        reached |= _list_new_ancestors(id, reached, known, refs)
    for id in (id for tag, id in tags.items() if tag in gone):
        with contextlib.suppress(SnapshotNotFoundError):  # garbage collection may have deleted its snapshots
            reached |= _list_new_ancestors(id, reached, known, refs)
    stored = refs.config()
    return make_first_repo_info(
        reached,
        branches,
        {tag: id for tag, id in tags.items() if tag not in gone},
        {tag: tags.get(tag) for tag in gone},
        time.time_ns() // 1000,
        {},
        None if stored is None else encode_config(stored),
    )


def _list_new_ancestors(
    tip: SnapshotId,
    reached: Mapping[SnapshotId, SnapshotInfo],
    known: Mapping[SnapshotId, SnapshotInfo],
    refs: RefStoreV1,
) -> dict[SnapshotId, SnapshotInfo]:
    """Return a snapshot and its ancestors, up to the first one that was already visited."""
    line: dict[SnapshotId, SnapshotInfo] = {}
    at: SnapshotId | None = tip
    while at is not None and at not in reached and at not in line:
        line[at] = known.get(at) or refs.snapshot(at)
        at = line[at].parent_id
    return line


def _read_snapshots(assets: AssetStore, executor: Executor) -> dict[SnapshotId, SnapshotInfo]:
    """Read all existing snapshots in parallel, which is faster than following parents one by one."""
    ids = iterate_ids(list_folder(assets.storage, SNAPSHOTS).ids)
    infos = executor.map(Task(partial(_read_info, assets.storage), "snapshots"), ids)
    return {info.id: info for info in infos if info is not None}


def _read_info(storage: Storage, snapshot: bytes) -> SnapshotInfo | None:
    id = SnapshotId(snapshot)
    try:
        return read_snapshot_info(storage.get(f"{SNAPSHOTS}/{id}")[0], id)
    except IcechunkError:  # the error is raised again if the snapshot is reachable from a ref
        return None


# The repo info file


def make_first_repo_info(
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tags: Mapping[str, SnapshotId | None],
    now_us: int,
    metadata: Mapping[str, Any],
    config: bytes | None,
) -> RepoInfo:
    """Create the repo info of an upgraded repository, with an ops log inferred from its history."""
    events = sorted(_infer_updates(snapshots, branches, tags, deleted_tags), key=lambda event: event[0])
    first = events[0][0] if events else now_us
    # Times must be strictly ascending and in the past, because writers refuse to add an entry before the
    # newest one.
    times, last = [], 0
    for at_us, _ in events:
        last = max(last + 1, at_us)
        times.append(last)
    late = max(0, last - (now_us - 1))
    log = [Update(UpdateType.RepoMigrated(1, 2), now_us)]
    log += [
        Update(kind, max(at_us - late, 0)) for at_us, (_, kind) in zip(times[::-1], events[::-1], strict=True)
    ]
    return RepoInfo(
        snapshots=SnapshotInfos.of(snapshots.values()),
        branches=dict(sorted(branches.items())),
        tags=dict(sorted(tags.items())),
        deleted_tags=frozenset(deleted_tags),
        status=RepoStatus(set_at_us=min(first, now_us)),
        latest_updates=Updates.of(log),
        metadata=metadata,
        config=config,
    )


def _infer_updates(
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tags: Mapping[str, SnapshotId | None],
) -> Iterator[tuple[int, StoredUpdate]]:
    """Yield the operations that must have produced a history, with their known or assumed times."""
    seen: set[SnapshotId] = set()
    for branch in sorted(branches, key=lambda name: (name != MAIN, name)):
        at: SnapshotId | None = branches[branch]
        if branch != MAIN and at is not None:
            yield snapshots[at].flushed_at_us + _MOMENT_US, UpdateType.BranchCreated(branch)
        while at is not None and at not in seen:
            seen.add(at)
            info = snapshots[at]
            first = info.parent_id is None
            kind = UpdateType.RepoInitialized() if first else UpdateType.NewCommit(branch, str(at))
            yield info.flushed_at_us, kind
            at = info.parent_id
    for tag, target in tags.items():
        yield snapshots[target].flushed_at_us + _MOMENT_US, UpdateType.TagCreated(tag)
    for tag, gone in deleted_tags.items():
        if gone is not None and gone in snapshots:
            yield snapshots[gone].flushed_at_us + _MOMENT_US, UpdateType.TagCreated(tag)
            yield snapshots[gone].flushed_at_us + 2 * _MOMENT_US, UpdateType.TagDeleted(tag, str(gone))
