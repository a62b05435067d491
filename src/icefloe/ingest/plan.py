"""Who writes what: blocks of whole chunks, small enough for a task, with the pieces of files in them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.pieces import EXISTING, Column, PieceArray, Pieces
from icefloe.ingest.targets import Target

DEFAULT_MEMORY_BYTES = 256 << 20
_TASK_BYTES = 256 << 20
"""What a task should have to do at most, if there are enough tasks."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box of an array that one task writes at once, and the pieces that make it."""

    name: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    pieces: Pieces
    """Within the block: they begin where they begin in it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each dimension."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """All blocks of all arrays, by array and place, and how they are dealt out."""

    blocks: tuple[Block, ...]
    tasks: tuple[range, ...]
    """The blocks of each task."""
    nbytes: int
    """Bytes of all blocks, as they are stored but not compressed."""
    memory_bytes: int
    """The largest block. A task holds one, and the piece of a file that goes into it: twice that at most."""
    read_factor: float
    """How often a chunk of a file is decoded, on average; 1 where blocks and files fit."""


def make_plan(
    targets: Sequence[Target],
    arrays: Mapping[str, PieceArray],
    source_chunks: Mapping[str, tuple[int, ...] | None],
    memory_bytes: int,
    parallelism: int,
    referred: Collection[tuple[int, str]] = (),
) -> Plan:
    """Blocks for all arrays that are not what they were, and tasks of about equal size.

    The variables of sources that are `referred` to need none: a chunk is all theirs, or not at all.
    """
    blocks: list[Block] = []
    weights: list[int] = []
    factors: list[tuple[float, int]] = []
    for target in targets:
        mine = [number for number, name in referred if name == target.name]
        shape = (
            target.unit
            if mine
            else block_shape(target, arrays[target.name], source_chunks.get(target.name), memory_bytes)
        )
        before = len(blocks)
        blocks += _changed(target, arrays[target.name], shape, mine)
        new = [math.prod(block.shape) * target.itemsize for block in blocks[before:]]
        weights += new
        factors.append((_read_factor(target, source_chunks.get(target.name), shape), sum(new)))
    total = sum(weights)
    factor = sum(each * size for each, size in factors) / total if total else 1.0
    return Plan(tuple(blocks), _dealt(weights, parallelism), total, max(weights, default=0), factor)


def block_shape(
    target: Target, array: PieceArray, source_chunk: tuple[int, ...] | None, memory_bytes: int
) -> tuple[int, ...]:
    """Whole chunks or shards, as many as memory holds, joined first where they cut the files' chunks."""
    unit = np.array(target.unit, np.int64)
    shape = np.array(target.shape, np.int64)
    size = math.prod(target.unit) * target.itemsize
    if math.prod(np.minimum(unit, np.maximum(shape, 1)).tolist()) * target.itemsize > memory_bytes:
        raise InvalidInputError(
            f"one chunk or shard of {target.name} takes {size} bytes, a task may use {memory_bytes}: choose "
            "smaller chunks or more memory per task",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    wanted = _source_extent(array, source_chunk)
    counts = np.ones_like(unit)
    while True:
        now = np.minimum(counts * unit, shape)
        left = [
            axis
            for axis in range(len(unit))
            if now[axis] < min(wanted[axis], shape[axis])
            and _bytes_with(counts, axis, unit, shape, target) <= memory_bytes
        ]
        if not left:
            return tuple((counts * unit).tolist())
        # The dimension in which a chunk of a file would be read most often.
        counts[max(left, key=lambda axis: (wanted[axis] / now[axis], axis))] += 1


def _bytes_with(counts: Column, axis: int, unit: Column, shape: Column, target: Target) -> int:
    more = counts.copy()
    more[axis] += 1
    return int(math.prod(np.minimum(more * unit, shape).tolist())) * target.itemsize


def _source_extent(array: PieceArray, source_chunk: tuple[int, ...] | None) -> Column:
    """What is decoded at once when a file is read: a chunk of it, or all of it."""
    files = array.pieces.source != EXISTING
    whole: Column = array.pieces.shape[files].max(axis=0, initial=1)
    if source_chunk is None or len(source_chunk) != array.ndim:
        return whole
    return np.minimum(whole, np.array(source_chunk, np.int64))


def _read_factor(target: Target, source_chunk: tuple[int, ...] | None, shape: tuple[int, ...]) -> float:
    if source_chunk is None or len(source_chunk) != len(shape):
        return 1.0
    parts = zip(source_chunk, shape, target.shape, strict=True)
    return math.prod(_reads(chunk, block, whole) for chunk, block, whole in parts)


def _reads(chunk: int, block: int, whole: int) -> float:
    """How many blocks a chunk lies in along a dimension, on average, if the first ones begin together."""
    starts = np.arange(0, whole, block)
    stops = np.minimum(starts + block, whole)
    touched = int((-(-stops // chunk) - starts // chunk).sum())
    return touched / max(1, -(-whole // chunk)) if whole else 1.0


def _changed(
    target: Target, array: PieceArray, shape: tuple[int, ...], referred: Sequence[int]
) -> Iterator[Block]:
    """The blocks of an array, without those that the repository has where they belong."""
    if math.prod(target.shape) == 0:
        return
    finder = _Finder(array.pieces)
    counts = [-(-size // extent) for size, extent in zip(target.shape, shape, strict=True)]
    for index in np.ndindex(*counts):
        start = np.array(index, np.int64) * shape
        stop = np.minimum(start + shape, target.shape)
        pieces = finder.within(start, stop)
        volume = int(pieces.shape.prod(axis=1).sum()) if target.shape else len(pieces)
        if volume != math.prod((stop - start).tolist()):
            raise InvalidInputError(
                f"no file has the values of {target.name} from {start.tolist()} to {stop.tolist()}",
                ErrorKind.INVALID_ARRAY_METADATA,
            )
        if len(referred) and np.isin(pieces.source, referred).all():
            continue
        if target.is_new or not _unmoved(pieces, start):
            yield Block(target.name, tuple(start.tolist()), tuple(stop.tolist()), pieces)


class _Finder:
    """Finds the pieces in a box, by binary search along the dimension that has most of them."""

    def __init__(self, pieces: Pieces) -> None:
        distinct = [len(np.unique(column)) for column in pieces.starts.T]
        self._axis = int(np.argmax(distinct)) if distinct else None
        if self._axis is not None:
            pieces = pieces.taken(np.argsort(pieces.starts[:, self._axis], kind="stable"))
            self._longest = int(pieces.shape[:, self._axis].max(initial=0))
        self._pieces = pieces

    def within(self, start: Column, stop: Column) -> Pieces:
        """What of the pieces lies in a box, counted from where it begins."""
        found = self._pieces
        if self._axis is not None:
            begins = found.starts[:, self._axis]
            first = begins.searchsorted(start[self._axis] - self._longest + 1)
            last = begins.searchsorted(stop[self._axis])
            found = found.taken(slice(int(first), int(last)))
        low, high = np.maximum(found.starts, start), np.minimum(found.stops, stop)
        rows = (low < high).all(axis=1)
        inside = found.taken(rows)
        low, high = low[rows], high[rows]
        moved = np.where(inside.axes >= 0, inside.source_starts + low - inside.starts, 0)
        return replace(inside, starts=low - start, shape=high - low, source_starts=moved)


def _unmoved(pieces: Pieces, start: Column) -> bool:
    """Whether all of a block is in the repository already, at its place."""
    if not (pieces.source == EXISTING).all():
        return False
    return bool((pieces.source_starts == pieces.starts + start).all())


def _dealt(weights: Sequence[int], parallelism: int) -> tuple[range, ...]:
    """Neighbours in one task: enough tasks for all cores, and not many more."""
    if not weights:
        return ()
    share = min(_TASK_BYTES, max(1, sum(weights) // max(1, 2 * parallelism)))
    tasks, begin, size = [], 0, 0
    for number, weight in enumerate(weights):
        if size and size + weight > share:
            tasks.append(range(begin, number))
            begin, size = number, 0
        size += weight
    tasks.append(range(begin, len(weights)))
    return tuple(tasks)
