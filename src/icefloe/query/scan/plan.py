"""Plan a scan: select rows and columns of a table, and divide its chunks among tasks.

A partition is a sequence of blocks. Block boundaries are chunk boundaries that all variables share.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.query.scan.conditions import ValueFilter
from icefloe.query.scan.data_skipping import (
    BlockGrid,
    ChunkCounts,
    TableStatistics,
    count_chunks,
    find_skipped,
)
from icefloe.query.scan.selection import Coordinates, Indices, Selection, select_labels, select_positions
from icefloe.query.schema import ArrayTable
from icefloe.session import Session

PARTITION_BYTES: Final = 64 * 2**20
BATCH_ROWS: Final = 65536
_ROWS_WITHOUT_CHUNKS: Final = 2**20
"""The number of rows per block in a table that has no variables and therefore no chunks."""


@dataclass(frozen=True, slots=True)
class TableScan:
    """The plan of a scan: the rows and columns of a table to read."""

    session: Session
    table: ArrayTable
    """The schema of the selected columns."""
    coordinates: Coordinates
    """The coordinate values of the whole table."""
    selection: Selection
    location: str = ""
    """The repository location and version, for display."""
    partition_bytes: int = PARTITION_BYTES
    batch_rows: int = BATCH_ROWS
    statistics: TableStatistics | None = None
    """The chunk statistics; None if the scan does not use statistics."""
    filters: tuple[ValueFilter, ...] = ()
    """Conditions on variables. The scan returns all rows that satisfy them, and possibly other rows."""

    def sel(self, indexers: Mapping[str, Any] | None = None, **labels: Any) -> Self:
        """Restrict a scan to the cells with the given coordinate labels, like xarray's `sel`.

        Parameters
        ----------
        indexers, **labels
            A label, a list of labels or a slice for each coordinate. Both ends of a slice are included.
        """
        wanted = {**(indexers or {}), **labels}
        return replace(self, selection=select_labels(self.coordinates, self.selection, wanted))

    def isel(self, indexers: Mapping[str, Any] | None = None, **positions: Any) -> Self:
        """Restrict a scan to the cells at the given positions along dimensions, like xarray's `isel`.

        Parameters
        ----------
        indexers, **positions
            A position, a list of positions or a slice for each dimension.
        """
        wanted = {**(indexers or {}), **positions}
        return replace(self, selection=select_positions(self.table, self.selection, wanted))

    def select(self, *names: str | Iterable[str]) -> Self:
        """Restrict a scan to the given columns. Other variables are not read.

        Parameters
        ----------
        *names
            Column names, or lists of names, in the desired order.
        """
        flat = [each for name in names for each in ([name] if isinstance(name, str) else name)]
        return replace(self, table=self.table.select_columns(flat))

    def plan(self) -> ScanPlan:
        """Plan how to divide the chunks of the scan among tasks.

        Chunks in which no cell satisfies the filters are skipped.
        """
        made = make_plan(self.table, self.selection, partition_bytes=self.partition_bytes)
        if self.statistics is None or not self.filters:
            return made
        skipped = find_skipped(self.statistics, made.edges, self.filters, self.coordinates.table.column)
        return made.keep(~skipped)

    @property
    def title(self) -> str:
        """A title for the scan in Spark's web UI: repository, version and arrays."""
        return self.title_of(column.name for column in self.table.variables)

    def title_of(self, variables: Iterable[str]) -> str:
        """Return a title for the scan in Spark's web UI that names the given variables."""
        prefix = self.table.group.rstrip("/") + "/"
        arrays = ", ".join(prefix + name for name in variables)
        return f"{self.location} @ {self.session.snapshot_id}: {arrays or self.table.group}"


