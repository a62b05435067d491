"""The folder storage: conditional writes between processes, crashes, names on disk, durability."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from icefloe.config import StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import ABSENT, ALWAYS, ConditionNotMetError, ObjectKind, ObjectNotFoundError, Unchanged
from icefloe.storage.local.folder import LocalStorage
from icefloe.storage.local.lock import LOCK_FILE, lock_folder
from tests.support import processes

PROCESSES = 4
INCREMENTS = 40

COUNT_UP = """
import sys
from icefloe.storage import ConditionNotMetError, Unchanged, local_filesystem_storage

storage = local_filesystem_storage(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        data, version = storage.get("counter")
        try:
            storage.put("counter", b"%d" % (int(data) + 1), Unchanged(version))
            break
        except ConditionNotMetError:
            pass
"""

CREATE_ALL = """
import sys
from icefloe.storage import ABSENT, ConditionNotMetError, local_filesystem_storage

storage = local_filesystem_storage(sys.argv[1])
won = 0
for number in range(int(sys.argv[2])):
    try:
        storage.put(f"refs/{number}/ref.json", sys.argv[3].encode(), ABSENT)
        won += 1
    except ConditionNotMetError:
        pass
print(won)
"""

REPLACE_FOR_EVER = """
import sys
from icefloe.storage import Unchanged, local_filesystem_storage

storage = local_filesystem_storage(sys.argv[1])
print("ready", flush=True)
while True:
    data, version = storage.get("repo")
    storage.put("repo", bytes([(data[0] + 1) % 256]) * 200_000, Unchanged(version))
    storage.put("chunks/x", bytes(100_000))
"""

HOLD_LOCK = """
import sys, time
from icefloe.storage.local.lock import lock_folder

with lock_folder(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(600)
"""


def _run_at_once(programs: Iterable[tuple[object, ...]]) -> list[str]:
    """Run programs at the same time, and return their output."""
    with ExitStack() as stack:
        running = [stack.enter_context(processes.started(*map(str, program))) for program in programs]
        printed = [program.stdout.read() for program in running]
        assert [program.wait() for program in running] == [0] * len(running), printed
    return printed


def test_concurrent_processes_lose_no_update(tmp_path: Path) -> None:
    """The official library loses most of them: it writes to folders unconditionally."""
    storage = LocalStorage(tmp_path)
    storage.put("counter", b"0", ABSENT)

    _run_at_once([(COUNT_UP, tmp_path, INCREMENTS)] * PROCESSES)

    assert storage.get("counter")[0] == b"%d" % (PROCESSES * INCREMENTS)


def test_each_ref_is_created_by_one_process(tmp_path: Path) -> None:
    won = map(int, _run_at_once((CREATE_ALL, tmp_path, 50, name) for name in range(PROCESSES)))

    assert sum(won) == 50
    assert len(list(LocalStorage(tmp_path).list_prefix("refs"))) == 50


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.031, 0.052, 0.087])
def test_kill_during_put_leaves_old_or_new_content(tmp_path: Path, delay_s: float) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("repo", bytes(200_000), ABSENT)
    with processes.started(REPLACE_FOR_EVER, tmp_path) as writer:
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay_s)

        writer.kill()
        writer.wait()

    data, version = storage.get("repo")
    assert len(data) == 200_000
    assert len(set(data)) == 1
    assert {info.key for info in storage.list_prefix()} <= {"repo", "chunks/x"}
    storage.put("repo", b"the lock is free", Unchanged(version))


def test_lock_is_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    with processes.started(HOLD_LOCK, tmp_path) as holder:
        assert holder.stdout.readline() == "locked\n"

        holder.kill()
        holder.wait()

    with lock_folder(str(tmp_path)):
        pass


def test_conditional_writes_ignore_unsafe_settings(tmp_path: Path) -> None:
    settings = StorageSettings(unsafe_use_conditional_update=False, unsafe_use_conditional_create=False)
    storage = LocalStorage(tmp_path).with_settings(settings)
    version = storage.put("repo", b"first", ABSENT)
    storage.put("repo", b"second", Unchanged(version))

    with pytest.raises(ConditionNotMetError):
        storage.put("repo", b"third", Unchanged(version))
    with pytest.raises(ConditionNotMetError):
        storage.put("repo", b"third", ABSENT)


def test_default_settings_of_a_folder_equal_the_official_ones(tmp_path: Path) -> None:
    defaults = LocalStorage(tmp_path).default_settings()

    assert defaults.unsafe_use_conditional_update is False
    assert defaults.unsafe_use_metadata is False
    assert defaults.to_plain()["retries"] == {"max_tries": 1, "initial_backoff_ms": 0, "max_backoff_ms": 0}
    assert defaults.to_plain()["concurrency"] == {
        "max_concurrent_requests_for_object": 5,
        "ideal_concurrent_request_size": 4096,
    }


def test_names_on_disk_match_the_official_library(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    # The directories icechunk 2.3.0 made for branches x?y, one for each character ?.
    official = {
        " ": " ", "!": "!", "$": "$", "&": "&", "'": "'", "(": "(", ")": ")", "+": "+", ",": ",", "-": "-",
        ".": ".", ":": ":", ";": ";", "=": "=", "@": "@", "_": "_", "\t": "%09", '"': "%22", "#": "%23",
        "%": "%25", "*": "%2A", "<": "%3C", ">": "%3E", "?": "%3F", "[": "%5B", "\\": "%5C", "]": "%5D",
        "^": "%5E", "`": "%60", "{": "%7B", "|": "%7C", "}": "%7D", "~": "%7E", "é": "%C3%A9",
        "分": "%E5%88%86",
    }  # fmt: skip

    for character in official:
        storage.put(f"refs/branch.x{character}y/ref.json", b"{}", ABSENT)

    assert set(os.listdir(tmp_path / "refs")) == {f"branch.x{name}y" for name in official.values()}
    listed = {info.key for info in storage.list_prefix("refs")}
    assert listed == {f"refs/branch.x{character}y/ref.json" for character in official}


def test_no_temporary_files_are_left_or_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    version = storage.put("repo", b"a", ABSENT)
    for _ in range(3):
        storage.put("repo", b"b")
        with contextlib.suppress(ConditionNotMetError):
            storage.put("repo", b"c", ABSENT)
        with contextlib.suppress(ConditionNotMetError):
            storage.put("repo", b"c", Unchanged(version))

    assert os.listdir(tmp_path) == ["repo"]

    (tmp_path / "repo#123456").write_bytes(b"left by a killed writer")
    (tmp_path / LOCK_FILE).touch()
    assert [info.key for info in storage.list_prefix()] == ["repo"]


def old_file(path: Path) -> Path:
    """Return a file that was written long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"abc")
    os.utime(path, (0, 0))
    return path


def test_sweep_removes_old_temporary_files_of_the_caller_only(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "repo")
    number = 12345678901234567890
    old_file(tmp_path / f"repo/chunks/a#{number}")
    kept = [
        old_file(tmp_path / f"repo/chunks/b#{number}"),  # not an object of the caller
        old_file(tmp_path / "repo/chunks/a#1"),  # the official library's, or a user's
        old_file(tmp_path / f"repo/mine/a#{number}"),
        old_file(tmp_path / f"elsewhere/a#{number}"),
    ]
    young = tmp_path / f"repo/chunks/a#{number - 1}"
    young.write_bytes(b"")
    (tmp_path / "repo/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "repo/chunks/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"repo/chunks/a#{number + 1}").symlink_to(kept[0])

    before = datetime.now(UTC) - timedelta(hours=1)
    own = {"chunks/a", "chunks/more/a", "more/a", "mine/a"}
    found = storage.sweep(before, ["chunks", "more"], own.__contains__, dry_run=True)
    report = storage.sweep(before, ["chunks", "more"], own.__contains__)

    assert report == found
    assert [(info.key, info.size_bytes) for info in report.deleted] == [(f"chunks/a#{number}", 3)]
    assert not (tmp_path / f"repo/chunks/a#{number}").exists()
    assert young.exists()
    assert all(path.exists() for path in kept)
    assert (tmp_path / f"repo/chunks/a#{number + 1}").is_symlink()


def test_temporary_names_are_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))
    monkeypatch.setattr(os, "replace", lambda *names: os._exit(0))
    if (child := os.fork()) == 0:
        storage.put("chunks/a", b"cut off")  # killed between the write and the rename
    os.waitpid(child, 0)

    report = storage.sweep(datetime.now(UTC) + timedelta(hours=1), ["chunks"], {"chunks/a"}.__contains__)

    assert [info.key for info in report.deleted] == ["chunks/a#" + 20 * "0"]
    assert os.listdir(tmp_path / "chunks") == []


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "repo")
    storage.put("refs/x/ref.json", b"mine")
    (tmp_path / "repo/refs").rename(tmp_path / "elsewhere")
    (tmp_path / "repo/refs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "repo/file").symlink_to(tmp_path / "elsewhere/x/ref.json")

    report = storage.delete(["refs/x/ref.json", "file"])

    assert report.deleted == 1
    assert [path for path, _ in report.failed] == ["refs/x/ref.json"]
    assert "symbolic link" in str(report.failed[0][1])
    assert (tmp_path / "elsewhere/x/ref.json").exists()
    assert not (tmp_path / "repo/file").is_symlink()
    assert storage.get("refs/x/ref.json")[0] == b"mine"


def test_listings_handle_circular_links_and_skip_pipes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "repo")
    storage.put("refs/x/ref.json", b"")
    storage.put("chunks/a", b"")
    storage.put("chunks/below/b", b"")
    (tmp_path / "repo/refs/x/up").symlink_to(tmp_path / "repo")
    (tmp_path / "repo/refs/nowhere").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "repo/refs/pipe")

    assert {info.key for info in storage.list_prefix("refs")} == {
        "refs/x/ref.json",
        "refs/x/up/chunks/a",
        "refs/x/up/chunks/below/b",
    }
    assert [key for part in storage.list_columns("chunks/") for key in part.keys] == ["chunks/a"]


