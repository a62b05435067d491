"""The interface of ref stores, which keep branches, tags and all other mutable state. Each change is one
compare-and-swap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from icefloe._internal.ids import SnapshotId
from icefloe.branch_checks import BranchCheck
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    Hint,
    IcechunkError,
    InvalidInputError,
    ReadOnlyError,
)
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.spec import Spec
from icefloe.format.updates import RepoStatus, Update


class CollectedError(Exception):
    """Error raised when a session commits after a garbage collection that may have deleted its objects."""


class RefStore(ABC):
    """The store for all mutable state of a repository: branches, tags, configuration, status and history.

    Operations that a version of the format does not support raise the error of `make_unsupported_error`.
    """

    spec: Spec

    @abstractmethod
    def branches(self) -> Mapping[str, SnapshotId]:
        """Return all branches, with the snapshots at their tips."""

    @abstractmethod
    def tags(self) -> Mapping[str, SnapshotId]:
        """Return all tags with their snapshots, except deleted tags."""

    @abstractmethod
    def branch(self, name: str) -> SnapshotId:
        """Return the snapshot at the tip of a branch."""

    def tip_to_write(self, name: str) -> SnapshotId:
        """Return the tip of a branch for a writer; raise ReadOnlyError if the repository is read-only."""
        raise make_unsupported_error("a session to write", self.spec)

    @abstractmethod
    def tag(self, name: str) -> SnapshotId:
        """Return the snapshot of a tag."""

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        """Create a branch at a snapshot."""
        raise make_unsupported_error(f"creating branch {name}", self.spec)

    def delete_branch(self, name: str) -> None:
        """Delete a branch other than main."""
        raise make_unsupported_error(f"deleting branch {name}", self.spec)

    def reset_branch(self, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> None:
        """Point a branch to another snapshot; raise ConflictError if its tip is not `expected`."""
        raise make_unsupported_error(f"resetting branch {name}", self.spec)

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        """Create a tag. Tags are immutable."""
        raise make_unsupported_error(f"creating tag {name}", self.spec)

    def delete_tag(self, name: str) -> None:
        """Delete a tag. Its name can never be reused."""
        raise make_unsupported_error(f"deleting tag {name}", self.spec)

    def check_tip(self, branch: str, base: SnapshotId) -> None:
        """Raise ConflictError if the tip of a branch is not `base`, and ReadOnlyError if the repository is
        read-only.
        """
        check_base(base, self.tip_to_write(branch))

    def back_up_early(self) -> None:
        """Back up the repo info file ahead of the next change, while a commit is still writing its other
        files.
        """
        return

    def now(self) -> int:
        """Return a mark for the current position in the history of changes, to be passed as `since` to later
        changes.
        """
        return 0

    def advance(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> None:
        """Move a branch from `base` to a new snapshot; raise ConflictError if its tip is not `base`.

        This method, `amend` and `detach` raise CollectedError if garbage was collected after the mark
        `since`.
        """
        raise make_unsupported_error(f"committing to {branch}", self.spec)

    def amend(self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Replace the tip of a branch with a new snapshot, if the tip is still `base`."""
        raise make_unsupported_error(f"amending {branch}", self.spec)

    def detach(self, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Register a snapshot that no ref points to."""
        raise make_unsupported_error("flushing", self.spec)

    @abstractmethod
    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        """Return the id, parent, time and message of a snapshot; raise SnapshotNotFoundError if it is not in
        this repository.
        """

    def forget_history(self) -> None:
        """Drop cached parts of the history that another process may have changed. Maintenance operations call
        this before they walk the history.
        """
        return

    def keeps(self, id: SnapshotId) -> bool:
        """Return True if the objects of a snapshot survive all recorded garbage collections."""
        raise make_unsupported_error("garbage collection", self.spec)

    def ancestry(self, id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first."""
        seen: set[SnapshotId] = set()
        current: SnapshotId | None = id
        while current is not None and current not in seen:
            seen.add(current)
            info = self.snapshot(current)
            yield info
            current = info.parent_id

    def ancestries(self) -> Callable[[SnapshotId], Iterator[SnapshotInfo]]:
        """Return a function like `ancestry` for many calls, which reads the refs only once if the format
        allows it.
        """
        return self.ancestry

    @abstractmethod
    def config(self) -> dict[str, Any] | None:
        """Return the stored configuration; None if there is none."""

    def save_config(self, config: dict[str, Any]) -> None:
        """Store a configuration in the repository."""
        raise make_unsupported_error("storing a configuration", self.spec)

    def metadata(self) -> Mapping[str, Any]:
        """Return the repository metadata."""
        raise make_unsupported_error("metadata of the repository", self.spec)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the repository metadata."""
        raise make_unsupported_error("metadata of the repository", self.spec)

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge values into the repository metadata, and return the result."""
        raise make_unsupported_error("metadata of the repository", self.spec)

    def protect(self, branch: str, sql: Sequence[str] | None, python: Sequence[str] | None) -> None:
        """Protect a branch against changes to its history.

        Where no new checks of a kind are given, the existing ones are kept.
        """
        raise make_unsupported_error(f"protecting branch {branch}", self.spec)

    def unprotect(self, branch: str) -> None:
        """Remove the protection and the checks of a branch."""
        raise make_unsupported_error(f"protecting branch {branch}", self.spec)

    def protected_branches(self) -> Mapping[str, tuple[BranchCheck, ...]]:
        """Return the checks of each protected branch."""
        return {}

    def status(self) -> RepoStatus:
        """Return the status of the repository: its availability and the reason."""
        return RepoStatus()

    def set_status(self, status: RepoStatus) -> None:
        """Change the status of the repository."""
        raise make_unsupported_error("a status of the repository", self.spec)

    def feature_flags(self) -> Mapping[int, bool]:
        """Return the feature flags that were set explicitly, by number."""
        return {}

    def set_feature_flag(self, flag: int, setting: bool | None) -> None:
        """Set a feature flag. None resets it to its default."""
        raise make_unsupported_error("a feature flag", self.spec)

    def ops_log(self) -> Iterator[Update]:
        """Yield the entries of the ops log, newest first."""
        raise make_unsupported_error("the ops log", self.spec)


def check_base(base: SnapshotId, tip: SnapshotId) -> None:
    """Raise ConflictError if the tip of a branch is no longer the snapshot that a commit is based on.

    This is where a commit loses a race against another writer.
    """
    if tip != base:
        raise ConflictError(str(base), str(tip), kind=ErrorKind.COMMIT_CONFLICT)


def make_unsupported_error(what: str, spec: Spec) -> IcechunkError:
    """Return the error for a change that the version of the format does not support."""
    if not spec.writable:
        return read_only_format(what)
    return FormatError(
        f"{what} is not supported in version {spec.number} of the format",
        kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
    ).with_hint(UPGRADE)


READ_ONLY_FORMAT: Final = "this repository has a format from before version 1, which is read-only"
MIGRATE: Final = Hint("{function} turns it into version 2", function="icefloe.migrate")
UPGRADE: Final = Hint("{function} upgrades it", function="upgrade_icechunk_repository")


def read_only_format(what: str, hint: Hint = MIGRATE) -> ReadOnlyError:
    """Return the error for any change to a repository in a format before version 1."""
    return ReadOnlyError(f"{what}: {READ_ONLY_FORMAT}", ErrorKind.READ_ONLY_REPOSITORY).with_hint(hint)


def check_storable(name: str) -> None:
    """Raise an error if the name of a branch or tag cannot be stored."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise make_invalid_name_error(name, "it must not contain lone surrogates") from None


def make_invalid_name_error(name: str, rule: str) -> InvalidInputError:
    """Return the error for an invalid branch or tag name."""
    return InvalidInputError(
        f"invalid name {name!r} of a branch or tag: {rule}", kind=ErrorKind.INVALID_REF_NAME
    )
