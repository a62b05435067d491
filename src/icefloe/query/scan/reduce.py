"""Aggregate arrays with numpy: tasks reduce chunks, and only the results are converted to rows.

A task computes moments (counts, sums, minima, maxima, sums of squares) of its groups of cells. The groups of
a block form a grid, so a block is reduced along one dimension after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import TIMESTAMP, Mask, Values, is_number, to_arrow, unwrap_numbers, wrap_numbers
from icefloe.query.scan.answers import answer_moments, decide_blocks
from icefloe.query.scan.conditions import ValueFilter
from icefloe.query.scan.data_skipping import ChunkCounts
from icefloe.query.scan.groups import GroupedAxis, GroupTerm, group_indices, parse_term
from icefloe.query.scan.moments import (
    CELLS,
    EXTREMES,
    FUNCTIONS,
    MOMENTS,
    ROUNDING,
    WIDE_SUM,
    Moment,
    get_neutral,
    make_moment,
)
from icefloe.query.scan.plan import Block, ScanPlan, TableScan, estimate_width, make_plan
from icefloe.query.scan.read import read_blocks
from icefloe.query.scan.selection import Selection
from icefloe.query.schema import ArrayTable, Column, Role, make_unknown_name_error
from icefloe.session import Session


@dataclass(frozen=True, slots=True)
class Result:
    """A result column of an aggregation: an aggregate function applied to a variable."""

    name: str
    variable: str
    function: str
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The plan of an aggregation over a scan: groups, moments and partitions."""

    plan: ScanPlan
    axes: tuple[GroupedAxis, ...]
    keys: tuple[GroupTerm, ...]
    moments: tuple[Moment, ...]
    results: tuple[Result, ...]
    whole: bool
    """True if no group spans two partitions. The results of each task are then final and need no merging."""
    shifts: Mapping[str, float]
    """A value near the center of each variable, which is subtracted before squaring to preserve precision."""
    filters: tuple[ValueFilter, ...] = ()
    """Conditions on variables. Cells that do not satisfy them are ignored."""
    answers: Mapping[Moment, Values] | None = None
    """The moments of all blocks that are computed from statistics, with one value per group; None if there
    are no such blocks."""
    answered_groups: tuple[NDArray[np.int64], ...] = ()
    """The group numbers of the values in `answers`, per dimension."""
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    """The numbers of chunks that are skipped, computed from statistics, and read."""

    @property
    def tasks(self) -> int:
        """The number of tasks: one per partition, and one more if some blocks are computed from
        statistics.
        """
        return self.plan.partitions + (self.answers is not None)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the final result."""
        keys = [(key.name, key.arrow) for key in self.keys]
        return pa.schema([*keys, *((result.name, result.arrow) for result in self.results)])

    @property
    def partial_schema(self) -> pa.Schema:
        """The Arrow schema of the partial results (moments) that tasks return if partitions share groups."""
        keys = [(key.name, key.arrow) for key in self.keys]
        return pa.schema([*keys, *((moment.column, moment.arrow) for moment in self.moments)])

    @property
    def estimated_rows(self) -> int:
        """The estimated number of rows that all tasks return, which is the sum of the group counts of all
        blocks.

        The actual number is smaller if blocks of a task share groups, and larger if its blocks do not form a
        box.
        """
        found = 1
        for axis, edges in zip(self.axes, self.plan.edges, strict=True):
            wanted = np.flatnonzero(axis.codes >= 0)
            block = np.searchsorted(edges[:, 0], wanted, side="right")
            found *= len(np.unique(block * (axis.groups + 1) + axis.codes[wanted]))
        return found


def plan_aggregation(
    scan: TableScan, by: Sequence[str], results: Mapping[str, Any], slots: int = 8
) -> Aggregation:
    """Plan an aggregation of the cells of a scan.

    `slots` is the number of tasks that run at the same time.
    """
    table = scan.coordinates.table  # keys may be coordinates that are not selected
    wanted = _parse_results(table, results)
    terms = [parse_term(scan.coordinates, text) for text in by]
    moments = [
        make_moment(name, table.column(result.variable))
        for result in wanted
        for name in MOMENTS[result.function]
    ]
    return plan_moments(scan, terms, terms, moments, slots, wanted)


def plan_moments(
    scan: TableScan,
    terms: Sequence[GroupTerm],
    shown: Sequence[GroupTerm],
    moments: Sequence[Moment],
    slots: int = 8,
    results: tuple[Result, ...] = (),
) -> Aggregation:
    """Plan the reduction of the cells of a scan to moments per group. Without `results`, tasks return the
    moments themselves.

    The cells of a group have equal values of all `terms`. The keys of a group are the values of the `shown`
    terms at its first cell. Cells that do not satisfy the filters of the scan are ignored.
    """
    table, filters = scan.coordinates.table, scan.filters
    axes = group_indices(table.shape, scan.selection, terms)
    keys = tuple(axes[term.axis].key(term) for term in shown)
    kept = tuple(dict.fromkeys([*moments, *([make_moment("cells", None)] if filters else [])]))
    names = [moment.variable for moment in kept if moment.variable] + [each.variable for each in filters]
    narrow = table.select_columns(dict.fromkeys(names))
    made, whole = _plan_blocks(narrow, scan.selection, axes, scan.partition_bytes, slots)
    final = whole and bool(results) and not filters
    return _use_statistics(scan, Aggregation(made, axes, keys, kept, results, final, {}, filters))


def _use_statistics(scan: TableScan, aggregation: Aggregation) -> Aggregation:
    """Remove blocks from the plan that can be computed from statistics, or in which no cell satisfies the
    filters.
    """
    plan, statistics = aggregation.plan, scan.statistics
    columns = {column.name: column for column in plan.table.columns}
    squared = {moment.variable for moment in aggregation.moments if moment.name == "squares"}
    if statistics is None or not columns or not plan.partitions:
        shifts = _estimate_middles(scan.session, plan, squared)
        return replace(aggregation, shifts=shifts, counts=plan.count_chunks())
    decided = decide_blocks(statistics, plan, aggregation.axes, aggregation.moments, aggregation.filters)
    plan = plan.keep(~(decided.skipped | decided.answered))
    middles = {name: statistics.estimate_middle(columns[name]) for name in squared}
    shifts = {name: middle for name, middle in middles.items() if middle is not None}
    shifts |= _estimate_middles(scan.session, plan, squared - shifts.keys())
    counts = plan.count_chunks(decided.answered)
    found = replace(aggregation, plan=plan, shifts=shifts, counts=counts)
    if not decided.answered.any():
        return found
    groups, answers = answer_moments(decided, aggregation.moments, shifts)
    return replace(found, whole=False, answers=answers, answered_groups=groups)


def _parse_results(table: ArrayTable, given: Mapping[str, Any]) -> tuple[Result, ...]:
    found = []
    for name, what in given.items():
        if isinstance(what, tuple):
            pairs = [(name, *what)]
        elif isinstance(what, str):
            pairs = [(name, name, what)]
        else:
            pairs = [(f"{name}_{function}", name, function) for function in what]
        for output, variable, function in pairs:
            if function not in FUNCTIONS:
                raise make_unknown_name_error("aggregate", function, FUNCTIONS, f"for {variable}")
            column = table.column(variable)
            if column.role is not Role.VARIABLE:
                raise _make_invalid_aggregate_error(
                    f"{variable} is a coordinate; only variables can be aggregated"
                )
            timed = column.arrow == TIMESTAMP and function in EXTREMES
            if not is_number(column.arrow) and not timed and function != "count":
                raise _make_invalid_aggregate_error(
                    f"{function} is not defined for {variable}, which has type {column.arrow}"
                )
            plain = make_moment(function, column).arrow
            plain = pa.int64() if plain == WIDE_SUM else plain
            arrow = pa.float64() if function in ("mean", "std", "var") else plain
            found.append(Result(output, column.name, function, arrow))
    if not found:
        raise _make_invalid_aggregate_error("no aggregates given; pass at least one, for example t2m='mean'")
    return tuple(found)


def _make_invalid_aggregate_error(sentence: str) -> InvalidInputError:
    return InvalidInputError(sentence, kind=ErrorKind.INVALID_ARRAY_METADATA)


def _plan_blocks(
    table: ArrayTable, selection: Selection, axes: Sequence[GroupedAxis], partition_bytes: int, slots: int
) -> tuple[ScanPlan, bool]:
    """Order blocks so that the blocks of a group are adjacent, and form partitions of whole groups if
    possible.

    A dimension is *apart* if no group spans two of its blocks. If the dimensions that are apart vary slowest,
    the blocks between two of their indices form a box of whole groups. Partitions of whole boxes need no
    combination of partial results. If there are fewer boxes than task slots, partitions share groups instead,
    and Spark merges their moments.
    """
    if not table.columns:  # no variables: cells are only counted
        spans = tuple(np.array([[0, size]][: min(size, 1)], np.int64).reshape(-1, 2) for size in table.shape)
        rows = int(all(selection.counts(table)))
        return ScanPlan(table, selection, spans, tuple(range(len(axes))), np.arange(rows + 1)), True
    rough = make_plan(table, selection, partition_bytes=partition_bytes)
    apart = [axis for axis in range(len(axes)) if _is_apart(axes[axis], rough.edges[axis])]
    order = [*apart, *(axis for axis in range(len(axes)) if axis not in apart)]
    made = make_plan(table, selection, partition_bytes=partition_bytes, order=order)
    inner = int(np.prod([len(made.edges[axis]) for axis in order[len(apart) :]], dtype=np.int64))
    boxes = int(np.prod([len(made.edges[axis]) for axis in apart], dtype=np.int64))
    # Too few boxes would leave slots idle. Then partitions share groups, and grow so that each of them
    # reduces enough cells per group to be worth the combination of partial results.
    if made.partitions > 1 and boxes < min(made.partitions, slots):
        groups = int(np.prod([axis.groups for axis in axes], dtype=np.int64))
        wanted = max(made.rows // max(_CELLS_PER_GROUP * groups, 1), slots)
        size = made.rows * sum(estimate_width(column.arrow) for column in table.columns)
        larger = max(partition_bytes, -(-size // wanted))
        return make_plan(table, selection, partition_bytes=larger, order=order), False
    count = max(min(made.partitions, boxes), 0)
    starts = np.unique(np.linspace(0, boxes, count + 1).astype(np.int64)) * inner if count else made.starts
    return ScanPlan(table, selection, made.edges, made.order, starts), True


_CELLS_PER_GROUP: Final = 128
"""The minimum number of cells per group and task when groups are split among tasks to keep all slots busy."""


def _is_apart(axis: GroupedAxis, edges: NDArray[np.int64]) -> bool:
    """Return True if no group along a dimension spans two blocks."""
    if axis.groups < 2:
        return len(edges) < 2
    wanted = np.flatnonzero(axis.codes >= 0)
    block = np.searchsorted(edges[:, 0], wanted, side="right")
    low, high = np.full(axis.groups, len(edges) + 1), np.zeros(axis.groups, np.int64)
    np.minimum.at(low, axis.codes[wanted], block)
    np.maximum.at(high, axis.codes[wanted], block)
    return bool((low == high).all())


_SAMPLE: Final = 100_000
"""The sample size for estimating the median of a variable."""


def _estimate_middles(session: Session, made: ScanPlan, variables: set[str]) -> dict[str, float]:
    """Estimate the median of each variable from its first block."""
    if not variables or not made.partitions:
        return {}
    narrow = made.table.select_columns(variables)
    first = ScanPlan(narrow, made.selection, made.edges, made.order, np.array([0, 1]), made.kept)
    ((_, values),) = read_blocks(session, first, 0)
    found = {}
    for column, raw in zip(narrow.columns, values, strict=True):
        numbers, missing = decode_numbers(column, raw)
        there = (numbers if missing is None else numbers[~missing]).astype(np.float64)
        there = there[np.isfinite(there)]  # an infinite shift would make all squares NaN
        # The mean is unsuitable: a few outliers, such as undeclared fill values, would cost all other values
        # their precision. A sample is enough.
        sample = there[:: -(-there.size // _SAMPLE)] if there.size else np.zeros(1)
        found[column.name] = float(np.median(sample))
    return found


def reduce_partition(session: Session, aggregation: Aggregation, partition: int) -> Iterator[pa.RecordBatch]:
    """Reduce one partition to final results, or to moments that are merged later."""
    if partition == aggregation.plan.partitions:
        yield _make_answers(aggregation)
        return
    blocks = list(aggregation.plan.blocks(partition))
    found = GroupMoments(aggregation, blocks)
    for block, values in read_blocks(session, aggregation.plan, partition):
        found.add(block, values)
    shape = tuple(len(groups) for groups in found.groups)
    columns = [_repeat_key(key, found.groups[key.axis], shape) for key in aggregation.keys]
    if aggregation.whole:
        moments = {(moment.variable, moment.name): found.column(moment) for moment in aggregation.moments}
        columns += [finish_result(result, moments) for result in aggregation.results]
        yield pa.RecordBatch.from_arrays(columns, schema=aggregation.schema)
        return
    columns += _make_moments({moment: found.column(moment) for moment in aggregation.moments})
    batch = pa.RecordBatch.from_arrays(columns, schema=aggregation.partial_schema)
    if aggregation.filters:  # a group without cells has no row
        batch = batch.filter(wrap_numbers(unwrap_numbers(batch.column(CELLS))[0] > 0, pa.bool_()))
    yield batch


def _make_answers(aggregation: Aggregation) -> pa.RecordBatch:
    """Return the result rows of the groups that are computed from statistics."""
    keys = []
    for key in aggregation.keys:
        groups = aggregation.answered_groups[key.axis]
        missing = None if key.missing is None else key.missing[groups]
        keys.append(to_arrow(key.values[groups], missing, key.arrow))
    columns = [*keys, *_make_moments(aggregation.answers or {})]
    return pa.RecordBatch.from_arrays(columns, schema=aggregation.partial_schema)


def _make_moments(moments: Mapping[Moment, Values]) -> list[pa.Array]:
    """Convert moments to Arrow arrays. The sums, minima and maxima of groups without values become null."""
    counts = {moment.variable: values for moment, values in moments.items() if moment.name == "count"}
    columns = []
    for moment, values in moments.items():
        empty: Mask | None = None
        if moment.name in ("sum", *EXTREMES):
            empty = np.asarray(counts[moment.variable] == 0)
        if moment.arrow == WIDE_SUM:
            columns.append(pa.array([Decimal(each) for each in values], WIDE_SUM, mask=empty))
        else:
            columns.append(wrap_numbers(values, moment.arrow, empty))
    return columns


def _repeat_key(key: GroupTerm, groups: NDArray[np.int64], shape: tuple[int, ...]) -> pa.Array:
    """Broadcast the values of a group key to all groups of the grid."""
    missing = None if key.missing is None else key.missing[groups]
    once = to_arrow(key.values[groups], missing, key.arrow)
    places = np.arange(len(groups)).reshape([-1 if a == key.axis else 1 for a in range(len(shape))])
    return once.take(wrap_numbers(np.broadcast_to(places, shape), pa.int64()))


def finish_result(result: Result, moments: Mapping[tuple[str, str], Values]) -> pa.Array:
    """Compute a result column from the moments of each group. Groups without values become null."""
    count = moments[result.variable, "count"]
    if result.function == "count":
        return wrap_numbers(count, result.arrow)
    if result.function == "sum" and is_wide_sum(moments[result.variable, "sum"]):
        return to_bigint(moments[result.variable, "sum"], count == 0)
    if result.function in ("sum", "min", "max"):
        return wrap_numbers(moments[result.variable, result.function], result.arrow, count == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if result.function == "mean":
            total = moments[result.variable, "sum"].astype(np.float64)
            return wrap_numbers(total / count, result.arrow, count == 0)
        total, squares = moments[result.variable, "shifted"], moments[result.variable, "squares"]
        deviations = squares - total * total / count
        variance = np.where(deviations < ROUNDING * squares, 0.0, deviations) / (count - 1)
        found = np.sqrt(variance) if result.function == "std" else variance
    return wrap_numbers(found, result.arrow, count < 2)


def is_wide_sum(sums: Values) -> bool:
    """Return True if sums are Python integers, which may exceed 64 bits."""
    return sums.dtype == object


def to_bigint(sums: Values, empty: Mask) -> pa.Array:
    """Convert sums to 64-bit integers. Like Spark, raise an error if a sum does not fit."""
    limit = 1 << 63
    values = [None if none else int(each) for each, none in zip(sums, empty, strict=True)]
    if any(each is not None and not -limit <= each < limit for each in values):
        raise _make_invalid_aggregate_error("[ARITHMETIC_OVERFLOW] a sum of 64-bit integers exceeds 64 bits")
    return pa.array(values, pa.int64())


def decode_numbers(column: Column, raw: Values) -> tuple[Values, Mask | None]:
    """Decode stored values of a column to numbers. Also return a mask of missing values."""
    if column.coding is None:
        return raw, None
    return column.coding.decode(raw)


class GroupMoments:
    """Accumulators for the moments of all groups in some blocks of a scan, as arrays over the group grid."""

    def __init__(self, aggregation: Aggregation, blocks: Sequence[Block]) -> None:
        self._axes = aggregation.axes
        self._columns = aggregation.plan.table.columns
        self._shifts = aggregation.shifts
        self._filters = aggregation.filters
        self.groups = [
            np.unique(np.concatenate([_get_codes(axis, block[number]) for block in blocks]))
            for number, axis in enumerate(aggregation.axes)
        ]
        """The groups that occur in the blocks, per dimension."""
        shape = tuple(len(groups) for groups in self.groups)
        self._held = {moment: np.full(shape, *_get_initial(moment)) for moment in aggregation.moments}

    def column(self, moment: Moment) -> Values:
        """Return one moment for all groups, flattened in dimension order."""
        return self._held[moment].reshape(-1)

    def add(self, block: Block, values: Sequence[Values]) -> None:
        """Reduce the cells of a block, and merge the result into the moments of their groups."""
        inner = [_Reduction(_get_codes(axis, span)) for axis, span in zip(self._axes, block, strict=True)]
        places = np.ix_(
            *(np.searchsorted(groups, each.groups) for groups, each in zip(self.groups, inner, strict=True))
        )
        decoded = {
            column.name: decode_numbers(column, raw)
            for column, raw in zip(self._columns, values, strict=True)
        }
        dropped = self._find_dropped(decoded)
        for moment, held in self._held.items():
            if not moment.variable:
                held[places] += _count_cells(inner)
                if dropped is not None:
                    held[places] -= _reduce(dropped, np.add, inner, held.dtype)
        for column in self._columns:
            numbers, missing = decoded[column.name]
            if dropped is not None:
                missing = dropped if missing is None else missing | dropped
            for moment, held in self._held.items():
                if moment.variable == column.name:
                    with np.errstate(all="ignore"):  # infinities make sums infinite or NaN, as in Spark
                        self._take(moment, held, numbers, missing, inner, places)

    def _find_dropped(self, decoded: Mapping[str, tuple[Values, Mask | None]]) -> Mask | None:
        """Return a mask of the cells to ignore because they do not satisfy the filters. Return None without
        filters.
        """
        if not self._filters:
            return None
        masks = [each.condition.holds(*decoded[each.variable]) for each in self._filters]
        return np.asarray(~np.logical_and.reduce(masks), np.bool_)

    def _take(
        self,
        moment: Moment,
        held: Values,
        numbers: Values,
        missing: Mask | None,
        inner: Sequence[_Reduction],
        places: Any,
    ) -> None:
        if moment.name in EXTREMES:
            nothing = get_neutral(held.dtype, moment.name)
            cells = numbers if missing is None else np.where(missing, nothing, numbers)
            operation = np.minimum if moment.name == "min" else np.maximum
            # numpy reductions do not accept a dtype with a unit, so times are reduced as integers.
            dtype = np.dtype(np.int64) if held.dtype.kind == "M" else held.dtype
            found = _reduce(cells.astype(held.dtype, copy=False).view(dtype), operation, inner, dtype)
            held[places] = operation(held[places], found.view(held.dtype))
            return
        if moment.name == "count":
            held[places] += _count_cells(inner)
            if missing is not None:
                held[places] -= _reduce(missing, np.add, inner, held.dtype)
            return
        if moment.arrow == WIDE_SUM:
            held[places] += _sum_exactly(numbers, missing, inner)
            return
        cells = numbers
        if moment.name != "sum":
            cells = cells.astype(held.dtype) - self._shifts.get(moment.variable, 0.0)
        if moment.name == "squares":
            cells = cells * cells
        if missing is not None:
            cells = np.where(missing, cells.dtype.type(0), cells)
        held[places] += _reduce(cells, np.add, inner, held.dtype)


def _get_codes(axis: GroupedAxis, span: Any) -> NDArray[np.int64]:
    return axis.codes[span.start : span.stop] if span.wanted is None else axis.codes[span.wanted]


def _sum_exactly(numbers: Values, missing: Mask | None, inner: Sequence[_Reduction]) -> Values:
    """Sum the 64-bit integers of each group exactly, by combining the sums of their upper and lower halves
    into Python integers."""
    whole = numbers.astype(np.int64)
    if missing is not None:
        whole = np.where(missing, np.int64(0), whole)
    halves = (whole >> np.int64(32), whole & np.int64(0xFFFFFFFF))
    high, low = (_reduce(half, np.add, inner, np.dtype(np.int64)).astype(object) for half in halves)
    return np.asarray(high * (1 << 32) + low, object)


def _get_initial(moment: Moment) -> tuple[Any, np.dtype[Any]]:
    """Return the initial value and the dtype for accumulating a moment."""
    if moment.arrow == WIDE_SUM:
        return 0, np.dtype(object)
    dtype = np.dtype("M8[us]") if moment.arrow == TIMESTAMP else np.dtype(moment.arrow.to_pandas_dtype())
    return (get_neutral(dtype, moment.name) if moment.name in EXTREMES else 0), dtype


class _Reduction:
    """The order that sorts the cells along one dimension of a block by group, and the first cell of each
    group.
    """

    def __init__(self, codes: NDArray[np.int64]) -> None:
        self.size = len(codes)
        ordered = bool((codes[1:] >= codes[:-1]).all())
        self.order = None if ordered else np.argsort(codes, kind="stable")
        arranged = codes if self.order is None else codes[self.order]
        self.starts = (
            np.flatnonzero(np.append(True, arranged[1:] != arranged[:-1])) if self.size else np.zeros(0, int)
        )
        self.groups = arranged[self.starts]

    @property
    def is_identity(self) -> bool:
        """True if each cell forms a group of its own."""
        return len(self.starts) == self.size and self.order is None


def _count_cells(inner: Sequence[_Reduction]) -> NDArray[np.int64]:
    """Count the cells of each group in a block."""
    found = np.ones((), np.int64)
    for each in inner:
        found = np.multiply.outer(found, np.diff(np.append(each.starts, each.size)))
    return np.asarray(found)


def _reduce(cells: Values, operation: Any, inner: Sequence[_Reduction], dtype: np.dtype[Any]) -> Values:
    """Reduce the cells of a block along each dimension, starting with the one that shrinks the data most."""
    for axis in sorted(
        range(len(inner)), key=lambda axis: len(inner[axis].starts) / max(inner[axis].size, 1)
    ):
        each = inner[axis]
        if each.is_identity:
            continue
        if each.order is not None:
            cells = np.take(cells, each.order, axis)
        cells = _reduce_axis(cells, operation, each, axis, dtype)
    return cells.astype(dtype, copy=False)


def _reduce_axis(cells: Values, operation: Any, each: _Reduction, axis: int, dtype: np.dtype[Any]) -> Values:
    """Reduce cells along one dimension, using a dtype that cannot overflow."""
    if len(each.starts) == 1:
        return np.asarray(operation.reduce(cells, axis=axis, keepdims=True, dtype=dtype))
    if int(np.prod(cells.shape[axis + 1 :], dtype=np.int64)) < _MIN_RUN_CELLS:
        return np.asarray(operation.reduceat(cells, each.starts, axis=axis, dtype=dtype))
    # reduceat is five times slower here than one reduction per group, because it reduces cell by cell.
    shape = (*cells.shape[:axis], len(each.starts), *cells.shape[axis + 1 :])
    found = np.empty(shape, dtype)
    before: Any = (slice(None),) * axis
    for group, (start, stop) in enumerate(zip(each.starts, [*each.starts[1:], each.size], strict=True)):
        operation.reduce(
            cells[(*before, slice(start, stop))], axis=axis, dtype=dtype, out=found[(*before, group)]
        )
    return found


_MIN_RUN_CELLS: Final = 64
"""The minimum number of adjacent cells for which one reduction per group is faster than `reduceat`."""
