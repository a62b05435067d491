"""From version 1 of the format to version 2: a repo info file out of refs and snapshots; all else stays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore, object_metadata
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.errors import ConflictError, ErrorKind, IcechunkError, SessionStateError, SnapshotNotFoundError
from icefloe.format.config_codec import encode_config
from icefloe.format.files import (
    CONFIG_PATH,
    REPO_PATH,
    SNAPSHOTS,
    read_repo_info,
    read_snapshot_info,
    write_repo_info,
)
from icefloe.format.refs_v1 import REFS, RefFile, RefKind
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo
from icefloe.format.spec import V2
from icefloe.maintenance.first_repo_info import first_repo_info
from icefloe.maintenance.listings import list_folder
from icefloe.maintenance.reachable import each_id
from icefloe.storage.base import ABSENT, ConditionNotMetError, Storage


def upgrade(assets: AssetStore, refs: RefStoreV1, executor: Executor, *, dry_run: bool) -> RepoInfo:
    """Write the repo info file of a repository of version 1; the refs are still there afterwards.

    ConflictError, and the repository as it was, where somebody moved a ref meanwhile.
    """
    before = refs.all_refs()
    info = _repo_info(assets, refs, before, executor)
    data = write_repo_info(info, V2, assets.config.compression_level)
    read_repo_info(data)
    if dry_run:
        return info
    storage = assets.storage
    try:
        storage.put(REPO_PATH, data, ABSENT, metadata=object_metadata(V2, "repo-info"))
    except ConditionNotMetError:
        raise ConflictError(
            message="somebody else has upgraded this repository", kind=ErrorKind.REPO_INFO_UPDATED
        ) from None
    if refs.all_refs() != before:
        storage.delete([REPO_PATH])
        raise ConflictError(
            message="a branch or tag changed during the upgrade, which was taken back; "
            "stop all writers and try again",
            kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
        )
    return info


def delete_files_of_version_1(storage: Storage) -> None:
    """Remove what version 2 does not read: main first, so that version 1 is not found any more."""
    main = RefFile(RefKind.BRANCH, MAIN).path
    storage.delete([main])
    report = storage.delete(list(_ref_files(storage)))
    if report.failed:
        path, reason = report.failed[0]
        raise SessionStateError(
            f"the repository has version 2 now, but {path} of version 1 could not be deleted: {reason}",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    storage.delete([CONFIG_PATH])


def has_files_of_version_1(storage: Storage) -> bool:
    """Whether an upgrade left something to delete."""
    return next(_ref_files(storage), None) is not None or storage.exists(CONFIG_PATH)


def _ref_files(storage: Storage) -> Iterator[str]:
    """Give the paths of branches and tags. Other files in that folder are not ours to delete."""
    return (info.key for info in storage.list_prefix(f"{REFS}/") if RefFile.parse(info.key) is not None)


def _repo_info(
    assets: AssetStore, refs: RefStoreV1, files: Mapping[RefFile, SnapshotId | None], executor: Executor
) -> RepoInfo:
    branches = {file.name: id for file, id in files.items() if id is not None and file.kind is RefKind.BRANCH}
    tags = {file.name: id for file, id in files.items() if id is not None and file.kind is RefKind.TAG}
    gone = {file.name for file in files if file.deleted}
    known = _snapshots(assets, executor)
    reached: dict[SnapshotId, SnapshotInfo] = {}
    for id in (*branches.values(), *(id for tag, id in tags.items() if tag not in gone)):
        reached |= _line(id, reached, known, refs)
    for id in (id for tag, id in tags.items() if tag in gone):
        with contextlib.suppress(SnapshotNotFoundError):  # a collection may have taken what it led to
            reached |= _line(id, reached, known, refs)
    stored = refs.config()
    return first_repo_info(
        reached,
        branches,
        {tag: id for tag, id in tags.items() if tag not in gone},
        {tag: tags.get(tag) for tag in gone},
        time.time_ns() // 1000,
        {},
        None if stored is None else encode_config(stored),
    )


def _line(
    tip: SnapshotId,
    reached: Mapping[SnapshotId, SnapshotInfo],
    known: Mapping[SnapshotId, SnapshotInfo],
    refs: RefStoreV1,
) -> dict[SnapshotId, SnapshotInfo]:
    """A snapshot and those before it, down to the first that was reached already."""
    line: dict[SnapshotId, SnapshotInfo] = {}
    at: SnapshotId | None = tip
    while at is not None and at not in reached and at not in line:
        line[at] = known.get(at) or refs.snapshot(at)
        at = line[at].parent_id
    return line


def _snapshots(assets: AssetStore, executor: Executor) -> dict[SnapshotId, SnapshotInfo]:
    """All snapshots that are there, read side by side; following parents would read them one by one."""
    ids = each_id(list_folder(assets.storage, SNAPSHOTS).ids)
    infos = executor.map(Task(partial(_info, assets.storage), "snapshots"), ids)
    return {info.id: info for info in infos if info is not None}


def _info(storage: Storage, snapshot: bytes) -> SnapshotInfo | None:
    id = SnapshotId(snapshot)
    try:
        return read_snapshot_info(storage.get(f"{SNAPSHOTS}/{id}")[0], id)
    except IcechunkError:  # raised again where a ref leads to it
        return None
