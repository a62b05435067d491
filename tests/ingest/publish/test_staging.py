"""Write, audit, publish: the branch moves once, after all checks have passed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from icefloe import MergeConflictError, Repository, storage_from_url
from icefloe.errors import InvalidInputError
from icefloe.ingest import make_options
from icefloe.ingest.bad_files import ProblemsError
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.options import Check
from icefloe.ingest.publish import staging
from tests.support import processes
from tests.support.ingest.fault_jobs import reachable
from tests.support.ingest.files import (
    START,
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
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

KILLED_DRIVER = """
import os, signal, sys
from icefloe import Repository, storage_from_url
from icefloe.ingest import make_options
from icefloe.ingest.job import ingest
from icefloe.ingest import job
from tests.support.ingest.files import Travelling, listening

def told(sentence):
    if sentence.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

repo = Repository.open(storage_from_url(sys.argv[1], sync=False))
with listening(told):
    ingest(repo, sys.argv[2], make_options(commit_every=1, mode=sys.argv[4]), Travelling())
"""


def no_june(dataset: xr.Dataset) -> str | None:
    """A check of a user's own."""
    return "there is a June" if bool((dataset["time"].dt.month == 6).any()) else None


@pytest.mark.parametrize("amended", [True, False])
def test_published_commit_records_check_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amended: bool
) -> None:
    """A long transaction log is not copied to amend its commit: a commit of its own has the results."""
    repo = new_repo(tmp_path)
    if not amended:
        monkeypatch.setattr(staging, "_MAX_COPIED_BYTES", 10)

    report = run(repo, archive(tmp_path), checks=(Check("monotone"), Check("source"), Check("gaps")))

    tip = next(iter(repo.ancestry(branch="main")))
    assert tip.id == report.published
    assert [check["name"] for check in tip.metadata["icefloe_ingest"]["checks"]] == [
        "monotone",
        "source",
        "gaps",
    ]
    assert all(check["passed"] for check in tip.metadata["icefloe_ingest"]["checks"])
    assert repo.list_branches() == {"main"}
    assert len(list(repo.ancestry(branch="main"))) == (2 if amended else 3)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (Check("range", "t2m", low=0, high=50), "odd.nc), outside of 0 to 50"),
        (Check("nulls", "t2m", most=0.01), "odd.nc)"),
        (Check("gaps"), "1 gap"),
        (Check("python", call="tests.ingest.publish.test_staging:no_june"), "there is a June"),
    ],
)
def test_failed_check_leaves_the_branch_unchanged(tmp_path: Path, check: Check, said: str) -> None:
    odd = days(170, 2)
    odd["t2m"][1] = np.nan
    repo = new_repo(tmp_path)
    run(repo, archive(tmp_path / "good"), checks=(check,) if check.name != "range" else ())
    before = repo.lookup_branch("main")

    report = run(repo, write(tmp_path / "odd.nc", odd), checks=(check,))

    assert said in report.checks[0].text
    assert not report.ok
    assert repo.lookup_branch("main") == before
    assert read(repo, branch="main.ingest-failed").sizes["time"] == 11
    assert repo.list_branches() == {"main", "main.ingest-failed"}


def test_check_of_a_protected_branch_rejects_the_publication(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    run(repo, archive(tmp_path / "good"))
    repo.protect("main", sql=["SELECT time FROM this WHERE time >= '2024-06-01' AND t2m > 0"])
    before = repo.lookup_branch("main")

    report = run(repo, write(tmp_path / "june.nc", days(170, 2)))

    (*_, rejected) = report.checks
    assert (rejected.name, rejected.passed) == ("protected branch main", False)
    assert "returned offending rows" in rejected.text
    assert report.failed_branch == "main.ingest-failed"
    assert repo.lookup_branch("main") == before
    repo.unprotect("main")
    assert run(repo, tmp_path / "june.nc").published == repo.lookup_branch("main")


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ([0, 2, 1, 3], "2024-01-02 00:00:00 follows 2024-01-03 00:00:00"),
        ([0, 1, 1, 2], "2024-01-02 00:00:00 appears twice"),
        ([3, 2, 2, 1], "2024-01-03 00:00:00 appears twice"),
        ([3, 1, 2, 0], "2024-01-03 00:00:00 follows 2024-01-02 00:00:00"),
    ],
)
def test_decreasing_time_is_not_published(tmp_path: Path, order: list[int], told: str) -> None:
    repo = new_repo(tmp_path)
    file = write(tmp_path / "back.nc", days(0, 4).isel(time=order))

    with pytest.raises(ProblemsError, match=rf"back\.nc: time: {told} in the file"):
        run(repo, file, concat_dim="time", checks=(Check("monotone"),))

    assert len(list(repo.ancestry(branch="main"))) == 1


