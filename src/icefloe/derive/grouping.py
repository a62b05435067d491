"""Group cells along one dimension by calendar periods, recurring periods, or the values of an array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.paths import join
from icefloe.cf import TimeCoding, get_fill_values
from icefloe.derive.arrays import StoredArray, find_array
from icefloe.derive.recipe import PERIODS, RECURRING, Group
from icefloe.errors import ErrorKind, InvalidInputError

_SEASONS = np.array(["DJF", "MAM", "JJA", "SON"])


@dataclass(frozen=True, slots=True)
class Grouping:
    """A grouping of the cells along one dimension: the group of each cell, and the group labels."""

    dim: str
    """The name of the output dimension."""
    codes: NDArray[np.int64]
    """The group number of each cell; -1 for cells without a group."""
    labels: NDArray[Any]
    attributes: Mapping[str, Any]
    """The attributes of the output coordinate."""
    recurring: bool

    @property
    def empty(self) -> NDArray[np.bool_]:
        """A mask of the groups that contain no cells."""
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.labels))
        return np.asarray(counts == 0, np.bool_)


def group_cells(array: StoredArray, dim: str, group: Group) -> Grouping:
    """Group the cells of an input array by calendar periods, recurring periods, or the values of
    an array.
    """
    name, _, period = group.by.rpartition(".")
    if name and (period in PERIODS or period in RECURRING):
        return _group_times(array, dim, name, period)
    return _group_values(array, dim, group.by)


def codes_of_labels(time: StoredArray, period: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the group number of each time by its recurring label, such as the month; -1 for times that match
    no label."""
    numbers, known = _number_recurring_periods(time, period)
    order = np.argsort(labels, kind="stable")
    found = np.searchsorted(labels[order], numbers).clip(0, max(len(labels) - 1, 0))
    matches = known & (labels[order][found] == numbers) if len(labels) else np.zeros(len(numbers), bool)
    return np.where(matches, order[found] if len(labels) else 0, -1).astype(np.int64)


def _group_times(array: StoredArray, dim: str, name: str, period: str) -> Grouping:
    time = array.coordinates.get(dim)
    if name != dim:
        time = find_array(array.session, join(array.group, name))
        if time is not None and time.dims != (dim,):
            time = None
    if time is None or time.time_coding is None:
        raise _make_error(
            f"{array.path} cannot be grouped by {name}.{period}: there is no coordinate {name} along {dim} "
            "with units such as 'days since 2000-01-01'"
        )
    if period in RECURRING:
        numbers, known = _number_recurring_periods(time, period)
        labels, inverse = np.unique(numbers[known], return_inverse=True)
        codes = np.full(len(numbers), -1, np.int64)
        codes[known] = inverse
        return Grouping(RECURRING[period], codes, labels, {}, recurring=True)
    return _group_periods(dim, time, time.time_coding, period)


def _group_periods(dim: str, time: StoredArray, coding: TimeCoding, period: str) -> Grouping:
    microseconds, known = _to_microseconds(time, coding)
    year, month, _ = coding.dates(microseconds)
    day_us = 86_400_000_000
    numbers = {
        "day": np.floor_divide(microseconds, day_us),
        "month": year * 12 + month - 1,
        "year": year,
    }[period].astype(np.int64)
    present = numbers[known]
    first, end = (int(present.min()), int(present.max()) + 1) if len(present) else (0, 0)
    if period == "day":
        starts = np.arange(first, end, dtype=np.int64) * day_us
    else:
        months = [(n // 12, n % 12 + 1) if period == "month" else (n, 1) for n in range(first, end)]
        starts = np.array([coding.start_of_day(y, m, 1) for y, m in months], np.int64)
    codes = np.where(known, numbers - first, -1)
    try:
        labels = coding.numbers(starts, time.values.dtype)
    except ValueError:  # the stored time units cannot represent midnight as an integer
        labels = coding.numbers(starts, np.dtype("f8"))
    attributes = {key: value for key, value in time.attributes.items() if key not in ("bounds", "_FillValue")}
    return Grouping(dim, codes, labels, attributes, recurring=False)


def _group_values(array: StoredArray, dim: str, name: str) -> Grouping:
    path = name if name.startswith("/") else join(array.group, name) if "/" not in name else f"/{name}"
    keys = find_array(array.session, path)
    if keys is None:
        meant = f"; for a period of time, write {dim}.{name}" if name in (*PERIODS, *RECURRING) else ""
        raise _make_error(f"{array.path} cannot be grouped by {name}: no array {path} exists{meant}")
    if keys.dims != (dim,) or keys.shape != (array.shape[array.dims.index(dim)],):
        raise _make_error(
            f"{array.path} cannot be grouped by {path}: it must be one-dimensional along {dim}, with "
            f"{array.shape[array.dims.index(dim)]} cells"
        )
    values = keys.values
    known = ~_mark_missing(values, keys.attributes)
    labels, inverse = np.unique(values[known], return_inverse=True)
    codes = np.full(len(values), -1, np.int64)
    codes[known] = inverse
    kept = {key: value for key, value in keys.attributes.items() if key not in ("_FillValue", "bounds")}
    return Grouping(path.rpartition("/")[2], codes, labels, kept, recurring=True)


def _number_recurring_periods(time: StoredArray, period: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    coding = time.time_coding
    if coding is None:
        raise _make_error(f"{time.path} has no units such as 'days since 2000-01-01', so it has no {period}")
    microseconds, known = _to_microseconds(time, coding)
    year, month, _ = coding.dates(microseconds)
    if period == "monthofyear":
        return month.astype(np.int64), known
    if period == "season":
        return _SEASONS[month % 12 // 3], known
    starts = {int(each): coding.start_of_day(int(each), 1, 1) for each in np.unique(year)}
    start = np.array([starts[int(each)] for each in year], np.int64)
    return np.floor_divide(microseconds - start, 86_400_000_000) + 1, known


def _to_microseconds(time: StoredArray, coding: TimeCoding) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    known = ~_mark_missing(time.values, time.attributes)
    safe = np.where(known, time.values, np.zeros((), time.values.dtype))
    return coding.microseconds(safe), known


def _mark_missing(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[np.bool_]:
    mask = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    for fill in get_fill_values(attributes, values.dtype):
        mask |= values == fill
    return np.asarray(mask, np.bool_)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
