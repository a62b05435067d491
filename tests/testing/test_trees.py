"""Drawn trees and moves: sessions accept the valid ones and reject the others."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.sync import sync

import icefloe
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID
from icefloe.testing import invariants, trees
from icefloe.testing.models import SMALL_ARRAY, GroupNode, ModelStore
from icefloe.testing.strategies import draw_older_than, repository_configs, splitting_configs
from icefloe.testing.utils import (
    precommit_postcommit_readonly,
    tree_to_model_and_icechunk,
    update_paths_after_move,
)

TREE = GroupNode.from_paths(arrays={"/a/x", "/b"}, groups={"/q/r"})


def test_tree_lists_its_paths() -> None:
    assert TREE.nodes(include_root=True) == ["", "a", "a/x", "b", "q", "q/r"]
    assert TREE.groups("p", include_root=True) == ["p", "p/a", "p/q", "p/q/r"]
    assert TREE.arrays() == ["a/x", "b"]
    assert GroupNode.from_dict({"a": {"x": SMALL_ARRAY}, "b": SMALL_ARRAY, "q": {"r": {}}}) == TREE


@pytest.mark.parametrize(
    ("arrays", "groups", "words"),
    [
        ({"a"}, set(), "absolute"),
        ({"/a", "/a/b"}, set(), "below an array"),
        ({"/a"}, {"/a"}, "both a group and an array"),
    ],
)
def test_invalid_paths_of_a_tree_are_rejected(arrays: set[str], groups: set[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GroupNode.from_paths(arrays, groups)


@given(trees.trees())
def test_tree_round_trips_through_every_store(tree: GroupNode) -> None:
    model, session, repo = tree_to_model_and_icechunk(tree)

    assert GroupNode.from_store(model) == tree
    for _, store in precommit_postcommit_readonly(session, repo):
        assert GroupNode.from_store(store) == tree
        sync(invariants.compare_list_dir(model, store, tree.nodes(include_root=True)))


@given(trees.tree_and_mixed_moves())
def test_valid_moves_are_accepted_and_invalid_moves_rejected(
    case: tuple[GroupNode, list[trees.MixedMove]],
) -> None:
    tree, moves = case
    model, session, repo = tree_to_model_and_icechunk(tree)
    session.commit("the tree")

    session = repo.rearrange_session("main")
    for source, dest, error in moves:
        if error is None:
            sync(model.move(source, dest))
            session.move(source, dest)
        else:
            with pytest.raises(icefloe.IcechunkError, match=trees.wrap_tolerant(error)):
                session.move(source, dest)

    for _, store in precommit_postcommit_readonly(session, repo, allow_empty=True):
        assert GroupNode.from_store(store) == GroupNode.from_store(model)


@given(trees.trees().flatmap(lambda tree: st.tuples(st.just(tree), trees.valid_moves(tree))))
def test_paths_follow_the_moves_of_a_model(case: tuple[GroupNode, list[tuple[str, str]]]) -> None:
    tree, moves = case
    model = ModelStore()
    tree.materialize(model)
    arrays, groups = set(tree.arrays()), set(tree.groups())

    for source, dest in moves:
        sync(model.move(source, dest))
        arrays, groups = update_paths_after_move(source.strip("/"), dest.strip("/"), arrays, groups)

    found = GroupNode.from_store(model)
    assert (set(found.arrays()), set(found.groups())) == (arrays, groups)


def test_model_rejects_relative_paths() -> None:
    with pytest.raises(ValueError, match="absolute"):
        sync(ModelStore().move("a", "/b"))


@pytest.mark.parametrize(("offset", "first"), [((1,), 0), ((-1,), 2), ((5,), 0), ((0,), 1)])
def test_model_shifts_chunks_as_a_session_does(offset: tuple[int, ...], first: int) -> None:
    model = ModelStore()
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    both = [
        zarr.create_array(s, name="a", shape=(5,), chunks=(1,), dtype="i1") for s in (model, session.store)
    ]
    for array in both:
        array[:4] = [1, 2, 3, 4]

    before = sync(model.copy())
    sync(model.shift_array("a", offset, (5,)))
    session.shift_array("/a", offset)

    np.testing.assert_array_equal(both[0][:], both[1][:])
    assert both[0][0] == first
    np.testing.assert_array_equal(zarr.open_array(before, path="a")[:], [1, 2, 3, 4, 0])


def test_path_relations_are_recognized() -> None:
    assert trees.child_names_at("foo", {"foo/a", "foo/b/c", "foobar/d"}) == {"a", "b"}
    assert trees.child_names_at("", {"foo", "bar/baz"}) == {"foo", "bar"}
    assert trees.is_descendant("a/b", "a")
    assert trees.is_descendant("a", "")
    assert not trees.is_descendant("ab", "a")
    assert not trees.is_descendant("a", "a")
    assert [trees.absolute(path) for path in ("", "a/b")] == ["/", "/a/b"]


def _snapshot(id_: str, parent_id: str | None, second: int) -> Any:
    written_at = datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.UTC)
    return SimpleNamespace(id=id_, parent_id=parent_id, written_at=written_at)


INITIAL = _snapshot(str(INITIAL_SNAPSHOT_ID), None, 0)


@pytest.mark.parametrize(
    ("ancestry", "words"),
    [
        ([], "empty"),
        ([_snapshot("b", INITIAL.id, 0), INITIAL], "newer"),
        ([_snapshot("b", None, 1), INITIAL], "no parent"),
        ([_snapshot("b", "b", 2), _snapshot("b", INITIAL.id, 1), INITIAL], "occurs twice"),
        ([_snapshot("b", "a", 1)], "has the parent a"),
        ([_snapshot("b", None, 1)], "not at the initial"),
        ([_snapshot("c", INITIAL.id, 1), INITIAL], "unknown snapshots"),
    ],
)
def test_invalid_ancestries_are_detected(ancestry: list[Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        invariants.assert_ancestry_invariants(ancestry, {"a", "b", INITIAL.id})


def test_expired_ancestry_may_end_anywhere() -> None:
    invariants.assert_ancestry_invariants([_snapshot("b", None, 1)], must_contain_initial=False)


def test_moves_are_sorted_segment_by_segment() -> None:
    invariants.assert_moves_sorted_by_final_path([("/x", "/a"), ("/y", "/a/b"), ("/z", "/a-b")])
    with pytest.raises(AssertionError, match="not sorted"):
        invariants.assert_moves_sorted_by_final_path([("/x", "/b"), ("/y", "/a")])


@given(st.data())
def test_generated_configurations_can_be_stored(data: st.DataObject) -> None:
    arrays = [
        zarr.create_array({}, name=f"g/{i}", shape=shape, dtype="i1", dimension_names=names)
        for i, (shape, names) in enumerate([((3, 4), ("t", None)), ((5,), None), ((), None)])
    ]
    config = data.draw(
        repository_configs(
            inline_chunk_threshold_bytes=st.just(0), splitting=splitting_configs(arrays=arrays)
        )
    )
    storage = icefloe.in_memory_storage()

    icefloe.Repository.create(storage, config=config).save_config()

    stored = icefloe.Repository.fetch_config(storage)
    assert stored is not None
    assert stored.manifest == config.manifest
    assert stored.num_updates_per_repo_info_file in range(1, 6)


@given(st.data())
def test_generated_times_fall_between_snapshots(data: st.DataObject) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage)
    for i in range(3):
        with repo.transaction("main", message=str(i)) as store:
            zarr.create_group(store, path=str(i))
    written = [snapshot.written_at for snapshot in repo.ancestry(branch="main")]

    older_than = draw_older_than(data, storage, repo)

    later = [time for time in written if time >= older_than]
    assert len(repo.expire_snapshots(older_than)) == max(0, len(written) - max(len(later), 1) - 1)
