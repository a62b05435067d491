"""`icefloe.append` and `icefloe append`: rows arrive once, whoever commits first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.cli import main as app
from icefloe.xarray import to_icechunk
from tests.support.feed_rows import ENCODING, rows, stored


@pytest.fixture
def repo() -> icefloe.Repository:
    """Create a repository with three rows."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    icefloe.append(rows(0, 3), repo, encoding=ENCODING)
    return repo


def test_concurrent_appends_lose_no_row(repo: icefloe.Repository) -> None:
    def write(first: int) -> int:
        return sum(icefloe.append(rows(hour), repo).num_rows for hour in (first, first + 1))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, (10, 20, 30, 40))) == 8

    expected = xr.concat([rows(0, 3), *(rows(first, 2) for first in (10, 20, 30, 40))], "time")
    xr.testing.assert_equal(stored(repo).sortby("time"), expected)


def test_writers_of_different_variables_fill_the_same_row(repo: icefloe.Repository) -> None:
    first = icefloe.append(rows(3, names=("t",)), repo)
    second = icefloe.append(rows(3, names=("u",)), repo)

    assert (first.num_rows, first.num_collapsed) == (1, 0)
    assert (second.num_rows, second.num_collapsed) == (0, 1)
    xr.testing.assert_equal(stored(repo), rows(0, 4))


