"""Branches, tags and history of V2 repositories: one repo info file, changed by compare-and-swap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

from icefloe._internal.ids import ObjectId, SnapshotId
from icefloe.branch_checks import BranchCheck, require_allowed
from icefloe.config import EffectiveConfig
from icefloe.core.assets import make_object_metadata
from icefloe.core.refs.backoff import retry_conflicts
from icefloe.core.refs.base import MIGRATE, CollectedError, RefStore, check_base, check_storable
from icefloe.core.refs.clock import check_clock
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    Hint,
    IcechunkError,
    ReadOnlyError,
    RepositoryNotFoundError,
    SessionStateError,
    StorageError,
)
from icefloe.format import repo_changes as changes
from icefloe.format.config_flexbuffers import decode_config, encode_config
from icefloe.format.files import (
    OVERWRITTEN,
    REPO_PATH,
    is_own_path,
    read_ops_log,
    read_repo_info,
    write_repo_info,
)
from icefloe.format.repo_changes import Change
from icefloe.format.repo_info import RepoInfo, SnapshotInfo
from icefloe.format.spec import V2
from icefloe.format.updates import RepoAvailability, RepoStatus, Update, Updates
from icefloe.ops import UpdateType
from icefloe.storage.base import (
    ABSENT,
    BucketNotFoundError,
    ConditionNotMetError,
    ObjectNotFoundError,
    Storage,
    Unchanged,
    Version,
)

_YEAR_3000_MS: Final = 32_503_680_000_000

CREATE_TAG: Final = 4
DELETE_TAG: Final = 5
FLAG_NAMES: Final = {3: "move_node", CREATE_TAG: "create_tag", DELETE_TAG: "delete_tag"}
"""The names of the known feature flags, by number. All are enabled by default."""


RunChecks: TypeAlias = Callable[[changes.CheckedMove], None]


class RefStoreV2(RefStore):
    """The ref store of a V2 repository, which keeps branches, tags and history in the repo info file."""

    spec = V2

    def __init__(self, storage: Storage, config: EffectiveConfig) -> None:
        self._storage = storage
        self._config = config
        self._seen: tuple[RepoInfo, Version] | None = None
        self._seen_data = b""
        """The bytes of the repo info file that was last read or written."""
        self._backup: tuple[Version, str] | None = None
        """The version of the repo info file that was backed up in advance, and the name of its backup."""
        self.run_checks: RunChecks | None = None
        """A function that checks a snapshot before a protected branch moves to it; None if checks cannot be
        run here.
        """

    # The file

    def create(self, info: RepoInfo, data: bytes | None = None) -> None:
        """Write the first repo info file of a repository; raise ConflictError if there is one already."""
        if data is None:
            data = write_repo_info(info, V2, self._config.compression_level)
        try:
            version = self._write_file(data, ABSENT)
        except ConditionNotMetError:
            raise ConflictError(
                message=f"there is already a repository in {self._storage.place}",
                kind=ErrorKind.REPO_INFO_UPDATED,
            ) from None
        self._seen, self._seen_data = (info, version), data

    def take_over(self, other: RefStoreV2) -> None:
        """Reuse the repo info that another ref store has read from the same file."""
        self._seen, self._seen_data = other._seen, other._seen_data

    def load(self) -> RepoInfo:
        """Read the current repo info file."""
        return self._load()[0]

    def seen(self) -> RepoInfo:
        """Return the repo info that was last read or written; read it if there is none."""
        return self._seen[0] if self._seen else self.load()

    def _load(self) -> tuple[RepoInfo, Version]:
        seen = self._seen
        try:
            if seen is None:
                data, version = self._storage.get(REPO_PATH)
            else:
                fresh = self._storage.get_if_changed(REPO_PATH, seen[1])
                if fresh is None:
                    return seen
                data, version = fresh
        except ObjectNotFoundError:
            text = f"the repository doesn't exist: there is none in {self._storage.place}"
            if self._storage.read_only:
                raise _make_no_repository_error(f"{text}; check the location") from None
            raise _make_no_repository_error(
                text, Hint("{function} creates one", function="Repository.create")
            ) from None
        except BucketNotFoundError as missing:
            raise _make_no_repository_error(missing.message) from None
        self._seen, self._seen_data = (read_repo_info(data), version), data
        return self._seen

    def update(
        self,
        change: Change,
        *,
        brings: SnapshotId | None = None,
        while_read_only: bool = False,
        as_seen: bool = False,
    ) -> RepoInfo:
        """Apply a change to the repo info and write the file. Retry while other writers interfere.

        A change that is no longer possible raises its own error. If the response to a write is lost, the
        change is recognized by its backup file, or by the snapshot that it adds. This makes commits happen
        exactly once.

        If the change moves a protected branch with checks, its new snapshot is first added without a branch,
        and then checked. The branch moves afterwards, unless another change came first.

        Parameters
        ----------
        change
            Returns the new repo info and the entry for the ops log.
        brings
            The snapshot that the change adds, if any.
        while_read_only
            Apply the change even to a read-only repository.
        as_seen
            First try the change on the repo info that was read last, which saves a request. If that fails,
            read the current one.
        """
        passed: set[tuple[object, ...]] = set()

        def guarded(info: RepoInfo) -> changes.Changed:
            return changes.guard_branches(info, change(info), passed)

        while True:
            try:
                return self._update(guarded, brings, while_read_only=while_read_only, as_seen=as_seen)
            except changes.ChecksRequiredError as required:
                move = required.move
                if self.run_checks is None:
                    raise SessionStateError(
                        f"branch {move.branch} of the repository in {self._storage.place} has checks,"
                        " which this operation cannot run",
                        kind=ErrorKind.NOT_ALLOWED,
                    ).with_hint(
                        Hint("{function} ends the protection", function="Repository.unprotect")
                    ) from None
                require_allowed(move.branch, move.checks)  # before anything is written
                if not required.is_listed:
                    self._update(partial(changes.add_detached_snapshot, snapshot=move.tip), move.tip.id)
                    brings = None  # the snapshot no longer proves that the branch has moved
                    continue  # another writer may have moved the branch already
                self.run_checks(move)
                passed.add(move.key)

    def _update(
        self,
        change: Change,
        brings: SnapshotId | None = None,
        *,
        while_read_only: bool = False,
        as_seen: bool = False,
    ) -> RepoInfo:
        tried: set[str] = set()
        for attempt in retry_conflicts(self._config):
            seen = self._seen if as_seen and attempt == 0 else None
            info, version = seen or self._load()
            # A write whose response was lost looks like another writer's write. The name of its backup is
            # random and stored in the ops log, so finding it there proves that our write succeeded.
            if tried and changes.was_written(info, tried, brings):
                return info  # the response to our write was lost, and others may have changed the file since
            try:
                if not while_read_only:
                    check_writable(info.status)
                changed, kind = change(info)
            except IcechunkError:
                if seen is not None:
                    continue
                raise
            now_us = time.time_ns() // 1000
            backup = self._find_backup(version) or make_backup_name(now_us // 1000, REPO_PATH)
            new = changes.add_log_entry(
                changed, kind, now_us, backup, self._config.num_updates_per_repo_info_file
            )
            tried.add(backup)
            self._storage.require_conditional_writes()
            try:
                log = info.latest_updates
                if self._replace(new, version, backup, log.newest_at_us if len(log) else None):
                    return new
            except StorageError:
                info = self.load()
                if not changes.was_written(info, tried, brings):
                    raise
                return info
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _replace(self, new: RepoInfo, version: Version, backup: str, newest_us: int | None) -> bool:
        """Back up one version of the repo info file and replace it; return False if the file has a different
        version.

        This machine's clock is compared with the storage's clock, given the time of the newest change.
        """
        data = write_repo_info(new, V2, self._config.compression_level)
        try:
            if self._find_backup(version) != backup:
                self._back_up(backup, version)
            self._backup = None
            if newest_us is not None:
                check_clock(self._storage, f"{OVERWRITTEN}/{backup}", newest_us)
            self._seen, self._seen_data = (new, self._write_file(data, Unchanged(version))), data
        except ConditionNotMetError:
            return False
        return True

    def back_up_early(self) -> None:
        # docstring inherited
        if self._seen is None or self._storage.answers_at_once:
            return
        _, version = self._seen
        backup = make_backup_name(time.time_ns() // 1_000_000, REPO_PATH)
        self._back_up(backup, version)
        self._backup = (version, backup)

    def _back_up(self, backup: str, version: Version) -> None:
        target = f"{OVERWRITTEN}/{backup}"
        if self._seen is not None and self._seen[1] == version and not self._storage.answers_at_once:
            self._storage.put(target, self._seen_data)  # avoids reading the file again
        else:
            self._storage.back_up(REPO_PATH, target, version)

    def _find_backup(self, version: Version) -> str | None:
        """Return the name of the backup that was written in advance for a version; None if there is none."""
        return self._backup[1] if self._backup is not None and self._backup[0] == version else None

    def old_backups(self) -> Iterator[str]:
        """Yield the paths of repo info backups that the ops log does not need, oldest first."""
        needed: set[str] = set()
        before = self.load().repo_before_updates
        while before is not None and before not in needed:
            needed.add(before)
            try:
                before = read_ops_log(self._storage.get(f"{OVERWRITTEN}/{before}")[0])[1]
            except ObjectNotFoundError:
                break
        paths = sorted((info.key for info in self._storage.list_prefix(f"{OVERWRITTEN}/")), reverse=True)
        kept = {f"{OVERWRITTEN}/{name}" for name in needed}
        return (path for path in paths if is_own_path(path) and path not in kept)

    def _write_file(self, data: bytes, condition: Any) -> Version:
        return self._storage.put(REPO_PATH, data, condition, metadata=make_object_metadata(V2, "repo-info"))

    # docstrings below are inherited from RefStore

    def branches(self) -> Mapping[str, SnapshotId]:
        return self.load().branches

    def tags(self) -> Mapping[str, SnapshotId]:
        return self.load().tags

    def branch(self, name: str) -> SnapshotId:
        return changes.get_branch_tip(self.load(), name)

    def tip_to_write(self, name: str) -> SnapshotId:
        info = self.load()
        check_writable(info.status)
        tip = changes.get_branch_tip(info, name)
        require_allowed(name, changes.list_checks(info, name))  # fail before a session writes files in vain
        return tip

    def tag(self, name: str) -> SnapshotId:
        return changes.get_tag_target(self.load(), name)

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        check_storable(name)
        self.update(lambda info: changes.create_branch(info, name, snapshot))

    def delete_branch(self, name: str) -> None:
        with self._storage.make_room(self.old_backups):
            self.update(lambda info: changes.delete_branch(info, name))

    def reset_branch(self, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> None:
        self.update(lambda info: changes.reset_branch(info, name, snapshot, expected))

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        check_storable(name)
        self.update(_guard_by_flag(CREATE_TAG, lambda info: changes.create_tag(info, name, snapshot)))

    def delete_tag(self, name: str) -> None:
        with self._storage.make_room(self.old_backups):
            self.update(_guard_by_flag(DELETE_TAG, lambda info: changes.delete_tag(info, name)))

    def now(self) -> int:
        log = self.seen().latest_updates
        return log[0].updated_at_us if len(log) else 0

    def advance(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> None:
        self._add_snapshot(
            lambda info: changes.add_commit(_require_tip(info, branch, base), branch, snapshot),
            snapshot.id,
            since,
        )

    def amend(self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None) -> None:
        self._add_snapshot(
            lambda info: changes.amend_commit(_require_tip(info, branch, base), branch, snapshot),
            snapshot.id,
            since,
        )

    def detach(self, snapshot: SnapshotInfo, since: int | None = None) -> None:
        self._add_snapshot(lambda info: changes.add_detached_snapshot(info, snapshot), snapshot.id, since)

    def _add_snapshot(self, change: Change, snapshot: SnapshotId, since: int | None) -> None:
        """Apply a change that adds a snapshot, unless garbage was collected after the given mark."""

        def checked(info: RepoInfo) -> changes.Changed:
            changed = change(info)  # check the tip first, because a conflict takes precedence
            if since is not None and self.collected_since(info, since):
                raise CollectedError
            return changed

        self.update(checked, brings=snapshot, as_seen=True)

    def collected_since(self, info: RepoInfo, since: int) -> bool:
        """Return True if garbage may have been collected between a mark and the given repo info."""
        for update in chain.from_iterable(self._log_files(info)):
            if update.updated_at_us <= since:
                return False
            if isinstance(update.update_type, UpdateType.GCRan):
                return True
        return bool(since)  # the part of the log with the mark is lost, so assume that there was a collection

    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        return changes.get_snapshot_info(self.load(), id)

    def keeps(self, id: SnapshotId) -> bool:
        # A collection removes the snapshots that it deletes from the repo info, and ids are never reused.
        return self.load().snapshots.row(id) is not None

    def ancestry(self, id: SnapshotId) -> Iterator[SnapshotInfo]:
        info = self.load()
        changes.get_snapshot_info(info, id)
        return (info.snapshots[row] for row in info.snapshots.walk(id))

    def ancestries(self) -> Callable[[SnapshotId], Iterator[SnapshotInfo]]:
        info = self.load()
        decoded = list(info.snapshots)  # reading all at once takes a fraction of the time

        def walk(id: SnapshotId) -> Iterator[SnapshotInfo]:
            if info.snapshots.row(id) is None:
                changes.get_snapshot_info(info, id)  # raises the error
            return (decoded[row] for row in info.snapshots.walk(id))

        return walk

    def config(self) -> dict[str, Any] | None:
        return decode_stored_config(self.load())

    def save_config(self, config: dict[str, Any]) -> None:
        self.update(lambda info: changes.set_config(info, encode_config(config)))

    def metadata(self) -> Mapping[str, Any]:
        return self.load().metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.update(lambda info: changes.set_metadata(info, metadata))

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.update(lambda info: changes.set_metadata(info, {**info.metadata, **metadata})).metadata

    def protect(self, branch: str, sql: Sequence[str] | None, python: Sequence[str] | None) -> None:
        self.update(lambda info: changes.protect(info, branch, sql, python))

    def unprotect(self, branch: str) -> None:
        self.update(lambda info: changes.unprotect(info, branch))

    def protected_branches(self) -> Mapping[str, tuple[BranchCheck, ...]]:
        info = self.load()
        return {branch: changes.list_checks(info, branch) for branch in changes.list_protected(info)}

    def status(self) -> RepoStatus:
        return self.load().status

    def set_status(self, status: RepoStatus) -> None:
        self.update(lambda info: changes.set_status(info, status), while_read_only=True)

    def feature_flags(self) -> Mapping[int, bool]:
        return _parse_settings(self.load())

    def set_feature_flag(self, flag: int, setting: bool | None) -> None:
        self.update(lambda info: changes.set_feature_flag(info, flag, setting))

    def ops_log(self) -> Iterator[Update]:
        return chain.from_iterable(self.ops_log_files())

    def ops_log_files(self) -> Iterator[Updates]:
        """Yield the ops log file by file, from the current repo info file to the oldest backup."""
        return self._log_files(self.load())

    def _log_files(self, info: RepoInfo) -> Iterator[Updates]:
        """Yield the ops log file by file, starting with the given repo info."""
        log, before = info.latest_updates, info.repo_before_updates
        yield log
        seen: set[str] = set()
        while before is not None and before not in seen:
            seen.add(before)
            place = f"{OVERWRITTEN}/{before}"
            try:
                data, _ = self._storage.get(place)
            except ObjectNotFoundError:
                return  # the official reader also ends the log here
            log, older = read_ops_log(data, place)
            yield log.in_backup(before)
            before = older


def _make_no_repository_error(text: str, hint: Hint | None = None) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(text, ErrorKind.REPOSITORY_NOT_FOUND).with_hint(hint)


def _require_tip(info: RepoInfo, branch: str, base: SnapshotId) -> RepoInfo:
    """Return the repo info if the tip of a branch is `base`; raise ConflictError otherwise."""
    check_base(base, changes.get_branch_tip(info, branch))
    return info


def decode_stored_config(info: RepoInfo) -> dict[str, Any] | None:
    """Decode the configuration in a repo info, if there is one."""
    return None if info.config is None else decode_config(info.config, REPO_PATH)


def _parse_settings(info: RepoInfo) -> dict[int, bool]:
    on = dict.fromkeys(info.enabled_feature_flags or (), True)
    return on | dict.fromkeys(info.disabled_feature_flags or (), False)


def _guard_by_flag(flag: int, change: Change) -> Change:
    """Wrap a change so that it is rejected while its feature flag is disabled."""

    def checked(info: RepoInfo) -> changes.Changed:
        check_flag(_parse_settings(info), flag)
        return change(info)

    return checked


def check_flag(settings: Mapping[int, bool], flag: int) -> None:
    """Raise an error if a feature flag forbids an operation."""
    if not settings.get(flag, True):
        raise SessionStateError(
            f"the feature flag {FLAG_NAMES.get(flag, flag)} of this repository is disabled",
            kind=ErrorKind.FEATURE_FLAG_DISABLED,
        )


def check_writable(status: RepoStatus) -> None:
    """Raise an error if the repository is read-only or offline."""
    if status.availability is not RepoAvailability.ONLINE:
        reason = status.limited_availability_reason
        is_by_format = (
            not status.set_at_us
        )  # the format itself is read-only; the status was not set by a user
        raise ReadOnlyError(
            f"repository status is {status.availability.name.lower().replace('_', '-')}"
            + (f": {reason}" if reason else ""),
            kind=ErrorKind.READ_ONLY_REPOSITORY,
        ).with_hint(MIGRATE if is_by_format else Hint("{function} can set it online", function="set_status"))


def make_backup_name(now_ms: int, name: str) -> str:
    """Return a name below `overwritten/` for a backup of the repo info file. Newer names sort first."""
    return f"{name}.{_YEAR_3000_MS - now_ms:014d}.{_Random.random()}"


def get_backup_time_us(name: str) -> int:
    """Return the time of a repo info backup, parsed from its name, in microseconds."""
    return (_YEAR_3000_MS - int(name.split(".")[-2])) * 1000


class _Random(ObjectId):
    """Twelve random bytes, encoded like an object id, for backup names."""

    __slots__ = ()
    _NAME = "random name"
    SIZE = 12
