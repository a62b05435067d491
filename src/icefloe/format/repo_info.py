"""Repo info: branches, tags, snapshots, status, config and ops log of a V2 repository, in one value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.flatbuffers.tables import Tables, from_rows
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.id_columns import find_id, id_keys
from icefloe.format.metadata import Metadata, metadata_items, read_metadata
from icefloe.format.schema import SNAPSHOT_INFO
from icefloe.format.spec import V2
from icefloe.format.updates import RepoStatus, Updates
from icefloe.ids import SnapshotId

NO_PARENT: Final = -1
MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What the repo info file knows of a snapshot."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at_us: int
    """Microseconds since 1970-01-01 UTC."""
    message: str
    metadata: Metadata = field(default_factory=dict)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()
    """Snapshots between this one and its parent that expired, oldest first; their transaction logs remain."""


class SnapshotInfos:
    """All snapshots of a repository as columns, sorted by id."""

    __slots__ = ("_place", "columns")

    def __init__(self, columns: Tables, place: str = "repo") -> None:
        """FormatError where ids are not ascending or a parent is not there."""
        self.columns = columns
        self._place = place
        keys = id_keys(self.ids)
        if (keys[1:] <= keys[:-1]).any():
            self._refuse("snapshots are not in ascending order of their ids")
        parents = self.parents
        if len(parents) and (int(parents.min()) < NO_PARENT or int(parents.max()) >= len(parents)):
            self._refuse("a snapshot has a parent that is not in the list")
        self._check_ancestry(parents)

    def _check_ancestry(self, parents: NDArray[np.int32]) -> None:
        """Refuse snapshots that are their own ancestors: follow all parents at once, in doubling steps."""
        count = len(parents)
        jump = np.where(parents < 0, count, parents).astype(np.int64)
        jump = np.append(jump, count)
        for _ in range(count.bit_length()):
            jump = jump[jump]
        if (jump != count).any():
            self._refuse("a snapshot is its own ancestor")

    def _refuse(self, what: str) -> NoReturn:
        raise FormatError(f"{self._place}: {what}", kind=ErrorKind.INVALID_FILE_FORMAT)

    @staticmethod
    def of(infos: Iterable[SnapshotInfo]) -> SnapshotInfos:
        """Columns from single entries, in any order."""
        ordered = sorted(infos, key=lambda info: info.id)
        rows = {info.id: row for row, info in enumerate(ordered)}
        if len(rows) != len(ordered):
            raise FormatError("repo: a snapshot is listed twice", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID)
        lost = next((i for i in ordered if i.parent_id is not None and i.parent_id not in rows), None)
        if lost is not None:
            raise FormatError(
                f"repo: {lost.parent_id}, the parent of {lost.id}, is not listed",
                kind=ErrorKind.SERIALIZATION,
            )
        parents = [NO_PARENT if info.parent_id is None else rows[info.parent_id] for info in ordered]
        return SnapshotInfos(from_rows(SNAPSHOT_INFO, list(map(_info_row, ordered, parents))))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, SnapshotInfos) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def ids(self) -> NDArray[np.uint8]:
        """(n, 12), sorted"""
        ids: NDArray[np.uint8] = self.columns["id"] if len(self.columns) else np.zeros((0, 12), np.uint8)
        return ids

    @property
    def parents(self) -> NDArray[np.int32]:
        """Per snapshot the row of its parent, or NO_PARENT."""
        parents: NDArray[np.int32] = self.columns["parent_offset"]
        return parents

    def row(self, snapshot: SnapshotId) -> int | None:
        """Where a snapshot stands in the list."""
        return find_id(self.ids, snapshot)

    def find(self, snapshot: SnapshotId) -> SnapshotInfo | None:
        """The entry of one snapshot."""
        row = self.row(snapshot)
        return None if row is None else self[row]

    def id_at(self, row: int) -> SnapshotId:
        """The id in a row."""
        return SnapshotId(self.ids[row].tobytes())

    def adding(self, info: SnapshotInfo) -> SnapshotInfos:
        """With one more snapshot, whose parent is in the list."""
        parent = NO_PARENT if info.parent_id is None else self.row(info.parent_id)
        if parent is None:
            self._refuse(f"{info.parent_id}, the parent of {info.id}, is not listed")
        row = int(id_keys(self.ids).searchsorted(id_keys(np.frombuffer(info.id, np.uint8)[None])[0]))
        if row < len(self) and self.id_at(row) == info.id:
            raise FormatError(
                f"{self._place}: {info.id} is there already", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID
            )
        one = from_rows(SNAPSHOT_INFO, [_info_row(info, parent)])
        parts = [self.columns.take(slice(0, row)), one, self.columns.take(slice(row, None))]
        joined = Tables.concat([part for part in parts if len(part)])
        parents = joined["parent_offset"]
        moved = {**joined.columns, "parent_offset": np.where(parents >= row, parents + 1, parents)}
        return SnapshotInfos(Tables(len(joined), moved, joined.present), self._place)

    def ancestry(self, snapshot: SnapshotId) -> list[int]:
        """The rows of a snapshot and all its ancestors, newest first."""
        row = self.row(snapshot)
        parents = self.parents.tolist()
        rows = []
        while row is not None and row != NO_PARENT:
            rows.append(row)
            row = parents[row]
        return rows

    def __getitem__(self, row: int) -> SnapshotInfo:
        columns, place = self.columns, f"{self._place}: snapshot {self.id_at(row)}"
        parent = int(self.parents[row])
        metadata: dict[str, Any] = {}
        if "metadata" in columns.columns:
            metadata = read_metadata(columns["metadata"].take([row]).items, V2, place)
        pruned: tuple[SnapshotId, ...] = ()
        if "pruned_ancestor_tx_logs" in columns.columns:
            logs = columns["pruned_ancestor_tx_logs"].take([row]).items
            pruned = tuple(SnapshotId(log.tobytes()) for log in logs)
        return SnapshotInfo(
            id=self.id_at(row),
            parent_id=None if parent == NO_PARENT else self.id_at(parent),
            flushed_at_us=int(columns["flushed_at"][row]),
            message=columns["message"].take([row]).texts(place)[0],
            metadata=metadata,
            pruned_ancestor_tx_logs=pruned,
        )


def _info_row(info: SnapshotInfo, parent: int) -> dict[str, Any]:
    items = metadata_items(info.metadata, V2)
    pairs = zip(items["name"].texts(), items["value"].tolist(), strict=True)
    return {
        "id": info.id,
        "parent_offset": parent,
        "flushed_at": info.flushed_at_us,
        "message": info.message,
        "metadata": [{"name": name, "value": value} for name, value in pairs],
        "pruned_ancestor_tx_logs": list(info.pruned_ancestor_tx_logs) or None,
    }


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The one mutable object of a V2 repository. A change is a new value, written on condition."""

    snapshots: SnapshotInfos
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    status: RepoStatus
    latest_updates: Updates
    """Newest first; the newest has no backup path."""
    repo_before_updates: str | None = None
    """The file below `overwritten/` with the updates before these."""
    metadata: Metadata = field(default_factory=dict)
    config: bytes | None = None
    """FlexBuffers, as stored; None is the default configuration."""
    enabled_feature_flags: tuple[int, ...] | None = None
    disabled_feature_flags: tuple[int, ...] | None = None
    extra: bytes | None = None
