"""Conversion of virtual chunks to native ones, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe.config import http_store
from icefloe.core.materialize import group_requests
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.credentials import Credentials
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, ReadOnlyError
from icefloe.format.manifest import ArrayManifest
from icefloe.session import Session
from icefloe.types import ChunkType
from tests.support.servers.ranges import RangeServer, range_server
from tests.support.virtual.locations import session_with

SIZE, COUNT = 600, 40


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        server.files["a"] = np.random.default_rng(0).integers(0, 256, SIZE * COUNT, np.uint8).tobytes()
        yield server


@pytest.fixture
def session(server: RangeServer) -> Session:
    """Create a session with chunks in reverse order of the file, the last one small enough to be inline."""
    session = session_with(
        f"{server.url}/", http_store(), Credentials.HttpAccess(), shape=SIZE * COUNT, chunk=SIZE
    )
    offsets = np.arange(COUNT, dtype=np.uint64)[::-1] * np.uint64(SIZE)
    lengths = np.full(COUNT, SIZE, np.uint64)
    session.store.set_virtual_refs_arr("a", (COUNT,), [f"{server.url}/a"] * COUNT, offsets.copy(), lengths)
    return session


def stored(session: Session) -> list[bytes]:
    found = [session.store.get_sync(f"a/c/{number}") for number in range(COUNT)]
    return [b"" if each is None else each.to_bytes() for each in found]


def kinds(session: Session) -> list[ChunkType]:
    return [session.chunk_type("/a", [number]) for number in range(COUNT)]


def failure(kind: ErrorKind) -> Any:
    return pytest.raises(IcechunkError, check=lambda error: error.kind == kind)


def test_all_chunks_become_native_with_few_requests(server: RangeServer, session: Session) -> None:
    data = server.files["a"]
    expected = [data[at : at + SIZE] for at in range(0, len(data), SIZE)][::-1]
    server.asked.clear()

    assert session.materialize("/a") == COUNT
    assert len(server.asked) == 1
    session.commit("native")

    server.files.clear()
    assert kinds(session) == [ChunkType.native] * COUNT
    assert stored(session) == expected
    assert session.all_virtual_chunk_locations() == []


def test_small_chunks_become_inline(server: RangeServer, session: Session) -> None:
    session.store.set_virtual_ref("a/c/3", f"{server.url}/a", offset=7, length=100)

    session.materialize("/a")

    assert kinds(session)[3] is ChunkType.inline
    assert stored(session)[3] == server.files["a"][7:107]


def test_materialize_accepts_a_region(session: Session) -> None:
    assert session.materialize("/a", (slice(SIZE * 2 + 1, SIZE * 4 + 1),)) == 3
    assert session.materialize("/a", (slice(SIZE * 2, SIZE * 4),)) == 0
    assert session.materialize("/a", [-1]) == 1
    assert session.materialize("/a", [slice(5, 5)]) == 0

    native = [number for number, kind in enumerate(kinds(session)) if kind is ChunkType.native]
    assert native == [2, 3, 4, COUNT - 1]


def test_materialize_region_may_use_dimension_names(server: RangeServer, session: Session) -> None:
    zarr.create_array(
        session.store,
        name="n",
        shape=(4, 6),
        chunks=(2, 3),
        dtype="u1",
        compressors=None,
        dimension_names=["y", "x"],
    )
    urls, lengths = [f"{server.url}/a"] * 4, np.full(4, 6, np.uint64)
    session.store.set_virtual_refs_arr("n", (2, 2), urls, np.arange(4, dtype=np.uint64) * 6, lengths)

    assert session.materialize("/n", {"x": 4}) == 2
    assert session.chunk_type("/n", [1, 0]) is ChunkType.virtual
    with pytest.raises(InvalidInputError, match="no dimension 'z'"):
        session.materialize("/n", {"z": slice(1)})
    with pytest.raises(InvalidInputError, match="2"):
        session.materialize("/n", [0, 0, 0])
    with pytest.raises(InvalidInputError, match="steps"):
        session.materialize("/n", [slice(0, 4, 2)])
    with pytest.raises(InvalidInputError, match="outside"):
        session.materialize("/n", [4])


def test_changed_file_leaves_references_unchanged(server: RangeServer, session: Session) -> None:
    url = f"{server.url}/a"
    server.etags["a"] = '"new"'
    session.store.set_virtual_ref("a/c/5", url, offset=0, length=SIZE, checksum="old")
    with failure(ErrorKind.VIRTUAL_CHUNK_MODIFIED) as caught:
        session.materialize("/a")
    assert "chunk (5,) of /a" in caught.value.message

    session.store.set_virtual_ref("a/c/5", url, offset=SIZE * COUNT - 1, length=SIZE)
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
        session.materialize("/a")
    assert "chunk (5,) of /a" in caught.value.message

    session.store.set_virtual_ref("a/c/5", f"{server.url}/gone", offset=0, length=SIZE)
    with failure(ErrorKind.VIRTUAL_CHUNK_FETCH) as caught:
        session.materialize("/a")
    assert "gone" in caught.value.message

    assert set(kinds(session)) == {ChunkType.virtual}


def test_read_only_session_cannot_materialize(session: Session) -> None:
    session.commit("virtual")

    with pytest.raises(ReadOnlyError):
        session.materialize("/a")


def test_nearby_ranges_of_one_file_share_a_request() -> None:
    offsets = [0, 10, 40, 1000, 1010, 5, 0]
    refs = ArrayManifest.virtual(
        [[number] for number in range(7)], ["a", "a", "a", "a", "a", "a", "b"], offsets, [10] * 7
    )

    groups = [rows.tolist() for rows in group_requests(refs, ReadLimits(max_gap_bytes=100))]
    small = [rows.tolist() for rows in group_requests(refs, ReadLimits(max_request_bytes=30))]
    close = [rows.tolist() for rows in group_requests(refs, ReadLimits(max_gap_bytes=5))]

    assert groups == [[0, 5, 1, 2], [3, 4], [6]]
    assert small == [[0, 5, 1], [2], [3, 4], [6]]
    assert close == [[0, 5, 1], [2], [3, 4], [6]]
