"""Times as files have them, numbers since a date of a calendar, counted from another date.

Files of one archive often count from their own start. Values that were loaded can be counted anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from icefloe.virtual.variables import Values, VirtualVariable
from icefloe.virtual.zarr_metadata import fills_of

_DAY_US: Final = 86_400_000_000
_UNITS_US: Final = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), _DAY_US),
}
"""Months and years have no fixed length."""
_SINCE: Final = re.compile(
    r"\s*(?P<unit>[a-z]+)\s+since\s+(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[t\s]+(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?P<zone>z|utc|gmt|[+-]\d{1,2}(?::?\d{2})?)?\s*",
    re.IGNORECASE,
)
_CALENDARS: Final = {
    "gregorian": "standard",
    "365_day": "noleap",
    "366_day": "all_leap",
}
_MONTH_ENDS: Final = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
_FIRST_GREGORIAN: Final = (1582, 10, 15)
_LARGEST_US: Final = 1 << 61
_PRECISION_US: Final = 1000
"""Times may be moved by so much when they are counted anew in floating point."""
_PACKING: Final = ("scale_factor", "add_offset")


def counted_like(
    existing: Mapping[str, Mapping[str, Any]], variables: Mapping[str, VirtualVariable]
) -> tuple[dict[str, VirtualVariable], list[tuple[str, str]]]:
    """Variables whose loaded times are counted as the attributes of those that exist say.

    Also the bounds that would have to be counted anew with their times and were not loaded, each with the
    name of its times.
    """
    found = dict(variables)
    left: list[tuple[str, str]] = []
    for name, variable in variables.items():
        if not variable.loaded or not counts_otherwise(existing.get(name, {}), variable.attributes):
            continue
        counted = counted_as(variable, existing[name])
        if counted is None:
            continue
        found[name] = counted
        for bounds in (variable.attributes.get(key) for key in ("bounds", "climatology")):
            edges = variables.get(str(bounds))
            if edges is None or "units" in edges.attributes:
                continue  # with units of their own they are times themselves
            moved = _bounds_counted_as(edges, variable.attributes, existing[name])
            if moved is None:
                left.append((str(bounds), name))
            else:
                found[str(bounds)] = moved
    return found, left


def _bounds_counted_as(
    edges: VirtualVariable, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> VirtualVariable | None:
    """Bounds, which are counted as their times are."""
    if not edges.loaded:
        return None
    counting = {name: ours[name] for name in ("units", "calendar") if name in ours}
    moved = counted_as(replace(edges, attributes={**edges.attributes, **counting}), theirs)
    return None if moved is None else replace(moved, attributes=edges.attributes)


def counts_otherwise(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the attributes of two variables are of times that are counted differently."""
    ours, theirs = _reference(one), _reference(other)
    return ours is not None and theirs is not None and ours != theirs


def counted_as(variable: VirtualVariable, attributes: Mapping[str, Any]) -> VirtualVariable | None:
    """A loaded variable of times, counted as `attributes` say; None where that is not possible.

    Integers must come out exactly, floating point to a millisecond; calendars must be the same.
    """
    ours, theirs = _reference(variable.attributes), _reference(attributes)
    if ours is None or theirs is None or _calendar(variable.attributes) != _calendar(attributes):
        return None
    if any(name in variable.attributes for name in _PACKING) or variable.dtype.kind not in "iuf":
        return None
    values = _converted(variable.values, _missing(variable.attributes, variable.values), ours, theirs)
    if values is None:
        return None
    kept = {name: value for name, value in variable.attributes.items() if name not in ("units", "calendar")}
    counted = {name: attributes[name] for name in ("units", "calendar") if name in attributes}
    return replace(variable, chunks=values, attributes={**kept, **counted})


