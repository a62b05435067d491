"""Write blocks of arrays from their sources. The tasks are idempotent, because an executor may run them
twice.
"""

from __future__ import annotations

import json
import math
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.core.chunk_grid import Grid, get_stored_grid
from icefloe.core.chunk_values import ChunkEncoder, find_encoder
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.ingest.array_spill import ArraySpill, delete_spills, read_block, spill_block
from icefloe.ingest.bad_files import BadFile, explain
from icefloe.ingest.combine.pieces import EXISTING, Pieces
from icefloe.ingest.discover.sources import IngestSource, check_unchanged
from icefloe.ingest.inspect.open import decode, open_raw
from icefloe.ingest.inspect.packing import encode_variable, is_text
from icefloe.ingest.plan.array_encoding import get_missing_value
from icefloe.ingest.plan.task_blocks import (
    READ_COPIES,
    WRITE_COPIES,
    compute_part_bytes,
    count_concurrent_chunks,
    limit_concurrency,
)
from icefloe.ingest.plan.tasks import Block, TaskPlan
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import StoredGroup, Target, join_path
from icefloe.ingest.write.direct_read import open_hdf5_group, read_into
from icefloe.maintenance.statistics.collect import Collected, Collector
from icefloe.session import ForkSession

_OPEN_FILES = 64
_MIN_REUSED_CHUNKS = 16
"""The number of chunks that must fit into a task's memory before the task reuses chunk buffers."""
_PART_BYTES = 4 << 20
"""The size in bytes of the parts in which a file is read, unless its chunks are larger. Small buffers can be
reused.
"""
_DECODED_BYTES = 8
"""The size in bytes of a cell while it is being decoded."""
_MIN_SLABS = 2
"""The minimum number of slabs into which values are split for decoding."""
_NUMBERS = frozenset("iuf")
_MOMENT_S = 0.5
_conventions: Any = xr.conventions


@dataclass(frozen=True, slots=True)
class WriteTask:
    """An executor task that writes blocks of arrays from their sources."""

    fork: ForkSession
    group: str
    blocks: tuple[Block, ...]
    targets: Mapping[str, Target]
    sources: Mapping[int, IngestSource | StoredGroup]
    reading: ReadOptions
    copied: frozenset[tuple[int, str]]
    """The source number and name of each variable that is copied without decoding its stored values."""
    spills: Mapping[str, ArraySpill]
    """The target arrays that are spilled."""
    numbers: range
    """The block numbers within the spill, if the task spills its blocks."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a write task: its receipt, and the files that it could not read."""

    receipt: bytes | None
    """The encoded changes; None if the task only spilled data."""
    bad: Mapping[int, str]
    """The unreadable sources by number, with the reason. Their blocks were not written."""
    statistics: tuple[Collected, ...] = ()
    """Statistics of the written chunks."""


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """The blocks to write in one group, with everything that tasks need."""

    fork: ForkSession
    group: str
    plan: TaskPlan
    targets: Mapping[str, Target]
    sources: Mapping[int, IngestSource | StoredGroup]
    copied: frozenset[tuple[int, str]]
    reading: ReadOptions
    memory_bytes: int

    def write_tasks(self) -> Iterator[WriteTask]:
        """Yield the tasks that write chunks.

        The blocks of spilled arrays are read from the spill instead of the sources.
        """
        plan = self.plan
        for task in plan.tasks:
            yield self._task(
                replace(block, pieces=block.pieces.select(slice(0, 0)))
                if block.name in plan.spills
                else block
                for block in plan.blocks[task.start : task.stop]
            )

    def spill_tasks(self) -> Iterator[WriteTask]:
        """Yield the tasks that read and spill blocks, numbered from 0 per array. Each task spills
        one array.
        """
        plan = self.plan
        first: dict[str, int] = {}
        for index, block in enumerate(plan.readings):
            first.setdefault(block.name, index)
        for task in plan.reading_tasks:
            for name in dict.fromkeys(plan.readings[index].name for index in task):
                mine = [index for index in task if plan.readings[index].name == name]
                numbers = range(mine[0] - first[name], mine[-1] + 1 - first[name])
                yield self._task((plan.readings[index] for index in mine), numbers)

    def _task(self, some: Iterable[Block], numbers: range = range(0)) -> WriteTask:
        blocks = tuple(some)
        names = {block.name for block in blocks}
        used = {int(number) for block in blocks for number in np.unique(block.pieces.source)}
        return WriteTask(
            self.fork.fork(),
            self.group,
            blocks,
            {name: self.targets[name] for name in names},
            {number: self.sources[number] for number in used},
            self.reading,
            self.copied.intersection(product(used, names)),
            {name: spill for name, spill in self.plan.spills.items() if name in names},
            numbers,
            self.memory_bytes,
        )


