"""Ingests that append to the rows of others, who extended the same arrays in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe import AppendConflictError, Repository, storage_from_url
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.options import Check, make_options
from icefloe.ingest.report import IngestReport
from tests.support import processes
from tests.support.ingest.files import (
    Travelling,
    archive,
    assert_same,
    days,
    expected,
    listening,
    new_repo,
    read,
    read_all,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

DRIVER = """
import sys
from icefloe import Repository, storage_from_url
from tests.support.ingest.files import run

place, *files = sys.argv[1:]
repo = Repository.open(storage_from_url(place, sync=False))
for file in files:
    assert run(repo, file, append_order="sorted").ok
"""


class Counted(Travelling):
    """An executor that a test asks which tasks ran."""

    @property
    def writes(self) -> int:
        return sum(name.startswith("write") for name in self.calls)


def ingest_beside(
    repo: Repository, files: Any, act: Callable[[], object], executor: Travelling, **options: Any
) -> IngestReport:
    """Ingest files while something else happens between the checks and the publication."""
    done: list[str] = []

    def hear(sentence: str) -> None:
        if sentence.startswith("check source") and not done:
            done.append(sentence)
            act()

    with listening(hear):
        return ingest(repo, files, make_options(**options), executor)


def regions(repo: Repository) -> dict[str, tuple[int, int]]:
    rows = read_ledger(repo.readonly_session("main"), "")
    return {Path(row.source).stem: row.box["time"] for row in rows}


@pytest.mark.parametrize(("mode", "spec_version"), [("native", 2), ("virtual", 1), ("hybrid", 2)])
def test_rows_are_appended_after_a_concurrent_ingest_without_reading_files_again(
    tmp_path: Path, mode: Any, spec_version: int
) -> None:
    files = archive(tmp_path / "data", (2, 2, 2, 2))
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    run(repo, files[:1], mode=mode)
    executor = Counted()
    alone = Counted()
    ingest(new_repo(tmp_path), files[2:], make_options(mode=mode), alone)

    report = ingest_beside(
        repo, files[2:], lambda: run(repo, files[1], mode=mode), executor, mode=mode, append_order="sorted"
    )

    assert report.ok
    assert report.published == repo.lookup_branch("main")
    assert executor.writes == alone.writes
    assert_same(read_all(repo), expected(files))
    assert regions(repo) == {"000": (0, 2), "001": (2, 4), "002": (4, 6), "003": (6, 8)}
    assert repo.list_branches() == {"main"}
    note = next(iter(repo.ancestry(branch="main"))).metadata["icefloe_ingest"]
    assert note["files"] == 2
    assert all(check["passed"] for check in note["checks"])
    assert run(repo, files, mode=mode).published is None


@pytest.mark.parametrize(("order", "labels"), [("commit", [0, 1, 2, 4, 3]), ("sorted", [0, 1, 2, 3, 4])])
def test_earlier_labels_are_placed_in_the_chosen_order(tmp_path: Path, order: Any, labels: list[int]) -> None:
    files = archive(tmp_path / "data", (3, 1, 1))
    repo = new_repo(tmp_path)
    run(repo, files[0], chunks={"time": 1})
    options: dict[str, Any] = {"append_order": order, "checks": (Check("source"),)}

    ingest_beside(repo, files[1], lambda: run(repo, files[2]), Travelling(), **options)

    found = read(repo)
    assert found.time.values.tolist() == expected(files).isel(time=labels).time.values.tolist()
    assert_same(found.sortby("time"), expected(files))
    assert regions(repo)["001"] == ((4, 5) if order == "commit" else (3, 4))


def test_ingest_of_earlier_labels_fails_with_strict_order(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (3, 1, 1))
    repo = new_repo(tmp_path)
    run(repo, files[0])

    with pytest.raises(AppendConflictError, match="not after the last label"):
        ingest_beside(repo, files[1], lambda: run(repo, files[2]), Travelling(), append_order="strict")

    assert read(repo).sizes["time"] == 4
    assert run(repo, files).ok
    assert_same(read(repo), expected(files))


def test_appended_rows_that_fail_a_check_are_not_published(tmp_path: Path) -> None:
    """The checks see the rows at their final places."""
    files = archive(tmp_path / "data", (3, 1, 1))
    repo = new_repo(tmp_path)
    run(repo, files[0])

    report = ingest_beside(repo, files[1], lambda: run(repo, files[2]), Travelling(), append_order="commit")

    assert [check.name for check in report.checks if not check.passed] == ["monotone"]
    assert report.failed_branch == "main.ingest-failed"
    assert_same(read(repo), expected([files[0], files[2]]))


def test_ingest_keeps_rows_of_a_concurrent_append(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (3, 2))
    repo = new_repo(tmp_path)
    run(repo, files[0])
    other = days(9, 2)

    report = ingest_beside(
        repo, files[1], lambda: icefloe.append(other, repo), Travelling(), append_order="sorted"
    )

    assert report.ok
    assert_same(read(repo), xr.concat([expected(files), other], "time", data_vars="minimal"))


def test_concurrent_ingest_of_the_same_file_is_not_repeated(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (3, 2))
    repo = new_repo(tmp_path)
    run(repo, files[0])

    ingest_beside(repo, files[1], lambda: run(repo, files[1]), Travelling(), append_order="sorted")

    assert_same(read(repo), expected(files))
    assert regions(repo) == {"000": (0, 3), "001": (3, 5)}


@pytest.mark.parametrize("others", [1, 3])
def test_files_that_cannot_be_appended_are_ingested_again(tmp_path: Path, others: int) -> None:
    """Rows on both sides of those of another ingest, or a correction of published rows."""
    files = archive(tmp_path / "data", (3, 1, 1, 1))
    repo = new_repo(tmp_path)
    run(repo, files[0])
    mine = [files[1], files[3]] if others == 1 else files[1:]

    ingest_beside(repo, mine, lambda: run(repo, files[2]), Travelling(), append_order="sorted")

    assert_same(read(repo), expected(files))
    assert np.unique([*regions(repo).values()], axis=0).shape == (4, 2)


def test_processes_append_different_days_concurrently(tmp_path: Path) -> None:
    files = archive(tmp_path / "data", (2,) * 5)
    place = str(tmp_path / "repo")
    repo = Repository.create(storage_from_url(place, sync=False))
    run(repo, files[0])

    with ExitStack() as stack:
        drivers = [
            stack.enter_context(processes.started(DRIVER, place, *files[start::2])) for start in (1, 2)
        ]
        printed = [driver.stdout.read() for driver in drivers]
        codes = [driver.wait() for driver in drivers]

    assert codes == [0, 0], printed
    assert_same(read(repo), expected(files))
    assert regions(repo) == {f"{number:03}": (2 * number, 2 * number + 2) for number in range(5)}
    assert repo.list_branches() == {"main"}