def test_folders_that_cannot_be_locked_get_a_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real = fcntl.flock

    def refuse_folders(descriptor: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(9, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_folders)
    storage = LocalStorage(tmp_path)

    version = storage.put("repo", b"a", ABSENT)
    storage.put("repo", b"b", Unchanged(version))

    assert (tmp_path / LOCK_FILE).exists()
    assert [info.key for info in storage.list_prefix()] == ["repo"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files and folders synced, in order."""
    names: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).partition("#")[0])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return names


def test_files_are_synced_before_the_ref_moves(tmp_path: Path, synced: list[str]) -> None:
    storage = LocalStorage(tmp_path / "root")
    storage.prepare_for_creation()
    for i in range(20):
        storage.put(f"chunks/c{i}", b"x", kind=ObjectKind.CHUNK)
    synced.clear()

    storage.put("repo", b"ref", ABSENT)

    before, after = synced[:-1], synced[-1]
    files = {"repo", *(f"c{i}" for i in range(20))}  # repo: the new content, aside
    # root: `chunks` was made in it, and it in the folder above
    assert set(before) == {*files, "chunks", "root", tmp_path.name}
    assert after == "root"
    synced.clear()
    storage.put("repo", b"ref", Unchanged(storage.get("repo")[1]))
    assert synced == ["repo", "root"]


def test_sync_makes_all_earlier_writes_durable(tmp_path: Path, synced: list[str]) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("chunks/c", b"x")
    storage.put("chunks/deleted", b"x")
    storage.delete(["chunks/deleted"])
    synced.clear()

    storage.sync()
    storage.sync()

    assert sorted(synced) == ["c", "chunks", tmp_path.name]


def test_backup_is_a_hard_link_that_outlives_the_original(tmp_path: Path, synced: list[str]) -> None:
    storage = LocalStorage(tmp_path)
    version = storage.put("repo", b"first", ABSENT)
    synced.clear()

    storage.back_up("repo", "overwritten/repo.1", version)
    newer = storage.put("repo", b"second", Unchanged(version))

    assert storage.get("overwritten/repo.1") == (b"first", version)
    assert storage.get("repo") == (b"second", newer)
    assert {"repo.1", "overwritten"} <= set(synced)
    with pytest.raises(ConditionNotMetError):
        storage.back_up("repo", "overwritten/repo.2", version)
    with pytest.raises(ObjectNotFoundError):
        storage.back_up("nothing", "overwritten/repo.3", version)
    assert not storage.exists("overwritten/repo.2")


def test_backup_is_a_copy_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    storage = LocalStorage(tmp_path)
    version = storage.put("repo", b"first", ABSENT)
    monkeypatch.setattr(os, "link", no_links)

    storage.back_up("repo", "overwritten/repo.1", version)

    assert storage.get("overwritten/repo.1") == (b"first", version)


def test_number_of_unsynced_files_is_limited(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.storage.local.folder._MAX_UNSYNCED", 10)
    storage = LocalStorage(tmp_path)
    for i in range(12):
        storage.put(f"c{i}", b"x")

    assert {f"c{i}" for i in range(11)} <= set(synced)


def test_nothing_is_synced_when_syncing_is_off(tmp_path: Path, synced: list[str]) -> None:
    storage = LocalStorage(tmp_path, sync=False)
    storage.put("chunks/c", b"x")
    version = storage.put("repo", b"x", ABSENT)
    storage.put("repo", b"y", Unchanged(version))
    storage.sync()

    assert synced == []


def test_reading_a_missing_repository_creates_no_folders(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "nowhere")

    assert list(storage.list_prefix()) == []
    assert not storage.exists("repo")
    assert not (tmp_path / "nowhere").exists()


def test_storage_follows_its_folder_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("repo")
    storage.put("a", b"x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert storage.get("a")[0] == b"x"
    assert dict(storage.describe()) == {"type": "local filesystem", "path": "repo"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_raises_an_io_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(StorageError) as caught:
        LocalStorage(tmp_path).put("a", b"x")

    assert caught.value.kind == ErrorKind.IO


@pytest.mark.parametrize("path", ["a" * 300, "file/below", "folder"])
def test_file_system_errors_raise_io_errors(tmp_path: Path, path: str) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("file", b"x")
    storage.put("folder/file", b"x")

    for condition in (ABSENT, ALWAYS):
        with pytest.raises(StorageError) as caught:
            storage.put(path, b"x", condition)
        assert caught.value.kind in (ErrorKind.IO, ErrorKind.STORAGE_OTHER)
        assert not isinstance(caught.value, ObjectNotFoundError)
    assert {info.key for info in storage.list_prefix()} == {"file", "folder/file"}


def _write_in_child(storage: LocalStorage) -> None:
    data, version = storage.get("repo")
    storage.put("chunks/from-child", b"x")
    storage.put("repo", data + b" and child", Unchanged(version))


def test_forked_children_can_write(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("chunks/from-parent", b"x")
    storage.put("repo", b"parent", ABSENT)
    child = multiprocessing.get_context("fork").Process(target=_write_in_child, args=(storage,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child.start()
    child.join(300)

    assert child.exitcode == 0
    assert storage.get("repo")[0] == b"parent and child"
