"""Shapes of blocks: whole chunks or shards joined, so that what is cut in another way is read least often."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zarr

READ_COPIES = 3
"""A chunk as it is stored, decoded, and what the allocator keeps of the ones before."""
WRITE_COPIES = 3
"""A chunk cut out of its block, the room that a codec wants for it, and what comes out."""
_MOST_AT_ONCE = 16
"""Where they are small enough. Requests over 20 ms take 4.0 s for 200 chunks two at a time, 0.9 s so."""

Column = npt.NDArray[np.int64]

_TRIED = 100_000
"""Shapes that are compared at most."""
_COMFORT_BYTES = 16 << 20
"""Blocks are made larger up to this where it costs nothing: each has a price of its own."""


@dataclass(frozen=True, slots=True)
class Grain:
    """How an array is cut: the cells of a unit along each dimension, which is read or written whole."""

    shape: tuple[int, ...]
    """Of the array."""
    unit: tuple[int, ...]
    itemsize: int

    @property
    def unit_bytes(self) -> int:
        """What a unit takes; one that is larger than the array is encoded whole too."""
        return math.prod(self.unit) * self.itemsize

    @property
    def nbytes(self) -> int:
        """What all cells take."""
        return math.prod(self.shape) * self.itemsize

    @property
    def units(self) -> int:
        """How many units there are."""
        parts = zip(self.shape, self.unit, strict=True)
        return math.prod(-(-size // unit) for size, unit in parts)

    def block_bytes(self, block: Sequence[int]) -> int:
        """What a block of such a shape takes at most."""
        return math.prod(map(min, block, self.shape)) * self.itemsize


def read_factor(read: Grain, block: Sequence[int]) -> float:
    """Return how often blocks of this shape read a unit, on average."""
    return overlaps(read.shape, read.unit, block) / read.units if read.units else 1.0


def overlaps(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> int:
    """Count the pairs of boxes of two shapes that overlap."""
    axes = zip(shape, one, other, strict=True)
    return math.prod(int(_segments(size, a, np.array([b]))[0]) for size, a, b in axes)


def best_block(
    grain: Grain, other: Sequence[int], budget_bytes: int, common: tuple[Sequence[int], int] | None = None
) -> tuple[int, ...] | None:
    """The shape of blocks within a budget that meets the fewest boxes of another shape; None if none fits.

    Among equals larger ones win while they are small, and smaller ones after that. `common` is a shape with
    which blocks may have no more than some bytes in common.
    """
    if not grain.shape:
        return () if grain.itemsize <= budget_bytes else None
    dims = len(grain.shape)
    tried = max(2, int(_TRIED ** (1 / dims)))
    extents, costs = [], []
    for size, unit, cut in zip(grain.shape, grain.unit, other, strict=True):
        mine = _counts(-(-size // unit), math.lcm(unit, cut) // unit, tried) * unit
        extents.append(mine)
        costs.append(_segments(size, cut, mine).astype(float))
    boxes = np.stack(np.meshgrid(*extents, indexing="ij"), axis=-1).reshape(-1, dims)
    cost = costs[0]
    for each in costs[1:]:
        cost = np.multiply.outer(cost, each)
    sizes = np.minimum(boxes, grain.shape).prod(axis=1, dtype=float) * grain.itemsize
    allowed = sizes <= budget_bytes
    if common is not None:
        pieces = np.minimum(boxes, common[0]).prod(axis=1, dtype=float) * grain.itemsize
        allowed &= pieces <= common[1]
    fitting = np.flatnonzero(allowed)
    if not len(fitting):
        return None
    boxes, cost, sizes = boxes[fitting], cost.reshape(-1)[fitting], sizes[fitting]
    discomfort = np.abs(np.log(np.maximum(sizes, 1) / _COMFORT_BYTES))
    found = np.lexsort((-boxes[:, -1], discomfort, cost))[0]
    return tuple(boxes[found].tolist())


def _segments(size: int, one: int, others: Column) -> Column:
    """Count, along a dimension, the pairs of intervals of two lengths that overlap."""
    both: Column = np.lcm(np.int64(one), others)
    found: Column = -(-size // one) + -(-size // others) - -(-size // both)
    return found


def _counts(units: int, even: int, most: int) -> Column:
    """Numbers of units in a block: all, or some of those that give another number of blocks or come out even.

    Of `even` units blocks begin where the boxes of the other shape do.
    """
    units = max(1, units)
    if units <= most:
        return np.arange(1, units + 1)
    blocks = np.unique(np.geomspace(1, units, most // 2).round().astype(np.int64))
    multiples = np.unique(np.geomspace(1, max(1, units // even), most // 2).round().astype(np.int64)) * even
    return np.unique(np.concatenate([-(-units // blocks), multiples[multiples <= units]]))


def at_once(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Return how many chunks may be processed at once: about a quarter of the memory, at least one."""
    return max(1, min(_MOST_AT_ONCE, memory_bytes // 4 // max(1, copies * unit_bytes)))


def under_way(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Return the bytes that chunks in progress take."""
    return at_once(unit_bytes, copies, memory_bytes) * copies * unit_bytes


def part_bytes(memory_bytes: int) -> int:
    """Return how many bytes of a file are read at once: a quarter of the memory, with copies."""
    return max(1, memory_bytes // 4 // READ_COPIES)


@contextmanager
def chunks_at_once(count: int) -> Iterator[None]:
    """Let zarr have no more chunks under way than this; for all of the process, which is a task's own."""
    with zarr.config.set({"async.concurrency": count}):
        yield
