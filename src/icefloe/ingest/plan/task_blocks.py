"""Choose the block shape of tasks: whole chunks or shards, such that source chunks are read as rarely as
possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zarr

READ_COPIES = 3
"""The memory for each chunk to read, in chunk sizes: the stored chunk, the decoded chunk, and memory that the
allocator retains."""
WRITE_COPIES = 3
"""The memory for each chunk to write, in chunk sizes: a copy of its cells, the codec's buffer, and the
encoded chunk."""
_MAX_AT_ONCE = 16
"""The maximum number of chunks that are processed concurrently. At a latency of 20 ms, 200 chunks take 4.0 s
with a concurrency of 2, and 0.9 s with 16."""

Column = npt.NDArray[np.int64]

_MAX_CANDIDATES = 100_000
"""The maximum number of block shapes to compare."""
_PREFERRED_BYTES = 16 << 20
"""The preferred block size among shapes that cause the same number of reads, because every block has a fixed
cost."""


@dataclass(frozen=True, slots=True)
class UnitGrid:
    """A grid of units, chunks or shards that are read or written as a whole, from which the blocks of tasks
    are composed.
    """

    shape: tuple[int, ...]
    """The shape of the array."""
    unit: tuple[int, ...]
    itemsize: int

    @property
    def unit_bytes(self) -> int:
        """The size of a unit of a task's blocks in bytes, even if it is larger than the array, because all of
        it is encoded.
        """
        return math.prod(self.unit) * self.itemsize

    @property
    def nbytes(self) -> int:
        """The size in bytes of the array that is divided into blocks for tasks, without compression."""
        return math.prod(self.shape) * self.itemsize

    @property
    def units(self) -> int:
        """The number of units in the array that is divided into blocks for tasks."""
        parts = zip(self.shape, self.unit, strict=True)
        return math.prod(-(-size // unit) for size, unit in parts)

    def count_block_bytes(self, block: Sequence[int]) -> int:
        """Return the size in bytes of the largest block of a task with the given shape."""
        return math.prod(map(min, block, self.shape)) * self.itemsize


def compute_read_factor(read: UnitGrid, block: Sequence[int]) -> float:
    """Return how many times each unit is read, on average, if tasks process blocks of the given shape."""
    return count_overlaps(read.shape, read.unit, block) / read.units if read.units else 1.0


def count_overlaps(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> int:
    """Count the overlapping pairs of blocks if the tasks divide an array into blocks of one shape, and of
    another shape.
    """
    axes = zip(shape, one, other, strict=True)
    return math.prod(int(_count_segments(size, a, np.array([b]))[0]) for size, a, b in axes)


def choose_block(
    grain: UnitGrid, other: Sequence[int], budget_bytes: int, common: tuple[Sequence[int], int] | None = None
) -> tuple[int, ...] | None:
    """Choose a block shape that fits into the memory of a task and overlaps the fewest blocks of another
    shape.

    Return None if no shape fits. Among shapes with equally few overlaps, sizes close to 16 MiB are preferred.
    `common` is a shape, and the maximum number of bytes that the block and a block of that shape may share.
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
    """Count the overlapping pairs of intervals along a dimension that is divided into intervals of two
    lengths."""
    both: Column = np.lcm(np.int64(one), others)
    found: Column = -(-size // one) + -(-size // others) - -(-size // both)
    return found


def _list_counts(units: int, even: int, most: int) -> Column:
    """List candidates for the number of units per block along a dimension.

    If there are too many candidates, return those that change the number of blocks, and multiples of `even`,
    for which blocks begin at the borders of the other shape.
    """
    units = max(1, units)
    if units <= most:
        return np.arange(1, units + 1)
    blocks = np.unique(np.geomspace(1, units, most // 2).round().astype(np.int64))
    multiples = np.unique(np.geomspace(1, max(1, units // even), most // 2).round().astype(np.int64)) * even
    return np.unique(np.concatenate([-(-units // blocks), multiples[multiples <= units]]))


def count_concurrent_chunks(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Return how many chunks a task may process concurrently: as many as fit into about a quarter of its
    memory, but at least one."""
    return max(1, min(_MAX_AT_ONCE, memory_bytes // 4 // max(1, copies * unit_bytes)))


def estimate_chunk_memory(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """Estimate the memory in bytes that the concurrently processed chunks of a task take."""
    return count_concurrent_chunks(unit_bytes, copies, memory_bytes) * copies * unit_bytes


def compute_part_bytes(memory_bytes: int) -> int:
    """Return how many bytes of a file a task reads at once, so that all copies fit into a quarter of its
    memory."""
    return max(1, memory_bytes // 4 // READ_COPIES)


@contextmanager
def limit_concurrency(count: int) -> Iterator[None]:
    """Limit the number of chunks that zarr processes concurrently in tasks of this process."""
    with zarr.config.set({"async.concurrency": count}):
        yield
