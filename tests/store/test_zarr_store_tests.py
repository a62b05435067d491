"""Zarr's own tests of stores, with keys and values that a repository can contain."""

# Parameters differ where keys and values do, and zarr's releases differ in their private methods.
# mypy: disable-error-code="override, attr-defined"

from __future__ import annotations

import pickle
from typing import Any, Final

import pytest
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator, sync
from zarr.storage._utils import _normalize_byte_range_index
from zarr.testing.store import StoreTests
from zarr.testing.utils import assert_bytes_equal

from icefloe.core.zarr_keys import ChunkKey, MetadataKey, parse_key
from icefloe.errors import IcechunkError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.store import IcechunkStore
from tests.support.zarr_documents import GROUP, array_document, buffer

KEYS: Final = "arbitrary keys and values: the same with documents and chunks"
SYNC: Final = "an arbitrary key: the same with a chunk"

OVERRIDDEN: Final = {
    "test_store_repr": "abstract in zarr",
    "test_store_supports_writes": "abstract in zarr",
    "test_store_supports_listing": "abstract in zarr",
    "test_serializable_store": "a writable session is not pickled, and no session equals another",
    "test_read_only_store_raises": KEYS,
    "test_with_read_only_store": KEYS,
    "test_get": KEYS + "; no chunk is empty",
    "test_get_not_open": "the array comes before its chunks",
    "test_get_raises": "the array comes before its chunks",
    "test_get_many": KEYS,
    "test_getsize": KEYS + "; no chunk is empty",
    "test_getsize_prefix": "the array comes before its chunks, and its document counts",
    "test_set": KEYS + "; no chunk is empty",
    "test_set_not_open": "the array comes before its chunks",
    "test_set_many": KEYS,
    "test_get_partial_values": KEYS + "; missing keys too",
    "test_exists": KEYS,
    "test_delete": KEYS,
    "test_delete_dir": KEYS,
    "test_delete_nonexistent_key_does_not_raise": KEYS,
    "test_is_empty": KEYS,
    "test_clear": KEYS,
    "test_list": KEYS + "; no chunk is empty",
    "test_list_prefix": KEYS,
    "test_list_empty_path": KEYS + "; no chunk is empty",
    "test_list_dir": KEYS,
    "test_set_if_not_exists": KEYS,
    "test_get_sync": SYNC,
    "test_get_sync_missing": SYNC,
    "test_set_sync": SYNC,
    "test_delete_sync": SYNC,
    "test_delete_sync_missing": SYNC,
    "test_sync_async_set_get_parity": SYNC,
    "test_delete_sync_visible_to_async_get": SYNC,
    "test_get_sync_byte_range_parity": SYNC,
    "test_get_bytes": KEYS,
    "test_get_bytes_sync": KEYS,
    "test_get_json": KEYS,
    "test_get_json_sync": KEYS,
}

NEWER_ZARR: Final = {
    "test_sync_async_set_get_parity",
    "test_delete_sync_visible_to_async_get",
    "test_get_sync_byte_range_parity",
}
OLDER_ZARR: Final = {"test_get_bytes", "test_get_bytes_sync", "test_get_json", "test_get_json_sync"}

DATA: Final = b"\x01\x02\x03\x04"
READ_ONLY: Final = "store was opened in read-only mode and does not support writing"
RANGES: Final = [
    None,
    RangeByteRequest(1, 4),
    RangeByteRequest(1, 99),
    RangeByteRequest(10, 20),
    OffsetByteRequest(1),
    OffsetByteRequest(9),
    SuffixByteRequest(1),
    SuffixByteRequest(9),
]


