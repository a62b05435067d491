"""Which cells of a table are wanted: per dimension the indices, from labels, ranges and positions."""

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
from icefloe.query.schema import Column, Role, Table, read_whole, unknown
from icefloe.session import Session

Indices = NDArray[np.int64]
_ONE_US: Final = np.timedelta64(1, "us")
_ISO: Final = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}(:\d{2}(:\d{2}(\.\d+)?)?)?)?)?)?")


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted indices of each dimension, ascending; None stands for all."""

    indices: tuple[Indices | None, ...]

    @staticmethod
    def everything(table: Table) -> Selection:
        """All cells."""
        return Selection((None,) * len(table.dims))

    def narrowed(self, axis: int, wanted: Indices) -> Selection:
        """What is also wanted along one dimension."""
        known = self.indices[axis]
        both = np.unique(wanted) if known is None else np.intersect1d(known, wanted)
        return Selection((*self.indices[:axis], both, *self.indices[axis + 1 :]))

    def counts(self, table: Table) -> tuple[int, ...]:
        """How many indices of each dimension are wanted."""
        pairs = zip(self.indices, table.shape, strict=True)
        return tuple(size if wanted is None else len(wanted) for wanted, size in pairs)


class Coordinates:
    """The values of one-dimensional coordinates of a table, read when they are asked for."""

    def __init__(self, session: Session, table: Table) -> None:
        self._session = session
        self.table = table
        self._known: dict[str, tuple[Values, Mask | None]] = {}

    def along(self, name: str) -> Column:
        """A coordinate that varies along one dimension; an error for anything else."""
        column = self.table.column(name)
        if column.role is Role.VARIABLE or len(column.axes) != 1:
            known = [c.name for c in self.table.columns if c.role is not Role.VARIABLE and len(c.axes) == 1]
            raise InvalidInputError(
                f"{name} is no coordinate along one dimension; choose by {', '.join(known)}",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return column

    def values(self, column: Column) -> tuple[Values, Mask | None]:
        """Its decoded values, and which are missing."""
        if column.name not in self._known:
            self._known[column.name] = self._read(column)
        return self._known[column.name]

    def _read(self, column: Column) -> tuple[Values, Mask | None]:
        if column.array is None or column.coding is None:
            return np.arange(self.table.shape[column.axes[0]]), None
        raw = read_whole(self._session, column.array)
        return (raw.astype(np.float64), None) if column.numeric else column.coding.decode(raw)


def by_labels(coordinates: Coordinates, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Narrow by the values of coordinates, with the meaning that xarray's `sel` gives them.

    A label, a list of labels, or a slice (or a mapping with start, stop and step): both ends belong to it,
    and it follows the order of the coordinate. A time such as 2020-01 stands for all of the month.
    """
    for name, label in wanted.items():
        column = coordinates.along(name)
        values, missing = coordinates.values(column)
        if missing is not None:
            raise InvalidInputError(
                f"coordinate {name} has missing values; choose with isel, or filter rows",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        selection = selection.narrowed(column.axes[0], _labelled(_Axis(name, values, column.arrow), label))
    return selection


def by_positions(table: Table, selection: Selection, wanted: Mapping[str, Any]) -> Selection:
    """Narrow by positions along dimensions, as xarray's `isel` does."""
    for dim, place in wanted.items():
        if dim not in table.dims:
            raise unknown("dimension", dim, table.dims)
        axis = table.dims.index(dim)
        size = table.shape[axis]
        place = as_slice(place)
        if isinstance(place, slice):
            chosen = np.arange(size)[_whole(dim, place)]
        else:
            chosen = _positions(dim, place, size)
        selection = selection.narrowed(axis, chosen)
    return selection


def as_slice(given: Any) -> Any:
    """A slice in place of a mapping with start, stop and step, which is what JSON can say."""
    if isinstance(given, Mapping):
        if unexpected := set(given) - {"start", "stop", "step"}:
            raise unknown("word", sorted(unexpected)[0], ("start", "stop", "step"), "in a range")
        return slice(given.get("start"), given.get("stop"), given.get("step"))
    return given


def _whole(dim: str, place: slice) -> slice:
    for part in (place.start, place.stop, place.step):
        if part is not None and (isinstance(part, bool) or not isinstance(part, int | np.integer)):
            raise _bad_place(dim, place)
    if place.step is not None and place.step == 0:
        raise _bad_place(dim, place)
    return place


def _positions(dim: str, place: Any, size: int) -> Indices:
    given = np.asarray(place)
    if given.dtype.kind not in "iu" and given.size:
        raise _bad_place(dim, place)
    flat = given.astype(np.int64).ravel()
    if ((flat < -size) | (flat >= size)).any():
        raise InvalidInputError(
            f"position {place} is outside dimension {dim}, which has {size}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return flat % size if size else flat


def _bad_place(dim: str, place: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{place!r} is no position along {dim}: give a whole number, a list of them, or a range",
        kind=ErrorKind.INVALID_CHUNK_INDEX,
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A coordinate to look labels up in."""

    name: str
    values: Values
    arrow: pa.DataType

    def bounds(self, label: Any) -> tuple[Any, Any]:
        """The first and the last value that a label means."""
        if self.arrow == TIMESTAMP:
            return _time_bounds(label, self.name)
        if self.arrow == pa.string():
            return str(label), str(label)
        if self.arrow == INTERVAL:
            return _span(label, self), _span(label, self)
        if isinstance(label, str) or isinstance(label, bool) != (self.arrow == pa.bool_()):
            try:
                label = float(label)
            except ValueError:
                raise self.not_found(label) from None
        # 20.3 is in a coordinate of small floats, though as a double it is next to what is stored.
        stored = self.values.dtype.type(label) if self.values.dtype.kind == "f" else label
        return (stored, stored) if (self.values == stored).any() else (label, label)

    def not_found(self, label: Any) -> InvalidInputError:
        """The error for a label that is not there."""
        values = self.values
        has = f"it runs from {values[0]} to {values[-1]}" if len(values) else "it is empty"
        return InvalidInputError(
            f"coordinate {self.name} has no {label!r}; {has}", kind=ErrorKind.INVALID_CHUNK_INDEX
        )


def _labelled(axis: _Axis, label: Any) -> Indices:
    label = as_slice(label)
    if isinstance(label, slice):
        return _ranged(axis, label)
    several = isinstance(label, list | tuple | set | frozenset | np.ndarray)
    found = [_one(axis, each) for each in (label if several else [label])]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _one(axis: _Axis, label: Any) -> Indices:
    low, high = axis.bounds(label)
    values = _comparable(axis.values)
    found = np.flatnonzero((values >= low) & (values <= high))
    if not len(found):
        raise axis.not_found(label)
    return found


def _ranged(axis: _Axis, label: slice) -> Indices:
    values = _comparable(axis.values)
    up, down = (_ordered(values, compare) for compare in (np.less_equal, np.greater_equal))
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


def _ordered(values: Values, compare: Callable[[Values, Values], Any]) -> bool:
    return bool(np.all(compare(values[:-1], values[1:])))


def _comparable(values: Values) -> Values:
    """Values that numpy compares as Python does: text as objects, small floats as large ones."""
    if values.dtype.kind in "UTS":
        return values.astype(object)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _span(label: Any, axis: _Axis) -> np.timedelta64:
    """A length of time, such as 6h or 2 days."""
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


def _time_bounds(label: Any, name: str) -> tuple[np.datetime64, np.datetime64]:
    """What a time means: all of the year, month, day, ... where no more is said."""
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
