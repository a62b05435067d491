"""Invalid keys, documents, chunks and ranges raise the official type and kind of error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import (
    AlreadyExistsError,
    IcechunkError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.store import IcechunkStore
from tests.support.zarr_documents import GROUP, array_document, buffer

PROTOTYPE = default_buffer_prototype()


@pytest.fixture
def repo() -> Repository:
    return Repository.create(in_memory_storage())


@pytest.fixture
def store(repo: Repository) -> IcechunkStore:
    store = repo.writable_session("main").store
    store.set_sync("zarr.json", buffer(GROUP))
    store.set_sync("g/zarr.json", buffer(GROUP))
    store.set_sync("a/zarr.json", buffer(array_document((4, 4), (2, 2))))
    store.set_sync("a/c/0/0", buffer(b"0123456789"))
    store.set_sync("a/c/0/1", buffer(b"0123456789" * 100))
    return store


def refusal(call: Callable[[], Any]) -> tuple[type[IcechunkError], str]:
    """Return the type and kind of the error that a call raises."""
    with pytest.raises(IcechunkError) as error:
        call()
    assert len(str(error.value)) > 10
    return type(error.value), error.value.kind


def waiting(call: Callable[[], Any]) -> Callable[[], Any]:
    async def run() -> Any:
        return await call()

    return lambda: asyncio.run(run())


@pytest.mark.parametrize("key", ["abc", "abc/0/0", "a/c/x", "a/c/0.0", "a/0/0", "", "a/../zarr.json"])
def test_invalid_keys_are_rejected(store: IcechunkStore, key: str) -> None:
    """`abc/0/0` is taken for a chunk of the array `ab` by the official package (bug 14)."""
    expected = (InvalidInputError, "invalid-key")

    assert refusal(lambda: store.get_sync(key)) == expected
    assert refusal(lambda: store.set_sync(key, buffer(b"1"))) == expected
    assert refusal(lambda: store.delete_sync(key)) == expected
    assert refusal(waiting(lambda: store.get(key, PROTOTYPE))) == expected
    assert refusal(waiting(lambda: store.exists(key))) == expected
    assert refusal(waiting(lambda: store.getsize(key))) == expected


@pytest.mark.parametrize("key", [".zgroup", ".zarray", "a/.zattrs", "g/.zmetadata"])
def test_keys_of_zarr_version_2_are_absent(store: IcechunkStore, key: str) -> None:
    """`exists` raises in the official package (bug 14)."""
    assert store.get_sync(key) is None
    assert not asyncio.run(store.exists(key))
    store.delete_sync(key)
    assert refusal(lambda: store.set_sync(key, buffer(b"{}"))) == (SessionStateError, "unimplemented")


@pytest.mark.parametrize("key", ["a/c/9/9", "a/c/2/0", "a/c/0", "a/c", "a/c/0/0/0"])
def test_chunks_outside_the_grid_are_rejected(store: IcechunkStore, key: str) -> None:
    """A wrong number of coordinates is stored by the official package, its size is 0 (bugs 13, 14)."""
    assert store.get_sync(key) is None
    assert not asyncio.run(store.exists(key))
    store.delete_sync(key)
    assert refusal(lambda: store.set_sync(key, buffer(b"1"))) == (InvalidInputError, "invalid-chunk-index")
    with pytest.raises(NodeNotFoundError) as error:
        asyncio.run(store.getsize(key))
    assert error.value.kind == "key-not-found"
    assert isinstance(error.value, FileNotFoundError)


def test_chunks_of_groups_are_rejected(store: IcechunkStore) -> None:
    expected = (InvalidInputError, "not-an-array")

    assert refusal(lambda: store.get_sync("g/c/0")) == expected
    assert refusal(lambda: store.set_sync("g/c/0", buffer(b"1"))) == expected
    assert refusal(waiting(lambda: store.exists("g/c/0"))) == expected
    store.delete_sync("g/c/0")
    assert store.get_sync("nowhere/c/0") is None
    nowhere = refusal(lambda: store.set_sync("nowhere/c/0", buffer(b"1")))
    assert nowhere == (NodeNotFoundError, "node-not-found")


def test_empty_chunks_and_non_buffers_are_rejected(store: IcechunkStore) -> None:
    assert refusal(lambda: store.set_sync("a/c/0/0", buffer(b""))) == (InvalidInputError, "zero-length-chunk")
    with pytest.raises(TypeError, match="must be a Buffer instance"):
        asyncio.run(store.set("a/c/0/0", b"bytes"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a Buffer instance"):
        store.set_sync("a/zarr.json", b"{}")  # type: ignore[arg-type]


RECTILINEAR = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 1]]}}

BAD_DOCUMENTS: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "UTF-16": json.dumps({"node_type": "group"}).encode("utf-16"),
    "no text": b"\xff\xfe\xfd",
    "a list": b"[]",
    "no node_type": b"{}",
    "unknown node_type": b'{"node_type":"table"}',
    "no shape": b'{"node_type":"array"}',
    "text for a shape": b'{"node_type":"array","shape":"4"}',
    "negative shape": array_document((-1,), (2,)),
    "huge shape": array_document((2**64,), (2,)),
    "fractional shape": array_document((1.5,), (2,)),  # type: ignore[arg-type]
    "true for a length": array_document((True,), (2,)),
    "chunk_shape too long": array_document((4,), (2, 2)),
    "chunk_shape too short": array_document((4, 4), (2,)),
    "chunks of nothing": array_document((4,), (0,)),
    "no grid": array_document((4,), (2,), chunk_grid=None),
    "unknown grid": array_document((4,), (2,), chunk_grid={"name": "hex", "configuration": {}}),
    "grid without configuration": array_document((4,), (2,), chunk_grid={"name": "regular"}),
    "too many chunks": array_document((2**40,), (1,)),
    "too many names": array_document((4,), (2,), dimension_names=["x", "y"]),
    "edges that do not reach": array_document((4,), (2,), chunk_grid=RECTILINEAR),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_invalid_metadata_documents_are_rejected(store: IcechunkStore, name: str) -> None:
    """A chunk_shape longer than the shape is accepted by the official package (bug 13)."""
    value = buffer(BAD_DOCUMENTS[name])

    assert refusal(lambda: store.set_sync("x/zarr.json", value)) == (InvalidInputError, "bad-metadata")
    assert store.get_sync("x/zarr.json") is None


def test_node_of_another_type_at_the_same_path_is_rejected(store: IcechunkStore) -> None:
    taken = (AlreadyExistsError, "node-already-exists")

    assert refusal(lambda: store.set_sync("a/zarr.json", buffer(GROUP))) == taken
    assert refusal(lambda: store.set_sync("g/zarr.json", buffer(array_document((2,))))) == taken


def test_nodes_inside_arrays_are_rejected(store: IcechunkStore) -> None:
    """The official package puts nodes inside arrays (bug 13)."""
    assert refusal(lambda: store.set_sync("a/b/zarr.json", buffer(GROUP))) == (
        InvalidInputError,
        "not-a-group",
    )
    assert refusal(lambda: store.set_sync("a/c/d/zarr.json", buffer(GROUP)))[1] == "not-a-group"
    store.set_sync("implied/b/zarr.json", buffer(GROUP))
    late = refusal(lambda: store.set_sync("implied/zarr.json", buffer(array_document((2,)))))
    assert late == (AlreadyExistsError, "node-already-exists")


def test_parents_may_be_missing(store: IcechunkStore) -> None:
    """Zarr writes a node and its parents concurrently, so that a parent may come last, or never."""
    store.set_sync("x/y/zarr.json", buffer(GROUP))

    assert list(store.list_dir("x")) == ["y"]
    assert not asyncio.run(store.exists("x/zarr.json"))
    store.session.commit("a group without a parent")
    assert list(store.list_prefix("x")) == ["x/y/zarr.json"]


def test_invalid_prefixes_are_rejected(store: IcechunkStore) -> None:
    expected = (InvalidInputError, "bad-key-prefix")

    assert refusal(lambda: list(store.list_prefix("a/../b"))) == expected
    assert refusal(waiting(lambda: store.delete_dir("a/../b"))) == expected
    assert list(store.list_prefix("nowhere")) == []


@pytest.mark.parametrize("key", ["a/zarr.json", "a/c/0/0", "a/c/0/1"], ids=["document", "inline", "native"])
def test_ranges_are_clipped_and_invalid_ones_refused(store: IcechunkStore, key: str) -> None:
    """Wrong suffixes and panics on documents, errors past the end of chunks (bug 7)."""
    found = store.get_sync(key)
    assert found is not None
    whole = found.to_bytes()
    size = len(whole)

    def part(request: Any) -> bytes:
        value = store.get_sync(key, byte_range=request)
        assert value is not None
        return value.to_bytes()

    assert part(SuffixByteRequest(3)) == whole[-3:]
    assert part(SuffixByteRequest(0)) == b""
    assert part(SuffixByteRequest(size + 1)) == whole
    assert part(OffsetByteRequest(4)) == whole[4:]
    assert part(OffsetByteRequest(size)) == part(OffsetByteRequest(size + 5)) == b""
    assert part(RangeByteRequest(2, 5)) == whole[2:5]
    assert part(RangeByteRequest(2, size + 9)) == whole[2:]
    assert part(RangeByteRequest(3, 3)) == part(RangeByteRequest(size + 1, size + 2)) == b""
    for request in (
        RangeByteRequest(5, 2),
        RangeByteRequest(-1, 2),
        OffsetByteRequest(-1),
        SuffixByteRequest(-1),
    ):
        assert refusal(partial(part, request)) == (InvalidInputError, "invalid-byte-range")


def test_read_only_stores_reject_writes(repo: Repository, store: IcechunkStore) -> None:
    """The official package writes through a store that was made read-only (bug 9)."""
    frozen = store.with_read_only(True)
    array = zarr.open_array(frozen, path="a")
    for call in (
        lambda: array.__setitem__(..., 1),
        lambda: frozen.set_sync("a/c/1/1", buffer(b"1")),
        waiting(lambda: frozen.set_if_not_exists("a/c/1/1", buffer(b"1"))),
        waiting(lambda: frozen.delete_dir("a")),
        frozen.sync_clear,
    ):
        with pytest.raises(ReadOnlyError) as error:
            call()
        assert error.value.kind == "read-only-store"
    store.set_sync("a/c/1/1", buffer(b"1"))
    store.session.commit("done")

    with pytest.raises(ReadOnlyError, match="writable_session"):
        store.set_sync("a/c/1/1", buffer(b"2"))
    with pytest.raises(ReadOnlyError, match="writable_session"):
        repo.readonly_session("main").store.with_read_only(False)


def test_rearrange_session_rejects_writes(repo: Repository, store: IcechunkStore) -> None:
    store.session.commit("nodes")
    rearranging = repo.rearrange_session("main").store

    kind = refusal(lambda: rearranging.set_sync("x/zarr.json", buffer(GROUP)))

    assert kind == (SessionStateError, "rearrange-session-only")
    np.testing.assert_equal(rearranging.get_sync("g/zarr.json").to_bytes(), GROUP)  # type: ignore[union-attr]


def test_stores_are_equal_if_their_sessions_are(repo: Repository, store: IcechunkStore) -> None:
    session = store.session

    assert session.store == session.store
    assert session.store != session.store.with_read_only(True)
    assert session.store != repo.writable_session("main").store
    assert store != "store"