def put_array(store: IcechunkStore, path: str, shape: tuple[int, ...] = (10,)) -> None:
    store.session._workspace.set_metadata(path, array_document(shape))


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        workspace = store.session._workspace
        match parse_key(key):
            case MetadataKey(path):
                workspace.set_metadata(path, value.to_bytes())
            case ChunkKey(path, coords):
                workspace.write(path, coords, value.to_bytes())

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        workspace = store.session._workspace
        match parse_key(key):
            case MetadataKey(path):
                return buffer(workspace.node(path).user_data)
            case ChunkKey(path, coords):
                ref = workspace.ref(workspace.array(path), coords)
                return buffer(workspace.read(ref, 0, getattr(ref, "length", None) or len(ref.data)))
        raise KeyError(key)

    @pytest.fixture
    def store_kwargs(self, session: Session) -> dict[str, Any]:
        return {"session": session, "read_only": False}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> IcechunkStore:
        return IcechunkStore(**open_kwargs)

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        store = IcechunkStore(**store_kwargs)
        store._is_open = False
        return store

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store).startswith("<icefloe.IcechunkStore")
        assert str(store) == repr(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    async def test_serializable_store(self, repo: Repository) -> None:
        with repo.transaction("main", message="first") as writable:
            await writable.set("zarr.json", buffer(GROUP))
        store = repo.readonly_session("main").store

        again = pickle.loads(pickle.dumps(store))

        assert again.read_only
        assert_bytes_equal(await again.get("zarr.json", default_buffer_prototype()), buffer(GROUP))

    async def test_read_only_store_raises(self, open_kwargs: dict[str, Any]) -> None:
        store = await IcechunkStore.open(**{**open_kwargs, "read_only": True})

        for attempt in (
            store.set("zarr.json", buffer(GROUP)),
            store.set_if_not_exists("zarr.json", buffer(GROUP)),
            store.delete("zarr.json"),
            store.delete_dir("a"),
            store.clear(),
        ):
            with pytest.raises(ValueError, match=READ_ONLY) as error:
                await attempt
            assert isinstance(error.value, IcechunkError)
            assert error.value.kind == "read-only-store"
        with pytest.raises(ValueError, match=READ_ONLY):
            store.set_sync("c", buffer(b"1"))
        with pytest.raises(ValueError, match=READ_ONLY):
            store.delete_sync("c")
        with pytest.raises(ValueError, match=READ_ONLY):
            store.sync_clear()

    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await IcechunkStore.open(**{**open_kwargs, "read_only": True})
        writer = store.with_read_only(read_only=False)
        reader = writer.with_read_only(read_only=True)

        assert not writer._is_open
        assert not writer.read_only
        await writer.set("zarr.json", buffer(GROUP))
        await writer.delete("zarr.json")
        for frozen in (store, reader):
            assert frozen.read_only
            with pytest.raises(ValueError, match=READ_ONLY):
                await frozen.set("zarr.json", buffer(GROUP))
            with pytest.raises(ValueError, match=READ_ONLY):
                await frozen.delete("zarr.json")

    @pytest.mark.parametrize("key", ["c/0", "foo/bar/c/9"])
    @pytest.mark.parametrize("size", [4, 5000], ids=["inline", "native"])
    @pytest.mark.parametrize("byte_range", RANGES, ids=repr)
    async def test_get(
        self, store: IcechunkStore, key: str, size: int, byte_range: ByteRequest | None
    ) -> None:
        put_array(store, "/" + key.rpartition("c/")[0].strip("/"))
        value = buffer(bytes(range(250)) * (size // 250) or DATA)
        await self.set(store, key, value)

        observed = await store.get(key, default_buffer_prototype(), byte_range)

        start, stop = _normalize_byte_range_index(value, byte_range=byte_range)
        assert_bytes_equal(observed, value[start:stop])

    async def test_get_not_open(self, store_not_open: IcechunkStore) -> None:
        put_array(store_not_open, "/")
        await super().test_get_not_open(store_not_open)

    async def test_get_raises(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        await super().test_get_raises(store)

    async def test_get_many(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        wanted = {f"c/{number}": str(number).encode() for number in range(10)}
        for key, value in wanted.items():
            await self.set(store, key, buffer(value))

        found = await _collect_aiterator(
            store._get_many((key, default_buffer_prototype(), None) for key in wanted)
        )

        assert {key: value.to_bytes() for key, value in found if value} == wanted

    @pytest.mark.parametrize("key", ["c/0", "foo/c/3"])
    @pytest.mark.parametrize("size", [4, 5000], ids=["inline", "native"])
    async def test_getsize(self, store: IcechunkStore, key: str, size: int) -> None:
        put_array(store, "/" + key.rpartition("c/")[0].strip("/"))
        await self.set(store, key, buffer(bytes(size)))

        assert await store.getsize(key) == size

    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        put_array(store, "/foo", (2, 2))
        put_array(store, "/foo-2")
        for key in ("foo/c/0/0", "foo/c/0/1", "foo/c/1/0", "foo-2/c/0"):
            await self.set(store, key, buffer(DATA))
        await self.set(store, "foo/c/1/1", buffer(bytes(1000)))

        document = len(array_document((2, 2)))
        assert await store.getsize_prefix("foo/c") == 1012
        assert await store.getsize_prefix("foo/c/1") == 1004
        assert await store.getsize_prefix("foo/") == 1012 + document
        assert await store.getsize_prefix("") == 1016 + document + len(array_document((10,)))
        assert await store.getsize_prefix("fo") == 0

    @pytest.mark.parametrize("key", ["c/0", "foo/c/3"])
    @pytest.mark.parametrize("size", [4, 5000], ids=["inline", "native"])
    async def test_set(self, store: IcechunkStore, key: str, size: int) -> None:
        path = key.rpartition("c/")[0]
        document = array_document((10,))
        await store.set(f"{path}zarr.json", buffer(document))
        await store.set(key, buffer(bytes(size)))

        assert_bytes_equal(await self.get(store, f"{path}zarr.json"), buffer(document))
        assert_bytes_equal(await self.get(store, key), buffer(bytes(size)))

    async def test_set_not_open(self, store_not_open: IcechunkStore) -> None:
        put_array(store_not_open, "/")
        await super().test_set_not_open(store_not_open)

    async def test_set_many(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", buffer(array_document((10,))))
        values = {"zarr.json": GROUP, "foo/c/0": b"0", "foo/c/9": b"9", "bar/zarr.json": GROUP}

        await store._set_many((key, buffer(value)) for key, value in values.items())

        for key, value in values.items():
            assert (await self.get(store, key)).to_bytes() == value

    async def test_get_partial_values(self, store: IcechunkStore) -> None:
        put_array(store, "/foo")
        for number, value in enumerate((b"0123456789", b"0123456789" * 100)):
            await self.set(store, f"foo/c/{number}", buffer(value))
        keys = ("foo/zarr.json", "foo/c/0", "foo/c/1", "foo/c/2", "nowhere/zarr.json", "nowhere/c/0")
        wanted = [(key, request) for key in keys for request in RANGES]

        observed = await store.get_partial_values(default_buffer_prototype(), (pair for pair in wanted))

        expected = [await store.get(key, default_buffer_prototype(), request) for key, request in wanted]
        assert [value and value.to_bytes() for value in observed] == [
            value and value.to_bytes() for value in expected
        ]
        assert [value is None for value in observed] == [False] * 24 + [True] * 24

    async def test_exists(self, store: IcechunkStore) -> None:
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists(".zgroup")
        await store.set("foo/zarr.json", buffer(array_document((10,))))

        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")
        assert not await store.exists("foo/c/99")
        with pytest.raises(ValueError, match="invalid key"):
            await store.exists("foo")

    async def test_delete(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", buffer(GROUP))
        await store.delete("foo/zarr.json")

        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        await store.set("zarr.json", buffer(GROUP))
        for name in ("foo", "foo-bar", "bar"):
            await store.set(f"{name}/zarr.json", buffer(array_document((3, 3))))
            for number in range(9):
                await store.set(f"{name}/c/{number // 3}/{number % 3}", buffer(b"chunk"))

        await store.delete_dir("foo")
        await store.delete_dir("bar/c/1")
        await store.delete_dir("bar/c/2/2")  # a key and no folder
        await store.delete_dir("nothing/here")

        rows = {key.split("/")[2] for key in store.list_prefix("bar/c")}
        assert await store.exists("zarr.json")
        assert not list(store.list_prefix("foo"))
        assert len(list(store.list_prefix("foo-bar"))) == 10
        assert rows == {"0", "2"}
        assert await store.exists("bar/c/2/2")

    async def test_delete_nonexistent_key_does_not_raise(self, store: IcechunkStore) -> None:
        for key in ("foo/zarr.json", "foo/c/0", "zarr.json", ".zarray"):
            await store.delete(key)

        assert not store.session.has_uncommitted_changes

    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await self.set(store, "foo/bar/zarr.json", buffer(array_document((10,))))

        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")
        assert await store.is_empty("foo/bar/c")
        await self.set(store, "foo/bar/c/0", buffer(DATA))
        assert not await store.is_empty("foo/bar/c")
        assert await store.is_empty("foo/bar/c/0")

    async def test_clear(self, store: IcechunkStore) -> None:
        put_array(store, "/foo")
        await self.set(store, "foo/c/1", buffer(DATA))
        await store.clear()

        assert await store.is_empty("")
        assert not store.session.has_uncommitted_changes

    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        values = {"foo/zarr.json": array_document((10,)), **{f"foo/c/{n}": b"1" for n in range(10)}}
        for key, value in values.items():
            await store.set(key, buffer(value))

        assert sorted(await _collect_aiterator(store.list())) == sorted(values)
        assert sorted(store.list()) == sorted(values)

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        prefixes = ("", "a/", "a/b/", "a/b/c/")
        keys = [f"{prefix}zarr.json" for prefix in prefixes]
        await store._set_many((key, buffer(GROUP)) for key in keys)

        for prefix in prefixes:
            found = await _collect_aiterator(store.list_prefix(prefix))
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        values = {
            "foo/bar/zarr.json": array_document((10,)),
            "foo/bar/c/1": b"1",
            "foo/baz/zarr.json": array_document((10,)),
            "foo/baz/c/0": b"0",
        }
        for key, value in values.items():
            await store.set(key, buffer(value))

        assert sorted(store.list()) == sorted(values)
        assert sorted(store.list_prefix("")) == sorted(values)
        assert sorted(store.list_prefix("foo/bar/")) == ["foo/bar/c/1", "foo/bar/zarr.json"]

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list_dir("")) == ()
        for key, value in {
            "foo/zarr.json": array_document((3, 3)),
            "foo/c/1/0": b"1",
            "foo/c/1/2": b"1",
            "group/bar/zarr.json": GROUP,
            "group/bar-2/zarr.json": array_document((3,)),
            "group/bar/deep/er/zarr.json": GROUP,
        }.items():
            await store.set(key, buffer(value))

        expected = {
            "": ["foo", "group"],
            "foo": ["c", "zarr.json"],
            "foo/": ["c", "zarr.json"],
            "foo/c": ["1"],
            "foo/c/1": ["0", "2"],
            "foo/c/0": [],
            "foo/c/1/0": [],
            "foo/d": [],
            "group": ["bar", "bar-2"],
            "group/bar": ["deep", "zarr.json"],
            "group/bar-2": ["zarr.json"],
            "group/bar/deep": ["er"],
            "nothing": [],
        }
        for folder, names in expected.items():
            assert sorted(await _collect_aiterator(store.list_dir(folder))) == names, folder

    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        await self.set(store, "c/0", buffer(b"0000"))

        await store.set_if_not_exists("c/0", buffer(b"1111"))
        await store.set_if_not_exists("c/1", buffer(b"1111"))

        assert (await self.get(store, "c/0")).to_bytes() == b"0000"
        assert (await self.get(store, "c/1")).to_bytes() == b"1111"

    def test_get_sync(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        sync(self.set(store, "c/0", buffer(DATA)))

        found = self._require_get_sync(store).get_sync("c/0")

        assert found is not None
        assert_bytes_equal(found, buffer(DATA))

    def test_get_sync_missing(self, store: IcechunkStore) -> None:
        assert store.get_sync("nowhere/zarr.json") is None
        assert store.get_sync("nowhere/c/0") is None

    def test_set_sync(self, store: IcechunkStore) -> None:
        self._require_set_sync(store).set_sync("zarr.json", buffer(array_document((10,))))
        store.set_sync("c/0", buffer(DATA))

        assert_bytes_equal(sync(self.get(store, "c/0")), buffer(DATA))

    def test_delete_sync(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        store.set_sync("c/0", buffer(DATA))

        self._require_delete_sync(store).delete_sync("c/0")

        assert store.get_sync("c/0") is None

    def test_delete_sync_missing(self, store: IcechunkStore) -> None:
        store.delete_sync("nowhere/zarr.json")
        store.delete_sync("nowhere/c/0")

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: IcechunkStore, direction: str) -> None:
        put_array(store, "/")
        if direction == "set_async_get_sync":
            await store.set("c/0", buffer(DATA))
            found = store.get_sync("c/0")
        else:
            store.set_sync("c/0", buffer(DATA))
            found = await store.get("c/0", default_buffer_prototype())

        assert found is not None
        assert_bytes_equal(found, buffer(DATA))

    async def test_delete_sync_visible_to_async_get(self, store: IcechunkStore) -> None:
        put_array(store, "/")
        await store.set("c/0", buffer(DATA))
        store.delete_sync("c/0")

        assert await store.get("c/0", default_buffer_prototype()) is None

    @pytest.mark.parametrize("byte_range", RANGES, ids=repr)
    async def test_get_sync_byte_range_parity(
        self, store: IcechunkStore, byte_range: ByteRequest | None
    ) -> None:
        put_array(store, "/")
        await store.set("c/0", buffer(DATA))

        found = store.get_sync("c/0", byte_range=byte_range)

        assert found is not None
        assert_bytes_equal(found, await store.get("c/0", default_buffer_prototype(), byte_range))

    if hasattr(StoreTests, "test_get_bytes"):  # zarr 3.1

        async def test_get_bytes(self, store: IcechunkStore) -> None:
            await self.set(store, "zarr.json", buffer(GROUP))

            assert await store._get_bytes("zarr.json", prototype=default_buffer_prototype()) == GROUP
            with pytest.raises(FileNotFoundError):
                await store._get_bytes("nowhere/zarr.json", prototype=default_buffer_prototype())

        def test_get_bytes_sync(self, store: IcechunkStore) -> None:
            sync(self.set(store, "zarr.json", buffer(GROUP)))

            assert store._get_bytes_sync("zarr.json", prototype=default_buffer_prototype()) == GROUP

        async def test_get_json(self, store: IcechunkStore) -> None:
            await self.set(store, "zarr.json", buffer(GROUP))

            document = await store._get_json("zarr.json", prototype=default_buffer_prototype())
            assert document["node_type"] == "group"

        def test_get_json_sync(self, store: IcechunkStore) -> None:
            sync(self.set(store, "zarr.json", buffer(GROUP)))

            document = store._get_json_sync("zarr.json", prototype=default_buffer_prototype())
            assert document["node_type"] == "group"


def test_table_lists_all_overridden_tests() -> None:
    ours = {name for name in vars(TestIcechunkStore) if name.startswith("test_")}
    theirs = {name for name in dir(StoreTests) if name.startswith("test_")}

    assert ours & theirs == {name for name in OVERRIDDEN if name in theirs}
    assert ours - theirs <= NEWER_ZARR
    assert OVERRIDDEN.keys() - theirs <= NEWER_ZARR | OLDER_ZARR
