"""Tasks that compute the chunks of derived arrays: read input blocks, call the function, write chunks, and
audit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe._internal.warnings import ignore_warnings
from icefloe.derive.arrays import DecodedCoordinates, decode, get_array
from icefloe.derive.axes import Axis, SameAxis, Span
from icefloe.derive.functions import Function, InputBlock
from icefloe.derive.outputs import Output, OutputDim
from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.maintenance.statistics.collect import Collected, Collector
from icefloe.session import ForkSession, Session

_AUDIT_MARGIN = 2
"""The number of cells by which the audit widens a block, to check that this does not change the result."""


@dataclass(frozen=True)
class TaskInput:
    """An input array from which a task computes chunks of a derived array."""

    name: str
    path: str
    session: Session | None
    """The session to read from; None to read from the session to which the task writes."""
    axes: tuple[Axis, ...]
    with_coordinates: bool


@dataclass(frozen=True)
class DeriveTask:
    """A task that computes some chunks of a derived array, possibly in another process."""

    fork: ForkSession
    label: str
    path: str
    function: Function
    inputs: tuple[TaskInput, ...]
    dims: tuple[OutputDim, ...]
    encoding: Mapping[str, Any]
    chunks: NDArray[np.int64]
    """The coordinates of the output chunks, one row per chunk."""
    audited: tuple[int, ...]
    """The row numbers in `chunks` to audit, that is, to compute again and compare."""
    cache_bytes: int


@dataclass(frozen=True)
class Computed:
    """The result of a task that computes chunks of a derived array."""

    receipt: bytes
    bytes_read: int
    statistics: tuple[Collected, ...] = ()
    """Statistics of the chunks that the task wrote."""
    problem: str | None = None
    """The problem that the audit found, if any."""


def compute_chunks(task: DeriveTask) -> Computed:
    """Compute, write and audit the chunks of a task. A task may run more than once."""
    collector = Collector(task.fork)
    readers = [_Reader(each, each.session or task.fork, task.cache_bytes) for each in task.inputs]
    with ignore_warnings():
        array: Any = zarr.open_array(task.fork.store, path=task.path, mode="r+")
        for row, coords in enumerate(task.chunks.tolist()):
            spans = {dim.name: _get_span(dim, at) for dim, at in zip(task.dims, coords, strict=True)}
            values = _compute(task, readers, spans)
            stored = encode(values, array.dtype, task.encoding, task.label)
            key = tuple(slice(*spans[dim.name]) for dim in task.dims)
            array[key] = stored
            collector.add(task.path, key, np.asarray(stored))
            if row in task.audited and (problem := _audit(task, readers, spans, values, stored, array[key])):
                return Computed(receipt(task.fork), 0, problem=problem)
    read = sum(each.bytes_read for each in readers)
    return Computed(receipt(task.fork), read, collector.finish())


def encode(values: NDArray[Any], dtype: np.dtype[Any], encoding: Mapping[str, Any], label: str) -> Any:
    """Encode computed values using `scale_factor`, `add_offset` and `_FillValue`."""
    scale, offset, fill = (encoding.get(key) for key in ("scale_factor", "add_offset", "_FillValue"))
    if scale is None and offset is None and values.dtype == dtype and fill is None:
        return values
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    packed = values.astype(np.float64) if scale is not None or offset is not None else values
    if offset is not None:
        packed = packed - offset
    if scale is not None:
        packed = packed / scale
    if dtype.kind not in "iu":
        packed = packed.astype(dtype)
        return np.where(missing, fill, packed).astype(dtype) if fill is not None else packed
    if missing.any() and fill is None:
        raise InvalidInputError(
            f"{label} has missing values, which {dtype} cannot represent; set _FillValue in encoding",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    packed = np.where(missing, 0, packed)
    rounded = np.rint(packed) if packed.dtype.kind == "f" else packed
    limits = np.iinfo(dtype)
    if rounded.size and (rounded.min() < limits.min or rounded.max() > limits.max):
        raise InvalidInputError(
            f"{label} has values that {dtype} cannot represent with this encoding; choose another"
            " scale_factor",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    return np.where(missing, fill if fill is not None else 0, rounded).astype(dtype)


def make_tasks(
    output: Output,
    fork: ForkSession,
    chunks: NDArray[np.int64],
    parts: int,
    *,
    audited: Sequence[int],
    own: Session,
    cache_bytes: int,
) -> Iterator[DeriveTask]:
    """Divide the chunks to compute among tasks.

    Neighbouring chunks go to the same task, because they share input chunks.
    """
    inputs = tuple(
        TaskInput(
            each.name,
            each.array.path,
            None if each.array.session is own else each.array.session,
            each.axes,
            output.function.code is not None,
        )
        for each in output.inputs
    )
    dims = tuple(replace(dim, coordinate=None) for dim in output.dims)
    for rows in np.array_split(np.arange(len(chunks)), min(parts, len(chunks)) or 1):
        if len(rows):
            marked = tuple(int(row - rows[0]) for row in audited if rows[0] <= row <= rows[-1])
            yield DeriveTask(
                fork,
                output.spec.name,
                output.path,
                output.function,
                inputs,
                dims,
                output.spec.encoding,
                chunks[rows],
                marked,
                cache_bytes,
            )


def _get_span(dim: OutputDim, at: int) -> Span:
    return at * dim.chunk, min((at + 1) * dim.chunk, dim.size)


def _compute(task: DeriveTask, readers: Sequence[_Reader], spans: Mapping[str, Span]) -> NDArray[Any]:
    blocks = [reader.read(spans) for reader in readers]
    try:
        return task.function.compute(blocks, spans)
    except IcechunkError as error:
        at = ", ".join(f"{dim} {first}:{end}" for dim, (first, end) in spans.items())
        raise InvalidInputError(f"output {task.label} ({at}): {error.message}", error.kind) from error


def _audit(
    task: DeriveTask,
    readers: Sequence[_Reader],
    spans: dict[str, Span],
    values: NDArray[Any],
    stored: Any,
    read: Any,
) -> str | None:
    """Audit a chunk: compare the computed values with the stored chunk, with a second computation, and with a
    computation over a wider block."""
    at = ", ".join(f"{dim} {first}:{end}" for dim, (first, end) in spans.items())
    if not _is_same(np.asarray(read), np.asarray(stored)):
        return f"{task.path} ({at}): stored values differ from computed values, because its codecs lose data"
    if not _is_same(_compute(task, readers, spans), values):
        return f"{task.function.name} is not deterministic: it returned two results for {at}"
    if task.function.code is None:
        return None
    wider = dict(spans)
    for each in task.inputs:
        for axis in each.axes:
            if isinstance(axis, SameAxis):
                first, end = spans[axis.dim]
                wider[axis.dim] = (max(0, first - _AUDIT_MARGIN), min(axis.size, end + _AUDIT_MARGIN))
    if wider == spans:
        return None
    found = _compute(task, readers, wider)
    own = tuple(
        slice(spans[dim.name][0] - wider[dim.name][0], spans[dim.name][1] - wider[dim.name][0])
        for dim in task.dims
    )
    if not _close(found[own], values):
        return (
            f"{task.function.name} depends on more cells than the mapping of its dimensions says ({at}); "
            "declare a halo, group or reduce"
        )
    return None


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return True if two arrays are equal bit for bit. All NaN values compare equal, because chunks that
    contain only missing values are not stored."""
    if one.dtype.kind in "OUT":
        return bool(np.array_equal(one.astype(object), other.astype(object)))
    if one.dtype.kind == "f" and one.dtype == other.dtype:
        one, other = (np.where(np.isnan(each), np.nan, each).astype(each.dtype) for each in (one, other))
    return one.tobytes() == other.tobytes()


