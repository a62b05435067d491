"""All changes to a repo info, as pure functions that return the new repo info and its ops log entry."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from icefloe._internal.ids import SnapshotId
from icefloe.branch_checks import BranchCheck, decode_checks
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
"""The key in the repository metadata for the names of protected branches."""
CHECKS: Final = "icefloe_branch_checks"
"""The key in the repository metadata for the checks of each protected branch."""

Changed: TypeAlias = tuple[RepoInfo, StoredUpdate]
Change: TypeAlias = Callable[[RepoInfo], Changed]


@dataclass(frozen=True, slots=True)
class CheckedMove:
    """A pending move of a protected branch to a snapshot that must first pass the branch's checks."""

    branch: str
    tip: SnapshotInfo
    checks: tuple[BranchCheck, ...]
    is_new: bool
    """False if only the checks of the branch change and the branch does not move."""

    @property
    def key(self) -> tuple[object, ...]:
        """Identify this move by branch, snapshot and checks, so that passed checks can be recorded."""
        return self.branch, self.tip.id, self.checks


class ChecksRequiredError(Exception):
    """Error raised when a protected branch would move to a snapshot that has not passed its checks."""

    def __init__(self, move: CheckedMove, *, is_listed: bool) -> None:
        super().__init__(move)
        self.move = move
        self.is_listed = is_listed
        """True if the repo info already lists the snapshot."""


def create_branch(info: RepoInfo, name: str, snapshot: SnapshotId) -> Changed:
    """Add a branch at a known snapshot. Return the new repo info and its ops log entry."""
    if name in info.branches:
        raise AlreadyExistsError(f"branch already exists: {name}", kind=ErrorKind.BRANCH_ALREADY_EXISTS)
    _check_listed(info, snapshot)
    return replace(info, branches={**info.branches, name: snapshot}), UpdateType.BranchCreated(name)


def delete_branch(info: RepoInfo, name: str) -> Changed:
    """Remove a branch but keep its snapshots. Return the new repo info and its ops log entry."""
    if name == MAIN:
        raise SessionStateError("main branch cannot be deleted", kind=ErrorKind.CANNOT_DELETE_MAIN)
    previous = get_branch_tip(info, name)
    kept = {branch: tip for branch, tip in info.branches.items() if branch != name}
    return replace(info, branches=kept), UpdateType.BranchDeleted(name, str(previous))


def reset_branch(
    info: RepoInfo, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None
) -> Changed:
    """Point a branch to another known snapshot, optionally only if its tip is the expected one."""
    previous = get_branch_tip(info, name)
    if expected is not None and previous != expected:
        raise ConflictError(str(expected), str(previous), kind=ErrorKind.BRANCH_UPDATE_CONFLICT)
    _check_listed(info, snapshot)
    changed = replace(info, branches={**info.branches, name: snapshot})
    return changed, UpdateType.BranchReset(name, str(previous))


def create_tag(info: RepoInfo, name: str, snapshot: SnapshotId) -> Changed:
    """Add a tag to the repo info. The name of a deleted tag cannot be reused."""
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
    """Remove a tag from the repo info. Its name stays reserved forever."""
    previous = get_tag_target(info, name)
    kept = {tag: target for tag, target in info.tags.items() if tag != name}
    changed = replace(info, tags=kept, deleted_tags=info.deleted_tags | {name})
    return changed, UpdateType.TagDeleted(name, str(previous))


