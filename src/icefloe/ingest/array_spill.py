"""Spill an array to temporary objects in one block shape, and read it back in another.

When daily maps become time series, every new chunk needs a part of every old chunk. If each task read the old
chunks that it needs, each old chunk would be decoded many times. Instead, a first pass reads every old chunk
once and stores it as plain bytes, split at the boundaries of the new blocks. A second pass assembles the new
blocks from these pieces with range reads.

Spilled data is stored in chunk objects that no snapshot references. They are deleted at the end of the job,
even if it fails. A killed job leaves its objects behind, and `garbage_collect` deletes them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from icefloe._internal.ids import ChunkId
from icefloe.format.files import CHUNKS
from icefloe.ingest.combine.pieces import Column
from icefloe.storage.base import ObjectKind, Storage

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ArraySpill:
    """The spill layout of one array in an ingest or rechunk. Block numbers determine the object names."""

    name: str
    dtype: str
    rows: tuple[Column, ...]
    """The boundaries, along each dimension, of the blocks that the first pass reads and spills."""
    columns: tuple[Column, ...]
    """The boundaries, along each dimension, of the blocks that the second pass writes. A piece is the
    intersection of a spilled block with a written block.
    """
    together: int
    """The number of pieces of a spilled block that are stored in one object."""
    seed: str
    """A component of the object names that is unique to a run, but the same for all attempts of a task."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of blocks along each dimension of a spilled array."""
        return tuple(len(edges) - 1 for edges in self.rows)

    @property
    def blocks(self) -> int:
        """The total number of blocks in a spilled array."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The size in bytes of one cell of a spilled array."""
        return np.dtype(self.dtype).itemsize

    def get_block(self, number: int) -> SpilledBlock:
        """Return a block of a spilled array by its number."""
        index = np.unravel_index(number, self.shape)
        box = tuple((int(edges[i]), int(edges[i + 1])) for edges, i in zip(self.rows, index, strict=True))
        cuts = tuple(_list_cuts(edges, span) for edges, span in zip(self.columns, box, strict=True))
        return SpilledBlock(box, cuts)

    def make_path(self, number: int, part: int) -> str:
        """Return the path of the object that contains some pieces of a spilled block."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{number}/{part}".encode()).digest()
        return f"{CHUNKS}/{ChunkId(digest[: ChunkId.SIZE])}"

    def list_paths(self) -> Iterator[str]:
        """Yield the paths of all objects that contain the spilled array."""
        for number in range(self.blocks):
            yield from (
                self.make_path(number, part)
                for part in range(-(-self.get_block(number).pieces // self.together))
            )


@dataclass(frozen=True, slots=True)
class SpilledBlock:
    """A block of a spilled array, and the boundaries at which it is split into pieces."""

    box: tuple[Span, ...]
    cuts: tuple[tuple[int, ...], ...]
    """The boundaries along each dimension, including both ends of the block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of pieces along each dimension of a spilled block."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

    @property
    def pieces(self) -> int:
        """The total number of pieces in a spilled block."""
        return math.prod(self.shape)

    def get_piece(self, number: int) -> tuple[Span, ...]:
        """Return the box that a piece of a spilled block covers, by piece number."""
        index = np.unravel_index(number, self.shape)
        return tuple((cuts[i], cuts[i + 1]) for cuts, i in zip(self.cuts, index, strict=True))

    def find_piece(self, piece: Sequence[Span]) -> int:
        """Return the number of the piece that covers a box of a spilled block."""
        index = [cuts.index(start) for cuts, (start, _) in zip(self.cuts, piece, strict=True)]
        return int(np.ravel_multi_index(index, self.shape))

    def count_cells_before(self, piece: Sequence[Span]) -> int:
        """Count the cells in all pieces of a spilled block that are stored before the given piece.

        Pieces are stored in C order, without gaps.
        """
        lengths = [stop - start for start, stop in self.box]
        own = [stop - start for start, stop in piece]
        return sum(
            math.prod(own[:axis]) * (piece[axis][0] - self.box[axis][0]) * math.prod(lengths[axis + 1 :])
            for axis in range(len(self.box))
        )


def _list_cuts(edges: Column, span: Span) -> tuple[int, ...]:
    """Return the start and the end of an interval, and all boundaries between them."""
    return (span[0], *edges[(edges > span[0]) & (edges < span[1])].tolist(), span[1])


def spill_block(spill: ArraySpill, number: int, values: Any, storage: Storage) -> None:
    """Spill a block of an array: write its pieces to storage."""
    row = spill.get_block(number)
    for part, first in enumerate(range(0, row.pieces, spill.together)):
        boxes = [row.get_piece(each) for each in range(first, min(first + spill.together, row.pieces))]
        buffer = np.empty(sum(map(_count_cells, boxes)), spill.dtype)
        filled = 0
        for box in boxes:
            place = buffer[filled : filled + _count_cells(box)].reshape([stop - start for start, stop in box])
            place[...] = values[_make_key(box, row.box)]
            filled += place.size
        data: Any = buffer.view("u1")
        storage.put(spill.make_path(number, part), memoryview(data), kind=ObjectKind.CHUNK)
        del buffer, data, place  # free the buffer before the next one is allocated


def read_block(spill: ArraySpill, box: Sequence[Span], storage: Storage) -> Any:
    """Read a block of an array by assembling the spilled pieces that it overlaps."""
    values = np.empty([stop - start for start, stop in box], spill.dtype)
    touched = [_find_touched(edges, span) for edges, span in zip(spill.rows, box, strict=True)]
    for index in product(*touched):
        number = int(np.ravel_multi_index(index, spill.shape))
        row = spill.get_block(number)
        piece = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, row.box, strict=True)]
        part = row.find_piece(piece) // spill.together
        begin = row.count_cells_before(piece) - row.count_cells_before(row.get_piece(part * spill.together))
        start, stop = begin * spill.itemsize, (begin + _count_cells(piece)) * spill.itemsize
        data = storage.get_range(spill.make_path(number, part), start, stop)
        values[_make_key(piece, box)] = np.frombuffer(data, spill.dtype).reshape([b - a for a, b in piece])
    return values


def delete_spills(spills: Iterable[ArraySpill], storage: Storage) -> None:
    """Delete the objects of spilled arrays. Any objects that remain after a crash are garbage."""
    storage.delete(path for spill in spills for path in spill.list_paths())


def _count_cells(box: Sequence[Span]) -> int:
    return math.prod(stop - start for start, stop in box)


def _make_key(inner: Sequence[Span], outer: Sequence[Span]) -> tuple[slice, ...]:
    """Return the slices that select an inner box from the array of an outer box."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inner, outer, strict=True))


def _find_touched(edges: Column, span: Span) -> range:
    """Return the indices of the intervals that overlap a range."""
    first = int(edges.searchsorted(span[0], "right")) - 1
    return range(first, int(edges.searchsorted(span[1], "left")))
