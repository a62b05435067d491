"""Native ingest: the result equals that of xarray for the same files, for any files and chunks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe._internal.executor import ThreadExecutor
from icefloe.ingest.job import ingest
from icefloe.ingest.options import make_options
from tests.support.ingest.files import (
    START,
    Travelling,
    archive,
    assert_same,
    days,
    expected,
    new_repo,
    read,
    read_all,
    run,
    write,
)
from tests.support.ingest.modes import modes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of open_mfdataset about its defaults


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"chunks": {"time": 1}},
        {"chunks": {"time": 2, "lat": 2, "lon": 3}},
        {"chunks": {"time": -1, "lat": 1, "lon": 1}},
        {"chunks": {"time": 100, "lat": 100}},
        {"chunks": {"time": 2, "lat": 2}, "shards": {"time": 4, "lat": 4}},
        {"chunks": {"time": 4}, "codec": "none"},
        {"chunks": {"time": 4}, "codec": "blosc:lz4:3", "memory_bytes": 1300},
    ],
)
def test_result_equals_open_mfdataset_for_any_chunks(tmp_path: Path, layout: dict[str, Any]) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)

    report = run(repo, files, **layout)

    assert_same(read(repo), expected(files))
    assert len(report.commits) == 1
    assert report.plan is not None
    assert report.plan.memory_bytes <= layout.get("memory_bytes", report.plan.memory_bytes)


def test_times_with_different_units_per_file_are_combined(tmp_path: Path) -> None:
    """The second file has half days: whole days since the first would lose them."""
    files = [
        write(tmp_path / "0.nc", days(0, 2), {"time": {"units": "days since 2024-01-01", "dtype": "i4"}}),
        write(
            tmp_path / "1.nc",
            days(2, 3).assign_coords(time=START + np.array([48, 60, 72]) * np.timedelta64(1, "h")),
            {"time": {"units": "hours since 1970-01-01", "dtype": "i8"}},
        ),
        write(tmp_path / "2.nc", days(4, 1), {"time": {"units": "seconds since 2000-01-01", "dtype": "f8"}}),
    ]
    together, one_by_one = new_repo(tmp_path), new_repo(tmp_path)

    run(together, files)
    for file in files:
        run(one_by_one, file)

    assert_same(read(together), expected(files))
    assert_same(read(one_by_one), expected(files))


def test_bounds_of_times_have_the_units_of_their_times(tmp_path: Path) -> None:
    def with_bounds(first: int, count: int) -> xr.Dataset:
        dataset = days(first, count)
        time = dataset["time"].values
        dataset["time"].attrs["bounds"] = "time_bnds"
        return dataset.assign(
            time_bnds=(("time", "bnds"), np.stack([time, time + np.timedelta64(1, "D")], 1))
        )

    files = [
        write(tmp_path / "0.nc", with_bounds(0, 2), {"time": {"units": "days since 2024-01-01"}}),
        write(tmp_path / "1.nc", with_bounds(2, 2), {"time": {"units": "hours since 2023-01-01"}}),
    ]
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 3})

    assert_same(read(repo), expected(files))


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [(0.5, 0.5, True), (0.5, 0.25, False), (np.float32(0.1), np.float32(0.1), False)],
)
def test_packed_values_keep_their_meaning(tmp_path: Path, first: Any, second: Any, alike: bool) -> None:
    packed = {"dtype": "i2", "add_offset": type(first)(0), "_FillValue": -9}
    dataset = days(0, 4)
    dataset["t2m"][0, 0, 0] = np.nan
    files = [
        write(tmp_path / "0.nc", dataset.isel(time=slice(2)), {"t2m": {**packed, "scale_factor": first}}),
        write(tmp_path / "1.nc", dataset.isel(time=slice(2, 4)), {"t2m": {**packed, "scale_factor": second}}),
    ]
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 3})

    assert_same(read(repo), expected(files))
    stored = zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")
    assert (stored.dtype == "i2") == alike  # bytes are taken as they are where they mean the same


def test_variables_in_separate_files_are_merged(tmp_path: Path) -> None:
    files = []
    for first in (0, 3):
        dataset = days(first, 3)
        files.append(write(tmp_path / f"t-{first}.nc", dataset))
        files.append(write(tmp_path / f"u-{first}.nc", dataset.rename(t2m="u10") * 2))
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 4})

    xr.testing.assert_equal(read(repo), expected(files))


def test_tiles_along_two_dimensions_are_combined(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{first}-{south}.nc", days(first, 2).isel(lat=slice(south, south + 3)))
        for first in (0, 2)
        for south in (0, 3)
    ]
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 3, "lat": 2})

    assert_same(read(repo), expected(files))


def test_files_without_the_concat_dim_are_combined(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{day}.nc", days(day, 1).isel(time=0)) for day in range(5)]
    repo = new_repo(tmp_path)

    run(repo, files, concat_dim="time", chunks={"time": 2})

    assert_same(read(repo), expected(files, combine="nested", concat_dim="time"))


def test_masks_text_and_curvilinear_grids_are_ingested(tmp_path: Path) -> None:
    def odd(first: int, count: int) -> xr.Dataset:
        mask = (("lat", "lon"), np.arange(20, dtype="i2").reshape(5, 4) % 3)
        name = (("time",), np.array([f"day {day}" for day in range(first, first + count)], object))
        grid = (("lat", "lon"), np.arange(20.0).reshape(5, 4))
        return days(first, count, mask=mask, name=name).assign_coords(area=grid, level=850.0)

    files = [write(tmp_path / f"{first}.nc", odd(first, 2)) for first in (0, 2, 4)]
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 3, "lat": 2})

    xr.testing.assert_equal(read(repo), expected(files))
    assert set(read(repo).coords) == {"time", "lat", "lon", "area", "level"}


def test_selected_variables_are_ingested_into_a_group(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{first}.nc", days(first, 2, u10=days(first, 2)["t2m"] * 3)) for first in (0, 2)
    ]
    repo = new_repo(tmp_path)

    run(repo, files, variables=["u10"], group="wind/surface")

    assert_same(read(repo, "wind/surface"), expected(files)[["u10"]])


def test_noleap_calendar_is_ingested(tmp_path: Path) -> None:
    files = []
    for month in (2, 3):
        time = xr.date_range(f"2024-{month:02}-01", periods=28, calendar="noleap", use_cftime=True)
        dataset = xr.Dataset({"a": ("time", np.arange(28.0) + month)}, {"time": time})
        files.append(write(tmp_path / f"{month}.nc", dataset))
    repo = new_repo(tmp_path)

    run(repo, files, chunks={"time": 10})

    xr.testing.assert_identical(read(repo), expected(files))


def test_ingest_tasks_return_no_data_to_the_driver(tmp_path: Path) -> None:
    """Tasks return receipts of a few bytes per chunk, for chunks of any size."""
    rng = np.random.default_rng(1)
    files = []
    for first in (0, 4):
        values = rng.normal(size=(4, 200, 300)).astype("f4")
        time = START + np.arange(first, first + 4) * np.timedelta64(1, "D")
        dataset = xr.Dataset({"a": (("time", "y", "x"), values)}, {"time": time})
        files.append(write(tmp_path / f"{first}.nc", dataset))
    repo, executor = new_repo(tmp_path), Travelling()

    ingest(repo, files, make_options(chunks={"time": 3, "y": 50}), executor)

    assert executor.calls == ["inspect_files", "write_blocks", "compare_blocks"]
    assert executor.home_bytes < 20_000 < read(repo)["a"].nbytes / 50


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    before = repo.lookup_branch("main")

    report = run(repo, archive(tmp_path), chunks={"time": 2, "lat": 2}, dry_run=True)

    assert repo.lookup_branch("main") == before
    assert report.plan is not None
    assert (report.plan.files, report.plan.nbytes) == (3, 9 * 5 * 4 * 4)
    assert not report.commits


@modes("native", "hybrid")
def test_scalar_text_is_ingested(tmp_path: Path, mode: str) -> None:
    file = write(tmp_path / "a.nc", days(0, 3).assign(station=((), "Höhe"), note=((), "")))
    repo = new_repo(tmp_path)

    run(repo, file, mode=mode)

    assert [read_all(repo)[name].item() for name in ("station", "note")] == ["Höhe", ""]


@modes("native", "hybrid")
def test_threads_open_one_file_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    files = archive(tmp_path / "files")
    threads = set()
    original = xr.open_dataset

    def open_dataset(*args: Any, **options: Any) -> xr.Dataset:
        threads.add(threading.get_ident())  # netCDF4 crashes if a file is opened while another one is read
        return original(*args, **options)

    monkeypatch.setattr(xr, "open_dataset", open_dataset)
    options = make_options(mode=mode, chunks={"time": 2})
    ingest(new_repo(tmp_path), files, options, ThreadExecutor(8))

    assert threads == {threading.get_ident()}
