"""Convert times with different reference dates, and compare with cftime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import InvalidInputError
from icefloe.virtual import MismatchError, VirtualDataset, combine, virtualize
from icefloe.virtual.variables import make_loaded_variable, reencode_like
from tests.support.virtual.files import aged

CALENDARS = [
    "standard",
    "gregorian",
    "proleptic_gregorian",
    "julian",
    "noleap",
    "365_day",
    "all_leap",
    "366_day",
    "360_day",
]
UNITS = ["seconds", "minutes", "hours", "days", "milliseconds"]
DATES = st.builds(
    "{:04d}-{:02d}-{:02d}{}".format,
    st.integers(1, 2200),
    st.integers(1, 12),
    st.integers(1, 28),
    st.sampled_from(["", " 06:30", "T00:00:00", " 12:00:00.5", " 1:00:00 +01:00", " 00:00:00Z"]),
)
COUNTS = st.builds("{} since {}".format, st.sampled_from(UNITS), DATES)


def recounted(values: Any, units: str, other: str, calendar: str = "standard", **more: Any) -> Any:
    variable = make_loaded_variable(("time",), values, {"units": units, "calendar": calendar, **more})
    found = reencode_like(variable, {"units": other, "calendar": calendar})
    return None if found is None else found.values


@given(COUNTS, COUNTS, st.sampled_from(CALENDARS), st.integers(0, 40_000))
def test_converted_times_equal_cftime(units: str, other: str, calendar: str, day: int) -> None:
    wanted = cftime.num2date(day, "days since 1900-01-01", calendar)
    number = cftime.date2num(wanted, units, calendar)

    found = recounted(np.array([float(number)]), units, other, calendar)

    if found is not None:
        assert abs(cftime.num2date(found[0], other, calendar) - wanted).total_seconds() < 0.002


def test_integer_times_are_converted_exactly_or_not_at_all() -> None:
    hours = np.array([0, 24, 48], "i4")

    days = recounted(hours, "hours since 2000-01-02", "days since 2000-01-01")

    assert days.tolist() == [1, 2, 3]
    assert days.dtype == np.dtype("i4")
    assert recounted(hours + 6, "hours since 2000-01-02", "days since 2000-01-01") is None
    assert recounted(hours.astype("i1"), "hours since 2000-01-02", "hours since 1990-01-01") is None
    assert recounted(hours.astype("f4"), "hours since 2000-01-02", "seconds since 1900-01-01") is None


def test_missing_times_stay_unchanged() -> None:
    missing = recounted(
        np.array([0.0, 9e36, np.nan]), "days since 2000-01-02", "days since 2000-01-01", missing_value=9e36
    )

    np.testing.assert_array_equal(missing, [1.0, 9e36, np.nan])
    assert recounted(
        np.array([0, -1]), "days since 2000-01-02", "days since 2000-01-01", _FillValue=-1
    ).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("months since 2000-01-01", "standard"),
        ("days since 2000-13-01", "standard"),
        ("days since 2000-01-01", "none"),
        ("days", "standard"),
        ("days since 2000-01-01", "noleap"),
    ],
)
def test_unknown_time_units_are_not_converted(units: str, calendar: str) -> None:
    variable = make_loaded_variable(("time",), np.arange(3.0), {"units": units, "calendar": calendar})

    assert reencode_like(variable, {"units": "days since 1999-01-01"}) is None


def day(path: Path, number: int, *, bounds: bool = False, **options: Any) -> VirtualDataset:
    """Create a file of one day with hours since its own start."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("two", 2)
        time = file.createVariable("time", "f8", ("time",))
        time.units = f"hours since 2020-02-{number:02d}"
        time[:] = [0, 12]
        if bounds:
            time.bounds = "time_bnds"
            edges = file.createVariable("time_bnds", "f8", ("time", "two"), chunksizes=(1, 2))
            edges[:] = [[0, 12], [12, 24]]
        file.createVariable("v", "f4", ("time",), chunksizes=(1,))[:] = [number, number]
    return virtualize(aged(path), **options)


@pytest.mark.parametrize("how", [{"concat_dim": "time"}, {"by_coords": True}])
def test_files_with_different_time_units_are_combined(tmp_path: Path, how: Any) -> None:
    days = [day(tmp_path / f"{number}.nc", number) for number in (28, 29)]
    if "by_coords" in how:
        days.append(day(tmp_path / "27.nc", 27))

    opened = combine(days, **how).to_xarray()

    first = 28 if "concat_dim" in how else 27
    dates = np.arange(np.datetime64(f"2020-02-{first}"), np.datetime64("2020-03-01"), np.timedelta64(12, "h"))
    np.testing.assert_array_equal(opened["time"].values, dates)


def test_bounds_are_converted_with_their_times(tmp_path: Path) -> None:
    loaded = ["time", "time_bnds"]
    days = [
        day(tmp_path / f"{number}.nc", number, bounds=True, loadable_variables=loaded) for number in (28, 29)
    ]

    dataset = combine(days, "time")

    assert dataset.variables["time"].values.tolist() == [0, 12, 24, 36]
    assert dataset.variables["time_bnds"].values.tolist() == [[0, 12], [12, 24], [24, 36], [36, 48]]


def test_bounds_that_were_not_loaded_are_reported(tmp_path: Path) -> None:
    days = [day(tmp_path / f"{number}.nc", number, bounds=True) for number in (28, 29)]

    with pytest.raises(MismatchError) as raised:
        combine(days, "time")

    (mismatch,) = raised.value.mismatches
    assert (mismatch.variable, mismatch.what) == ("time_bnds", "units of time")


def test_appended_times_are_converted(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"file://{tmp_path}/", store))
    access = {f"file://{tmp_path}/": icefloe.Credentials.LocalFileSystemAccess()}
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, access)
    session = repo.writable_session("main")
    day(tmp_path / "1.nc", 28).to_icechunk(session.store)

    day(tmp_path / "2.nc", 29).to_icechunk(session.store, append_dim="time")

    opened = xarray.open_zarr(session.store, consolidated=False, chunks=None)
    assert opened["time"].values[-1] == np.datetime64("2020-02-29T12")
    with_bounds = day(tmp_path / "3.nc", 1, bounds=True)
    with pytest.raises(InvalidInputError, match="time_bnds has the units of time"):
        with_bounds.to_icechunk(session.store, append_dim="time")
