"""CF conventions: times such as `days since 2000-01-01` in any calendar, and fill values.

Times are converted to whole microseconds in numpy arrays. xarray uses cftime for most calendars, which is
slow because it creates one Python object per time.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
_LARGEST_US: Final = 1 << 61
_LIMIT_US: Final = (1 << 63) - (1 << 20)
"""The largest number of microseconds, less the rounding error of a double."""
_PRECISION_US: Final = 1000
"""The largest rounding error that is accepted when floating-point times are converted."""
_FIRST_GREGORIAN_DAY: Final = -141427
"""1582-10-15, in days since 1970: the first day of the Gregorian calendar, after the Julian 1582-10-04."""

Numbers = NDArray[Any]
_LATITUDE = {"latitude", "lat"}
_LONGITUDE = {"longitude", "lon", "long"}
_NORTH = {"degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"}
_EAST = {"degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"}
_DEGREES = {"", "degrees", "degree", "deg", "°"}


@dataclass(frozen=True, slots=True)
class TimeCoding:
    """The CF encoding of times as numbers: a unit, a reference time and a calendar."""

    unit_ns: int
    start_us: int
    """The reference time in microseconds since 1970-01-01 in the same calendar."""
    calendar: str

    @property
    def has_timestamps(self) -> bool:
        """True if the calendar matches the Gregorian calendar for dates from 1582 on."""
        return self.calendar in (_STANDARD, _PROLEPTIC)

    def is_timestamp(self, microseconds: Numbers) -> bool:
        """Return True if CF times, in microseconds since 1970, are all valid Spark timestamps."""
        if self.calendar == _PROLEPTIC:
            return True
        first = _FIRST_GREGORIAN_DAY * _DAY_US
        return self.has_timestamps and bool((microseconds >= first).all())

    def microseconds(self, numbers: Numbers) -> NDArray[np.int64]:
        """Decode CF times to microseconds since 1970-01-01 in their calendar. Finer fractions are rounded."""
        if numbers.dtype.kind in "iu":
            whole = numbers.astype(np.int64)
            if self.unit_ns >= 1000:
                return np.asarray(whole * np.int64(self.unit_ns // 1000) + np.int64(self.start_us), np.int64)
            return np.asarray(whole // np.int64(1000) + np.int64(self.start_us), np.int64)
        safe = np.where(self.can_decode(numbers), numbers, 0).astype(np.float64) * (self.unit_ns / 1000)
        return np.asarray(np.rint(safe).astype(np.int64) + np.int64(self.start_us), np.int64)

    def can_decode(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return a mask of the CF times that microseconds can represent: not NaN, and between the years
        -290000 and 294000.
        """
        if numbers.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                since = numbers.astype(np.float64) * (self.unit_ns / 1000) + self.start_us
            return np.asarray(np.abs(since) < _LIMIT_US)
        step, fits = max(self.unit_ns // 1000, 1), np.iinfo(numbers.dtype)
        low, high = -((_LIMIT_US + self.start_us) // step), (_LIMIT_US - self.start_us) // step
        return np.asarray((numbers >= max(low, fits.min)) & (numbers <= min(high, fits.max)))

    def numbers(self, microseconds: Numbers, dtype: np.dtype[Any]) -> Numbers:
        """Encode microseconds since 1970-01-01 as CF times. Raise ValueError if an integer type cannot
        represent them exactly.
        """
        since = microseconds.astype(np.int64) - np.int64(self.start_us)
        if dtype.kind == "f":
            return np.asarray(since / (self.unit_ns / 1000), dtype)
        if self.unit_ns < 1000:
            return np.asarray(since * 1000, dtype)
        step = np.int64(self.unit_ns // 1000)
        if (since % step).any():
            raise ValueError("a time is not a whole number of its unit; use a finer unit or floats")
        return np.asarray(since // step, dtype)

    def convert(self, numbers: Numbers, missing: NDArray[np.bool_], other: TimeCoding) -> Numbers | None:
        """Convert CF times to another unit or reference time in the same calendar and data type.

        Parameters
        ----------
        numbers
            Times in this encoding, as integers or floats.
        missing
            A mask of the numbers that stand for a missing time. They are not converted.
        other
            The encoding to convert to.

        Returns
        -------
        numpy.ndarray or None
            None if the calendars differ, a unit is finer than a microsecond, a date is before year 1 (where
            calendars disagree), or the data type cannot represent a time. Integers must be exact, floats
            accurate to a millisecond.
        """
        starts = (each.start_us for each in (self, other))
        first = _count_days(1, 1, 1, self.calendar) * _DAY_US
        if self.calendar != other.calendar or min(self.unit_ns, other.unit_ns) < 1000 or min(starts) < first:
            return None
        unit_us, new_unit_us = self.unit_ns // 1000, other.unit_ns // 1000
        shift_us = self.start_us - other.start_us
        if numbers.dtype.kind in "iu":
            return _convert_integers(numbers, missing, unit_us, shift_us, new_unit_us)
        exact = numbers.astype(np.float64) * float(Fraction(unit_us, new_unit_us)) + float(
            Fraction(shift_us, new_unit_us)
        )
        rounded = exact.astype(numbers.dtype)
        lost_us = np.abs(rounded.astype(np.float64) - exact) * new_unit_us
        spacing_us = np.spacing(np.abs(exact)) * new_unit_us
        present = ~missing & np.isfinite(numbers)
        if (np.maximum(lost_us, spacing_us)[present] > _PRECISION_US).any():
            return None
        return np.where(missing, numbers, rounded).astype(numbers.dtype)

    def dates(self, microseconds: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the year, month and day of times given in microseconds since 1970-01-01 in the CF
        calendar.
        """
        return _to_dates(np.floor_divide(microseconds.astype(np.int64), _DAY_US), self.calendar)

    def start_of_day(self, year: int, month: int, day: int) -> int:
        """Return the start of a day in the CF calendar, in microseconds since 1970-01-01."""
        return _count_days(year, month, day, self.calendar) * _DAY_US

    def texts(self, microseconds: Numbers) -> NDArray[Any]:
        """Format times of any CF calendar as text of fixed width, such as 2000-02-30T00:00:00."""
        days, rest = np.divmod(microseconds.astype(np.int64), _DAY_US)
        year, month, day = _to_dates(days, self.calendar)
        seconds, micro = np.divmod(rest, 10**6)
        width = len(str(np.abs(year).max(initial=9999)))
        fields = [(np.abs(year), width, "-"), (month, 2, "-"), (day, 2, "T"), (seconds // 3600, 2, ":")]
        fields += [(seconds // 60 % 60, 2, ":"), (seconds % 60, 2, "." if micro.any() else "")]
        if micro.any():
            fields.append((micro, 6, ""))
        columns = [column for field in fields for column in _format_digits(*field)]
        if (year < 0).any():
            columns.insert(0, np.where(year < 0, ord("-"), ord("+")))
        codes = np.stack(columns, axis=1).astype(np.uint32)
        return np.ascontiguousarray(codes).view(f"<U{len(columns)}").ravel()


def parse_time_coding(units: object, calendar: object) -> TimeCoding | None:
    """Parse the CF attributes `units` and `calendar`. Return None if they describe no supported time
    encoding.
    """
    match = _UNITS.fullmatch(units) if isinstance(units, str) else None
    unit_ns = _NANOSECONDS.get(match[1].lower()) if match else None
    name = _NAMES.get(str(calendar or "").lower())
    if match is None or unit_ns is None or name is None:
        return None
    date = _DATE.fullmatch(match[2])
    if date is None:
        return None
    year, month, month_day = (int(date[part]) for part in ("year", "month", "day"))
    if not (1 <= month <= 12 and 1 <= month_day <= 31):
        return None
    day = _count_days(year, month, month_day, name)
    seconds = int(date["hour"] or 0) * 3600 + int(date["minute"] or 0) * 60
    micro = round(float(date["second"] or 0) * 10**6) - _parse_zone_seconds(date["zone"]) * 10**6
    return TimeCoding(unit_ns, day * _DAY_US + seconds * 10**6 + micro, name)


def encode_fill_value(value: float) -> str:
    """Encode a float as a CF `_FillValue` attribute in Zarr version 3, as xarray does: its eight bytes in
    base64.
    """
    return base64.standard_b64encode(struct.pack("<d", float(value))).decode()


def decode_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Decode a CF attribute that declares a missing value. Return None if the stored type cannot represent
    it.
    """
    if dtype.kind in "UT":
        return str(value)
    if dtype.kind == "f" and isinstance(value, str):
        value = _decode_float(value)
    if dtype.kind not in "iufb" or isinstance(value, str) or value is None:
        return None
    try:
        fill = dtype.type(value)
    except (OverflowError, ValueError, TypeError):
        return None
    return fill if dtype.kind == "f" or fill == value else None


def get_fill_values(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> list[Any]:
    """Return the stored values that `_FillValue` and `missing_value` declare as missing, except NaN."""
    given = [attributes.get(key) for key in ("_FillValue", "missing_value")]
    listed = [each if isinstance(each, Sequence) and not isinstance(each, str) else [each] for each in given]
    found = [decode_fill_value(each, dtype) for values in listed for each in values if each is not None]
    return [fill for fill in found if fill is not None and fill == fill]


def unpack_numbers(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[np.float64]:
    """Unpack numbers using the CF attributes `scale_factor` and `add_offset`, with NaN for missing values."""
    found = values.astype("f8")
    for missing in get_fill_values(attributes, values.dtype):
        found[values == missing] = np.nan
    scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
    found = found * scale if isinstance(scale, int | float) else found
    return found + offset if isinstance(offset, int | float) else found


NO_TIME: Final = np.int64(np.iinfo(np.int64).min)
"""The integer that numpy and xarray store for a missing time."""


@dataclass(frozen=True, slots=True)
class ValueCoding:
    """The CF encoding of an array: how stored values are decoded, and which of them are missing."""

    stored: np.dtype[Any]
    view_as: np.dtype[Any] | None = None
    """The type as which stored bits are viewed: signed, unsigned or boolean."""
    fills: tuple[Any, ...] = ()
    scale: float | None = None
    offset: float | None = None
    times: TimeCoding | None = None

    @property
    def effective(self) -> np.dtype[Any]:
        """The data type of the stored values after the CF attribute `_Unsigned` is applied."""
        return self.view_as or self.stored

    @property
    def is_scaled(self) -> bool:
        """True if CF attributes scale or offset the values, so that decoded values are doubles."""
        return self.scale is not None or self.offset is not None

    def view(self, raw: NDArray[Any]) -> NDArray[Any]:
        """View stored integers as signed or unsigned, as the CF attribute `_Unsigned` declares."""
        if self.view_as is None:
            return raw
        return raw.astype(np.bool_) if self.view_as.kind == "b" else raw.view(self.view_as)

    def find_missing(self, viewed: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Return a mask of the values that CF attributes declare as missing, or None if there are none."""
        missing: NDArray[np.bool_] | None = None
        if viewed.dtype.kind in "fc":
            missing = np.isnan(viewed)
        elif viewed.dtype.kind in "mM":
            missing = np.isnat(viewed)
        elif self.times is not None and viewed.dtype == np.int64:
            missing = viewed == NO_TIME
        for fill in self.fills:
            here = np.asarray(viewed == fill, np.bool_)
            missing = here if missing is None else missing | here
        return missing if missing is not None and missing.any() else None

    def unpack(self, viewed: NDArray[Any]) -> NDArray[Any]:
        """Apply the CF scale factor and offset, in double precision."""
        if not self.is_scaled:
            return viewed
        found = viewed.astype(np.float64)
        if self.scale is not None:
            found = found * np.float64(self.scale)
        return found if self.offset is None else found + np.float64(self.offset)


def find_value_coding(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> ValueCoding:
    """Determine the CF encoding of an array from its data type and attributes, as xarray does."""
    view_as = _find_view(stored, attributes)
    effective = view_as or stored
    fills = tuple(get_fill_values(attributes, stored))
    if view_as is not None and view_as.kind != "b":
        fills = tuple(fill.view(view_as) for fill in fills)
    times = None
    if effective.kind in "iuf":
        times = parse_time_coding(attributes.get("units"), attributes.get("calendar"))
    if times is None and is_elapsed(effective, attributes):
        times = parse_time_coding(f"{attributes.get('units')} since 1970-01-01", _PROLEPTIC)
    if times is not None:
        return ValueCoding(stored, view_as, fills, times=times)
    scale, offset = (_to_number(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    if effective.kind not in "iuf":
        scale = offset = None
    return ValueCoding(stored, view_as, fills, scale, offset)


def is_elapsed(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> bool:
    """Return True if an integer array contains durations, which xarray marks with the attribute `dtype`."""
    span = attributes.get("dtype")
    marked = dtype.kind == "i" and isinstance(span, str) and span.startswith("timedelta64")
    return marked and parse_time_coding(attributes.get("units"), attributes.get("calendar")) is None


def _find_view(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any] | None:
    if attributes.get("dtype") == "bool" and stored.kind in "iu":
        return np.dtype(np.bool_)
    word = str(attributes.get("_Unsigned", "")).lower()
    if stored.kind == "i" and word == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and word == "false":
        return np.dtype(f"i{stored.itemsize}")
    return None


def _to_number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_latitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return True if a coordinate contains latitudes, judging by its CF standard name, its units or its name.

    Only the standard name tells rotated grids apart.
    """
    return _is_named(name, attributes, _LATITUDE, _NORTH)


def is_longitude(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return True if a coordinate contains longitudes; see `is_latitude`."""
    return _is_named(name, attributes, _LONGITUDE, _EAST)


def _is_named(name: str, attributes: Mapping[str, Any], names: set[str], units: set[str]) -> bool:
    if standard := str(attributes.get("standard_name", "")).lower():
        return standard in names
    given = str(attributes.get("units", "")).lower()
    return given in units or (name.lower() in names and given in _DEGREES)


def _decode_float(text: str) -> float | None:
    try:
        if len(data := base64.standard_b64decode(text)) == 8:
            return float(struct.unpack("<d", data)[0])
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _convert_integers(
    numbers: Numbers, missing: NDArray[np.bool_], unit_us: int, shift_us: int, new_unit_us: int
) -> Numbers | None:
    present = numbers[~missing]
    limit = _LARGEST_US // unit_us
    if len(present) and not (int(present.min()) >= -limit and int(present.max()) <= limit):
        return None
    converted, rest = np.divmod(present.astype(np.int64) * unit_us + shift_us, new_unit_us)
    fits = np.iinfo(numbers.dtype)
    if rest.any() or (len(present) and (int(converted.min()) < fits.min or int(converted.max()) > fits.max)):
        return None
    found = numbers.copy()
    found[~missing] = converted
    return found


def _parse_zone_seconds(zone: str | None) -> int:
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    return (-1 if zone[0] == "-" else 1) * (int(hours) * 3600 + int(minutes) * 60)


def _count_days(year: int, month: int, day: int, calendar: str) -> int:
    """Return the number of days between 1970-01-01 and a date in a calendar."""
    if calendar in _MONTHS:
        before = _MONTHS[calendar]
        return int((year - 1970) * before[-1] + before[month - 1] + day - 1)
    if calendar == "julian" or (calendar == _STANDARD and (year, month, day) < (1582, 10, 15)):
        y, m = year + 4800 - (month <= 2), (month + 9) % 12
        return day + (153 * m + 2) // 5 + 365 * y + y // 4 - 32083 - _JULIAN_DAY_OF_1970
    # Convert in eras of 400 years, because numpy only parses four-digit years.
    y, m = year - (month <= 2), (month + 9) % 12
    return (153 * m + 2) // 5 + day - 1 + 365 * y + y // 4 - y // 100 + y // 400 - 719468


def _to_dates(days: NDArray[np.int64], calendar: str) -> tuple[Numbers, Numbers, Numbers]:
    """Convert days since 1970-01-01 to years, months and days of a calendar."""
    if calendar in _MONTHS:
        before = _MONTHS[calendar]
        years, rest = np.divmod(days, int(before[-1]))
        month = np.searchsorted(before, rest, side="right")
        return years + 1970, month, rest - before[month - 1] + 1
    julian = _to_julian_dates(days)
    if calendar == "julian":
        return julian
    gregorian = _to_gregorian_dates(days)
    if calendar == _PROLEPTIC:
        return gregorian
    late = days >= _FIRST_GREGORIAN_DAY
    year, month, day = (np.where(late, new, old) for new, old in zip(gregorian, julian, strict=True))
    return year, month, day


def _to_gregorian_dates(days: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    dates = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    month_number = months.astype(np.int64)
    day = (dates - months.astype("M8[D]")).astype(np.int64) + 1
    return month_number // 12 + 1970, month_number % 12 + 1, day


def _to_julian_dates(days: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    c = days + (_JULIAN_DAY_OF_1970 + 32082)
    d = (4 * c + 3) // 1461
    e = c - (1461 * d) // 4
    m = (5 * e + 2) // 153
    return d - 4800 + m // 10, m + 3 - 12 * (m // 10), e - (153 * m + 2) // 5 + 1


def _format_digits(values: Numbers, width: int, after: str) -> list[Numbers]:
    """Format numbers with a fixed number of digits, as columns of character codes: one per digit and one for
    the separator.
    """
    columns = [values // 10**place % 10 + ord("0") for place in range(width - 1, -1, -1)]
    return [*columns, np.full(len(values), ord(after))] if after else columns
