"""How repositories, sessions and values about them are shown, copied and compared."""

from __future__ import annotations

import copy
import pickle
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    AncestryGraph,
    Attribution,
    ChunkType,
    Diff,
    FeatureFlag,
    GCSummary,
    ManifestFileInfo,
    RepoAvailability,
    Repository,
    RepoStatus,
    SessionMode,
    SnapshotInfo,
    SpecVersion,
    Update,
    UpdateType,
    in_memory_storage,
    local_filesystem_storage,
    s3_storage,
)
from icefloe.ancestry_graph import GraphCommit

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATUS = RepoStatus(RepoAvailability.read_only, MOMENT, "moving house")

VALUES: list[Any] = [
    SnapshotInfo("A" * 20, None, MOMENT, "first", {"n": 1}),
    ManifestFileInfo("B" * 20, 10, 3),
    Diff(new_arrays={"/a"}, updated_chunks={"/a": [[0], [1]]}),
    Update(UpdateType.NewCommit("main", "A" * 20), MOMENT, None),
    Update(UpdateType.RepoStatusChanged(STATUS), MOMENT, "repo.1"),
    UpdateType.RepoInitialized(),
    UpdateType.RepoMigrated(1, 2),
    UpdateType.FeatureFlagChanged(4, None),
    STATUS,
    FeatureFlag(4, "create_tag", True, False),
    GCSummary(bytes_deleted=3, delete_errors=["no"]),
    AncestryGraph.of([GraphCommit("A" * 20, None, 0, "first", ("main",))]),
    Attribution(client="lib/1"),
    *SpecVersion,
    *SessionMode,
    *ChunkType,
    *RepoAvailability,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__qualname__)
def test_values_can_be_pickled_copied_and_compared(value: Any) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert repr(again) == repr(value)
    assert value != object()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__qualname__)
def test_values_have_text_and_html_reprs(value: Any) -> None:
    assert repr(value)
    assert "object at 0x" not in repr(value) + str(value)
    for form in ("_repr_html_", "_repr_svg_"):
        assert getattr(value, form, lambda: "none")()


def test_enums_are_integers_displayed_by_name() -> None:
    assert (repr(SpecVersion.v1), str(SpecVersion.v2)) == ("SpecVersion.v1", "SpecVersion.v2 (current)")
    assert (str(SessionMode.readonly), f"{ChunkType.native}") == ("SessionMode.readonly", "ChunkType.native")
    assert SpecVersion(2) > SpecVersion.v1
    assert int(ChunkType.inline) == 3
    assert {RepoAvailability.online: 1}[RepoAvailability.online] == 1


def test_reprs_describe_repository_and_sessions() -> None:
    repo = Repository.create(in_memory_storage())
    writing, reading = repo.writable_session("main"), repo.readonly_session("main")

    assert repr(repo).startswith("<icefloe.Repository (v2)>\nstorage:\n")
    assert "config: <RepositoryConfig ...>" in str(repo)
    assert str(writing).splitlines() == [
        "<icefloe.session.Session>",
        "read_only: False",
        "snapshot_id: 1CECHNKREP0F1RSTCMT0",
        "branch: main",
        "has_uncommitted_changes: False",
    ]
    assert repr(reading).splitlines()[1:] == ["read_only: True", "snapshot_id: 1CECHNKREP0F1RSTCMT0"]
    for each in (repo, writing, reading):
        assert each._repr_html_().startswith('<div class="icefloe-repr">')


def test_session_shows_arrays_and_uncommitted_changes_in_notebooks() -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    attributes: Any = {"units": "K", "long_name": "<b>temperature</b>"}
    group.create_array(
        "t2m", shape=(4, 2), chunks=(1, 2), dtype="f4", dimension_names=["time", "x"], attributes=attributes
    )

    shown = session._repr_html_()

    assert "<td>t2m</td><td>time: 4, x: 2</td><td>float32</td><td>(1, 2)</td><td>K</td>" in shown
    assert "&lt;b&gt;temperature&lt;/b&gt;" in shown
    assert "read_only: False" in shown
    assert "Uncommitted changes" in shown
    assert "Uncommitted changes" not in repo.readonly_session("main")._repr_html_()


