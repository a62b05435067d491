"""Test `df.writeStream.format("icechunk")`: batches in plain Python, replayed and twice at a time."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.query.options import parse_options
from icefloe.spark import stream_sink
from icefloe.spark.stream_sink import IcechunkStreamWriter
from tests.support.query import as_rows
from tests.support.spark.weather import CHUNKS, opened, repository, weather


@pytest.fixture
def folder(tmp_path: Path) -> str:
    repository(weather(4), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)
    return str(tmp_path / "repo")


class Context:
    """The part of Spark's task context that names the query."""

    @staticmethod
    def get() -> Context:
        return Context()

    @staticmethod
    def getLocalProperty(name: str) -> str:  # noqa: N802 - as in Spark
        return {"sql.streaming.queryId": "query-1"}[name]


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sink, "TaskContext", Context)


class Sink:
    """Micro-batches as Spark runs them: one writer for all tasks, and another one that commits."""

    def __init__(self, folder: str, **options: str) -> None:
        self.options = {"path": folder, **options}

    def open(self, rows: Any) -> IcechunkStreamWriter:
        schema = from_arrow_schema(rows.schema)
        return IcechunkStreamWriter(parse_options(self.options), schema, overwrite=False)

    def write(self, dataset: xr.Dataset) -> list[Any]:
        rows = as_rows(dataset)
        writer = pickle.dumps(self.open(rows))
        half = len(rows) // 2
        parts = [rows.slice(0, half), rows.slice(half)]
        return [pickle.loads(writer).write(iter(to_input(part))) for part in parts]

    def commit(self, dataset: xr.Dataset, messages: list[Any], batch: int) -> None:
        self.open(as_rows(dataset)).commit(pickle.loads(pickle.dumps(messages)), batch)

    def run(self, dataset: xr.Dataset, batch: int) -> None:
        self.commit(dataset, self.write(dataset), batch)


def to_input(rows: pa.Table) -> list[Any]:
    """Return rows as Spark passes them to a task of a streaming write: as record batches since Spark 4.1."""
    if stream_sink._HAS_ARROW_WRITER:
        return list(rows.to_batches())
    return [Row(**row) for row in rows.to_pylist()]


def days(first: int, number: int = 1) -> xr.Dataset:
    """Return days of rain, counted from the first day of the repository."""
    dataset = weather(number)[["rain"]] + first
    dataset["time"] = weather(1)["time"].values[0] + np.arange(first, first + number) * np.timedelta64(1, "D")
    return dataset


def repo_at(folder: str) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(folder))


def contents(folder: str) -> xr.Dataset:
    return opened(repo_at(folder).readonly_session("main"))


def count_commits(folder: str) -> int:
    return len(list(repo_at(folder).ancestry(branch="main")))


def test_each_batch_is_one_commit(folder: str) -> None:
    sink, before = Sink(folder), count_commits(folder)

    for batch in range(3):
        sink.run(days(4 + batch), batch)

    assert count_commits(folder) == before + 3
    assert contents(folder).sizes["time"] == 7
    assert (contents(folder)["rain"].values[5] == days(5)["rain"].values).all()


def test_replayed_batch_commits_nothing(folder: str) -> None:
    sink = Sink(folder)
    sink.run(days(4), 0)
    tip = repo_at(folder).lookup_branch("main")

    sink.run(days(4), 0)

    assert repo_at(folder).lookup_branch("main") == tip


def test_replayed_batch_commits_nothing_after_its_commit_expired(folder: str) -> None:
    sink = Sink(folder)
    sink.run(days(4), 0)
    sink.run(days(5), 1)
    now = datetime.now(UTC)
    repo_at(folder).expire_snapshots(older_than=now)
    repo_at(folder).garbage_collect(now)
    tip = repo_at(folder).lookup_branch("main")

    sink.run(days(4), 0)

    assert repo_at(folder).lookup_branch("main") == tip


@pytest.mark.parametrize("solver", ["detect", "ours", "theirs"])
def test_two_copies_of_a_streaming_query_commit_a_batch_once(folder: str, solver: str) -> None:
    sink, before = Sink(folder, solver=solver), count_commits(folder)
    messages = [sink.write(days(4)) for _ in range(2)]

    for each in messages:
        sink.commit(days(4), each, 0)

    assert count_commits(folder) == before + 1
    assert contents(folder).sizes["time"] == 5


def test_batch_is_committed_from_the_snapshot_that_its_tasks_saw(folder: str) -> None:
    sink = Sink(folder)
    changed = weather(4)[["rain"]] + 100
    messages = sink.write(changed)
    warmer = weather(4)[["t2m"]] + 1
    Sink(folder, txnAppId="other").run(warmer, 0)

    sink.commit(changed, messages, 0)

    assert (contents(folder)["rain"].values == changed["rain"].values).all()
    np.testing.assert_array_equal(contents(folder)["t2m"].values, warmer["t2m"].values)


def test_late_rows_are_rejected_dropped_or_inserted_as_configured(folder: str) -> None:
    Sink(folder).run(days(8), 0)
    late = xr.concat([days(5), days(9)], "time")

    with pytest.raises(InvalidInputError, match="the option late inserts or drops such rows"):
        Sink(folder).run(late, 1)
    Sink(folder, late="drop").run(late, 1)
    dropped = contents(folder)
    Sink(folder, late="insert").run(days(6), 2)
    inserted = contents(folder)

    assert dropped.sizes["time"] == 6
    assert inserted.indexes["time"].is_monotonic_increasing
    for dataset in (days(6), days(8), days(9)):
        found = inserted["rain"].sel(time=dataset["time"])
        assert (found.values == dataset["rain"].values).all()
    np.testing.assert_array_equal(inserted["t2m"].values[:4], weather(4)["t2m"].values)


def test_unknown_option_for_late_rows_raises_an_error(folder: str) -> None:
    with pytest.raises(InvalidInputError, match="no value of late 'ignore'"):
        Sink(folder, late="ignore").run(days(4), 0)


def test_rows_are_converted_to_arrow_before_spark_4_1() -> None:
    schema = as_rows(days(4)).schema
    expected = as_rows(days(4)).to_pylist()

    batches = list(stream_sink._to_batches(iter([Row(**row) for row in expected]), schema))

    assert [row for batch in batches for row in batch.to_pylist()] == expected
