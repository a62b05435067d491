"""Setting references to chunks elsewhere, one by one and in bulk, and listing them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import VirtualChunkSpec
from icefloe.config import (
    ManifestConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    RepositoryConfig,
    VirtualChunkContainer,
    s3_store,
)
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.manifest import ETag, LastModified, VirtualRef
from icefloe.session import Session
from icefloe.types import ChunkType

URL = "s3://bucket/a.nc"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def session(request: pytest.FixtureRequest) -> Session:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://bucket/", s3_store(), name="main"))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config, spec_version=request.param)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_group("group")
    root.create_array("a", shape=(8,), chunks=(2,), dtype="u1", compressors=None)
    root.create_array("b", shape=(4, 6), chunks=(2, 2), dtype="u1", compressors=None)
    return session


def u64(*values: int) -> Any:
    return np.array(values, np.uint64)


def refs_of(session: Session, path: str) -> dict[tuple[int, ...], Any]:
    node = session._workspace.array(path)
    refs = session._workspace.refs(node)
    return {tuple(coords): refs.ref(row) for row, coords in enumerate(refs.coords.tolist())}


def refused(kind: ErrorKind) -> Any:
    return pytest.raises(InvalidInputError, check=lambda error: error.kind == kind)


def test_reference_is_set_with_its_checksum(session: Session) -> None:
    session.store.set_virtual_ref("a/c/0", URL, offset=1, length=2)
    session.store.set_virtual_ref("a/c/1", URL, offset=3, length=4, checksum='"tag"')
    session.store.set_virtual_ref(
        "a/c/2", URL, offset=5, length=6, checksum=datetime(2020, 1, 1, 0, 0, 0, 999_999, UTC)
    )

    assert refs_of(session, "/a") == {
        (0,): VirtualRef(URL, 1, 2),
        (1,): VirtualRef(URL, 3, 4, ETag("tag")),
        (2,): VirtualRef(URL, 5, 6, LastModified(1577836800)),
    }
    assert session.chunk_type("/a", [0]) is ChunkType.virtual
    assert session.all_virtual_chunk_locations() == [URL] * 3


def test_references_survive_a_commit(session: Session) -> None:
    session.store.set_virtual_refs_arr("a", (4,), [URL] * 4, u64(0, 2, 4, 6), u64(2, 2, 2, 2), checksum="e")
    before = refs_of(session, "/a")

    session.commit("references")

    assert refs_of(session, "/a") == before
    assert len(before) == 4


def test_invalid_single_references_are_rejected(session: Session) -> None:
    store = session.store

    with refused(ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK):
        store.set_virtual_ref("a/c/0", "s3://other/x", offset=0, length=2)
    with refused(ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK):
        store.set_virtual_ref("a/c/0", "vcc://other/x", offset=0, length=2)
    with refused(ErrorKind.INVALID_VIRTUAL_REF):
        store.set_virtual_ref("a/c/0", "x.nc", offset=0, length=2, validate_container=False)
    with refused(ErrorKind.ZERO_LENGTH_CHUNK):
        store.set_virtual_ref("a/c/0", URL, offset=0, length=0)
    with refused(ErrorKind.INVALID_VIRTUAL_REF):
        store.set_virtual_ref("a/c/0", URL, offset=2**64 - 1, length=2)
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        store.set_virtual_ref("a/c/4", URL, offset=0, length=2)
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        store.set_virtual_ref("a/c/0/0", URL, offset=0, length=2)
    with refused(ErrorKind.NOT_AN_ARRAY):
        store.set_virtual_ref("group/c/0", URL, offset=0, length=2)
    with refused(ErrorKind.INVALID_KEY):
        store.set_virtual_ref("a/x/0", URL, offset=0, length=2)
    with refused(ErrorKind.INVALID_VIRTUAL_REF):
        store.set_virtual_ref("a/c/0", URL, offset=0, length=2, checksum=datetime(2200, 1, 1, tzinfo=UTC))
    with pytest.raises(OverflowError):
        store.set_virtual_ref("a/c/0", URL, offset=-1, length=2)
    with pytest.raises(NodeNotFoundError):
        store.set_virtual_ref("none/c/0", URL, offset=0, length=2)
    with pytest.raises(SessionStateError, check=lambda error: error.kind == ErrorKind.NOT_ALLOWED):
        store.set_virtual_ref("a/zarr.json", URL, offset=0, length=2)
    wrong: Any = 5
    with pytest.raises(TypeError):
        store.set_virtual_ref("a/c/0", URL, offset=0, length=2, checksum=wrong)
    with pytest.raises(TypeError, match="time zone"):
        store.set_virtual_ref("a/c/0", URL, offset=0, length=2, checksum=datetime(2020, 1, 1))

    assert refs_of(session, "/a") == {}


def test_read_only_store_rejects_references(session: Session) -> None:
    session.commit("arrays")

    with pytest.raises(ReadOnlyError):
        session.store.set_virtual_ref("a/c/0", URL, offset=0, length=2)
    with pytest.raises(ReadOnlyError):
        session.store.set_virtual_refs("a", [])
    with pytest.raises(ReadOnlyError):
        session.store.set_virtual_refs_arr("a", (0,), [], u64(), u64())


def test_specs_set_many_references(session: Session) -> None:
    time = datetime(2020, 1, 1, tzinfo=UTC)

    failed = session.store.set_virtual_refs(
        "b",
        [
            VirtualChunkSpec([1, 2], URL, 0, 4),
            VirtualChunkSpec([0, 1], "vcc://main/b.nc", 4, 4, "tag"),
            VirtualChunkSpec([0, 0], "s3://elsewhere/x", 0, 4),
            VirtualChunkSpec([0, 2], URL, 8, 4, None, time),
            VirtualChunkSpec([1, 2], URL, 12, 4),
        ],
    )

    assert failed == [(0, 0)]
    assert refs_of(session, "/b") == {
        (0, 1): VirtualRef("vcc://main/b.nc", 4, 4, ETag("tag")),
        (0, 2): VirtualRef(URL, 8, 4, LastModified(1577836800)),
        (1, 2): VirtualRef(URL, 12, 4),
    }
    assert session.all_virtual_chunk_locations() == ["s3://bucket/b.nc", URL, URL]


def test_without_validation_locations_may_be_anywhere(session: Session) -> None:
    specs = [VirtualChunkSpec([0], "gopher://x/y", 0, 4)]

    assert session.store.set_virtual_refs("a", specs, validate_containers=False) is None
    assert refs_of(session, "/a") == {(0,): VirtualRef("gopher://x/y", 0, 4)}


def test_invalid_specs_are_rejected_as_a_whole(session: Session) -> None:
    good, wrong = VirtualChunkSpec([0], URL, 0, 4), VirtualChunkSpec([1, 1], URL, 0, 4)
    no_spec: Any = 1

    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        session.store.set_virtual_refs("a", [good, wrong])
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        session.store.set_virtual_refs("a", [good, VirtualChunkSpec([-1], URL, 0, 4)])
    with refused(ErrorKind.INVALID_VIRTUAL_REF):
        session.store.set_virtual_refs("a", [good, VirtualChunkSpec([1], URL, -1, 4)])
    with pytest.raises(TypeError, match="VirtualChunkSpec"):
        session.store.set_virtual_refs("a", [good, no_spec])

    assert refs_of(session, "/a") == {}


def test_reference_columns_set_a_window_of_the_chunk_grid(session: Session) -> None:
    failed = session.store.set_virtual_refs_arr(
        "b", (1, 3), [URL, "", "s3://elsewhere/x"], u64(0, 0, 8), u64(4, 0, 4), arr_offset=(1, 0)
    )

    assert failed == [(1, 2)]
    assert refs_of(session, "/b") == {(1, 0): VirtualRef(URL, 0, 4)}


def test_reference_to_the_chunk_of_a_scalar_may_have_coordinate_zero(session: Session) -> None:
    zarr.create_array(session.store, name="scalar", shape=(), dtype="u1", compressors=None)
    set_refs = session.store.set_virtual_refs_arr

    for number, shape in enumerate([(), (1,), (1, 1)]):
        set_refs("scalar", shape, [URL], u64(number), u64(1))
        assert refs_of(session, "/scalar") == {(): VirtualRef(URL, number, 1)}
    session.store.set_virtual_refs("scalar", [VirtualChunkSpec([0], URL, 7, 1)])
    assert refs_of(session, "/scalar") == {(): VirtualRef(URL, 7, 1)}
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        set_refs("scalar", (2,), [URL] * 2, u64(0, 0), u64(1, 1))


def test_columns_may_be_lists_or_arrays(session: Session) -> None:
    names = np.array([URL, "s3://bucket/b.nc", URL, URL])
    offsets: Any = [0, 2, 4, 6]
    lengths: Any = np.full(4, 2, np.int32)

    session.store.set_virtual_refs_arr("a", (4,), names, offsets, lengths)  # type: ignore[arg-type]

    assert refs_of(session, "/a")[(1,)] == VirtualRef("s3://bucket/b.nc", 2, 2)
    assert len(refs_of(session, "/a")) == 4


def test_reference_columns_are_copied(session: Session) -> None:
    offsets = u64(0, 2, 4, 6)
    session.store.set_virtual_refs_arr("a", (4,), [URL] * 4, offsets, u64(2, 2, 2, 2))

    offsets[:] = 99

    assert refs_of(session, "/a")[(3,)] == VirtualRef(URL, 6, 2)


def test_inconsistent_columns_are_rejected(session: Session) -> None:
    set_refs, two = session.store.set_virtual_refs_arr, u64(0, 2)
    urls, none, floats = [URL, URL], [URL, None], np.array([0.0, 1.5])

    with pytest.raises(ValueError, match="same length"):
        set_refs("a", (2,), [URL], two, two)
    with pytest.raises(ValueError, match="chunk_grid_shape"):
        set_refs("a", (3,), urls, two, two)
    with pytest.raises(ValueError, match="arr_offset"):
        set_refs("a", (2,), urls, two, two, arr_offset=(0, 0))
    with pytest.raises(TypeError, match="location 1 must be a str"):
        set_refs("a", (2,), none, two, two)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="1-d array of integers"):
        set_refs("a", (2,), urls, floats, two)
    with refused(ErrorKind.INVALID_VIRTUAL_REF):
        set_refs("a", (2,), urls, np.array([0, -1]), two + 1)
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        set_refs("a", (2,), urls, two, two + 1, arr_offset=(3,))
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        set_refs("a", (2,), urls, two, two + 1, arr_offset=(2**32 - 1,))
    with refused(ErrorKind.INVALID_CHUNK_INDEX):
        set_refs("a", (1, 2), urls, two, two + 1)
    with refused(ErrorKind.ZERO_LENGTH_CHUNK):
        set_refs("a", (2,), urls, two, two)

    assert refs_of(session, "/a") == {}


@pytest.mark.parametrize(
    ("location", "length", "kind"),
    [
        ("nowhere", 8, ErrorKind.INVALID_VIRTUAL_REF),
        ("s3://bucket/x/../y", 8, ErrorKind.INVALID_VIRTUAL_REF),
        (URL, 0, ErrorKind.ZERO_LENGTH_CHUNK),
    ],
)
def test_invalid_reference_among_many_is_named(
    session: Session, location: str, length: int, kind: ErrorKind
) -> None:
    zarr.create_array(session.store, name="many", shape=(300, 400), chunks=(1, 1), dtype="u1")
    count, bad = 120_000, 77_777
    locations = [f"s3://bucket/{number // 100}.nc" for number in range(count)]
    offsets, lengths = np.arange(count, dtype=np.uint64), np.full(count, 8, np.uint64)
    locations[bad], lengths[bad] = location, length

    with refused(kind) as caught:
        session.store.set_virtual_refs_arr("many", (300, 400), locations, offsets, lengths)

    assert "chunk (194, 177) of /many" in caught.value.message
    assert refs_of(session, "/many") == {}


def test_async_reference_methods_equal_the_blocking_methods(session: Session) -> None:
    async def set_all() -> Any:
        store = session.store
        await store.set_virtual_ref_async("a/c/0", URL, offset=0, length=2)
        failed = await store.set_virtual_refs_async("a", [VirtualChunkSpec([1], "s3://else/x", 0, 2)])
        await store.set_virtual_refs_arr_async("a", (1,), [URL], u64(4), u64(2), arr_offset=(2,))
        return failed

    assert asyncio.run(set_all()) == [(1,)]
    assert list(refs_of(session, "/a")) == [(0,), (2,)]


def test_reference_iterator_yields_columns(session: Session) -> None:
    array = zarr.open_array(session.store, path="a")
    array[0:2] = 7
    session.store.set_virtual_ref("a/c/2", "vcc://main/b.nc", offset=3, length=2)
    session.store.set_virtual_ref("a/c/3", URL, offset=5, length=2)

    batches = list(session.store.array_chunk_iterator("/a", batch_size=2))

    (coords, kinds, paths, offsets, lengths, inlined), (*_, last) = batches
    assert (coords.tolist(), coords.dtype.name) == ([[0], [2]], "uint32")
    assert (kinds.tolist(), kinds.dtype.name) == ([3, 2], "uint8")
    assert paths == ["", "s3://bucket/b.nc"]
    assert (offsets.tolist(), offsets.dtype.name) == ([0, 3], "uint64")
    assert (lengths.tolist(), lengths.dtype.name) == ([2, 2], "uint64")
    assert (inlined, last) == ({0: b"\x07\x07"}, {})


def test_reference_iterator_yields_ids_of_native_chunks(session: Session) -> None:
    array = zarr.create_array(session.store, name="big", shape=(2000,), chunks=(1000,), dtype="u1")
    array[:] = np.random.default_rng(0).integers(0, 256, 2000, np.uint8)

    ((_, kinds, paths, _, lengths, _),) = session.store.array_chunk_iterator("big")

    assert kinds.tolist() == [1, 1]
    assert [len(path) for path in paths] == [20, 20]
    assert (lengths > 512).all()


def test_reference_iterator_is_empty_without_an_array(session: Session) -> None:
    async def collect() -> list[Any]:
        return [batch async for batch in session.store.array_chunk_iterator("a")]

    assert list(session.store.array_chunk_iterator("none")) == []
    assert list(session.store.array_chunk_iterator("group")) == []
    assert asyncio.run(collect()) == []
    with pytest.raises(ValueError, match="batch_size"):
        session.store.array_chunk_iterator("a", 0)


def test_virtual_chunk_specs_are_compared_by_value() -> None:
    spec = VirtualChunkSpec((1, 2), URL, 3, 4, etag_checksum="e")  # type: ignore[arg-type]

    assert spec.index == [1, 2]
    assert spec == VirtualChunkSpec([1, 2], URL, 3, 4, "e")
    assert len({spec, VirtualChunkSpec([1, 2], URL, 3, 4, "e")}) == 1
    with pytest.raises(AttributeError):
        spec.offset = 5  # type: ignore[misc]


@pytest.mark.parametrize("asked", [True, False])
def test_locations_are_compressed_if_configured(asked: bool) -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://bucket/", s3_store()))
    if asked:
        compression = ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=200)
        config.manifest = ManifestConfig(virtual_chunk_location_compression=compression)
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(300,), chunks=(1,), dtype="u1", compressors=None)
    urls = [f"s3://bucket/a/long/enough/prefix/of/an/archive/{number}.nc" for number in range(300)]
    ones = np.ones(300, np.uint64)
    session.store.set_virtual_refs_arr("a", (300,), urls, ones, ones)
    snapshot = session.commit("references")

    (file,) = repo.list_manifest_files(snapshot)
    assert repo.inspect_manifest(file.id)["compression"]["uses_location_compression"] is asked
    again = icefloe.Repository.open(repo.storage).readonly_session("main")
    assert again.all_virtual_chunk_locations() == urls
