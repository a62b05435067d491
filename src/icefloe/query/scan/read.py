"""Read the partitions of a scan as Arrow record batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.query.decode import Values, to_arrow, wrap_numbers
from icefloe.query.scan.plan import BATCH_ROWS, Block, ScanPlan, Span
from icefloe.query.schema import Column, Role
from icefloe.session import Session

_BLOCKS_AHEAD: Final = 4
"""The number of blocks to prefetch."""
_KEPT_BYTES: Final = 2**27
"""The maximum size of the coordinates that a task reads once and keeps for all of its blocks."""


def read_partition(
    session: Session, plan: ScanPlan, partition: int, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one scan partition, block by block. Within a block, rows are in dimension order."""
    for block, values in read_blocks(session, plan, partition):
        yield from make_batches(plan, block, values, batch_rows)


def read_blocks(session: Session, plan: ScanPlan, partition: int) -> Iterator[tuple[Block, list[Values]]]:
    """Read the stored values of all columns, block by block, for one partition of a scan.

    Each returned array has all dimensions of the table, with length 1 along dimensions that its column lacks.
    """
    arrays = TableArrays(session, plan)
    with ThreadPoolExecutor(_BLOCKS_AHEAD, "icefloe-blocks") as pool:
        waiting: deque[tuple[Block, Future[list[Values]]]] = deque()
        for block in plan.blocks(partition):
            waiting.append((block, pool.submit(arrays.read, block)))
            if len(waiting) > _BLOCKS_AHEAD:
                first, values = waiting.popleft()
                yield first, values.result()
        while waiting:
            first, values = waiting.popleft()
            yield first, values.result()


class TableArrays:
    """The open arrays behind the columns of a table."""

    def __init__(self, session: Session, plan: ScanPlan) -> None:
        import zarr

        self._columns = plan.table.columns
        self._rank = len(plan.table.dims)
        paths = {column.array.path for column in self._columns if column.array is not None}
        store = session.store
        self._arrays: dict[str, Any] = {
            path: zarr.open_array(store, path=path, mode="r") for path in sorted(paths)
        }
        self._whole = {
            column.array.path: np.asarray(self._arrays[column.array.path][...])
            for column in self._columns
            if column.array is not None and _is_kept(column)
        }

    def read(self, block: Block) -> list[Values]:
        """Read the stored values of all columns in one block."""
        found: dict[str, Values] = {}
        return [self._read(column, block, found) for column in self._columns]

    def _read(self, column: Column, block: Block, found: dict[str, Values]) -> Values:
        spans = [block[axis] for axis in column.axes]
        if column.array is None:
            return self._arrange(_list_indices(spans[0]), column)
        path = column.array.path
        if path not in found:
            whole = self._whole.get(path)
            found[path] = (
                fetch_spans(self._arrays[path], spans) if whole is None else take_spans(whole, spans)
            )
        return self._arrange(found[path], column)

    def _arrange(self, values: Values, column: Column) -> Values:
        """Transpose the values of a column to the dimension order of the table, adding length-1
        dimensions.
        """
        order = sorted(range(len(column.axes)), key=column.axes.__getitem__)
        values = values.transpose(order) if values.ndim else values
        here = dict(zip(sorted(column.axes), values.shape, strict=True))
        return values.reshape([here.get(axis, 1) for axis in range(self._rank)])


def _is_kept(column: Column) -> bool:
    array = column.array
    if array is None or column.role is Role.VARIABLE:
        return False
    return int(np.prod(array.shape, dtype=np.int64)) * array.coding.stored.itemsize <= _KEPT_BYTES


def _list_indices(span: Span) -> NDArray[np.int64]:
    return np.arange(span.start, span.stop) if span.wanted is None else span.wanted


def _to_selector(span: Span) -> slice | NDArray[np.int64]:
    """Convert the selection of a span to an indexer: a slice if it is contiguous, otherwise an index
    array.
    """
    wanted = span.wanted
    if wanted is None:
        return slice(span.start, span.stop)
    first, last = int(wanted[0]), int(wanted[-1])
    return slice(first, last + 1) if last - first + 1 == len(wanted) else wanted


def fetch_spans(array: Any, spans: Sequence[Span]) -> Values:
    """Read the selected cells of the given spans from an array, fetching only the chunks that contain
    them.
    """
    selectors = tuple(_to_selector(span) for span in spans)
    if all(isinstance(each, slice) for each in selectors):
        return np.asarray(array[selectors])
    return np.asarray(array.oindex[selectors])


def take_spans(whole: Values, spans: Sequence[Span]) -> Values:
    """Select the given spans from values that were already read."""
    for axis, span in enumerate(spans):
        selector = _to_selector(span)
        whole = whole[(slice(None),) * axis + (selector,)]
    return whole


def make_batches(
    plan: ScanPlan, block: Block, values: Sequence[Values], rows: int
) -> Iterator[pa.RecordBatch]:
    """Convert the values of a block to Arrow record batches with at most the given number of rows."""
    schema = plan.table.schema
    shape = tuple(span.count for span in block)
    known: dict[tuple[Any, ...], pa.Array] = {}
    for slab in _split_block(shape, rows):
        extent = tuple(part.stop - part.start for part in slab)
        columns = []
        for number, (column, raw) in enumerate(zip(plan.table.columns, values, strict=True)):
            varies = [axis for axis in range(len(shape)) if raw.shape[axis] > 1 or axis in column.axes]
            key = (number, extent, *((slab[axis].start, slab[axis].stop) for axis in varies))
            part = raw[tuple(slab[a] if a in varies else slice(None) for a in range(len(shape)))]
            if column.role is Role.VARIABLE and len(varies) == len(shape):
                columns.append(_make_column(column, part.reshape(-1)))
                continue
            if key not in known:
                known = {old: array for old, array in known.items() if old[0] != number}
                known[key] = _repeat(column, part, extent)
            columns.append(known[key])
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _split_block(shape: Sequence[int], rows: int) -> Iterator[tuple[slice, ...]]:
    """Divide a block into runs of consecutive rows, each with at most the given number of rows if
    possible."""
    after = 1
    steps = []
    for size in reversed(shape):
        step = max(min(size, rows // max(after, 1)), 1) if after <= rows else 1
        steps.append(step)
        # Dimensions before a divided one are read index by index, so that rows stay in order.
        after = after * size if step == size else rows + 1
    cuts: Iterable[list[slice]] = (
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape, reversed(steps), strict=True)
    )
    return product(*cuts)


def _repeat(column: Column, part: Values, extent: Sequence[int]) -> pa.Array:
    """Broadcast the values of a column to the rows of a part of a block."""
    if column.coding is not None and not column.numeric and part.size < 1024:
        # Converting text is expensive, so each value is converted once and the result repeated.
        once = _make_column(column, part.reshape(-1))
        codes = np.broadcast_to(np.arange(part.size).reshape(part.shape), extent).reshape(-1)
        if once.null_count or not pa.types.is_primitive(once.type):
            return once.take(wrap_numbers(codes, pa.int64()))
    return _make_column(column, np.broadcast_to(part, extent).reshape(-1))


def _make_column(column: Column, raw: Values) -> pa.Array:
    if column.coding is None:
        return wrap_numbers(raw, column.arrow)
    if column.numeric:
        values = raw.astype(np.float64)
        return to_arrow(values, np.isnan(values) if raw.dtype.kind == "f" else None, column.arrow)
    return column.coding.to_column(raw)
