"""Merge, cherry-pick and revert with histories that expired, were collected or were squashed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icefloe import ConflictType, MergeConflictError, Repository, RetentionPolicy
from icefloe.errors import ErrorKind, SessionStateError
from tests.support.branches import commit, contents, new_repository, part, paths
from tests.support.edits import CreateArray, Delete, Erase, Write, make

T = ConflictType


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param)


def collect(repo: Repository) -> None:
    repo.garbage_collect(datetime.now(UTC) + timedelta(seconds=1))


def expire_fork(repo: Repository) -> None:
    """Let the branches diverge, one with a deletion, and expire all snapshots except their tips."""
    commit(repo, "main", [CreateArray("/m"), Write("/m", (0,), b"m")])
    part(repo, [Write("/a", (1,), b"o")], [Delete("/b"), Write("/a", (2,), b"t")])
    repo.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
def test_merge_uses_an_expired_common_ancestor(strategy: Any) -> None:
    repo = new_repository(2)
    expire_fork(repo)

    result = repo.merge("dev", "main", message="m", strategy=strategy)

    assert (result.outcome, list(result.conflicts)) == ("merged", [])
    assert contents(repo, "/a") == "0ot000"
    assert "/b" not in paths(repo)
    assert contents(repo, "/m", size=1) == "m"


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
@pytest.mark.parametrize(("spec", "collected"), [(1, False), (1, True), (2, True)])
def test_merge_fails_when_the_common_ancestor_was_deleted(spec: int, strategy: Any, collected: bool) -> None:
    repo = new_repository(spec)
    expire_fork(repo)
    if collected:
        collect(repo)
    before = repo.lookup_branch("main")

    for dry_run in (True, False):
        with pytest.raises(SessionStateError, match="expired") as refused:
            repo.merge("dev", "main", message="m", strategy=strategy, dry_run=dry_run)

    assert refused.value.kind == ErrorKind.REBASE_TX_LOG_PRUNED
    assert repo.lookup_branch("main") == before


def test_merge_finds_a_common_ancestor_that_was_a_branch_tip() -> None:
    repo = new_repository(2)
    commit(repo, "main", [Write("/a", (1,), b"1")])
    commit(repo, "main", [Write("/a", (2,), b"2")])
    repo.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))
    collect(repo)

    assert repo.merge("dev", "main", message="m").outcome == "up-to-date"
    commit(repo, "dev", [Delete("/b")])
    repo.merge("dev", "main", message="m")
    assert contents(repo, "/a") == "012000"
    assert "/b" not in paths(repo)


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
def test_squash_does_not_hide_the_common_ancestor(repo: Repository, strategy: Any) -> None:
    first = list(repo.ancestry(branch="main"))[-1].id
    part(repo, [Write("/a", (1,), b"o")], [Delete("/b"), Write("/a", (2,), b"t")])
    repo.squash(first, branch="main")
    commit(repo, "main", [Write("/a", (3,), b"p")])
    repo.squash(first, branch="main")
    collect(repo)

    result = repo.merge("dev", "main", message="m", strategy=strategy)

    assert (result.outcome, list(result.conflicts)) == ("merged", [])
    assert contents(repo, "/a") == "0otp00"
    assert "/b" not in paths(repo)
    assert repo.merge("dev", "main", message="m").outcome == "up-to-date"


def test_amended_squash_keeps_its_replaced_snapshots() -> None:
    repo = new_repository(2)
    first = list(repo.ancestry(branch="main"))[-1].id
    commit(repo, "dev", [Delete("/b")])
    repo.squash(first, branch="main")
    session = repo.writable_session("main")
    make(session, [Write("/a", (0,), b"o")])
    session.amend("more")

    repo.merge("dev", "main", message="m")

    assert "/b" not in paths(repo)
    assert contents(repo, "/a") == "o00000"


@pytest.mark.parametrize("collected", [True, False])
def test_expired_merge_is_found_or_the_next_merge_is_rejected(collected: bool) -> None:
    repo = new_repository(2)
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    repo.create_tag("fork", list(repo.ancestry(branch="dev"))[1].id)  # it stays
    repo.merge("dev", "main", message="m")
    part(repo, [Write("/a", (1,), b"o")], [Write("/a", (2,), b"t")])
    repo.retain(RetentionPolicy(last=1))
    if collected:
        collect(repo)
        with pytest.raises(SessionStateError, match="expired"):
            repo.merge("dev", "main", message="m", strategy="theirs")
    else:
        repo.merge("dev", "main", message="m")
        assert contents(repo, "/a") == "oot000"


def test_disjoint_changes_merge_after_any_expiration() -> None:
    repo = new_repository(2)
    repo.create_tag("fork", repo.lookup_branch("main"))
    commit(repo, "main", [Write("/a", (0,), b"o")])
    part(repo, [Write("/a", (1,), b"o")], [Write("/a", (2,), b"t"), Delete("/b")])
    repo.retain(RetentionPolicy(last=1))
    collect(repo)

    repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == "oot000"
    assert "/b" not in paths(repo)


def test_commit_with_an_expired_parent_can_be_picked_until_collection(
    repo: Repository,
) -> None:
    commit(repo, "dev", [Write("/a", (0,), b"x")])
    picked = commit(repo, "dev", [Write("/a", (1,), b"t")])
    repo.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))

    if repo.spec_version == 2:
        repo.cherry_pick(picked, branch="main")
        assert contents(repo, "/a") == "0t0000"
        repo.revert(picked, branch="dev")
        assert contents(repo, "/a", "dev") == "x00000"
        commit(repo, "main", [Write("/a", (1,), b"0")])
    collect(repo)
    for operation in (repo.cherry_pick, repo.revert):
        with pytest.raises(SessionStateError, match="the snapshot before it has expired"):
            operation(picked, branch="dev")


def test_array_without_a_common_version_conflicts_if_chunks_may_have_been_deleted(repo: Repository) -> None:
    first = list(repo.ancestry(branch="main"))[-1].id
    picked = commit(repo, "dev", [CreateArray("/n"), Write("/n", (0,), b"t"), Write("/n", (1,), b"t")])
    repo.merge("dev", "main", message="forward")
    commit(repo, "main", [Erase("/n", (1,))])
    repo.squash(first, branch="main")

    with pytest.raises(MergeConflictError) as failed:
        repo.cherry_pick(picked, branch="main")
    assert [(row.kind, row.path, row.chunk) for row in failed.value.result.conflicts] == [
        (T.ChunkDoubleUpdate, "/n", (1,))
    ]
    repo.cherry_pick(picked, branch="main", strategy="ours")
    assert contents(repo, "/n", size=2) == "t."
    repo.cherry_pick(picked, branch="main", strategy="theirs")
    assert contents(repo, "/n", size=2) == "tt"


def test_amended_first_commit_is_not_taken_for_an_expired_one() -> None:
    """The log of the amended commit mentions chunks of an array that is neither before nor after it."""
    repo = new_repository(2)
    session = repo.writable_session("dev")
    make(session, [Delete("/b")])
    session.amend("without b")
    commit(repo, "main", [CreateArray("/ours")])

    assert repo.merge("dev", "main", message="m").outcome == "merged"
    assert {"/b", "/ours"} <= set(paths(repo))
