"""Test `icefloe.spark.write` on a local Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import ConflictError, IcechunkError, InvalidInputError, RefNotFoundError
from icefloe.spark import scan, write
from icefloe.spark import shuffle_write as writes
from tests.support.spark.weather import CHUNKS, opened, put, repository, weather

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j closes its sockets late
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture
def repo(tmp_path: Any) -> icefloe.Repository:
    return repository(weather(), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)


def commits(repo: icefloe.Repository) -> int:
    return len(list(repo.ancestry(branch="main")))


def test_read_modify_write_is_one_commit(spark: Any, repo: icefloe.Repository) -> None:
    frame = scan(spark, repo).sel(lat=slice(50, 40)).to_df()

    id = write(
        frame.selectExpr("time", "lat", "lon", "cast(rain + 1000 AS smallint) AS rain"),
        repo,
        message="more rain",
        metadata={"by": "test"},
    )

    expected = weather()["rain"].copy()
    expected.loc[{"lat": slice(50, 40)}] += 1000
    found = opened(repo.readonly_session("main"))
    xr.testing.assert_equal(found["rain"], expected)
    xr.testing.assert_equal(found["t2m"], weather()["t2m"])
    newest = next(iter(repo.ancestry(branch="main")))
    assert (newest.id, newest.message, newest.metadata["by"]) == (id, "more rain", "test")
    assert commits(repo) == 3


def test_new_arrays_are_extended_by_later_writes(spark: Any, tmp_path: Any) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "new")))
    days = spark.range(0, 60, 1, 3).selectExpr(
        "timestamp_ntz '2020-01-01 00:00:00' + make_dt_interval(id div 6) AS time",
        "id % 6 AS station",
        "cast(id AS float) AS v",
    )

    write(days, repo, dims=["time", "station"], chunks={"time": 4, "station": 3}, group="a/b")
    later = days.selectExpr("time + make_dt_interval(10) AS time", "station", "cast(v + 60 AS float) AS v")
    write(later.where("station < 5"), repo, group="a/b")

    found = xr.open_zarr(repo.readonly_session("main").store, group="a/b", consolidated=False, chunks=None)
    assert dict(found.sizes) == {"time": 20, "station": 6}
    expected = np.arange(120.0).reshape(20, 6)
    expected[10:, 5] = np.nan
    assert np.array_equal(found["v"].values, expected, equal_nan=True)
    assert commits(repo) == 3


def test_repeated_job_commits_nothing(spark: Any, repo: icefloe.Repository) -> None:
    rows = scan(spark, repo).isel(time=0, lat=0).select("time", "lat", "lon", "rain").to_df()

    first = write(rows, repo, txn_app_id="nightly", txn_version=7)
    put(repo, weather(2), group="other")
    again = write(rows, repo, txn_app_id="nightly", txn_version=7)

    assert again == first
    assert commits(repo) == 4
    with pytest.raises(InvalidInputError, match="txnAppId and txnVersion form one key"):
        write(rows, repo, txn_app_id="nightly")


def test_invalid_rows_do_not_move_branch(spark: Any, repo: icefloe.Repository) -> None:
    rows = scan(spark, repo).isel(time=0, lat=0).select("time", "lat", "lon", "rain").to_df()

    with pytest.raises(InvalidInputError, match="two rows have the same coordinates"):
        write(rows.union(rows), repo)
    with pytest.raises(InvalidInputError, match="rows have no lat"):
        write(rows.selectExpr("time", "cast(null AS double) AS lat", "lon", "rain"), repo)
    with pytest.raises(InvalidInputError, match=r"lat 61\.0 is not a coordinate"):
        write(rows.selectExpr("time", "lat + 1 AS lat", "lon", "rain"), repo)

    assert commits(repo) == 2


def test_write_to_tag_is_rejected(spark: Any, repo: icefloe.Repository) -> None:
    repo.create_tag("v1", repo.lookup_branch("main"))
    rows = scan(spark, repo).isel(time=0).to_df()

    with pytest.raises(RefNotFoundError, match="v1 is a tag, which cannot be written to"):
        write(rows, repo, branch="v1")
    with pytest.raises(IcechunkError, match="nowhere"):
        write(rows, repo, branch="nowhere")
    with pytest.raises(InvalidInputError, match="mode must be append or overwrite"):
        write(rows, repo, mode="ignore")
    with pytest.raises(InvalidInputError, match="no solver 'our'; did you mean 'ours'"):
        write(rows, repo, solver="our")


def test_concurrent_commit_is_rebased_or_reported(
    spark: Any, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = scan(spark, repo).isel(time=0, lat=0).select("time", "lat", "lon", "rain").to_df()
    original = writes.write_blocks

    def disturbed(*arguments: Any) -> Any:
        """Commit from another session while the job runs."""
        receipts = original(*arguments)
        other = repo.writable_session("main")
        array: Any = zarr.open_array(other.store, path="t2m" if disturb == "elsewhere" else "rain", mode="r+")
        array[0, 0, 0] = 5
        other.commit("other")
        return receipts

    monkeypatch.setattr(writes, "write_blocks", disturbed)
    disturb = "elsewhere"
    write(frame, repo)
    assert commits(repo) == 4
    disturb = "here"
    with pytest.raises(ConflictError):
        write(frame, repo)
    assert commits(repo) == 5
    write(frame, repo, solver="ours")
    assert commits(repo) == 7
    rain = opened(repo.readonly_session("main"))["rain"].values
    assert rain[0, 0, 0] == weather()["rain"].values[0, 0, 0]


def test_rows_appended_by_others_are_kept(
    spark: Any, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = opened(repo.readonly_session("main"))["time"].values[-1]
    frame = scan(spark, repo).isel(time=0).select("time", "lat", "lon", "rain").to_df()
    later = frame.selectExpr("time + interval 902 days as time", "lat", "lon", "rain + 1 as rain")
    latest = frame.selectExpr("time + interval 901 days as time", "lat", "lon", "rain + 2 as rain")
    original = writes.write_blocks

    def disturbed(*arguments: Any) -> Any:
        """Append from another job while this one runs."""
        receipts = original(*arguments)
        monkeypatch.setattr(writes, "write_blocks", original)
        write(latest, repo)
        return receipts

    monkeypatch.setattr(writes, "write_blocks", disturbed)
    write(later, repo, solver="append")

    found = opened(repo.readonly_session("main"))
    first = weather()["time"].values[0]
    added = [first + np.timedelta64(days, "D") for days in (901, 902)]
    np.testing.assert_array_equal(found["time"].values[-3:], [last, *added])
    rain = weather()["rain"].values[0]
    np.testing.assert_array_equal(found["rain"].values[-2:], np.stack([rain + 2, rain + 1]))
