"""The folder of a disk cache: shared, bounded, private, and never a source of wrong bytes."""

from __future__ import annotations

import errno
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.storage import disk_cache
from icefloe.storage.disk_cache import CachedLocation, DiskCache
from tests.support import processes

BYTES = b"0123456789" * 10


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", max_bytes=1 << 20)


def reopen(cache: DiskCache, location: str = "here") -> CachedLocation:
    """Open a cache as another process does."""
    disk_cache._open.pop(cache, None)
    return CachedLocation(cache, location)


def files(cache: DiskCache) -> list[Path]:
    """Return the entries."""
    found = [path for path in Path(cache.path).glob("??/*") if not path.name.startswith(".")]
    return sorted(found)


def fail() -> bytes:
    raise AssertionError("not in the cache")


def test_cache_entry_is_loaded_once(cache: DiskCache) -> None:
    assert reopen(cache).get(("a", 0, 100), lambda: BYTES) == BYTES
    assert reopen(cache).get(("a", 0, 100), fail) == BYTES


def test_keys_are_locations_ids_and_ranges(cache: DiskCache) -> None:
    reopen(cache).write(BYTES, "a", 0, 100)

    assert reopen(cache, "there").read("a", 0, 100) is None
    assert reopen(cache).read("b", 0, 100) is None
    assert reopen(cache).read("a", 0, 99) is None
    assert reopen(cache).read("a", 0, 100) == BYTES


@pytest.mark.parametrize("data", [b"", b"x", BYTES])
@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty"])
def test_damaged_entry_is_loaded_again(cache: DiskCache, data: bytes, damage: str) -> None:
    reopen(cache).write(data, "a")
    (entry,) = files(cache)
    whole = entry.read_bytes()

    for at in range(len(whole)):
        damaged = {
            "flip": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            "cut": whole[:at],
            "append": whole + whole[: at + 1],
            "empty": b"",
        }[damage]
        entry.write_bytes(damaged)
        assert reopen(cache).get(("a",), lambda: data) == data
        assert entry.read_bytes() == whole


def test_misplaced_cache_entry_is_not_returned(cache: DiskCache) -> None:
    reopen(cache).write(BYTES, "a")
    (entry,) = files(cache)
    reopen(cache).write(b"other", "b")
    (other,) = set(files(cache)) - {entry}
    other.write_bytes(entry.read_bytes())

    assert reopen(cache).read("b") is None


