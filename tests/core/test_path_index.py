"""The index of paths answers like a sorted list, and is not rebuilt for each created or deleted node."""

from __future__ import annotations

from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.core import path_index, workspace

_NAMES = st.sampled_from(["a", "a-b", "b", "c"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
_GROUP = b'{"zarr_format":3,"node_type":"group"}'


@given(base=st.sets(_PATHS), steps=st.lists(st.tuples(st.booleans(), st.booleans(), _PATHS), max_size=12))
def test_path_index_agrees_with_a_list_of_paths(base: set[str], steps: list[tuple[bool, bool, str]]) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="base") as store:
        zarr.create_group(store)
        for path in sorted(base):
            store.session._workspace.set_metadata(path, _GROUP)
    tree = repo.writable_session("main")._workspace
    model = {"/", *base}
    for creates, lists, path in steps:
        if creates:
            tree.set_metadata(path, _GROUP)
            model.add(path)
        else:
            tree.delete_node(path)
            model -= {each for each in model if each == path or each.startswith(path + "/")}
        if lists:
            assert list(tree.paths()) == sorted(model)
        below = {each for each in model if each.startswith(path + "/")}
        assert tree.has_nodes_below(path) == bool(below)
        assert tree.below(path) == sorted(below | ({path} & model))
        assert tree.has_nodes_below("/") == bool(model - {"/"})
    assert list(tree.paths()) == sorted(model)


def test_deleting_and_creating_arrays_does_not_list_all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = Repository.create(in_memory_storage())
    with repo.transaction("main", message="arrays") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")
        document = store.session._workspace.array("/a").user_data
        for number in range(20):
            store.session._workspace.set_metadata(f"/g/{number}", document)
    tree = repo.writable_session("main")._workspace
    builds: list[Any] = []

    def build(*given: Any) -> path_index.PathIndex:
        builds.append(given)
        return path_index.PathIndex(*given)

    monkeypatch.setattr(workspace, "PathIndex", build)
    monkeypatch.setattr(path_index, "_list_paths", lambda *_: pytest.fail("all paths were listed"))

    for number in range(20):
        tree.delete_node(f"/g/{number}")
        tree.set_metadata(f"/h/{number}", document)

    assert len(builds) == 1
