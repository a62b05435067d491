"""Select cells of a table by label, range or position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import TIMESTAMP, Mask, Values
from icefloe.query.schema import ArrayTable, Column, Role, make_unknown_name_error, read_array
from icefloe.session import Session

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected indices of each dimension of a scan, in ascending order. None selects all indices of a
    dimension.
    """

    indices: tuple[Indices | None, ...]

    @staticmethod
    def everything(table: ArrayTable) -> Selection:
        """Create a selection that contains all cells of a table."""
        return Selection((None,) * len(table.dims))

    def narrow(self, axis: int, wanted: Indices) -> Selection:
        """Return the intersection of the selection with the given indices of one dimension."""
        known = self.indices[axis]
        both = np.unique(wanted) if known is None else np.intersect1d(known, wanted)
        return Selection((*self.indices[:axis], both, *self.indices[axis + 1 :]))

    def counts(self, table: ArrayTable) -> tuple[int, ...]:
        """Return the number of selected indices of each dimension."""
        pairs = zip(self.indices, table.shape, strict=True)
        return tuple(size if wanted is None else len(wanted) for wanted, size in pairs)


class Coordinates:
    """The values of a table's one-dimensional coordinates, read on first use."""

    def __init__(self, session: Session, table: ArrayTable) -> None:
        self._session = session
        self.table = table
        self._known: dict[str, tuple[Values, Mask | None]] = {}

    def find(self, name: str) -> Column:
        """Find a one-dimensional coordinate by name.

        Raise InvalidInputError if the column is not such a coordinate.
        """
        column = self.table.column(name)
        if column.role is Role.VARIABLE or len(column.axes) != 1:
            known = [c.name for c in self.table.columns if c.role is not Role.VARIABLE and len(c.axes) == 1]
            raise InvalidInputError(
                f"{name} is not a one-dimensional coordinate; select by {', '.join(known)}",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return column

    def values(self, column: Column) -> tuple[Values, Mask | None]:
        """Return the decoded values of a coordinate, and a mask of missing values."""
        if column.name not in self._known:
            self._known[column.name] = self._read(column)
        return self._known[column.name]

    def _read(self, column: Column) -> tuple[Values, Mask | None]:
        if column.array is None or column.coding is None:
            return np.arange(self.table.shape[column.axes[0]]), None
        raw = read_array(self._session, column.array)
        return (raw.astype(np.float64), None) if column.numeric else column.coding.decode(raw)


def select_labels(coordinates: Coordinates, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Select cells of a table by coordinate values, like xarray's `sel`.

    A selector is a label, a list of labels, or a slice (or a mapping with start, stop and step). A slice
    includes both ends and follows the order of the coordinate. A time such as 2020-01 means the whole month.
    """
    for name, label in wanted.items():
        column = coordinates.find(name)
        values, missing = coordinates.values(column)
        if missing is not None:
            raise InvalidInputError(
                f"coordinate {name} has missing values; select by position with isel, or filter rows",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        selection = selection.narrow(column.axes[0], _find_labels(column, values, label))
    return selection


def select_positions(table: ArrayTable, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Select cells of a table by positions along dimensions, as xarray's `isel` does."""
    for dim, place in wanted.items():
        if dim not in table.dims:
            raise make_unknown_name_error("dimension", dim, table.dims)
        axis = table.dims.index(dim)
        try:
            if isinstance(place, bool):
                raise TypeError
            chosen = np.ravel(np.arange(table.shape[axis])[to_slice(place)])
        except (IndexError, TypeError, ValueError):
            raise InvalidInputError(
                f"{place!r} is not a position along {dim}, which has length {table.shape[axis]}: expected an"
                " integer, a list of integers or a range",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            ) from None
        selection = selection.narrow(axis, chosen)
    return selection


def to_slice(given: Any) -> Any:
    """Convert a mapping with `start`, `stop` and `step`, as in JSON, to a slice.

    Return other values unchanged.
    """
    if isinstance(given, Mapping):
        if unexpected := set(given) - {"start", "stop", "step"}:
            raise make_unknown_name_error(
                "key", sorted(unexpected)[0], ("start", "stop", "step"), "in a range"
            )
        return slice(given.get("start"), given.get("stop"), given.get("step"))
    return given


def _find_labels(column: Column, values: Values, label: Any) -> Indices:
    """Return the positions of a label, a list of labels or a range, using a pandas index, as xarray does."""
    import pandas as pd  # type: ignore[import-untyped]

    index = pd.Index(values.astype(object) if values.dtype.kind in "UTS" else values)
    positions = np.arange(len(values))
    label = to_slice(label)
    if isinstance(label, slice):
        _check_range(column, index, label)
    try:
        if isinstance(label, slice):
            return np.asarray(_find_range(index, positions, label)[:: label.step])
        several = isinstance(label, list | tuple | set | frozenset | np.ndarray)
        found = [positions[index.get_loc(_to_key(each, index))] for each in (label if several else [label])]
    except (KeyError, TypeError, ValueError):
        has = f"it runs from {values[0]} to {values[-1]}" if len(values) else "it is empty"
        written = "; times have no zone and are written 2020, 2020-01 or 2020-01-31T12:00:00"
        raise InvalidInputError(
            f"coordinate {column.name} has no {label!r}; {has}{written if column.arrow == TIMESTAMP else ''}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        ) from None
    return np.concatenate([positions[:0], *map(np.ravel, found)])


def _to_key(label: Any, index: Any) -> Any:
    """Convert a label to a type that pandas can look up in the index."""
    if isinstance(label, date) and not isinstance(label, datetime):
        return label.isoformat()
    if index.dtype.kind == "M" and isinstance(label, str):
        return label.strip().removesuffix("Z")
    if index.dtype.kind == "f" and label is not None:
        return index.dtype.type(label)  # a coordinate of 32-bit floats contains 20.3 only as a 32-bit float
    return float(label) if index.dtype.kind in "iu" and isinstance(label, str) else label


def _check_range(column: Column, index: Any, label: slice) -> None:
    if not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
        raise InvalidInputError(
            f"coordinate {column.name} is not monotonic, so a range of it is not defined; select a list of"
            " labels, select positions with isel, or filter rows",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    step = 1 if label.step is None else label.step
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
        raise InvalidInputError(
            f"the step of a range of {column.name} must be a positive integer, not {step!r}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )


def _find_range(index: Any, positions: Indices, label: slice) -> Any:
    bounds = [_to_key(bound, index) for bound in (label.start, label.stop)]
    if index.is_monotonic_increasing:
        return positions[index.slice_indexer(*bounds)]
    # pandas accepts 2020-01 as a bound only if times increase.
    return positions[::-1][index[::-1].slice_indexer(*bounds[::-1])][::-1]