def test_cache_size_is_bounded(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", max_bytes=20_000)

    for number in range(500):
        reopen(cache).write(os.urandom(number % 1000), number)
        assert sum(path.stat().st_size for path in files(cache)) <= cache.max_bytes

    found = cache.usage()
    assert found.entries == len(files(cache)) > 10
    assert found.size_bytes > cache.max_bytes // 2


def test_large_entries_are_not_cached(cache: DiskCache) -> None:
    reopen(cache).write(bytes(cache.max_bytes // 8), "large")

    assert files(cache) == []


def test_lowering_the_size_limit_deletes_entries(cache: DiskCache) -> None:
    for number in range(100):
        reopen(cache).write(bytes(1000), number)
    smaller = DiskCache(cache.path, 10_000)

    reopen(smaller).write(bytes(1000), "one more")

    assert smaller.usage().size_bytes <= smaller.max_bytes
    assert reopen(smaller).read("one more") is not None


def test_recently_used_entries_are_kept(cache: DiskCache) -> None:
    for number in range(900):
        reopen(cache).write(bytes(1000), number)
    for entry in files(cache):
        os.utime(entry, (1_000_000_000, 1_000_000_000))
    used = range(0, 900, 10)
    assert all(reopen(cache).read(number) for number in used)

    for number in range(300):
        reopen(cache).write(bytes(1000), "new", number)

    kept = [number for number in range(900) if reopen(cache).read(number) is not None]
    assert len(kept) < 800
    assert set(used) <= set(kept)


def test_cache_size_is_recounted_if_the_state_file_is_lost_or_wrong(cache: DiskCache) -> None:
    for number in range(100):
        reopen(cache).write(bytes(1000), number)
    state = Path(cache.path) / "state"
    before = state.read_bytes()

    for damaged in (b"", before[:100], bytes([before[0] ^ 1]) + before[1:]):
        state.write_bytes(damaged)
        entries = disk_cache.get_entries(cache)
        with entries._locked_state() as found:
            assert sum(found.sizes) == cache.usage().size_bytes > 100_000


KILLED = """
import os, signal, sys
from icefloe.storage.disk_cache import CachedLocation, DiskCache

folder, at = sys.argv[1], int(sys.argv[2])
calls = 0

def counted(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

cache = CachedLocation(DiskCache(folder, 8_000), "here")
for name in ("open", "pread", "pwrite", "rename", "unlink", "utime", "mkdir", "fstat"):
    setattr(os, name, counted(getattr(os, name)))
for number in range(at % 7, at % 7 + 30):
    cache.get((number,), lambda: bytes([number]) * 10 * number)
"""


def test_killed_processes_leave_valid_entries(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 8_000)

    codes = [processes.run(KILLED, cache.path, at)[0] for at in [*range(1, 40), *range(40, 280, 20)]]

    assert codes.count(-9) > 40
    found = 0
    for number in range(40):
        data = reopen(cache).read(number)
        assert data in (None, bytes([number]) * 10 * number)
        found += data is not None
    assert found > 5
    actual = sum(path.stat().st_size for path in files(cache))
    assert actual <= cache.max_bytes
    with disk_cache.get_entries(cache)._locked_state() as state:
        assert sum(state.sizes) >= actual
    reopen(cache).write(BYTES, "more")
    assert reopen(cache).read("more") == BYTES


def test_files_of_killed_writers_are_deleted(cache: DiskCache) -> None:
    import fcntl

    reopen(cache).write(BYTES, "a")
    folder = files(cache)[0].parent
    dead, alive = folder / ".1-dead", folder / ".1-alive"
    dead.write_bytes(b"half")
    with alive.open("wb") as file:
        for each in (dead, alive):
            os.utime(each, (1_000_000_000, 1_000_000_000))
        fcntl.flock(file, fcntl.LOCK_EX)

        found = cache.usage()

        assert (dead.exists(), alive.exists(), found.entries) == (False, True, 1)


SHARING = """
import sys
from icefloe.storage.disk_cache import CachedLocation, DiskCache

folder, first = sys.argv[1], int(sys.argv[2])
cache = CachedLocation(DiskCache(folder, 20_000), "here")
for turn in range(20):
    for number in range(first, first + 60):
        data = bytes([number]) * 5 * number
        assert cache.get((number,), lambda: data) == data, number
print("done")
"""


def test_processes_share_a_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 20_000)

    with (
        processes.started(SHARING, cache.path, 0) as one,
        processes.started(SHARING, cache.path, 30) as two,
        processes.started(SHARING, cache.path, 60) as three,
    ):
        printed = [program.stdout.read() for program in (one, two, three)]

    assert printed == ["done\n"] * 3
    found = cache.usage()
    assert found.size_bytes <= cache.max_bytes
    assert found.hits + found.misses == 3 * 20 * 60
    assert found.hits > 0


def test_folder_and_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = DiskCache(tmp_path / "cache")
        reopen(cache).write(BYTES, "a")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in Path(cache.path).rglob("*") if path.is_file()}
    folders = [Path(cache.path), *(path for path in Path(cache.path).rglob("*") if path.is_dir())]
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_existing_empty_folder_becomes_private(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)

    reopen(DiskCache(folder)).write(BYTES, "a")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("problem", ["not empty", "file", "foreign"])
def test_unsuitable_cache_folder_is_rejected(
    tmp_path: Path, problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    if problem == "file":
        folder.write_text("text")
    else:
        folder.mkdir()
    if problem == "not empty":
        (folder / "thesis.txt").write_text("text")
    if problem == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    before = folder.stat().st_mode
    expected = {
        "not empty": "is not empty and not a disk cache",
        "file": "is not a folder",
        "foreign": "belongs to another user",
    }[problem]

    with pytest.raises(InvalidInputError, match=expected):
        disk_cache.choose_disk_cache(folder)

    worker = reopen(DiskCache(folder))  # workers cannot ask anybody, and read without a cache
    assert worker.get(("a",), lambda: BYTES) == BYTES
    assert worker.get(("a",), lambda: b"other") == b"other"
    assert folder.stat().st_mode == before
    (warning,) = caplog.messages
    assert expected in warning


def test_entries_of_other_users_are_ignored(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    location = reopen(cache)
    location.write(BYTES, "a")

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert location.read("a") is None


def test_links_are_not_followed(cache: DiskCache) -> None:
    location = reopen(cache)
    location.write(BYTES, "a")
    (entry,) = files(cache)
    elsewhere = entry.rename(Path(cache.path).parent / "elsewhere")
    entry.symlink_to(elsewhere)

    assert location.read("a") is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_failing_writes_cause_one_warning(
    cache: DiskCache, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    location = reopen(cache)
    location.write(BYTES, "before")

    def full(path: str) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk_cache, "_create_file", full)

    assert location.get(("a",), lambda: BYTES) == BYTES
    assert location.get(("b",), lambda: BYTES) == BYTES
    assert location.get(("before",), fail) == BYTES
    (warning,) = caplog.messages
    assert os.strerror(code) in warning
    assert len(files(cache)) == 1


def test_folder_that_cannot_be_created_causes_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("text")
    cache = disk_cache.choose_disk_cache(tmp_path / "file" / "cache")
    assert cache is not None

    for _ in range(3):
        assert CachedLocation(cache, "here").get(("a",), lambda: BYTES) == BYTES

    (warning,) = caplog.messages
    assert "is not used by this process" in warning
    assert cache.usage().hit_rate is None


def test_deleted_cache_folder_is_not_recreated(cache: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
    import shutil

    location = reopen(cache)
    location.write(BYTES, "a")
    shutil.rmtree(cache.path)

    assert location.get(("a",), lambda: BYTES) == BYTES
    assert location.get(("b",), lambda: BYTES) == BYTES
    assert len(caplog.messages) == 1
    assert not Path(cache.path).exists()


def test_writes_pause_while_the_cache_is_locked(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fcntl

    location = reopen(cache)
    location.write(BYTES, "before")
    monkeypatch.setattr(disk_cache, "_LOCK_S", 0.0)
    with open(Path(cache.path) / "state", "rb") as state:
        fcntl.flock(state, fcntl.LOCK_EX)  # as a process that was stopped with SIGSTOP
        assert location.get(("a",), lambda: BYTES) == BYTES
        assert location.get(("before",), fail) == BYTES

    assert len(files(cache)) == 1
    location._entries._busy_until = 0.0
    location.get(("a",), lambda: BYTES)
    assert len(files(cache)) == 2
    assert caplog.messages == []


FORKING = """
import os, sys
from icefloe.storage import disk_cache

cache = disk_cache.CachedLocation(disk_cache.DiskCache(sys.argv[1]), "here")
for _ in range(2):
    cache.get(("a",), lambda: b"bytes")
child = os.fork()
cache.get(("a",), lambda: b"bytes") if child == 0 else os.waitpid(child, 0)
disk_cache._report_all()
os._exit(0)
"""


def test_forked_process_counts_its_own_reads(cache: DiskCache) -> None:
    assert processes.run(FORKING, cache.path) == (0, "")

    found = cache.usage()

    assert (found.hits, found.misses, found.hit_rate) == (2, 1, 2 / 3)


def test_clear_deletes_all_entries(cache: DiskCache) -> None:
    reopen(cache).write(BYTES, "a")

    cache.clear()

    assert files(cache) == []
    assert cache.usage().size_bytes == 0


@pytest.mark.parametrize(("path", "size"), [("", 1), ("cache", 0), ("cache", -1)])
def test_invalid_arguments_are_refused(path: str, size: int) -> None:
    with pytest.raises(InvalidInputError, match="disk cache"):
        DiskCache(path, size)


def test_disk_caches_are_compared_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    one: Any = DiskCache("cache", 5)

    assert one == DiskCache(tmp_path / "cache", 5) == DiskCache("~/cache", 5)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.path = "other"
