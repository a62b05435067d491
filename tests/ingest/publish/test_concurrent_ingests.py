"""Concurrent ingests into one branch: each has its own staging branch, and all data is published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import zarr

from icefloe import Repository, storage_from_url
from icefloe.errors import RefNotFoundError
from icefloe.ingest.job import ingest
from icefloe.ingest.ledger import read_ledger
from icefloe.ingest.options import make_options
from icefloe.ingest.publish.staging import Staging
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
    assert run(repo, file.split("+"), chunks={"time": 2}, commit_every=1).ok
"""


def test_concurrent_processes_ingest_each_file_once(tmp_path: Path) -> None:
    """One process ingests some of the files one by one, another ingests all of them."""
    files = archive(tmp_path / "data", (3, 4, 2))
    place = str(tmp_path / "repo")
    repo = Repository.create(storage_from_url(place, sync=False))
    shares = [[files[0], files[2]], ["+".join(files)]]

    with ExitStack() as stack:
        drivers = [stack.enter_context(processes.started(DRIVER, place, *share)) for share in shares]
        printed = [driver.stdout.read() for driver in drivers]
        codes = [driver.wait() for driver in drivers]

    assert codes == [0, 0], printed
    assert_same(read(repo), expected(files))
    assert sorted(row.source for row in read_ledger(repo.readonly_session("main"), "")) == files
    assert repo.list_branches() == {"main"}


def once(text: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a log handler that acts once, on the first message with this beginning."""
    done: list[str] = []

    def told(sentence: str) -> None:
        if sentence.startswith(text) and not done:
            done.append(sentence)
            act()

    return told


@pytest.mark.parametrize("moment", ["3 sources", "1 file into", "check"])
def test_ingest_succeeds_if_another_ingest_commits_at_any_moment(tmp_path: Path, moment: str) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    told = once(moment, lambda: run(repo, files[1], chunks={"time": 2}))

    with listening(told):
        report = ingest(repo, files, make_options(chunks={"time": 2}, commit_every=1), Travelling())

    assert_same(read(repo), expected(files))
    assert report.published == repo.lookup_branch("main")
    assert len(read_ledger(repo.readonly_session("main"), "")) == 3
    assert repo.list_branches() == {"main"}


def broken_off(repo: Repository, files: Sequence[str]) -> str:
    """An ingest that is stopped after its first commit, which is the tip of what it leaves."""

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(once("commit", stop)):
        ingest(repo, files, make_options(commit_every=1), Travelling())
    return repo.lookup_branch("main.ingest")


def test_data_staged_by_a_failed_run_is_reused(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)

    broken_off(repo, files)
    assert repo.list_branches() == {"main", "main.ingest"}
    report = run(repo, files, commit_every=1)

    assert_same(read(repo), expected(files))
    assert len(report.commits) == 2
    assert repo.list_branches() == {"main"}


def commit_elsewhere(repo: Repository) -> None:
    session = repo.writable_session("main")
    days(0, 1).to_zarr(session.store, group="other", consolidated=False, zarr_format=3)
    session.commit("meanwhile")


def test_staged_data_is_kept_when_the_branch_moves(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files[0])
    broken_off(repo, files)
    commit_elsewhere(repo)

    report = run(repo, files, commit_every=1)

    assert len(report.commits) == 1
    assert_same(read(repo), expected(files))
    assert read(repo, "other").sizes["time"] == 1
    assert report.published == repo.lookup_branch("main")
    assert repo.list_branches() == {"main"}


def test_data_is_staged_again_after_a_conflicting_ingest(tmp_path: Path) -> None:
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files[0])
    tip = broken_off(repo, files)
    repo.delete_branch("main.ingest")
    run(repo, files[1])  # as from another machine, which does not know that the first one is dead
    repo.create_branch("main.ingest", tip)

    report = run(repo, files)

    assert [len(report.outcome.sources.known), len(report.commits)] == [2, 1]
    assert_same(read(repo), expected(files))
    assert repo.list_branches() == {"main"}


def test_merged_staging_branch_is_not_published_again(tmp_path: Path) -> None:
    """A run was killed right after it had merged its branch."""
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    run(repo, files[0])
    told = once("commit", lambda: commit_elsewhere(repo))
    with listening(told):
        ingest(repo, files, make_options(), Travelling())
    merged = next(iter(repo.ancestry(branch="main")))
    repo.create_branch("main.ingest", merged.metadata["icefloe"]["merged"][0])

    report = run(repo, files)

    assert report.published is None
    assert repo.lookup_branch("main") == merged.id
    assert repo.list_branches() == {"main"}


def test_two_failed_runs_keep_both_staging_branches(tmp_path: Path) -> None:
    repo = new_repo(tmp_path)
    files = archive(tmp_path)
    run(repo, files[0])
    base = repo.lookup_branch("main")
    runs = [Staging.begin(repo, "main") for _ in range(2)]

    for number, each in enumerate(runs):
        session = repo.writable_session(each.branch)
        zarr.create_array(session.store, name=f"made/{number}", shape=(1,), dtype="i1")
        session.commit("staged")
        each.release()
        each.end()

    assert repo.list_branches() == {"main", "main.ingest", runs[1].branch}
    assert repo.lookup_branch("main") == base


def test_target_branch_deleted_during_ingest_keeps_staged_data(tmp_path: Path) -> None:
    """The staged data is kept until the branch exists again; a new tag does not move."""
    files = archive(tmp_path)
    repo = new_repo(tmp_path)
    first = repo.lookup_branch("main")
    repo.create_branch("dev", first)

    def delete() -> None:
        repo.create_tag("before", first)
        repo.delete_branch("dev")

    options = make_options(branch="dev", commit_every=1)
    deleted = "dev was deleted during the ingest"
    with pytest.raises(RefNotFoundError, match=deleted), listening(once("check", delete)):
        ingest(repo, files, options, Travelling())
    assert repo.list_branches() == {"main", "dev.ingest"}
    repo.create_branch("dev", first)
    report = run(repo, files, branch="dev")

    assert report.commits == ()
    assert_same(read(repo, branch="dev"), expected(files))
    assert (repo.lookup_tag("before"), repo.lookup_branch("main")) == (first, first)
    assert repo.list_branches() == {"main", "dev"}


def test_staging_branch_of_another_machine_is_not_changed(tmp_path: Path) -> None:
    """A run on another machine may still be active."""
    repo = new_repo(tmp_path)
    other = "main.ingest.elsewhere.12.34.0"
    repo.create_branch(other, repo.lookup_branch("main"))

    run(repo, archive(tmp_path))

    assert repo.list_branches() == {"main", other}


def test_abandoned_branch_of_this_process_is_reused(tmp_path: Path) -> None:
    """The branch of an active run is left alone."""
    repo = new_repo(tmp_path)
    at_work, over = (Staging.begin(repo, "main") for _ in range(2))
    over.end()

    new = Staging.begin(repo, "main")

    assert repo.list_branches() == {"main", at_work.branch, new.branch}
