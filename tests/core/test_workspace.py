"""The hierarchy of a snapshot and its changes: lookups and listings."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given, settings

from icefloe.config import (
    CompressionConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    RepositoryConfig,
)
from icefloe.config.repository import ManifestConfig, ManifestSplittingConfig
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.format.manifest import InlineRef
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from tests.support.zarr_documents import GROUP, array_document


def new_session(**config: Any) -> Any:
    return Repository.create(in_memory_storage(), RepositoryConfig(**config)).writable_session("main")


def splitting(size: int) -> ManifestConfig:
    rules: Any = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    return ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))


@settings(max_examples=30)
@given(
    grid=st.lists(st.integers(1, 4), max_size=3),
    split=st.integers(1, 5),
    data=st.data(),
)
def test_each_chunk_is_found_in_repeated_lookups(grid: list[int], split: int, data: st.DataObject) -> None:
    session = new_session(manifest=splitting(split))
    places = list(np.ndindex(*grid))
    written = data.draw(st.sets(st.sampled_from(places)))
    session._workspace.set_metadata("/a", array_document(grid))
    for place in sorted(written):
        session._workspace.write("/a", place, repr(place).encode())
    session.commit("written")
    workspace: Workspace = session._workspace
    node = workspace.array("/a")

    for _ in range(3):  # by the packed manifests at first, then by columns
        for place in places:
            expected = InlineRef(repr(place).encode()) if place in written else None
            assert workspace.ref(node, place) == expected

    assert {tuple(row) for row in workspace.chunk_coords(node).tolist()} == written


def test_negative_coordinates_have_no_chunk() -> None:
    session = new_session()
    session._workspace.set_metadata("/a", array_document([2]))
    workspace: Workspace = session._workspace
    node = workspace.array("/a")
    workspace.delete_chunks(node, np.array([[1]], np.uint32))

    assert workspace.ref(node, (-1,)) is None
    with pytest.raises(IcechunkError, match="outside the chunk grid"):
        workspace.write("/a", (-1,), b"x")


def test_metadata_can_be_written_at_every_compression_level() -> None:
    session = new_session(compression=CompressionConfig(level=100))
    session._workspace.set_metadata("/", GROUP)

    assert session.commit("at the highest level there is")


def test_references_to_a_hundred_manifests_are_distinguished() -> None:
    session = new_session(manifest=splitting(1))
    values = np.arange(100).reshape(10, 10)
    zarr.create_array(session.store, name="a", data=values, chunks=(1, 1), fill_value=-1)
    session.commit("a manifest per chunk")

    assert len(session._workspace.array("/a").node_data.manifests) == 100
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a", mode="r")[...], values)


paths = st.lists(st.sampled_from(["a", "a-b", "ab", "b", "0"]), min_size=1, max_size=3).map(
    lambda names: "/" + "/".join(names)
)


@settings(max_examples=30)
@given(steps=st.lists(st.tuples(st.sampled_from(["create", "delete", "commit", "discard"]), paths)))
def test_listings_follow_every_change(steps: list[tuple[str, str]]) -> None:
    repo = Repository.create(in_memory_storage())
    session, committed, expected = repo.writable_session("main"), set[str](), set[str]()
    for verb, path in steps:
        workspace = session._workspace
        match verb:
            case "create":
                workspace.set_metadata(path, GROUP)
                expected.add(path)
            case "delete":
                workspace.delete_node(path)
                expected = {known for known in expected if known != path and not known.startswith(path + "/")}
            case "commit":
                session.commit("so far", allow_empty=True)
                session, committed = repo.writable_session("main"), set(expected)
            case "discard":
                session.discard_changes()
                expected = set(committed)
        workspace = session._workspace

        assert list(workspace.paths()) == sorted(expected)
        below = [known for known in sorted(expected) if known.startswith(path + "/")]
        assert workspace.below(path) == [path] * (path in expected) + below
        assert workspace.has_nodes_below(path) == bool(below)
        assert workspace.children(path) == sorted({known[len(path) + 1 :].split("/")[0] for known in below})


def test_recreated_node_is_listed() -> None:
    session = new_session()
    session._workspace.set_metadata("/g", GROUP)
    session.commit("group")
    again = Workspace(session._workspace.base, session._workspace.assets)

    again.delete_node("/g")
    again.changes = again.changes.copy()
    again.set_metadata("/g", GROUP)

    assert list(again.paths()) == ["/g"]


def test_array_with_chunks_keeps_its_number_of_dimensions() -> None:
    workspace = new_session()._workspace
    workspace.set_metadata("/a", array_document((2, 2)))
    workspace.write("/a", (1, 1), b"1")

    with pytest.raises(IcechunkError, match="delete it before") as error:
        workspace.set_metadata("/a", array_document((2,)))

    assert error.value.kind == "bad-metadata"
    workspace.delete_chunk(workspace.array("/a"), (1, 1))
    workspace.set_metadata("/a", array_document((2,)))
    workspace.write("/a", (1,), b"1")
    assert workspace.chunk_coords(workspace.array("/a")).tolist() == [[1]]


def test_chunk_of_a_concurrently_deleted_array_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace: Workspace = new_session()._workspace
    workspace.set_metadata("/a", array_document((2,)))
    write_chunk = workspace.assets.write_chunk

    def slow(data: Any) -> Any:
        workspace.delete_node("/a")
        workspace.set_metadata("/a", array_document((2,)))
        return write_chunk(data)

    monkeypatch.setattr(workspace.assets, "write_chunk", slow)

    with pytest.raises(IcechunkError, match="was deleted while") as error:
        workspace.write("/a", (0,), bytes(1000))

    assert error.value.kind == "node-not-found"
    assert workspace.ref(workspace.array("/a"), (0,)) is None


@pytest.mark.parametrize("path", ["/", "/a", "/a/b"])
def test_deleted_and_recreated_node_is_listed_once(path: str) -> None:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    for each in ("/", "/a", "/a/b"):
        session._workspace.set_metadata(each, GROUP)
    session.commit("three groups")
    workspace: Workspace = repo.writable_session("main")._workspace

    workspace.delete_node(path)
    workspace.set_metadata(path, GROUP)

    assert path in workspace.paths()
    assert workspace.below(path) == [path]
