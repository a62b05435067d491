"""Spill blocks of an array to storage, and read them back in blocks of another shape.

To turn maps into time series, every new chunk needs a part of every old one. If tasks read what their new
chunks need, each old chunk is decoded many times. So a first pass reads blocks of old chunks, each once, and
stores them as plain bytes, split at the borders of the new blocks; a second pass reads its pieces as byte
ranges.

Spilled data is stored in chunk objects that no snapshot refers to. They are deleted when the job ends,
whether it succeeds or not. Objects of a killed job are garbage, which `garbage_collect` removes.
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
    """The layout of one spilled array. Object names follow from numbers, so tasks exchange no messages."""

    name: str
    dtype: str
    rows: tuple[Column, ...]
    """Edges of the blocks that are read, along each dimension."""
    columns: tuple[Column, ...]
    """Edges of the blocks that are written. A piece is the intersection of two blocks."""
    together: int
    """The number of pieces of a block that share an object."""
    seed: str
    """Part of the object names: different in each run, equal if a task runs twice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of blocks to read along each dimension."""
        return tuple(len(edges) - 1 for edges in self.rows)

    @property
    def blocks(self) -> int:
        """The number of blocks to read."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per cell."""
        return np.dtype(self.dtype).itemsize

    def get_row(self, number: int) -> Row:
        """Return a block to read."""
        index = np.unravel_index(number, self.shape)
        box = tuple((int(edges[i]), int(edges[i + 1])) for edges, i in zip(self.rows, index, strict=True))
        cuts = tuple(_list_cuts(edges, span) for edges, span in zip(self.columns, box, strict=True))
        return Row(box, cuts)

    def make_path(self, number: int, part: int) -> str:
        """Return the path of the object with some pieces of a block."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{number}/{part}".encode()).digest()
        return f"{CHUNKS}/{ChunkId(digest[: ChunkId.SIZE])}"

    def list_paths(self) -> Iterator[str]:
        """Yield the paths of all objects."""
        for number in range(self.blocks):
            yield from (
                self.make_path(number, part)
                for part in range(-(-self.get_row(number).pieces // self.together))
            )


@dataclass(frozen=True, slots=True)
class Row:
    """A block to read, and the positions at which it is split into pieces."""

    box: tuple[Span, ...]
    cuts: tuple[tuple[int, ...], ...]
    """Positions along each dimension, including both ends of the block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of pieces along each dimension."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return math.prod(self.shape)

    def get_piece(self, number: int) -> tuple[Span, ...]:
        """Return the box of a piece."""
        index = np.unravel_index(number, self.shape)
        return tuple((cuts[i], cuts[i + 1]) for cuts, i in zip(self.cuts, index, strict=True))

    def find_piece(self, piece: Sequence[Span]) -> int:
        """Return the number of the piece with this box."""
        index = [cuts.index(start) for cuts, (start, _) in zip(self.cuts, piece, strict=True)]
        return int(np.ravel_multi_index(index, self.shape))

    def count_cells_before(self, piece: Sequence[Span]) -> int:
        """Count the cells in all earlier pieces. Pieces are stored in C order, without gaps."""
        lengths = [stop - start for start, stop in self.box]
        own = [stop - start for start, stop in piece]
        return sum(
            math.prod(own[:axis]) * (piece[axis][0] - self.box[axis][0]) * math.prod(lengths[axis + 1 :])
            for axis in range(len(self.box))
        )


def _list_cuts(edges: Column, span: Span) -> tuple[int, ...]:
    """Return both ends of an interval and the edges inside it."""
    return (span[0], *edges[(edges > span[0]) & (edges < span[1])].tolist(), span[1])


def spill_block(spill: ArraySpill, number: int, values: Any, storage: Storage) -> None:
    """Write the pieces of a block, in the order of the blocks that will read them."""
    row = spill.get_row(number)
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
        del buffer, data, place  # before the next buffer is allocated


def read_block(spill: ArraySpill, box: Sequence[Span], storage: Storage) -> Any:
    """Assemble a block from the pieces of all spilled blocks that it overlaps."""
    values = np.empty([stop - start for start, stop in box], spill.dtype)
    touched = [_find_touched(edges, span) for edges, span in zip(spill.rows, box, strict=True)]
    for index in product(*touched):
        number = int(np.ravel_multi_index(index, spill.shape))
        row = spill.get_row(number)
        piece = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, row.box, strict=True)]
        part = row.find_piece(piece) // spill.together
        begin = row.count_cells_before(piece) - row.count_cells_before(row.get_piece(part * spill.together))
        start, stop = begin * spill.itemsize, (begin + _count_cells(piece)) * spill.itemsize
        data = storage.get_range(spill.make_path(number, part), start, stop)
        values[_make_key(piece, box)] = np.frombuffer(data, spill.dtype).reshape([b - a for a, b in piece])
    return values


def delete_spills(spills: Iterable[ArraySpill], storage: Storage) -> None:
    """Delete the objects of spilled arrays. Objects that remain are garbage, which gc removes."""
    storage.delete(path for spill in spills for path in spill.list_paths())


def _count_cells(box: Sequence[Span]) -> int:
    return math.prod(stop - start for start, stop in box)


def _make_key(inner: Sequence[Span], outer: Sequence[Span]) -> tuple[slice, ...]:
    """Return the slices that select a box inside another one."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inner, outer, strict=True))


def _find_touched(edges: Column, span: Span) -> range:
    """Return the numbers of the intervals between edges that overlap a span."""
    first = int(edges.searchsorted(span[0], "right")) - 1
    return range(first, int(edges.searchsorted(span[1], "left")))