def test_verify_report_shows_its_verdict_in_notebooks() -> None:
    repo = Repository.create(in_memory_storage())

    assert "✓ intact" in repo.verify()._repr_html_()


def test_reprs_contain_no_secrets() -> None:
    secret = "abc-SECRET-xyz"
    storage = s3_storage(
        bucket="b",
        prefix="p",
        region="r",
        access_key_id=secret,
        secret_access_key=secret,
        session_token=secret,
    )

    assert secret not in repr(storage) + str(storage) + storage._repr_html_()


def test_html_is_escaped() -> None:
    info = SnapshotInfo("A" * 20, None, MOMENT, "<script>", {})
    graph = AncestryGraph.of([GraphCommit("A" * 20, None, 0, "<script>", ("<b>",))])

    assert "<script>" not in info._repr_html_()
    assert "<script>" not in Diff(new_groups={"/<script>"})._repr_html_()
    assert "<script>" not in graph._repr_svg_()


def test_diff_is_shown_as_a_list_of_changes() -> None:
    diff = Diff(
        new_groups={"/"},
        new_arrays={"/b", "/a"},
        updated_arrays={"/u"},
        deleted_groups={"/d"},
        updated_chunks={"/a": [[n] for n in range(12)]},
        moved_nodes=[("/m", "/n")],
    )

    chunks = "".join(f"        [{n}]\n" for n in range(10))
    assert str(diff) == (
        "Groups created:\n    /\n\nArrays created:\n    /a\n    /b\n\n"
        "Array definitions updated:\n    /u\n\nGroups deleted:\n    /d\n\n"
        f"Chunks updated:\n    /a:\n{chunks}        ... 2 more\nNodes moved/renamed:\n    /m -> /n\n\n"
    )
    assert str(Diff()) == ""
    assert Diff().is_empty()
    assert not diff.is_empty()


def test_update_types_have_reprs_and_a_common_base_class() -> None:
    kind = UpdateType.BranchReset(name="dev", previous_snap_id="A")

    assert repr(kind) == 'icefloe.ops.UpdateType.BranchReset(name="dev", previous_snap_id="A")'
    assert isinstance(kind, UpdateType)
    assert isinstance(kind, UpdateType.BranchReset)
    assert issubclass(UpdateType.BranchReset, UpdateType)
    assert not isinstance("dev", UpdateType)


def test_default_status_has_the_current_time_with_a_time_zone() -> None:
    before = datetime.now(UTC)

    assert before <= RepoStatus(RepoAvailability.online).set_at <= datetime.now(UTC)
    with pytest.raises(TypeError, match="tzinfo"):
        RepoStatus(RepoAvailability.online, datetime.now())
    with pytest.raises(TypeError):
        RepoStatus("online")  # type: ignore[arg-type]


# The drawn history


def test_linear_history_is_drawn_newest_first() -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="first\nwith more to say") as store:
        zarr.create_array(store, name="a", data=np.arange(3))
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)

    graph = repo.ancestry_graph(branch="main", plain=True)

    assert str(graph).splitlines() == [
        f"● {tip[:8]} (main, v1) first",
        "│",
        "● 1CECHNKR Repository initialized",
    ]
    assert "\x1b" in str(repo.ancestry_graph())
    svg = graph._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count("<circle") == 2


