"""Running an ingest again: what is there is skipped, what is new is put where it belongs, exactly once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from icefloe.ingest.combine.existing import inspect_group, parts
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.schema import schema_of
from icefloe.ingest.ledger import read_ledger
from tests.support.ingest.files import archive, assert_same, days, expected, new_repo, read, run, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files)
    before = repo.lookup_branch("main")

    report = run(repo, files)

    assert repo.lookup_branch("main") == before
    assert [len(report.outcome.sources.known), len(report.commits)] == [3, 0]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]])
@pytest.mark.parametrize("chunk", [2, 5])
def test_files_come_in_any_order(tmp_path: Path, order: list[int], chunk: int) -> None:
    """At the end, before the beginning, or into a gap, whether chunks fit or not."""
    files = archive(tmp_path, (2, 3, 4))
    repo = new_repo(tmp_path)

    for number in order:
        run(repo, files[number], chunks={"time": chunk, "lat": 2})

    assert_same(read(repo), expected(files))
    assert len(list(repo.ancestry(branch="main"))) == 4


@pytest.mark.parametrize("order", ["01 23 45", "45 01 23", "024 135", "13 02 45"])
def test_tiles_of_a_grid_come_row_by_row(tmp_path: Path, order: str) -> None:
    """Files side by side along two dimensions; what is there is few parts, however many files brought it."""
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
        schema_of(Source("new", 1, 1), days(6, 1).isel(lat=slice(*tile)), "") for tile in ((0, 3), (3, 5))
    ]
    assert len(parts(existing, rows, next_row)) == 2


def test_the_ledger_says_where_each_file_is(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 4))
    repo = new_repo(tmp_path)

    for number in (1, 0, 2):
        run(repo, files[number])

    rows = {Path(row.source).name: row for row in read_ledger(repo.readonly_session("main"), "")}
    assert {name: row.box()["time"] for name, row in rows.items()} == {
        "000.nc": (0, 2),
        "001.nc": (2, 5),
        "002.nc": (5, 9),
    }
    batches = {info.metadata["icefloe_ingest"]["batch"] for info in list(repo.ancestry(branch="main"))[:3]}
    assert batches == {row.batch for row in rows.values()}


def test_a_commit_for_so_many_files(tmp_path: Path) -> None:
    files = archive(tmp_path, (2, 3, 1, 2, 2))
    repo = new_repo(tmp_path)

    report = run(repo, files, commit_every=2, chunks={"time": 4})

    assert len(report.commits) == 3
    assert_same(read(repo), expected(files))


def test_a_changed_file_is_reported_or_ingested_again(tmp_path: Path) -> None:
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


def test_arrays_that_nobody_kept_a_ledger_for_are_added_to(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    session = repo.writable_session("main")
    days(0, 3).to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("by hand")
    file = write(tmp_path / "more.nc", days(3, 2))

    run(repo, file)

    assert np.array_equal(read(repo)["t2m"], days(0, 5)["t2m"])
    assert np.array_equal(read(repo)["time"], days(0, 5)["time"])


def test_whole_chunks_before_what_is_new_are_not_written_again(tmp_path: Path) -> None:
    files = archive(tmp_path, (4, 3, 5))
    repo = new_repo(tmp_path)
    before = run(repo, files[:2], chunks={"time": 2}).published

    after = run(repo, files).published

    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=after).updated_chunks
    assert sorted(each[0] for each in changed["/t2m"]) == [3, 4, 5]  # the first one was not full
    assert_same(read(repo), expected(files))
