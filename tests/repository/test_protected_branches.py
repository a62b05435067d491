"""Protected branches can be extended, but not rewritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

import icefloe
from icefloe.cli import main
from icefloe.errors import FormatError, SessionStateError


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """Create a repository with a protected branch and two commits."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    repo.create_branch("prod", repo.lookup_branch("main"))
    for name in ("a", "b"):
        commit(repo, name)
    assert main.main(["protect", str(tmp_path / "repo"), "--branch", "prod"]) == 0
    return repo


def commit(repo: icefloe.Repository, name: str, branch: str = "prod") -> str:
    session = repo.writable_session(branch)
    zarr.create_group(session.store, path=name)
    return session.commit(name)


def amend(repo: icefloe.Repository) -> None:
    session = repo.writable_session("prod")
    zarr.create_group(session.store, path="c")
    session.amend("again")


def list_history(repo: icefloe.Repository) -> list[str]:
    return [info.id for info in repo.ancestry(branch="prod")]


@pytest.mark.parametrize(
    "act",
    [
        lambda repo: repo.reset_branch("prod", list_history(repo)[1]),
        lambda repo: repo.reset_branch("prod", commit(repo, "x", "main")),
        lambda repo: repo.squash(list_history(repo)[-1], branch="prod"),
        lambda repo: repo.delete_branch("prod"),
        amend,
    ],
    ids=["reset to an ancestor", "reset to another history", "squash", "delete", "amend"],
)
def test_history_of_a_protected_branch_cannot_be_rewritten(
    repo: icefloe.Repository, act: Callable[[icefloe.Repository], object]
) -> None:
    before = list_history(repo)

    with pytest.raises(SessionStateError, match="branch prod is protected"):
        act(repo)

    assert list_history(repo) == before


def test_history_of_a_protected_branch_can_be_extended(repo: icefloe.Repository) -> None:
    commit(repo, "c")
    repo.create_branch("dev", repo.lookup_branch("prod"))
    later = commit(repo, "d", "dev")
    repo.reset_branch("prod", later)
    commit(repo, "e", "dev")

    assert repo.merge("dev", "prod", message="publish").outcome == "fast-forward"
    assert repo.lookup_branch("prod") == repo.lookup_branch("dev")


def test_protection_of_a_branch_can_be_removed(repo: icefloe.Repository) -> None:
    repo.unprotect("prod")
    repo.reset_branch("prod", list_history(repo)[1])
    repo.delete_branch("prod")


def test_protection_is_rejected_in_version_1() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    with pytest.raises(FormatError, match="protecting branch main is not supported in version 1"):
        repo.protect("main")