def _close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind in "fc":
        return bool(np.allclose(one, other, rtol=1e-5, atol=1e-8, equal_nan=True))
    return bool(np.array_equal(one, other))


class _Reader:
    """A reader for blocks of one input array. It caches the latest chunks, because neighbouring blocks share
    them.
    """

    def __init__(self, given: TaskInput, session: Session, cache_bytes: int) -> None:
        self._given = given
        self._array = get_array(session, given.path, given.name)
        self._coordinates = DecodedCoordinates(self._array)
        self._cache_bytes = cache_bytes
        self._held: tuple[tuple[Span, ...], NDArray[Any]] | None = None
        self.bytes_read = 0

    def read(self, spans: Mapping[str, Span]) -> InputBlock:
        """Read the input cells that the given ranges of output cells depend on."""
        axes = self._given.axes
        cells = tuple(axis.cells(*(spans[dim] for dim in axis.outputs)) for axis in axes)
        values = np.asarray(self._count_cells(cells), order="C")
        array = self._array
        with_all = self._given.with_coordinates
        return InputBlock(
            self._given.name,
            array.dims,
            values,
            axes,
            cells,
            self._coordinates.block(cells) if with_all else {},
            array.attributes if with_all else {},
        )

    def _count_cells(self, cells: tuple[Span, ...]) -> NDArray[Any]:
        if not all(first < end for first, end in cells):
            shape = tuple(end - first for first, end in cells)
            return np.zeros(shape, self._array.decoded_dtype)
        held = self._held
        if held is None or not _is_inside(held[0], cells):
            held = self._held = None  # free memory before reading the next chunks
            held = self._held = self._read_box(cells)
        box, values = held
        own = tuple(
            slice(first - start, end - start) for (first, end), (start, _) in zip(cells, box, strict=True)
        )
        return values[own]

    def _read_box(self, cells: tuple[Span, ...]) -> tuple[tuple[Span, ...], NDArray[Any]]:
        """Read the box of whole chunks around some cells if it fits in the cache, otherwise only these
        cells.
        """
        box = tuple(
            (int(edges[np.searchsorted(edges, first, "right") - 1]), int(edges[np.searchsorted(edges, end)]))
            for (first, end), edges in zip(cells, self._array.edges, strict=True)
        )
        size = self._array.decoded_dtype.itemsize
        for first, end in box:
            size *= end - first
        if size > self._cache_bytes:
            box = cells
        raw = np.asarray(self._array.zarr[tuple(slice(*each) for each in box)])
        self.bytes_read += raw.nbytes
        return box, decode(self._array, raw)


def _is_inside(box: Sequence[Span], cells: Sequence[Span]) -> bool:
    return all(start <= first and end <= stop for (start, stop), (first, end) in zip(box, cells, strict=True))
