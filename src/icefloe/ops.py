"""Ops log entries, and the summary of a garbage collection."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TypeAlias

from icefloe._internal.printable import escape_control
from icefloe._internal.report import Report
from icefloe.config.display import Shown, Tree, format_literal, qualify_name
from icefloe.types import RepoStatus

__all__ = ["GCSummary", "Update", "UpdateType"]


class _Variant:
    """Base class for the kinds of updates. Its repr is the code that creates the object."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(
            f"{item.name}={_inline(getattr(self, item.name))}"
            for item in fields(self)  # type: ignore[arg-type]  # only mixed into dataclasses
        )
        return f"{qualify_name('ops', type(self).__qualname__)}({values})"


def _inline(value: object) -> str:
    if not isinstance(value, RepoStatus):
        return format_literal(value)
    shown = ", ".join(f"{name}={escape_control(str(text))}" for name, text in value.tree().fields)
    return f"RepoStatus({shown})"


class _Family(type):
    """A metaclass for classes that only group variants. Each variant counts as a subclass."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or subclass in (v for v in vars(cls).values() if isinstance(v, type))


class UpdateType(metaclass=_Family):
    """The kinds of ops log entries. Snapshots are identified by their ids."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoInitialized(_Variant):
        """An ops log entry: the repository was created."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoMigrated(_Variant):
        """An ops log entry: the repository was converted to another format version."""

        from_version: int
        to_version: int

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoStatusChanged(_Variant):
        """An ops log entry: the repository was set online, or made read-only."""

        status: RepoStatus

    @dataclass(frozen=True, slots=True, repr=False)
    class ConfigChanged(_Variant):
        """An ops log entry: a new configuration was stored."""

    @dataclass(frozen=True, slots=True, repr=False)
    class MetadataChanged(_Variant):
        """An ops log entry: the repository metadata was changed."""

    @dataclass(frozen=True, slots=True, repr=False)
    class TagCreated(_Variant):
        """An ops log entry: a tag was created."""

        name: str

    @dataclass(frozen=True, slots=True, repr=False)
    class TagDeleted(_Variant):
        """An ops log entry: a tag was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchCreated(_Variant):
        """An ops log entry: a branch was created."""

        name: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchDeleted(_Variant):
        """An ops log entry: a branch was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchReset(_Variant):
        """An ops log entry: a branch was reset to another snapshot."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class NewCommit(_Variant):
        """An ops log entry: a commit was added to a branch."""

        branch: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class CommitAmended(_Variant):
        """An ops log entry: the tip of a branch was replaced."""

        branch: str
        previous_snap_id: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class NewDetachedSnapshot(_Variant):
        """An ops log entry: a snapshot was created without a branch."""

        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class GCRan(_Variant):
        """An ops log entry: a garbage collection ran."""

    @dataclass(frozen=True, slots=True, repr=False)
    class ExpirationRan(_Variant):
        """An ops log entry: old snapshots were expired."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FeatureFlagChanged(_Variant):
        """An ops log entry: a feature flag was set, or reset to its default (None)."""

        id: int
        new_value: bool | None


AnyUpdateType: TypeAlias = (
    UpdateType.RepoInitialized
    | UpdateType.RepoMigrated
    | UpdateType.RepoStatusChanged
    | UpdateType.ConfigChanged
    | UpdateType.MetadataChanged
    | UpdateType.TagCreated
    | UpdateType.TagDeleted
    | UpdateType.BranchCreated
    | UpdateType.BranchDeleted
    | UpdateType.BranchReset
    | UpdateType.NewCommit
    | UpdateType.CommitAmended
    | UpdateType.NewDetachedSnapshot
    | UpdateType.GCRan
    | UpdateType.ExpirationRan
    | UpdateType.FeatureFlagChanged
)


@dataclass(frozen=True, slots=True, repr=False)
class Update(Shown):
    """One entry of the ops log."""

    kind: AnyUpdateType
    """The kind of change."""
    updated_at: datetime
    """The time of the change."""
    backup_path: str | None
    """The file below `overwritten/` with the repo info right after this change; None for the newest entry."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = (("kind", repr(self.kind)), ("updated_at", repr(self.updated_at)))
        return Tree(qualify_name("ops", "Update"), (*rows, ("backup_path", str(self.backup_path))))


@dataclass(frozen=True, slots=True, repr=False)
class GCSummary(Shown, Report):
    """The summary of a garbage collection: how many objects it deleted, or would delete."""

    bytes_deleted: int = 0
    """The size of all deleted objects."""
    chunks_deleted: int = 0
    """The number of deleted chunks."""
    manifests_deleted: int = 0
    """The number of deleted manifests."""
    snapshots_deleted: int = 0
    """The number of deleted snapshots."""
    attributes_deleted: int = 0
    """Always 0, because no release has written attributes files."""
    transaction_logs_deleted: int = 0
    """The number of deleted transaction logs."""
    temporary_files_deleted: int = 0
    """The number of deleted temporary files that killed writers left in a local folder."""
    statistics_deleted: int = 0
    """The number of deleted statistics files, whose manifests no longer exist."""
    objects_failed_to_delete: int = 0
    """The number of objects that could not be deleted. The next run tries again."""
    throttled_batches: int = 0
    """The number of requests that were retried because the store asked to slow down."""
    delete_errors: list[str] = field(default_factory=list)
    """The first ten distinct errors."""
    skipped_phases: list[str] = field(default_factory=list)
    """The phases (transaction_logs, manifests, chunks) that were skipped after failures in an earlier phase.
    """

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((item.name, str(getattr(self, item.name))) for item in fields(self))
        return Tree(qualify_name("ops", "GCSummary"), rows)
