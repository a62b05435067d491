"""A protected branch with checks moves only to snapshots that pass them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.branch_checks import CheckFailedError, modules_allowed, run_checks
from icefloe.cli import main
from icefloe.errors import FormatError, InvalidInputError, SessionStateError
from icefloe.format import repo_changes

HOT = "SELECT time, t2m FROM this WHERE t2m > 400"
COUNT = "SELECT count(*) FROM this WHERE t2m > 400"
MODULE = """
seen = []

def is_complete(session):
    import zarr
    seen.append(session.snapshot_id)
    array = zarr.open_array(session.store, path="t2m", mode="r")
    return (array[:] == array[:]).all() or f"{int((array[:] != array[:]).sum())} values are missing"

def is_writable(session):
    import zarr
    zarr.create_group(session.store, path="forged")

from os import system
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def repo(place: Path) -> icefloe.Repository:
    """Create a repository with six values per commit and one query that checks them."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(place)))
    with repo.transaction("main", message="first") as store:
        values = xr.Dataset({"t2m": ("time", np.full(6, 300.0))}, {"time": np.arange(6)})
        values.to_zarr(store, zarr_format=3, consolidated=False, encoding={"t2m": {"chunks": (1,)}})
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.protect("main", sql=[HOT])
    return repo


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write an importable module with checks, and return its name."""
    (tmp_path / "station_checks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "station_checks"
    sys.modules.pop("station_checks", None)


@pytest.fixture(autouse=True)
def _forget_permissions() -> Iterator[None]:
    with modules_allowed([]):
        yield


def write(repo: icefloe.Repository, value: float, at: int = 0, branch: str = "main") -> icefloe.Session:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="t2m")[at] = value
    return session


def read(repo: icefloe.Repository, snapshot_id: str | None = None) -> list[float]:
    session = repo.readonly_session(snapshot_id=snapshot_id or repo.lookup_branch("main"))
    return list(np.asarray(zarr.open_array(session.store, path="t2m", mode="r")[:]).tolist())


def test_commit_that_passes_the_checks_moves_the_branch(repo: icefloe.Repository) -> None:
    made = write(repo, 310).commit("good")

    assert repo.lookup_branch("main") == made
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["good", "first"]
    assert repo.verify().findings == ()


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (HOT, "returned offending rows, such as time=2, t2m=500.0"),
        (COUNT, "returned the count 1, but must return 0"),
    ],
)
def test_commit_that_fails_a_check_leaves_the_branch_unchanged(
    repo: icefloe.Repository, check: str, reason: str
) -> None:
    repo.protect("main", sql=[check])
    before = repo.lookup_branch("main")
    session = write(repo, 500, at=2)

    with pytest.raises(CheckFailedError) as caught:
        session.commit("bad")

    error = caught.value
    assert reason in error.message
    assert error.snapshot_id in error.message
    assert repo.lookup_branch("main") == before
    assert read(repo, snapshot_id=error.snapshot_id)[2] == 500  # for inspection
    assert pickle.loads(pickle.dumps(error)).rows == error.rows
    zarr.open_array(session.store, path="t2m")[2] = 320
    assert session.commit("corrected") == repo.lookup_branch("main")
    assert read(repo)[2] == 320


def _merge(repo: icefloe.Repository) -> None:
    write(repo, 300, 1).commit("other")
    write(repo, 500, branch="dev").commit("bad")
    repo.merge("dev", "main", message="merge")


def _fast_forward(repo: icefloe.Repository) -> None:
    write(repo, 500, branch="dev").commit("bad")
    repo.merge("dev", "main", message="merge")


def _reset(repo: icefloe.Repository) -> None:
    repo.reset_branch("main", write(repo, 500, branch="dev").commit("bad"))


def _cherry_pick(repo: icefloe.Repository) -> None:
    repo.cherry_pick(write(repo, 500, branch="dev").commit("bad"), branch="main")


