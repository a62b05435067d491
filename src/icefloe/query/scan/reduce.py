"""Aggregates over arrays as arrays: each task reduces its chunks in numpy, and only results become rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import quoted, to_arrow
from icefloe.query.scan.groups import Axis, Key, grouped, term_of
from icefloe.query.scan.moments import EXTREMES, Moment, Moments, moment_of, numbers_of
from icefloe.query.scan.plan import Plan, plan, width_of
from icefloe.query.scan.read import Values, read_blocks
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import Role, Table, unknown
from icefloe.session import Session

FUNCTIONS: Final = ("count", "sum", "mean", "min", "max", "std", "var")

MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "count": ("count",),
    "sum": ("count", "sum"),
    "mean": ("count", "sum"),
    "min": ("count", "min"),
    "max": ("count", "max"),
    "std": ("count", "shifted", "squares"),
    "var": ("count", "shifted", "squares"),
}
"""What has to be kept of a variable for each function."""


@dataclass(frozen=True, slots=True)
class Result:
    """A column of the result that is computed."""

    name: str
    variable: str
    function: str
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What each task does."""

    plan: Plan
    axes: tuple[Axis, ...]
    keys: tuple[Key, ...]
    moments: tuple[Moment, ...]
    results: tuple[Result, ...]
    whole: bool
    """Whether no group is in two partitions: the results of a task are final."""
    shifts: Mapping[str, float]
    """About the mean of each variable: squares of what is left lose no digits."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the final result."""
        keys = [(key.name, key.arrow) for key in self.keys]
        return pa.schema([*keys, *((result.name, result.arrow) for result in self.results)])

    @property
    def partial_schema(self) -> pa.Schema:
        """The columns of what tasks hand over where groups are in several partitions."""
        keys = [(key.name, key.arrow) for key in self.keys]
        return pa.schema([*keys, *((moment.column, moment.arrow) for moment in self.moments)])

    @property
    def likely_rows(self) -> int:
        """About how many rows are handed over: for each block the groups that it has.

        A task has fewer where several of its blocks share groups, and more where its blocks are no box.
        """
        found = 1
        for axis, edges in zip(self.axes, self.plan.edges, strict=True):
            wanted = np.flatnonzero(axis.codes >= 0)
            block = np.searchsorted(edges[:, 0], wanted, side="right")
            found *= len(np.unique(block * (axis.groups + 1) + axis.codes[wanted]))
        return found


def aggregation(
    session: Session,
    coordinates: Coordinates,
    selection: Selection,
    by: Sequence[str],
    results: Mapping[str, Any],
    partition_bytes: int,
    slots: int = 8,
) -> Aggregation:
    """What is to be computed, in terms of the cells of a table, by tasks of which `slots` run at a time."""
    table = coordinates.table
    wanted = _results(table, results)
    terms = [term_of(coordinates, text) for text in by]
    axes = grouped(table.shape, selection, terms)
    keys = [axes[term.axis].key(term) for term in terms]
    moments = [
        moment_of(name, table.column(result.variable))
        for result in wanted
        for name in MOMENTS[result.function]
    ]
    return planned(session, table, selection, axes, keys, moments, partition_bytes, slots, wanted)


def planned(
    session: Session,
    table: Table,
    selection: Selection,
    axes: tuple[Axis, ...],
    keys: Sequence[Key],
    moments: Sequence[Moment],
    partition_bytes: int,
    slots: int = 8,
    results: tuple[Result, ...] = (),
) -> Aggregation:
    """The tasks for some moments of groups of cells. Without results they hand over moments in any case."""
    kept = tuple(dict.fromkeys(moments))
    narrow = table.only(dict.fromkeys(moment.variable for moment in kept if moment.variable))
    made, whole = _plan(narrow, selection, axes, partition_bytes, slots)
    shifts = _shifts(session, made, {moment.variable for moment in kept if moment.name == "squares"})
    return Aggregation(made, axes, tuple(keys), kept, results, whole and bool(results), shifts)


