"""Where branches, tags and all else that changes is kept. Each change is one compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from icefloe._internal.ids import SnapshotId
from icefloe.errors import ErrorKind, FormatError, Hint, IcechunkError, InvalidInputError, ReadOnlyError
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.spec import Spec
from icefloe.format.updates import RepoStatus, Update


class CollectedError(Exception):
    """Garbage was collected since a session began; nothing was changed."""


class RefStore(Protocol):
    """The mutable part of a repository, whatever version of the format it has."""

    spec: Spec

    def branches(self) -> Mapping[str, SnapshotId]:
        """All branches."""

    def tags(self) -> Mapping[str, SnapshotId]:
        """All tags that were not deleted."""

    def branch(self, name: str) -> SnapshotId:
        """The tip of a branch."""

    def tip_to_write(self, name: str) -> SnapshotId:
        """The tip of a branch that is to be written to; ReadOnlyError if nothing may be written."""

    def tag(self, name: str) -> SnapshotId:
        """The snapshot a tag names."""

    def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        """Start a branch at a snapshot."""

    def delete_branch(self, name: str) -> None:
        """Remove a branch; never main."""

    def reset_branch(self, name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> None:
        """Point a branch elsewhere."""

    def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        """Name a snapshot for good."""

    def delete_tag(self, name: str) -> None:
        """Remove a tag; its name is taken for ever."""

    def check_tip(self, branch: str, base: SnapshotId) -> None:
        """ConflictError if a branch is not at `base`, ReadOnlyError if nothing may be written."""

    def now(self) -> int:
        """A mark in the log of what is done to the repository, for the `since` of later changes."""

    def advance(
        self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None
    ) -> None:
        """Put a new snapshot on a branch that is still at `base`; ConflictError if it is not.

        CollectedError, here and in the next two, where garbage was collected since a mark.
        """

    def amend(self, branch: str, base: SnapshotId, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Put a new snapshot in place of the tip `base`."""

    def detach(self, snapshot: SnapshotInfo, since: int | None = None) -> None:
        """Make a snapshot known that no branch points to."""

    def snapshot(self, id: SnapshotId) -> SnapshotInfo:
        """What is known of a snapshot; SnapshotNotFoundError if it is not one of this repository."""

    def ancestry(self, id: SnapshotId) -> Iterator[SnapshotInfo]:
        """A snapshot and its ancestors, newest first."""

    def config(self) -> dict[str, Any] | None:
        """The stored configuration; None where there is none."""

    def save_config(self, config: dict[str, Any]) -> None:
        """Store a configuration."""

    def metadata(self) -> Mapping[str, Any]:
        """The repository's own metadata."""

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace it."""

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge into it; the result."""

    def status(self) -> RepoStatus:
        """Whether the repository may be written."""

    def set_status(self, status: RepoStatus) -> None:
        """Change that."""

    def feature_flags(self) -> Mapping[int, bool]:
        """The flags that are set, by number."""

    def set_feature_flag(self, flag: int, setting: bool | None) -> None:
        """Set a flag, or put it back to its default."""

    def ops_log(self) -> Iterator[Update]:
        """What was done to the repository, newest first."""


def unsupported(what: str, spec: Spec) -> IcechunkError:
    """The error for what a version of the format cannot do."""
    if not spec.writable:
        return read_only_format(what)
    return FormatError(
        f"{what} needs a newer repository than version {spec.number} of the format",
        kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
    ).with_hint(UPGRADE)


READ_ONLY_FORMAT: Final = "this repository has a format from before version 1, which is read-only"
MIGRATE: Final = Hint("{function} turns it into version 2", function="icefloe.migrate")
UPGRADE: Final = Hint("{function} upgrades it", function="upgrade_icechunk_repository")


def read_only_format(what: str, hint: Hint = MIGRATE) -> ReadOnlyError:
    """The error for what would change, or needs more than, a repository of a format before version 1."""
    return ReadOnlyError(f"{what}: {READ_ONLY_FORMAT}", ErrorKind.READ_ONLY_REPOSITORY).with_hint(hint)


def check_storable(name: str) -> None:
    """Refuse a name of a branch or tag that no file can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise invalid_name(name, "it must not contain lone surrogates") from None


def invalid_name(name: str, rule: str) -> InvalidInputError:
    """The error for a name that a branch or tag cannot have."""
    return InvalidInputError(
        f"invalid name {name!r} of a branch or tag: {rule}", kind=ErrorKind.INVALID_REF_NAME
    )