def test_appending_the_same_rows_again_makes_no_commit(repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    report = icefloe.append(rows(1, 2), repo)

    assert (report.snapshot_id, report.num_rows, report.num_collapsed) == (None, 0, 2)
    assert repo.lookup_branch("main") == tip


def test_append_with_a_key_happens_once(repo: icefloe.Repository) -> None:
    assert icefloe.append(rows(3), repo, key="hour 3").snapshot_id is not None
    assert icefloe.append(rows(3), repo, key="hour 3").snapshot_id is None

    with pytest.raises(icefloe.InvalidInputError, match="of append was already committed with other data"):
        icefloe.append(rows(4), repo, key="hour 3")
    xr.testing.assert_equal(stored(repo), rows(0, 4))


def test_append_keeps_the_attributes_of_the_group(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="title") as store:
        zarr.open_group(store).attrs["title"] = "wind"
    before = repo.lookup_branch("main")

    icefloe.append(rows(3).assign_attrs(history="made at noon"), repo)

    assert stored(repo).attrs == {"title": "wind"}
    assert repo.diff(from_snapshot_id=before, to_branch="main").updated_groups == set()


def test_append_key_is_recorded_even_if_all_rows_exist(repo: icefloe.Repository) -> None:
    icefloe.append(rows(3), repo)

    report = icefloe.append(rows(3), repo, key="again")

    assert report.num_collapsed == 1
    with pytest.raises(icefloe.InvalidInputError, match="of append was already committed with other data"):
        icefloe.append(rows(9), repo, key="again")


def test_append_with_a_committed_key_skips_the_comparison_of_rows(repo: icefloe.Repository) -> None:
    """The rows were corrected, or have left the window, since the first run."""
    icefloe.append(rows(3), repo, key="run")
    with repo.transaction("main", message="correct") as store:
        array: Any = zarr.open_array(store, path="t")
        array[3] = 7.0

    assert icefloe.append(rows(3), repo, key="run").snapshot_id is None


@pytest.mark.parametrize("spec_version", [1, 2])
def test_merge_keeps_the_rows_of_both_branches(spec_version: int) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    icefloe.append(rows(0, 3), repo, encoding=ENCODING)
    repo.create_branch("dev", repo.lookup_branch("main"))
    for branch, hours in (("main", (5, 7)), ("dev", (3, 4, 5))):
        for hour in hours:
            icefloe.append(rows(hour), repo, branch=branch, key=f"{branch} {hour}")
    with pytest.raises(icefloe.MergeConflictError):
        repo.merge("dev", "main", message="merge")
    solver = icefloe.AppendSolver("time")

    assert repo.merge("dev", "main", message="merge", strategy=solver, dry_run=True).outcome == "merged"
    assert repo.merge("dev", "main", message="merge", strategy=solver).outcome == "merged"

    assert [(each.num_rows, each.num_collapsed) for each in solver.appended] == [(2, 1)]
    expected = [rows(0, 3), rows(5), rows(7), rows(3, 2)]
    xr.testing.assert_equal(stored(repo), xr.concat(expected, "time", data_vars="minimal"))
    assert "dev 4" in repo.committed_versions("append")
    assert repo.merge("dev", "main", message="merge", strategy=solver).outcome == "up-to-date"


def test_merge_reports_the_label_with_different_values(repo: icefloe.Repository) -> None:
    repo.create_branch("dev", repo.lookup_branch("main"))
    icefloe.append(rows(3), repo)
    icefloe.append(rows(3) + 1, repo, branch="dev")
    tip = repo.lookup_branch("main")

    with pytest.raises(icefloe.AppendConflictError, match="both sides wrote time=2026-01-01T03"):
        repo.merge("dev", "main", message="merge", strategy=icefloe.AppendSolver("time"))
    assert repo.lookup_branch("main") == tip


def test_merge_command_keeps_the_rows_of_both_branches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    icefloe.append(rows(0, 3), repo, encoding=ENCODING)
    repo.create_branch("dev", repo.lookup_branch("main"))
    icefloe.append(rows(5), repo)
    icefloe.append(rows(3), repo, branch="dev")
    command = ["merge", str(tmp_path / "repo"), "dev"]

    assert app.main([*command]) == 4
    assert app.main([*command, "--strategy", "append", "--order", "strict"]) == 4
    assert app.main([*command, "--strategy", "append", "--dim", "time"]) == 0

    assert "merged" in capsys.readouterr().out
    xr.testing.assert_equal(stored(repo).sortby("time"), xr.concat([rows(0, 4), rows(5)], "time"))


def test_append_solver_of_to_icechunk_keeps_rows_of_other_writers(repo: icefloe.Repository) -> None:
    def write(first: int, name: str) -> icefloe.Session:
        session = repo.writable_session("main")
        ds = rows(first, 2, names=(name,)).drop_vars("x")
        to_icechunk(ds, session, append_dim="time", mode="a-", solver=icefloe.AppendSolver("time"))
        return session

    sessions = [write(3, "t"), write(3, "u"), write(5, "t"), write(5, "u")]
    for session in sessions:
        session.commit("append")
    write(4, "t").commit("one row exists", allow_empty=True)

    xr.testing.assert_equal(stored(repo), rows(0, 7))
    with pytest.raises(ValueError, match="solver must be an AppendSolver for the append_dim 'x'"):
        to_icechunk(rows(7), sessions[0], append_dim="x", solver=icefloe.AppendSolver("time"))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            rows(3).assign_coords(time=rows(3).time + np.timedelta64(30, "m")),
            "cannot be stored as hours since",
        ),
        (rows(3, 2).isel(time=[1, 0]), "must be strictly ascending"),
    ],
)
def test_labels_that_cannot_be_stored_are_rejected_by_to_icechunk(
    repo: icefloe.Repository, dataset: xr.Dataset, message: str
) -> None:
    session = repo.writable_session("main")

    with pytest.raises(icefloe.InvalidInputError, match=message):
        to_icechunk(dataset, session, append_dim="time", mode="a-", solver=icefloe.AppendSolver("time"))

    assert not session.has_uncommitted_changes


def test_append_with_sorted_order_inserts_rows_by_label(repo: icefloe.Repository) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    icefloe.append(rows(0, names=("t",)), repo, encoding={name: ENCODING[name] for name in ("time", "t")})
    icefloe.append(rows(5, names=("t",)), repo)

    icefloe.append(rows(3, names=("t",)), repo, order="sorted")

    hours = [rows(hour, names=("t",)) for hour in (0, 3, 5)]
    xr.testing.assert_equal(stored(repo), xr.concat(hours, "time", data_vars="minimal"))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (rows(3).rename(time="day"), "the dataset has no dimension time"),
        (rows(3).isel(time=[]), "the dataset has no rows along time"),
        (rows(3, 2).isel(time=[1, 0]), "must be strictly ascending"),
        (rows(3).isel(x=[0, 1]), "x has 2 elements in t, but 4 are stored"),
        (rows(3).assign_coords(x=np.arange(4.0) + 1), "x differs from the stored x"),
        (rows(3).rename(t="wind"), "no array wind is stored"),
        (rows(3).drop_vars("time"), "only the stored group has a coordinate time"),
        (rows(3).assign(t=rows(3).t.astype("complex64")), "t has the data type complex64"),
        (rows(3).assign(t=rows(3).t.astype("f4")), "t has the data type float32, but is stored as float64"),
        (rows(3).assign_coords(time=np.array(["NaT"], "M8[ns]")), "must not be missing"),
        (
            rows(3).assign_coords(
                time=xr.date_range("2026-02-01", periods=1, calendar="noleap", use_cftime=True)
            ),
            "time has the calendar noleap, but is stored with the calendar proleptic_gregorian",
        ),
        (
            rows(3).assign_coords(time=rows(3).time + np.timedelta64(30, "m")),
            "cannot be stored as hours since",
        ),
        (rows(3).assign_coords(time=["three"]), "cannot be stored as hours since [^(]*$"),
        (rows(3).transpose("x", "time"), "t has the dimensions"),
    ],
)
def test_append_of_an_incompatible_dataset_is_rejected(
    repo: icefloe.Repository, dataset: xr.Dataset, message: str
) -> None:
    tip = repo.lookup_branch("main")

    with pytest.raises(icefloe.InvalidInputError, match=message):
        icefloe.append(dataset, repo)

    assert repo.lookup_branch("main") == tip


