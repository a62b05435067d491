"""Compute the moments of blocks from chunk statistics, without reading chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.maintenance.statistics.lookup import ChunkStatistics
from icefloe.query.decode import Coding, Mask, Values
from icefloe.query.scan.conditions import ValueFilter
from icefloe.query.scan.data_skipping import (
    BlockGrid,
    FilteredChunks,
    TableStatistics,
    combine_masks,
    decode_extremes,
    filter_chunks,
    group_filters,
)
from icefloe.query.scan.groups import GroupedAxis
from icefloe.query.scan.moments import EXTREMES, WIDE_SUM, Moment, get_neutral
from icefloe.query.scan.plan import ScanPlan

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class _Variable:
    """A variable with the statistics of its chunks."""

    statistics: ChunkStatistics
    coding: Coding
    grid: BlockGrid
    filtered: FilteredChunks | None
    """The filters of this variable, evaluated on its chunk statistics; None without filters."""

    @property
    def counted(self) -> Mask:
        """A mask of the chunks that have non-missing values, all of which satisfy the filters."""
        if self.filtered is not None:
            return self.filtered.values
        return np.asarray(self.statistics.rows.nulls < self.statistics.cells, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class BlockDecisions:
    """Masks of the blocks to skip and of the blocks to compute from statistics, in the shape of the block
    grid.
    """

    skipped: Mask
    answered: Mask
    codes: tuple[NDArray[np.int64], ...]
    """The group number of each span, per dimension; -1 if a span contains cells of several groups."""
    cells: NDArray[np.int64]
    """The number of cells that satisfy the filters in each block that is computed from statistics."""
    variables: Mapping[str, _Variable]


def decide_blocks(
    statistics: TableStatistics,
    plan: ScanPlan,
    axes: Sequence[GroupedAxis],
    moments: Sequence[Moment],
    filters: Sequence[ValueFilter],
) -> BlockDecisions:
    """Decide for each block of a scan whether to skip it, compute it from statistics, or read it."""
    spans, shape = plan.edges, tuple(map(len, plan.edges))
    codes = tuple(_find_codes(axis, span) for axis, span in zip(axes, spans, strict=True))
    variables = _load_variables(statistics, plan, filters)
    cells = _multiply([span[:, 1] - span[:, 0] for span in spans])
    skipped, entire = np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
    names = {each.variable for each in filters}
    for name in names:
        found = variables.get(name)
        if found is None or found.filtered is None:
            entire = np.zeros(shape, np.bool_)
            continue
        skipped |= found.grid.reduce(found.filtered.never, np.logical_and)
        entire &= found.grid.reduce(found.filtered.entire, np.logical_and)
    known = _find_usable(variables, moments, shape)
    # If the filters and the moments concern one variable, missing values do not matter: a block can be
    # computed if all of its non-missing values satisfy the filters, not only if all of its cells do.
    if len(names) == 1 and {moment.variable for moment in moments} - {""} <= names & variables.keys():
        (only,) = (variables[name] for name in names & variables.keys())
        if only.filtered is not None:
            entire = only.grid.reduce(only.filtered.settled, np.logical_and)
            cells = only.grid.reduce(only.filtered.rows, np.add)
    single = _multiply([(code >= 0).astype(np.int64) for code in codes]) > 0
    return BlockDecisions(skipped, single & known & entire & ~skipped, codes, cells, variables)


def _load_variables(
    statistics: TableStatistics, plan: ScanPlan, filters: Sequence[ValueFilter]
) -> dict[str, _Variable]:
    found, by_name = {}, group_filters(filters)
    for column in plan.table.columns:
        known = statistics.get(column)
        if known is not None and column.coding is not None and not column.numeric:
            mine = by_name.get(column.name)
            filtered = filter_chunks(known, column.coding, mine) if mine else None
            grid = BlockGrid(column, plan.edges)
            found[column.name] = _Variable(known, column.coding, grid, filtered)
    return found


def _find_codes(axis: GroupedAxis, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the group number of each span; -1 if a span contains several groups or is only partly
    selected.
    """
    if not len(spans):
        return np.zeros(0, np.int64)
    # Spans are ascending and do not overlap: reduce each one, and ignore the gaps between them.
    codes = np.append(axis.codes, axis.codes[-1])
    low, high = (operation.reduceat(codes, spans.ravel())[::2] for operation in (np.minimum, np.maximum))
    return np.where(low == high, low, -1)


