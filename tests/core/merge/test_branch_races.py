"""Merges and squashes while others commit or collect garbage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icefloe import Repository
from icefloe.errors import IcechunkError
from tests.support.branches import commit, contents, new_repository, part
from tests.support.edits import Write
from tests.support.histories import names


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
    """Until the branch moves, a collection treats the files of a merge as garbage."""
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


LARGE = b"t" * 600
"""A chunk that is an object of its own, not part of a manifest."""


@pytest.mark.parametrize("operation", ["merge", "cherry-pick", "revert"])
def test_operation_fails_when_chunks_that_it_needs_were_collected(
    operation: str, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots and manifests are in memory by then, and would not be missed."""
    part(repo, [Write("/b", (0,), LARGE)], [Write("/a", (1,), LARGE)])
    undone = commit(repo, "main", [Write("/b", (0,), b"x" * 600)])
    operate = {
        "merge": lambda: repo.merge("dev", "main", message="m"),
        "cherry-pick": lambda: repo.cherry_pick(repo.lookup_branch("dev"), branch="main"),
        "revert": lambda: repo.revert(undone, branch="main"),
    }
    advance, left = repo._refs.advance, [1]

    def late(*arguments: Any) -> None:
        if left:
            left.pop()
            collect_all_but_main(repo)
        advance(*arguments)

    monkeypatch.setattr(repo._refs, "advance", late)
    with pytest.raises(IcechunkError):
        operate[operation]()

    assert not left
    assert Repository.open(repo.storage).lookup_branch("main") == undone


def test_revert_copies_chunks_that_a_collection_may_delete(repo: Repository) -> None:
    commit(repo, "main", [Write("/a", (1,), LARGE)])
    undone = commit(repo, "main", [Write("/a", (1,), b"x" * 600)])
    repo.delete_branch("dev")
    repo.expire_snapshots(datetime.now(UTC) + timedelta(minutes=1))
    before = names(repo, "chunks")

    if repo.spec_version == 1:  # the log of what expired is not kept
        with pytest.raises(IcechunkError):
            repo.revert(undone, branch="main")
        return
    repo.revert(undone, branch="main")

    assert len(names(repo, "chunks") - before) == 1
    repo.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    assert contents(Repository.open(repo.storage), "/a") == "0t0000"


def collect_all_but_main(repo: Repository) -> None:
    """Delete the branch dev, expire all history and collect garbage, as another process does."""
    other = Repository.open(repo.storage)
    other.delete_branch("dev")
    later = datetime.now(UTC) + timedelta(minutes=1)
    other.expire_snapshots(later)
    other.garbage_collect(later)
