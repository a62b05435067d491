"""Plan the tasks: divide arrays into blocks of whole chunks that fit into memory, and find the source of
every cell.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.array_spill import ArraySpill
from icefloe.ingest.combine.pieces import EXISTING, Column, PieceArray, Pieces
from icefloe.ingest.plan.task_blocks import (
    READ_COPIES,
    WRITE_COPIES,
    UnitGrid,
    choose_block,
    compute_part_bytes,
    compute_read_factor,
    count_overlaps,
    estimate_chunk_memory,
)
from icefloe.ingest.records import Target

_TASK_BYTES = 256 << 20
"""The maximum amount of data in bytes per task, if there are enough tasks for all cores."""
_OBJECT_BYTES = 16 << 20
"""The target size of spill objects in bytes. Small pieces share an object."""
_SPILL_COST = 2.0
"""The cost of spilling a byte and reading it back, relative to decoding a byte, measured on a local disk."""
_REQUEST_BYTES = 128 << 10
"""The number of bytes that can be decoded in the time of one storage request."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box of an array that a task writes at once, with the source pieces that fill it."""

    name: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    pieces: Pieces
    """The source pieces, with positions relative to the block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The start and the stop of the block along each dimension."""
        return tuple(zip(self.start, self.stop, strict=True))


@dataclass(frozen=True, slots=True)
class SourceCut:
    """The chunk shape of a variable in its source, and whether tasks can read parts of a chunk."""

    unit: tuple[int, ...] | None = None
    """The chunk shape; None if any part of the variable can be read on its own."""
    partial: bool = False
    """True if the chunks are inner chunks of shards, which can be read individually."""
    in_parts: bool = False
    """True if the source is read through buffers, like files. False if zarr reads directly into the block."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of an ingest: the blocks of all arrays, and their assignment to tasks."""

    blocks: tuple[Block, ...]
    tasks: tuple[range, ...]
    """For each task, the range of block numbers that it writes."""
    nbytes: int
    """The uncompressed size in bytes of all blocks, in their stored dtype."""
    memory_bytes: int
    """The peak memory of a task in bytes: a block, and the chunks that are read or written concurrently."""
    read_factor: float
    """The average number of times that a source chunk is decoded."""
    spills: Mapping[str, ArraySpill]
    """The arrays to spill. Their blocks are assembled from spilled data."""
    readings: tuple[Block, ...]
    """The blocks to read from sources and spill, array by array."""
    reading_tasks: tuple[range, ...]
    """For each spilling task, the range of numbers in `readings` that it reads."""

    @property
    def spilled_bytes(self) -> int:
        """The number of bytes that tasks will spill."""
        return sum(math.prod(block.shape) * self.spills[block.name].itemsize for block in self.readings)


def make_plan(
    targets: Sequence[Target],
    arrays: Mapping[str, PieceArray],
    cuts: Mapping[str, SourceCut],
    memory_bytes: int,
    parallelism: int,
    referred: Collection[tuple[int, str]] = (),
) -> TaskPlan:
    """Plan the tasks of an ingest: divide changed arrays into blocks, and assign these to tasks of similar
    size.

    `referred` lists the source variables that are referenced and therefore need no blocks. An array is
    spilled if its source chunks would otherwise be read many times, and spilling is cheaper.
    """
    blocks: list[Block] = []
    weights: list[int] = []
    readings: list[Block] = []
    spills: dict[str, ArraySpill] = {}
    factors: list[tuple[float, int]] = []
    most = 0
    for target in targets:
        array, cut = arrays[target.name], cuts.get(target.name, SourceCut())
        mine = [number for number, name in referred if name == target.name]
        layout = _Layout(target, array, cut, memory_bytes, parallelism)
        way = layout.plan_direct() if mine else layout.choose()
        found = list(_find_changed_blocks(target, array, target.unit if mine else way.block, mine))
        if way.reading is not None and not _is_box(found):
            way = layout.plan_direct()
            found = list(_find_changed_blocks(target, array, way.block, mine))
        if way.reading is not None and found:
            spills[target.name] = spill = _plan_spill(target, array, cut, way.reading, way.together, found)
            readings += _list_readings(spill, array)
        blocks += found
        new = [math.prod(block.shape) * target.itemsize for block in found]
        weights += new
        factors.append((way.read_factor, sum(new)))
        most = max(most, way.memory_bytes) if found else most
    total = sum(weights)
    factor = sum(each * size for each, size in factors) / total if total else 1.0
    heavy = [math.prod(block.shape) * spills[block.name].itemsize for block in readings]
    return TaskPlan(
        tuple(blocks),
        _assign_to_tasks(weights, parallelism),
        total,
        most,
        factor,
        spills,
        tuple(readings),
        _assign_to_tasks(heavy, parallelism),
    )