def test_branches_are_drawn_side_by_side() -> None:
    commits = [
        GraphCommit("root0000", None, 0, "start"),
        GraphCommit("fork0000", "root0000", 1, "fork", (), ("v1",)),
        GraphCommit("mainmain", "fork0000", 5, "m", ("main",)),
        GraphCommit("dev00000", "fork0000", 4, "d", ("dev",)),
        GraphCommit("exp00000", "root0000", 3, "e", ("exp",)),
    ]

    assert str(AncestryGraph.of(reversed(commits), plain=True)).splitlines() == [
        "●     mainmain (main) m",
        "│",
        "│ ●   dev00000 (dev) d",
        "│ │",
        "│ │ ● exp00000 (exp) e",
        "│ │ │",
        "●─╯ │ fork0000 (v1) fork",
        "│   │",
        "●───╯ root0000 start",
    ]


def test_lane_crossed_by_a_merge_continues_in_the_graph() -> None:
    commits = [
        GraphCommit("root0000", None, 0, "start"),
        GraphCommit("fork0000", "root0000", 1, "fork"),
        GraphCommit("mainmain", "fork0000", 5, "m", ("main",)),
        GraphCommit("dev00000", "root0000", 4, "d", ("dev",)),
        GraphCommit("exp00000", "fork0000", 3, "e", ("exp",)),
    ]

    lines = str(AncestryGraph.of(commits, plain=True)).splitlines()

    assert lines[6] == "●─┼─╯ fork0000 fork"
    assert lines[8] == "●─╯   root0000 start"


def test_snapshot_is_drawn_above_its_parent_despite_clock_skew() -> None:
    parent = GraphCommit("parent00", None, 9, "parent")
    child = GraphCommit("child000", "parent00", 1, "child", ("main",))

    assert [commit.id for commit in AncestryGraph.of([parent, child]).commits] == ["child000", "parent00"]


def test_long_messages_are_truncated() -> None:
    graph = AncestryGraph.of([GraphCommit("A" * 20, None, 0, "x" * 100)], plain=True)

    assert str(graph) == f"● AAAAAAAA {'x' * 57}..."


def test_both_parents_of_a_merge_are_drawn() -> None:
    repo = _repository_with_dev()
    root = repo.lookup_branch("main")
    ours, theirs = (_commit(repo, branch) for branch in ("main", "dev"))
    merged = repo.merge("dev", "main", message="bring dev in").snapshot_id
    assert merged is not None

    graph = repo.ancestry_graph(branch="main", plain=True)

    assert str(graph).splitlines() == [
        f"●─╮ {merged[:8]} (main) bring dev in",
        "│ │",
        f"│ ● {theirs[:8]} (dev) dev",
        "│ │",
        f"● │ {ours[:8]} main",
        "│ │",
        f"●─╯ {root[:8]} start",
        "│",
        "●   1CECHNKR Repository initialized",
    ]
    assert graph._repr_svg_().count("<path") == 2


def test_merged_branch_that_was_deleted_is_drawn() -> None:
    repo = _repository_with_dev()
    _commit(repo, "main")
    theirs = _commit(repo, "dev")
    repo.merge("dev", "main", message="bring dev in")
    repo.delete_branch("dev")

    assert theirs in [commit.id for commit in repo.ancestry_graph().commits]


def _repository_with_dev() -> Repository:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="start") as store:
        zarr.create_group(store)
    repo.create_branch("dev", repo.lookup_branch("main"))
    return repo


def _commit(repo: Repository, branch: str) -> str:
    with repo.transaction(branch, message=branch) as store:
        zarr.create_array(store, name=branch, data=np.arange(3))
    return repo.lookup_branch(branch)


