"""Entries of the ops log, and results of maintenance operations."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TypeAlias

from icefloe._internal.printable import escape_control
from icefloe._internal.report import Report
from icefloe.config.display import Shown, Tree, format_literal, qualify_name
from icefloe.types import RepoStatus

__all__ = ["GCSummary", "OpsLogTrim", "Update", "UpdateType"]


class _Variant:
    """Base class of the kinds of updates, whose repr is the code that creates them."""

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
    """A metaclass for classes that only group variants: each variant counts as a subclass."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or subclass in (v for v in vars(cls).values() if isinstance(v, type))


class UpdateType(metaclass=_Family):
    """The kinds of changes to a repository. Snapshots are identified by their ids."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoInitialized(_Variant):
        """The repository was created."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoMigrated(_Variant):
        """The repository was converted to another version of the format."""

        from_version: int
        to_version: int

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoStatusChanged(_Variant):
        """The repository was set online, or made read-only."""

        status: RepoStatus

    @dataclass(frozen=True, slots=True, repr=False)
    class ConfigChanged(_Variant):
        """A configuration was stored."""

    @dataclass(frozen=True, slots=True, repr=False)
    class MetadataChanged(_Variant):
        """The metadata of the repository was changed."""

    @dataclass(frozen=True, slots=True, repr=False)
    class TagCreated(_Variant):
        """A tag was created."""

        name: str

    @dataclass(frozen=True, slots=True, repr=False)
    class TagDeleted(_Variant):
        """A tag was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchCreated(_Variant):
        """A branch was created."""

        name: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchDeleted(_Variant):
        """A branch was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class BranchReset(_Variant):
        """A branch was pointed to another snapshot."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class NewCommit(_Variant):
        """A commit was added to a branch."""

        branch: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class CommitAmended(_Variant):
        """The tip of a branch was replaced."""

        branch: str
        previous_snap_id: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class NewDetachedSnapshot(_Variant):
        """A snapshot without a branch was created."""

        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class GCRan(_Variant):
        """A garbage collection ran."""

    @dataclass(frozen=True, slots=True, repr=False)
    class ExpirationRan(_Variant):
        """Old snapshots were expired."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FeatureFlagChanged(_Variant):
        """A feature flag was set, or reset to its default with None."""

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
    """The objects that a garbage collection deleted, or would delete."""

    bytes_deleted: int = 0
    """The size of all deleted objects."""
    chunks_deleted: int = 0
    """The number of deleted chunks."""
    manifests_deleted: int = 0
    """The number of deleted manifests."""
    snapshots_deleted: int = 0
    """The number of deleted snapshots."""
    attributes_deleted: int = 0
    """Always 0: no release wrote such files."""
    transaction_logs_deleted: int = 0
    """The number of deleted transaction logs."""
    temporary_files_deleted: int = 0
    """The number of deleted temporary files that killed writers left in a local folder."""
    statistics_deleted: int = 0
    """The number of deleted statistics files, whose manifests no longer exist."""
    objects_failed_to_delete: int = 0
    """The number of objects that could not be deleted. The next run tries again."""
    throttled_batches: int = 0
    """The number of requests that were repeated because the store asked to slow down."""
    delete_errors: list[str] = field(default_factory=list)
    """The first ten distinct errors."""
    skipped_phases: list[str] = field(default_factory=list)
    """The phases (transaction_logs, manifests, chunks) that were skipped after failures in an earlier phase.
    """

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((item.name, str(getattr(self, item.name))) for item in fields(self))
        return Tree(qualify_name("ops", "GCSummary"), rows)


@dataclass(frozen=True, slots=True)
class OpsLogTrim:
    """The backups that were deleted to shorten the ops log, or would be."""

    backups_deleted: int
    """The number of deleted backups of the repo info file."""
    bytes_deleted: int
    """The size of all deleted backups."""
    entries_left: int
    """The number of operations that the ops log still contains."""


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(Shown, Report):
    """The size of chunks in bytes, by location: chunk objects, external files and manifests."""

    native_bytes: int = 0
    """Bytes in chunk objects of the repository."""
    virtual_bytes: int = 0
    """Bytes in files outside the repository."""
    inlined_bytes: int = 0
    """Bytes in manifests."""

    def non_virtual_bytes(self) -> int:
        """Return the number of bytes that are stored in the repository."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Return the number of bytes of all chunks."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __add__(self, other: ChunkStorageStats) -> ChunkStorageStats:
        if not isinstance(other, ChunkStorageStats):
            return NotImplemented
        return ChunkStorageStats(
            self.native_bytes + other.native_bytes,
            self.virtual_bytes + other.virtual_bytes,
            self.inlined_bytes + other.inlined_bytes,
        )

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((item.name, str(getattr(self, item.name))) for item in fields(self))
        return Tree(qualify_name("stats", "ChunkStorageStats"), rows)
