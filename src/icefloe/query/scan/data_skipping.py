"""Decide from chunk statistics which blocks of a scan to skip, which to compute without reading, and which to
read.

Block boundaries are chunk boundaries that all variables share, so a block contains whole chunks of each
variable. A block is computed from statistics if it is selected completely and belongs to a single group, and
if the statistics determine which cells of each chunk satisfy the conditions: all, none, or all that are not
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.maintenance.statistics.lookup import ChunkStatistics, load_statistics
from icefloe.query.decode import TIMESTAMP, Coding, Mask, Values, is_number
from icefloe.query.scan.conditions import ValueFilter
from icefloe.query.schema import Column
from icefloe.session import Session

Spans = Sequence[NDArray[np.int64]]
"""The start and stop of each block along each dimension of a table, as arrays of shape (n, 2)."""


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """The numbers of chunks that a scan skips, computes from statistics, and reads."""

    chunks: int = 0
    """The total number of chunks of the scanned variables."""
    answered: int = 0
    """The number of chunks whose statistics are used instead of reading them."""
    read: int = 0

    @property
    def skipped(self) -> int:
        """The number of chunks that a scan neither reads nor computes from statistics."""
        return self.chunks - self.answered - self.read

    def __str__(self) -> str:
        return (
            f"{self.chunks} chunks: {self.skipped} skipped, {self.answered} from statistics, {self.read} read"
        )


@dataclass(slots=True)
class TableStatistics:
    """The chunk statistics of a table's variables, loaded on first use."""

    session: Session
    loaded: dict[str, ChunkStatistics | None] = field(default_factory=dict)

    def get(self, column: Column) -> ChunkStatistics | None:
        """Return the chunk statistics of a variable, or None if it has none."""
        if column.array is None:
            return None
        path = column.array.path
        if path not in self.loaded:
            self.loaded[path] = _without_far_times(load_statistics(self.session, path), column.coding)
        return self.loaded[path]

    def estimate_middle(self, column: Column) -> float | None:
        """Estimate the center of a variable's values as the median of its chunk means. Return None without
        statistics.
        """
        found = self.get(column)
        if found is None or not found.meaning.has_sums:
            return None
        counts = found.cells - found.rows.nulls
        usable = found.known & np.isfinite(found.rows.total) & (counts > 0)
        return float(np.median(found.rows.total[usable] / counts[usable])) if usable.any() else None


def _without_far_times(found: ChunkStatistics | None, coding: Coding | None) -> ChunkStatistics | None:
    """Drop the statistics of chunks that contain times outside the timestamp range. Reading these chunks is
    an error.
    """
    if found is None or coding is None or not found.meaning.has_extremes or found.meaning.has_sums:
        return found
    ends = (found.rows.minimum, found.rows.maximum)
    return replace(found, known=found.known & coding.can_decode(ends[0]) & coding.can_decode(ends[1]))


class BlockGrid:
    """The mapping between the chunks of one variable and the blocks of a scan."""

    def __init__(self, column: Column, spans: Spans) -> None:
        if column.array is None:
            raise ValueError(f"{column.name} has no chunks")
        self._axes = column.axes
        self._rows: list[NDArray[np.int64]] = []
        self._starts: list[NDArray[np.int64]] = []
        self._sizes: dict[int, NDArray[np.int64]] = {}
        """The number of the variable's chunks in each block, keyed by table dimension."""
        for axis, edges in zip(column.axes, column.array.edges, strict=True):
            first = np.searchsorted(edges, spans[axis][:, 0])
            last = np.maximum(np.searchsorted(edges, spans[axis][:, 1]), first + 1)
            sizes = last - first
            starts = np.cumsum(sizes) - sizes
            self._rows.append(np.repeat(first - starts, sizes) + np.arange(int(sizes.sum())))
            self._starts.append(starts)
            self._sizes[axis] = sizes
        self._counts = tuple(len(edges) - 1 for edges in column.array.edges)
        self._is_whole = all(
            len(rows) == count and (rows[-1:] == count - 1).all()
            for rows, count in zip(self._rows, self._counts, strict=True)
        )
        """True if the blocks contain all chunks of the variable."""

    @property
    def chunks(self) -> NDArray[np.int64]:
        """The number of chunks of the variable in each block of a scan."""
        found = np.ones((), np.int64)
        for axis in sorted(self._sizes):
            found = np.multiply.outer(found, self._sizes[axis])
        return np.asarray(found)

    def reduce(self, values: Values, operation: Any) -> Values:
        """Reduce one value per chunk, in chunk grid order, to one value per block."""
        found = values.reshape(self._counts)
        if not self._is_whole:
            found = found[np.ix_(*self._rows)]
        for axis, starts in enumerate(self._starts):
            if len(starts) < found.shape[axis] and len(starts):
                found = operation.reduceat(found, starts, axis=axis)
        order = sorted(range(len(self._axes)), key=self._axes.__getitem__)
        return np.asarray(found.transpose(order) if order else found)


