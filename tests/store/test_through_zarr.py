"""The use of zarr: every dtype, codec, grid and shape, written, committed and read back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
from zarr.core.sync import sync

from icefloe.errors import IcechunkError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import in_memory_storage
from icefloe.store import IcechunkStore
from icefloe.types import ChunkType

codecs: Any = zarr.codecs  # those of numcodecs are not exported in zarr's types
WARNINGS = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
HAS_RECTILINEAR = "array.rectilinear_chunks" in zarr.config

PIPELINES = ["zarr.core.codec_pipeline.BatchedCodecPipeline"]
if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
    PIPELINES.append("zarr.core.codec_pipeline.FusedCodecPipeline")

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(">i4", ">f8", ">c16", "<U7", ">U3", "S5", "V6"),
    *("<M8[s]", "<M8[10us]", "<m8[h]"),
]

CODECS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {"compressors": None},
    "gzip": lambda: {"compressors": codecs.GzipCodec(level=3)},
    "zstd-checksum": lambda: {"compressors": codecs.ZstdCodec(level=5, checksum=True)},
    "blosc": lambda: {"compressors": codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "crc32c": lambda: {"compressors": codecs.Crc32cCodec()},
    "two": lambda: {"compressors": [codecs.GzipCodec(), codecs.Crc32cCodec()]},
    "transpose": lambda: {"filters": codecs.TransposeCodec(order=(1, 0))},
    "big-endian": lambda: {"serializer": codecs.BytesCodec(endian="big")},
    "sharding": lambda: {"chunks": (2, 3), "shards": (4, 6)},
    "numcodecs-lz4": lambda: {"compressors": codecs.LZ4(acceleration=2)},
    "numcodecs-bz2": lambda: {"compressors": codecs.BZ2(level=2)},
    "numcodecs-lzma": lambda: {"compressors": codecs.LZMA(preset=1)},
    "numcodecs-zlib": lambda: {"compressors": codecs.Zlib(level=2)},
    "numcodecs-shuffle": lambda: {"compressors": [codecs.Shuffle(elementsize=8), codecs.Zstd(level=1)]},
    "numcodecs-fletcher32": lambda: {"compressors": codecs.Fletcher32()},
    "numcodecs-delta": lambda: {"filters": codecs.Delta(dtype="<i8")},
    "numcodecs-astype": lambda: {"filters": codecs.AsType(encode_dtype="<i4", decode_dtype="<i8")},
    "numcodecs-fixed-scale": lambda: {
        "filters": codecs.FixedScaleOffset(offset=0, scale=1, dtype="<i8", astype="<i8")
    },
}


@pytest.fixture
def repo() -> Repository:
    return Repository.create(in_memory_storage())


@pytest.fixture(params=PIPELINES, ids=lambda path: path.rpartition(".")[2])
def pipeline(request: pytest.FixtureRequest) -> Iterator[None]:
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield


def committed(repo: Repository, change: Callable[[IcechunkStore], object]) -> Any:
    """Return the root group after a commit, read by another session."""
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a")
    change(session.store)
    session.commit("change")
    return zarr.open_group(Repository.open(repo.storage).readonly_session("main").store, mode="r")


def sample(dtype: str, shape: tuple[int, ...] = (5, 7)) -> Any:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    kind = np.dtype(dtype).kind
    if kind in "US":
        return numbers.astype(np.dtype(dtype))
    if kind == "V":
        return np.frombuffer(np.random.default_rng(0).bytes(numbers.size * 6), dtype).reshape(shape)
    return (numbers % 2 if kind == "b" else numbers).astype(np.dtype(dtype))


@WARNINGS
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_round_trips(repo: Repository, dtype: str, pipeline: None) -> None:
    values = sample(dtype)

    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values, chunks=(2, 3)))

    found = root["a"]
    assert found.dtype.newbyteorder("=") == values.dtype.newbyteorder("=")  # the order is the codec's affair
    np.testing.assert_array_equal(found[...], values)


@WARNINGS
def test_variable_length_strings_round_trip(repo: Repository) -> None:
    values = np.array([["", "né"], ["中文", "x" * 3000]], dtype=np.dtypes.StringDType())

    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values, chunks=(1, 2)))

    assert np.asarray(root["a"][...]).tolist() == values.tolist()


@WARNINGS
def test_variable_length_bytes_round_trip(repo: Repository) -> None:
    from zarr.core.dtype import VariableLengthBytes

    def change(store: IcechunkStore) -> None:
        array = zarr.create_array(store, name="a", shape=(3,), chunks=(2,), dtype=VariableLengthBytes())
        array[:] = np.array([b"", b"\x00\xff", b"x" * 1000], dtype=object)

    root = committed(repo, change)

    assert np.asarray(root["a"][...]).tolist() == [b"", b"\x00\xff", b"x" * 1000]


@WARNINGS
def test_structured_values_round_trip(repo: Repository) -> None:
    values = np.zeros(5, [("id", "<i4"), ("place", [("x", "<f8"), ("y", ">f4")]), ("name", "S4")])
    values["id"], values["place"]["x"], values["name"] = range(5), np.arange(5) / 3, b"abc"

    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values, chunks=(2,)))

    np.testing.assert_array_equal(root["a"][...], values)


@WARNINGS
@pytest.mark.parametrize("name", CODECS)
def test_every_codec_round_trips(repo: Repository, name: str, pipeline: None) -> None:
    values = sample("<i8", (9, 8))
    options = {"chunks": (4, 6)} | CODECS[name]()

    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values, **options))

    np.testing.assert_array_equal(root["a"][...], values)
    np.testing.assert_array_equal(root["a"][3:6, 5], values[3:6, 5])


@WARNINGS
@pytest.mark.parametrize("name", ["bit-round", "quantize"])
def test_lossy_codecs_round_trip_approximately(repo: Repository, name: str) -> None:
    encode = codecs.BitRound(keepbits=40) if name == "bit-round" else codecs.Quantize(digits=9, dtype="<f8")
    values = np.linspace(0, 1, 24).reshape(4, 6)

    root = committed(
        repo, lambda store: zarr.create_array(store, name="a", data=values, chunks=(2, 3), filters=encode)
    )

    np.testing.assert_allclose(root["a"][...], values, atol=1e-6)


@pytest.mark.parametrize("location", ["start", "end"])
def test_parts_of_shards_are_read_and_written(repo: Repository, location: str, pipeline: None) -> None:
    values = np.arange(400, dtype="u2").reshape(20, 20)

    def change(store: IcechunkStore) -> None:
        serializer = codecs.ShardingCodec(chunk_shape=(2, 5), index_location=location)
        array = zarr.create_array(
            store,
            name="a",
            shape=(20, 20),
            dtype="u2",
            chunks=(10, 10),
            serializer=serializer,
            compressors=None,
        )
        array[:] = values
        array[3:5, 7:13] = 9

    root = committed(repo, change)

    values[3:5, 7:13] = 9
    np.testing.assert_array_equal(root["a"][2:6, 4:15], values[2:6, 4:15])
    np.testing.assert_array_equal(root["a"][...], values)


@WARNINGS
@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
@pytest.mark.parametrize("chunks", [((2, 3, 5), (4, 4, 1)), ((2, 3, 5), 5), (5, (4, 5)), ((10,), (1,) * 9)])
def test_rectilinear_grids_round_trip(repo: Repository, chunks: Any) -> None:
    """The official package refuses a bare integer, which zarr writes for a uniform dimension (bug 1)."""
    values = np.arange(90).reshape(10, 9)

    with zarr.config.set({"array.rectilinear_chunks": True}):
        root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values, chunks=chunks))

        np.testing.assert_array_equal(root["a"][...], values)


@WARNINGS
@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
def test_rectilinear_grids_need_version_2() -> None:
    chunks: Any = ((2, 3, 5),)
    store = Repository.create(in_memory_storage(), spec_version=1).writable_session("main").store

    with (
        zarr.config.set({"array.rectilinear_chunks": True}),
        pytest.raises(IcechunkError, match="spec_version=2") as error,
    ):
        zarr.create_array(store, name="a", data=np.arange(10), chunks=chunks)

    assert error.value.kind == "bad-metadata"


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (3, 0, 2), (1,)])
def test_arrays_without_elements_or_dimensions_work(spec_version: int, shape: tuple[int, ...]) -> None:
    repo = Repository.create(in_memory_storage(), spec_version=spec_version)
    values = np.full(shape, 7.5)

    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=values))

    found = root["a"]
    assert found.shape == shape
    np.testing.assert_array_equal(found[...], values)


@pytest.mark.parametrize("name", ["naïve", "中文/数据", "c", "c/c/0", "0/1", "zarr.json", "a b#?%", "é" * 60])
def test_unusual_node_names_work(repo: Repository, name: str) -> None:
    root = committed(
        repo, lambda store: zarr.create_array(store, name=name, data=np.arange(600), chunks=(300,))
    )

    np.testing.assert_array_equal(root[name][...], np.arange(600))
    assert sorted(root.store.list_dir(name)) == ["c", "zarr.json"]


def test_parents_of_a_new_array_are_groups(repo: Repository) -> None:
    root = committed(repo, lambda store: zarr.create_array(store, name="x/y/a", data=np.arange(3)))

    assert isinstance(root["x"], zarr.Group)
    assert isinstance(root["x/y"], zarr.Group)


def test_attributes_may_be_nested(repo: Repository) -> None:
    attributes = {"a": {"b": [1, 2.5, None, {"ü": "中"}]}, "empty": {}, "flag": True}

    root = committed(repo, lambda store: zarr.create_group(store, path="g", attributes=attributes))

    assert dict(root["g"].attrs) == attributes


def test_chunks_that_were_never_written_have_the_fill_value(repo: Repository) -> None:
    def change(store: IcechunkStore) -> None:
        array = zarr.create_array(store, name="a", shape=(6,), chunks=(2,), dtype="f4", fill_value=np.nan)
        array[2:4] = 1

    root = committed(repo, change)

    np.testing.assert_array_equal(root["a"][...], [np.nan, np.nan, 1, 1, np.nan, np.nan])
    assert sorted(root.store.list_prefix("a/c")) == ["a/c/1"]


@pytest.mark.parametrize("keep", [True, False])
def test_empty_chunks_are_written_if_configured(repo: Repository, keep: bool) -> None:
    def change(store: IcechunkStore) -> None:
        config: Any = {"write_empty_chunks": keep}
        array = zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4", config=config)
        array[:] = 5
        array[:2] = 0

    root = committed(repo, change)

    keys = sorted(root.store.list_prefix("a/c"))
    assert keys == (["a/c/0", "a/c/1"] if keep else ["a/c/1"])
    assert np.asarray(root["a"][...]).tolist() == [0, 0, 5, 5]


def test_arrays_are_appended_to_and_resized(repo: Repository) -> None:
    first = committed(
        repo, lambda store: zarr.create_array(store, name="a", data=np.arange(10.0), chunks=(4,))
    )
    grown = committed(repo, lambda store: zarr.open_array(store, path="a").append(np.arange(5.0)))
    shrunk = committed(repo, lambda store: zarr.open_array(store, path="a").resize((3,)))
    again = committed(repo, lambda store: zarr.open_array(store, path="a").resize((12,)))

    assert np.asarray(first["a"][...]).tolist() == list(range(10))
    assert np.asarray(grown["a"][...]).tolist() == [*range(10), *range(5)]
    assert np.asarray(shrunk["a"][...]).tolist() == [0, 1, 2]
    assert np.asarray(again["a"][4:]).tolist() == [0] * 8
    assert sorted(again.store.list_prefix("a/c")) == ["a/c/0"]


def test_chunks_outside_a_smaller_shape_are_hidden(repo: Repository) -> None:
    committed(repo, lambda store: zarr.create_array(store, name="a", data=np.arange(10), chunks=(2,)))
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")

    sync(array._async_array._save_metadata(array.metadata.update_shape((3,))))

    assert sorted(session.store.list_prefix("a/c")) == ["a/c/0", "a/c/1"]
    assert session.store.get_sync("a/c/4") is None
    session.commit("only the metadata shrank")
    assert sorted(session.store.list_prefix("a/c")) == ["a/c/0", "a/c/1"]


def test_nodes_and_chunks_are_deleted(repo: Repository) -> None:
    def build(store: IcechunkStore) -> None:
        for path in ("g/a", "g/h/b", "other"):
            zarr.create_array(store, name=path, data=np.arange(4), chunks=(2,))

    def delete(store: IcechunkStore) -> None:
        root = zarr.open_group(store)
        del root["g/h"]
        del root["other"]
        sync(store.delete("g/a/c/1"))

    committed(repo, build)
    root = committed(repo, delete)

    assert sorted(root.store.list()) == ["g/a/c/0", "g/a/zarr.json", "g/zarr.json", "zarr.json"]
    assert np.asarray(root["g/a"][...]).tolist() == [0, 1, 0, 0]


def test_array_can_replace_a_group_and_vice_versa(repo: Repository) -> None:
    committed(repo, lambda store: zarr.create_array(store, name="x/y", data=np.arange(4)))
    array = committed(repo, lambda store: zarr.create_array(store, name="x", data=np.ones(1), overwrite=True))
    group = committed(repo, lambda store: zarr.create_group(store, path="x", overwrite=True))

    assert sorted(array.store.list_prefix("x")) == ["x/c/0", "x/zarr.json"]
    assert sorted(group.store.list_prefix("x")) == ["x/zarr.json"]


def test_array_can_be_overwritten_before_and_after_a_commit(repo: Repository) -> None:
    def twice(store: IcechunkStore) -> None:
        zarr.create_array(store, name="a", data=np.arange(100), chunks=(1,), overwrite=True)
        zarr.create_array(store, name="a", data=np.ones((2, 2)), chunks=(2, 1), overwrite=True)

    committed(repo, twice)
    root = committed(repo, twice)

    assert np.asarray(root["a"][...]).tolist() == [[1, 1], [1, 1]]
    assert sorted(root.store.list_prefix("a/c")) == ["a/c/0/0", "a/c/0/1"]


def test_group_trees_members_and_indexing_work(repo: Repository) -> None:
    values = np.arange(60).reshape(6, 10)
    root = committed(repo, lambda store: zarr.create_array(store, name="g/a", data=values, chunks=(2, 3)))

    assert [name for name, _ in root.members(max_depth=None)] == ["g", "g/a"]
    assert root.nmembers(max_depth=None) == 2
    array = root["g/a"]
    np.testing.assert_array_equal(array.oindex[[0, 5], [1, 9]], values[np.ix_([0, 5], [1, 9])])
    np.testing.assert_array_equal(array.vindex[[0, 5], [1, 9]], values[[0, 5], [1, 9]])
    np.testing.assert_array_equal(array.blocks[1, 2], values[2:4, 6:9])
    assert array.nchunks_initialized == 12
    assert array.nbytes_stored() > 0


def test_consolidated_metadata_is_rejected(repo: Repository) -> None:
    root = committed(repo, lambda store: zarr.create_array(store, name="a", data=np.arange(3)))

    with pytest.raises(TypeError, match="doesn't support consolidated metadata"):
        zarr.consolidate_metadata(root.store)


def test_zarr_version_2_is_rejected(repo: Repository) -> None:
    store = repo.writable_session("main").store

    with pytest.raises(IcechunkError, match="zarr_format=3") as error:
        zarr.create_group(store, zarr_format=2)

    assert error.value.kind == "unimplemented"


def test_other_store_can_be_copied_into_a_repository(repo: Repository) -> None:
    source = zarr.open_group(zarr.storage.MemoryStore(), mode="w", attributes={"from": "elsewhere"})
    source.create_array("g/a", data=np.arange(12).reshape(3, 4), chunks=(2, 2))

    async def copy(target: IcechunkStore) -> None:
        prototype = zarr.core.buffer.default_buffer_prototype()
        keys = [key async for key in source.store.list()]
        for key in sorted(keys, key=lambda key: not key.endswith("zarr.json")):
            value = await source.store.get(key, prototype)
            assert value is not None
            await target.set(key, value)

    root = committed(repo, lambda store: asyncio.run(copy(store)))

    assert dict(root.attrs) == {"from": "elsewhere"}
    np.testing.assert_array_equal(root["g/a"][...], np.arange(12).reshape(3, 4))


def test_many_threads_write_to_one_session(session: Session) -> None:
    values = np.random.default_rng(0).random((64, 50))
    array = zarr.create_array(
        session.store, name="a", shape=values.shape, chunks=(1, 50), dtype="f8", compressors=None
    )
    barrier = threading.Barrier(8)

    def write(worker: int) -> None:
        barrier.wait()
        for row in range(worker, 64, 8):
            array[row] = values[row]
            zarr.create_group(session.store, path=f"g/{worker}/{row}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))

    np.testing.assert_array_equal(array[...], values)
    assert len(zarr.open_group(session.store, path="g")) == 8
    session.commit("from eight threads")
    np.testing.assert_array_equal(zarr.open_array(session.store, path="a", mode="r")[...], values)
    assert sum(1 for key in session.store.list_prefix("g") if key.count("/") == 3) == 64


def test_small_chunks_are_inlined_and_large_ones_are_objects(session: Session) -> None:
    zarr.create_array(
        session.store, name="a", data=np.arange(200, dtype="u1"), chunks=(100,), compressors=None
    )
    zarr.create_array(session.store, name="b", data=np.arange(2000) % 7, chunks=(1000,), compressors=None)
    session.commit("both")

    assert session.chunk_type("/a", (1,)) is ChunkType.inline
    assert session.chunk_type("/b", (1,)) is ChunkType.native


def test_running_event_loop_can_await_the_store(session: Session) -> None:
    async def work() -> list[str]:
        root = await zarr.api.asynchronous.open_group(session.store, mode="a")
        arrays = [root.create_array(f"a{n}", shape=(4,), chunks=(2,), dtype="i4") for n in range(5)]
        for array in await asyncio.gather(*arrays):
            await array.setitem(slice(None), np.arange(4))
        return [key async for key in session.store.list()]

    assert len(asyncio.run(work())) == 16
