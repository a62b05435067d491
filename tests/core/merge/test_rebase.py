"""Rebase: each conflict rule, the solvers, and partial rebases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from icefloe import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictError,
    ConflictSolver,
    ConflictType,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    Session,
    SessionStateError,
    VersionSelection,
    in_memory_storage,
)
from icefloe.config import ManifestConfig, ManifestSplittingConfig
from icefloe.config import ManifestSplitCondition as Arrays
from icefloe.config import ManifestSplitDimCondition as Dimensions
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

START: list[Edit] = [
    CreateGroup("/"),
    CreateArray("/a", (6,)),
    CreateArray("/b", (6,)),
    CreateGroup("/g"),
    CreateArray("/g/c", (6,)),
    *(Write(path, (n,), b"0") for path in ("/a", "/b") for n in range(6)),
]

USE_OURS = BasicConflictSolver()
USE_THEIRS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
FAIL = BasicConflictSolver(
    on_chunk_conflict=VersionSelection.Fail,
    fail_on_delete_of_updated_array=True,
    fail_on_delete_of_updated_group=True,
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return new_repository(spec=request.param)


@pytest.fixture
def repo_v2() -> Repository:
    return new_repository(spec=2)


def new_repository(spec: int = 2, config: RepositoryConfig | None = None) -> Repository:
    made = Repository.create(in_memory_storage(), config, spec_version=spec)
    session = made.writable_session("main")
    make(session, START)
    session.commit("start")
    return made


def session_for(repo: Repository, edits: Sequence[Edit]) -> Session:
    moves = any(isinstance(edit, Move) for edit in edits)
    return repo.rearrange_session("main") if moves else repo.writable_session("main")


def commit(repo: Repository, *edits: Edit) -> str:
    session = session_for(repo, edits)
    make(session, edits)
    return session.commit("theirs")


def collide(repo: Repository, theirs: Sequence[Edit], ours: Sequence[Edit]) -> Session:
    """Create a session with our changes, and commit their changes before it."""
    session = session_for(repo, ours)
    make(session, ours)
    commit(repo, *theirs)
    return session


def conflicts(session: Session, solver: ConflictSolver | None = None) -> list[tuple[Any, ...]]:
    """Return the conflicts of a rebase; empty if it succeeds."""
    try:
        session.rebase(solver or ConflictDetector())
    except RebaseFailedError as error:
        return [(each.conflict_type, each.path, each.conflicted_chunks) for each in error.conflicts]
    return []


def contents(repo: Repository, path: str, size: int = 6) -> str:
    """Return the chunks of an array as text, with a dot for a missing chunk."""
    workspace = repo.readonly_session("main")._workspace
    node = workspace.array(path)
    refs = [workspace.ref(node, (n,)) for n in range(size)]
    return "".join("." if ref is None else workspace.read(ref, 0, 1).decode() for ref in refs)


def paths(repo: Repository) -> list[str]:
    return list(repo.readonly_session("main")._workspace.paths())


T = ConflictType


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        pytest.param([CreateArray("/n")], [CreateGroup("/n")], [(T(1), "/n", None)], id="both-create-a-node"),
        pytest.param(
            [CreateArray("/n")], [CreateGroup("/n/x")], [(T(2), "/n", None)], id="create-in-new-array"
        ),
        pytest.param(
            [CreateGroup("/n/x")], [CreateArray("/n")], [(T(2), "/n", None)], id="array-around-new-node"
        ),
        pytest.param(
            [SetAttribute("/a", 1)], [SetAttribute("/a", 2)], [(T(3), "/a", None)], id="array-metadata"
        ),
        pytest.param(
            [SetAttribute("/g", 1)], [SetAttribute("/g", 2)], [(T(3), "/g", None)], id="group-metadata"
        ),
        pytest.param([resize("/a", 8)], [resize("/a", 9)], [(T(3), "/a", None)], id="both-resize"),
        pytest.param(
            [Delete("/a")], [SetAttribute("/a", 2)], [(T(4), "/a", None)], id="metadata-of-deleted-array"
        ),
        pytest.param([Delete("/a")], [resize("/a", 8)], [(T(4), "/a", None)], id="resize-of-deleted-array"),
        pytest.param(
            [Delete("/g")], [SetAttribute("/g", 2)], [(T(5), "/g", None)], id="metadata-of-deleted-group"
        ),
        pytest.param(
            [Write("/a", (3,)), Write("/a", (1,)), Write("/a", (0,))],
            [Write("/a", (5,)), Write("/a", (3,)), Write("/a", (1,))],
            [(T(6), "/a", [[1], [3]])],
            id="same-chunks",
        ),
        pytest.param(
            [Erase("/a", (1,))], [Write("/a", (1,))], [(T(6), "/a", [[1]])], id="erased-and-written"
        ),
        pytest.param(
            [Write("/a", (1,))], [Erase("/a", (1,))], [(T(6), "/a", [[1]])], id="written-and-erased"
        ),
        pytest.param([Delete("/a")], [Write("/a", (1,))], [(T(7), "/a", None)], id="chunks-in-deleted-array"),
        pytest.param(
            [Delete("/g")], [Write("/g/c", (1,))], [(T(7), "/g/c", None)], id="chunks-in-deleted-group"
        ),
        pytest.param(
            [SetAttribute("/a", 1)], [Erase("/a", (1,))], [(T(8), "/a", None)], id="chunks-in-updated-array"
        ),
        pytest.param([Write("/a", (1,))], [Delete("/a")], [(T(9), "/a", None)], id="delete-of-written-array"),
        pytest.param(
            [SetAttribute("/a", 1)], [Delete("/a")], [(T(9), "/a", None)], id="delete-of-updated-array"
        ),
        pytest.param(
            [Write("/g/c", (1,))], [Delete("/g")], [(T(9), "/g/c", None)], id="delete-around-written-array"
        ),
        pytest.param(
            [SetAttribute("/g", 1)], [Delete("/g")], [(T(10), "/g", None)], id="delete-of-updated-group"
        ),
        pytest.param(
            [Delete("/a"), CreateArray("/a")],
            [Delete("/a"), CreateArray("/a")],
            [(T.NodeRecreatedByBothSides, "/a", None)],
            id="both-recreate",
        ),
        pytest.param(
            [Delete("/g")],
            [CreateArray("/g/n")],
            [(T.NewNodeInDeletedGroup, "/g/n", None)],
            id="create-in-deleted",
        ),
        pytest.param(
            [CreateArray("/g/n")],
            [Delete("/g")],
            [(T.DeleteOfGroupWithNewNodes, "/g", None)],
            id="delete-around-new",
        ),
        pytest.param(
            [Write("/a", (5,)), Write("/a", (1,))],
            [resize("/a", 4)],
            [(T.ZarrMetadataUpdateOfWrittenArray, "/a", [[5]])],
            id="shrunk-below-new-chunks",
        ),
        pytest.param(
            [Write("/a", (1,))],
            [SetDocument("/a", "data_type", "int8")],
            [(T.ZarrMetadataUpdateOfWrittenArray, "/a", None)],
            id="another-type-for-new-chunks",
        ),
    ],
)
def test_conflicting_changes_fail_the_rebase(
    repo: Repository, theirs: list[Edit], ours: list[Edit], expected: list[tuple[Any, ...]]
) -> None:
    session = collide(repo, theirs, ours)
    before = (session.snapshot_id, session.status())

    assert conflicts(session) == expected
    assert (session.snapshot_id, session.status()) == before


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        pytest.param([Move("/a", "/z")], [Write("/b", (1,))], [(T(11), "", None)], id="they-moved"),
        pytest.param([Move("/a", "/z")], [Move("/b", "/y")], [(T(11), "", None)], id="both-moved"),
        pytest.param(
            [CreateArray("/z")],
            [Move("/a", "/z")],
            [(T.MoveToExistingNode, "/z", None)],
            id="destination-taken",
        ),
        pytest.param(
            [CreateArray("/z/x")],
            [Move("/a", "/z")],
            [(T.MoveToExistingNode, "/z", None)],
            id="array-around-new-node",
        ),
        pytest.param(
            [CreateArray("/g/d")],
            [Move("/g/c", "/g/d"), Move("/g", "/h")],
            [(T.MoveToExistingNode, "/h/d", None)],
            id="new-node-taken-along-to-where-another-went",
        ),
        pytest.param(
            [Delete("/a")], [Move("/a", "/z")], [(T.MoveOfDeletedNode, "/a", None)], id="moved-node-gone"
        ),
        pytest.param(
            [Delete("/g")],
            [Move("/a", "/g/a")],
            [(T.NewNodeInDeletedGroup, "/g/a", None)],
            id="moved-into-deleted",
        ),
        pytest.param(
            [Delete("/g"), CreateArray("/g")],
            [Move("/a", "/g/a")],
            [(T.NewNodeInInvalidGroup, "/g", None)],
            id="moved-into-what-is-an-array-now",
        ),
    ],
)
def test_conflicting_moves_fail_the_rebase(
    repo_v2: Repository, theirs: list[Edit], ours: list[Edit], expected: list[tuple[Any, ...]]
) -> None:
    session = collide(repo_v2, theirs, ours)

    assert conflicts(session) == expected


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param([Write("/a", (1,))], [Write("/a", (2,))], id="other-chunk"),
        pytest.param([Write("/a", (1,))], [SetAttribute("/a", 1)], id="metadata-over-chunks"),
        pytest.param([Write("/a", (5,))], [resize("/a", 9)], id="grown-over-chunks"),
        pytest.param([Write("/a", (1,))], [resize("/a", 4)], id="shrunk-beside-chunks"),
        pytest.param([Delete("/a")], [Delete("/a")], id="both-delete"),
        pytest.param([Delete("/g/c")], [Delete("/g")], id="both-delete-in-part"),
        pytest.param([Delete("/g")], [Delete("/g/c")], id="both-delete-and-more"),
        pytest.param([SetAttribute("/g", 1)], [CreateArray("/g/n")], id="create-in-updated-group"),
        pytest.param([CreateArray("/g/n")], [SetAttribute("/g", 1)], id="update-of-group-with-new-node"),
        pytest.param([CreateArray("/g/n")], [CreateArray("/g/m")], id="create-side-by-side"),
        pytest.param(
            [Delete("/g"), CreateGroup("/g")], [CreateArray("/g/n")], id="create-in-recreated-group"
        ),
    ],
)
def test_compatible_changes_rebase(repo: Repository, theirs: list[Edit], ours: list[Edit]) -> None:
    session = collide(repo, theirs, ours)

    assert conflicts(session) == []
    assert session.snapshot_id == repo.lookup_branch("main")
    session.commit("ours", allow_empty=True)
    assert len(list(repo.ancestry(branch="main"))) == 4


def test_chunks_of_both_sides_survive_a_rebase(repo: Repository) -> None:
    session = collide(
        repo, [Write("/a", (1,), b"t"), Erase("/a", (2,))], [Write("/a", (3,), b"o"), Erase("/a", (4,))]
    )

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert contents(repo, "/a") == "0t.o.0"


def test_new_metadata_keeps_their_chunks(repo: Repository) -> None:
    session = collide(repo, [Write("/a", (1,), b"t")], [resize("/a", 8), Write("/a", (7,), b"o")])

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert contents(repo, "/a", 8) == "0t0000.o"


def test_node_deleted_by_both_sides_stays_deleted(repo: Repository) -> None:
    session = collide(repo, [Delete("/g/c")], [Delete("/g")])

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert paths(repo) == ["/", "/a", "/b"]


def test_node_that_we_deleted_and_they_replaced_has_their_content(repo: Repository) -> None:
    session = collide(repo, [Delete("/a"), CreateArray("/a"), Write("/a", (0,), b"t")], [Delete("/a")])

    session.rebase(ConflictDetector())
    session.commit("ours", allow_empty=True)

    assert contents(repo, "/a", 1) == "t"


def test_node_that_they_deleted_and_we_replaced_has_our_content(repo: Repository) -> None:
    session = collide(repo, [Delete("/a")], [Delete("/a"), CreateArray("/a"), Write("/a", (0,), b"o")])

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert contents(repo, "/a", 1) == "o"


def test_their_new_nodes_move_with_the_group(repo_v2: Repository) -> None:
    session = collide(repo_v2, [CreateGroup("/g/h"), CreateArray("/g/h/n")], [Move("/g", "/z")])

    session.rebase(ConflictDetector())
    id = session.commit("ours")

    assert paths(repo_v2) == ["/", "/a", "/b", "/z", "/z/c", "/z/h", "/z/h/n"]
    moved = repo_v2.inspect_transaction_log(id)["moved_nodes"]
    assert [each["to"] for each in moved] == ["/z", "/z/c", "/z/h", "/z/h/n"]


def test_nodes_that_they_deleted_in_a_moved_group_are_gone(repo_v2: Repository) -> None:
    session = collide(repo_v2, [Delete("/g/c")], [Move("/g", "/z")])

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert paths(repo_v2) == ["/", "/a", "/b", "/z"]


def test_their_chunks_move_with_the_array(repo_v2: Repository) -> None:
    session = collide(repo_v2, [Write("/a", (1,), b"t")], [Move("/a", "/z")])

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert contents(repo_v2, "/z") == "0t0000"


# Solvers

BOTH_WROTE: tuple[list[Edit], list[Edit]] = (
    [Write("/a", (1,), b"t"), Write("/a", (2,), b"t")],
    [Write("/a", (2,), b"o"), Write("/a", (3,), b"o")],
)


@pytest.mark.parametrize(("solver", "expected"), [(USE_OURS, "0too00"), (USE_THEIRS, "0tto00")])
def test_solver_chooses_between_double_writes(
    repo: Repository, solver: ConflictSolver, expected: str
) -> None:
    session = collide(repo, *BOTH_WROTE)

    session.rebase(solver)
    session.commit("ours")

    assert contents(repo, "/a") == expected


def test_rebase_fails_with_version_selection_fail(repo: Repository) -> None:
    assert conflicts(collide(repo, *BOTH_WROTE), FAIL) == [(T.ChunkDoubleUpdate, "/a", [[2]])]


def test_their_chunk_outside_our_shape_cannot_be_chosen(repo: Repository) -> None:
    session = collide(repo, [Write("/a", (5,))], [Erase("/a", (5,)), resize("/a", 4)])

    assert conflicts(session, USE_THEIRS) == [(T.ChunkDoubleUpdate, "/a", [[5]])]
    assert conflicts(session, USE_OURS) == []


@pytest.mark.parametrize(
    "theirs", [[Write("/g/c", (1,))], [SetAttribute("/g/c", 1)], [SetAttribute("/g", 1)]]
)
def test_updated_node_is_deleted_unless_configured_otherwise(repo: Repository, theirs: list[Edit]) -> None:
    session = collide(repo, theirs, [Delete("/g")])

    assert len(conflicts(session, FAIL)) == 1
    assert conflicts(session, USE_OURS) == []
    session.commit("ours")
    assert paths(repo) == ["/", "/a", "/b"]


def test_array_whose_changes_an_earlier_rebase_dropped_does_not_conflict(repo: Repository) -> None:
    gave_way = collide(repo, [Write("/a", (1,))], [Write("/a", (1,)), Write("/b", (1,))])
    deletes = repo.writable_session("main")
    make(deletes, [Delete("/a")])

    gave_way.commit("theirs", rebase_with=USE_THEIRS)

    assert conflicts(deletes) == []


def test_one_unsolved_conflict_leaves_the_session_unchanged(repo: Repository) -> None:
    session = collide(
        repo,
        [Write("/a", (1,), b"t"), SetAttribute("/b", 1)],
        [Write("/a", (1,), b"o"), SetAttribute("/b", 2)],
    )

    found = conflicts(session, USE_THEIRS)

    assert found == [(T.ZarrMetadataDoubleUpdate, "/b", None), (T.ChunkDoubleUpdate, "/a", [[1]])]
    assert session.status().updated_chunks == {"/a": [[1]]}


def test_custom_solver_decides_case_by_case(repo: Repository) -> None:
    class LeaveA(ConflictSolver):
        def choose(self, conflict: Conflict) -> VersionSelection:
            return VersionSelection.UseTheirs if conflict.path == "/a" else VersionSelection.UseOurs

    session = collide(
        repo, [Write("/a", (1,), b"t"), Write("/b", (1,), b"t")], [Write("/a", (1,)), Write("/b", (1,))]
    )

    session.rebase(LeaveA())
    session.commit("ours")

    assert (contents(repo, "/a"), contents(repo, "/b")) == ("0t0000", "0w0000")


def test_invalid_solver_type_is_rejected(repo: Repository) -> None:
    session = collide(repo, *BOTH_WROTE)
    nonsense: Any = "ours"

    with pytest.raises(TypeError, match="'str' object is not an instance of 'ConflictSolver'"):
        session.rebase(nonsense)
    with pytest.raises(TypeError, match="ConflictSolver"):
        session.commit("ours", rebase_with=nonsense)


def test_default_solver_solves_nothing(repo: Repository) -> None:
    session = collide(repo, *BOTH_WROTE)
    base = session.snapshot_id

    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(ConflictSolver())

    assert [each.conflict_type for each in failed.value.conflicts] == [ConflictType.ChunkDoubleUpdate]
    assert session.snapshot_id == base
    assert session.has_uncommitted_changes


# How far it gets


def test_failed_rebase_stops_before_the_conflicting_commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,), b"o"), Write("/b", (1,), b"o")])
    good = commit(repo, Write("/a", (1,), b"t"), Write("/a", (2,), b"t"))
    bad = commit(repo, SetAttribute("/b", 1))
    commit(repo, Write("/a", (3,), b"t"))

    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(USE_THEIRS)

    assert failed.value.snapshot == bad
    assert session.snapshot_id == good
    assert session.status().updated_chunks == {"/a": [], "/b": [[1]]}


def test_commit_whose_changes_an_earlier_rebase_dropped_does_not_conflict(repo: Repository) -> None:
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,), b"o")])
    commit(repo, Write("/a", (1,), b"t"))
    tip = commit(repo, SetAttribute("/a", 1))

    session.rebase(USE_THEIRS)

    assert session.snapshot_id == tip


def test_rebase_at_the_tip_does_nothing(repo: Repository) -> None:
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,))])

    session.rebase(ConflictDetector())

    assert session.status().updated_chunks == {"/a": [[1]]}


def test_rebase_ignores_a_deleted_branch(repo: Repository) -> None:
    repo.create_branch("other", repo.lookup_branch("main"))
    session = repo.writable_session("other")
    make(session, [Write("/a", (1,))])
    repo.delete_branch("other")

    session.rebase(ConflictDetector())

    with pytest.raises(KeyError, match="other"):
        session.commit("ours", rebase_with=ConflictDetector())


def test_branch_reset_to_another_history_is_a_conflict(repo: Repository) -> None:
    start = repo.lookup_branch("main")
    commit(repo, Write("/a", (2,)))
    session = repo.writable_session("main")
    make(session, [Write("/a", (1,))])
    repo.reset_branch("main", start)
    tip = commit(repo, Write("/b", (2,)))

    with pytest.raises(RebaseFailedError) as failed:
        session.rebase(USE_OURS)

    assert [each.conflict_type for each in failed.value.conflicts] == [T.BranchHistoryReplaced]
    assert failed.value.snapshot == tip


@pytest.mark.parametrize("kind", ["readonly_session", "committed"])
def test_read_only_session_cannot_be_rebased(repo: Repository, kind: str) -> None:
    session = repo.readonly_session("main")
    if kind == "committed":
        session = repo.writable_session("main")
        session.commit("x", allow_empty=True)

    with pytest.raises(SessionStateError) as refused:
        session.rebase(ConflictDetector())

    assert refused.value.kind == "commit-not-allowed"


# Commits that rebase


def test_commit_records_its_rebase_attempts(repo: Repository) -> None:
    session = collide(repo, [Write("/a", (1,))], [Write("/a", (2,))])

    session.commit("ours", {"__icechunk": {"mine": 1}, "more": 2}, rebase_with=ConflictDetector())

    metadata = next(repo.ancestry(branch="main")).metadata
    assert metadata == {"__icechunk": {"mine": 1, "rebase_attempts": 1}, "more": 2}


def test_commit_without_rebase_records_zero_attempts(repo: Repository) -> None:
    session = repo.writable_session("main")
    make(session, [Write("/a", (2,))])

    session.commit("ours", {"__icechunk": "no dict"}, rebase_with=ConflictDetector(), rebase_tries=0)

    assert next(repo.ancestry(branch="main")).metadata == {"__icechunk": {"rebase_attempts": 0}}


def test_plain_commit_records_no_rebase_attempts(repo: Repository) -> None:
    commit(repo, Write("/a", (1,)))

    assert next(repo.ancestry(branch="main")).metadata == {}


def test_commit_without_rebase_tries_does_not_rebase(repo: Repository) -> None:
    session = collide(repo, [Write("/a", (1,))], [Write("/a", (2,))])

    with pytest.raises(ConflictError) as lost:
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=0)

    assert lost.value.kind == "commit-conflict"
    assert lost.value.actual_parent == repo.lookup_branch("main")


def test_transaction_rebases(repo: Repository) -> None:
    with repo.transaction("main", message="ours", rebase_with=ConflictDetector()) as store:
        make(store.session, [Write("/a", (2,), b"o")])
        commit(repo, Write("/a", (1,), b"t"))

    assert contents(repo, "/a") == "0to000"


def test_commit_may_be_empty_after_a_rebase(repo: Repository) -> None:
    session = collide(repo, [Write("/a", (1,), b"t")], [Write("/a", (1,), b"o")])

    session.commit("ours", rebase_with=USE_THEIRS)

    assert contents(repo, "/a") == "0t0000"


# Manifests that are kept


def manifests(repo: Repository) -> set[str]:
    return {info.key for info in repo.storage.list_prefix("manifests/")}


def split_repository() -> Repository:
    rules: Any = {Arrays.AnyArray(): {Dimensions.Any(): 2}}
    splitting = ManifestSplittingConfig.from_dict(rules)
    return new_repository(config=RepositoryConfig(manifest=ManifestConfig(splitting=splitting)))


@pytest.mark.parametrize(
    ("theirs", "rewritten"),
    [
        pytest.param(Write("/b", (0,), b"t"), 0, id="another-array"),
        pytest.param(Write("/a", (5,), b"t"), 0, id="another-window"),
        pytest.param(Write("/a", (1,), b"t"), 1, id="one-window-of-two"),
    ],
)
def test_manifests_of_unchanged_windows_are_reused(theirs: Edit, rewritten: int) -> None:
    repo = split_repository()
    session = repo.writable_session("main")
    make(session, [Write("/a", (0,), b"o"), Write("/a", (2,), b"o")])
    commit_in_between(session, repo, theirs)
    before = manifests(repo)

    session.rebase(ConflictDetector())
    session.commit("ours")

    assert len(manifests(repo) - before) == rewritten
    assert contents(repo, "/a")[0] == contents(repo, "/a")[2] == "o"


def commit_in_between(session: Session, repo: Repository, theirs: Edit) -> None:
    """Let another commit win the race after all files of the session's commit were written."""
    advance = session._refs.advance

    def late(*arguments: Any) -> None:
        commit(repo, theirs)
        advance(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_refs", Late(session._refs, late))
        with pytest.raises(ConflictError):
            session.commit("ours")


class Late:
    """A ref store whose `advance` is replaced."""

    def __init__(self, refs: Any, advance: Any) -> None:
        self._refs, self.advance = refs, advance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._refs, name)
