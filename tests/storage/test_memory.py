"""The memory storage across processes."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings

from icefloe.storage import ABSENT, Unchanged
from icefloe.storage.memory import MemoryStorage


def _use_in_child(storage: MemoryStorage, results: multiprocessing.SimpleQueue[bytes]) -> None:
    data, version = storage.get("a")
    storage.put("a", data + b" and child", Unchanged(version))
    results.put(storage.get("a")[0])


def test_forked_child_sees_objects_even_if_the_lock_was_held() -> None:
    storage = MemoryStorage()
    storage.put("a", b"parent", ABSENT)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[bytes] = context.SimpleQueue()
    child = context.Process(target=_use_in_child, args=(storage, results))

    with storage._shelf.lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child.start()
    child.join(300)

    assert child.exitcode == 0
    assert results.get() == b"parent and child"
    assert storage.get("a")[0] == b"parent"


def test_pickled_storage_is_an_independent_copy() -> None:
    storage = MemoryStorage()
    version = storage.put("a", b"x")

    copy = pickle.loads(pickle.dumps(storage))
    copy.put("a", b"y", Unchanged(version))

    assert copy.get("a")[0] == b"y"
    assert storage.get("a") == (b"x", version)


def test_storages_with_other_settings_share_objects() -> None:
    storage = MemoryStorage()

    storage.with_settings(storage.default_settings()).put("a", b"x")

    assert storage.exists("a")
