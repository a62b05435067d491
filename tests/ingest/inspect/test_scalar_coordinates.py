"""NetCDF files with one variable or one time each are ingested with one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from icefloe import InvalidInputError
from tests.support.ingest.files import START, days, new_repo, read_all, run, write
from tests.support.ingest.modes import modes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@modes("virtual")
def test_one_file_per_variable_and_time_is_ingested(tmp_path: Path, mode: str) -> None:
    """The last file of one variable is missing."""
    whole = days(0, 3).assign(rain=days(0, 3)["t2m"] * 2)
    names = [("t2m", 0), ("t2m", 1), ("t2m", 2), ("rain", 0), ("rain", 1)]
    files = [write(tmp_path / f"{name}{day}.nc", whole[[name]].isel(time=[day])) for name, day in names]
    repo, later = new_repo(tmp_path), new_repo(tmp_path)

    run(repo, files, mode=mode)
    run(later, files[:4], mode=mode)
    run(later, files, mode=mode)

    wanted = whole.assign(rain=whole["rain"].where(whole["time"] < whole["time"][2]))
    xr.testing.assert_equal(read_all(repo), wanted)
    xr.testing.assert_equal(read_all(later), wanted)


@modes("hybrid")
def test_scalar_time_becomes_a_dimension(tmp_path: Path, mode: str) -> None:
    whole = days(0, 4)
    files = [write(tmp_path / f"{day}.nc", whole.isel(time=day)) for day in range(4)]
    repo, later = new_repo(tmp_path), new_repo(tmp_path)

    run(repo, files, mode=mode)
    for end in (1, 2, 4):
        run(later, files[:end], mode=mode)

    xr.testing.assert_equal(read_all(repo), whole)
    xr.testing.assert_equal(read_all(later), whole)


def test_differing_scalars_other_than_time_are_rejected(tmp_path: Path) -> None:
    """A height that differs between files of different times does not become a dimension."""
    files = [write(tmp_path / f"{day}.nc", days(day, 1).assign_coords(height=2.0 + day)) for day in range(2)]
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match="height"):
        run(repo, files)

    assert run(repo, files, compat="override").published is not None


def test_files_on_other_grids_are_refused(tmp_path: Path) -> None:
    """Files may be missing only along times, steps, members and levels."""
    files = []
    for day in range(2):
        data = xr.Dataset(
            {"t": (("time", "lat"), np.ones((1, 3)))},
            {"time": [START + day * np.timedelta64(1, "D")], "lat": np.arange(3.0) + day / 2},
        )
        files.append(write(tmp_path / f"{day}.nc", data))

    with pytest.raises(InvalidInputError):
        run(new_repo(tmp_path), files)
