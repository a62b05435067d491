"""Merging, picking, reverting and squashing from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.cli import faults
from tests.cli.test_cli import Terminal


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """Two branches that parted: main wrote 1 into the first chunk, dev 2 into the second."""
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


def test_merge_brings_a_branch_to_main(typed: Terminal, repo: icefloe.Repository) -> None:
    tip = repo.lookup_branch("main")

    assert typed("merge", "dev", "--dry-run").strip() == "dev into main: would be merged"
    assert repo.lookup_branch("main") == tip
    told = typed.json("merge", "dev", "main", "-m", "brought")

    assert values(repo) == [1, 2, 0, 0]
    assert told["outcome"] == "merged"
    assert told["snapshot"] == repo.lookup_branch("main")
    assert told["changes"]["updated_chunks"] == {"/a": [[1]]}
    assert next(repo.ancestry(branch="main")).message == "brought"
    assert typed("merge", "dev").strip() == "dev into main: nothing to do"
    repo.create_branch("behind", tip)
    assert "moved forward" in typed("merge", "main", "behind")
    assert repo.lookup_branch("behind") == told["snapshot"]


def test_conflicts_are_a_table_and_an_exit_code(typed: Terminal, repo: icefloe.Repository) -> None:
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
    assert "1 conflict decided" in typed("merge", "dev", "--strategy", "theirs")
    assert values(repo) == [3, 2, 0, 0]


def test_what_cannot_be_merged(typed: Terminal) -> None:
    typed("merge", "nowhere", code=faults.NOT_FOUND)
    assert "no branch, tag or snapshot nowhere" in typed.errors
    typed("merge", "dev", "nowhere", code=faults.NOT_FOUND)
    typed("merge", "dev", "--strategy", "mine", code=faults.USAGE)


def test_cherry_pick_and_revert(typed: Terminal, repo: icefloe.Repository) -> None:
    picked = put(repo, "dev", 2, 5)

    typed("cherry-pick", picked, "--dry-run")
    assert values(repo) == [1, 0, 0, 0]
    typed("cherry-pick", picked, "main", "-m", "the one")
    assert values(repo) == [1, 0, 5, 0]
    assert next(repo.ancestry(branch="main")).message == "the one"
    assert typed.json("cherry-pick", picked)["outcome"] == "up-to-date"

    assert typed.json("revert", "main", "--dry-run")["changes"]["updated_chunks"] == {"/a": [[2]]}
    typed("revert", "main")
    assert values(repo) == [1, 0, 0, 0]
    typed("revert", picked, code=faults.USAGE)
    assert "not in the history of branch main" in typed.errors


def test_squash_makes_one_commit_of_several(typed: Terminal, repo: icefloe.Repository) -> None:
    since = list(repo.ancestry(branch="main"))[1].id
    put(repo, "main", 3, 7)

    planned = typed.json("squash", "main", since, "--dry-run")
    assert len(planned["squashed"]) == 2
    assert planned["snapshot"] is None
    assert "in the place of 2" in typed("squash", "main", since, "-m", "both")

    tip = next(repo.ancestry(branch="main"))
    assert (tip.parent_id, tip.message) == (since, "both")
    assert values(repo) == [1, 0, 0, 7]
    typed("squash", "main", "main", code=faults.USAGE)
    assert "nothing to squash" in typed.errors
