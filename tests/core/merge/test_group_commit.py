"""Concurrent commits of one process share a snapshot where they do not conflict."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.cli import main
from icefloe.snapshots import FOLDED
from tests.support.feed_rows import ENCODING, rows, stored


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(12,), chunks=(1,), dtype="i4", fill_value=-1)
    session.commit("array")
    repo.group_commits(max_delay_ms=300)
    return repo


def together(work: Sequence[Callable[[], str | None]]) -> list[str | Exception | None]:
    """Run functions at the same time, and return their results or errors."""
    barrier = Barrier(len(work))

    def run(each: Callable[[], str | None]) -> str | Exception | None:
        barrier.wait()
        try:
            return each()
        except icefloe.IcechunkError as error:
            return error

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def write(repo: icefloe.Repository, at: int, value: int) -> icefloe.Session:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[at] = value
    return session


def values(repo: icefloe.Repository) -> list[int]:
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    return list(np.asarray(array[:]).tolist())


def test_commits_that_do_not_conflict_share_a_snapshot(repo: icefloe.Repository) -> None:
    sessions = [write(repo, at, at) for at in range(8)]

    def commit(at: int) -> str:
        return sessions[at].commit(f"cell {at}", {"at": at})

    found = together([lambda at=at: commit(at) for at in range(8)])  # type: ignore[misc]

    assert set(found) == {repo.lookup_branch("main")}
    assert values(repo) == [*range(8), -1, -1, -1, -1]
    newest, *older = repo.ancestry(branch="main")
    assert len(older) == 2
    listed = sorted(newest.metadata[FOLDED], key=lambda each: int(each["metadata"]["at"]))
    assert [each["message"] for each in listed] == [f"cell {at}" for at in range(8)]
    assert all(session.read_only for session in sessions)
    changed = repo.diff(from_snapshot_id=older[0].id, to_branch="main").updated_chunks
    assert sorted(changed["/a"]) == [[at] for at in range(8)]


def test_conflict_concerns_one_commit_only(repo: icefloe.Repository) -> None:
    sessions = [write(repo, at, at + 50) for at in (0, 1, 1)]

    found = together([lambda each=each: each.commit("cell") for each in sessions])  # type: ignore[misc]

    errors = [each for each in found if isinstance(each, Exception)]
    assert [type(each) for each in errors] == [icefloe.RebaseFailedError]
    assert len(set(found) - set(errors)) == 1
    assert values(repo)[:2] == [50, 51]


def test_failed_check_concerns_one_commit_only() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(12,), chunks=(1,), dtype="i4", fill_value=-1)
    repo.protect("main", sql=["SELECT a FROM this WHERE a > 100"])
    repo.group_commits(max_delay_ms=300)
    sessions = [write(repo, at, value) for at, value in enumerate([50, 101, 52])]

    found = together([lambda each=each: each.commit("cell") for each in sessions])  # type: ignore[misc]

    assert isinstance(found[1], icefloe.CheckFailedError)
    assert repo.lookup_branch("main") in {found[0], found[2]}
    assert values(repo)[:3] == [50, -1, 52]


def test_single_commit_keeps_its_message(repo: icefloe.Repository) -> None:
    write(repo, 3, 3).commit("alone", {"who": "me"})

    newest = next(iter(repo.ancestry(branch="main")))
    assert (newest.message, newest.metadata["who"]) == ("alone", "me")
    assert FOLDED not in newest.metadata


def test_keys_of_folded_commits_are_stored(repo: icefloe.Repository) -> None:
    keys = [icefloe.CommitKey("feed", version) for version in ("1", "2", "2", "3")]
    sessions = [write(repo, at, at) for at in range(4)]

    found = together(
        [
            lambda each=each, key=key: each.commit_once("cell", key=key)  # type: ignore[misc]
            for each, key in zip(sessions, keys, strict=True)
        ]
    )

    assert found.count(None) == 1
    assert all(version in repo.committed_versions("feed") for version in "123")
    newest = next(iter(repo.ancestry(branch="main")))
    assert sorted(each["key"]["version"] for each in newest.metadata[FOLDED]) == ["1", "2", "3"]


def test_group_commit_is_rebased_over_a_commit_of_another_process(repo: icefloe.Repository) -> None:
    sessions = [write(repo, at, at) for at in range(3)]
    write(icefloe.Repository.open(repo.storage), 9, 9).commit("other")
    solver = icefloe.ConflictDetector()

    found = together(
        [lambda each=each: each.commit("cell", rebase_with=solver) for each in sessions[:2]]
        + [lambda: sessions[2].commit("without a solver")]
    )

    assert isinstance(found[2], icefloe.ConflictError)
    assert found[0] == found[1] == repo.lookup_branch("main")
    assert values(repo)[:3] == [0, 1, -1]
    assert values(repo)[9] == 9


def test_appends_of_several_threads_share_a_snapshot() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    icefloe.append(rows(0, 3), repo, encoding=ENCODING)
    repo.group_commits(max_delay_ms=300)
    before = len(list(repo.ancestry(branch="main")))
    work = [rows(3, names=("t",)), rows(3, names=("u",)), rows(5, 2), rows(7)]

    def add(ds: xr.Dataset) -> str | None:
        return icefloe.append(
            ds, repo, key=str(ds.time.values[0]) + "".join(map(str, ds.data_vars))
        ).snapshot_id

    found = together([lambda ds=ds: add(ds) for ds in work])  # type: ignore[misc]

    assert not [each for each in found if isinstance(each, Exception)]
    expected = xr.concat([rows(0, 4), rows(5, 3)], "time")
    xr.testing.assert_equal(stored(repo).sortby("time"), expected)
    assert len(list(repo.ancestry(branch="main"))) < before + len(work)


def test_log_lists_folded_commits(
    repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = [write(repo, at, at) for at in range(2)]
    together([lambda each=each: each.commit("one cell") for each in sessions])  # type: ignore[misc]
    repo.clone_to(icefloe.local_filesystem_storage(str(tmp_path / "repo")))

    assert main.main(["log", str(tmp_path / "repo"), "-n", "1"]) == 0

    assert capsys.readouterr().out.count("one cell") == 2
    copy = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    copy.group_commits()
    assert pickle.loads(pickle.dumps(copy)).lookup_branch("main") == copy.lookup_branch("main")