class WriteResults:
    """The collected results of write tasks: receipts, statistics, and files that could not be read."""

    def __init__(self) -> None:
        self.receipts: list[bytes] = []
        self.statistics: list[Collected] = []
        self.bad: dict[str, BadFile] = {}

    def run(self, executor: Executor, task: Task[Any, TaskResult], items: Sequence[Any]) -> None:
        """Run tasks on an executor, and collect their results."""
        if not items:
            return
        for item, result in zip(items, executor.map(task, items), strict=True):
            if result.receipt is not None:
                self.receipts.append(result.receipt)
            self.statistics += result.statistics
            for number, text in result.bad.items():
                source = item.sources[number]
                self.bad.setdefault(source.url, BadFile(source, text))


def write_groups(groups: Sequence[GroupBlocks], executor: Executor, results: WriteResults) -> None:
    """Write the chunks of some groups: run the spill tasks first, then the write tasks."""
    try:
        spilling = [task for group in groups for task in group.spill_tasks()]
        results.run(executor, Task(spill_blocks, "parts spilled", thread_safe=False), spilling)
        if not results.bad:
            writing = [task for group in groups for task in group.write_tasks()]
            results.run(executor, Task(write_blocks, "tasks", thread_safe=False), writing)
    finally:
        for group in groups:
            delete_spills(group.plan.spills.values(), group.fork._workspace.assets.storage)


class _ReadError(Exception):
    """Error raised when a source cannot be read."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


def write_blocks(task: WriteTask) -> TaskResult:
    """Write the blocks of a task through a fork of the session, and return a receipt."""
    bad: dict[int, str] = {}
    collector = Collector(task.fork)
    with _Sources(task) as sources, ignore_warnings():
        arrays = {name: _OpenArray.open(task, name) for name in task.targets}
        room = np.empty(0, np.uint8)
        for block in task.blocks:
            array, spill = arrays[block.name], task.spills.get(block.name)
            if array.encoder is None:
                room = np.empty(0, np.uint8)
            elif room.nbytes < (size := math.prod(block.shape) * array.encoder.room.itemsize):
                room = np.empty(size, np.uint8)
            try:
                if spill is not None:
                    data = read_block(spill, block.box, task.fork._workspace.assets.storage)
                else:
                    data = _assemble_block(block, task.targets[block.name], sources, room)
            except _ReadError as error:
                bad[error.number] = error.text
                continue
            box = tuple(slice(start, stop) for start, stop in block.box)
            if array.write_whole_chunks(task.fork, box, data, collector):
                del data
            else:
                unit = math.prod(array.zarr.shards or array.zarr.chunks) * task.targets[block.name].itemsize
                with limit_concurrency(count_concurrent_chunks(unit, WRITE_COPIES, task.memory_bytes)):
                    array.zarr[box] = data
                collector.add(array.path, box, data)
                gone = weakref.ref(data)
                del data
                _wait_for(gone)
        bad |= sources.find_changed()
    return TaskResult(receipt(task.fork), bad, collector.finish())


@dataclass(frozen=True, slots=True)
class _OpenArray:
    """A target array that is open for writing."""

    path: str
    zarr: Any
    grid: Grid
    encoder: ChunkEncoder | None
    """The encoder for whole chunks. None if zarr encodes them, so that several chunks are uploaded to remote
    storage concurrently.
    """

    @classmethod
    def open(cls, task: WriteTask, name: str) -> _OpenArray:
        path = join_path(task.group, name.strip("/"))
        array: Any = zarr.open_array(task.fork.store, path=path, mode="r+")
        workspace = task.fork._workspace
        document = json.loads(workspace.array("/" + path.strip("/")).user_data)
        chunk_bytes = math.prod(array.chunks) * array.dtype.itemsize
        has_room = chunk_bytes * _MIN_REUSED_CHUNKS <= task.memory_bytes
        is_local = workspace.assets.storage.answers_at_once
        encoder = find_encoder(document) if is_local and has_room else None
        return cls(path, array, get_stored_grid(document), encoder)

    def write_whole_chunks(
        self, fork: ForkSession, box: tuple[slice, ...], data: Any, collector: Collector
    ) -> bool:
        """Write a block of whole chunks. Return False if the block contains partial chunks, or if zarr must
        encode it.
        """
        encoder, workspace = self.encoder, fork._workspace
        if encoder is None or data.dtype != encoder.room.dtype or not data.size:
            return False
        chunks = list(product(*self.grid.find_touched(box)))
        for coords in (chunks[0], chunks[-1]):
            for own, outer in zip(self.grid.inside(coords), box, strict=True):
                if own.start < outer.start or own.stop > outer.stop:
                    return False
        node = workspace.array("/" + self.path.strip("/"))
        for coords in chunks:  # a block contains few chunks
            inside = self.grid.inside(coords)
            pairs = zip(inside, box, strict=True)
            part = tuple(slice(own.start - outer.start, own.stop - outer.start) for own, outer in pairs)
            collector.add(self.path, inside, encoder.load(data[part]))
            encoded = encoder.encode()
            if encoded is None:
                workspace.delete_chunk(node, coords)
            else:
                workspace.write(node.path, coords, encoded)
        return True


def _wait_for(gone: weakref.ref[Any]) -> None:
    """Wait until a block is freed, because zarr's event loop briefly keeps a reference to it."""
    until = time.monotonic() + _MOMENT_S
    while gone() is not None and time.monotonic() < until:
        time.sleep(_MOMENT_S / 1000)