def _multiply(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    found = np.ones((), np.int64)
    for part in parts:
        found = np.multiply.outer(found, part)
    return np.asarray(found)


def _find_usable(
    variables: Mapping[str, _Variable], moments: Sequence[Moment], shape: tuple[int, ...]
) -> Mask:
    """Return a mask of the blocks whose chunk statistics suffice to compute all requested moments."""
    masks = []
    for moment in moments:
        if not moment.variable:
            continue
        found = variables.get(moment.variable)
        if found is None:
            return np.zeros(shape, np.bool_)
        rows, meaning = found.statistics.rows, found.statistics.meaning
        usable = found.statistics.known
        if moment.name in EXTREMES:
            usable = usable & meaning.has_extremes
        elif moment.name != "count":  # chunks that contain infinities must be read
            usable = usable & meaning.has_sums & np.isfinite(rows.total) & np.isfinite(rows.m2)
        masks.append(found.grid.reduce(usable, np.logical_and))
    return combine_masks(masks, shape)


def answer_moments(
    decision: BlockDecisions, moments: Sequence[Moment], shifts: Mapping[str, float]
) -> tuple[tuple[NDArray[np.int64], ...], dict[Moment, Values]]:
    """Compute the moments of each group from chunk statistics, for all blocks that do not have to be read."""
    groups, reduce = _number_groups(decision)
    found: dict[Moment, Values] = {}
    for moment in moments:
        if not moment.variable:
            found[moment] = reduce(decision.cells, np.add)
        else:
            found[moment] = _answer(decision.variables[moment.variable], moment, shifts, reduce)
    return groups, found


Reduce = Callable[[Values, Any], Values]
"""A function that reduces one value per block to one value per group with a numpy ufunc. Only blocks that are
computed from statistics count.
"""


def _number_groups(decision: BlockDecisions) -> tuple[tuple[NDArray[np.int64], ...], Reduce]:
    """Return the groups of the blocks that are computed from statistics, and a function that reduces values
    per block to values per group."""
    answered = decision.answered
    everything = bool(answered.all())
    counts = [int(code.max(initial=0)) + 1 for code in decision.codes]
    if max(counts, default=1) == 1:  # a single group needs no sorting

        def reduce_all(values: Values, operation: Any) -> Values:
            return np.asarray([operation.reduce(values.ravel() if everything else values[answered])])

        return tuple(np.zeros(1, np.int64) for _ in counts), reduce_all
    codes = [code[at] for code, at in zip(decision.codes, np.nonzero(answered), strict=True)]
    numbers = np.ravel_multi_index(codes, counts)
    order = None if (numbers[1:] >= numbers[:-1]).all() else np.argsort(numbers, kind="stable")
    ordered = numbers if order is None else numbers[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))

    def reduce(values: Values, operation: Any) -> Values:
        chosen = values[answered]
        return np.asarray(operation.reduceat(chosen if order is None else chosen[order], starts))

    groups = np.unravel_index(ordered[starts], counts)
    return tuple(np.asarray(each, np.int64) for each in groups), reduce


def _answer(variable: _Variable, moment: Moment, shifts: Mapping[str, float], reduce: Reduce) -> Values:
    rows, grid, counted = variable.statistics.rows, variable.grid, variable.counted
    counts = np.where(counted, variable.statistics.cells - rows.nulls, 0)
    if moment.name == "count":
        return np.asarray(reduce(grid.reduce(counts, np.add), np.add))
    if moment.name in EXTREMES:
        low, high = decode_extremes(variable.statistics, variable.coding)
        values = low if moment.name == "min" else high
        dtype = np.dtype("M8[us]") if values.dtype.kind == "M" else np.dtype(moment.arrow.to_pandas_dtype())
        values = np.where(counted, values.astype(dtype), get_neutral(dtype, moment.name))
        operation = np.minimum if moment.name == "min" else np.maximum
        return np.asarray(reduce(grid.reduce(values, operation), operation))
    if moment.name == "sum" and variable.statistics.meaning.is_integer:
        return _answer_integers(variable, moment, reduce)
    totals = np.where(counted, rows.total, 0.0)
    if moment.name == "sum":
        return np.asarray(reduce(grid.reduce(totals, np.add), np.add))
    offsets = totals - counts * shifts.get(moment.variable, 0.0)
    if moment.name == "shifted":
        return np.asarray(reduce(grid.reduce(offsets, np.add), np.add))
    squares = np.where(counted, rows.m2 + offsets * offsets / np.maximum(counts, 1), 0.0)
    return np.asarray(reduce(grid.reduce(squares, np.add), np.add))


def _answer_integers(variable: _Variable, moment: Moment, reduce: Reduce) -> Values:
    """Compute exact sums of 64-bit integers from statistics, in three parts that cannot overflow."""
    rows = variable.statistics.rows
    parts = (rows.low & _LOW, rows.low >> _HALF, rows.high)
    sums = []
    for part in parts:
        values = np.where(variable.counted, part.astype(np.int64), np.int64(0))
        sums.append(reduce(variable.grid.reduce(values, np.add), np.add).astype(object))
    exact = sums[0] + sums[1] * (1 << 32) + sums[2] * (1 << 64)
    return np.asarray(exact if moment.arrow == WIDE_SUM else exact.astype(np.int64))
