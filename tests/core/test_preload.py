"""Manifests that are preloaded when a session opens, counted at the storage."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import zarr

from icefloe import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    Repository,
    RepositoryConfig,
    Storage,
    in_memory_storage,
)
from icefloe._internal.concurrency import get_pool
from icefloe.core.cache import WeightedCache
from icefloe.core.preload import _THREADS
from icefloe.errors import StorageError
from icefloe.storage.memory import MemoryStorage

SIZES = {"data": 40, "lat": 3, "lon": 4, "time": 5}
EVERYTHING = ManifestPreloadCondition.true()


@pytest.fixture
def place() -> Storage:
    """Create four arrays with 40, 3, 4 and 5 chunks, each with its own manifest."""
    storage = in_memory_storage()
    repo = Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=0))
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name, chunks in SIZES.items():
        group.create_array(name, shape=(chunks,), chunks=(1,), dtype="i8")[:] = 7
    session.commit("four arrays")
    return storage


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the manifests that are read from memory storages."""
    seen: list[str] = []
    get_range = MemoryStorage.get_range

    def counted(self: MemoryStorage, path: str, start: int, stop: int | None) -> bytes:
        if path.startswith("manifests/"):
            seen.append(path)
        return get_range(self, path, start, stop)

    monkeypatch.setattr(MemoryStorage, "get_range", counted)
    return seen


def opened(storage: Storage, preload: ManifestPreloadConfig | None) -> Repository:
    return Repository.open(storage, RepositoryConfig(manifest=ManifestConfig(preload=preload)))


def finish() -> None:
    """Wait until the background pool is idle: every thread of the pool passes here twice.

    The first task only chooses manifests and submits others.
    """
    for _ in range(2):
        barrier = threading.Barrier(_THREADS + 1)
        for _ in range(_THREADS):
            get_pool("preload", _THREADS).submit(barrier.wait)
        barrier.wait(300)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (ManifestPreloadConfig(preload_if=EVERYTHING), {"data", "lat", "lon", "time"}),
        (ManifestPreloadConfig(), {"lat", "lon", "time"}),
        (ManifestPreloadConfig(preload_if=EVERYTHING, max_total_refs=0), set()),
        (ManifestPreloadConfig(preload_if=EVERYTHING, max_total_refs=8), {"lat", "lon"}),
        (ManifestPreloadConfig(preload_if=EVERYTHING, max_total_refs=44), {"data", "lat"}),
        (ManifestPreloadConfig(preload_if=EVERYTHING, max_arrays_to_scan=2), {"data", "lat"}),
        (ManifestPreloadConfig(preload_if=EVERYTHING, max_arrays_to_scan=0), set()),
        (ManifestPreloadConfig(preload_if=ManifestPreloadCondition.false()), set()),
        (ManifestPreloadConfig(preload_if=ManifestPreloadCondition.num_refs(4, 6)), {"lon", "time"}),
        (ManifestPreloadConfig(preload_if=ManifestPreloadCondition.path_matches("^/l")), {"lat", "lon"}),
        (None, set()),
    ],
)
def test_configured_manifests_are_preloaded(
    place: Storage, reads: list[str], config: ManifestPreloadConfig | None, names: set[str]
) -> None:
    repo = opened(place, config)

    session = repo.readonly_session("main")
    finish()
    preloaded = set(reads)
    for name in SIZES:
        assert zarr.open_array(session.store, path=name)[0] == 7

    assert len(reads) == len(SIZES)  # none is read twice
    assert {array_of(repo, session.snapshot_id, path) for path in preloaded} == names


def array_of(repo: Repository, snapshot_id: str, manifest: str) -> str:
    refs = {f"manifests/{info.id}": info.num_chunk_refs for info in repo.list_manifest_files(snapshot_id)}
    return next(name for name, size in SIZES.items() if size == refs[manifest])


def test_same_snapshot_is_preloaded_once(place: Storage, reads: list[str]) -> None:
    repo = opened(place, ManifestPreloadConfig())

    for _ in range(3):
        repo.readonly_session("main")
    repo.writable_session("main")
    finish()

    assert len(reads) == 3


def test_remote_storage_is_preloaded_by_default(
    place: Storage, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStorage, "answers_at_once", False)

    Repository.open(place).readonly_session("main")
    finish()

    assert len(reads) == 3


def test_opening_a_repository_does_not_wait_for_preloading(
    place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    get_range = MemoryStorage.get_range

    def broken(self: MemoryStorage, path: str, start: int, stop: int | None) -> bytes:
        if threading.current_thread().name.startswith("icefloe-preload"):
            go_on.wait(300)
            raise StorageError("the line is dead")
        return get_range(self, path, start, stop)

    monkeypatch.setattr(MemoryStorage, "get_range", broken)

    session = opened(place, ManifestPreloadConfig()).readonly_session("main")  # would wait forever
    assert zarr.open_array(session.store, path="data")[0] == 7
    go_on.set()
    finish()

    assert zarr.open_array(session.store, path="lat")[0] == 7


def test_threads_share_one_preload() -> None:
    cache = WeightedCache[str, int](10, lambda value: 1)
    started = threading.Barrier(4)
    loads: list[int] = []

    def load() -> int:
        loads.append(1)
        return 5

    def ask(_: int) -> int:
        started.wait()
        return cache.get("key", slowly(load))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [5] * 4
    assert len(loads) == 1


def slowly(load: Callable[[], int]) -> Callable[[], int]:
    def wait_and_load() -> int:
        threading.Event().wait(0.05)
        return load()

    return wait_and_load


def test_thread_waiting_for_a_failed_preload_tries_again() -> None:
    cache = WeightedCache[str, int](10, lambda value: 1)
    in_load, go_on = threading.Event(), threading.Event()

    def fail() -> int:
        in_load.set()
        go_on.wait(300)
        raise StorageError("lost")

    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(cache.get, "key", fail)
        in_load.wait(300)
        waiting = threads.submit(cache.get, "key", lambda: 5)
        go_on.set()
        with pytest.raises(StorageError):
            failing.result()
        assert waiting.result() == 5
    assert cache.get("key", lambda: 6) in (5, 6)


def test_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    cache = WeightedCache[str, int](10, lambda value: 1)
    cache._loading["key"] = Future()
    with cache._lock:
        if (child := os.fork()) == 0:
            signal.alarm(60)  # kill the child if it hangs
            os._exit(0 if [cache.get("key", lambda: 5), cache.get("key", lambda: 6)] == [5, 5] else 1)

    assert os.waitpid(child, 0)[1] == 0