def scan_table(
    session: Session, table: ArrayTable, location: str = "", *, statistics: bool = True
) -> TableScan:
    """Plan a scan of all rows and columns of a table."""
    everything, known = Selection.everything(table), TableStatistics(session) if statistics else None
    return TableScan(session, table, Coordinates(session, table), everything, location, statistics=known)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one dimension between two chunk boundaries, and the selected indices in it."""

    start: int
    stop: int
    wanted: Indices | None
    """The selected indices, relative to the dimension; None if the whole span is selected."""

    @property
    def count(self) -> int:
        """The number of indices that a scan selects within this range of the dimension."""
        return self.stop - self.start if self.wanted is None else len(self.wanted)


Block = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The plan of a scan: the blocks to read, divided into partitions.

    Blocks are numbered with the dimensions in `order`, the last varying fastest. A block contains whole
    chunks of every variable, so no chunk belongs to two blocks.
    """

    table: ArrayTable
    selection: Selection
    edges: tuple[NDArray[np.int64], ...]
    """The start and stop of each span that contains selected indices, per dimension, as arrays of shape (n,
    2).
    """
    order: tuple[int, ...]
    """The dimensions in the order in which blocks are numbered."""
    starts: NDArray[np.int64]
    """The first block of each partition, followed by the total number of blocks. If `kept` is set, these are
    positions in `kept`."""
    kept: NDArray[np.int64] | None = None
    """The numbers of the blocks to read, in ascending order; None to read all blocks."""

    def __reduce__(self) -> Any:
        """Pickle the plan with its boundaries as compressed differences, because every task receives a
        copy.
        """
        return _restore_plan, (
            _drop_edges(self.table),
            *map(_pack, (self.edges, self.selection.indices)),
            self.order,
            _pack((self.starts, self.kept)),
        )

    @property
    def partitions(self) -> int:
        """The number of partitions in the plan."""
        return len(self.starts) - 1

    def blocks(self, partition: int) -> Iterator[Block]:
        """Yield the blocks of one partition."""
        first, last = int(self.starts[partition]), int(self.starts[partition + 1])
        numbers = range(first, last) if self.kept is None else self.kept[first:last].tolist()
        return map(self.block, numbers)

    def block(self, number: int) -> Block:
        """Return the block with the given number, as one span per dimension."""
        shape = tuple(len(self.edges[axis]) for axis in self.order)
        places = dict(zip(self.order, np.unravel_index(number, shape), strict=True))
        return tuple(self.make_span(axis, int(places[axis])) for axis in range(len(self.edges)))

    def keep(self, wanted: NDArray[np.bool_]) -> ScanPlan:
        """Return a plan with only some of the blocks, given as a mask over the block grid.

        Each block stays in its partition. Empty partitions are removed.
        """
        if wanted.all():
            return self
        # From now on, `starts` are positions in `kept`. A partition without kept blocks starts where the next
        # one does, so `unique` removes it.
        kept = np.flatnonzero(wanted.transpose(self.order).ravel()).astype(np.int64)
        starts = np.unique(np.searchsorted(kept, self.starts)).astype(np.int64)
        return replace(self, starts=starts if len(kept) else np.zeros(1, np.int64), kept=kept)

    def count_chunks(self, answered: NDArray[np.bool_] | None = None) -> ChunkCounts:
        """Count the chunks that the scan reads, skips, and computes from statistics."""
        table, shape = self.table, tuple(map(len, self.edges))
        total = count_chunks(table.variables)
        if not total or not all(shape):
            return ChunkCounts(total)
        arrays = {column.array.path: column for column in table.variables if column.array is not None}
        inside = sum(BlockGrid(column, self.edges).chunks for column in arrays.values())
        blocks = np.asarray(inside)
        read = int(blocks.sum())
        if self.kept is not None:
            read = int(blocks.transpose(self.order).ravel()[self.kept].sum()) if len(self.kept) else 0
        found = 0 if answered is None else int(blocks[answered].sum())
        return ChunkCounts(total, found, read)

    def make_span(self, axis: int, place: int) -> Span:
        """Return a span along a dimension by number, with its selected indices."""
        start, stop = map(int, self.edges[axis][place])
        wanted = self.selection.indices[axis]
        if wanted is None:
            return Span(start, stop, None)
        first, last = np.searchsorted(wanted, (start, stop))
        if last - first == stop - start:
            return Span(start, stop, None)
        return Span(start, stop, wanted[first:last])

    @property
    def rows(self) -> int:
        """The number of rows that a scan selects."""
        return int(np.prod(self.selection.counts(self.table), dtype=np.int64))


