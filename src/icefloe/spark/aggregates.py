"""Aggregates over arrays as arrays: each task reduces its chunks in numpy, and only the results become rows.

Keys are coordinates along one dimension, or date parts of one. So the groups of a table are a grid: for each
dimension a code per index. A reduction goes along one dimension after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.session import Session
from icefloe.spark.coding import TIMESTAMP, quoted, to_arrow
from icefloe.spark.planning import Block, Plan, plan
from icefloe.spark.predicates import DATE_PARTS
from icefloe.spark.reading import read_blocks
from icefloe.spark.selection import Coordinates, Selection
from icefloe.spark.table import Column, Role, Table, unknown

Values = NDArray[Any]
FUNCTIONS: Final = ("count", "sum", "mean", "min", "max", "std", "var")
_TERM: Final = re.compile(r"\s*(\w+)\s*\(\s*(.+?)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class Key:
    """A column of the result that rows are grouped by."""

    name: str
    axis: int
    arrow: pa.DataType
    values: Values
    """Per group of the axis."""
    missing: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Axis:
    """How the indices of one dimension are grouped."""

    codes: NDArray[np.int64]
    """A group per index of the dimension; -1 where it is not wanted."""
    groups: int


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
    def moments(self) -> list[tuple[str, str, pa.DataType]]:
        """What is kept of each variable while groups are put together: variable, moment and type."""
        needed: dict[tuple[str, str], pa.DataType] = {}
        for result in self.results:
            column = self.plan.table.column(result.variable)
            for moment in _MOMENTS[result.function]:
                needed[result.variable, moment] = _moment_type(moment, column.arrow)
        return [(variable, moment, kind) for (variable, moment), kind in needed.items()]

    @property
    def partial_schema(self) -> pa.Schema:
        """The columns of what tasks hand over where groups are in several partitions."""
        keys = [(key.name, key.arrow) for key in self.keys]
        return pa.schema([*keys, *((f"{variable}.{name}", kind) for variable, name, kind in self.moments)])


_MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "count": ("count",),
    "sum": ("count", "sum"),
    "mean": ("count", "sum"),
    "min": ("count", "min"),
    "max": ("count", "max"),
    "std": ("count", "shifted", "squares"),
    "var": ("count", "shifted", "squares"),
}


def _moment_type(moment: str, column: pa.DataType) -> pa.DataType:
    if moment == "count":
        return pa.int64()
    if moment in ("min", "max"):
        return column
    return pa.int64() if moment == "sum" and pa.types.is_integer(column) else pa.float64()


def aggregation(
    session: Session,
    coordinates: Coordinates,
    selection: Selection,
    by: Sequence[str],
    results: Mapping[str, Any],
    partition_bytes: int,
) -> Aggregation:
    """What is to be computed, in terms of the cells of a table."""
    table = coordinates.table
    wanted = _results(table, results)
    axes, keys = _keys(coordinates, selection, by)
    names = list(dict.fromkeys(result.variable for result in wanted))
    narrow = table.only(names)
    made, whole = _plan(narrow, selection, axes, partition_bytes)
    spread = {result.variable for result in wanted if result.function in ("std", "var")}
    shifts = _shifts(session, made, spread)
    return Aggregation(made, axes, keys, wanted, whole, shifts)


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
            found.append(Result(output, column.name, function, _result_type(function, column.arrow)))
    if not found:
        raise _refused("nothing is to be computed; say for example t2m='mean'")
    return tuple(found)


def _result_type(function: str, column: pa.DataType) -> pa.DataType:
    """The type that Spark's own aggregate has."""
    if function in ("mean", "std", "var"):
        return pa.float64()
    return _moment_type(function, column)


def _refused(sentence: str) -> InvalidInputError:
    return InvalidInputError(sentence, kind=ErrorKind.INVALID_ARRAY_METADATA)


def _keys(
    coordinates: Coordinates, selection: Selection, by: Sequence[str]
) -> tuple[tuple[Axis, ...], tuple[Key, ...]]:
    """The groups along each dimension: indices with the same values of all its keys."""
    table = coordinates.table
    terms = [_term(coordinates, text) for text in by]
    axes: list[Axis] = []
    keys: dict[str, Key] = {}
    for axis, size in enumerate(table.shape):
        chosen = selection.indices[axis]
        indices = np.arange(size) if chosen is None else chosen
        mine = [term for term in terms if term[1].axes[0] == axis]
        codes = np.full(size, -1, np.int64)
        chosen_terms = [(values[indices], _at(missing, indices)) for _, _, values, missing in mine]
        codes[indices], first = _grouped(chosen_terms, len(indices))
        axes.append(Axis(codes, len(first)))
        for name, column, values, missing in mine:
            shown = indices[first]
            arrow = pa.int32() if name != column.name else column.arrow
            keys[name] = Key(name, axis, arrow, values[shown], _at(missing, shown))
    return tuple(axes), tuple(keys[name] for name, *_ in terms)


