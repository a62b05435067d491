"""All changes of a repo info as pure functions that return the new value and its entry for the ops log."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from icefloe._internal.ids import SnapshotId
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    Hint,
    InvalidInputError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo
from icefloe.format.updates import RepoStatus, RepoStatusChanged, StoredUpdate, Update
from icefloe.ops import UpdateType

PROTECTED: Final = "icefloe_protected_branches"
"""The key of the names of protected branches in the metadata of a repository."""

Changed: TypeAlias = tuple[RepoInfo, StoredUpdate]
Change: TypeAlias = Callable[[RepoInfo], Changed]


def create_branch(info: RepoInfo, name: str, snapshot: SnapshotId) -> Changed:
    """Create a branch at a known snapshot."""
    if name in info.branches:
        raise AlreadyExistsError(f"branch already exists: {name}", kind=ErrorKind.BRANCH_ALREADY_EXISTS)
    _check_listed(info, snapshot)
    return replace(info, branches={**info.branches, name: snapshot}), UpdateType.BranchCreated(name)


def delete_branch(info: RepoInfo, name: str) -> Changed:
    """Delete a branch. Its snapshots remain."""
    if name == MAIN:
        raise SessionStateError("main branch cannot be deleted", kind=ErrorKind.CANNOT_DELETE_MAIN)
    _check_unprotected(info, name, "deleted")
    previous = get_branch_tip(info, name)
    kept = {branch: tip for branch, tip in info.branches.items() if branch != name}
    return replace(info, branches=kept), UpdateType.BranchDeleted(name, str(previous))


def reset_branch(
    info: RepoInfo, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None
) -> Changed:
    """Move a branch to any known snapshot, optionally only from an expected tip."""
    previous = get_branch_tip(info, name)
    if expected is not None and previous != expected:
        raise ConflictError(str(expected), str(previous), kind=ErrorKind.BRANCH_UPDATE_CONFLICT)
    _check_listed(info, snapshot)
    tip = info.snapshots.row(previous)
    if name in list_protected(info) and all(row != tip for row in info.snapshots.walk(snapshot)):
        _check_unprotected(info, name, f"reset to {snapshot}, which does not follow its tip {previous}")
    changed = replace(info, branches={**info.branches, name: snapshot})
    return changed, UpdateType.BranchReset(name, str(previous))


def create_tag(info: RepoInfo, name: str, snapshot: SnapshotId) -> Changed:
    """Create a tag. The name of a deleted tag cannot be used again."""
    if name in info.tags:
        raise AlreadyExistsError(f"tag already exists: {name}", kind=ErrorKind.TAG_ALREADY_EXISTS)
    if name in info.deleted_tags:
        raise AlreadyExistsError(
            f"tag was already deleted: {name}; names of deleted tags cannot be used again",
            kind=ErrorKind.TAG_PREVIOUSLY_DELETED,
        )
    _check_listed(info, snapshot)
    return replace(info, tags={**info.tags, name: snapshot}), UpdateType.TagCreated(name)


def delete_tag(info: RepoInfo, name: str) -> Changed:
    """Delete a tag, and reserve its name forever."""
    previous = get_tag_target(info, name)
    kept = {tag: target for tag, target in info.tags.items() if tag != name}
    changed = replace(info, tags=kept, deleted_tags=info.deleted_tags | {name})
    return changed, UpdateType.TagDeleted(name, str(previous))


def add_commit(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> Changed:
    """Add a snapshot to a branch. The caller checks that the branch is at the parent of the snapshot."""
    return _with_tip(info, branch, snapshot), UpdateType.NewCommit(branch, str(snapshot.id))


def amend_commit(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> Changed:
    """Replace the tip of a branch. The old tip stays in the list of snapshots."""
    _check_unprotected(info, branch, "amended or squashed")
    update = UpdateType.CommitAmended(branch, str(info.branches[branch]), str(snapshot.id))
    return _with_tip(info, branch, snapshot), update


def add_detached_snapshot(info: RepoInfo, snapshot: SnapshotInfo) -> Changed:
    """Add a snapshot that no branch points to. Its parent must still be in the repository."""
    if snapshot.parent_id is not None and info.snapshots.row(snapshot.parent_id) is None:
        raise make_lost_base_error(snapshot.parent_id)
    changed = replace(info, snapshots=info.snapshots.with_entry(snapshot))
    return changed, UpdateType.NewDetachedSnapshot(str(snapshot.id))


def set_config(info: RepoInfo, config: bytes) -> Changed:
    """Replace the stored configuration."""
    return replace(info, config=config), UpdateType.ConfigChanged()


def set_metadata(info: RepoInfo, metadata: Mapping[str, Any]) -> Changed:
    """Replace the metadata of the repository."""
    return replace(info, metadata=metadata), UpdateType.MetadataChanged()


def protect(info: RepoInfo, branch: str, *, protected: bool) -> Changed:
    """Protect a branch, or end its protection."""
    get_branch_tip(info, branch)
    others = [name for name in list_protected(info) if name != branch]
    names = sorted([*others, branch] if protected else others)
    metadata = {name: value for name, value in info.metadata.items() if name != PROTECTED}
    return set_metadata(info, {**metadata, PROTECTED: names} if names else metadata)


def list_protected(info: RepoInfo) -> list[str]:
    """Return the names of protected branches."""
    names = info.metadata.get(PROTECTED)
    return [str(name) for name in names] if isinstance(names, list) else []


def _check_unprotected(info: RepoInfo, branch: str, what: str) -> None:
    if branch in list_protected(info):
        raise SessionStateError(
            f"branch {branch} is protected, so it cannot be {what}; its history may only be extended",
            kind=ErrorKind.NOT_ALLOWED,
        ).with_hint(Hint("{function} ends the protection", function="Repository.unprotect"))


def set_status(info: RepoInfo, status: RepoStatus) -> Changed:
    """Change the status of the repository."""
    return replace(info, status=status), RepoStatusChanged(status)


def set_feature_flag(info: RepoInfo, flag: int, setting: bool | None) -> Changed:
    """Set a feature flag, or reset it to its default."""
    if not 0 <= flag < 1 << 16:
        raise InvalidInputError(
            f"invalid feature flag {flag}: expected a number below 2**16", kind=ErrorKind.INVALID_FEATURE_FLAG
        )
    enabled = set(info.enabled_feature_flags or ()) - {flag} | ({flag} if setting else set())
    disabled = set(info.disabled_feature_flags or ()) - {flag} | ({flag} if setting is False else set())
    changed = replace(
        info, enabled_feature_flags=tuple(sorted(enabled)), disabled_feature_flags=tuple(sorted(disabled))
    )
    return changed, UpdateType.FeatureFlagChanged(flag, setting)


def add_log_entry(
    info: RepoInfo, update: StoredUpdate, now_us: int, backup_path: str, limit: int
) -> RepoInfo:
    """Add an entry to the ops log; the previous entry gets the name of its backup.

    A list with more than `limit` entries is cut at an entry with a backup, which contains the older entries.
    """
    log = info.latest_updates
    if len(log):
        now_us = choose_later_time(log.newest_at_us, now_us)
    log = log.with_entry(Update(update, now_us), backup_path)
    before = info.repo_before_updates
    for row in range(max(limit, 1), len(log)):
        backup = log[row].backup_path
        if backup is not None:
            log, before = log.first(row), backup
            break
    return replace(info, latest_updates=log, repo_before_updates=before)


def was_written(info: RepoInfo, backups: Container[str], snapshot: SnapshotId | None = None) -> bool:
    """Return whether a change was already written, recognized by its backups or by its snapshot."""
    if snapshot is not None and info.snapshots.row(snapshot) is not None:
        return True
    if info.repo_before_updates in backups:
        return True
    return any(entry.backup_path in backups for entry in info.latest_updates)


def choose_later_time(previous_us: int, now_us: int) -> int:
    """Return a time after the previous one, as the format requires, even if clocks differ."""
    return max(now_us, previous_us + 1)


def get_branch_tip(info: RepoInfo, name: str) -> SnapshotId:
    """Return the tip of a branch; raise RefNotFoundError if it does not exist."""
    if name not in info.branches:
        raise RefNotFoundError(f"ref not found: there is no branch `{name}`", kind=ErrorKind.REF_NOT_FOUND)
    return info.branches[name]


def get_tag_target(info: RepoInfo, name: str) -> SnapshotId:
    """Return the target of a tag; raise RefNotFoundError if it does not exist."""
    if name not in info.tags:
        raise RefNotFoundError(f"ref not found: there is no tag `{name}`", kind=ErrorKind.REF_NOT_FOUND)
    return info.tags[name]


def get_snapshot_info(info: RepoInfo, snapshot: SnapshotId) -> SnapshotInfo:
    """Return the entry of a snapshot; raise SnapshotNotFoundError if it does not exist."""
    found = info.snapshots.find(snapshot)
    if found is None:
        raise SnapshotNotFoundError(f"snapshot not found: {snapshot}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)
    return found


def make_lost_base_error(snapshot: SnapshotId) -> SnapshotNotFoundError:
    """Return the error for a session whose base was deleted."""
    return SnapshotNotFoundError(
        f"snapshot not found: {snapshot}, which this session is based on, has expired and may be deleted;"
        " nothing was committed. Write the data again in a new session",
        kind=ErrorKind.SNAPSHOT_NOT_FOUND,
    )


def _check_listed(info: RepoInfo, snapshot: SnapshotId) -> None:
    if info.snapshots.row(snapshot) is None:
        raise SnapshotNotFoundError(f"snapshot not found: {snapshot}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)


def _with_tip(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> RepoInfo:
    return replace(
        info, snapshots=info.snapshots.with_entry(snapshot), branches={**info.branches, branch: snapshot.id}
    )
