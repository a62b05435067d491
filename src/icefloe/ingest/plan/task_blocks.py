"""Choose the block shape of tasks: whole chunks or shards that need the fewest repeated reads of source
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zarr

READ_COPIES = 3
"""The memory needed per chunk to read, as a multiple of its size: the stored chunk, the decoded chunk, and
memory that the allocator retains.
"""
WRITE_COPIES = 3
"""The memory needed per chunk to write, as a multiple of its size: a copy of its cells, the codec's buffer,
and the encoded chunk.
"""
_MAX_AT_ONCE = 16
"""The maximum number of chunks to process concurrently. At a latency of 20 ms, 200 chunks take 4.0 s with a
concurrency of 2, and 0.9 s with 16.
"""

Column = npt.NDArray[np.int64]

_MAX_CANDIDATES = 100_000
"""The maximum number of block shapes to compare."""
_PREFERRED_BYTES = 16 << 20
"""The preferred block size in bytes among shapes that need the same number of reads. Every block has a fixed
cost.
"""


@dataclass(frozen=True, slots=True)
class UnitGrid:
    """A grid of units that are read or written as a whole: chunks or shards. Tasks process blocks
    of units.
    """

    shape: tuple[int, ...]
    """The array shape."""
    unit: tuple[int, ...]
    itemsize: int

    @property
    def unit_bytes(self) -> int:
        """The size of one unit in bytes. It may exceed the array size, because units are always encoded
        completely.
        """
        return math.prod(self.unit) * self.itemsize

    @property
    def nbytes(self) -> int:
        """The uncompressed size in bytes of the array that is divided into units."""
        return math.prod(self.shape) * self.itemsize

    @property
    def units(self) -> int:
        """The number of units in the array."""
        parts = zip(self.shape, self.unit, strict=True)
        return math.prod(-(-size // unit) for size, unit in parts)

    def count_block_bytes(self, block: Sequence[int]) -> int:
        """Return the size in bytes of the largest block with the given shape."""
        return math.prod(map(min, block, self.shape)) * self.itemsize


def compute_read_factor(read: UnitGrid, block: Sequence[int]) -> float:
    """Return how many times each unit is read on average if tasks process blocks of the given shape."""
    return count_overlaps(read.shape, read.unit, block) / read.units if read.units else 1.0


def count_overlaps(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> int:
    """Divide an array into blocks of two different shapes, and count the pairs of blocks that overlap."""
    axes = zip(shape, one, other, strict=True)
    return math.prod(int(_count_segments(size, a, np.array([b]))[0]) for size, a, b in axes)


def choose_block(
    grain: UnitGrid, other: Sequence[int], budget_bytes: int, common: tuple[Sequence[int], int] | None = None
) -> tuple[int, ...] | None:
    """Choose a block shape that fits into a task's memory and overlaps the fewest blocks of another shape.

    Return None if no shape fits. Among shapes with equally few overlaps, sizes close to 16 MiB are preferred.
    `common` is a shape, and the maximum size in bytes of the overlap between the block and a block of that
    shape.
    """
    if not grain.shape:
        return () if grain.itemsize <= budget_bytes else None
    dims = len(grain.shape)
    tried = max(2, int(_MAX_CANDIDATES ** (1 / dims)))
    extents, costs = [], []
    for size, unit, cut in zip(grain.shape, grain.unit, other, strict=True):
        mine = _list_counts(-(-size // unit), math.lcm(unit, cut) // unit, tried) * unit
        extents.append(mine)
        costs.append(_count_segments(size, cut, mine).astype(float))
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
    discomfort = np.abs(np.log(np.maximum(sizes, 1) / _PREFERRED_BYTES))
    found = np.lexsort((-boxes[:, -1], discomfort, cost))[0]
    return tuple(boxes[found].tolist())


def _count_segments(size: int, one: int, others: Column) -> Column:
    """Divide a dimension into intervals of two different lengths, and count the pairs of intervals that
    overlap.
    """
    both: Column = np.lcm(np.int64(one), others)
    found: Column = -(-size // one) + -(-size // others) - -(-size // both)
    return found


def _list_counts(units: int, even: int, most: int) -> Column:
    """List candidates for the number of units per block along a dimension.

    If there are too many candidates, return only those that change the number of blocks, and multiples of
    `even`, for which block boundaries coincide with those of the other shape.
    """
    units = max(1, units)
    if units <= most:
        return np.arange(1, units + 1)
    blocks = np.unique(np.geomspace(1, units, most // 2).round().astype(np.int64))
    multiples = np.unique(np.geomspace(1, max(1, units // even), most // 2).round().astype(np.int64)) * even
    return np.unique(np.concatenate([-(-units // blocks), multiples[multiples <= units]]))


def count_concurrent_chunks(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Return how many chunks a task may process concurrently: as many as fit into a quarter of its memory,
    and at least one.
    """
    return max(1, min(_MAX_AT_ONCE, memory_bytes // 4 // max(1, copies * unit_bytes)))


def estimate_chunk_memory(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Estimate the memory in bytes for the chunks that a task processes concurrently."""
    return count_concurrent_chunks(unit_bytes, copies, memory_bytes) * copies * unit_bytes


def compute_part_bytes(memory_bytes: int) -> int:
    """Return how many bytes of a file a task may read at once, so that all copies fit into a quarter of its
    memory.
    """
    return max(1, memory_bytes // 4 // READ_COPIES)


@contextmanager
def limit_concurrency(count: int) -> Iterator[None]:
    """Limit the number of chunks that zarr processes concurrently in this process."""
    with zarr.config.set({"async.concurrency": count}):
        yield
