"""Listings of folders as columns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icefloe._internal.ids import ChunkId
from icefloe.maintenance.listings import filter_folder, list_folder
from icefloe.storage import in_memory_storage, local_filesystem_storage
from icefloe.storage.base import LISTED_AT_ONCE, Storage

EARLY_US, LATE_US = 1_600_000_000_000_001, 1_700_000_000_000_000


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return in_memory_storage() if request.param == "memory" else local_filesystem_storage(str(tmp_path))


def test_listing_contains_sorted_ids_only(storage: Storage) -> None:
    wanted = {bytes(ChunkId.random()): size for size in range(50)}
    for id, size in wanted.items():
        storage.put(f"chunks/{ChunkId(id)}", bytes(size))
    one = str(ChunkId.random())
    for stray in (one.lower(), f"{one}0", one[:-1], f"x/{one[:-2]}", "é" * 20, f"{one[:-1]}1"):
        storage.put(f"chunks/{stray}", b"stray")

    listing = list_folder(storage, "chunks")

    assert [row.tobytes() for row in listing.ids] == sorted(wanted)
    assert listing.sizes.tolist() == [wanted[id] for id in sorted(wanted)]
    assert set(listing.paths()) == {f"chunks/{ChunkId(id)}" for id in wanted}


def test_listing_of_a_missing_folder_is_empty(storage: Storage) -> None:
    listing = list_folder(storage, "chunks")

    assert (len(listing), listing.ids.shape, listing.paths()) == (0, (0, 12), [])


def test_listing_joins_several_parts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("base", "local.folder"):
        monkeypatch.setattr(f"icefloe.storage.{module}.LISTED_AT_ONCE", 7)
    ids = sorted(bytes(ChunkId.random()) for _ in range(30))
    for id in ids:
        storage.put(f"chunks/{ChunkId(id)}", b"x")

    assert LISTED_AT_ONCE > 7
    assert [len(part.keys) for part in storage.list_columns("chunks/")] == [7, 7, 7, 7, 2]
    assert [row.tobytes() for row in list_folder(storage, "chunks").ids] == ids


def test_parts_are_filtered_one_by_one(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("base", "local.folder"):
        monkeypatch.setattr(f"icefloe.storage.{module}.LISTED_AT_ONCE", 4)
    for size in range(10):
        storage.put(f"chunks/{ChunkId.random()}", bytes(size))

    left = filter_folder(storage, "chunks", lambda part: part.take(part.sizes > 6), dated=False)

    assert sorted(left.sizes.tolist()) == [7, 8, 9]
    assert len(left.times_us) == 0
    assert len(left.take(left.sizes > 8).paths()) == 1


def test_listing_has_modification_times_of_the_storage(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    early, late = ChunkId(bytes(12)), ChunkId(b"\xff" * 12)
    for id, time_us in ((early, EARLY_US), (late, LATE_US)):
        storage.put(f"chunks/{id}", b"x")
        # A time between two microseconds is before the later one.
        os.utime(tmp_path / "chunks" / str(id), ns=(time_us * 1000 + 999,) * 2)

    assert list_folder(storage, "chunks").times_us.tolist() == [EARLY_US, LATE_US]
