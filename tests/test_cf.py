"""Times of the CF conventions, compared with cftime and xarray."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.cf import TimeCoding, parse_time_coding

CALENDARS = ["noleap", "365_day", "all_leap", "366_day", "360_day", "julian", "standard", "gregorian"]
CALENDARS += ["proleptic_gregorian"]
UNITS = {
    "days": np.timedelta64(1, "D"),
    "hours": np.timedelta64(1, "h"),
    "minutes": np.timedelta64(1, "m"),
    "seconds": np.timedelta64(1, "s"),
    "milliseconds": np.timedelta64(1, "ms"),
    "microseconds": np.timedelta64(1, "us"),
}


def known(units: str, calendar: str = "standard") -> TimeCoding:
    coding = parse_time_coding(units, calendar)
    assert coding is not None
    return coding


@given(
    st.sampled_from(CALENDARS),
    st.sampled_from(["0850-03-01", "1582-10-15", "1900-02-28 06:30:00", "2000-01-01T12:00:00.5"]),
    st.lists(st.integers(-100_000, 300_000), min_size=1, max_size=8),
)
def test_days_in_any_calendar_equal_cftime(calendar: str, start: str, days: list[int]) -> None:
    coding = known(f"days since {start}", calendar)

    found = coding.texts(coding.microseconds(np.array(days)))

    expected = cftime.num2date(days, f"days since {start}", calendar)
    assert [text[:19] for text in found.tolist()] == [as_text(date) for date in np.atleast_1d(expected)]


def as_text(d: Any) -> str:
    """cftime itself does not pad years."""
    return f"{d.year:04}-{d.month:02}-{d.day:02}T{d.hour:02}:{d.minute:02}:{d.second:02}"


@given(st.sampled_from(list(UNITS)), st.lists(st.integers(-(10**6), 10**6), min_size=1))
def test_integer_times_of_any_unit_round_trip(unit: str, numbers: list[int]) -> None:
    coding = known(f"{unit} since 1999-12-31 18:00")
    given_numbers = np.array(numbers)

    microseconds = coding.microseconds(given_numbers)

    step = UNITS[unit]
    expected = np.datetime64("1999-12-31T18:00", "us") + given_numbers * step
    assert (microseconds.view("M8[us]") == expected).all()
    assert (coding.numbers(microseconds, np.dtype("i8")) == given_numbers).all()


@pytest.mark.parametrize(
    ("units", "start"),
    [
        ("hours since 2000-01-01 02:00 +02:00", "2000-01-01T00:00"),
        ("hours since 2000-01-01T00:00:00Z", "2000-01-01T00:00"),
        ("hours since 2000-1-1 0:0:0.0", "2000-01-01T00:00"),
        ("h since 2000-01-01 00:00:00 UTC", "2000-01-01T00:00"),
        ("hours since 2000-01-01 -0330", "2000-01-01T03:30"),
    ],
)
def test_start_dates_are_parsed_in_many_spellings(units: str, start: str) -> None:
    found = known(units).microseconds(np.array([0])).view("M8[us]")

    assert found[0] == np.datetime64(start)


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("K", "standard"),
        (None, None),
        ("months since 2000-01-01", "standard"),
        ("days since yesterday", "standard"),
        ("days since 2000-01-01", "tropical"),
    ],
)
def test_units_other_than_times_are_not_converted(units: Any, calendar: Any) -> None:
    assert parse_time_coding(units, calendar) is None


def test_standard_calendar_has_timestamps_since_1582() -> None:
    coding = known("days since 1582-10-15")

    assert coding.is_timestamp(coding.microseconds(np.array([0, 5])))
    assert not coding.is_timestamp(coding.microseconds(np.array([-1, 5])))
    assert coding.texts(coding.microseconds(np.array([-1]))).tolist() == ["1582-10-04T00:00:00"]


def test_fractions_are_rounded_to_microseconds() -> None:
    coding = known("days since 2000-01-01")

    found = coding.microseconds(np.array([0.5, 1 / 3, np.nan]))

    assert found[0] == coding.start_us + 43200 * 10**6
    assert found[1] == coding.start_us + 28800 * 10**6


def test_fractional_time_cannot_be_stored_as_an_integer() -> None:
    coding = known("days since 2000-01-01")

    with pytest.raises(ValueError, match="not a whole number of its unit"):
        coding.numbers(coding.microseconds(np.array([0.5])), np.dtype("i4"))


def test_texts_of_far_years_have_the_same_width() -> None:
    coding = parse_time_coding("days since 0000-01-01", "noleap")
    assert coding is not None

    near, far = (
        coding.texts(coding.microseconds(np.array(days))) for days in ([0, 365], [-365, 365 * 12000])
    )

    assert near.tolist() == ["0000-01-01T00:00:00", "0001-01-01T00:00:00"]
    assert far.tolist() == ["-00001-01-01T00:00:00", "+12000-01-01T00:00:00"]
