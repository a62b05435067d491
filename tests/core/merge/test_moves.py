"""Merges in which nodes were moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from icefloe import ConflictType, MergeConflictError, Repository
from tests.support.branches import commit, contents, new_repository, paths
from tests.support.edits import CreateArray, CreateGroup, Delete, Edit, Move, SetAttribute, Write

T = ConflictType


def parted(ours: Sequence[Sequence[Edit]], theirs: Sequence[Sequence[Edit]]) -> Repository:
    """Create a repository with commits on the branches main and dev."""
    repo = new_repository()
    for branch, commits in (("main", ours), ("dev", theirs)):
        for edits in commits:
            commit(repo, branch, edits)
    return repo


def test_their_changes_follow_our_move() -> None:
    repo = parted(
        [[Move("/g", "/h"), Move("/a", "/h/a")]],
        [[Write("/a", (0,), b"t"), Write("/g/c", (1,), b"t"), CreateArray("/g/n"), Delete("/b")]],
    )

    result = repo.merge("dev", "main", message="m")

    assert paths(repo) == ["/", "/h", "/h/a", "/h/c", "/h/n"]
    assert (contents(repo, "/h/a"), contents(repo, "/h/c")) == ("t00000", "0t0000")
    assert result.changes.moved_nodes == []
    assert result.changes.updated_chunks == {"/h/a": [[0]], "/h/c": [[1]]}


def test_our_changes_follow_their_move() -> None:
    repo = parted(
        [[Write("/a", (0,), b"o"), CreateArray("/g/n")]],
        [[Move("/g", "/h")], [Write("/a", (1,), b"t"), Write("/h/c", (2,), b"t")], [Move("/a", "/h/a")]],
    )

    result = repo.merge("dev", "main", message="m")

    assert paths(repo) == ["/", "/b", "/h", "/h/a", "/h/c", "/h/n"]
    assert (contents(repo, "/h/a"), contents(repo, "/h/c")) == ("ot0000", "00t000")
    moves = [("/g", "/h"), ("/a", "/h/a"), ("/g/c", "/h/c"), ("/g/n", "/h/n")]
    assert result.changes.moved_nodes == moves
    assert repo.diff(from_snapshot_id=result.ours_id, to_branch="main") == result.changes


def test_two_nodes_swap_paths() -> None:
    repo = parted([[Write("/a", (0,), b"o")]], [[Move("/a", "/x"), Move("/b", "/a"), Move("/x", "/b")]])

    repo.merge("dev", "main", message="m")

    assert (contents(repo, "/b"), contents(repo, "/a")) == ("o00000", "000000")


def test_node_moves_to_the_path_of_a_deleted_node() -> None:
    repo = parted([[Write("/b", (0,), b"o")]], [[Delete("/a")], [Move("/b", "/a")]])

    result = repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == "o00000"
    assert result.changes.deleted_arrays == {"/a"}
    assert repo.diff(from_snapshot_id=result.ours_id, to_branch="main") == result.changes


def test_same_move_on_both_sides_is_not_a_conflict() -> None:
    repo = parted([[Move("/a", "/z")]], [[Move("/a", "/z")], [Write("/z", (0,), b"t")]])

    repo.merge("dev", "main", message="m")

    assert contents(repo, "/z") == "t00000"


@pytest.mark.parametrize(
    ("ours", "theirs", "kind", "row"),
    [
        ([[Move("/a", "/z")]], [[Move("/a", "/y")]], T.NodeMovedByBothSides,
         ("/a", "moved /a to /z", "moved /a to /y")),
        ([[Move("/a", "/z")]], [[Delete("/a")]], T.MoveOfDeletedNode,
         ("/a", "moved /a to /z", "deleted /a")),
        ([[Delete("/a")]], [[Move("/a", "/z")]], T.MoveOfDeletedNode,
         ("/a", "deleted /a", "moved /a to /z")),
        ([[CreateArray("/z")]], [[Move("/a", "/z")]], T.MoveToExistingNode,
         ("/z", "created /z", "moved /a to /z")),
        ([[Move("/b", "/z")]], [[Move("/a", "/z")]], T.MoveToExistingNode,
         ("/z", "moved /b to /z", "moved /a to /z")),
        ([[Write("/a", (0,))]], [[Delete("/a")], [Move("/b", "/a")]], T.MoveToExistingNode,
         ("/a", "did not move it", "deleted /a, moved /b to /a")),
        ([[Delete("/g")]], [[Move("/a", "/g/a")]], T.NewNodeInDeletedGroup,
         ("/a", "did not move it", "moved /a to /g/a")),
        ([[Move("/a", "/g/a")]], [[Delete("/g")]], T.NewNodeInDeletedGroup,
         ("/a", "moved /a to /g/a", "did not move it")),
    ],
)  # fmt: skip
def test_incompatible_moves_conflict(
    ours: list[list[Edit]], theirs: list[list[Edit]], kind: T, row: tuple[str, str, str]
) -> None:
    repo = parted(ours, theirs)
    tip = repo.lookup_branch("main")

    for strategy in ("fail", "ours", "theirs"):
        with pytest.raises(MergeConflictError) as failed:
            repo.merge("dev", "main", message="m", strategy=strategy)
        (found,) = failed.value.result.conflicts
        assert (found.kind, found.chunk) == (kind, None)
        assert (found.path, found.ours, found.theirs) == row
    assert repo.lookup_branch("main") == tip


def test_groups_cannot_be_moved_into_each_other() -> None:
    repo = new_repository()
    commit(repo, "main", [CreateGroup("/h")])
    repo.reset_branch("dev", repo.lookup_branch("main"))
    commit(repo, "main", [Move("/g", "/h/g")])
    commit(repo, "dev", [Move("/h", "/g/h")])

    rows = repo.merge("dev", "main", message="m", dry_run=True).conflicts

    assert [(row.kind, row.path) for row in rows] == [
        (T.NodeMovedByBothSides, "/g"),
        (T.NodeMovedByBothSides, "/h"),
    ]


def test_conflicts_inside_moved_nodes_are_resolved() -> None:
    sides: Any = [[Write("/a", (0,), b"o")]], [[Move("/a", "/z")], [Write("/z", (0,), b"t")]]
    repo = parted(*sides)

    rows = repo.merge("dev", "main", message="m", dry_run=True).conflicts
    repo.merge("dev", "main", message="m", strategy="theirs")

    assert [(row.kind, row.path, row.chunk) for row in rows] == [(T.ChunkDoubleUpdate, "/z", (0,))]
    assert contents(repo, "/z") == "t00000"


def test_strategy_ours_keeps_a_deleted_node_in_a_moved_group() -> None:
    repo = parted([[Write("/g/c", (0,), b"o")]], [[Move("/g", "/h")], [Delete("/h/c")]])

    result = repo.merge("dev", "main", message="m", strategy="ours")

    assert contents(repo, "/h/c") == "o00000"
    assert ("/g/c", "/h/c") in result.changes.moved_nodes
    assert repo.diff(from_snapshot_id=result.ours_id, to_branch="main") == result.changes


def test_commit_before_a_move_can_be_picked_and_reverted() -> None:
    repo = new_repository()
    labelled = commit(repo, "main", [SetAttribute("/a", 1), Write("/a", (0,), b"x")])
    commit(repo, "main", [Move("/a", "/g/a")])
    commit(repo, "dev", [Move("/g", "/h"), Move("/a", "/h/b")])

    repo.cherry_pick(labelled, branch="dev")
    assert contents(repo, "/h/b", "dev") == "x00000"
    repo.revert(labelled, branch="main")
    assert contents(repo, "/g/a") == "000000"
