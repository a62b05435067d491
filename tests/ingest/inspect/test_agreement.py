"""Differences between files: noted if xarray can combine them, refused if the result would be wrong."""

from __future__ import annotations

from pathlib import Path

import cftime
import pytest
import xarray as xr

from icefloe import InvalidInputError
from tests.support.ingest.files import assert_same, days, expected, new_repo, read, run, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_files_with_different_standard_calendars_are_combined_and_reported(tmp_path: Path) -> None:
    """Both are noted, and xarray combines them into one axis."""
    files = [
        write(tmp_path / "0.nc", days(0, 2), {"time": {"calendar": "standard"}}),
        write(tmp_path / "1.nc", days(2, 2), {"time": {"calendar": "proleptic_gregorian"}}),
    ]
    repo = new_repo(tmp_path)

    report = run(repo, files)

    assert_same(read(repo), expected(files))
    assert any("has the calendar proleptic_gregorian" in str(each) for each in report.findings)


def test_files_with_dates_beyond_datetime64_are_rejected_with_the_reason(tmp_path: Path) -> None:
    late = xr.Dataset({"t2m": ("time", [1.0])}, {"time": [cftime.DatetimeGregorian(2300, 1, 1)]})
    usual = write(tmp_path / "0.nc", days(0, 2), {"time": {"calendar": "standard"}})
    files = [usual, write(tmp_path / "1.nc", late)]

    with pytest.raises(InvalidInputError, match=r"is of type cftime, others are of datetime64.*after 2262"):
        run(new_repo(tmp_path), files)


@pytest.mark.parametrize(("units", "is_noted"), [("m s**-1", True), (None, True), ("km s-1", False)])
def test_equivalent_unit_spellings_are_accepted(tmp_path: Path, units: str | None, is_noted: bool) -> None:
    files = []
    for first, mine in ((0, "m s-1"), (2, units), (4, "m s-1")):
        part = days(first, 2)
        part["t2m"].attrs = {} if mine is None else {"units": mine}
        files.append(write(tmp_path / f"{first}.nc", part))
    repo = new_repo(tmp_path)

    if is_noted:
        assert any("others are in m s-1" in str(each) for each in run(repo, files).findings)
    else:
        with pytest.raises(InvalidInputError, match="is in km s-1, others are in m s-1"):
            run(repo, files)


def test_decoding_options_are_refused(tmp_path: Path) -> None:
    """Times that xarray cannot decode stop the job, or are left out with drop_variables."""
    part = days(0, 2, when=("time", [1, 2], {"units": "months since 1900-01-01"}))
    file = write(tmp_path / "0.nc", part)
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match="decode_times is not an option of an ingest"):
        run(repo, file, open_options={"decode_times": False})
    with pytest.raises(InvalidInputError, match="months since"):
        run(repo, file)
    run(repo, file, open_options={"drop_variables": ["when"]})

    assert_same(read(repo), expected([file], drop_variables=["when"]))