def spill_blocks(task: WriteTask) -> TaskResult:
    """Read the blocks of a task, which belong to one array, and spill them."""
    bad: dict[int, str] = {}
    storage = task.fork._workspace.assets.storage.for_temporary_objects()
    with _Sources(task) as sources, ignore_warnings():
        for number, block in zip(task.numbers, task.blocks, strict=True):
            try:
                data = _assemble_block(block, task.targets[block.name], sources)
            except _ReadError as error:
                bad[error.number] = error.text
                continue
            spill_block(task.spills[block.name], number, data, storage)
            del data
        bad |= sources.find_changed()
    return TaskResult(None, bad)


class _Sources:
    """The sources of a task. They are opened on demand, and a limited number stays open."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._open: dict[int, tuple[ExitStack, xr.Dataset, xr.Dataset | None]] = {}
        self._hdf5: dict[int, Any] = {}
        """The open HDF5 group of each source by number; None for sources that h5py does not read."""
        self._used: set[int] = set()

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *_: object) -> None:
        for stack, *_rest in self._open.values():
            stack.close()

    def read_stored(self, block: Block) -> Any:
        """Read a block from a stored array without decoding. Return None unless the block is a single box of
        that array.
        """
        pieces = block.pieces
        number = int(pieces.source[0]) if len(pieces) == 1 else EXISTING
        source = self._task.sources.get(number)
        is_straight = pieces.axes.tolist() == [list(range(len(block.start)))]
        is_whole = pieces.shape.tolist() == [list(block.shape)]
        is_copied = (number, block.name) in self._task.copied
        if not (isinstance(source, StoredGroup) and is_straight and is_whole and is_copied):
            return None
        path = join_path(source.group, block.name.strip("/"))
        array: Any = zarr.open_array(source.session.store, path=path, mode="r")
        unit = math.prod(array.shards or array.chunks) * array.dtype.itemsize
        key = _make_key(pieces)
        with limit_concurrency(count_concurrent_chunks(unit, READ_COPIES, self._task.memory_bytes)):
            return np.asarray(array[tuple(key[axis] for axis in range(array.ndim))])

    def read(self, number: int, target: Target, key: Mapping[int, slice]) -> Any:
        """Read a box of a variable, encoded for the target array."""
        with self._report_errors(number, target):
            found = self._read(number, target, key)
        if found.dtype == object and target.dtype != "string":  # the engine reported another type
            raise _make_type_error(target)
        return found

    @contextmanager
    def _report_errors(self, number: int, target: Target) -> Iterator[None]:
        try:
            yield
        except IcechunkError:
            raise
        except Exception as error:  # engines raise arbitrary exceptions for a damaged file
            if number == EXISTING:
                raise
            raise _ReadError(number, f"{target.name} cannot be read: {explain(error)}") from error

    def read_into(self, data: Any, piece: Pieces, target: Target) -> bool:
        """Read a piece directly into a block. Return False if it must be read in parts."""
        number = int(piece.source[0])
        if (number, target.name) not in self._task.copied:
            return False
        with self._report_errors(number, target):
            raw = self._open_dataset(number, decoded=False).variables[target.name]
            return read_into(data, piece, self._hdf5[number], target.name, raw)

    def split(self, piece: Pieces, target: Target) -> Iterator[Pieces]:
        """Split a piece into parts that fit into the task's memory."""
        number = int(piece.source[0])
        copied = (number, target.name) in self._task.copied
        with self._report_errors(number, target):
            unit = get_source_chunks(piece, self._open_dataset(number, decoded=False).variables[target.name])
        cell = target.itemsize if copied else max(_DECODED_BYTES, target.itemsize)
        return piece.split(unit, min(_PART_BYTES, compute_part_bytes(self._task.memory_bytes)) // cell)

    def find_changed(self) -> dict[int, str]:
        """Return the sources that changed while they were being read, by number, with the reason."""
        found = {}
        for number in self._used:
            source = self._task.sources[number]
            try:
                if (
                    not isinstance(source, StoredGroup) and not source.is_remote
                ):  # remote files were downloaded before reading
                    check_unchanged(source, {})
            except (OSError, ValueError) as error:
                found[number] = explain(error)
        return found

    def _read(self, number: int, target: Target, key: Mapping[int, slice]) -> Any:
        raw = self._open_dataset(number, decoded=False).variables[target.name]
        box = tuple(key.get(axis, slice(None)) for axis in range(raw.ndim))
        if (number, target.name) in self._task.copied:
            return raw[box].load().values
        shown = self._open_dataset(number, decoded=True).variables[target.name]
        if {raw.dtype.kind, shown.dtype.kind} <= _NUMBERS and raw.dims == shown.dims:
            return self._reencode(raw[box].load(), target)
        box = tuple(key.get(axis, slice(None)) for axis in range(shown.ndim))
        return encode_for_target(shown[box].load(), target)

    def _reencode(self, raw: xr.Variable, target: Target) -> Any:
        """Decode and re-encode numbers in small slabs, because decoding makes several copies."""
        found = np.empty(raw.shape, target.dtype)
        flat, filled = raw.values.reshape(-1), found.reshape(-1)
        cells = max(1, compute_part_bytes(self._task.memory_bytes) // _DECODED_BYTES // _MIN_SLABS)
        for start in range(0, flat.size, cells):
            slab = xr.Variable(("x",), flat[start : start + cells], dict(raw.attrs))
            shown: xr.Variable = _conventions.decode_cf_variable(
                target.name, slab, decode_times=False, decode_timedelta=False
            )
            filled[start : start + cells] = encode_for_target(shown.load(), target)
        return found

    def _open_dataset(self, number: int, *, decoded: bool) -> xr.Dataset:
        if number not in self._open:
            if len(self._open) >= _OPEN_FILES:
                oldest = next(iter(self._open))
                self._open.pop(oldest)[0].close()
            stack, source = ExitStack(), self._task.sources[number]
            raw = stack.enter_context(open_raw(source, self._task.reading))
            self._hdf5[number] = stack.enter_context(open_hdf5_group(source, self._task.reading))
            self._open[number] = (stack, raw, None)
            self._used.add(number)
        stack, raw, shown = self._open[number]
        if not decoded:
            return raw
        if shown is None:
            shown = decode(raw)
            self._open[number] = (stack, raw, shown)
        return shown


def encode_for_target(values: xr.Variable, target: Target) -> Any:
    """Encode decoded values for the target array."""
    if target.dtype == "string":
        if not is_text(values):
            raise _make_type_error(target)
        return values.values.astype(object)
    plain = xr.Variable(values.dims, values.values)
    dtype = np.dtype(target.dtype)
    if not target.packing or (
        dtype.kind == "f" and values.dtype.kind in "iufb" and "scale_factor" not in target.packing
    ):
        return _cast(plain.values, dtype, target)
    found = encode_variable(plain, target.packing, target.dtype, target.name)
    if found.dtype != dtype or found.attrs.get("units") != target.packing.get("units"):
        raise InvalidInputError(
            f"values of {target.name} cannot be represented in the stored form ({_format(target)})",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return found.values


def _make_type_error(target: Target) -> InvalidInputError:
    return InvalidInputError(
        f"values of {target.name} are neither numbers nor text and cannot be copied: select other variables",
        ErrorKind.INVALID_ARRAY_METADATA,
    )


def _cast(values: Any, dtype: np.dtype[Any], target: Target) -> Any:
    missing = target.packing.get("_FillValue")
    if missing is not None and not np.isnan(missing):
        values = np.where(np.isnan(values), np.asarray(missing, dtype), values)
    cast = values.astype(dtype)
    if values.dtype.kind in "iub" and dtype.kind == "f":
        return cast  # xarray does the same if integers may be missing
    if not np.can_cast(values.dtype, dtype, "safe") and not np.array_equal(cast, values, equal_nan=True):
        raise InvalidInputError(
            f"values of {target.name} of type {values.dtype} do not fit into {dtype}",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return cast


def _format(target: Target) -> str:
    return ", ".join(f"{name} {value}" for name, value in {"dtype": target.dtype, **target.packing}.items())


def _assemble_block(
    block: Block, target: Target, sources: _Sources, room: NDArray[np.uint8] | None = None
) -> Any:
    """Assemble a block from its pieces. The buffer `room` is used if it is large enough."""
    if (stored := sources.read_stored(block)) is not None:
        return stored
    dtype = np.dtype(object) if target.dtype == "string" else np.dtype(target.dtype)
    pieces = block.pieces
    covered = int(pieces.shape.prod(axis=1).sum()) == math.prod(block.shape)
    size = math.prod(block.shape) * dtype.itemsize
    data: Any
    if room is not None and 0 < size <= room.nbytes:
        data = room[:size].view(dtype).reshape(block.shape)
    else:
        data = np.empty(block.shape, dtype)
    if not covered:
        data[...] = get_missing_value(target)
    for row in range(len(pieces)):
        piece = pieces.select(slice(row, row + 1))
        if sources.read_into(data, piece, target):
            continue
        for part in sources.split(piece, target):
            place = zip(part.starts[0].tolist(), part.shape[0].tolist(), strict=True)
            values = sources.read(int(part.source[0]), target, _make_key(part))
            data[tuple(slice(start, start + size) for start, size in place)] = _arrange_axes(part, values)
            del values  # free the values before the next ones are read
    return data


def read_piece(piece: Pieces, variable: xr.Variable) -> Any:
    """Read one piece of a block, with the dimensions in the order of the target array."""
    key = _make_key(piece)
    box = tuple(key.get(axis, slice(None)) for axis in range(variable.ndim))
    return _arrange_axes(piece, variable[box].values)


def get_source_chunks(piece: Pieces, variable: xr.Variable) -> tuple[int, ...]:
    """Return the source chunk shape of a variable, in the dimension order of the target array."""
    chunks = variable.encoding.get("chunksizes") or variable.encoding.get("chunks")
    if chunks is None or variable.encoding.get("contiguous", False):
        chunks = (1,) * variable.ndim
    return tuple(int(chunks[axis]) if axis >= 0 else 1 for axis in piece.axes[0].tolist())


def _make_key(piece: Pieces) -> dict[int, slice]:
    """Return the slice that a piece selects along each axis of the source."""
    spans = zip(piece.axes[0].tolist(), piece.source_starts[0].tolist(), piece.shape[0].tolist(), strict=True)
    return {axis: slice(start, start + size) for axis, start, size in spans if axis >= 0}


def _arrange_axes(piece: Pieces, found: Any) -> Any:
    values, axes = np.asarray(found), piece.axes[0].tolist()
    values = values.transpose([axis for axis in axes if axis >= 0])
    return values[tuple(slice(None) if axis >= 0 else None for axis in axes)]