@pytest.mark.parametrize("calendar", ["360_day", "noleap", "standard"])
def test_later_times_of_any_calendar_fit_a_coordinate_that_began_with_one_day(calendar: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    days = xr.date_range("2001-02-27", periods=2, freq="6h", calendar=calendar, use_cftime=True)

    for number in (0, 1):
        rows = xr.Dataset({"t": ("time", [float(number)])}, coords={"time": days[number : number + 1]})
        icefloe.append(rows, repo)

    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False)
    assert found.time.dt.hour.values.tolist() == [0, 6]
    assert found.time.dt.calendar in (calendar, "proleptic_gregorian")


def test_append_to_a_rectilinear_grid_is_rejected() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="g/t", shape=(5,), dtype="f8", dimension_names=["time"])
    document = json.loads(session.workspace.array("/g/t").user_data)
    sizes = {"kind": "inline", "chunk_shapes": [[2, 3]]}
    document["chunk_grid"] = {"name": "rectilinear", "configuration": sizes}
    session.workspace.set_metadata("/g/t", json.dumps(document).encode())
    tip = session.commit("two chunk sizes")

    with pytest.raises(icefloe.InvalidInputError, match="/g/t has a rectilinear chunk grid"):
        icefloe.append(xr.Dataset({"t": ("time", [1.0])}), repo, group="g")

    assert repo.lookup_branch("main") == tip


def test_append_with_different_units_is_rejected(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="units") as store:
        zarr.open_array(store, path="t").attrs["units"] = "K"
    dataset = rows(3)
    dataset["t"].attrs["units"] = "degC"

    with pytest.raises(icefloe.InvalidInputError, match="t has the units degC, but is stored in K"):
        icefloe.append(dataset, repo)


def test_append_of_other_values_at_an_existing_label_is_rejected(repo: icefloe.Repository) -> None:
    with pytest.raises(icefloe.AppendConflictError, match="time=2026-01-01T02:00:00, with different values"):
        icefloe.append(rows(2, offset=1.0), repo)


def test_append_command_appends_each_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, files = str(tmp_path / "repo"), [str(tmp_path / f"{hour}.nc") for hour in (0, 1)]
    icefloe.Repository.create(icefloe.storage_from_url(place, sync=False))
    for hour, file in enumerate(files):
        rows(hour).to_netcdf(file)

    codes = [app.main(["append", *files, place, "--key", "run 7", "--json"]) for _ in range(2)]

    first, second = (json.loads(line) for line in _documents(capsys.readouterr().out))
    assert codes == [0, 0]
    assert [each["num_rows"] for each in first] == [1, 1]
    assert [each["snapshot_id"] for each in second] == [None, None]
    xr.testing.assert_equal(stored(icefloe.open(place)), rows(0, 2))


def test_append_command_prints_each_result_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, file = str(tmp_path / "repo"), str(tmp_path / "0.nc")
    icefloe.Repository.create(icefloe.storage_from_url(place, sync=False))
    rows(0).to_netcdf(file)

    assert app.main(["append", file, place]) == 0

    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("1 row appended along time") == 1


def _documents(text: str) -> list[str]:
    decoder, found, start = json.JSONDecoder(), [], 0
    while start < len(text.rstrip()):
        _, end = decoder.raw_decode(text, start)
        found.append(text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip())
    return found