def _at(missing: NDArray[np.bool_] | None, indices: Any) -> NDArray[np.bool_] | None:
    return None if missing is None else missing[indices]


def _term(coordinates: Coordinates, text: str) -> tuple[str, Column, Values, NDArray[np.bool_] | None]:
    """A key: a coordinate, or a date part of one."""
    match = _TERM.fullmatch(text)
    column = coordinates.along(match[2] if match else text)
    values, missing = coordinates.values(column)
    if match is None:
        return column.name, column, values, missing
    part = DATE_PARTS.get(match[1].lower())
    if part is None:
        raise unknown("date part", match[1], list(DATE_PARTS), f"in {text}")
    if column.arrow != TIMESTAMP:
        raise _refused(f"{text}: {column.name} has no dates")
    return f"{match[1].lower()}({column.name})", column, part(values.astype("M8[us]")), missing


def _grouped(terms: Sequence[tuple[Values, Any]], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A code per index, equal where all terms are, and the first index of each code."""
    if not terms:
        return np.zeros(count, np.int64), np.zeros(min(count, 1), np.int64)
    codes = np.zeros(count, np.int64)
    for values, missing in terms:
        _, inverse = np.unique(values, return_inverse=True)
        inverse = inverse + 1 if missing is None else np.where(missing, 0, inverse + 1)
        codes = codes * (int(inverse.max(initial=0)) + 1) + inverse
    _, first, dense = np.unique(codes, return_index=True, return_inverse=True)
    return dense.astype(np.int64), first.astype(np.int64)


def _plan(
    table: Table, selection: Selection, axes: Sequence[Axis], partition_bytes: int
) -> tuple[Plan, bool]:
    """Blocks in an order in which those of a group follow each other, in partitions of whole groups."""
    rough = plan(table, selection, partition_bytes=partition_bytes)
    apart = [axis for axis in range(len(axes)) if _is_apart(axes[axis], rough.edges[axis])]
    order = [*apart, *(axis for axis in range(len(axes)) if axis not in apart)]
    made = plan(table, selection, partition_bytes=partition_bytes, order=order)
    inner = int(np.prod([len(made.edges[axis]) for axis in order[len(apart) :]], dtype=np.int64))
    boxes = int(np.prod([len(made.edges[axis]) for axis in apart], dtype=np.int64))
    if made.partitions > 1 and boxes < min(made.partitions, _FEW_BOXES):
        return made, False
    count = max(min(made.partitions, boxes), 0)
    starts = np.unique(np.linspace(0, boxes, count + 1).astype(np.int64)) * inner if count else made.starts
    return Plan(table, selection, made.edges, made.order, starts), True


_FEW_BOXES: Final = 8
"""With fewer sets of groups than this, a set is shared among tasks, and what they found is put together."""


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
    first = Plan(made.table, made.selection, made.edges, made.order, np.array([0, 1]))
    ((_, values),) = read_blocks(session, first, 0)
    found = {}
    for column, raw in zip(made.table.columns, values, strict=True):
        numbers, missing = _numbers(column, raw)
        there = numbers if missing is None else numbers[~missing]
        found[column.name] = float(there.astype(np.float64).mean()) if there.size else 0.0
    return {name: shift for name, shift in found.items() if name in variables}


def _numbers(column: Column, raw: Values) -> tuple[Values, NDArray[np.bool_] | None]:
    if column.coding is None:
        return raw, None
    return column.coding.decode(raw)


def run_partition(session: Session, order: Aggregation, partition: int) -> Iterator[pa.RecordBatch]:
    """The groups of one partition: final results, or moments to be put together with those of others."""
    blocks = list(order.plan.blocks(partition))
    present = [
        np.unique(np.concatenate([_codes(axis, block[number]) for block in blocks]))
        for number, axis in enumerate(order.axes)
    ]
    state = _State(order, present)
    for block, values in read_blocks(session, order.plan, partition):
        state.add(block, values)
    yield from state.rows()


def _codes(axis: Axis, span: Any) -> NDArray[np.int64]:
    return axis.codes[span.start : span.stop] if span.wanted is None else axis.codes[span.wanted]


class _State:
    """The moments of all groups that a partition has, as arrays over the grid of groups."""

    def __init__(self, order: Aggregation, present: Sequence[NDArray[np.int64]]) -> None:
        self._order = order
        self._present = present
        shape = tuple(len(groups) for groups in present)
        self._moments: dict[tuple[str, str], Values] = {}
        for variable, moment, kind in order.moments:
            dtype = kind.to_pandas_dtype()
            start: Any = 0
            if moment in ("min", "max"):
                start = _extreme(np.dtype(dtype), moment)
            self._moments[variable, moment] = np.full(shape, start, dtype)

    def add(self, block: Block, values: Sequence[Values]) -> None:
        """Take in the cells of a block."""
        codes = [_codes(axis, span) for axis, span in zip(self._order.axes, block, strict=True)]
        inner = [_Reduction(each) for each in codes]
        places = np.ix_(
            *(np.searchsorted(groups, each.groups) for groups, each in zip(self._present, inner, strict=True))
        )
        for column, raw in zip(self._order.plan.table.columns, values, strict=True):
            numbers, missing = _numbers(column, raw)
            for variable, moment in self._moments:
                if variable == column.name:
                    self._take(variable, moment, numbers, missing, inner, places)

    def _take(
        self,
        variable: str,
        moment: str,
        numbers: Values,
        missing: NDArray[np.bool_] | None,
        inner: Sequence[_Reduction],
        places: Any,
    ) -> None:
        held = self._moments[variable, moment]
        if moment in ("min", "max"):
            extreme = _extreme(held.dtype, moment)
            cells = numbers if missing is None else np.where(missing, extreme, numbers)
            operation = np.minimum if moment == "min" else np.maximum
            found = _reduced(cells.astype(held.dtype, copy=False), operation, inner)
            held[places] = operation(held[places], found)
            return
        if moment == "count":
            if missing is None:
                sizes = [np.diff(np.append(each.starts, each.size)) for each in inner]
                found = np.ones(1, np.int64)
                for size in sizes:
                    found = np.multiply.outer(found, size)
                held[places] += found[0]
                return
            cells = (~missing).astype(np.int64)
        else:
            cells = numbers.astype(held.dtype)
            if moment != "sum":
                cells = cells - self._order.shifts.get(variable, 0.0)
            if moment == "squares":
                cells = cells * cells
            if missing is not None:
                cells = np.where(missing, held.dtype.type(0), cells)
        held[places] += _reduced(cells, np.add, inner)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The groups that have cells, as rows."""
        order = self._order
        shape = tuple(len(groups) for groups in self._present)
        columns = []
        for key in order.keys:
            groups = self._present[key.axis]
            values, missing = key.values[groups], _at(key.missing, groups)
            once = to_arrow(values, missing, key.arrow)
            spread = np.arange(len(groups)).reshape([-1 if a == key.axis else 1 for a in range(len(shape))])
            columns.append(once.take(pa.array(np.broadcast_to(spread, shape).reshape(-1))))
        if order.whole:
            moments = {name: held.reshape(-1) for name, held in self._moments.items()}
            columns += [_final(result, moments) for result in order.results]
            yield pa.RecordBatch.from_arrays(columns, schema=order.schema)
            return
        for variable, moment, kind in order.moments:
            held = self._moments[variable, moment].reshape(-1)
            empty = self._moments[variable, "count"].reshape(-1) == 0 if moment in ("min", "max") else None
            columns.append(pa.array(held, kind, mask=empty))
        yield pa.RecordBatch.from_arrays(columns, schema=order.partial_schema)


def _extreme(dtype: np.dtype[Any], moment: str) -> Any:
    """A value that any other takes the place of."""
    if dtype.kind == "f":
        return dtype.type(np.inf if moment == "min" else -np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.max if moment == "min" else limits.min)


class _Reduction:
    """How one dimension of a block is reduced: cells in the order of their groups, and where each begins."""

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
        """Whether each cell is a group of its own."""
        return len(self.starts) == self.size and self.order is None


def _reduced(cells: Values, operation: Any, inner: Sequence[_Reduction]) -> Values:
    """Cells of a block put together along each dimension; those that shrink most go first."""
    for axis in sorted(
        range(len(inner)), key=lambda axis: len(inner[axis].starts) / max(inner[axis].size, 1)
    ):
        each = inner[axis]
        if each.is_identity:
            continue
        if each.order is not None:
            cells = np.take(cells, each.order, axis)
        if len(each.starts) == 1:
            cells = operation.reduce(cells, axis=axis, keepdims=True)
        else:
            cells = operation.reduceat(cells, each.starts, axis=axis)
    return cells


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
    for result in order.results:
        moment = {
            m: quoted(f"{result.variable}.{m}") for m in ("count", "sum", "min", "max", "shifted", "squares")
        }
        count = f"sum({moment['count']})"
        match result.function:
            case "count":
                text = f"coalesce({count}, 0)"
            case "sum":
                text = f"CASE WHEN {count} > 0 THEN sum({moment['sum']}) END"
            case "mean":
                text = f"CASE WHEN {count} > 0 THEN sum(CAST({moment['sum']} AS double)) / {count} END"
            case "min" | "max":
                text = f"{result.function}({moment[result.function]})"
            case _:
                total, squares = f"sum({moment['shifted']})", f"sum({moment['squares']})"
                variance = f"greatest({squares} - {total} * {total} / {count}, 0D) / ({count} - 1)"
                text = (
                    f"CASE WHEN {count} > 1 THEN {'sqrt' if result.function == 'std' else ''}({variance}) END"
                )
        found.append((text, result.name))
    return found