def _revert(repo: icefloe.Repository) -> None:
    repo.unprotect("main")
    write(repo, 500).commit("bad")
    good = write(repo, 300).commit("good")
    repo.protect("main", sql=[HOT])
    repo.revert(good, branch="main")


def _append(repo: icefloe.Repository) -> None:
    icefloe.append(xr.Dataset({"t2m": ("time", [500.0])}, {"time": [6]}), repo, "time")


def _statement(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="bad", rebase_with=icefloe.ConflictDetector()) as store:
        zarr.open_array(store, path="t2m")[0] = 500


@pytest.mark.parametrize(
    "act",
    [_merge, _fast_forward, _reset, _cherry_pick, _revert, _append, _statement],
    ids=lambda act: act.__name__,
)
def test_every_kind_of_change_to_a_branch_is_checked(
    repo: icefloe.Repository, act: Callable[[icefloe.Repository], None]
) -> None:
    with pytest.raises(CheckFailedError, match=r"t2m=500\.0"):
        act(repo)

    assert max(read(repo)) == 300


def test_checks_run_again_after_a_rebase(repo: icefloe.Repository) -> None:
    """Each side passes, but both together do not."""
    repo.protect(
        "main",
        sql=["SELECT t2m, time FROM this WHERE t2m > 400", "SELECT count(*) FROM this WHERE t2m < 250"],
    )
    ours, theirs = write(repo, 260, 0), write(repo, 270, 1)
    theirs.commit("theirs")

    ours.commit("ours", rebase_with=icefloe.ConflictDetector())

    assert read(repo)[:2] == [260, 270]
    worse = write(repo, 255, 2)
    write(repo, 256, 3).commit("theirs")
    zarr.open_array(worse.store, path="t2m")[4] = 240
    with pytest.raises(CheckFailedError, match="returned the count 1"):
        worse.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert read(repo)[2:5] == [300, 256, 300]