def _converted(values: Values, missing: Any, ours: tuple[int, int], theirs: tuple[int, int]) -> Values | None:
    (unit_us, start_us), (new_unit_us, new_start_us) = ours, theirs
    dtype, shift_us = values.dtype, start_us - new_start_us
    if dtype.kind in "iu":
        return _converted_integers(values, missing, unit_us, shift_us, new_unit_us)
    exact = values.astype(np.float64) * float(Fraction(unit_us, new_unit_us)) + float(
        Fraction(shift_us, new_unit_us)
    )
    rounded = exact.astype(dtype)
    lost_us = np.abs(rounded.astype(np.float64) - exact) * new_unit_us
    spacing_us = np.spacing(np.abs(exact)) * new_unit_us
    present = ~missing & np.isfinite(values)
    if (lost_us[present] > _PRECISION_US).any() or (spacing_us[present] > _PRECISION_US).any():
        return None
    return np.where(missing, values, rounded).astype(dtype)


def _converted_integers(
    values: Values, missing: Any, unit_us: int, shift_us: int, new_unit_us: int
) -> Values | None:
    present = values[~missing]
    limit = _LARGEST_US // unit_us
    if len(present) and not (int(present.min()) >= -limit and int(present.max()) <= limit):
        return None
    counted, rest = np.divmod(present.astype(np.int64) * unit_us + shift_us, new_unit_us)
    fits = np.iinfo(values.dtype)
    if rest.any() or (len(counted) and (int(counted.min()) < fits.min or int(counted.max()) > fits.max)):
        return None
    found = values.copy()
    found[~missing] = counted
    return found


def _missing(attributes: Mapping[str, Any], values: Values) -> Any:
    """Which values stand for none."""
    found = np.zeros(values.shape, np.bool_)
    for fill in fills_of(attributes, values.dtype):
        found |= values == fill
    return found


def _calendar(attributes: Mapping[str, Any]) -> str:
    name = str(attributes.get("calendar", "standard")).lower()
    return _CALENDARS.get(name, name)


def _reference(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Length of the unit, and the date that is counted from, in microseconds; None where it is no time."""
    match = _SINCE.fullmatch(str(attributes.get("units", "")))
    if match is None or match["unit"].lower() not in _UNITS_US:
        return None
    date = int(match["year"]), int(match["month"]), int(match["day"])
    day = _day_number(date, _calendar(attributes))
    if day is None:
        return None
    clock_us = round(float(match["second"] or 0) * 1_000_000)
    clock_us += int(match["hour"] or 0) * 3_600_000_000 + int(match["minute"] or 0) * 60_000_000
    return _UNITS_US[match["unit"].lower()], day * _DAY_US + clock_us - _zone_us(match["zone"] or "")


def _zone_us(zone: str) -> int:
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    seconds = int(hours) * 3600 + int(minutes) * 60
    return (-seconds if zone[0] == "-" else seconds) * 1_000_000


def _day_number(date: tuple[int, int, int], calendar: str) -> int | None:
    """Days of a calendar, from some day on; None for dates and calendars that are not known."""
    year, month, day = date
    if not (1 <= month <= 12 and 1 <= day <= 31 and year >= 1):
        return None
    before = int(_MONTH_ENDS[month - 1])
    match calendar:
        case "noleap":
            return 365 * year + before + day
        case "all_leap":
            return 366 * year + before + (month > 2) + day
        case "360_day":
            return 360 * year + 30 * (month - 1) + day
        case "proleptic_gregorian":
            return _solar_day(year, month, day, gregorian=True)
        case "julian":
            return _solar_day(year, month, day, gregorian=False)
        case "standard":
            return _solar_day(year, month, day, gregorian=date >= _FIRST_GREGORIAN)
    return None


def _solar_day(year: int, month: int, day: int, *, gregorian: bool) -> int:
    """The Julian day number, by the rule for years that begin in March."""
    shifted, months = year + 4800 - (month < 3), (month + 9) % 12
    days = day + (153 * months + 2) // 5 + 365 * shifted + shifted // 4
    return days - shifted // 100 + shifted // 400 - 32045 if gregorian else days - 32083
