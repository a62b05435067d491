"""Syncing of a folder: all written files, with and without threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from icefloe.storage.local import sync as syncing
from icefloe.storage.local.sync import Unsynced, sync_all

QUICK_DISK, SLOW_DISK = 1e9, -1.0


@pytest.fixture(params=[QUICK_DISK, SLOW_DISK])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Set the duration of a sync after which threads are used."""
    monkeypatch.setattr(syncing, "_SLOW_S", request.param)
    return float(request.param)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the synced files and the threads that synced them."""
    found: list[tuple[str, int]] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append((name, threading.get_ident()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return found


def _files(folder: Path, count: int) -> list[str]:
    files = [folder / f"file{number}" for number in range(count)]
    for file in files:
        file.write_bytes(b"x")
    return list(map(str, files))


def test_files_folders_and_temporary_files_are_synced_once(
    tmp_path: Path, disk: float, synced: list[tuple[str, int]]
) -> None:
    unsynced = Unsynced()
    for file in _files(tmp_path, 5):
        unsynced.add(file)
    aside = os.open(tmp_path / "aside", os.O_WRONLY | os.O_CREAT)

    unsynced.sync(aside)
    unsynced.sync()

    os.close(aside)
    assert sorted(name for name, _ in synced) == sorted(
        ["aside", tmp_path.name, *(f"file{number}" for number in range(5))]
    )
    assert synced[0][0] == "aside"  # it shows how busy the disk is


def test_fast_disk_syncs_a_few_files_in_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(syncing, "_SLOW_S", QUICK_DISK)

    sync_all(_files(tmp_path, 8))

    assert {thread for _, thread in synced} == {threading.get_ident()}


@pytest.mark.parametrize(("slow_s", "count"), [(SLOW_DISK, 3), (QUICK_DISK, 100)])
def test_threads_help_on_a_slow_disk_or_with_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_s: float, count: int
) -> None:
    own, done, helped = threading.get_ident(), [], threading.Event()

    def wait_for_help(_: int) -> None:
        done.append(threading.get_ident())
        if done[-1] != own:
            helped.set()
        elif len(done) > 1:
            assert helped.wait(60)

    monkeypatch.setattr(syncing, "_SLOW_S", slow_s)
    monkeypatch.setattr(os, "fsync", wait_for_help)

    sync_all(_files(tmp_path, count))

    assert len(done) == count
    assert helped.is_set()


def test_deleted_files_are_skipped(tmp_path: Path, disk: float) -> None:
    files = _files(tmp_path, 4)
    os.unlink(files[2])

    sync_all(files)


def test_disk_failure_is_reported(tmp_path: Path, disk: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("file70"):
            raise OSError(5, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="broken"):
        sync_all(_files(tmp_path, 100))
