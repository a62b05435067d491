"""Repo info: branches, tags, snapshots, status, configuration and ops log of a V2 repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId
from icefloe.encoding.columns import I64, put_rows
from icefloe.encoding.flatbuffers.records import FEW, Records
from icefloe.encoding.flatbuffers.row_builder import Blocks, Row
from icefloe.encoding.flatbuffers.tables import Tables
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.id_columns import are_ids_ascending, find_id, find_id_row, view_id_keys
from icefloe.format.metadata import Metadata, make_metadata_rows, read_metadata
from icefloe.format.schema import SNAPSHOT_INFO
from icefloe.format.spec import V2
from icefloe.format.updates import RepoStatus, Updates

NO_PARENT: Final = -1
MAIN: Final = "main"
_PARENT_SLOT: Final = SNAPSHOT_INFO.fields["parent_offset"].slot


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot in the repo info: its id, parent, time, message and metadata."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at_us: int
    """The time of the commit, in microseconds since 1970-01-01 UTC."""
    message: str
    metadata: Metadata = field(default_factory=dict)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()
    """Expired snapshots between this snapshot and its parent, oldest first. Their transaction logs still
    exist.
    """


class SnapshotInfos:
    """The list of snapshots in the repo info, sorted by id.

    Raises FormatError if ids are not ascending or a parent is missing.
    """

    __slots__ = ("_parent_positions", "_place", "_records", "ids", "parents")

    ids: NDArray[np.uint8]
    """The ids of the snapshots, of shape (n, 12), sorted."""
    parents: NDArray[np.int32]
    """The row of each snapshot's parent, or NO_PARENT."""

    def __init__(self, records: Records) -> None:
        self._records = records = records.with_every("parent_offset")
        self._parent_positions: I64 | None = None
        self._place = records.place
        if records.few or not len(records):
            rows = records.rows()
            self.ids = np.frombuffer(b"".join(row["id"] for row in rows), np.uint8).reshape(-1, 12)
            self.parents = np.array([row["parent_offset"] for row in rows], np.int32)
        else:
            self.ids, self.parents = records.columns["id"], records.columns["parent_offset"]
        if not are_ids_ascending(self.ids):
            self._refuse("snapshots are not in ascending order of their ids")
        parents = self.parents
        if len(parents) and (int(parents.min()) < NO_PARENT or int(parents.max()) >= len(parents)):
            self._refuse("a snapshot has a parent that is not in the list")
        self._check_ancestry(parents)

    def _check_ancestry(self, parents: NDArray[np.int32]) -> None:
        """Raise an error if a snapshot is its own ancestor. Follow the parents of all snapshots at once,
        doubling the distance in each step.
        """
        count = len(parents)
        if count == 1 and parents[0] == NO_PARENT:
            return
        jump = np.empty(count + 1, np.int64)
        jump[:count] = parents
        jump[count] = NO_PARENT
        jump[jump == NO_PARENT] = count
        for _ in range(count.bit_length()):
            jump = jump[jump]
        if (jump != count).any():
            self._refuse("a snapshot is its own ancestor")

    def _refuse(self, what: str) -> NoReturn:
        raise FormatError(f"{self._place}: {what}", kind=ErrorKind.INVALID_FILE_FORMAT)

    @staticmethod
    def of(infos: Iterable[SnapshotInfo]) -> SnapshotInfos:
        """Create the snapshot list of a repo info from unsorted entries."""
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
        return SnapshotInfos(Records(SNAPSHOT_INFO, "repo", rows=list(map(make_info_row, ordered, parents))))

    def __len__(self) -> int:
        return len(self.parents)

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return map(self._make_info, range(len(self)), self._records.rows())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, SnapshotInfos) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def columns(self) -> Tables:
        """The columns of the snapshot list, except `parents`."""
        return self._records.columns

    @property
    def blocks(self) -> Blocks:
        """The snapshot list as encoded tables."""
        if self._parent_positions is None:
            self._parent_positions = self._records.number_positions("parent_offset")
        return self._records.blocks.with_numbers(self._parent_positions, self.parents)

    def row(self, snapshot: SnapshotId) -> int | None:
        """Return the row of a snapshot; None if it is not listed."""
        return find_id(self.ids, snapshot)

    def rows(self, snapshots: Sequence[SnapshotId]) -> list[int | None]:
        """Return the row of each given snapshot; None for snapshots that are not listed."""
        if len(snapshots) <= FEW or not len(self):
            return [self.row(each) for each in snapshots]
        known = view_id_keys(self.ids)
        wanted = np.frombuffer(b"".join(snapshots), known.dtype)
        rows = np.minimum(known.searchsorted(wanted), len(known) - 1)
        listed = (known[rows] == wanted).tolist()
        return [row if found else None for row, found in zip(rows.tolist(), listed, strict=True)]

    def find(self, snapshot: SnapshotId) -> SnapshotInfo | None:
        """Return the entry of a snapshot; None if it is not listed."""
        row = self.row(snapshot)
        return None if row is None else self[row]

    def id_at(self, row: int) -> SnapshotId:
        """Return the snapshot id in a row of the list."""
        return SnapshotId(self.ids[row].tobytes())

    def with_entry(self, info: SnapshotInfo) -> SnapshotInfos:
        """Return a copy of the snapshot list with one more snapshot, whose parent must be listed."""
        parent = NO_PARENT if info.parent_id is None else self.row(info.parent_id)
        if parent is None:
            self._refuse(f"{info.parent_id}, the parent of {info.id}, is not listed")
        row = find_id_row(self.ids, info.id)
        if row < len(self) and self.id_at(row) == info.id:
            raise FormatError(
                f"{self._place}: {info.id} already exists", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID
            )
        # An existing parent cannot be a descendant, so the ancestry needs no new check.
        added = object.__new__(SnapshotInfos)
        added._place = self._place
        added._records = self._records.insert(row, make_info_row(info, parent))
        added.ids = np.concatenate((self.ids[:row], np.frombuffer(info.id, np.uint8)[None], self.ids[row:]))
        parents = np.concatenate((self.parents[:row], np.array([parent], np.int32), self.parents[row:]))
        parents[parents >= row] += 1
        added.parents = parents
        added._parent_positions = None
        if self._parent_positions is not None:
            new = np.array([added._records.blocks.number_position(row, _PARENT_SLOT)], np.int64)
            added._parent_positions = put_rows(self._parent_positions, [row], [False], new)
        return added

    def ancestry(self, snapshot: SnapshotId) -> list[int]:
        """Return the rows of a snapshot and all its ancestors, newest first."""
        row = self.row(snapshot)
        if row is None:
            return []
        parents = self.parents.tolist()
        rows: list[int] = []
        add = rows.append  # histories have thousands of snapshots
        while row != NO_PARENT:
            add(row)
            row = parents[row]
        return rows

    def walk(self, snapshot: SnapshotId) -> Iterator[int]:
        """Yield the rows of a snapshot and its ancestors, newest first. Each of the first rows costs O(1)."""
        row = self.row(snapshot)
        while row is not None and row != NO_PARENT:
            yield row
            row = int(self.parents[row])

    def mark_ancestry(self, tips: Iterable[SnapshotId]) -> NDArray[np.bool_]:
        """Return a mask of the rows of some snapshots and all their ancestors."""
        parents, seen = self.parents.tolist(), [False] * len(self)
        for tip in tips:
            row = self.row(tip)
            while row is not None and row != NO_PARENT and not seen[row]:
                seen[row] = True
                row = parents[row]
        return np.array(seen, np.bool_)

    def __getitem__(self, row: int) -> SnapshotInfo:
        return self._make_info(row, self._records.row(row))

    def _make_info(self, row: int, values: Row) -> SnapshotInfo:
        id, parent = SnapshotId(values["id"]), int(self.parents[row])
        return SnapshotInfo(
            id=id,
            parent_id=None if parent == NO_PARENT else self.id_at(parent),
            flushed_at_us=values["flushed_at"],
            message=values["message"],
            metadata=read_metadata(values["metadata"] or (), V2, f"{self._place}: snapshot {id}"),
            pruned_ancestor_tx_logs=tuple(map(SnapshotId, values["pruned_ancestor_tx_logs"] or ())),
        )


def make_info_row(info: SnapshotInfo, parent: int) -> Row:
    """Encode a repo info entry as a row of a `SnapshotInfo` table, given the row of its parent."""
    return {
        "id": info.id,
        "parent_offset": parent,
        "flushed_at": info.flushed_at_us,
        "message": info.message,
        "metadata": make_metadata_rows(info.metadata, V2),
        "pruned_ancestor_tx_logs": info.pruned_ancestor_tx_logs or None,
    }


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The repo info, the only mutable object of a V2 repository. Each change creates a new value, which is
    written conditionally.
    """

    snapshots: SnapshotInfos
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    status: RepoStatus
    latest_updates: Updates
    """The newest part of the ops log, newest entry first. The newest entry has no backup yet."""
    repo_before_updates: str | None = None
    """The file below `overwritten/` that contains older ops log entries."""
    metadata: Metadata = field(default_factory=dict)
    config: bytes | None = None
    """The stored configuration, encoded as FlexBuffers; None for the default configuration."""
    enabled_feature_flags: tuple[int, ...] | None = None
    disabled_feature_flags: tuple[int, ...] | None = None
    extra: bytes | None = None
