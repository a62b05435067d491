"""Repeated ingests: known files are skipped, and new files are added exactly once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from icefloe.ingest.combine.existing import inspect_group, split_existing
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.schema import describe_dataset
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import archive, assert_same, days, expected, new_repo, read, run, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_second_run_does_nothing(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files)
    before = repo.lookup_branch("main")

    report = run(repo, files)

    assert repo.lookup_branch("main") == before
    assert [len(report.outcome.sources.known), len(report.commits)] == [3, 0]


@pytest.mark.parametrize(("order", "chunk"), [([0, 1, 2], 2), ([2, 1, 0], 5), ([0, 2, 1], 2), ([1, 0, 2], 5)])
def test_files_can_be_ingested_in_any_order(tmp_path: Path, order: list[int], chunk: int) -> None:
    """At the end, before the beginning, or into a gap, with or without aligned chunks."""
    files = archive(tmp_path, (2, 3, 4))
    repo = new_repo(tmp_path)

    for number in order:
        run(repo, files[number], chunks={"time": chunk, "lat": 2})

    assert_same(read(repo), expected(files))
    assert len(list(repo.ancestry(branch="main"))) == 4


@pytest.mark.parametrize("order", ["45 01 23", "024 135"])
def test_tiles_can_be_ingested_row_by_row(tmp_path: Path, order: str) -> None:
    """Files are adjacent along two dimensions; the stored data is few parts, for any number of files."""
    files = [
        write(tmp_path / f"{begin}-{south}.nc", days(begin, 2).isel(lat=slice(south, south + 3)))
        for begin in (0, 2, 4)
        for south in (0, 3)
    ]
    repo = new_repo(tmp_path)

    for numbers in order.split():
        run(repo, [files[int(number)] for number in numbers], chunks={"time": 3, "lat": 2})

    assert_same(read(repo), expected(files))
    session = repo.readonly_session("main")
    existing, rows = inspect_group(session, ""), read_ledger(session, "")
    assert existing is not None
    next_row = [
        describe_dataset(IngestSource("new", 1, 1), days(6, 1).isel(lat=slice(*tile)), "")
        for tile in ((0, 3), (3, 5))
    ]
    assert len(split_existing(existing, rows, next_row)) == 2


def test_ledger_records_the_region_of_each_file(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 4))
    repo = new_repo(tmp_path)

    for number in (1, 0, 2):
        run(repo, files[number])

    rows = {Path(row.source).name: row for row in read_ledger(repo.readonly_session("main"), "")}
    assert {name: row.box["time"] for name, row in rows.items()} == {
        "000.nc": (0, 2),
        "001.nc": (2, 5),
        "002.nc": (5, 9),
    }
    batches = {info.metadata["icefloe_ingest"]["batch"] for info in list(repo.ancestry(branch="main"))[:3]}
    assert batches == {row.batch for row in rows.values()}


def test_commit_every_limits_files_per_commit(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 1, 2, 2))
    repo = new_repo(tmp_path)

    report = run(repo, files, commit_every=2, chunks={"time": 4})

    assert len(report.commits) == 3
    assert_same(read(repo), expected(files))


def test_changed_file_is_reported_or_ingested_again(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 2))
    repo = new_repo(tmp_path)
    run(repo, files, chunks={"time": 2})
    write(Path(files[1]), days(2, 3) + 1000)
    os.utime(files[1], (1, 1))

    reported = run(repo, files)
    unchanged = read(repo)
    run(repo, files, on_change="ingest")

    assert [Path(source.url).name for source in reported.outcome.sources.changed] == ["001.nc"]
    assert not reported.commits
    assert float(unchanged["t2m"].max()) < 1000
    wanted = expected(files)
    assert np.array_equal(read(repo)["t2m"], wanted["t2m"])
    assert len(read_ledger(repo.readonly_session("main"), "")) == 3


def test_arrays_without_ledger_can_be_appended_to(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    session = repo.writable_session("main")
    days(0, 3).to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("by hand")
    file = write(tmp_path / "more.nc", days(3, 2))

    run(repo, file)

    assert np.array_equal(read(repo)["t2m"], days(0, 5)["t2m"])
    assert np.array_equal(read(repo)["time"], days(0, 5)["time"])


def test_unchanged_chunks_are_not_written_again(tmp_path: Path) -> None:
    files = archive(tmp_path, (4, 3, 5))
    repo = new_repo(tmp_path)
    before = run(repo, files[:2], chunks={"time": 2}).published

    after = run(repo, files).published

    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=after).updated_chunks
    assert sorted(each[0] for each in changed["/t2m"]) == [3, 4, 5]  # the first one was not full
    assert_same(read(repo), expected(files))
