"""Group cells for GROUP BY: compute a group number for each index along each dimension.

Rows are grouped by one-dimensional coordinates, or by date parts such as the month.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import TIMESTAMP, Mask, Values, unwrap_numbers, wrap_numbers
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import make_unknown_name_error

_TERM: Final = re.compile(r"\s*(\w+)\s*\(\s*(.+?)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class GroupTerm:
    """A GROUP BY term, with its value at each index along one dimension."""

    name: str
    axis: int
    arrow: pa.DataType
    values: Values
    """One value per index along the dimension. In a result key, one value per group."""
    missing: Mask | None


@dataclass(frozen=True, slots=True)
class GroupedAxis:
    """The GROUP BY groups along one dimension of a scan."""

    codes: NDArray[np.int64]
    """The group number of each index; -1 if the index is not selected."""
    firsts: NDArray[np.int64]
    """The first index along the dimension that belongs to each group."""

    @property
    def groups(self) -> int:
        """The number of groups along the dimension."""
        return len(self.firsts)

    def key(self, term: GroupTerm) -> GroupTerm:
        """Return a GROUP BY term with one value per group instead of one per index."""
        missing = None if term.missing is None else term.missing[self.firsts]
        return replace(term, values=term.values[self.firsts], missing=missing)


def parse_term(coordinates: Coordinates, text: str) -> GroupTerm:
    """Parse a GROUP BY term: a coordinate name, or a date part such as `month(time)`."""
    match = _TERM.fullmatch(text)
    column = coordinates.find(match[2] if match else text)
    values, missing = coordinates.values(column)
    if match is None:
        return GroupTerm(column.name, column.axes[0], column.arrow, values, missing)
    function = match[1].lower()
    if function not in DATE_PARTS:
        raise make_unknown_name_error("date part", match[1], list(DATE_PARTS), f"in {text}")
    if column.arrow != TIMESTAMP:
        raise InvalidInputError(f"{text}: {column.name} has no dates", kind=ErrorKind.INVALID_ARRAY_METADATA)
    parts = extract_part(function, values)
    return GroupTerm(f"{function}({column.name})", column.axes[0], pa.int32(), parts, missing)


def group_indices(
    shape: Sequence[int], selection: Selection, terms: Sequence[GroupTerm]
) -> tuple[GroupedAxis, ...]:
    """Group the selected indices of each dimension by the GROUP BY terms along that dimension."""
    axes = []
    for axis, size in enumerate(shape):
        chosen = selection.indices[axis]
        indices = np.arange(size) if chosen is None else chosen
        mine = [term for term in terms if term.axis == axis]
        codes = np.full(size, -1, np.int64)
        parts = [(each.values[indices], _take(each.missing, indices)) for each in mine]
        codes[indices], first = _number_groups(parts, len(indices))
        axes.append(GroupedAxis(codes, indices[first]))
    return tuple(axes)


def _take(missing: Mask | None, indices: Any) -> Mask | None:
    return None if missing is None else missing[indices]


def _number_groups(
    terms: Sequence[tuple[Values, Any]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assign a group number to each distinct combination of values. Return the group number of each index,
    and the first index of each group."""
    if not terms:
        return np.zeros(count, np.int64), np.zeros(min(count, 1), np.int64)
    codes = np.zeros(count, np.int64)
    for values, missing in terms:
        _, inverse = np.unique(values, return_inverse=True)
        inverse = inverse + 1 if missing is None else np.where(missing, 0, inverse + 1)
        codes = codes * (int(inverse.max(initial=0)) + 1) + inverse
    _, first, dense = np.unique(codes, return_index=True, return_inverse=True)
    return dense.astype(np.int64), first.astype(np.int64)


def extract_part(function: str, times: Values) -> NDArray[np.int64]:
    """Extract a date part, such as the month, from times. Missing times become 0."""
    found = pc.call_function(DATE_PARTS[function], [wrap_numbers(times, TIMESTAMP)])
    numbers, missing = unwrap_numbers(found)
    return numbers if missing is None else np.where(missing, 0, numbers)


DATE_PARTS: Final[Mapping[str, str]] = {
    "year": "year",
    "month": "month",
    "day": "day",
    "dayofmonth": "day",
    "dayofyear": "day_of_year",
    "doy": "day_of_year",
    "quarter": "quarter",
    "hour": "hour",
    "minute": "minute",
}
"""The Spark SQL functions that extract a date part, with the corresponding pyarrow functions."""