def make_plan(
    table: ArrayTable,
    selection: Selection,
    *,
    partition_bytes: int = PARTITION_BYTES,
    order: Sequence[int] | None = None,
) -> ScanPlan:
    """Divide a scan into partitions: runs of consecutive blocks with about the given number of bytes."""
    axes = tuple(range(len(table.dims)) if order is None else order)
    spans = [
        _find_spans(edges, wanted)
        for edges, wanted in zip(_find_borders(table), selection.indices, strict=True)
    ]
    counts = [_count_selected(span, wanted) for span, wanted in zip(spans, selection.indices, strict=True)]
    rows = np.ones(1, np.int64)
    for axis in axes:
        rows = np.multiply.outer(rows, counts[axis]).ravel()
    width = sum(estimate_width(column.arrow) for column in table.columns)
    starts = _cut_partitions(rows, max(partition_bytes // max(width, 1), 1))
    return ScanPlan(table, selection, tuple(spans), axes, starts)


def _find_borders(table: ArrayTable) -> list[NDArray[np.int64]]:
    if table.variables or not table.dims:
        return table.edges()
    borders = [np.arange(size + 1) for size in table.shape]
    room = _ROWS_WITHOUT_CHUNKS
    for axis in range(len(table.dims) - 1, -1, -1):
        step = max(min(room, table.shape[axis]), 1)
        borders[axis] = np.append(np.arange(0, table.shape[axis], step), table.shape[axis])
        room //= step
    return borders


def _find_spans(borders: NDArray[np.int64], wanted: Indices | None) -> NDArray[np.int64]:
    """Return the spans between boundaries that contain selected indices, as an array of shape (n, 2)."""
    spans = np.stack([borders[:-1], borders[1:]], axis=1)
    if wanted is None:
        return spans[spans[:, 1] > spans[:, 0]]
    return spans[np.unique(np.searchsorted(borders, wanted, side="right") - 1)]


def _count_selected(spans: NDArray[np.int64], wanted: Indices | None) -> NDArray[np.int64]:
    if wanted is None:
        return np.asarray(spans[:, 1] - spans[:, 0], np.int64)
    bounds = np.searchsorted(wanted, spans)
    return np.asarray(bounds[:, 1] - bounds[:, 0], np.int64)


def _cut_partitions(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the first block of each partition. A partition has at most `most` rows, or consists of a single
    block.
    """
    if not len(rows):
        return np.zeros(1, np.int64)
    before = np.cumsum(rows) - rows
    total = int(before[-1] + rows[-1])
    count = max(-(-total // most), 1)
    even = -(-total // count)  # partitions of equal size, so that the last one is not small
    starts = np.unique(np.searchsorted(before, np.arange(0, total, max(even, 1))))
    return np.append(starts[starts < len(rows)], len(rows)).astype(np.int64)


def estimate_width(arrow: pa.DataType) -> int:
    """Estimate the number of bytes per value of an Arrow type."""
    try:
        return max(int(arrow.bit_width) // 8, 1)
    except ValueError:  # text has no fixed width
        return 16


Packed = tuple[tuple[tuple[int, ...], bytes] | None, ...]


def _pack(columns: Sequence[NDArray[np.int64] | None]) -> Packed:
    """Compress columns of ascending numbers by storing their differences."""
    return tuple(
        None
        if column is None
        else (column.shape, zlib.compress(np.diff(column, axis=0, prepend=0).tobytes(), 1))
        for column in columns
    )


def _restore_plan(
    table: ArrayTable, edges: Packed, indices: Packed, order: tuple[int, ...], starts: Packed
) -> ScanPlan:
    first, kept = _unpack(starts)
    if first is None:
        raise ValueError("the pickled plan has no partitions")
    borders = tuple(column for column in _unpack(edges) if column is not None)
    return ScanPlan(table, Selection(tuple(_unpack(indices))), borders, order, first, kept)


def _unpack(packed: Packed) -> list[NDArray[np.int64] | None]:
    return [
        None
        if each is None
        else np.cumsum(np.frombuffer(zlib.decompress(each[1]), np.int64).reshape(each[0]), axis=0)
        for each in packed
    ]


def _drop_edges(table: ArrayTable) -> ArrayTable:
    """Return the table schema without chunk boundaries, which tasks do not need."""
    return replace(
        table,
        columns=tuple(
            column if column.array is None else replace(column, array=replace(column.array, edges=()))
            for column in table.columns
        ),
    )
