"""Test `spark.readStream.format("icechunk")`: the reader in plain Python, and once through Spark."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import IcechunkError, InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icefloe.query.options import parse_options
from icefloe.spark import stream_source
from icefloe.spark.stream_source import HAS_LIMITS, IcechunkStreamReader, describe_stream
from tests.support.spark.weather import CHUNKS, repository, weather

COLUMNS = ["time", "lat", "lon", "rain", "t2m", "_change"]
Row = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    repository(weather(4), icefloe.local_filesystem_storage(str(tmp_path / "repo")), CHUNKS)
    return str(tmp_path / "repo")


def repo_at(folder: str) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(folder))


def write_cell(folder: str, value: int, message: str = "one cell") -> str:
    session = repo_at(folder).writable_session("main")
    zarr.open_array(session.store, path="rain")[0, 0, value % 8] = value
    return session.commit(message)


class Stream:
    """A query that restarts for every batch, as after a crash of the driver."""

    def __init__(self, folder: str, **options: str) -> None:
        self.options = {"path": folder, "grain": "rows", **options}
        self.offset = self.open().initialOffset()

    def open(self) -> IcechunkStreamReader:
        return IcechunkStreamReader(parse_options(self.options), COLUMNS)

    def run_batch(self) -> list[Row]:
        reader = self.open()
        end = (
            reader.latestOffset(self.offset, reader.getDefaultReadLimit())
            if HAS_LIMITS
            else reader.latestOffset()
        )
        rows = self.read(end)
        self.open().commit(end)
        self.offset = end
        return rows

    def read(self, end: Row) -> list[Row]:
        rows: list[Row] = []
        for part in self.open().partitions(self.offset, end):
            for batch in self.open().read(pickle.loads(pickle.dumps(part))):
                rows += batch.to_pylist()
        return rows


def test_first_batch_is_the_whole_table_and_later_batches_are_changes(folder: str) -> None:
    stream = Stream(folder)

    first = stream.run_batch()
    nothing = stream.run_batch()
    write_cell(folder, 500)
    changed = stream.run_batch()

    assert len(first) == 4 * 6 * 8
    assert nothing == []
    assert [(row["rain"], row["_change"]) for row in changed] == [(500, "written")]


def test_start_can_be_latest_a_version_or_a_time(folder: str) -> None:
    before = datetime.now(UTC).isoformat()
    write_cell(folder, 500)
    tip = repo_at(folder).lookup_branch("main")

    starts = [
        Stream(folder, startingVersion=start).run_batch() for start in ("latest", "main~1", before, tip)
    ]

    assert [len(rows) for rows in starts] == [0, 1, 1, 0]


@pytest.mark.skipif(not HAS_LIMITS, reason="limits need Spark 4.2")
def test_rate_limits_divide_commits_into_batches(folder: str) -> None:
    stream = Stream(folder, startingVersion="latest", maxCommitsPerTrigger="2")
    small = Stream(folder, startingVersion="latest", maxBytesPerTrigger="1")
    for value in range(500, 505):
        write_cell(folder, value)

    assert [len(stream.run_batch()) for _ in range(4)] == [2, 2, 1, 0]
    assert [len(small.run_batch()) for _ in range(6)] == [1, 1, 1, 1, 1, 0]


def test_stream_emits_differing_rows_after_amend_and_reset(folder: str) -> None:
    repo = repo_at(folder)
    write_cell(folder, 500)
    stream = Stream(folder)
    stream.run_batch()

    session = repo.writable_session("main")
    zarr.open_array(session.store, path="rain")[0, 0, 4] = 600
    session.amend("amended")
    amended = stream.run_batch()
    repo.reset_branch("main", next(iter(repo.ancestry(branch="main"))).parent_id or "")
    reset = stream.run_batch()

    assert [row["rain"] for row in amended] == [600]
    assert [row["rain"] for row in reset] == [weather(4)["rain"].values[0, 0, 4]]


def expire_and_collect(folder: str) -> None:
    now = datetime.now(UTC)
    repo_at(folder).expire_snapshots(older_than=now)
    repo_at(folder).garbage_collect(now)


def test_stream_with_an_expired_start_fails_or_reloads_unless_bookmarked(folder: str) -> None:
    streams = {
        name: Stream(folder, **options)
        for name, options in {
            "fail": {},
            "diff": {"onLostBase": "diff"},
            "reload": {"onLostBase": "reload"},
            "bookmark": {"bookmark": "copy"},
        }.items()
    }
    for name in ("fail", "diff", "reload"):
        streams[name].run_batch()
    write_cell(folder, 500)
    streams["bookmark"].run_batch()
    write_cell(folder, 501)
    expire_and_collect(folder)

    assert [row["rain"] for row in streams["bookmark"].run_batch()] == [501]
    assert len(streams["reload"].run_batch()) == 4 * 6 * 8
    for name in ("fail", "diff"):
        with pytest.raises(SnapshotNotFoundError, match="onLostBase to reload"):
            streams[name].run_batch()


def test_planned_batch_survives_expiration_with_a_bookmark(folder: str) -> None:
    stream = Stream(folder, bookmark="copy", startingVersion="latest")
    write_cell(folder, 500)
    end = stream.open().latestOffset(stream.offset)
    write_cell(folder, 501)
    write_cell(folder, 502)
    expire_and_collect(folder)

    assert [row["rain"] for row in stream.read(end)] == [500]


def test_commits_are_emitted_oldest_first_and_once(folder: str) -> None:
    stream = Stream(folder, grain="commits")
    stream.run_batch()
    for value in (500, 501):
        write_cell(folder, value, f"commit {value}")

    rows = stream.run_batch()

    assert [row["message"] for row in rows] == ["commit 500", "commit 501"]
    assert rows[1]["parent_id"] == rows[0]["snapshot_id"]
    assert stream.run_batch() == []


def test_expired_commits_are_not_skipped_silently(folder: str) -> None:
    stream = Stream(folder, grain="commits", bookmark="commits")
    stream.run_batch()
    for value in (500, 501, 502):
        write_cell(folder, value)
    expire_and_collect(folder)

    with pytest.raises(SnapshotNotFoundError, match="no longer in the history"):
        stream.run_batch()


def test_chunks_are_emitted_without_reading_them(folder: str) -> None:
    stream = Stream(folder, grain="chunks", variables="rain")
    everything = stream.run_batch()
    write_cell(folder, 500)

    (changed,) = stream.run_batch()

    assert len(everything) == 1 * 2 * 2
    assert (changed["path"], changed["coords"], changed["_change"]) == ("/rain", [0, 0, 1], "written")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"grain": "cells"}, InvalidInputError, "no value of grain 'cells'"),
        ({"onLostBase": "skip"}, InvalidInputError, "no value of onLostBase 'skip'"),
        ({"tag": "v1"}, InvalidInputError, "tag does not apply to a stream"),
        ({"branch": "other"}, RefNotFoundError, "other"),
        ({"variables": "wind"}, InvalidInputError, "no variable 'wind'"),
        ({"startingVersion": "v9"}, RefNotFoundError, "no branch, tag or snapshot v9"),
    ],
)
def test_mistakes_are_reported_when_the_stream_is_loaded(
    folder: str, options: dict[str, str], error: type[IcechunkError], words: str
) -> None:
    with pytest.raises(error, match=words):
        describe_stream(parse_options({"path": folder, "grain": "rows", **options}))


def test_rate_limits_are_rejected_before_spark_4_2(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_source, "HAS_LIMITS", False)

    with pytest.raises(InvalidInputError, match=r"maxCommitsPerTrigger needs Spark 4\.2"):
        describe_stream(parse_options({"path": folder, "grain": "rows", "maxCommitsPerTrigger": "3"}))


def test_stream_without_a_grain_option_is_rejected(folder: str) -> None:
    with pytest.raises(InvalidInputError, match="grain: rows, chunks or commits"):
        describe_stream(parse_options({"path": folder, "bookmark": "copy"}))
    with pytest.raises(InvalidInputError, match="grain: rows, chunks or commits"):
        IcechunkStreamReader(parse_options({"path": folder}), COLUMNS)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j closes its sockets late
def test_available_now_trigger_reads_all_new_data_once(spark: Any, folder: str, tmp_path: Path) -> None:
    def run() -> list[int]:
        sizes: list[int] = []
        source = spark.readStream.format("icechunk").options(path=folder, grain="rows")
        if HAS_LIMITS:
            source = source.option("maxCommitsPerTrigger", 2)
        query = (
            source.load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda frame, _: sizes.append(frame.count()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return sizes

    first = run()
    for value in (500, 501, 502):
        write_cell(folder, value)

    assert first == [4 * 6 * 8]
    assert run() == ([2, 1] if HAS_LIMITS else [3])
