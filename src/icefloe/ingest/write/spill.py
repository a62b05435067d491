"""Spill blocks of an array to storage, and read them back in another shape. See `icefloe.ingest.plan.spill`.

Spilled data is stored in chunk objects that no snapshot refers to. They are deleted when the job ends,
whether it succeeds or not. Objects of a killed job are garbage, which `garbage_collect` removes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from icefloe.ingest.plan.block_shapes import Column
from icefloe.ingest.plan.spill import ArraySpill, Span
from icefloe.storage.base import ObjectKind, Storage


def spill_block(spill: ArraySpill, number: int, values: Any, storage: Storage) -> None:
    """Write the pieces of a block, in the order of the blocks that will read them."""
    row = spill.row(number)
    for part, first in enumerate(range(0, row.pieces, spill.together)):
        boxes = [row.piece(each) for each in range(first, min(first + spill.together, row.pieces))]
        buffer = np.empty(sum(map(_cells, boxes)), spill.dtype)
        filled = 0
        for box in boxes:
            place = buffer[filled : filled + _cells(box)].reshape([stop - start for start, stop in box])
            place[...] = values[_key(box, row.box)]
            filled += place.size
        data: Any = buffer.view("u1")
        storage.put(spill.object(number, part), memoryview(data), kind=ObjectKind.CHUNK)
        del buffer, data, place  # before the next buffer is allocated


def read_block(spill: ArraySpill, box: Sequence[Span], storage: Storage) -> Any:
    """Assemble a block from the pieces of all spilled blocks that it overlaps."""
    values = np.empty([stop - start for start, stop in box], spill.dtype)
    touched = [_touched(edges, span) for edges, span in zip(spill.rows, box, strict=True)]
    for index in product(*touched):
        number = int(np.ravel_multi_index(index, spill.shape))
        row = spill.row(number)
        piece = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, row.box, strict=True)]
        part = row.number(piece) // spill.together
        begin = row.before(piece) - row.before(row.piece(part * spill.together))
        start, stop = begin * spill.itemsize, (begin + _cells(piece)) * spill.itemsize
        data = storage.get_range(spill.object(number, part), start, stop)
        values[_key(piece, box)] = np.frombuffer(data, spill.dtype).reshape([b - a for a, b in piece])
    return values


def delete_spills(spills: Iterable[ArraySpill], storage: Storage) -> None:
    """Delete the objects of spilled arrays. Objects that remain are garbage, which gc removes."""
    storage.delete(path for spill in spills for path in spill.objects())


def _cells(box: Sequence[Span]) -> int:
    return math.prod(stop - start for start, stop in box)


def _key(inner: Sequence[Span], outer: Sequence[Span]) -> tuple[slice, ...]:
    """Return the slices that select a box inside another one."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inner, outer, strict=True))


def _touched(edges: Column, span: Span) -> range:
    """Return the numbers of the intervals between edges that overlap a span."""
    first = int(edges.searchsorted(span[0], "right")) - 1
    return range(first, int(edges.searchsorted(span[1], "left")))
