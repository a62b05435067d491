"""Both packages write to one repository concurrently, and rebase over commits of each other."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import icefloe
from tests.support.compat import official
from tests.support.compat.official import icechunk, needs_v2
from tests.support.compat.scripts import OFFICIAL_KINDS, START, possible, scripts
from tests.support.edits import Edit, Move, Write, make

pytestmark = [pytest.mark.compat, needs_v2]

PACKAGES = (icefloe, icechunk)
PAIRS = list(itertools.product(PACKAGES, repeat=2))

moves = st.lists(
    st.builds(Move, st.sampled_from(["/a", "/g", "/g/c", "/g/h"]), st.sampled_from(["/z", "/g/z", "/y"])),
    min_size=1,
    max_size=2,
)
solved = st.booleans()


def possible_moves(script: list[Move]) -> list[Edit]:
    """Return the moves of a script that are possible, given the moves before them."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    start(repo)
    session = repo.rearrange_session("main")
    kept: list[Edit] = []
    for move in script:
        try:
            make(session, [move])
        except icefloe.IcechunkError:
            continue
        kept.append(move)
    return kept


def start(repo: Any) -> None:
    session = repo.writable_session("main")
    make(session, START)
    session.commit("start")


def session_of(repo: Any, edits: list[Edit]) -> Any:
    rearranges = any(isinstance(edit, Move) for edit in edits)
    session = repo.rearrange_session("main") if rearranges else repo.writable_session("main")
    make(session, edits)
    return session


def outcome(
    folder: Path, mine: Any, other: Any, theirs: list[Edit], ours: list[Edit], solve: bool
) -> tuple[frozenset[Any], Any]:
    """Rebase `mine` over a commit of `other`; return the conflicts, and what both packages see in the end."""
    start(other.Repository.create(other.local_filesystem_storage(str(folder)), spec_version=2))
    repo, second = (
        package.Repository.open(package.local_filesystem_storage(str(folder))) for package in (mine, other)
    )
    session = session_of(repo, ours)
    session_of(second, theirs).commit("theirs", allow_empty=True)
    found: frozenset[Any] = frozenset()
    try:
        session.rebase(mine.BasicConflictSolver() if solve else mine.ConflictDetector())
        session.commit("ours", allow_empty=True)
    except mine.RebaseFailedError as error:
        found = frozenset((int(c.conflict_type), c.path, repr(c.conflicted_chunks)) for c in error.conflicts)
    trees = [official.tree(each, each.lookup_branch("main")) for each in (repo, second)]
    assert trees[0] == trees[1]
    return found, trees[0]


def check(theirs: list[Edit], ours: list[Edit], solve: bool) -> None:
    """Check that all combinations of packages give the same conflicts and the same result."""
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (mine, other) in enumerate(PAIRS):
            results[mine, other] = outcome(Path(scratch, str(number)), mine, other, theirs, ours, solve)
    for mine in PACKAGES:
        assert results[mine, icefloe] == results[mine, icechunk]
    (found, tree), (known, their_tree) = results[icefloe, icefloe], results[icechunk, icechunk]
    stricter = frozenset(conflict for conflict in found if conflict[0] > OFFICIAL_KINDS)
    same = found - stricter
    if stricter and not known and solve:  # one unsolved conflict makes the error list all of them
        same = frozenset(each for each in same if each[0] not in (6, 9, 10))
    assert same == known
    if not stricter:
        assert tree == their_tree


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(theirs=scripts, ours=scripts, solve=solved)
def test_both_packages_rebase_over_edits_with_the_same_result(
    theirs: list[Edit], ours: list[Edit], solve: bool
) -> None:
    check(possible(theirs), possible(ours), solve)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(theirs=moves, ours=scripts, solve=solved)
def test_both_packages_rebase_over_moves_with_the_same_result(
    theirs: list[Move], ours: list[Edit], solve: bool
) -> None:
    check(possible_moves(theirs), possible(ours), solve)


@pytest.mark.parametrize("solve", [False, True])
def test_moves_are_rebased_over_commits_of_the_other_package(solve: bool) -> None:
    check([Write("/a", (0,), b"t"), Write("/g/c", (1,), b"t")], [Move("/g", "/z"), Move("/a", "/y")], solve)


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_both_packages_commit_alternately_to_one_branch(tmp_path: Path, mine: Any, other: Any) -> None:
    """Each session starts before the other package has committed, and is rebased."""
    start(mine.Repository.create(mine.local_filesystem_storage(str(tmp_path)), spec_version=2))
    packages = (mine, other)
    repos = [each.Repository.open(each.local_filesystem_storage(str(tmp_path))) for each in packages]
    sessions = [session_of(repo, [Write("/a", (n,), b"0")]) for n, repo in enumerate(repos)]

    for turn in range(6):
        who = turn % 2
        sessions[who].commit(f"turn {turn}", rebase_with=packages[who].ConflictDetector())
        sessions[who] = session_of(repos[who], [Write("/a", (who,), str(turn // 2 + 1).encode())])

    assert len(list(repos[0].ancestry(branch="main"))) == 8
    for repo in repos:
        assert [info.message for info in repo.ancestry(branch="main")][:6] == [
            f"turn {turn}" for turn in range(5, -1, -1)
        ]
        tree = official.tree(repo, repo.lookup_branch("main"))
        assert tree == official.tree(repos[0], repos[0].lookup_branch("main"))
