"""Public values about what was done to a repository: entries of its ops log, results of maintenance."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TypeAlias

from icefloe._internal.printable import printable
from icefloe.config.display import Shown, Tree, literal, qualified
from icefloe.types import RepoStatus

__all__ = ["GCSummary", "Update", "UpdateType"]


class _Variant:
    """One kind of change, shown as the code that makes it."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(
            f"{item.name}={_inline(getattr(self, item.name))}"
            for item in fields(self)  # type: ignore[arg-type]  # only mixed into dataclasses
        )
        return f"{qualified('ops', type(self).__qualname__)}({values})"


def _inline(value: object) -> str:
    if not isinstance(value, RepoStatus):
        return literal(value)
    shown = ", ".join(f"{name}={printable(str(text))}" for name, text in value.tree().fields)
    return f"RepoStatus({shown})"


class _Family(type):
    """A class that only groups its variants: each variant counts as a subclass of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or subclass in (v for v in vars(cls).values() if isinstance(v, type))


class UpdateType(metaclass=_Family):
    """What a change did: one of the variants below. Snapshots are named by their ids."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoInitialized(_Variant):
        """The repository was created."""

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoMigrated(_Variant):
        """The repository was rewritten for another version of the format."""

        from_version: int
        to_version: int

    @dataclass(frozen=True, slots=True, repr=False)
    class RepoStatusChanged(_Variant):
        """The repository was put online, or made read-only."""

        status: RepoStatus

    @dataclass(frozen=True, slots=True, repr=False)
    class ConfigChanged(_Variant):
        """A configuration was stored."""

    @dataclass(frozen=True, slots=True, repr=False)
    class MetadataChanged(_Variant):
        """The repository's own metadata changed."""

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
        """A branch was pointed at another snapshot."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class NewCommit(_Variant):
        """A commit was made on a branch."""

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
        """A snapshot was made that no branch points to."""

        new_snap_id: str

    @dataclass(frozen=True, slots=True, repr=False)
    class GCRan(_Variant):
        """Garbage was collected."""

    @dataclass(frozen=True, slots=True, repr=False)
    class ExpirationRan(_Variant):
        """Old snapshots were expired."""

    @dataclass(frozen=True, slots=True, repr=False)
    class FeatureFlagChanged(_Variant):
        """A feature flag was set, or put back to its default: None."""

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
    updated_at: datetime
    backup_path: str | None
    """Where below `overwritten/` the repo info right after this change is kept; None for the newest."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = (("kind", repr(self.kind)), ("updated_at", repr(self.updated_at)))
        return Tree(qualified("ops", "Update"), (*rows, ("backup_path", str(self.backup_path))))


@dataclass(frozen=True, slots=True, repr=False)
class GCSummary(Shown):
    """What a garbage collection deleted, or would have deleted."""

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    """Always 0: no release wrote such files."""
    transaction_logs_deleted: int = 0
    temporary_files_deleted: int = 0
    """Files in a local folder that killed writers of icefloe left behind."""
    objects_failed_to_delete: int = 0
    """They are garbage still, for the next run."""
    throttled_batches: int = 0
    """Requests that the store asked to send again later, which was done."""
    delete_errors: list[str] = field(default_factory=list)
    """The first ten different ones."""
    skipped_phases: list[str] = field(default_factory=list)
    """Of transaction_logs, manifests and chunks those not begun after failures in an earlier one."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((item.name, str(getattr(self, item.name))) for item in fields(self))
        return Tree(qualified("ops", "GCSummary"), rows)


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(Shown):
    """Bytes of chunks, by where they are kept."""

    native_bytes: int = 0
    """In chunk objects of the repository."""
    virtual_bytes: int = 0
    """In files elsewhere."""
    inlined_bytes: int = 0
    """In manifests."""

    def non_virtual_bytes(self) -> int:
        """What the repository itself holds."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """All of them."""
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
        return Tree(qualified("stats", "ChunkStorageStats"), rows)
