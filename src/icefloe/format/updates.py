"""The ops log: what was done to a repository, one entry per change of its repo info file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeAlias

from icefloe.encoding.flatbuffers.tables import Tables, from_rows, to_rows
from icefloe.format.schema import UPDATE
from icefloe.ids import SnapshotId


class RepoAvailability(IntEnum):
    """What may be done with a repository."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Whether a repository may be read and written, since when and why."""

    availability: RepoAvailability = RepoAvailability.ONLINE
    set_at_us: int = 0
    """Microseconds since 1970-01-01 UTC."""
    limited_availability_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RepoInitialized:
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated:
    """The repository was rewritten for another version of the format."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The stored configuration changed."""


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The repository's metadata changed."""


@dataclass(frozen=True, slots=True)
class TagCreated:
    """A tag was created."""

    name: str


@dataclass(frozen=True, slots=True)
class TagDeleted:
    """A tag was deleted."""

    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class BranchCreated:
    """A branch was created."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted:
    """A branch was deleted."""

    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class BranchReset:
    """A branch was pointed at another snapshot."""

    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit was made on a branch."""

    branch: str
    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class CommitAmended:
    """The tip of a branch was replaced."""

    branch: str
    previous_snap_id: SnapshotId
    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class NewDetachedSnapshot:
    """A snapshot was made that no branch points to."""

    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class GCRan:
    """Garbage was collected."""


@dataclass(frozen=True, slots=True)
class ExpirationRan:
    """Old snapshots were expired."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged:
    """A feature flag was set, or put back to its default: None."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged:
    """The repository's status changed."""

    status: RepoStatus | None


UpdateType: TypeAlias = (
    RepoInitialized
    | RepoMigrated
    | ConfigChanged
    | MetadataChanged
    | TagCreated
    | TagDeleted
    | BranchCreated
    | BranchDeleted
    | BranchReset
    | NewCommit
    | CommitAmended
    | NewDetachedSnapshot
    | GCRan
    | ExpirationRan
    | FeatureFlagChanged
    | RepoStatusChanged
)

UPDATE_TYPES: Final[tuple[type[Any], ...]] = (
    RepoInitialized,
    RepoMigrated,
    ConfigChanged,
    MetadataChanged,
    TagCreated,
    TagDeleted,
    BranchCreated,
    BranchDeleted,
    BranchReset,
    NewCommit,
    CommitAmended,
    NewDetachedSnapshot,
    GCRan,
    ExpirationRan,
    FeatureFlagChanged,
    RepoStatusChanged,
)
"""In the order of the union `UpdateType` of the specification, from 1."""

_CODES: Final = {kind: code for code, kind in enumerate(UPDATE_TYPES, start=1)}


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the ops log."""

    update_type: UpdateType
    updated_at_us: int
    """Microseconds since 1970-01-01 UTC."""
    backup_path: str | None = None
    """The file below `overwritten/` in which this entry is the newest; None while that is `repo` itself."""


class Updates:
    """The ops log of one repo info file as columns, newest first."""

    __slots__ = ("_place", "columns")

    def __init__(self, columns: Tables, place: str = "repo") -> None:
        self.columns = columns
        self._place = place

    @staticmethod
    def of(updates: Sequence[Update]) -> Updates:
        """Columns from single entries, newest first."""
        return Updates(from_rows(UPDATE, [_update_row(update) for update in updates]))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Update]:
        return map(_update, to_rows(UPDATE, self.columns, self._place))

    def __getitem__(self, row: int) -> Update:
        return _update(to_rows(UPDATE, self.columns.take([row]), self._place)[0])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Updates) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Any) -> Updates:
        """The given entries."""
        return Updates(self.columns.take(rows), self._place)

    @staticmethod
    def concat(parts: Sequence[Updates]) -> Updates:
        """All entries of all parts, in order."""
        filled = [part.columns for part in parts if len(part)]
        return Updates(Tables.concat(filled)) if filled else parts[0]


def status_row(status: RepoStatus) -> dict[str, Any]:
    """The columns of a `RepoStatus` table."""
    return {
        "availability": status.availability,
        "set_at": status.set_at_us,
        "limited_availability_reason": status.limited_availability_reason,
    }


def read_status(row: dict[str, Any]) -> RepoStatus:
    """The value of a `RepoStatus` table. A number that is not known yet counts as offline: do not touch."""
    known = row["availability"] in RepoAvailability.__members__.values()
    availability = RepoAvailability(row["availability"]) if known else RepoAvailability.OFFLINE
    return RepoStatus(availability, row["set_at"], row["limited_availability_reason"])


def _update_row(update: Update) -> dict[str, Any]:
    kind = update.update_type
    values = {column.name: getattr(kind, column.name) for column in fields(kind)}
    if isinstance(kind, FeatureFlagChanged):
        values |= {"new_value": bool(kind.new_value), "is_set": kind.new_value is not None}
    elif isinstance(kind, RepoStatusChanged):
        values["status"] = None if kind.status is None else status_row(kind.status)
    row = {"update_type": (_CODES[type(kind)], values), "updated_at": update.updated_at_us}
    return row | {"backup_path": update.backup_path}


def _update(row: dict[str, Any]) -> Update:
    code, values = row["update_type"]
    kind = UPDATE_TYPES[code - 1]
    if kind is FeatureFlagChanged:
        values = {"id": values["id"], "new_value": bool(values["new_value"]) if values["is_set"] else None}
    elif kind is RepoStatusChanged:
        values = {"status": None if values["status"] is None else read_status(values["status"])}
    else:
        values = {name: SnapshotId(v) if name.endswith("snap_id") else v for name, v in values.items()}
    return Update(kind(**values), row["updated_at"], row["backup_path"])
