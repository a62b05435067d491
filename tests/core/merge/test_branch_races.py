"""Merges and squashes while others commit or collect garbage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icefloe import Repository
from tests.support.branches import commit, contents, new_repository, part
from tests.support.edits import Write


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param)


def test_merge_that_loses_a_race_is_retried(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    refs, left = repo._refs, [2]
    advance = refs.advance

    def late(branch: str, *arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            kept, left[0] = left[0], 0
            commit(repo, "main", [Write("/a", (3 + kept,), b"l")])
            left[0] = kept
        advance(branch, *arguments)

    monkeypatch.setattr(refs, "advance", late)
    repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == "ot0ll0"


def test_squash_that_loses_a_race_is_retried(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    since = repo.lookup_branch("main")
    commit(repo, "main", [Write("/a", (0,), b"x")], "one")
    check_tip, left = repo._refs.check_tip, [1]

    def late(branch: str, tip: Any) -> None:
        check_tip(branch, tip)
        if left.pop() if left else 0:
            commit(repo, "main", [Write("/a", (1,), b"y")], "two")

    monkeypatch.setattr(repo._refs, "check_tip", late)
    repo.squash(since, branch="main")

    assert contents(repo, "/a") == "xy0000"
    tip = next(repo.ancestry(branch="main"))
    assert (tip.parent_id, tip.message) == (since, "one\ntwo")


@pytest.mark.parametrize("operation", ["merge", "squash"])
def test_concurrent_garbage_collection_deletes_nothing_needed(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a merge wrote is garbage to a collection until a branch has it."""
    repo = new_repository()
    since = repo.lookup_branch("main")
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    verb = "advance" if operation == "merge" else "amend"
    land, left = getattr(repo._refs, verb), [1]

    def late(*arguments: Any) -> None:
        if left:
            left.pop()
            repo.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
        land(*arguments)

    monkeypatch.setattr(repo._refs, verb, late)
    if operation == "merge":
        repo.merge("dev", "main", message="m")
    else:
        repo.squash(since, branch="main")

    assert not left
    fresh = Repository.open(repo.storage)
    assert fresh.verify().ok
    assert contents(fresh, "/a") == ("ot0000" if operation == "merge" else "o00000")
