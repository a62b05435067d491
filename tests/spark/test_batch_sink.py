"""Test `df.write.format("icechunk")`: tasks and commit in plain Python, and once through Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from pyspark.sql.pandas.types import from_arrow_schema

import icefloe
from icefloe.errors import InvalidInputError, StorageError
from icefloe.query.options import parse_options
from icefloe.spark.batch_sink import IcechunkWriter
from tests.support.query import as_rows
from tests.support.spark.weather import CHUNKS, opened, repository, weather


@pytest.fixture
def folder(tmp_path: Path) -> str:
    repository(weather(), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)
    return str(tmp_path / "repo")


def run(
    folder: str,
    parts: list[pa.Table],
    overwrite: bool = False,
    between: Callable[[], object] = lambda: None,
    **options: str,
) -> list[Any]:
    """Write with a task for each part; every step in a pickle of its own, as in Spark."""
    writer = IcechunkWriter(
        parse_options({"path": folder, **options}), from_arrow_schema(parts[0].schema), overwrite
    )
    messages = [
        pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches(max_chunksize=50))) for part in parts
    ]
    again = pickle.loads(pickle.dumps((writer, messages)))
    between()
    again[0].commit(again[1])
    again[0].abort(again[1])  # Spark does this if the response of a commit is lost
    return messages


def repo_at(folder: str) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(folder))


def contents(folder: str) -> xr.Dataset:
    return opened(repo_at(folder).readonly_session("main"))


def changed_rows() -> pa.Table:
    return as_rows(weather().assign(rain=weather()["rain"] + 500)[["rain"]])


def test_tasks_write_whole_blocks_and_the_commit_writes_the_rest(folder: str) -> None:
    rows = changed_rows()
    order = np.arange(len(rows))
    parts = [rows.take(order[:200]), rows.take(order[200:])]

    messages = run(folder, parts)

    assert any(message.starts for message in messages)
    assert any(message.fragments for message in messages)
    assert (contents(folder)["rain"].values == weather()["rain"].values + 500).all()
    assert len(list(repo_at(folder).ancestry(branch="main"))) == 3


def test_rows_after_the_end_extend_the_dimension(folder: str) -> None:
    later = weather().isel(time=slice(0, 3))
    later["time"] = later["time"] + np.timedelta64(10, "D")

    run(folder, [as_rows(later)])

    assert contents(folder).sizes["time"] == 13
    xr.testing.assert_equal(contents(folder)["t2m"].isel(time=slice(10, 13)), later["t2m"])


def test_arrays_are_created_and_overwritten(tmp_path: Path) -> None:
    folder = str(tmp_path / "new")
    icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
    rows = pa.table({"x": [1, 2, 3], "v": [1.0, 2.0, 3.0]})

    run(folder, [rows], dims="x", chunks='{"x": 2}', commitMessage="first", userMetadata='{"by": "me"}')
    run(folder, [rows.slice(0, 2)], overwrite=True, dims="x")

    assert contents(folder)["v"].values.tolist() == [1.0, 2.0]
    first = list(repo_at(folder).ancestry(branch="main"))[1]
    assert (first.message, first.metadata["by"]) == ("first", "me")


def test_transaction_key_is_committed_once(folder: str) -> None:
    for _ in range(2):
        run(folder, [changed_rows()], txnAppId="a", txnVersion="1")

    assert len(list(repo_at(folder).ancestry(branch="main"))) == 3


def key_rows(value: int) -> pa.Table:
    return as_rows(weather().assign(rain=weather()["rain"] * 0 + value)[["rain"]])


@pytest.mark.parametrize("solver", ["ours", "theirs", "detect", "none"])
def test_concurrent_commit_with_same_key_is_detected(folder: str, solver: str) -> None:
    key: Any = {"txnAppId": "a", "txnVersion": "1", "solver": solver}

    run(folder, [key_rows(2)], between=lambda: run(folder, [key_rows(1)], **key), **key)

    assert len(list(repo_at(folder).ancestry(branch="main"))) == 3
    assert (contents(folder)["rain"].values == 1).all()


def test_transaction_key_survives_expiration(folder: str) -> None:
    key: Any = {"txnAppId": "a", "txnVersion": "1"}
    run(folder, [key_rows(1)], **key)
    run(folder, [key_rows(2)])
    time.sleep(0.002)
    repo_at(folder).expire_snapshots(datetime.now(UTC))
    tip = repo_at(folder).lookup_branch("main")

    run(folder, [key_rows(3)], **key)

    assert repo_at(folder).lookup_branch("main") == tip
    assert (contents(folder)["rain"].values == 2).all()


def test_keys_in_commit_metadata_are_found(folder: str) -> None:
    """Find keys that earlier releases stored only in commit metadata."""
    session = repo_at(folder).writable_session("main")
    session.commit("before", {"txnAppId": "a", "txnVersion": "1"}, allow_empty=True)

    run(folder, [changed_rows()], txnAppId="a", txnVersion="1")

    assert len(list(repo_at(folder).ancestry(branch="main"))) == 3


def keep_chunks_out_of_manifests(folder: str) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    icefloe.Repository.open(icefloe.local_filesystem_storage(folder), config).save_config()


def test_write_fails_if_gc_runs_between_tasks_and_commit(folder: str) -> None:
    keep_chunks_out_of_manifests(folder)

    def collect() -> None:
        time.sleep(0.002)  # the cutoff is later than the creation of the chunks
        assert repo_at(folder).garbage_collect(datetime.now(UTC)).chunks_deleted

    with pytest.raises(StorageError, match="garbage collection"):
        run(folder, [changed_rows()], between=collect)

    assert repo_at(folder).verify("objects").ok
    assert len(list(repo_at(folder).ancestry(branch="main"))) == 2


def test_commit_copies_chunks_after_gc_that_kept_them(folder: str) -> None:
    keep_chunks_out_of_manifests(folder)
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)

    run(folder, [changed_rows()], between=lambda: repo_at(folder).garbage_collect(long_ago))

    assert (contents(folder)["rain"].values == weather()["rain"].values + 500).all()
    assert repo_at(folder).find_garbage(datetime.now(UTC)).to_arrow().num_rows


def test_error_for_too_many_fragments_suggests_a_shuffle(folder: str) -> None:
    rows = changed_rows().slice(0, 100)

    with pytest.raises(
        InvalidInputError, match=r"icefloe\.spark\.write\(df, \.\.\.\), which shuffles rows by chunk"
    ):
        run(folder, [rows], maxFragmentBytes="100")
    with pytest.raises(InvalidInputError, match="two tasks have rows for the same cells"):
        run(folder, [changed_rows(), changed_rows()])
    with pytest.raises(InvalidInputError, match="two tasks have rows for the same cells"):
        run(folder, [changed_rows(), rows])
    with pytest.raises(InvalidInputError, match="two rows have the same coordinates"):
        run(folder, [rows, rows])
    with pytest.raises(InvalidInputError, match="tag selects a version, which cannot be written to"):
        run(folder, [rows], tag="v1")

    assert len(list(repo_at(folder).ancestry(branch="main"))) == 2


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_data_frame_is_written_through_spark(spark: Any, folder: str) -> None:
    frame = spark.read.format("icechunk").option("path", folder).load().where("lat >= 50")
    changed = frame.selectExpr("time", "lat", "lon", "cast(rain + 1 AS smallint) AS rain")

    changed.write.format("icechunk").mode("append").option("path", folder).option(
        "commitMessage", "one"
    ).save()

    expected = weather()["rain"].copy()
    expected.loc[{"lat": slice(None, 50)}] += 1
    xr.testing.assert_equal(contents(folder)["rain"], expected)
    assert next(iter(repo_at(folder).ancestry(branch="main"))).message == "one"