@dataclass(frozen=True, slots=True)
class _Strategy:
    """A way to produce an array, either directly or through a spill, with the block shapes and the estimated
    cost.
    """

    block: tuple[int, ...]
    memory_bytes: int
    read_factor: float
    cost: float
    """The estimated cost, as the number of bytes that could be decoded in the same time."""
    reading: tuple[int, ...] | None = None
    """The shape of the blocks that are read and spilled; None if the array is not spilled."""
    together: int = 1
    """The number of pieces per spill object."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The shapes and chunks of an array and its sources, for choosing the cheapest strategy."""

    target: Target
    array: PieceArray
    cut: SourceCut
    memory_bytes: int
    parallelism: int

    @property
    def write(self) -> UnitGrid:
        """The grid of target chunks or shards."""
        return UnitGrid(self.target.shape, self.target.unit, self.target.itemsize)

    @property
    def read(self) -> UnitGrid:
        """The grid of source chunks."""
        unit = tuple(_find_source_extent(self.array, self.cut.unit).tolist())
        return UnitGrid(self.target.shape, unit, self.target.itemsize)

    @property
    def reading_bytes(self) -> int:
        """The memory in bytes for source chunks while a block is read."""
        unit = self.read.unit_bytes
        if self.cut.in_parts:
            part = min(compute_part_bytes(self.memory_bytes), self.read.nbytes)
            return READ_COPIES * (part if self.cut.unit is None else max(part, unit))
        if self.cut.partial or self.cut.unit is None:  # the memory is limited by the size of the block
            unit = min(unit, self.memory_bytes // (READ_COPIES + 1))
        return estimate_chunk_memory(unit, READ_COPIES, self.memory_bytes)

    @property
    def writing_bytes(self) -> int:
        """The memory in bytes for encoded chunks while a block is written."""
        return estimate_chunk_memory(self.write.unit_bytes, WRITE_COPIES, self.memory_bytes)

    def choose(self) -> _Strategy:
        """Return the cheaper strategy: directly from the sources, or through a spill."""
        direct = self.plan_direct()
        aside = self.plan_spill() if direct.read_factor > 1 and self.target.dtype != "string" else None
        return aside if aside is not None and aside.cost < direct.cost else direct

    def plan_direct(self) -> _Strategy:
        """Plan blocks that read directly from the sources, even if several blocks read the same source
        chunks.
        """
        beside = max(self.reading_bytes, self.writing_bytes)
        block = choose_block(self.write, self.read.unit, self.memory_bytes - beside)
        if block is None:
            raise self._make_error(beside)
        # The read factor is the number of times that a source chunk is decoded, such as 365 if daily maps
        # become time series of one year and each block needs one cell of every map.
        factor = compute_read_factor(self.read, block)
        return _Strategy(
            block, beside + self.write.count_block_bytes(block), factor, factor * self._reading_cost
        )

    def plan_spill(self) -> _Strategy | None:
        """Plan a spill: read each source chunk once, spill it in pieces, and assemble blocks from the pieces.
        Return None if there is not enough memory.
        """
        # The two passes run one after the other, so each may use the whole memory: the first for a block of
        # source chunks and the piece that is written, the second for a block and the piece that is read.
        memory = self.memory_bytes
        beside = max(self.writing_bytes, memory // 3)
        room = min(memory - beside, max(self.write.unit_bytes, self.write.nbytes // self.parallelism))
        block = choose_block(self.write, self.read.unit, room)
        if block is None:
            return None
        # Two copies: the piece itself, and a copy that the storage client may create.
        piece = memory // 3 // 2
        aside = max(self.reading_bytes, 2 * piece)
        reading = choose_block(self.read, block, memory - aside, (block, piece))
        if reading is None:
            return None
        # Pieces are small where maps become time series. Storing several pieces in one object limits the
        # number of requests, each of which costs as much as decoding _REQUEST_BYTES.
        common = math.prod(map(min, reading, block, self.read.shape)) * self.target.itemsize
        together = max(1, min(piece, _OBJECT_BYTES) // common)
        pieces = count_overlaps(self.read.shape, reading, block)
        cost = self._reading_cost + _SPILL_COST * self.write.nbytes + _REQUEST_BYTES * pieces
        holds = max(
            self.write.count_block_bytes(block) + beside, self.read.count_block_bytes(reading) + aside
        )
        return _Strategy(block, holds, 1.0, cost, reading, together)

    @property
    def _reading_cost(self) -> float:
        return float(self.read.nbytes + _REQUEST_BYTES * self.read.units)

    def _make_error(self, beside: int) -> InvalidInputError:
        name, unit = self.target.name, self.write.unit_bytes
        need = self.write.count_block_bytes(self.write.unit) + beside
        return InvalidInputError(
            f"one chunk or shard of {name} takes {unit} bytes and a task may use {self.memory_bytes}, but "
            f"needs {need} to read, encode and write it: choose smaller chunks or more memory per task",
            ErrorKind.INVALID_ARRAY_METADATA,
        )


def _find_source_extent(array: PieceArray, source_chunk: tuple[int, ...] | None) -> Column:
    """Return the shape that is decoded at once: a source chunk or the whole file."""
    files = array.pieces.source != EXISTING
    whole: Column = array.pieces.shape[files].max(axis=0, initial=1)
    if source_chunk is None or len(source_chunk) != array.ndim:
        return whole
    return np.minimum(whole, np.array(source_chunk, np.int64))


def _is_box(blocks: Sequence[Block]) -> bool:
    """Return True if blocks completely fill their bounding box."""
    if not blocks:
        return True
    starts, stops = (
        np.array(ends, np.int64) for ends in zip(*((b.start, b.stop) for b in blocks), strict=True)
    )
    extent: list[int] = (stops.max(axis=0) - starts.min(axis=0)).tolist()
    return math.prod(extent) == sum(math.prod(block.shape) for block in blocks)


def _plan_spill(
    target: Target,
    array: PieceArray,
    cut: SourceCut,
    reading: tuple[int, ...],
    together: int,
    blocks: Sequence[Block],
) -> ArraySpill:
    low = np.min([block.start for block in blocks], axis=0).tolist()
    high = np.max([block.stop for block in blocks], axis=0).tolist()
    rows, columns = [], []
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        borders = _find_source_borders(array, cut.unit, axis)
        rows.append(_join_borders(borders[(borders > first) & (borders < last)], first, last, reading[axis]))
        starts = np.unique([block.start[axis] for block in blocks])
        columns.append(np.append(starts, last).astype(np.int64))
    return ArraySpill(target.name, target.dtype, tuple(rows), tuple(columns), together, os.urandom(16).hex())


def _find_source_borders(array: PieceArray, source_chunk: tuple[int, ...] | None, axis: int) -> Column:
    """Return the positions along a dimension at which source chunks begin or end."""
    pieces = array.pieces
    spans = np.unique(
        np.stack([pieces.starts[:, axis], pieces.shape[:, axis], pieces.source_starts[:, axis]], axis=1),
        axis=0,
    )
    step = source_chunk[axis] if source_chunk is not None and len(source_chunk) == array.ndim else None
    found = [spans[:, 0], spans[:, 0] + spans[:, 1]]
    if step is not None:
        for start, size, begin in spans.tolist():  # one for each file along the dimension
            found.append(np.arange(start + -begin % step, start + size, step, dtype=np.int64))
    return np.unique(np.concatenate(found))


def _join_borders(borders: Column, first: int, last: int, extent: int) -> Column:
    """Select boundaries from `first` to `last`, at most `extent` apart where possible."""
    allowed = np.append(borders, last)
    edges = [first]
    while edges[-1] < last:
        furthest = int(allowed.searchsorted(edges[-1] + extent, "right")) - 1
        nearest = int(allowed.searchsorted(edges[-1], "right"))
        edges.append(int(allowed[max(furthest, nearest)]))
    return np.array(edges, np.int64)


def _list_readings(spill: ArraySpill, array: PieceArray) -> Iterator[Block]:
    """Yield the blocks to read from the sources and spill."""
    finder = _PieceIndex(array.pieces)
    for number in range(spill.blocks):
        start, stop = (np.array(ends, np.int64) for ends in zip(*spill.get_block(number).box, strict=True))
        yield Block(spill.name, tuple(start.tolist()), tuple(stop.tolist()), finder.find_within(start, stop))


def _find_changed_blocks(
    target: Target, array: PieceArray, shape: tuple[int, ...], referred: Sequence[int]
) -> Iterator[Block]:
    """Yield the blocks that must be written because they contain new or moved cells."""
    if math.prod(target.shape) == 0:
        return
    pieces = array.pieces
    settled = np.isin(pieces.source, referred)
    if not target.is_new:
        settled |= (pieces.source == EXISTING) & (pieces.source_starts == pieces.starts).all(axis=1)
    finder = _PieceIndex(pieces)
    new = pieces.select(~settled)
    if not target.is_new and len(new) and not array.is_complete:
        new = Pieces.whole(EXISTING, target.shape)  # existing cells without a source must be overwritten
    # Blocks begin with the first chunk to write, because earlier chunks do not change.
    first: Column = new.starts.min(axis=0, initial=math.prod(target.shape)) // target.unit * target.unit
    left = tuple((np.array(target.shape, np.int64) - first).tolist())
    for begin in _find_touched(replace(new, starts=new.starts - first), shape, left):
        start = first + begin
        stop = np.minimum(start + shape, target.shape)
        found = finder.find_within(start, stop)
        yield Block(target.name, tuple(start.tolist()), tuple(stop.tolist()), found)


def _find_touched(pieces: Pieces, shape: tuple[int, ...], whole: tuple[int, ...]) -> Iterator[Column]:
    """Yield the start of each block that overlaps any piece, in order."""
    if not len(pieces):
        return
    if not whole:
        yield np.zeros(0, np.int64)
        return
    counts = [-(-size // extent) for size, extent in zip(whole, shape, strict=True)]
    first, last = pieces.starts // shape, (pieces.stops - 1) // shape
    numbers = []
    for low, high in zip(first.tolist(), last.tolist(), strict=True):  # a loop over files, not over chunks
        ranges = np.meshgrid(*map(np.arange, low, [each + 1 for each in high]), indexing="ij", copy=False)
        numbers.append(np.ravel_multi_index([axis.reshape(-1) for axis in ranges], counts))
    for index in zip(*np.unravel_index(np.unique(np.concatenate(numbers)), counts), strict=True):
        yield np.array(index, np.int64) * shape


class _PieceIndex:
    """An index for finding the pieces inside a box, sorted along the dimension with the most
    distinct starts.
    """

    def __init__(self, pieces: Pieces) -> None:
        distinct = [len(np.unique(column)) for column in pieces.starts.T]
        self._axis = int(np.argmax(distinct)) if distinct else None
        if self._axis is not None:
            pieces = pieces.select(np.argsort(pieces.starts[:, self._axis], kind="stable"))
            self._longest = int(pieces.shape[:, self._axis].max(initial=0))
        self._pieces = pieces

    def find_within(self, start: Column, stop: Column) -> Pieces:
        """Return the pieces that overlap a box, clipped to the box, with positions relative to it."""
        found = self._pieces
        if self._axis is not None:
            # Pieces are sorted by start only. A piece that begins before the box can reach into it by at most
            # the length of the longest piece.
            begins = found.starts[:, self._axis]
            first = begins.searchsorted(start[self._axis] - self._longest + 1)
            last = begins.searchsorted(stop[self._axis])
            found = found.select(slice(int(first), int(last)))
        low, high = np.maximum(found.starts, start), np.minimum(found.stops, stop)
        rows = (low < high).all(axis=1)
        inside = found.select(rows)
        low, high = low[rows], high[rows]
        moved = np.where(inside.axes >= 0, inside.source_starts + low - inside.starts, 0)
        return replace(inside, starts=low - start, shape=high - low, source_starts=moved)


def _assign_to_tasks(weights: Sequence[int], parallelism: int) -> tuple[range, ...]:
    """Assign consecutive blocks to tasks of similar size, about two tasks per core."""
    if not weights:
        return ()
    # Two tasks per core balance different durations. Even an empty Spark task costs 50 to 70 ms, so more
    # tasks would only add cost.
    share = min(_TASK_BYTES, max(1, sum(weights) // max(1, 2 * parallelism)))
    tasks, begin, size = [], 0, 0
    for number, weight in enumerate(weights):
        if size and size + weight > share:
            tasks.append(range(begin, number))
            begin, size = number, 0
        size += weight
    tasks.append(range(begin, len(weights)))
    return tuple(tasks)
