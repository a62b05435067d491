"""The ops log, with one entry per change to the repo info file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId
from icefloe.encoding.flatbuffers.records import Records
from icefloe.encoding.flatbuffers.row_builder import Blocks, Row
from icefloe.format.schema import UPDATE
from icefloe.ops import AnyUpdateType, UpdateType


class RepoAvailability(IntEnum):
    """The availability of a repository: online, read-only or offline."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """The status of a repository: its availability, and the time and reason of the last change."""

    availability: RepoAvailability = RepoAvailability.ONLINE
    set_at_us: int = 0
    """The time at which the status was set, in microseconds since 1970-01-01 UTC."""
    limited_availability_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged:
    """An ops log entry for a change of the repository status.

    Its time may be outside the range of `datetime`.
    """

    status: RepoStatus | None


StoredUpdate: TypeAlias = AnyUpdateType | RepoStatusChanged

UPDATE_TYPES: Final[tuple[type[Any], ...]] = (
    UpdateType.RepoInitialized,
    UpdateType.RepoMigrated,
    UpdateType.ConfigChanged,
    UpdateType.MetadataChanged,
    UpdateType.TagCreated,
    UpdateType.TagDeleted,
    UpdateType.BranchCreated,
    UpdateType.BranchDeleted,
    UpdateType.BranchReset,
    UpdateType.NewCommit,
    UpdateType.CommitAmended,
    UpdateType.NewDetachedSnapshot,
    UpdateType.GCRan,
    UpdateType.ExpirationRan,
    UpdateType.FeatureFlagChanged,
    RepoStatusChanged,
)
"""The update types in the order of the specification's union `UpdateType`, numbered from 1."""

FIELDS: Final = {kind: tuple(column.name for column in fields(kind)) for kind in UPDATE_TYPES}
"""The fields of each update type."""
_IDS: Final = {name for names in FIELDS.values() for name in names if name.endswith("snap_id")}
_CODES: Final = {kind: code for code, kind in enumerate(UPDATE_TYPES, start=1)}


@dataclass(frozen=True, slots=True)
class Update:
    """An entry of the ops log, which records one change to a repository."""

    update_type: StoredUpdate
    updated_at_us: int
    """The time of the update, in microseconds since 1970-01-01 UTC."""
    backup_path: str | None = None
    """The backup file below `overwritten/` whose newest entry is this one; None if it is in the current repo
    info file.
    """


class Updates:
    """The part of the ops log that is stored in one repo info file, newest first.

    The newest entry is kept separately, because the next change rewrites it with the path of its backup.
    """

    __slots__ = ("_newest", "_older", "_times")

    def __init__(self, records: Records) -> None:
        self._times: NDArray[np.uint64]
        if records.few or not len(records):
            self._times = np.array([row["updated_at"] for row in records.rows()], np.uint64)
        else:
            self._times = records.columns["updated_at"]
        self._newest: Update | None = None
        self._older = records

    @staticmethod
    def of(updates: Sequence[Update]) -> Updates:
        """Create an ops log from entries, newest first."""
        return Updates(Records(UPDATE, "repo", rows=[_update_row(update) for update in updates]))

    def __len__(self) -> int:
        return len(self._older) + (self._newest is not None)

    def __iter__(self) -> Iterator[Update]:
        if len(self):
            yield self[0]
            yield from map(read_update, self.older.rows())

    def __getitem__(self, row: int) -> Update:
        if self._newest is not None:
            if row == 0:
                return self._newest
            row -= 1
        return read_update(self._older.row(row))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Updates) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def older(self) -> Records:
        """All ops log entries except the newest."""
        return self._older if self._newest is not None else self._older.without_first()

    @property
    def blocks(self) -> Blocks:
        """The ops log entries as encoded tables."""
        if self._newest is None:
            return self._older.blocks
        return self._older.blocks.insert(0, UPDATE, _update_row(self._newest), self._older.place)

    @property
    def newest_at_us(self) -> int:
        """The time of the newest ops log entry, in microseconds since 1970-01-01 UTC."""
        return int(self._times[0])

    @property
    def times_us(self) -> NDArray[np.uint64]:
        """The times of all ops log entries, in microseconds since 1970-01-01 UTC."""
        return self._times

    def in_order(self) -> bool:
        """Return True if ops log entries are ordered from newest to oldest, without equal times."""
        return not (self._times[1:] >= self._times[:-1]).any()

    def with_entry(self, update: Update, backup_path: str) -> Updates:
        """Return a copy of the ops log with a new entry. The previous entry gets the path of its backup
        file.
        """
        older = self._older
        if len(self):
            older = self.older.insert(0, _update_row(replace(self[0], backup_path=backup_path)))
        added = self._match_columns(update, older)
        added._times = np.concatenate((np.array([update.updated_at_us], np.uint64), self._times))
        return added

    def in_backup(self, backup_path: str) -> Updates:
        """Return these updates as the ops log of a backup file.

        The newest update gets the path of this backup, unless it already has a path.
        """
        newest = self[0] if len(self) else None
        if newest is None or newest.backup_path is not None:
            return self
        return self._match_columns(replace(newest, backup_path=backup_path), self.older)

    def first(self, count: int) -> Updates:
        """Return the given number of newest ops log entries."""
        kept = self._match_columns(self._newest, self._older.first(count - (self._newest is not None)))
        kept._times = self._times[:count]
        return kept

    def _match_columns(self, newest: Update | None, older: Records) -> Updates:
        made = object.__new__(Updates)
        made._newest, made._older, made._times = newest, older, self._times
        return made


def make_status_row(status: RepoStatus) -> dict[str, Any]:
    """Encode the repository status as a row of a `RepoStatus` table."""
    return {
        "availability": status.availability,
        "set_at": status.set_at_us,
        "limited_availability_reason": status.limited_availability_reason,
    }


def read_status(row: Row) -> RepoStatus:
    """Decode the repository status from a row of a `RepoStatus` table.

    An unknown availability counts as offline.
    """
    known = row["availability"] in RepoAvailability.__members__.values()
    availability = RepoAvailability(row["availability"]) if known else RepoAvailability.OFFLINE
    return RepoStatus(availability, row["set_at"], row["limited_availability_reason"])


def _update_row(update: Update) -> dict[str, Any]:
    kind = update.update_type
    values = {name: _to_stored(name, getattr(kind, name)) for name in FIELDS[type(kind)]}
    if isinstance(kind, UpdateType.FeatureFlagChanged):
        values |= {"new_value": bool(kind.new_value), "is_set": kind.new_value is not None}
    elif isinstance(kind, RepoStatusChanged):
        values["status"] = None if kind.status is None else make_status_row(kind.status)
    row = {"update_type": (_CODES[type(kind)], values), "updated_at": update.updated_at_us}
    return row | {"backup_path": update.backup_path}


def _to_stored(name: str, value: Any) -> Any:
    return SnapshotId.parse(value) if name in _IDS else value


def read_update(row: Row) -> Update:
    """Decode an ops log entry from a row of an `Update` table."""
    code, values = row["update_type"]
    kind = UPDATE_TYPES[code - 1]
    if kind is UpdateType.FeatureFlagChanged:
        values = {"id": values["id"], "new_value": bool(values["new_value"]) if values["is_set"] else None}
    elif kind is RepoStatusChanged:
        values = {"status": None if values["status"] is None else read_status(values["status"])}
    else:
        values = {name: str(SnapshotId(v)) if name in _IDS else v for name, v in values.items()}
    return Update(kind(**values), row["updated_at"], row["backup_path"])