def _results(table: Table, given: Mapping[str, Any]) -> tuple[Result, ...]:
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
                raise unknown("aggregate", function, FUNCTIONS, f"for {variable}")
            column = table.column(variable)
            if column.role is not Role.VARIABLE:
                raise _refused(
                    f"{variable} is a coordinate; variables are aggregated, and grouped by coordinates"
                )
            numeric = pa.types.is_integer(column.arrow) or pa.types.is_floating(column.arrow)
            if not numeric and function != "count":
                raise _refused(f"{variable} is of type {column.arrow}, which has no {function}")
            plain = moment_of(function, column).arrow
            arrow = pa.float64() if function in ("mean", "std", "var") else plain
            found.append(Result(output, column.name, function, arrow))
    if not found:
        raise _refused("nothing is to be computed; say for example t2m='mean'")
    return tuple(found)


def _refused(sentence: str) -> InvalidInputError:
    return InvalidInputError(sentence, kind=ErrorKind.INVALID_ARRAY_METADATA)


def _plan(
    table: Table, selection: Selection, axes: Sequence[Axis], partition_bytes: int, slots: int
) -> tuple[Plan, bool]:
    """Blocks in an order in which those of a group follow each other, in partitions of whole groups."""
    if not table.columns:  # cells are counted, not looked at
        spans = tuple(np.array([[0, size]][: min(size, 1)], np.int64).reshape(-1, 2) for size in table.shape)
        rows = int(all(selection.counts(table)))
        return Plan(table, selection, spans, tuple(range(len(axes))), np.arange(rows + 1)), True
    rough = plan(table, selection, partition_bytes=partition_bytes)
    apart = [axis for axis in range(len(axes)) if _is_apart(axes[axis], rough.edges[axis])]
    order = [*apart, *(axis for axis in range(len(axes)) if axis not in apart)]
    made = plan(table, selection, partition_bytes=partition_bytes, order=order)
    inner = int(np.prod([len(made.edges[axis]) for axis in order[len(apart) :]], dtype=np.int64))
    boxes = int(np.prod([len(made.edges[axis]) for axis in apart], dtype=np.int64))
    if made.partitions > 1 and boxes < min(made.partitions, slots):
        groups = int(np.prod([axis.groups for axis in axes], dtype=np.int64))
        wanted = max(made.rows // max(_CELLS_PER_GROUP * groups, 1), slots)
        size = made.rows * sum(width_of(column.arrow) for column in table.columns)
        larger = max(partition_bytes, -(-size // wanted))
        return plan(table, selection, partition_bytes=larger, order=order), False
    count = max(min(made.partitions, boxes), 0)
    starts = np.unique(np.linspace(0, boxes, count + 1).astype(np.int64)) * inner if count else made.starts
    return Plan(table, selection, made.edges, made.order, starts), True


_CELLS_PER_GROUP: Final = 128
"""Where tasks share groups, each has so many cells for a group that it hands over, or all slots are busy."""


def _is_apart(axis: Axis, edges: NDArray[np.int64]) -> bool:
    """Whether no group of a dimension is in two blocks."""
    if axis.groups < 2:
        return len(edges) < 2
    wanted = np.flatnonzero(axis.codes >= 0)
    block = np.searchsorted(edges[:, 0], wanted, side="right")
    low, high = np.full(axis.groups, len(edges) + 1), np.zeros(axis.groups, np.int64)
    np.minimum.at(low, axis.codes[wanted], block)
    np.maximum.at(high, axis.codes[wanted], block)
    return bool((low == high).all())


def _shifts(session: Session, made: Plan, variables: set[str]) -> dict[str, float]:
    """A number near the mean of each variable, from its first block."""
    if not variables or not made.partitions:
        return {}
    narrow = made.table.only(variables)
    first = Plan(narrow, made.selection, made.edges, made.order, np.array([0, 1]))
    ((_, values),) = read_blocks(session, first, 0)
    found = {}
    for column, raw in zip(narrow.columns, values, strict=True):
        numbers, missing = numbers_of(column, raw)
        there = numbers if missing is None else numbers[~missing]
        found[column.name] = float(there.astype(np.float64).mean()) if there.size else 0.0
    return found


def run_partition(session: Session, order: Aggregation, partition: int) -> Iterator[pa.RecordBatch]:
    """The groups of one partition: final results, or moments to be put together with those of others."""
    blocks = list(order.plan.blocks(partition))
    found = Moments(order.axes, order.plan.table.columns, order.moments, order.shifts, blocks)
    for block, values in read_blocks(session, order.plan, partition):
        found.add(block, values)
    shape = tuple(len(groups) for groups in found.groups)
    columns = [_spread(key, found.groups[key.axis], shape) for key in order.keys]
    moments = {(moment.variable, moment.name): found.column(moment) for moment in order.moments}
    if order.whole:
        columns += [_final(result, moments) for result in order.results]
        yield pa.RecordBatch.from_arrays(columns, schema=order.schema)
        return
    for moment in order.moments:
        values_here = moments[moment.variable, moment.name]
        empty = None
        if moment.name in ("sum", *EXTREMES):
            empty = moments[moment.variable, "count"] == 0
        columns.append(pa.array(values_here, moment.arrow, mask=empty))
    yield pa.RecordBatch.from_arrays(columns, schema=order.partial_schema)


def _spread(key: Key, groups: NDArray[np.int64], shape: tuple[int, ...]) -> pa.Array:
    """A key of all groups of a grid."""
    missing = None if key.missing is None else key.missing[groups]
    once = to_arrow(key.values[groups], missing, key.arrow)
    places = np.arange(len(groups)).reshape([-1 if a == key.axis else 1 for a in range(len(shape))])
    return once.take(pa.array(np.broadcast_to(places, shape).reshape(-1)))


def _final(result: Result, moments: Mapping[tuple[str, str], Values]) -> pa.Array:
    """A result from the moments of its groups: null where a group has no values."""
    count = moments[result.variable, "count"]
    if result.function == "count":
        return pa.array(count, result.arrow)
    if result.function in ("sum", "min", "max"):
        return pa.array(moments[result.variable, result.function], result.arrow, mask=count == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if result.function == "mean":
            return pa.array(moments[result.variable, "sum"] / count, result.arrow, mask=count == 0)
        total, squares = moments[result.variable, "shifted"], moments[result.variable, "squares"]
        variance = np.maximum(squares - total * total / count, 0.0) / (count - 1)
        found = np.sqrt(variance) if result.function == "std" else variance
    return pa.array(found, result.arrow, mask=count < 2)


def combined(order: Aggregation) -> list[tuple[str, str]]:
    """For each column of the result the SQL that makes it of what tasks handed over, and its name."""
    found = [(quoted(key.name), key.name) for key in order.keys]
    return found + [(merged(each.function, each.variable), each.name) for each in order.results]


def merged(function: str, variable: str) -> str:
    """The SQL that puts the moments of a variable together: an aggregate, null where there are no values."""

    def total(moment: str) -> str:
        return f"sum({quoted(f'{variable}.{moment}')})"

    match function:
        case "count":
            return f"coalesce({total('count')}, 0)"
        case "sum":
            return total("sum")
        case "mean":
            return f"(CAST({total('sum')} AS double) / nullif({total('count')}, 0))"
        case "min" | "max":
            return f"{function}({quoted(f'{variable}.{function}')})"
    count = total("count")
    squares = f"{total('squares')} - {total('shifted')} * {total('shifted')} / {count}"
    least, divisor = (0, count) if function.endswith("_pop") else (1, f"({count} - 1)")
    variance = f"greatest({squares}, CAST(0 AS double)) / {divisor}"
    if function.startswith("std"):
        variance = f"sqrt({variance})"
    return f"(CASE WHEN {count} > {least} THEN {variance} END)"