def test_merges_of_a_continued_branch_have_their_own_lanes() -> None:
    commits = [
        GraphCommit("root0000", None, 0, "start"),
        GraphCommit("dev00001", "root0000", 1, "d1"),
        GraphCommit("main0001", "root0000", 2, "merge", merged_ids=("dev00001",)),
        GraphCommit("dev00002", "dev00001", 3, "d2"),
        GraphCommit("main0002", "main0001", 4, "merge again", ("main",), merged_ids=("dev00002",)),
        GraphCommit("dev00003", "dev00002", 5, "d3, merges main", ("dev",), merged_ids=("main0001",)),
    ]

    assert str(AncestryGraph.of(commits, plain=True)).splitlines() == [
        "  ●─╮   dev00003 (dev) d3, merges main",
        "  │ │",
        "●─┼─┼─╮ main0002 (main) merge again",
        "│ │ │ │",
        "│ ●─┼─╯ dev00002 d2",
        "│ │ │",
        "●─┼─┴─╮ main0001 merge",
        "│ │   │",
        "│ ●───╯ dev00001 d1",
        "│ │",
        "●─╯     root0000 start",
    ]


def test_columns_of_the_graph_are_reused() -> None:
    commits = [GraphCommit("c0", None, 0, "")]
    for number in range(1, 50):
        commits += [
            GraphCommit(f"d{number}", f"c{number - 1}", 3 * number, ""),
            GraphCommit(f"c{number}", f"c{number - 1}", 3 * number + 1, "", merged_ids=(f"d{number}",)),
        ]

    lines = str(AncestryGraph.of(commits, plain=True)).splitlines()

    assert lines[:9] == [
        *("●─╮   c49", "│ │", "│ ●   d49", "│ │", "●─┴─╮ c48"),
        *("│   │", "│   ● d48", "│   │", "●─┬─╯ c47"),
    ]
    assert {len(line) for line in lines[::2]} == {len("●─╮   c49"), len("●─╮   c9")}


def test_invalid_merge_metadata_is_ignored() -> None:
    commits = [
        GraphCommit("old", None, 0, "", merged_ids=("new", "old", "elsewhere")),
        GraphCommit("new", "old", 1, "", ("main",), merged_ids=("old",)),
    ]

    assert str(AncestryGraph.of(commits, plain=True)).splitlines() == ["● new (main)", "│", "● old"]


# A repository in notebooks


def test_repository_html_contains_its_overview() -> None:
    repo = _repository_with_dev()
    repo.create_tag("v<1>", repo.lookup_branch("main"))
    _commit(repo, "main")

    shown = repo._repr_html_()

    for name, value in {
        "storage": "in-memory",
        "format": "version 2",
        "status": "online",
        "branches": "dev, main",
        "tags": "v&lt;1&gt;",
        "commits on main": "3",
        "latest commit": "main",
    }.items():
        assert f"<tr><th>{name}</th><td>{value}</td></tr>" in shown
    assert "<th>committed at</th><td>20" in shown
    assert "Newest commits<span>(3)</span>" in shown
    for forbidden in ("http", "<script", "<link", "<img", "url("):
        assert forbidden not in shown


@pytest.mark.parametrize("spec_version", [1, 2])
def test_repository_html_is_limited_for_long_histories(
    spec_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.history.overview._MAX_COMMITS", 2)
    monkeypatch.setattr("icefloe.history.overview._MAX_COMMIT_FILES", 2)
    monkeypatch.setattr("icefloe._internal.html._MAX_NAMES", 1)
    repo = Repository.create(in_memory_storage(), spec_version=spec_version)
    for name in ("a", "b"):
        with repo.transaction("main", message=name) as store:
            zarr.create_array(store, name=name, data=np.arange(3))
        repo.create_branch(name, repo.lookup_branch("main"))

    shown = repo._repr_html_()

    assert "<th>commits on main</th><td>2 or more</td>" in shown
    assert "<th>branches</th><td>a and 2 more</td>" in shown
    assert f"format version {spec_version}" in shown


def test_repository_html_reports_missing_storage(tmp_path: Path) -> None:
    repo = Repository.create(local_filesystem_storage(str(tmp_path / "<repo>")))
    shutil.rmtree(tmp_path / "<repo>")

    shown = repo._repr_html_()

    assert "not readable" in shown
    assert "&lt;repo&gt;" in shown
    assert "<repo>" not in shown
