"""Moments of groups of cells: counts, sums, extremes and squares, block by block, in numpy.

The groups of a block are a grid. A reduction goes along one dimension after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.query.decode import Mask, Values
from icefloe.query.scan.groups import Axis
from icefloe.query.scan.plan import Block
from icefloe.query.schema import Column

CELLS: Final = ".cells"
"""The column with the number of cells of a group, whatever they hold."""
EXTREMES: Final = ("min", "max")


@dataclass(frozen=True, slots=True)
class Moment:
    """What is kept of one variable, or of no variable: the number of cells."""

    variable: str
    name: str
    """count, sum, min, max, shifted, squares or cells"""
    arrow: pa.DataType

    @property
    def column(self) -> str:
        """The name of the column that has it."""
        return f"{self.variable}.{self.name}"


def moment_of(name: str, column: Column | None) -> Moment:
    """A moment of a variable, in the type that Spark's own aggregates have."""
    if column is None or name == "count":
        return Moment("" if column is None else column.name, name, pa.int64())
    if name in EXTREMES:
        return Moment(column.name, name, column.arrow)
    whole = name == "sum" and pa.types.is_integer(column.arrow)
    return Moment(column.name, name, pa.int64() if whole else pa.float64())


def numbers_of(column: Column, raw: Values) -> tuple[Values, Mask | None]:
    """The values of a column, and which are missing."""
    if column.coding is None:
        return raw, None
    return column.coding.decode(raw)


class Moments:
    """The moments of all groups that some blocks have, as arrays over the grid of groups."""

    def __init__(
        self,
        axes: Sequence[Axis],
        columns: Sequence[Column],
        moments: Sequence[Moment],
        shifts: Mapping[str, float],
        blocks: Sequence[Block],
    ) -> None:
        self._axes = axes
        self._columns = columns
        self._shifts = shifts
        self.groups = [
            np.unique(np.concatenate([_codes(axis, block[number]) for block in blocks]))
            for number, axis in enumerate(axes)
        ]
        """Per dimension the groups that the blocks have."""
        shape = tuple(len(groups) for groups in self.groups)
        self._held = {moment: np.full(shape, *_start(moment)) for moment in moments}

    def column(self, moment: Moment) -> Values:
        """A moment of all groups, in the order of the dimensions."""
        return self._held[moment].reshape(-1)

    def add(self, block: Block, values: Sequence[Values]) -> None:
        """Take in the cells of a block."""
        inner = [_Reduction(_codes(axis, span)) for axis, span in zip(self._axes, block, strict=True)]
        places = np.ix_(
            *(np.searchsorted(groups, each.groups) for groups, each in zip(self.groups, inner, strict=True))
        )
        for moment, held in self._held.items():
            if not moment.variable:
                held[places] += _sizes(inner)
        for column, raw in zip(self._columns, values, strict=True):
            numbers, missing = numbers_of(column, raw)
            for moment, held in self._held.items():
                if moment.variable == column.name:
                    self._take(moment, held, numbers, missing, inner, places)

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
            nothing = _extreme(held.dtype, moment.name)
            cells = numbers if missing is None else np.where(missing, nothing, numbers)
            operation = np.minimum if moment.name == "min" else np.maximum
            found = _reduced(cells.astype(held.dtype, copy=False), operation, inner, held.dtype)
            held[places] = operation(held[places], found)
            return
        if moment.name == "count":
            held[places] += _sizes(inner)
            if missing is not None:
                held[places] -= _reduced(missing, np.add, inner, held.dtype)
            return
        cells = numbers
        if moment.name != "sum":
            cells = cells.astype(held.dtype) - self._shifts.get(moment.variable, 0.0)
        if moment.name == "squares":
            cells = cells * cells
        if missing is not None:
            cells = np.where(missing, cells.dtype.type(0), cells)
        held[places] += _reduced(cells, np.add, inner, held.dtype)


def _codes(axis: Axis, span: Any) -> NDArray[np.int64]:
    return axis.codes[span.start : span.stop] if span.wanted is None else axis.codes[span.wanted]


def _start(moment: Moment) -> tuple[Any, np.dtype[Any]]:
    """What a moment is before there is a cell, and its type."""
    dtype = np.dtype(moment.arrow.to_pandas_dtype())
    return (_extreme(dtype, moment.name) if moment.name in EXTREMES else 0), dtype


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


def _sizes(inner: Sequence[_Reduction]) -> NDArray[np.int64]:
    """How many cells each group of a block has."""
    found = np.ones((), np.int64)
    for each in inner:
        found = np.multiply.outer(found, np.diff(np.append(each.starts, each.size)))
    return np.asarray(found)


def _reduced(cells: Values, operation: Any, inner: Sequence[_Reduction], dtype: np.dtype[Any]) -> Values:
    """Cells of a block put together along each dimension; those that shrink most go first."""
    for axis in sorted(
        range(len(inner)), key=lambda axis: len(inner[axis].starts) / max(inner[axis].size, 1)
    ):
        each = inner[axis]
        if each.is_identity:
            continue
        if each.order is not None:
            cells = np.take(cells, each.order, axis)
        cells = _along(cells, operation, each, axis, dtype)
    return cells.astype(dtype, copy=False)


def _along(cells: Values, operation: Any, each: _Reduction, axis: int, dtype: np.dtype[Any]) -> Values:
    """Cells put together along one dimension, in a type that is wide enough."""
    if len(each.starts) == 1:
        return np.asarray(operation.reduce(cells, axis=axis, keepdims=True, dtype=dtype))
    if int(np.prod(cells.shape[axis + 1 :], dtype=np.int64)) < _LONG:
        return np.asarray(operation.reduceat(cells, each.starts, axis=axis, dtype=dtype))
    # reduceat goes cell by cell here, and is five times slower than one reduction for each group.
    shape = (*cells.shape[:axis], len(each.starts), *cells.shape[axis + 1 :])
    found = np.empty(shape, dtype)
    before: Any = (slice(None),) * axis
    for group, (start, stop) in enumerate(zip(each.starts, [*each.starts[1:], each.size], strict=True)):
        operation.reduce(
            cells[(*before, slice(start, stop))], axis=axis, dtype=dtype, out=found[(*before, group)]
        )
    return found


_LONG: Final = 64
"""Cells that lie beside each other and are reduced at one go, at least."""