def test_commit_is_rebased_if_the_branch_moves_during_its_checks(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch moves while the checks run, so they run again on the rebased snapshot."""
    checked: list[str] = []

    def interfere(
        branch: str, checks: Sequence[icefloe.BranchCheck], session: icefloe.Session, *, is_tip: bool
    ) -> None:
        checked.append(session.snapshot_id)
        run_checks(branch, checks, session, is_tip=is_tip)
        if len(checked) == 1:
            other = icefloe.Repository.open(repo.storage)
            write(other, 333, 5).commit("came first")

    monkeypatch.setattr("icefloe.repository.run_checks", interfere)

    made = write(repo, 310).commit("second", rebase_with=icefloe.ConflictDetector())

    assert len(checked) == len(set(checked)) == 3
    assert checked[-1] == made == repo.lookup_branch("main")
    assert read(repo) == [310, 300, 300, 300, 300, 333]


def test_new_checks_must_pass_at_the_current_tip(repo: icefloe.Repository) -> None:
    with pytest.raises(CheckFailedError, match=r"checks of branch main were not changed.*offending rows"):
        repo.protect("main", sql=["SELECT time FROM this WHERE t2m > 0"])

    assert [each.text for each in repo.protected_branches()["main"]] == [HOT]


def test_checks_of_a_branch_can_be_replaced_and_removed(repo: icefloe.Repository, place: Path) -> None:
    def protect(*options: str) -> int:
        return main.main(["protect", str(place), *options])

    assert protect("--check", COUNT) == 0
    assert [each.text for each in repo.protected_branches()["main"]] == [COUNT]
    assert protect() == 0
    assert len(repo.protected_branches()["main"]) == 1
    assert protect("--no-checks") == 0
    assert repo.protected_branches() == {"main": ()}
    repo.protect("main", sql=[HOT])
    assert protect("--remove") == 0
    assert repo.protected_branches() == {}
    write(repo, 500).commit("allowed")


def test_protect_command_lists_checks(
    place: Path, repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["protect", str(place), "--list"]) == 0
    assert "main    sql   SELECT time, t2m FROM this WHERE t2m > 400" in capsys.readouterr().out


def test_protect_command_rejects_a_function_that_cannot_be_imported(
    place: Path, repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["protect", str(place), "--check-python", "no_such_module:check"]) == 2

    assert (
        "No module named 'no_such_module'; if the module is not installed, add its folder to PYTHONPATH"
        in (capsys.readouterr().err)
    )
    assert [each.text for each in repo.protected_branches()["main"]] == [HOT]


def test_merge_command_reports_a_failed_check(
    place: Path, repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    write(repo, 500, branch="dev").commit("bad")

    assert main.main(["merge", str(place), "dev"]) == 5
    assert "branch main did not move: the check" in capsys.readouterr().err


def test_setting_repository_metadata_keeps_the_protection(repo: icefloe.Repository) -> None:
    repo.set_metadata({"owner": "met"})

    assert repo.get_metadata()["owner"] == "met"
    with pytest.raises(CheckFailedError):
        write(repo, 500).commit("bad")


# Python


def test_check_function_receives_the_new_snapshot(repo: icefloe.Repository, module: str) -> None:
    from station_checks import is_complete, seen  # type: ignore[import-not-found]

    repo.protect("main", sql=[], python=[is_complete])

    with pytest.raises(CheckFailedError, match="failed: 1 values are missing") as caught:
        write(repo, np.nan).commit("bad")
    assert caught.value.snapshot_id == seen[-1]
    assert write(repo, 301).commit("good") == seen[-1]


def test_check_module_is_imported_only_if_the_user_allows_it(
    repo: icefloe.Repository, module: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with modules_allowed([]):
        repo.protect("main", python=[f"{module}:is_complete"])
        good = write(repo, 301, branch="dev").commit("good")
    sys.modules.pop(module)

    for act in (
        lambda: repo.writable_session("main"),
        lambda: repo.reset_branch("main", good),
        lambda: repo.merge("dev", "main", message="merge"),
    ):
        with pytest.raises(SessionStateError, match=r"which only the repository names.*allow_check_modules"):
            act()
    assert main.main(["merge", str(place), "dev"]) == 1
    assert (
        "icefloe --allow-module MODULE COMMAND` allows the module station_checks" in capsys.readouterr().err
    )
    assert module not in sys.modules

    assert main.main(["--allow-module", module, "merge", str(place), "dev"]) == 0
    assert repo.lookup_branch("main") == good


def test_only_functions_defined_in_the_check_module_are_called(
    repo: icefloe.Repository, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    icefloe.allow_check_modules(module)
    for name, reason in (("system", "not a function of that module"), ("missing", "has no attribute")):
        with pytest.raises(InvalidInputError, match=reason):
            repo.protect("main", python=[f"{module}:{name}"])
    with pytest.raises(InvalidInputError, match="module:function"):
        repo.protect("main", python=[f"{module}:seen.append"])


def test_check_function_cannot_write(repo: icefloe.Repository, module: str) -> None:
    with pytest.raises(CheckFailedError, match="read-only"):
        repo.protect("main", python=[f"{module}:is_writable"])


# Hostile repositories


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM parquet.`/etc/passwd`",
        "SELECT * FROM other",
        "SELECT * FROM this.refs",
        "SELECT * FROM this VERSION AS OF 'v1'",
        "SELECT time FROM this WHERE t2m > (SELECT max(t2m) FROM this)",
        "SELECT java_method('java.lang.Runtime', 'exit') FROM this",
        "UPDATE this SET t2m = 0",
        "DROP BRANCH main IN this",
        "CALL this.system.expire()",
        "SELECT time FROM this ORDER BY time",
        "SELECT time FROM this LIMIT 0",
        "SELECT max(t2m) FROM this",
        "SELECT " + "(" * 3000 + "time" + ")" * 3000 + " FROM this",
        "SELECT time FROM this WHERE t2m > 1" + " " * 10_000,
        "nonsense",
        "",
    ],
)
def test_check_query_that_the_engine_does_not_support_is_rejected(
    repo: icefloe.Repository, query: str
) -> None:
    with pytest.raises(icefloe.IcechunkError):
        repo.protect("main", sql=[query])

    store(repo, {"main": [{"sql": query}]})  # as another program would
    with pytest.raises((CheckFailedError, FormatError)):
        write(repo, 301).commit("refused")
    assert read(repo)[0] == 300


@pytest.mark.parametrize("stored", ["text", [1], [{"shell": "rm"}], [{"sql": HOT}] * 101, {"sql": HOT}])
def test_unreadable_stored_checks_are_reported(repo: icefloe.Repository, stored: object) -> None:
    store(repo, {"main": stored})

    with pytest.raises(FormatError, match="the checks of branch main"):
        repo.writable_session("main")


def store(repo: icefloe.Repository, checks: object) -> None:
    """Store checks without the rules of `Repository.protect`."""
    refs = repo._refs
    change = {**repo.get_metadata(), repo_changes.CHECKS: checks}
    refs._update(lambda info: repo_changes.set_metadata(info, change))  # type: ignore[attr-defined]


# Deletion, expiration, clones


def test_expiration_keeps_protected_branches(repo: icefloe.Repository) -> None:
    repo.protect("dev")
    repo.create_branch("old", repo.lookup_branch("main"))
    later = datetime.now(UTC) + timedelta(days=1)

    repo.expire_snapshots(later, delete_expired_branches=True)

    assert repo.list_branches() == {"main", "dev"}


def test_clone_does_not_rewrite_a_protected_branch(repo: icefloe.Repository) -> None:
    other = icefloe.in_memory_storage()
    repo.clone_to(other)
    target = icefloe.Repository.open(other)
    write(target, 320).commit("only there")
    write(repo, 310).commit("only here")

    with pytest.raises(SessionStateError, match="branch main is protected"):
        repo.clone_to(other, overwrite=True)

    assert read(target)[0] == 320


def test_branch_checks_are_rejected_in_version_1() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)

    with pytest.raises(FormatError, match="protecting branch main is not supported in version 1"):
        repo.protect("main", sql=[HOT])
    assert repo.protected_branches() == {}


# Processes

RACE = """
import sys, zarr, icefloe
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
at = int(sys.argv[2])
for value in (301, 302, 500, 303):
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t2m")[at] = value
    try:
        session.commit(f"{at} {value}", rebase_with=icefloe.ConflictDetector())
    except icefloe.CheckFailedError as error:
        assert value == 500, error
    else:
        assert value != 500
"""


def test_concurrent_processes_commit_to_a_checked_branch(repo: icefloe.Repository, place: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", RACE, str(place), str(at)]) for at in (0, 1)]

    assert [each.wait(60) for each in running] == [0, 0]
    assert read(repo)[:2] == [303, 303]
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert sorted(messages[:6]) == sorted(f"{at} {value}" for at in (0, 1) for value in (301, 302, 303))
    for info in repo.ancestry(branch="main"):
        if info.parent_id is not None:
            assert max(read(repo, snapshot_id=info.id)) <= 400


KILL = """
import os, signal, sys, zarr, icefloe
from icefloe import repository
run_checks = repository.run_checks
def die(*arguments, **options):
    if sys.argv[2] == "after":
        run_checks(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
repository.run_checks = die
repo = icefloe.Repository.open(icefloe.local_filesystem_storage(sys.argv[1]))
with repo.transaction("main", message="killed") as store:
    zarr.open_array(store, path="t2m")[0] = 310
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_commit_killed_before_the_branch_moves_leaves_the_branch_unchanged(
    repo: icefloe.Repository, place: Path, moment: str
) -> None:
    before = repo.lookup_branch("main")

    done = subprocess.run([sys.executable, "-c", KILL, str(place), moment], check=False)

    assert done.returncode == -9
    assert repo.lookup_branch("main") == before
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert write(repo, 320).commit("next") == repo.lookup_branch("main")
    assert read(repo)[0] == 320
