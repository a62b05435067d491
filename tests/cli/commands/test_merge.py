"""Merging, picking, reverting and squashing from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.cli import errors as faults
from tests.support.terminal import Terminal


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """Create two diverged branches: main wrote 1 to the first chunk, dev wrote 2 to the second."""
    made = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 0
    made.create_branch("dev", session.commit("start"))
    put(made, "main", 0, 1)
    put(made, "dev", 1, 2)
    return made


@pytest.fixture
def typed(repo: icefloe.Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys, str(tmp_path / "repo"))


def put(repo: icefloe.Repository, branch: str, index: int, value: int) -> str:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a")[index] = value
    return session.commit(f"{branch} {index}")


def values(repo: icefloe.Repository, branch: str = "main") -> Any:
    return zarr.open_array(repo.readonly_session(branch).store, path="a", mode="r")[:].tolist()  # type: ignore[union-attr]


def test_merge_command_merges_into_main(typed: Terminal, repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    assert typed("merge", "dev", "--dry-run").strip() == "dev into main: would be merged"
    assert repo.lookup_branch("main") == tip
    told = typed.json("merge", "dev", "--branch", "main", "-m", "brought")

    assert values(repo) == [1, 2, 0, 0]
    assert told["outcome"] == "merged"
    assert told["snapshot"] == repo.lookup_branch("main")
    assert told["changes"]["updated_chunks"] == {"/a": [[1]]}
    assert next(repo.ancestry(branch="main")).message == "brought"
    assert typed("merge", "dev").strip() == "dev into main: nothing to do"
    repo.create_branch("behind", tip)
    assert "moved forward" in typed("merge", "main", "--branch", "behind")
    assert repo.lookup_branch("behind") == told["snapshot"]


def test_conflicts_are_listed_with_exit_code_4(typed: Terminal, repo: icefloe.Repository) -> None:
    put(repo, "dev", 0, 3)
    tip = repo.lookup_branch("main")

    text = typed("merge", "dev", code=faults.CONFLICT)
    told = typed.json("merge", "dev", "--dry-run", code=faults.CONFLICT)

    assert "/a [0]: chunk double update | ours: 13 bytes inline" in text
    assert [(row["path"], row["chunk"], row["kind"]) for row in told["conflicts"]] == [
        ("/a", [0], "ChunkDoubleUpdate")
    ]
    assert (told["outcome"], told["snapshot"]) == ("conflicts", None)
    assert repo.lookup_branch("main") == tip
    assert "1 conflict resolved" in typed("merge", "dev", "--strategy", "theirs")
    assert values(repo) == [3, 2, 0, 0]


def test_conflicts_show_labels_and_differences(typed: Terminal, repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    days: dict[str, Any] = {"units": "days since 2024-03-01"}
    options: dict[str, Any] = {"chunks": (2,), "dimension_names": ["time"]}
    zarr.create_array(session.store, name="time", data=np.arange(4), attributes=days, **options)
    zarr.create_array(session.store, name="t2m", data=np.zeros(4), attributes={"units": "K"}, **options)
    repo.reset_branch("dev", session.commit("add t2m"))
    for branch, value in (("main", 1), ("dev", 3.5)):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="t2m")[1] = value
        session.commit(branch)

    text = typed("merge", "dev", code=faults.CONFLICT)
    (row,) = typed.json("merge", "dev", code=faults.CONFLICT)["conflicts"]

    lines = text.splitlines()
    assert lines[1].startswith("  /t2m [0]: chunk double update | ours: ")
    assert lines[2] == "    t2m at time=2024-03-01..2024-03-02: 1 of 2 cells differs, by up to 2.5 K"
    assert row["details"]["where"] == "time=2024-03-01..2024-03-02"
    assert (row["details"]["num_differing"], row["details"]["largest_difference"]) == (1, 2.5)


def test_many_conflicts_are_counted(typed: Terminal, repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(30,), chunks=(1,), dtype="i4", overwrite=True)
    repo.reset_branch("dev", session.commit("more chunks"))
    for branch, value in (("main", 1), ("dev", 2)):
        session = repo.writable_session(branch)
        zarr.open_array(session.store, path="a")[:] = value
        session.commit(branch)

    lines = typed("merge", "dev", code=faults.CONFLICT).splitlines()
    rows = typed.json("merge", "dev", code=faults.CONFLICT)["conflicts"]

    assert lines[-1] == "  and 10 more"
    assert sum("1 of 1 cells differs" in line for line in lines) == 10
    assert [row["details"] is None for row in rows] == [False] * 20 + [True] * 10


def test_invalid_merges_are_reported(typed: Terminal) -> None:
    typed("merge", "nowhere", code=faults.NOT_FOUND)
    assert "no branch, tag or snapshot nowhere" in typed.errors
    typed("merge", "dev", "--branch", "nowhere", code=faults.NOT_FOUND)
    typed("merge", "dev", "--strategy", "mine", code=faults.USAGE)


def test_cherry_pick_and_revert_commit_to_the_branch(typed: Terminal, repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 2, 5)

    typed("cherry-pick", picked, "--dry-run")
    assert values(repo) == [1, 0, 0, 0]
    typed("cherry-pick", picked, "--branch", "main", "-m", "the one")
    assert values(repo) == [1, 0, 5, 0]
    assert next(repo.ancestry(branch="main")).message == "the one"
    assert typed.json("cherry-pick", picked)["outcome"] == "up-to-date"

    assert typed.json("revert", "main", "--dry-run")["changes"]["updated_chunks"] == {"/a": [[2]]}
    typed("revert", "main")
    assert values(repo) == [1, 0, 0, 0]
    typed("revert", picked, code=faults.USAGE)
    assert "not in the history of branch main" in typed.errors


def test_squash_command_replaces_commits_with_one(typed: Terminal, repo: icefloe.Repository) -> None:
    since = list(repo.ancestry(branch="main"))[1].id
    put(repo, "main", 3, 7)

    planned = typed.json("squash", since, "--dry-run")
    assert len(planned["squashed"]) == 2
    assert planned["snapshot"] is None
    assert "replaces 2 commits" in typed("squash", since, "--branch", "main", "-m", "both")

    tip = next(repo.ancestry(branch="main"))
    assert (tip.parent_id, tip.message) == (since, "both")
    assert values(repo) == [1, 0, 0, 7]
    typed("squash", "main", code=faults.USAGE)
    assert "nothing to squash" in typed.errors