@dataclass(frozen=True, slots=True, eq=False)
class FilteredChunks:
    """A filter evaluated on chunk statistics, with one entry per chunk."""

    never: Mask
    """True if no cell of the chunk satisfies the condition."""
    settled: Mask
    """True if the statistics determine which cells satisfy the condition: either all non-missing values or
    none.
    """
    entire: Mask
    """True if every cell of the chunk satisfies the condition."""
    values: Mask
    """True if all non-missing values satisfy the condition."""
    rows: NDArray[np.int64]
    """The number of cells that satisfy the condition. Valid where `settled` is true."""


def filter_chunks(found: ChunkStatistics, coding: Coding, filters: Sequence[ValueFilter]) -> FilteredChunks:
    """Evaluate the filters of one variable on its chunk statistics.

    Chunks without statistics have to be read.
    """
    values = found.cells - found.rows.nulls
    may, must = np.ones(len(values), np.bool_), np.ones(len(values), np.bool_)
    for_null = True
    low, high = decode_extremes(found, coding)
    for each in filters:
        bounds = each.condition.bound(low, high)
        may, must = may & bounds.may, must & bounds.must
        for_null = for_null and each.condition.holds_for_null
    none, all_ = ~may | (values == 0), must | (values == 0)
    passing = np.where(all_, values, np.int64(0)) + (found.rows.nulls if for_null else np.int64(0))
    settled = found.known & (none | all_)
    never = found.known & none & ((found.rows.nulls == 0) | (not for_null))
    return FilteredChunks(never, settled, settled & (passing == found.cells), all_ & (values > 0), passing)


def decode_extremes(found: ChunkStatistics, coding: Coding) -> tuple[Values, Values]:
    """Decode the min and max of each chunk from its statistics. The smaller value comes first."""
    ordered = is_number(coding.arrow) or coding.arrow == TIMESTAMP
    if not found.meaning.has_extremes or not ordered:
        nothing = np.full(len(found.cells), np.nan)
        return nothing, nothing
    ends = (
        found.rows.minimum,
        found.rows.maximum,
    )  # those of unknown chunks may be outside the timestamp range
    one, two = (coding.decode_viewed(np.where(found.known, each, np.zeros((), each.dtype))) for each in ends)
    if coding.scale is not None and coding.scale < 0:
        one, two = two, one
    return one, two


def count_chunks(columns: Sequence[Column]) -> int:
    """Count all chunks of the given variables."""
    arrays = {column.array.path: column.array for column in columns if column.array is not None}
    return sum(
        int(np.prod([len(edges) - 1 for edges in array.edges], dtype=np.int64)) for array in arrays.values()
    )


def combine_masks(masks: Sequence[Mask], shape: tuple[int, ...]) -> Mask:
    """Combine masks of chunks or blocks with AND. Without masks, the result is all true."""
    found = np.ones(shape, np.bool_)
    for mask in masks:
        found &= mask
    return found


def group_filters(filters: Sequence[ValueFilter]) -> Mapping[str, list[ValueFilter]]:
    """Group scan filters by variable name."""
    found: dict[str, list[ValueFilter]] = {}
    for each in filters:
        found.setdefault(each.variable, []).append(each)
    return found


def find_skipped(
    statistics: TableStatistics,
    spans: Spans,
    filters: Sequence[ValueFilter],
    find_column: Callable[[str], Column],
) -> Mask:
    """Return a mask of the blocks that a scan can skip because none of their cells satisfies all filters."""
    skipped = np.zeros(tuple(map(len, spans)), np.bool_)
    for name, mine in group_filters(filters).items():
        column = find_column(name)
        found = statistics.get(column)
        if found is not None and column.coding is not None:
            never = filter_chunks(found, column.coding, mine).never
            skipped |= BlockGrid(column, spans).reduce(never, np.logical_and)
    return skipped
