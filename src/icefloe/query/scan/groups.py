"""Groups of cells: for each dimension of a table, a group number per index.

Rows are grouped by coordinates that vary along one dimension, or by parts of a date such as its month.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import TIMESTAMP, Mask, Values
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import unknown

_TERM: Final = re.compile(r"\s*(\w+)\s*\(\s*(.+?)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class Term:
    """Something that indices of one dimension have in common."""

    name: str
    axis: int
    arrow: pa.DataType
    values: Values
    """Per index of the dimension; of a key, per group."""
    missing: Mask | None


@dataclass(frozen=True, slots=True)
class Axis:
    """How the indices of one dimension are grouped."""

    codes: NDArray[np.int64]
    """A group per index of the dimension; -1 where it is not wanted."""
    firsts: NDArray[np.int64]
    """Per group its first index."""

    @property
    def groups(self) -> int:
        """How many."""
        return len(self.firsts)

    def key(self, term: Term) -> Term:
        """Return the values that a term has at the first index of each group."""
        missing = None if term.missing is None else term.missing[self.firsts]
        return replace(term, values=term.values[self.firsts], missing=missing)


def term_of(coordinates: Coordinates, text: str) -> Term:
    """A coordinate, or a date part of one."""
    match = _TERM.fullmatch(text)
    column = coordinates.along(match[2] if match else text)
    values, missing = coordinates.values(column)
    if match is None:
        return Term(column.name, column.axes[0], column.arrow, values, missing)
    part = DATE_PARTS.get(match[1].lower())
    if part is None:
        raise unknown("date part", match[1], list(DATE_PARTS), f"in {text}")
    if column.arrow != TIMESTAMP:
        raise InvalidInputError(f"{text}: {column.name} has no dates", kind=ErrorKind.INVALID_ARRAY_METADATA)
    name = f"{match[1].lower()}({column.name})"
    return Term(name, column.axes[0], pa.int32(), part(values.astype("M8[us]")), missing)


def grouped(shape: Sequence[int], selection: Selection, terms: Sequence[Term]) -> tuple[Axis, ...]:
    """The groups along each dimension: wanted indices with the same values of all its terms."""
    axes = []
    for axis, size in enumerate(shape):
        chosen = selection.indices[axis]
        indices = np.arange(size) if chosen is None else chosen
        mine = [term for term in terms if term.axis == axis]
        codes = np.full(size, -1, np.int64)
        parts = [(each.values[indices], _at(each.missing, indices)) for each in mine]
        codes[indices], first = _codes(parts, len(indices))
        axes.append(Axis(codes, indices[first]))
    return tuple(axes)


def _at(missing: Mask | None, indices: Any) -> Mask | None:
    return None if missing is None else missing[indices]


def _codes(terms: Sequence[tuple[Values, Any]], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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


def _year(times: Values) -> NDArray[np.int64]:
    return np.asarray(times.astype("M8[Y]").astype(np.int64) + 1970)


def _month(times: Values) -> NDArray[np.int64]:
    return np.asarray(times.astype("M8[M]").astype(np.int64) % 12 + 1)


def _day(times: Values) -> NDArray[np.int64]:
    return np.asarray((times.astype("M8[D]") - times.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1)


def _day_of_year(times: Values) -> NDArray[np.int64]:
    return np.asarray((times.astype("M8[D]") - times.astype("M8[Y]").astype("M8[D]")).astype(np.int64) + 1)


def _hour(times: Values) -> NDArray[np.int64]:
    return np.asarray((times - times.astype("M8[D]").astype("M8[us]")).astype(np.int64) // (3600 * 10**6))


def _minute(times: Values) -> NDArray[np.int64]:
    return np.asarray((times - times.astype("M8[h]").astype("M8[us]")).astype(np.int64) // (60 * 10**6))


DATE_PARTS: Final[Mapping[str, Callable[[Values], NDArray[np.int64]]]] = {
    "year": _year,
    "month": _month,
    "day": _day,
    "dayofmonth": _day,
    "dayofyear": _day_of_year,
    "doy": _day_of_year,
    "quarter": lambda times: (_month(times) - 1) // 3 + 1,
    "hour": _hour,
    "minute": _minute,
}
"""Parts of a time, by the names that Spark has for them."""
