"""Transaction logs: the nodes and chunks that a commit changed, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import make_component_key
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import find_id, is_member, sort_ids

NodeIds = NDArray[np.uint8]
"""(n, 8), sorted and unique."""

LISTS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)


class NodeType(IntEnum):
    """The type of a moved node."""

    GROUP = 0
    ARRAY = 1


@dataclass(frozen=True, slots=True)
class MoveOperation:
    """A node that was moved."""

    from_path: str
    to_path: str
    node_id: NodeId
    node_type: NodeType


@dataclass(frozen=True, slots=True, eq=False)
class UpdatedChunks:
    """The sorted coordinates of chunks that were written or deleted, by array in ascending order of node ids.

    An array whose rank changed in the commit has one list per rank, one after the other.
    """

    node_ids: NodeIds
    counts: NDArray[np.int64]
    """The number of chunks of each array."""
    ranks: NDArray[np.int64]
    """The number of coordinates per chunk of each array."""
    numbers: NDArray[np.uint32]
    """All coordinates, one after the other."""

    @staticmethod
    def of(chunks: Mapping[NodeId, ArrayLike]) -> UpdatedChunks:
        """Create from (n, dimensions) coordinates per array, in any order."""
        return UpdatedChunks.of_lists(
            [(node, np.asarray(coords, np.uint32)) for node, coords in chunks.items()]
        )

    @staticmethod
    def of_lists(lists: Sequence[tuple[NodeId, Coords]]) -> UpdatedChunks:
        """Create from lists of coordinates, several of which may belong to one array."""
        if not lists:
            return _NO_CHUNKS
        if len(lists) == 1:
            ((node, coords),) = lists
            return UpdatedChunks._make_of_one(node, coordinates.keep_last_of_equal(coords)[0])
        joined: dict[tuple[NodeId, int], list[Coords]] = {}
        for node, coords in lists:
            joined.setdefault((node, coords.shape[1]), []).append(coords)
        empty = {node for node, _ in joined} - {
            node for (node, _), parts in joined.items() if any(map(len, parts))
        }
        keys = sorted(key for key, parts in joined.items() if any(map(len, parts)) or key[0] in empty)
        columns = [coordinates.keep_last_of_equal(_join(joined[key]))[0] for key in keys]
        return UpdatedChunks(
            np.frombuffer(b"".join(node for node, _ in keys), np.uint8).reshape(-1, 8),
            np.array([len(column) for column in columns], np.int64),
            np.array([column.shape[1] for column in columns], np.int64),
            np.concatenate([column.reshape(-1) for column in columns] or [np.zeros(0, np.uint32)]),
        )

    @staticmethod
    def _make_of_one(node: NodeId, coords: Coords) -> UpdatedChunks:
        count, rank = coords.shape
        return UpdatedChunks(
            np.frombuffer(node, np.uint8).reshape(1, -1),
            np.array([count], np.int64),
            np.array([rank], np.int64),
            coords.reshape(-1),
        )

    def __len__(self) -> int:
        return len(self.node_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UpdatedChunks):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("node_ids", "counts", "numbers")
        )

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[tuple[NodeId, Coords]]:
        start = 0
        for row, (count, rank) in enumerate(zip(self.counts.tolist(), self.ranks.tolist(), strict=True)):
            yield (
                NodeId(self.node_ids[row].tobytes()),
                self.numbers[start : start + count * rank].reshape(count, rank),
            )
            start += count * rank

    def find(self, node: NodeId) -> Coords | None:
        """Return the coordinates of one array; None if the commit changed none of its chunks."""
        row = find_id(self.node_ids, node)
        if row is None:
            return None
        start = int((self.counts[:row] * self.ranks[:row]).sum())
        count, rank = int(self.counts[row]), int(self.ranks[row])
        return self.numbers[start : start + count * rank].reshape(count, rank)


def _join(parts: list[Coords]) -> Coords:
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


_NO_IDS: Final = np.zeros((0, NodeId.SIZE), np.uint8)
_NO_CHUNKS: Final = UpdatedChunks(
    _NO_IDS, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32)
)


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """The changes of one commit.

    Official writers may list a node of an amended commit as new and also as updated or deleted.
    """

    id: SnapshotId
    """The id of the snapshot of the commit."""
    new_groups: NodeIds
    new_arrays: NodeIds
    deleted_groups: NodeIds
    deleted_arrays: NodeIds
    updated_arrays: NodeIds
    updated_groups: NodeIds
    updated_chunks: UpdatedChunks
    moved_nodes: tuple[MoveOperation, ...] = ()
    """Sorted by destination, segment by segment."""
    extra: bytes | None = None

    @staticmethod
    def of(
        id: SnapshotId,
        updated_chunks: Mapping[NodeId, ArrayLike] | UpdatedChunks | None = None,
        moved_nodes: Iterable[MoveOperation] = (),
        extra: bytes | None = None,
        **lists: Sequence[NodeId],
    ) -> TransactionLog:
        """Create a log from single ids, in any order.

        A node that is created and deleted in one commit is in no list, a new node only in the list of new
        nodes, a deleted node only in the list of deleted nodes (spec, TransactionLog).
        """
        chunks = (
            updated_chunks
            if isinstance(updated_chunks, UpdatedChunks)
            else UpdatedChunks.of(updated_chunks or {})
        )
        columns: dict[str, Any] = {name: make_id_column(lists.pop(name, ())) for name in LISTS}
        if lists:
            raise TypeError(f"a transaction log has no list {', '.join(lists)}; lists are {', '.join(LISTS)}")
        for kind in ("groups", "arrays"):
            _separate_ids(columns, f"new_{kind}", f"deleted_{kind}", f"updated_{kind}")
        return TransactionLog(
            id, updated_chunks=chunks, moved_nodes=sort_moves(moved_nodes), extra=extra, **columns
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TransactionLog):
            return NotImplemented
        return (self.id, self.updated_chunks, self.moved_nodes, self.extra) == (
            other.id,
            other.updated_chunks,
            other.moved_nodes,
            other.extra,
        ) and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in LISTS)

    __hash__ = None  # type: ignore[assignment]


def _separate_ids(columns: dict[str, Any], new: str, deleted: str, updated: str) -> None:
    """Keep each id in at most one of the three lists."""
    born, dead, touched = columns[new], columns[deleted], columns[updated]
    if not len(born) and not len(dead):
        return
    columns[new] = born[~is_member(born, dead)]
    columns[deleted] = dead[~is_member(dead, born)]
    columns[updated] = touched[~is_member(touched, born) & ~is_member(touched, dead)]


def make_id_column(ids: Sequence[NodeId]) -> NodeIds:
    """Return ids as a sorted column."""
    if not ids:
        return _NO_IDS
    return sort_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, NodeId.SIZE))


def sort_moves(moves: Iterable[MoveOperation]) -> tuple[MoveOperation, ...]:
    """Sort moves in the order of the specification."""
    return tuple(sorted(moves, key=lambda move: make_component_key(move.to_path)))