def test_sql_without_spark_is_refused_before_any_work(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)

    with pytest.raises(InvalidInputError, match="the check sql requires Spark"):
        run(repo, archive(tmp_path), checks=(Check("sql", query="SELECT 1"),))
    assert repo.list_branches() == {"main"}


def test_values_that_differ_from_the_files_are_not_published(tmp_path: Path) -> None:
    """The executor damages the written data: samples are compared with the files."""
    files = archive(tmp_path)
    repo = new_repo(tmp_path)

    class Spoiling(Travelling):
        def map(self, task: Any, items: Any, /) -> Any:
            if task.run.__name__ == "compare_blocks":
                for file in files:
                    write(Path(file), xr.open_dataset(file).load() + 1)
            return super().map(task, items)

    report = ingest(repo, files, make_options(), Spoiling())

    assert "differs from" in report.checks[1].text
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_invalid_checks_are_refused() -> None:
    for name, call in (("luck", ""), ("range", ""), ("python", "x"), ("sql", "")):
        with pytest.raises(InvalidInputError, match="check"):
            Check(name, call=call)


def test_staged_data_is_merged_if_the_branch_moved(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = archive(tmp_path)
    run(repo, files[0])

    def told(sentence: str) -> None:
        if sentence.startswith("commit"):
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
            session.commit("meanwhile")

    with listening(told):
        ingest(repo, files, make_options(), Travelling())

    assert_same(read(repo), expected(files))
    assert read(repo, "other").sizes["time"] == 1
    assert repo.list_branches() == {"main"}
    tip = next(iter(repo.ancestry(branch="main")))
    assert [check["passed"] for check in tip.metadata["icefloe_ingest"]["checks"]] == [True, True]
    assert len(tip.metadata["icefloe"]["merged"]) == 1


def test_data_is_staged_again_if_the_branch_gained_groups(tmp_path: Path) -> None:
    """Both writers create the root group: the data is staged again on top of the other commit."""
    repo = new_repo(tmp_path)
    files = archive(tmp_path)

    def told(sentence: str) -> None:
        if sentence.startswith("commit") and len(list(repo.ancestry(branch="main"))) == 1:
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
            session.commit("meanwhile")

    with listening(told):
        ingest(repo, files, make_options(), Travelling())

    assert_same(read(repo), expected(files))
    assert read(repo, "other").sizes["time"] == 1
    assert len(list(repo.ancestry(branch="main"))) == 3
    assert repo.list_branches() == {"main"}


def test_conflicting_change_on_the_branch_is_kept(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = archive(tmp_path)
    after = []

    def told(sentence: str) -> None:
        if sentence.startswith("commit"):
            session = repo.writable_session("main")
            days(0, 1).to_zarr(session.store, consolidated=False, zarr_format=3)
            after.append(session.commit("meanwhile"))

    conflict = "t2m, /time was changed on main during the ingest"
    with pytest.raises(MergeConflictError, match=conflict), listening(told):
        ingest(repo, files, make_options(), Travelling())

    assert repo.lookup_branch("main") == after[0]


@pytest.mark.parametrize(
    ("mode", "moment"),
    [("native", "1 file into"), ("virtual", "1 file into"), ("native", "commit"), ("native", "published")],
)
def test_run_after_a_killed_driver_completes_the_ingest(tmp_path: Path, mode: str, moment: str) -> None:
    """The branch has nothing or everything whenever the driver is killed, and the next run completes it.

    Spilled data of the killed run is garbage; a run with the same files reuses and deletes the stored
    inspection.
    """
    files = archive(tmp_path / "data", (3, 3, 3))
    place, pattern = str(tmp_path / "repo"), str(tmp_path / "data" / "*.nc")
    Repository.create(storage_from_url(place, sync=False))

    code, printed = processes.run(KILLED_DRIVER, place, pattern, moment, mode)

    repo = Repository.open(storage_from_url(place))
    assert code == -9, printed
    assert len(list(repo.ancestry(branch="main"))) == (4 if moment == "published" else 1)
    assert bool(unneeded(repo)) is (mode == "virtual")
    run(repo, pattern, commit_every=1, mode=mode)
    assert_same(read_all(repo), expected(files))
    assert not unneeded(repo)
    assert len(read_ledger(repo.readonly_session("main"), "")) == 3
    assert len(list(repo.ancestry(branch="main"))) == 4
    assert repo.list_branches() == {"main"}


def unneeded(repo: Repository) -> set[str]:
    """Chunk objects that nobody refers to."""
    return {info.key for info in repo.storage.list_prefix("chunks")} - reachable(repo)


def test_spill_of_a_killed_ingest_is_collected(tmp_path: Path) -> None:
    archive(tmp_path / "data", (3, 3))
    place, pattern = str(tmp_path / "repo"), str(tmp_path / "data" / "*.nc")
    repo = Repository.create(storage_from_url(place, sync=False))
    code, printed = processes.run(KILLED_DRIVER, place, pattern, "1 file into", "virtual")
    assert code == -9, printed

    report = Repository.open(storage_from_url(place)).garbage_collect(datetime.now(UTC))

    assert report.chunks_deleted > 0
    assert not list(repo.storage.list_prefix("chunks"))


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (Check("range", "t2m", low=0, high=10), "outside of 0 to 10"),
        (Check("source"), "differs from"),
        (Check("gaps"), "1 gap"),
    ],
)
def test_data_staged_by_a_failed_run_is_checked_by_the_next(tmp_path: Path, check: Check, said: str) -> None:
    files = archive(tmp_path / "data", (2, 2))
    files.append(write(tmp_path / "data" / "late.nc", days(9, 3).transpose("lon", "time", "lat")))
    repo = new_repo(tmp_path)

    class Broken(Travelling):
        def map(self, task: Any, items: Any, /) -> Any:
            if task.run.__name__ == "compare_blocks":
                raise KeyboardInterrupt
            return super().map(task, items)

    with pytest.raises(KeyboardInterrupt):
        ingest(repo, files, make_options(commit_every=1), Broken())
    good = repo.list_branches() - {"main"}
    assert len(good) == 1
    if check.name == "source":  # behind the back of who only looks at sizes and times of change
        seen, changed = os.stat(files[1]), days(2, 2)
        changed["t2m"].values += 1
        write(Path(files[1]), changed)
        os.utime(files[1], ns=(seen.st_atime_ns, seen.st_mtime_ns))

    report = ingest(repo, files, make_options(commit_every=1, checks=(check,)), Travelling())

    assert report.commits == ()
    assert said in report.checks[0].text
    assert len(list(repo.ancestry(branch="main"))) == 1
    assert repo.list_branches() == {"main", "main.ingest-failed"}


def test_data_staged_for_an_old_tip_is_staged_again(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = archive(tmp_path)
    repo.create_branch("main.ingest", repo.lookup_branch("main"))
    session = repo.writable_session("main.ingest")
    (xr.Dataset({"left": ("x", [1.0])}, {"x": [START]})).to_zarr(
        session.store, consolidated=False, zarr_format=3
    )
    session.commit("left behind")
    session = repo.writable_session("main")
    days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
    session.commit("went on")

    run(repo, files)

    assert_same(read(repo), expected(files))
