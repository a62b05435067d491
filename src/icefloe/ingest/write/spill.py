"""A pass in between: an array is read in blocks of one shape, put aside, and taken up in blocks of another.

From maps to time series every new chunk needs a part of every old one. Blocks of new chunks that fit into
memory would have each old chunk decoded many times over. So blocks of old chunks are read, each once, and
laid down as plain bytes, cut as the new blocks are; those then take up their pieces, a range of each.

What is put aside are chunk objects that no snapshot refers to. They are deleted when the job ends, however it
ends; what a killed job leaves is garbage as any other, and `garbage_collect` of icefloe or icechunk finds it.
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
from icefloe.ingest.plan.block_shapes import Column
from icefloe.storage.base import ObjectKind, Storage

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One array on its way. Tasks find what others put aside by numbers alone: nobody has to tell them."""

    name: str
    dtype: str
    rows: tuple[Column, ...]
    """Where the blocks that are read begin along each dimension, and where the last one ends."""
    columns: tuple[Column, ...]
    """The same for those that are written. A piece is what two blocks have in common."""
    together: int
    """So many pieces of a block that is read are put into one object."""
    seed: str
    """Names of objects are made of it: another for each run, the same for a task that runs twice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many blocks are read along each dimension."""
        return tuple(len(edges) - 1 for edges in self.rows)

    @property
    def blocks(self) -> int:
        """How many blocks are read."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per cell."""
        return np.dtype(self.dtype).itemsize

    def row(self, number: int) -> Row:
        """A block that is read."""
        index = np.unravel_index(number, self.shape)
        box = tuple((int(edges[i]), int(edges[i + 1])) for edges, i in zip(self.rows, index, strict=True))
        cuts = tuple(_cuts(edges, span) for edges, span in zip(self.columns, box, strict=True))
        return Row(box, cuts)

    def object(self, number: int, part: int) -> str:
        """Where some pieces of a block that is read are put."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}/{number}/{part}".encode()).digest()
        return f"{CHUNKS}/{ChunkId(digest[: ChunkId.SIZE])}"

    def objects(self) -> Iterator[str]:
        """Where all of it is put."""
        for number in range(self.blocks):
            yield from (
                self.object(number, part) for part in range(-(-self.row(number).pieces // self.together))
            )


@dataclass(frozen=True, slots=True)
class Row:
    """A block that is read, and where it is cut along each dimension."""

    box: tuple[Span, ...]
    cuts: tuple[tuple[int, ...], ...]
    """With the ends of the block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many pieces there are along each dimension."""
        return tuple(len(cuts) - 1 for cuts in self.cuts)

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return math.prod(self.shape)

    def piece(self, number: int) -> tuple[Span, ...]:
        """The box of a piece."""
        index = np.unravel_index(number, self.shape)
        return tuple((cuts[i], cuts[i + 1]) for cuts, i in zip(self.cuts, index, strict=True))

    def number(self, piece: Sequence[Span]) -> int:
        """Which piece a box is."""
        index = [cuts.index(start) for cuts, (start, _) in zip(self.cuts, piece, strict=True)]
        return int(np.ravel_multi_index(index, self.shape))

    def before(self, piece: Sequence[Span]) -> int:
        """How many cells lie in the pieces before one."""
        lengths = [stop - start for start, stop in self.box]
        own = [stop - start for start, stop in piece]
        return sum(
            math.prod(own[:axis]) * (piece[axis][0] - self.box[axis][0]) * math.prod(lengths[axis + 1 :])
            for axis in range(len(self.box))
        )


def put_aside(exchange: Exchange, number: int, values: Any, storage: Storage) -> None:
    """Lay down a block that was read: its pieces one after the other, by the blocks they are for."""
    row = exchange.row(number)
    for part, first in enumerate(range(0, row.pieces, exchange.together)):
        boxes = [row.piece(each) for each in range(first, min(first + exchange.together, row.pieces))]
        buffer = np.empty(sum(map(_cells, boxes)), exchange.dtype)
        filled = 0
        for box in boxes:
            place = buffer[filled : filled + _cells(box)].reshape([stop - start for start, stop in box])
            place[...] = values[_key(box, row.box)]
            filled += place.size
        data: Any = buffer.view("u1")
        storage.put(exchange.object(number, part), memoryview(data), kind=ObjectKind.CHUNK)
        del buffer, data, place  # before the next one is made


def taken_up(exchange: Exchange, box: Sequence[Span], storage: Storage) -> Any:
    """The values of a block that is written, from what all those that were read have of it."""
    values = np.empty([stop - start for start, stop in box], exchange.dtype)
    touched = [_touched(edges, span) for edges, span in zip(exchange.rows, box, strict=True)]
    for index in product(*touched):
        number = int(np.ravel_multi_index(index, exchange.shape))
        row = exchange.row(number)
        piece = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, row.box, strict=True)]
        part = row.number(piece) // exchange.together
        begin = row.before(piece) - row.before(row.piece(part * exchange.together))
        start, stop = begin * exchange.itemsize, (begin + _cells(piece)) * exchange.itemsize
        data = storage.get_range(exchange.object(number, part), start, stop)
        values[_key(piece, box)] = np.frombuffer(data, exchange.dtype).reshape([b - a for a, b in piece])
    return values


def clear(exchanges: Iterable[Exchange], storage: Storage) -> None:
    """Delete all that was put aside. What cannot be deleted now is garbage, and found as such later."""
    storage.delete(path for exchange in exchanges for path in exchange.objects())


def _cells(box: Sequence[Span]) -> int:
    return math.prod(stop - start for start, stop in box)


def _key(inner: Sequence[Span], outer: Sequence[Span]) -> tuple[slice, ...]:
    """Where a box is in another one."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inner, outer, strict=True))


def _cuts(edges: Column, span: Span) -> tuple[int, ...]:
    """The ends of an interval, and the edges in it."""
    return (span[0], *edges[(edges > span[0]) & (edges < span[1])].tolist(), span[1])


def _touched(edges: Column, span: Span) -> range:
    """The numbers of the intervals between edges that have cells of another one."""
    first = int(edges.searchsorted(span[0], "right")) - 1
    return range(first, int(edges.searchsorted(span[1], "left")))
