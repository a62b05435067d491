"""Merge, cherry-pick, revert and squash: results, conflicts, strategies and recorded metadata."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icefloe import (
    ConflictType,
    MergeConflictError,
    RebaseFailedError,
    Repository,
)
from icefloe.conflicts import ConflictDetector
from tests.support.branches import commit, contents, new_repository, part, paths
from tests.support.edits import (
    CreateArray,
    CreateGroup,
    Delete,
    Edit,
    Erase,
    Move,
    SetAttribute,
    SetDocument,
    Write,
    make,
    resize,
)

T = ConflictType


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return new_repository(request.param)


def table(repo: Repository) -> list[tuple[Any, ...]]:
    with pytest.raises(MergeConflictError) as failed:
        repo.merge("dev", "main", message="m")
    return [(row.kind, row.path, row.chunk) for row in failed.value.result.conflicts]


# Merging


def test_merge_without_new_commits_changes_nothing(repo: Repository) -> None:
    tip = commit(repo, "main", [Write("/a", (0,))])

    result = repo.merge("dev", "main", message="m")

    assert (result.outcome, result.snapshot_id) == ("up-to-date", tip)
    assert repo.lookup_branch("main") == tip


def test_unchanged_branch_is_fast_forwarded(repo: Repository) -> None:
    tip = commit(repo, "dev", [Write("/a", (0,))])

    result = repo.merge("dev", "main", message="m")

    assert (result.outcome, result.snapshot_id) == ("fast-forward", tip)
    assert repo.lookup_branch("main") == tip
    assert result.changes.updated_chunks == {"/a": [[0]]}


def test_chunks_of_both_sides_are_merged(repo: Repository) -> None:
    ours, theirs = part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t"), Erase("/a", (2,))])
    base = list(repo.ancestry(branch="dev"))[1].id

    result = repo.merge("dev", "main", message="both")

    assert (result.outcome, result.snapshot_id) == ("merged", repo.lookup_branch("main"))
    assert (result.base_id, result.ours_id, result.theirs_id) == (base, ours, theirs)
    assert contents(repo, "/a") == "ot.000"
    assert contents(repo, "/a", "dev") == "0t.000"
    tip = next(repo.ancestry(branch="main"))
    assert (tip.message, tip.parent_id) == ("both", ours)
    assert tip.metadata == {"icefloe": {"merged": [theirs]}}


def test_amended_merge_is_still_recognized() -> None:
    repo = new_repository()
    _, theirs = part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    repo.merge("dev", "main", message="both")
    session = repo.writable_session("main")
    make(session, [Write("/a", (3,), b"x")])

    session.amend("both, and more", metadata={"by": "me"})

    tip = next(repo.ancestry(branch="main"))
    assert tip.metadata == {"by": "me", "icefloe": {"merged": [theirs]}}
    assert repo.merge("dev", "main", message="again").outcome == "up-to-date"


def test_nodes_of_both_sides_are_merged(repo: Repository) -> None:
    part(
        repo,
        [CreateArray("/g/n"), SetAttribute("/b", 1), Delete("/g/c")],
        [CreateArray("/m"), Write("/m", (0,), b"t"), SetAttribute("/g", 1), resize("/a", 9)],
    )

    result = repo.merge("dev", "main", message="m")

    assert paths(repo) == ["/", "/a", "/b", "/g", "/g/n", "/m"]
    assert contents(repo, "/m", size=1) == "t"
    assert result.changes.new_arrays == {"/m"}
    assert result.changes.updated_groups == {"/g"}


def test_log_of_a_merge_contains_its_changes_to_the_branch(repo: Repository) -> None:
    part(repo, [Write("/a", (0,), b"o")], [CreateArray("/m"), Write("/m", (0,)), Write("/a", (1,))])

    id = repo.merge("dev", "main", message="m").snapshot_id

    diff = repo.diff(from_snapshot_id=str(next(repo.ancestry(branch="main")).parent_id), to_snapshot_id=id)
    assert (diff.new_arrays, diff.updated_chunks) == ({"/m"}, {"/a": [[1]], "/m": [[0]]})


def test_session_rebases_over_a_merge(repo: Repository) -> None:
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,))])
    part(repo, [Write("/a", (0,))], [Write("/a", (1,))])
    repo.merge("dev", "main", message="m")

    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(ConflictDetector())

    assert [each.conflicted_chunks for each in failed.value.conflicts] == [[[1]]]


def test_same_change_on_both_sides_is_not_a_conflict(repo: Repository) -> None:
    same: list[Edit] = [Write("/a", (0,), b"s"), Erase("/a", (1,)), SetAttribute("/b", 1), Delete("/g")]
    part(repo, same, [*same, Write("/a", (2,), b"t")])

    result = repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == "s.t000"
    assert result.changes.updated_chunks == {"/a": [[2]]}


def test_reverted_write_is_not_a_change(repo: Repository) -> None:
    commit(repo, "dev", [Write("/a", (0,), b"t")])
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (0,), b"0"), Write("/a", (1,), b"t")])

    repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == "ot0000"


def test_chunks_merge_with_changed_attributes_and_a_larger_shape(repo: Repository) -> None:
    part(repo, [SetAttribute("/a", 1), resize("/b", 9)], [Write("/a", (0,), b"t"), Write("/b", (0,), b"t")])

    repo.merge("dev", "main", message="m")

    assert contents(repo, "/a") == contents(repo, "/b") == "t00000"


def test_second_merge_starts_at_the_first_merge(repo: Repository) -> None:
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    repo.merge("dev", "main", message="first")
    commit(repo, "main", [Write("/a", (1,), b"m")])
    theirs = commit(repo, "dev", [Write("/a", (2,), b"t")])

    result = repo.merge("dev", "main", message="second")

    assert result.base_id == list(repo.ancestry(branch="dev"))[1].id
    assert contents(repo, "/a") == "omt000"
    assert repo.merge("dev", "main", message="third").outcome == "up-to-date"
    assert result.theirs_id == theirs


def test_branches_merge_in_both_directions(repo: Repository) -> None:
    part(repo, [Write("/a", (0,), b"o")], [CreateArray("/n"), Write("/n", (0,), b"t")])
    repo.merge("dev", "main", message="m")
    commit(repo, "main", [Write("/n", (1,), b"m")])

    result = repo.merge("main", "dev", message="back")

    assert result.outcome == "merged"
    assert contents(repo, "/n", "dev", 2) == "tm"
    assert contents(repo, "/a", "dev") == "o00000"
    assert repo.merge("dev", "main", message="m").changes.is_empty()


def test_dry_run_reports_and_writes_nothing(repo: Repository) -> None:
    part(repo, [Write("/a", (0,), b"o")], [Write("/a", (0,), b"t"), Write("/a", (1,), b"t")])
    before = {info.key for info in repo.storage.list_prefix("")}

    undecided = repo.merge("dev", "main", message="m", dry_run=True)
    decided = repo.merge("dev", "main", message="m", strategy="theirs", dry_run=True)

    assert (undecided.outcome, undecided.snapshot_id) == ("conflicts", None)
    assert [(row.path, row.chunk) for row in undecided.conflicts] == [("/a", (0,))]
    assert (decided.outcome, decided.snapshot_id) == ("merged", None)
    assert decided.changes.updated_chunks == {"/a": [[0], [1]]}
    assert {info.key for info in repo.storage.list_prefix("")} == before


def test_tags_and_snapshots_can_be_merged(repo: Repository) -> None:
    _, theirs = part(repo, [Write("/a", (0,))], [Write("/a", (1,), b"t")])
    repo.create_tag("v1", theirs)
    commit(repo, "dev", [Write("/a", (2,), b"t")])

    assert repo.merge("v1", "main", message="m").theirs_id == theirs
    assert contents(repo, "/a") == "wt0000"
    with pytest.raises(KeyError, match="no branch, tag or snapshot nowhere"):
        repo.merge("nowhere", "main", message="m")


def test_unknown_strategy_is_rejected(repo: Repository) -> None:
    wrong: Any = "mine"

    with pytest.raises(ValueError, match="'mine'; expected one of fail, ours, theirs"):
        repo.merge("dev", "main", message="m", strategy=wrong)


def test_conflict_table_describes_both_sides(repo: Repository) -> None:
    part(repo, [Write("/a", (0,), b"oo"), Delete("/b")], [Erase("/a", (0,)), Write("/b", (1,), b"t")])

    rows = repo.merge("dev", "main", message="m", dry_run=True).conflicts

    assert rows.columns() == {
        "path": ["/b", "/a"],
        "chunk": [None, (0,)],
        "kind": [T.ChunksUpdatedInDeletedArray, T.ChunkDoubleUpdate],
        "ours": ["deleted", "2 bytes inline"],
        "theirs": ["wrote chunks", "deleted"],
    }
    assert "ChunkDoubleUpdate 2 bytes inline | deleted" in repr(rows)


ARRAY_N: list[Edit] = [CreateArray("/n"), Write("/n", (0,), b"a")]


@pytest.mark.parametrize(
    ("ours", "theirs", "kind", "if_ours", "if_theirs"),
    [
        pytest.param(
            [Write("/a", (1,), b"o")],
            [Write("/a", (1,), b"t"), Write("/a", (2,), b"t")],
            T.ChunkDoubleUpdate,
            {"/a": "0ot000"},
            {"/a": "0tt000"},
            id="chunk",
        ),
        pytest.param(
            [CreateArray("/n"), Write("/n", (0,), b"o")],
            [CreateArray("/n"), Write("/n", (0,), b"t"), Write("/n", (1,), b"t")],
            T.NewNodeConflictsWithExistingNode,
            {"/n": "o....."},
            {"/n": "tt...."},
            id="new-arrays",
        ),
        pytest.param(
            [CreateGroup("/n"), *[CreateArray("/n/x"), Write("/n/x", (0,), b"o")]],
            [CreateGroup("/n"), SetAttribute("/n", 1), *[CreateArray("/n/y"), Write("/n/y", (0,), b"t")]],
            T.NewNodeConflictsWithExistingNode,
            {"/n/x": "o.....", "/n/y": "t....."},
            {"/n/x": "o.....", "/n/y": "t....."},
            id="new-groups",
        ),
        pytest.param(
            ARRAY_N,
            [CreateGroup("/n/x")],
            T.NewNodeInInvalidGroup,
            {"/n": "a.....", "/n/x": None},
            {"/n": None, "/n/x": ""},
            id="their-node-in-our-array",
        ),
        pytest.param(
            [CreateGroup("/n/x")],
            ARRAY_N,
            T.NewNodeInInvalidGroup,
            {"/n": None, "/n/x": ""},
            {"/n": "a.....", "/n/x": None},
            id="our-node-in-their-array",
        ),
        pytest.param(
            [Delete("/g")],
            [Write("/g/c", (0,), b"t")],
            T.ChunksUpdatedInDeletedArray,
            {"/g": None, "/g/c": None},
            {"/g": "", "/g/c": "t00000"},
            id="chunks-in-deleted",
        ),
        pytest.param(
            [Delete("/g")],
            [SetAttribute("/g", 1)],
            T.ZarrMetadataUpdateOfDeletedGroup,
            {"/g": None, "/g/c": None},
            {"/g": "", "/g/c": None},
            id="metadata-of-deleted-group",
        ),
        pytest.param(
            [Delete("/a")],
            [SetAttribute("/a", 1)],
            T.ZarrMetadataUpdateOfDeletedArray,
            {"/a": None},
            {"/a": "000000"},
            id="metadata-of-deleted-array",
        ),
        pytest.param(
            [Write("/g/c", (0,), b"o")],
            [Delete("/g")],
            T.DeleteOfUpdatedArray,
            {"/g": "", "/g/c": "o00000"},
            {"/g": None, "/g/c": None},
            id="delete-of-written",
        ),
        pytest.param(
            [SetAttribute("/g", 1)],
            [Delete("/g")],
            T.DeleteOfUpdatedGroup,
            {"/g": "", "/g/c": None},
            {"/g": None, "/g/c": None},
            id="delete-of-updated-group",
        ),
        pytest.param(
            [Delete("/g")],
            [CreateArray("/g/n"), Write("/g/n", (0,), b"t")],
            T.NewNodeInDeletedGroup,
            {"/g": None, "/g/n": None},
            {"/g": "", "/g/c": None, "/g/n": "t....."},
            id="new-in-deleted",
        ),
        pytest.param(
            [CreateArray("/g/n"), Write("/g/n", (0,), b"o")],
            [Delete("/g")],
            T.DeleteOfGroupWithNewNodes,
            {"/g": "", "/g/c": None, "/g/n": "o....."},
            {"/g": None, "/g/n": None},
            id="delete-around-new",
        ),
        pytest.param(
            [Delete("/a"), CreateArray("/a"), Write("/a", (0,), b"o")],
            [Delete("/a"), CreateArray("/a"), Write("/a", (1,), b"t")],
            T.NodeRecreatedByBothSides,
            {"/a": "o....."},
            {"/a": ".t...."},
            id="both-recreate",
        ),
        pytest.param(
            [SetDocument("/a", "data_type", "int8"), Write("/a", (0,), b"o")],
            [Write("/a", (1,), b"t")],
            T.ChunksUpdatedInUpdatedArray,
            {"/a": "o00000"},
            {"/a": "0t0000"},
            id="chunks-under-another-type",
        ),
        pytest.param(
            [Write("/a", (1,), b"o")],
            [SetDocument("/a", "data_type", "int8"), Write("/a", (0,), b"t")],
            T.ZarrMetadataUpdateOfWrittenArray,
            {"/a": "0o0000"},
            {"/a": "t00000"},
            id="another-type-for-chunks",
        ),
        pytest.param(
            [SetDocument("/a", "data_type", "int8"), Write("/a", (0,), b"o")],
            [SetDocument("/a", "data_type", "bool"), Write("/a", (1,), b"t")],
            T.ZarrMetadataDoubleUpdate,
            {"/a": "o00000"},
            {"/a": "0t0000"},
            id="two-other-types",
        ),
    ],
)
def test_strategy_decides_which_side_wins(
    repo: Repository,
    ours: list[Edit],
    theirs: list[Edit],
    kind: ConflictType,
    if_ours: dict[str, str | None],
    if_theirs: dict[str, str | None],
) -> None:
    part(repo, ours, theirs)
    repo.create_branch("other", repo.lookup_branch("main"))

    assert kind in {row[0] for row in table(repo)}
    for branch, strategy, expected in (("main", "ours", if_ours), ("other", "theirs", if_theirs)):
        chosen: Any = strategy
        result = repo.merge("dev", branch, message="m", strategy=chosen)
        assert kind in {row.kind for row in result.conflicts}
        for path, text in expected.items():
            if text is None:
                assert path not in paths(repo, branch)
            elif text == "":
                assert path in paths(repo, branch)
            else:
                assert contents(repo, path, branch) == text


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([Move("/a", "/z")], [Move("/a", "/y")]), ([CreateArray("/z")], [Move("/a", "/z")])],
)
def test_no_strategy_decides_the_path_of_a_node(strategy: Any, ours: list[Edit], theirs: list[Edit]) -> None:
    repo = new_repository()
    tip, _ = part(repo, ours, theirs)

    with pytest.raises(MergeConflictError) as failed:
        repo.merge("dev", "main", message="m", strategy=strategy)

    assert failed.value.kind == "merge-failed"
    assert repo.lookup_branch("main") == tip


def test_moves_without_conflicts_are_merged() -> None:
    repo = new_repository()
    part(repo, [Write("/a", (0,), b"o")], [Move("/a", "/g/a")])

    result = repo.merge("dev", "main", message="m")

    assert contents(repo, "/g/a") == "o00000"
    assert result.changes.moved_nodes == [("/a", "/g/a")]


# Picking and reverting


def test_cherry_pick_applies_one_snapshot(repo: Repository) -> None:
    commit(repo, "dev", [Write("/a", (0,), b"x")])
    picked = commit(repo, "dev", [Write("/a", (1,), b"t"), CreateArray("/n")], "the one")
    commit(repo, "dev", [Write("/a", (2,), b"x")])
    commit(repo, "main", [Write("/a", (5,), b"o")])

    result = repo.cherry_pick(picked, branch="main")

    assert contents(repo, "/a") == "0t000o"
    assert "/n" in paths(repo)
    tip = next(repo.ancestry(branch="main"))
    assert (tip.id, tip.message) == (result.snapshot_id, "the one")
    assert tip.metadata == {"icefloe": {"cherry_picked": picked}}
    assert repo.cherry_pick(picked, branch="main").outcome == "up-to-date"


def test_picked_changes_do_not_conflict_in_a_later_merge(repo: Repository) -> None:
    picked = commit(repo, "dev", [CreateArray("/n"), Write("/n", (0,), b"t"), Write("/a", (1,), b"t")])
    commit(repo, "dev", [Write("/n", (1,), b"t")])
    commit(repo, "main", [Write("/a", (5,), b"o")])
    repo.cherry_pick(picked, branch="main")

    result = repo.merge("dev", "main", message="m")

    assert contents(repo, "/n", size=2) == "tt"
    assert result.changes.updated_chunks == {"/n": [[1]]}


def test_cherry_pick_reports_conflicts(repo: Repository) -> None:
    picked = commit(repo, "dev", [Write("/a", (1,), b"t")])
    commit(repo, "main", [Write("/a", (1,), b"o")])

    with pytest.raises(MergeConflictError):
        repo.cherry_pick(picked, branch="main")
    repo.cherry_pick(picked, branch="main", strategy="theirs", message="mine")

    assert contents(repo, "/a") == "0t0000"
    assert next(repo.ancestry(branch="main")).message == "mine"


def test_revert_undoes_one_snapshot(repo: Repository) -> None:
    wrong = commit(repo, "main", [Write("/a", (1,), b"x"), Delete("/g"), SetAttribute("/b", 1)], "wrong")
    commit(repo, "main", [Write("/a", (2,), b"o")])

    repo.revert(wrong, branch="main")

    assert contents(repo, "/a") == "00o000"
    assert contents(repo, "/g/c") == "000000"
    tip = next(repo.ancestry(branch="main"))
    assert (tip.message, tip.metadata) == ('Revert "wrong"', {"icefloe": {"reverted": wrong}})


def test_later_changes_conflict_with_a_revert(repo: Repository) -> None:
    wrong = commit(repo, "main", [Write("/a", (1,), b"x"), Write("/a", (2,), b"x")])
    commit(repo, "main", [Write("/a", (2,), b"o")])

    with pytest.raises(MergeConflictError) as failed:
        repo.revert(wrong, branch="main")
    repo.revert(wrong, branch="main", strategy="ours")

    assert [row.chunk for row in failed.value.result.conflicts] == [(2,)]
    assert contents(repo, "/a") == "00o000"


def test_revert_undoes_a_move() -> None:
    repo = new_repository()
    moved = commit(repo, "main", [Move("/a", "/z")])

    repo.revert(moved, branch="main")

    assert paths(repo) == ["/", "/a", "/b", "/g", "/g/c"]


def test_revert_needs_a_snapshot_of_the_history(repo: Repository) -> None:
    elsewhere = commit(repo, "dev", [Write("/a", (1,))])

    with pytest.raises(ValueError, match="not in the history of branch main"):
        repo.revert(elsewhere, branch="main")


def test_first_snapshot_cannot_be_picked_or_reverted(repo: Repository) -> None:
    first = list(repo.ancestry(branch="main"))[-1].id

    with pytest.raises(ValueError, match="cannot be picked"):
        repo.cherry_pick(first, branch="main")
    with pytest.raises(ValueError, match="cannot be reverted"):
        repo.revert(first, branch="main")


# Squashing


def test_squash_combines_snapshots(repo: Repository) -> None:
    since = repo.lookup_branch("main")
    commit(repo, "main", [Write("/a", (0,), b"x"), CreateArray("/n"), Write("/n", (0,))], "one")
    commit(repo, "main", [Write("/a", (1,), b"y"), Delete("/n"), SetAttribute("/b", 1)], "two")
    before = (contents(repo, "/a"), paths(repo))

    id = repo.squash(since, branch="main")

    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["one\ntwo", "x"]
    assert (contents(repo, "/a"), paths(repo)) == before
    assert repo.lookup_branch("main") == id
    diff = repo.diff(from_snapshot_id=since, to_snapshot_id=id)
    assert diff.updated_chunks == {"/a": [[0], [1]]}
    assert (diff.new_arrays, diff.deleted_arrays, diff.updated_arrays) == (set(), set(), {"/b"})
    log = repo.inspect_transaction_log(id)
    assert (log["new_arrays"], log["deleted_arrays"], len(log["updated_chunks"])) == ([], [], 1)


def test_squash_keeps_the_record_of_merges(repo: Repository) -> None:
    since, theirs = part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])
    repo.merge("dev", "main", message="m")
    commit(repo, "main", [Write("/a", (1,), b"m")])

    repo.squash(since, branch="main", message="all")
    commit(repo, "dev", [Write("/a", (2,), b"t")])
    result = repo.merge("dev", "main", message="again")

    assert result.base_id == theirs
    assert contents(repo, "/a") == "omt000"


def test_squash_without_later_snapshots_is_rejected(repo: Repository) -> None:
    tip, elsewhere = part(repo, [Write("/a", (0,))], [Write("/a", (1,))])

    for since in (tip, elsewhere):
        with pytest.raises(ValueError, match="nothing to squash"):
            repo.squash(since, branch="main")


def test_merge_operations_have_async_methods(repo: Repository) -> None:
    since, _ = part(repo, [Write("/a", (0,), b"o")], [Write("/a", (1,), b"t")])

    async def all_of_them() -> None:
        merged = await repo.merge_async("dev", "main", message="m")
        await repo.revert_async(str(merged.snapshot_id), branch="main")
        await repo.cherry_pick_async("dev", branch="main")
        await repo.squash_async(since, branch="main")

    asyncio.run(all_of_them())

    assert contents(repo, "/a") == "ot0000"
