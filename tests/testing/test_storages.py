"""Storages that wrap another one and call hooks before and after requests."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import zarr

import icefloe
from icefloe.config import StorageSettings
from icefloe.storage import Storage, in_memory_storage, local_filesystem_storage
from icefloe.testing import LatencyStorage
from icefloe.testing.storages import PassingStorage


class CountingStorage(PassingStorage):
    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def reading(self) -> None:
        self.calls["read"] += 1

    def writing(self) -> None:
        self.calls["write"] += 1

    def done(self) -> None:
        self.calls["done"] += 1


def test_repository_works_through_a_latency_storage(tmp_path: Path) -> None:
    storage = CountingStorage(local_filesystem_storage(str(tmp_path / "here")))
    repo = icefloe.Repository.create(storage)
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", data=np.arange(3))

    opened = icefloe.Repository.open(local_filesystem_storage(str(tmp_path / "here")))

    assert next(opened.ancestry(branch="main")).message == "one"
    assert storage.calls["read"] > 0
    assert storage.calls["write"] >= 6  # twice the repo info and its backup, a snapshot, a log, a manifest
    assert sorted(storage.list_objects()) == sorted(opened.storage.list_objects())


def test_latency_can_be_changed_while_a_repository_is_open() -> None:
    storage = LatencyStorage(in_memory_storage(), write_latency_ms=15)
    other = storage.with_settings(StorageSettings(minimum_size_for_multipart_upload=7))

    storage.write_latency_ms, storage.read_latency_ms = 0, 3

    assert (other.write_latency_ms, other.read_latency_ms) == (0, 3)
    assert other.settings.minimum_size_for_multipart_upload == 7
    assert repr(storage) == repr(in_memory_storage())
    assert pickle.loads(pickle.dumps(storage)).read_latency_ms == 3
