"""Comparisons of any two versions, checked against a comparison of all references."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, Session
from icefloe.comparison.array_references import CHUNK_KINDS
from tests.support.random_history import RandomHistory


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def spec_version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def every_reference(session: Session) -> dict[str, tuple[Any, dict[tuple[int, ...], Any]]]:
    """Return the metadata and all references by path, looked up one by one."""
    workspace = session._workspace
    found = {}
    for path in workspace.paths():
        node = workspace.node(path)
        assert node is not None
        refs: dict[tuple[int, ...], Any] = {}
        for at in range(8):
            if path not in ("/", "/g") and (ref := workspace.ref(node, (at,))) is not None:
                refs[at,] = ref
        found[path] = (node.user_data, refs)
    return found


def chunks_apart(one: Session, other: Session) -> dict[str, dict[str, set[tuple[int, ...]]]]:
    before, after = every_reference(one), every_reference(other)
    found = {}
    for path in before.keys() | after.keys():
        old, new = (side.get(path, (b"", {}))[1] for side in (before, after))
        parts = {
            "added": set(new) - set(old),
            "removed": set(old) - set(new),
            "changed": {at for at in set(old) & set(new) if old[at] != new[at]},
        }
        if any(parts.values()):
            found[path] = parts
    return found


def as_sets(found: icefloe.Comparison) -> dict[str, dict[str, set[tuple[int, ...]]]]:
    return {
        path: {
            name: set(map(tuple, getattr(each, name).tolist())) for name in ("added", "removed", "changed")
        }
        for path, each in found.chunks.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_version_comparison_equals_a_comparison_of_all_references(spec_version: int, seed: int) -> None:
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    history = RandomHistory(repo, seed)
    for _ in range(10):
        history.step()
    sessions = {id: repo.readonly_session(snapshot_id=id) for id in history.commits}

    for one, other in permutations(history.random.sample(history.commits, 6), 2):
        found = icefloe.compare(sessions[one], sessions[other])

        before, after = every_reference(sessions[one]), every_reference(sessions[other])
        assert as_sets(found) == chunks_apart(sessions[one], sessions[other])
        assert {*found.new_arrays, *found.new_groups} == after.keys() - before.keys()
        assert {*found.deleted_arrays, *found.deleted_groups} == before.keys() - after.keys()
        both = before.keys() & after.keys()
        updated = {path for path in both if before[path][0] != after[path][0]}
        assert {*found.updated_arrays, *found.updated_groups} == updated


def test_equal_versions_do_not_differ(spec_version: int) -> None:
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    RandomHistory(repo, 0)

    found = icefloe.compare(repo.readonly_session("main"), repo.readonly_session("dev"))

    assert found.is_empty()
    assert found.to_diff().is_empty()


def test_moved_array_is_compared_with_its_old_path() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 5), chunks=(1,))
    before = repo.readonly_session("main")
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    session.commit("move")
    with repo.transaction("main", message="write") as store:
        zarr.open_array(store, path="b")[2] = 9

    found = icefloe.compare(before, repo.readonly_session("main"))

    assert found.moved_nodes == (("/a", "/b"),)
    assert (found.new_arrays, found.deleted_arrays) == ((), ())
    assert as_sets(found) == {"/b": {"added": set(), "removed": set(), "changed": {(2,)}}}
    assert as_sets(icefloe.compare(before, repo.readonly_session("main"), path="a")) == as_sets(found)


def test_uncommitted_changes_are_compared(spec_version: int) -> None:
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 5), chunks=(1,))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[1] = 5

    found = icefloe.compare(repo.readonly_session("main"), session)

    assert as_sets(found)["/a"]["changed"] == {(1,)}


def test_all_chunks_differ_if_the_chunk_grid_changed(spec_version: int) -> None:
    repo = Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with repo.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 5), chunks=(1,))
    before = repo.readonly_session("main")
    with repo.transaction("main", message="rechunked") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 5).reshape(2, 2), chunks=(1, 2), overwrite=True)

    found = icefloe.compare(before, repo.readonly_session("main")).chunks["/a"]

    assert not found.same_grid
    assert (len(found.removed), len(found.added), len(found.changed)) == (4, 2, 0)
    assert len(found.table()) == 2
    assert found.coords.tolist() == [[0, 0], [1, 0]]


def test_path_restricts_the_comparison() -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="data") as store:
        for name in ("a/x", "ab/x", "a/y"):
            zarr.create_array(store, name=name, data=np.ones(1))

    found = icefloe.compare(
        Repository.create(icefloe.in_memory_storage()).readonly_session("main"),
        repo.readonly_session("main"),
        path="ab",
    )

    assert found.new_arrays == ("/ab/x",)
    with pytest.raises(icefloe.NodeNotFoundError, match="/nothing in either version"):
        icefloe.compare(repo.readonly_session("main"), repo.readonly_session("main"), path="nothing")


def test_chunk_references_are_returned_as_columns(tmp_path: Any) -> None:
    file = tmp_path / "source.bin"
    file.write_bytes(bytes(100))
    config = icefloe.RepositoryConfig.default()
    prefix = f"{tmp_path.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    repo = Repository.create(
        icefloe.in_memory_storage(), config, {prefix: icefloe.credentials.LocalFileSystemAccess}
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(5, 600), chunks=(1, 600), dtype="u1", compressors=None
    )
    array[0] = 1
    session.store.set_virtual_ref("a/c/2/0", file.as_uri(), offset=3, length=40)
    session.commit("data")
    with repo.transaction("main", message="small") as store:
        zarr.create_array(store, name="small", data=np.ones(2))

    refs = icefloe.chunk_references(repo.readonly_session("main"), "a")
    small = icefloe.chunk_references(repo.readonly_session("main"), "/small")

    assert refs.grid == (5, 1)
    assert refs.coords.tolist() == [[0, 0], [2, 0]]
    assert [CHUNK_KINDS[each] for each in refs.kinds] == ["native", "virtual"]
    assert (refs.lengths.tolist(), refs.offsets.tolist()) == ([600, 40], [0, 3])
    assert (refs.locations, refs.location_codes.tolist()) == ((file.as_uri(),), [-1, 0])
    first, second = refs.table().rows()
    assert repo.storage.exists(f"chunks/{first['chunk_id']}")
    assert second["chunk_id"] is None
    assert (first["location"], second["location"]) == (None, file.as_uri())
    assert [row["kind"] for row in small.table().rows()] == ["inline"]
    assert small.lengths[0] > 0


@pytest.mark.parametrize("path", ["/", "nothing"])
def test_references_of_a_missing_array_raise_an_error(path: str) -> None:
    repo = Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="data") as store:
        zarr.create_group(store)

    with pytest.raises(icefloe.NodeNotFoundError):
        icefloe.chunk_references(repo.readonly_session("main"), path)