def add_commit(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> Changed:
    """Add a commit to the repo info. The caller must have checked that the branch is at the parent of the new
    snapshot.
    """
    return _with_tip(info, branch, snapshot), UpdateType.NewCommit(branch, str(snapshot.id))


def amend_commit(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> Changed:
    """Replace the tip of a branch with an amended snapshot. The old tip stays in the list of snapshots."""
    update = UpdateType.CommitAmended(branch, str(info.branches[branch]), str(snapshot.id))
    return _with_tip(info, branch, snapshot), update


def add_detached_snapshot(info: RepoInfo, snapshot: SnapshotInfo) -> Changed:
    """Add a snapshot that no branch points to. Its parent must still be in the repository."""
    if snapshot.parent_id is not None and info.snapshots.row(snapshot.parent_id) is None:
        raise make_lost_base_error(snapshot.parent_id)
    changed = replace(info, snapshots=info.snapshots.with_entry(snapshot))
    return changed, UpdateType.NewDetachedSnapshot(str(snapshot.id))


def set_config(info: RepoInfo, config: bytes) -> Changed:
    """Replace the configuration in the repo info."""
    return replace(info, config=config), UpdateType.ConfigChanged()


def set_metadata(info: RepoInfo, metadata: Mapping[str, Any]) -> Changed:
    """Replace the repository metadata in the repo info.

    Branch protection is kept unless the new metadata defines it.
    """
    kept = {name: info.metadata[name] for name in (PROTECTED, CHECKS) if name in info.metadata}
    return replace(info, metadata={**kept, **metadata}), UpdateType.MetadataChanged()


def protect(info: RepoInfo, branch: str, sql: Sequence[str] | None, python: Sequence[str] | None) -> Changed:
    """Protect a branch in the repo info. Pass None for a kind of check to keep the existing checks."""
    get_branch_tip(info, branch)
    stored = _get_stored_checks(info)
    given: dict[str, Sequence[str] | None] = {"sql": sql, "python": python}
    own: list[dict[str, str]] = []
    for kind, texts in given.items():
        if texts is None:
            texts = [each.text for each in list_checks(info, branch) if each.kind == kind]
        own += [{kind: text} for text in texts]
    names = sorted({*list_protected(info), branch})
    return _with_protection(info, names, {**stored, branch: own})


def unprotect(info: RepoInfo, branch: str) -> Changed:
    """Remove the protection and the checks of a branch from the repo info."""
    get_branch_tip(info, branch)
    names = [name for name in list_protected(info) if name != branch]
    return _with_protection(info, names, {**_get_stored_checks(info), branch: []})


def _with_protection(info: RepoInfo, names: Sequence[str], checks: Mapping[str, Any]) -> Changed:
    metadata = {name: value for name, value in info.metadata.items() if name not in (PROTECTED, CHECKS)}
    if names:
        metadata[PROTECTED] = list(names)
    if stored := {branch: own for branch, own in checks.items() if own}:
        metadata[CHECKS] = stored
    return replace(info, metadata=metadata), UpdateType.MetadataChanged()


def list_protected(info: RepoInfo) -> list[str]:
    """Return the names of the protected branches in a repo info."""
    names = info.metadata.get(PROTECTED)
    return [str(name) for name in names] if isinstance(names, list) else []


def list_checks(info: RepoInfo, branch: str) -> tuple[BranchCheck, ...]:
    """Return the checks of a protected branch from a repo info."""
    return decode_checks(branch, _get_stored_checks(info).get(branch, []))


def _get_stored_checks(info: RepoInfo) -> Mapping[str, Any]:
    found = info.metadata.get(CHECKS)
    return found if isinstance(found, Mapping) else {}


def guard_branches(before: RepoInfo, changed: Changed, passed: Container[tuple[object, ...]]) -> Changed:
    """Return a change to the repo info unchanged if it respects the protection of all branches; raise an
    error otherwise.

    Raises SessionStateError if the change rewrites the history of a protected branch, and ChecksRequiredError
    if it moves a branch with checks and its key is not in `passed`.
    """
    after, update = changed
    for branch in list_protected(before):
        tip = before.branches.get(branch)
        if tip is not None and tip != after.branches.get(branch):
            _check_extended(after, branch, tip, update)
    for branch in _get_stored_checks(after):
        tip = after.branches.get(branch)
        is_new = tip != before.branches.get(branch)
        checks = list_checks(after, branch) if is_new or _have_other_checks(before, after, branch) else ()
        if tip is not None and checks:
            move = CheckedMove(branch, get_snapshot_info(after, tip), checks, is_new)
            if move.key not in passed:
                raise ChecksRequiredError(move, is_listed=before.snapshots.row(tip) is not None)
    return changed


def _have_other_checks(before: RepoInfo, after: RepoInfo, branch: str) -> bool:
    return bool(_get_stored_checks(before).get(branch) != _get_stored_checks(after).get(branch))


def _check_extended(after: RepoInfo, branch: str, tip: SnapshotId, update: StoredUpdate) -> None:
    """Raise an error unless the protected branch moves to a descendant of its current tip."""
    moved = after.branches.get(branch)
    row = after.snapshots.row(tip)
    if moved is not None and row is not None and row in after.snapshots.walk(moved):
        return
    if moved is None:
        what = "deleted"
    elif isinstance(update, UpdateType.CommitAmended):
        what = "amended or squashed"
    else:
        what = f"reset to {moved}, which does not follow its tip {tip}"
    raise SessionStateError(
        f"branch {branch} is protected, so it cannot be {what}; its history may only be extended",
        kind=ErrorKind.NOT_ALLOWED,
    ).with_hint(Hint("{function} ends the protection", function="Repository.unprotect"))


def set_status(info: RepoInfo, status: RepoStatus) -> Changed:
    """Change the repository status in the repo info."""
    return replace(info, status=status), RepoStatusChanged(status)


def set_feature_flag(info: RepoInfo, flag: int, setting: bool | None) -> Changed:
    """Set a feature flag in the repo info, or reset it to its default."""
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
    """Add an entry to the ops log. The previous entry gets the name of its backup file.

    An ops log with more than `limit` entries is cut at an entry with a backup, because the backup file
    contains all older entries.
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
    """Return True if our change to the repo info was already written, recognized by its backup or its
    snapshot.
    """
    if snapshot is not None and info.snapshots.row(snapshot) is not None:
        return True
    if info.repo_before_updates in backups:
        return True
    return any(entry.backup_path in backups for entry in info.latest_updates)


def choose_later_time(previous_us: int, now_us: int) -> int:
    """Return a time later than the last change to the repo info, as the format requires even if clocks
    differ.
    """
    return max(now_us, previous_us + 1)


def get_branch_tip(info: RepoInfo, name: str) -> SnapshotId:
    """Return the tip of a branch in the repo info; raise RefNotFoundError if the branch does not exist."""
    if name not in info.branches:
        raise RefNotFoundError(f"ref not found: there is no branch `{name}`", kind=ErrorKind.REF_NOT_FOUND)
    return info.branches[name]


def get_tag_target(info: RepoInfo, name: str) -> SnapshotId:
    """Return the snapshot of a tag in the repo info; raise RefNotFoundError if the tag does not exist."""
    if name not in info.tags:
        raise RefNotFoundError(f"ref not found: there is no tag `{name}`", kind=ErrorKind.REF_NOT_FOUND)
    return info.tags[name]


def get_snapshot_info(info: RepoInfo, snapshot: SnapshotId) -> SnapshotInfo:
    """Return the entry of a snapshot in the repo info; raise SnapshotNotFoundError if it is not listed."""
    found = info.snapshots.find(snapshot)
    if found is None:
        raise SnapshotNotFoundError(f"snapshot not found: {snapshot}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)
    return found


def make_lost_base_error(snapshot: SnapshotId) -> SnapshotNotFoundError:
    """Return the error for a change whose base snapshot was deleted from the repository."""
    return SnapshotNotFoundError(
        f"snapshot not found: {snapshot}, which this session is based on, has expired and may be deleted;"
        " nothing was committed. Write the data again in a new session",
        kind=ErrorKind.SNAPSHOT_NOT_FOUND,
    )


def _check_listed(info: RepoInfo, snapshot: SnapshotId) -> None:
    if info.snapshots.row(snapshot) is None:
        raise SnapshotNotFoundError(f"snapshot not found: {snapshot}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)


def _with_tip(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> RepoInfo:
    known = info.snapshots.row(snapshot.id) is not None  # detached until the checks of its branch have passed
    snapshots = info.snapshots if known else info.snapshots.with_entry(snapshot)
    return replace(info, snapshots=snapshots, branches={**info.branches, branch: snapshot.id})
