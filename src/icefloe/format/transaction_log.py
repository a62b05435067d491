"""Transaction logs: the nodes and chunks that a commit changed, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import make_component_key
from icefloe.format import coordinates
from icefloe.format.chunk_regions import BLOCK_CHUNKS, ChunkRegions
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import is_member, sort_ids

NodeIds = NDArray[np.uint8]
"""A column of node ids, of shape (n, 8), sorted and unique."""

LISTS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)


class NodeType(IntEnum):
    """The type of a moved node: group or array."""

    GROUP = 0
    ARRAY = 1


@dataclass(frozen=True, slots=True)
class MoveOperation:
    """The move of a node, as recorded in a transaction log."""

    from_path: str
    to_path: str
    node_id: NodeId
    node_type: NodeType


@dataclass(frozen=True, slots=True, eq=False)
class UpdatedChunks:
    """The written and deleted chunks in a transaction log, as sorted coordinates per array, ordered by node
    id.

    An array whose rank changed in the commit has one list per rank. A list may contain regions of the chunk
    grid instead of coordinates.
    """

    node_ids: NodeIds
    counts: NDArray[np.int64]
    """The number of changed chunks of each array."""
    ranks: NDArray[np.int64]
    """The number of dimensions of each array."""
    numbers: NDArray[np.uint32]
    """The coordinates of all arrays in one flat column, except for those stored in `regions`."""
    regions: Mapping[int, ChunkRegions] = field(default_factory=dict)
    """Chunk regions by row, for arrays whose coordinates are not listed."""

    @staticmethod
    def of(chunks: Mapping[NodeId, ArrayLike]) -> UpdatedChunks:
        """Create the changed chunks of a transaction log from unsorted (n, dimensions) coordinates per
        array.
        """
        return UpdatedChunks.of_lists(
            [(node, np.asarray(coords, np.uint32)) for node, coords in chunks.items()]
        )

    @staticmethod
    def of_lists(lists: Sequence[tuple[NodeId, Coords | ChunkRegions]]) -> UpdatedChunks:
        """Create the changed chunks of a transaction log from lists of coordinates or regions. An array may
        have several lists.
        """
        if not lists:
            return _NO_CHUNKS
        if len(lists) == 1 and not isinstance(only := lists[0][1], ChunkRegions):
            return UpdatedChunks._make_of_one(lists[0][0], coordinates.keep_last_of_equal(only)[0])
        joined: dict[tuple[NodeId, int], list[Coords | ChunkRegions]] = {}
        for node, chunks in lists:
            joined.setdefault((node, get_rank(chunks)), []).append(chunks)
        empty = {node for node, _ in joined} - {
            node for (node, _), parts in joined.items() if any(map(len, parts))
        }
        keys = sorted(key for key, parts in joined.items() if any(map(len, parts)) or key[0] in empty)
        columns = [join_chunks(joined[key], key[1]) for key in keys]
        listed = [column.reshape(-1) for column in columns if not isinstance(column, ChunkRegions)]
        return UpdatedChunks(
            np.frombuffer(b"".join(node for node, _ in keys), np.uint8).reshape(-1, 8),
            np.array([len(column) for column in columns], np.int64),
            np.array([rank for _, rank in keys], np.int64),
            np.concatenate(listed or [np.zeros(0, np.uint32)]),
            {row: column for row, column in enumerate(columns) if isinstance(column, ChunkRegions)},
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
        if not np.array_equal(self.node_ids, other.node_ids):
            return False
        if not np.array_equal(self.counts, other.counts):
            return False
        return all(
            np.array_equal(mine.reshape(-1), theirs.reshape(-1))
            for (_, mine), (_, theirs) in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def lists(self) -> Iterator[tuple[NodeId, Coords | ChunkRegions]]:
        """Yield each array with changed chunks in a transaction log, with its coordinates or regions."""
        start = 0
        for row, (count, rank) in enumerate(zip(self.counts.tolist(), self.ranks.tolist(), strict=True)):
            node = NodeId(self.node_ids[row].tobytes())
            if row in self.regions:
                yield node, self.regions[row]
                continue
            yield node, self.numbers[start : start + count * rank].reshape(count, rank)
            start += count * rank

    def __iter__(self) -> Iterator[tuple[NodeId, Coords]]:
        for node, chunks in self.lists():
            yield node, chunks.coords() if isinstance(chunks, ChunkRegions) else chunks


def get_rank(chunks: Coords | ChunkRegions) -> int:
    """Return the number of dimensions of a list of changed chunks."""
    return chunks.rank if isinstance(chunks, ChunkRegions) else chunks.shape[1]


def join_chunks(parts: Sequence[Coords | ChunkRegions], rank: int) -> Coords | ChunkRegions:
    """Join the changed chunks of one array from several logs, without duplicates. A small result is listed
    even if the chunks were given as regions.
    """
    if any(isinstance(part, ChunkRegions) for part in parts) and sum(map(len, parts)) > BLOCK_CHUNKS:
        return ChunkRegions(
            rank,
            tuple(
                region
                for part in parts
                for region in (
                    part.regions
                    if isinstance(part, ChunkRegions)
                    else (coordinates.keep_last_of_equal(part)[0],)
                )
                if len(region) or not rank
            ),
        )
    columns = [part.coords() if isinstance(part, ChunkRegions) else part for part in parts]
    return coordinates.keep_last_of_equal(np.concatenate(columns) if len(columns) > 1 else columns[0])[0]


_NO_IDS: Final = np.zeros((0, NodeId.SIZE), np.uint8)
_NO_CHUNKS: Final = UpdatedChunks(
    _NO_IDS, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32)
)


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """A transaction log: the changes of one commit.

    After an amend, official writers may list a node both as new and as updated or deleted.
    """

    id: SnapshotId
    """The id of the snapshot that the commit created."""
    new_groups: NodeIds
    new_arrays: NodeIds
    deleted_groups: NodeIds
    deleted_arrays: NodeIds
    updated_arrays: NodeIds
    updated_groups: NodeIds
    updated_chunks: UpdatedChunks
    moved_nodes: tuple[MoveOperation, ...] = ()
    """The moved nodes, sorted by the segments of their new paths."""
    extra: bytes | None = None

    @staticmethod
    def of(
        id: SnapshotId,
        updated_chunks: Mapping[NodeId, ArrayLike] | UpdatedChunks | None = None,
        moved_nodes: Iterable[MoveOperation] = (),
        extra: bytes | None = None,
        **lists: Sequence[NodeId],
    ) -> TransactionLog:
        """Create a transaction log from unsorted node ids.

        A node that was created and deleted in the same commit is not listed at all. New nodes are listed only
        as new, and deleted nodes only as deleted (spec, TransactionLog).
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
    """Remove ids so that each occurs in at most one of the lists of new, deleted and updated nodes."""
    born, dead, touched = columns[new], columns[deleted], columns[updated]
    if not len(born) and not len(dead):
        return
    columns[new] = born[~is_member(born, dead)]
    columns[deleted] = dead[~is_member(dead, born)]
    columns[updated] = touched[~is_member(touched, born) & ~is_member(touched, dead)]


def make_id_column(ids: Sequence[NodeId]) -> NodeIds:
    """Convert node ids to a sorted column for a transaction log."""
    if not ids:
        return _NO_IDS
    return sort_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, NodeId.SIZE))


def sort_moves(moves: Iterable[MoveOperation]) -> tuple[MoveOperation, ...]:
    """Sort the moves of a transaction log in the order that the specification requires."""
    return tuple(sorted(moves, key=lambda move: make_component_key(move.to_path)))
