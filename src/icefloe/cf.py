"""Times of the CF conventions: `days since 2000-01-01` in some calendar, as timestamps or as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_UNITS: Final = re.compile(r"\s*(\w+)\s+since\s+(\S.*?)\s*", re.IGNORECASE)
_DATE: Final = re.compile(
    r"(?P<year>[+-]?\d{1,5})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T\s]+(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?",
    re.IGNORECASE,
)
_NANOSECONDS: Final = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "microsec", "microsecs", "microsecond", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "msec", "msecs", "millisec", "millisecs", "millisecond", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 10**9),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60 * 10**9),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600 * 10**9),
    **dict.fromkeys(("d", "day", "days"), 86400 * 10**9),
}
_DAY_US: Final = 86400 * 10**6
_PROLEPTIC: Final = "proleptic_gregorian"
_STANDARD: Final = "standard"
_NAMES: Final = {
    "": _STANDARD,
    "gregorian": _STANDARD,
    "standard": _STANDARD,
    "proleptic_gregorian": _PROLEPTIC,
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
    "julian": "julian",
}
_MONTHS: Final = {
    "noleap": np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]),
    "all_leap": np.cumsum([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]),
    "360_day": np.arange(13) * 30,
}
_JULIAN_DAY_OF_1970: Final = 2440588
_FIRST_GREGORIAN_DAY: Final = -141427
"""1582-10-15, in days since 1970: the first day of the Gregorian calendar, after the Julian 1582-10-04."""

Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TimeCoding:
    """How numbers stand for times."""

    unit_ns: int
    start_us: int
    """Since 1970-01-01 of the calendar: day 0 of a calendar without leap years is its own 1970-01-01."""
    calendar: str

    @property
    def has_timestamps(self) -> bool:
        """Whether times have a place in the Gregorian calendar, at least from 1582 on."""
        return self.calendar in (_STANDARD, _PROLEPTIC)

    def is_timestamp(self, microseconds: Numbers) -> bool:
        """Whether times, in microseconds since 1970, are all timestamps as Spark knows them."""
        if self.calendar == _PROLEPTIC:
            return True
        first = _FIRST_GREGORIAN_DAY * _DAY_US
        return self.has_timestamps and bool((microseconds >= first).all())

    def microseconds(self, numbers: Numbers) -> NDArray[np.int64]:
        """Times since 1970-01-01 of the calendar. What is finer than a microsecond is cut off or rounded."""
        if numbers.dtype.kind in "iu":
            whole = numbers.astype(np.int64)
            if self.unit_ns >= 1000:
                return np.asarray(whole * np.int64(self.unit_ns // 1000) + np.int64(self.start_us), np.int64)
            return np.asarray(whole // np.int64(1000) + np.int64(self.start_us), np.int64)
        since = numbers.astype(np.float64) * (self.unit_ns / 1000)
        safe = np.where(np.isfinite(since), since, 0.0)
        return np.asarray(np.rint(safe).astype(np.int64) + np.int64(self.start_us), np.int64)

    def numbers(self, microseconds: Numbers, dtype: np.dtype[Any]) -> Numbers:
        """The way back; ValueError where a number of this type cannot say a time exactly."""
        since = microseconds.astype(np.int64) - np.int64(self.start_us)
        if dtype.kind == "f":
            return np.asarray(since / (self.unit_ns / 1000), dtype)
        if self.unit_ns < 1000:
            return np.asarray(since * 1000, dtype)
        step = np.int64(self.unit_ns // 1000)
        if (since % step).any():
            raise ValueError("a time lies between two of the whole numbers that it would be stored as")
        return np.asarray(since // step, dtype)

    def texts(self, microseconds: Numbers) -> NDArray[Any]:
        """Times of any calendar as text, such as 2000-02-30T00:00:00."""
        days, rest = np.divmod(microseconds.astype(np.int64), _DAY_US)
        year, month, day = _dates(days, self.calendar)
        if len(year) and (year.min() < 0 or year.max() > 9999):
            raise ValueError(f"a year of the calendar {self.calendar} is not between 0 and 9999")
        seconds, micro = np.divmod(rest, 10**6)
        fields = [(year, 4, "-"), (month, 2, "-"), (day, 2, "T"), (seconds // 3600, 2, ":")]
        fields += [(seconds // 60 % 60, 2, ":"), (seconds % 60, 2, "." if micro.any() else "")]
        if micro.any():
            fields.append((micro, 6, ""))
        columns = [column for field in fields for column in _digits(*field)]
        codes = np.stack(columns, axis=1).astype(np.uint32)
        return np.ascontiguousarray(codes).view(f"<U{len(columns)}").ravel()


def time_coding(units: object, calendar: object) -> TimeCoding | None:
    """What the attributes of an array say of times; None where it holds none that we know."""
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    unit_ns = _NANOSECONDS.get(match[1].lower()) if match else None
    name = _NAMES.get(str(calendar or "").lower())
    if match is None or unit_ns is None or name is None:
        return None
    date = _DATE.fullmatch(match[2])
    if date is None:
        return None
    day = int(_day_number(int(date["year"]), int(date["month"]), int(date["day"]), name))
    seconds = int(date["hour"] or 0) * 3600 + int(date["minute"] or 0) * 60
    micro = round(float(date["second"] or 0) * 10**6) - _zone_seconds(date["zone"]) * 10**6
    return TimeCoding(unit_ns, day * _DAY_US + seconds * 10**6 + micro, name)


def _zone_seconds(zone: str | None) -> int:
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    return (-1 if zone[0] == "-" else 1) * (int(hours) * 3600 + int(minutes) * 60)


def _day_number(year: int, month: int, day: int, calendar: str) -> int:
    """Days since 1970-01-01 of a calendar."""
    if calendar in _MONTHS:
        before = _MONTHS[calendar]
        return int((year - 1970) * before[-1] + before[month - 1] + day - 1)
    if calendar == "julian" or (calendar == _STANDARD and (year, month, day) < (1582, 10, 15)):
        y, m = year + 4800 - (month <= 2), (month + 9) % 12
        return day + (153 * m + 2) // 5 + 365 * y + y // 4 - 32083 - _JULIAN_DAY_OF_1970
    # By eras of 400 years: numpy parses years of four digits only.
    y, m = year - (month <= 2), (month + 9) % 12
    return (153 * m + 2) // 5 + day - 1 + 365 * y + y // 4 - y // 100 + y // 400 - 719468


def _dates(days: NDArray[np.int64], calendar: str) -> tuple[Numbers, Numbers, Numbers]:
    """Year, month and day of days since 1970-01-01 of a calendar."""
    if calendar in _MONTHS:
        before = _MONTHS[calendar]
        years, rest = np.divmod(days, int(before[-1]))
        month = np.searchsorted(before, rest, side="right")
        return years + 1970, month, rest - before[month - 1] + 1
    julian = _julian_dates(days)
    if calendar == "julian":
        return julian
    gregorian = _gregorian_dates(days)
    if calendar == _PROLEPTIC:
        return gregorian
    late = days >= _FIRST_GREGORIAN_DAY
    year, month, day = (np.where(late, new, old) for new, old in zip(gregorian, julian, strict=True))
    return year, month, day


def _gregorian_dates(days: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    dates = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    month_number = months.astype(np.int64)
    day = (dates - months.astype("M8[D]")).astype(np.int64) + 1
    return month_number // 12 + 1970, month_number % 12 + 1, day


def _julian_dates(days: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    c = days + (_JULIAN_DAY_OF_1970 + 32082)
    d = (4 * c + 3) // 1461
    e = c - (1461 * d) // 4
    m = (5 * e + 2) // 153
    return d - 4800 + m // 10, m + 3 - 12 * (m // 10), e - (153 * m + 2) // 5 + 1


def _digits(values: Numbers, width: int, after: str) -> list[Numbers]:
    """One column of character codes per digit, and one for what follows."""
    columns = [values // 10**place % 10 + ord("0") for place in range(width - 1, -1, -1)]
    return [*columns, np.full(len(values), ord(after))] if after else columns
