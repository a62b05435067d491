"""Select cells of a table: the indices of each dimension, from labels, ranges and positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import INTERVAL, TIMESTAMP, Mask, Values
from icefloe.query.schema import Column, Role, Table, read_array, unknown
from icefloe.session import Session

Indices = NDArray[np.int64]
_ONE_US: Final = np.timedelta64(1, "us")
_ISO: Final = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}(:\d{2}(:\d{2}(\.\d+)?)?)?)?)?)?")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected indices of each dimension, in ascending order; None selects all."""

    indices: tuple[Indices | None, ...]

    @staticmethod
    def everything(table: Table) -> Selection:
        """Select all cells."""
        return Selection((None,) * len(table.dims))

    def narrow(self, axis: int, wanted: Indices) -> Selection:
        """Restrict the selection along one dimension."""
        known = self.indices[axis]
        both = np.unique(wanted) if known is None else np.intersect1d(known, wanted)
        return Selection((*self.indices[:axis], both, *self.indices[axis + 1 :]))

    def counts(self, table: Table) -> tuple[int, ...]:
        """Count the selected indices of each dimension."""
        pairs = zip(self.indices, table.shape, strict=True)
        return tuple(size if wanted is None else len(wanted) for wanted, size in pairs)


class Coordinates:
    """The values of one-dimensional coordinates of a table, read on first use."""

    def __init__(self, session: Session, table: Table) -> None:
        self._session = session
        self.table = table
        self._known: dict[str, tuple[Values, Mask | None]] = {}

    def find(self, name: str) -> Column:
        """Find a coordinate that varies along one dimension. Raises InvalidInputError for anything else."""
        column = self.table.column(name)
        if column.role is Role.VARIABLE or len(column.axes) != 1:
            known = [c.name for c in self.table.columns if c.role is not Role.VARIABLE and len(c.axes) == 1]
            raise InvalidInputError(
                f"{name} is no coordinate along one dimension; choose by {', '.join(known)}",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return column

    def values(self, column: Column) -> tuple[Values, Mask | None]:
        """Return the decoded values of a coordinate, and a mask of the missing ones."""
        if column.name not in self._known:
            self._known[column.name] = self._read(column)
        return self._known[column.name]

    def _read(self, column: Column) -> tuple[Values, Mask | None]:
        if column.array is None or column.coding is None:
            return np.arange(self.table.shape[column.axes[0]]), None
        raw = read_array(self._session, column.array)
        return (raw.astype(np.float64), None) if column.numeric else column.coding.decode(raw)


def select_labels(coordinates: Coordinates, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Select cells by the values of coordinates, with the meaning of xarray's `sel`.

    A selector is a label, a list of labels, or a slice (or a mapping with start, stop and step). A slice
    includes both ends and follows the order of the coordinate. A time such as 2020-01 means the whole month.
    """
    for name, label in wanted.items():
        column = coordinates.find(name)
        values, missing = coordinates.values(column)
        if missing is not None:
            raise InvalidInputError(
                f"coordinate {name} has missing values; choose with isel, or filter rows",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        selection = selection.narrow(column.axes[0], _find_labels(_Axis(name, values, column.arrow), label))
    return selection


def select_positions(table: Table, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Select cells by positions along dimensions, as xarray's `isel` does."""
    for dim, place in wanted.items():
        if dim not in table.dims:
            raise unknown("dimension", dim, table.dims)
        axis = table.dims.index(dim)
        size = table.shape[axis]
        place = to_slice(place)
        if isinstance(place, slice):
            chosen = np.arange(size)[_check_slice(dim, place)]
        else:
            chosen = _check_positions(dim, place, size)
        selection = selection.narrow(axis, chosen)
    return selection


def to_slice(given: Any) -> Any:
    """Convert a mapping with start, stop and step, as JSON contains it, to a slice."""
    if isinstance(given, Mapping):
        if unexpected := set(given) - {"start", "stop", "step"}:
            raise unknown("word", sorted(unexpected)[0], ("start", "stop", "step"), "in a range")
        return slice(given.get("start"), given.get("stop"), given.get("step"))
    return given


def _check_slice(dim: str, place: slice) -> slice:
    for part in (place.start, place.stop, place.step):
        if part is not None and (isinstance(part, bool) or not isinstance(part, int | np.integer)):
            raise _invalid_position(dim, place)
    if place.step is not None and place.step == 0:
        raise _invalid_position(dim, place)
    return place


def _check_positions(dim: str, place: Any, size: int) -> Indices:
    given = np.asarray(place)
    if given.dtype.kind not in "iu" and given.size:
        raise _invalid_position(dim, place)
    flat = given.astype(np.int64).ravel()
    if ((flat < -size) | (flat >= size)).any():
        raise InvalidInputError(
            f"position {place} is outside dimension {dim}, which has {size}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return flat % size if size else flat


def _invalid_position(dim: str, place: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{place!r} is no position along {dim}: give a whole number, a list of them, or a range",
        kind=ErrorKind.INVALID_CHUNK_INDEX,
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A coordinate in which labels are looked up."""

    name: str
    values: Values
    arrow: pa.DataType

    def bounds(self, label: Any) -> tuple[Any, Any]:
        """Return the first and the last value that a label means."""
        if self.arrow == TIMESTAMP:
            return _parse_time_bounds(label, self.name)
        if self.arrow == pa.string():
            return str(label), str(label)
        if self.arrow == INTERVAL:
            return _parse_duration(label, self), _parse_duration(label, self)
        if isinstance(label, str) or isinstance(label, bool) != (self.arrow == pa.bool_()):
            try:
                label = float(label)
            except ValueError:
                raise self.not_found(label) from None
        # 20.3 is in a coordinate of small floats, though as a double it is next to what is stored.
        stored = self.values.dtype.type(label) if self.values.dtype.kind == "f" else label
        return (stored, stored) if (self.values == stored).any() else (label, label)

    def not_found(self, label: Any) -> InvalidInputError:
        """Create the error for a label that does not exist."""
        values = self.values
        has = f"it runs from {values[0]} to {values[-1]}" if len(values) else "it is empty"
        return InvalidInputError(
            f"coordinate {self.name} has no {label!r}; {has}", kind=ErrorKind.INVALID_CHUNK_INDEX
        )


def _find_labels(axis: _Axis, label: Any) -> Indices:
    label = to_slice(label)
    if isinstance(label, slice):
        return _find_range(axis, label)
    several = isinstance(label, list | tuple | set | frozenset | np.ndarray)
    found = [_find_label(axis, each) for each in (label if several else [label])]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _find_label(axis: _Axis, label: Any) -> Indices:
    low, high = axis.bounds(label)
    values = _to_comparable(axis.values)
    found = np.flatnonzero((values >= low) & (values <= high))
    if not len(found):
        raise axis.not_found(label)
    return found


def _find_range(axis: _Axis, label: slice) -> Indices:
    values = _to_comparable(axis.values)
    up, down = (_is_ordered(values, compare) for compare in (np.less_equal, np.greater_equal))
    if not (up or down):
        raise InvalidInputError(
            f"coordinate {axis.name} neither rises nor falls throughout, so a range of it means nothing;"
            " give a list of labels, positions with isel, or filter rows",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    wanted = np.ones(len(values), np.bool_)
    first_is_low = up or len(values) < 2
    if label.start is not None:
        low, high = axis.bounds(label.start)
        wanted &= values >= low if first_is_low else values <= high
    if label.stop is not None:
        low, high = axis.bounds(label.stop)
        wanted &= values <= high if first_is_low else values >= low
    found = np.flatnonzero(wanted)
    if label.step is None:
        return found
    if isinstance(label.step, bool) or not isinstance(label.step, int | np.integer) or label.step < 1:
        raise InvalidInputError(
            f"the step of a range of {axis.name} must be a whole number from 1 on, not {label.step!r}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return found[:: label.step]


def _is_ordered(values: Values, compare: Callable[[Values, Values], Any]) -> bool:
    return bool(np.all(compare(values[:-1], values[1:])))


def _to_comparable(values: Values) -> Values:
    """Convert values so that numpy compares them as Python does: text to objects, floats to doubles."""
    if values.dtype.kind in "UTS":
        return values.astype(object)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _parse_duration(label: Any, axis: _Axis) -> np.timedelta64:
    """Parse a length of time, such as 6h or 2 days."""
    if isinstance(label, timedelta | np.timedelta64):
        return np.timedelta64(label, "us")
    match = _SPAN.fullmatch(str(label).strip().lower())
    if match is None:
        raise InvalidInputError(
            f"{label!r} is no length of time for {axis.name}; write 6h, 90 min or 2 days",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return np.timedelta64(np.timedelta64(int(match[1]), _UNITS[match[2][:2]]), "us")


_SPAN: Final = re.compile(r"([+-]?\d+)\s*(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)")
_UNITS: Final[Mapping[str, Any]] = {
    "us": "us",
    "ms": "ms",
    "s": "s",
    "se": "s",
    "m": "m",
    "mi": "m",
    "h": "h",
    "ho": "h",
    "d": "D",
    "da": "D",
}


def _parse_time_bounds(label: Any, name: str) -> tuple[np.datetime64, np.datetime64]:
    """Return the first and last instant of a time: of the year, month, day, ... if no more is given."""
    if isinstance(label, datetime):
        if label.tzinfo is not None:
            raise InvalidInputError(
                f"times of {name} have no zone; give {label.isoformat()} without one, in UTC",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        moment = np.datetime64(label, "us")
        return moment, moment
    if isinstance(label, date):
        label = label.isoformat()
    if isinstance(label, np.datetime64):
        moment = label.astype("M8[us]")
        return moment, moment
    text = str(label).strip().removesuffix("Z")
    if not _ISO.fullmatch(text):
        raise InvalidInputError(
            f"{label!r} is no time for {name}; write 2020, 2020-01, 2020-01-31 or 2020-01-31T12:00:00",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    try:
        moment = np.datetime64(text.replace(" ", "T"))
    except ValueError:
        raise InvalidInputError(
            f"{label!r} is no time for {name}: there is no such date", kind=ErrorKind.INVALID_CHUNK_INDEX
        ) from None
    unit: Any = np.datetime_data(moment)[0]
    if unit in ("ms", "us", "ns"):
        return moment.astype("M8[us]"), moment.astype("M8[us]")
    after = (moment + np.timedelta64(1, unit)).astype("M8[us]")
    return moment.astype("M8[us]"), after - _ONE_US
