"""The use of threads by operations of the store, and its listings."""

from __future__ import annotations

import asyncio
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe.store
from icefloe.errors import SessionStateError
from icefloe.repository import Repository
from icefloe.storage.memory import MemoryStorage
from icefloe.store import IcechunkStore, _Pace
from tests.support.zarr_documents import array_document, buffer

PROTOTYPE = default_buffer_prototype()


class RemoteStorage(MemoryStorage):
    """A memory storage whose reads wait until several of them wait at once, as over a network."""

    at_once = 1
    threads: set[str]

    @property
    def answers_at_once(self) -> bool:
        return False

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        if path.startswith("chunks/") and self.at_once > 1:
            self.barrier.wait(timeout=300)
        return super().get_range(path, start, stop)

    def expect(self, readers: int) -> None:
        self.at_once, self.barrier = readers, threading.Barrier(readers)


@pytest.fixture
def storage() -> RemoteStorage:
    return RemoteStorage()


@pytest.fixture
def store(storage: RemoteStorage) -> IcechunkStore:
    repo = Repository.create(storage)
    with repo.transaction("main", message="chunks") as store:
        store.set_sync("a/zarr.json", buffer(array_document((8000,), (1000,))))
        for number in range(8):
            store.set_sync(f"a/c/{number}", buffer(bytes([number]) * 1000))
    return repo.readonly_session("main").store


def test_remote_chunks_are_read_concurrently(storage: RemoteStorage, store: IcechunkStore) -> None:
    storage.expect(8)

    async def read() -> list[Any]:
        return await asyncio.gather(*(store.get(f"a/c/{number}", PROTOTYPE) for number in range(8)))

    assert [value.to_bytes()[0] for value in asyncio.run(read())] == list(range(8))


def test_partial_values_are_read_concurrently(storage: RemoteStorage, store: IcechunkStore) -> None:
    storage.expect(8)

    values = asyncio.run(store.get_partial_values(PROTOTYPE, [(f"a/c/{n}", None) for n in range(8)]))

    assert [value.to_bytes()[0] for value in values if value] == list(range(8))


def test_event_loop_is_not_blocked_by_a_remote_read(storage: RemoteStorage, store: IcechunkStore) -> None:
    storage.expect(2)

    async def read() -> str:
        reading = asyncio.ensure_future(store.get("a/c/0", PROTOTYPE))
        await asyncio.sleep(0)
        storage.barrier.wait(timeout=300)  # were the chunk read in this loop's thread, nobody would come
        await reading
        return "done"

    assert asyncio.run(read()) == "done"


def test_synchronous_io_is_supported_only_on_local_storage(store: IcechunkStore) -> None:
    local = Repository.create(MemoryStorage()).writable_session("main").store

    assert local._supports_sync_io
    assert not store._supports_sync_io


@pytest.mark.parametrize("quick", [True, False])
def test_large_chunks_and_chunks_on_slow_disks_are_written_by_threads(
    monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    session = Repository.create(MemoryStorage()).writable_session("main")
    writers: list[str] = []
    write = session._workspace.write

    def noting(path: str, coords: tuple[int, ...], data: Any) -> None:
        writers.append(threading.current_thread().name)
        write(path, coords, data)

    monkeypatch.setattr(session._workspace, "write", noting)
    monkeypatch.setattr(_Pace, "is_quick", lambda _: quick)
    session.store.set_sync("a/zarr.json", buffer(array_document((2,))))
    asyncio.run(session.store.set("a/c/0", buffer(bytes(100))))
    asyncio.run(session.store.set("a/c/1", buffer(bytes(10_000))))

    asyncio.run(session.store.set("a/c/0", buffer(bytes(1 << 20))))

    assert [name.startswith("icefloe") for name in writers] == [False, not quick, True]


def test_slow_writes_switch_to_threads_temporarily(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(icefloe.store, "time", SimpleNamespace(perf_counter=lambda: now_s))
    pace = _Pace()
    assert pace.is_quick()
    with pace.measured():
        now_s += _Pace._SLOW_S
    assert pace.is_quick()

    with pace.measured():
        now_s += 8 * _Pace._SLOW_S + 0.01

    assert not any(pace.is_quick() for _ in range(_Pace._WRITES_IN_THREADS))
    assert pace.is_quick()


def test_listings_are_sync_and_async_iterators(store: IcechunkStore) -> None:
    async def first_two() -> list[str]:
        listing = store.list()
        found = [await anext(listing), await anext(listing)]
        await listing.aclose()
        return found + [key async for key in listing]

    assert asyncio.run(first_two()) == list(store.list())[:2] == ["a/zarr.json", "a/c/0"]


def test_read_only_store_can_be_pickled(store: IcechunkStore) -> None:
    array = zarr.open_array(store, path="a")

    again = pickle.loads(pickle.dumps(array))

    assert again.store.read_only
    np.testing.assert_array_equal(again[...], array[...])


def test_writable_store_cannot_be_pickled() -> None:
    store = Repository.create(MemoryStorage()).writable_session("main").store

    with pytest.raises(ValueError, match="fork"):
        pickle.dumps(store)


def test_partial_writes_are_rejected(store: IcechunkStore) -> None:
    assert not store.supports_partial_writes
    with pytest.raises(SessionStateError, match="whole"):
        asyncio.run(store.set_partial_values([("a/c/0", 0, b"1")]))
    assert store._repr_html_().startswith("<div")
