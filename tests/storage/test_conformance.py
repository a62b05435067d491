"""The contract of all storages, tested on each of them."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from icefloe._internal.times import to_microseconds
from icefloe.config import StorageConcurrencySettings, StorageSettings
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import (
    ABSENT,
    ConditionNotMetError,
    ObjectKind,
    ObjectNotFoundError,
    PutCondition,
    Storage,
    Unchanged,
    Version,
)
from icefloe.storage.object_store import storage as objects
from icefloe.storage.probe import probe
from tests.storage.conftest import SECRET
from tests.support.servers import moto

RACERS = 8


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_put_and_get_round_trip(storage: Storage, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    version = storage.put("chunks/a", data)

    assert storage.get("chunks/a") == (data, version)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_put(storage: Storage, wrap: type) -> None:
    storage.put("a", wrap(b"content"))
    storage.put("b", wrap(b"content"), ABSENT)

    assert storage.get("a")[0] == storage.get("b")[0] == b"content"


def test_put_replaces_an_existing_object(storage: Storage) -> None:
    old = storage.put("a", b"old content")
    new = storage.put("a", b"new")

    assert storage.get("a") == (b"new", new)
    assert old != new


def test_missing_object_raises_not_found(storage: Storage) -> None:
    storage.put("a/b", b"")

    for call in (
        lambda: storage.get("missing"),
        lambda: storage.get_range("missing", 0, 1),
        lambda: storage.get_range("missing", 0, None),
        lambda: storage.head("a/c"),
        lambda: storage.get("a"),
        lambda: storage.get("a/b/c"),
        lambda: storage.get_if_changed("missing", Version("x")),
        lambda: storage.copy("missing", "b"),
    ):
        with pytest.raises(ObjectNotFoundError) as caught:
            call()
        assert caught.value.kind == ErrorKind.OBJECT_NOT_FOUND
    assert not storage.exists("missing")


def test_ranges_are_read(storage: Storage) -> None:
    storage.put("a", b"0123456789")

    assert storage.get_range("a", 2, 5) == b"234"
    assert storage.get_range("a", 7, None) == b"789"
    assert storage.get_range("a", 0, 10) == b"0123456789"
    assert storage.get_range("a", 4, 4) == b""
    assert storage.get_range("a", 10, None) == b""
    assert list(storage.get_ranges("a", [(8, 10), (0, 1), (3, 6)])) == [b"89", b"0", b"345"]


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 12), (20, 30)])
def test_ranges_past_the_end_raise_an_error(storage: Storage, start: int, stop: int) -> None:
    storage.put("a", b"0123456789")

    with pytest.raises(StorageError):
        storage.get_range("a", start, stop)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (-2, None)])
def test_invalid_ranges_are_rejected(storage: Storage, start: int, stop: int | None) -> None:
    storage.put("a", b"0123456789")

    with pytest.raises(InvalidInputError) as caught:
        storage.get_range("a", start, stop)

    assert caught.value.kind == ErrorKind.INVALID_BYTE_RANGE


def test_large_objects_are_read_in_parts(storage: Storage) -> None:
    data = bytes(range(256)) * 1000
    storage.put("a", data)

    parted = storage.with_settings(StorageSettings(concurrency=StorageConcurrencySettings(4, 10_000)))

    assert parted.get("a")[0] == data
    assert parted.get_range("a", 5, 200_005) == data[5:200_005]
    assert parted.get("a") == storage.get("a")


def test_head_and_exists_describe_an_object(storage: Storage) -> None:
    version = storage.put("a/b", b"12345")

    info, seen = storage.head("a/b")

    assert (info.key, info.size_bytes, seen) == ("a/b", 5, version)
    assert abs(info.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert storage.exists("a/b")
    assert not storage.exists("a")


def test_listing_is_by_folder(storage: Storage) -> None:
    for key in ("chunks/a", "chunks/b/c", "chunks2/d", "top"):
        storage.put(key, key.encode())

    assert {i.key: i.size_bytes for i in storage.list_prefix("chunks")} == {"chunks/a": 8, "chunks/b/c": 10}
    assert {i.key for i in storage.list_prefix("chunks/")} == {"chunks/a", "chunks/b/c"}
    assert {i.key for i in storage.list_prefix()} == {"chunks/a", "chunks/b/c", "chunks2/d", "top"}
    assert list(storage.list_prefix("nothing")) == []
    assert sorted(storage.list_objects(prefix="chunks")) == [("a", 8), ("b/c", 10)]
    assert {info.key for info in storage.list_objects_metadata()} == {
        "chunks/a",
        "chunks/b/c",
        "chunks2/d",
        "top",
    }


def test_column_listing_equals_plain_listing(storage: Storage) -> None:
    for key in ("chunks/a", "chunks/b/c", "chunks/é %", "other"):
        storage.put(key, key.encode())

    for folder in ("chunks/", "", "nothing"):
        told = [
            (key, size, time_us)
            for part in storage.list_columns(folder)
            for key, size, time_us in zip(part.keys, part.sizes.tolist(), part.times_us.tolist(), strict=True)
        ]
        infos = {info.key: info for info in storage.list_prefix(folder)}
        direct = {key for key in infos if "/" not in key.removeprefix(folder)}
        assert direct <= {key for key, _, _ in told} <= infos.keys()
        assert all(size == infos[key].size_bytes for key, size, _ in told)
        # A datetime may be rounded where a file system knows nanoseconds.
        assert all(abs(time_us - to_microseconds(infos[key].created_at)) <= 1 for key, _, time_us in told)


def test_storage_clock_equals_the_time_of_its_writes(storage: Storage) -> None:
    storage.put("chunks/a", b"x")

    told = storage.clock("chunks/a")

    assert told is None or abs(datetime.now(UTC) - told) < timedelta(minutes=5)
    assert [info.key for info in storage.list_prefix()] == ["chunks/a"]


def test_listing_of_an_empty_storage_is_empty(storage: Storage) -> None:
    assert list(storage.list_prefix()) == []


def test_listing_spans_several_pages(
    storage: Storage, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page has 1000 objects; on Azure it has 5000, too many to write here, but a bulk delete takes 256.
    counts = {"seaweedfs": 1010, "ministack": 1010, "azurite": 300}
    count = counts.get(request.node.callspec.params["storage"])
    if count is None:
        count = 2 * moto.PAGE + 10
        monkeypatch.setattr(objects, "_DELETE_BATCH", moto.PAGE)
    keys = {f"chunks/{i:04}" for i in range(count)}
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda key: storage.put(key, b"x", kind=ObjectKind.CHUNK), keys))

    assert {info.key for info in storage.list_prefix("chunks")} == keys
    assert storage.delete(sorted(keys)).deleted == count
    assert list(storage.list_prefix()) == []


ODD_NAMES = [
    "refs/branch.分支/ref.json",
    "refs/tag.v1 é ~ # % * < > [x] ^ ` {y} | z/ref.json",
    "a%41",
    "plus+and&equals=;,:@$!'()",
    ".hidden",
    "trailing.",
]


@pytest.mark.parametrize("key", ODD_NAMES)
def test_unusual_names_round_trip(storage: Storage, key: str) -> None:
    storage.put(key, key.encode(), ABSENT)

    assert storage.get(key)[0] == key.encode()
    assert [info.key for info in storage.list_prefix()] == [key]
    storage.delete([key])
    assert not storage.exists(key)


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b"])
def test_invalid_paths_are_rejected(storage: Storage, path: str) -> None:
    for call in (
        lambda: storage.put(path, b""),
        lambda: storage.get(path),
        lambda: storage.get_range(path, 0, 1),
        lambda: storage.delete([path]),
    ):
        with pytest.raises(InvalidInputError) as caught:
            call()
        assert caught.value.kind == ErrorKind.INVALID_PATH


def test_conditional_create_needs_an_absent_object(storage: Storage) -> None:
    storage.put("a", b"first", ABSENT)

    with pytest.raises(ConditionNotMetError):
        storage.put("a", b"second", ABSENT)

    assert storage.get("a")[0] == b"first"
    storage.delete(["a"])
    storage.put("a", b"third", ABSENT)
    assert storage.get("a")[0] == b"third"


def test_conditional_replace_needs_an_unchanged_object(storage: Storage) -> None:
    first = storage.put("a", b"first", ABSENT)
    second = storage.put("a", b"second", Unchanged(first))

    with pytest.raises(ConditionNotMetError):
        storage.put("a", b"third", Unchanged(first))

    assert storage.get("a") == (b"second", second)
    third = storage.put("a", b"third", Unchanged(storage.get("a")[1]))
    assert storage.head("a")[1] == third


def test_missing_object_is_not_replaced(storage: Storage) -> None:
    version = storage.put("a", b"first")
    storage.delete(["a"])

    with pytest.raises(ConditionNotMetError):
        storage.put("a", b"second", Unchanged(version))

    assert not storage.exists("a")


def test_unconditional_writes_change_the_version(storage: Storage) -> None:
    version = storage.put("a", b"first", ABSENT)
    storage.put("a", b"in between")

    with pytest.raises(ConditionNotMetError):
        storage.put("a", b"second", Unchanged(version))


def test_get_if_changed_returns_only_new_versions(storage: Storage) -> None:
    first = storage.put("a", b"first")

    assert storage.get_if_changed("a", first) is None
    second = storage.put("a", b"second")
    assert storage.get_if_changed("a", first) == (b"second", second)
    assert storage.get_if_changed("a", Version(None)) == (b"second", second)


def test_copy_duplicates_an_object(storage: Storage) -> None:
    old = storage.put("a", b"old")

    storage.copy("a", "backup/a", old)
    storage.copy("a", "plain")
    storage.put("a", b"new")

    with pytest.raises(ConditionNotMetError):
        storage.copy("a", "late", old)
    assert storage.get("backup/a")[0] == storage.get("plain")[0] == b"old"
    assert not storage.exists("late")


def test_delete_removes_objects(storage: Storage) -> None:
    for key in ("a", "b", "keep"):
        storage.put(key, b"x")

    report = storage.delete(iter(["a", "b", "never-there"]))

    assert (report.deleted, report.failed) == (3, ())
    assert [info.key for info in storage.list_prefix()] == ["keep"]
    assert storage.delete([]).deleted == 0


def test_exactly_one_of_many_concurrent_creators_wins(storage: Storage) -> None:
    winners = _race(storage, "created", ABSENT)

    assert len(winners) == 1
    assert storage.get("created")[0] == b"%d" % winners[0]


def test_exactly_one_of_many_concurrent_replacers_wins(storage: Storage) -> None:
    condition = Unchanged(storage.put("replaced", b"start"))

    winners = _race(storage, "replaced", condition)

    assert len(winners) == 1
    assert storage.get("replaced")[0] == b"%d" % winners[0]


def test_concurrent_threads_lose_no_update(storage: Storage) -> None:
    storage.put("counter", b"0", ABSENT)

    def count_up(_: int) -> None:
        for _ in range(5):
            while True:
                data, version = storage.get("counter")
                try:
                    storage.put("counter", b"%d" % (int(data) + 1), Unchanged(version))
                    break
                except ConditionNotMetError:
                    continue

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count_up, range(4)))

    assert storage.get("counter")[0] == b"20"


def test_readers_see_whole_objects_while_they_are_replaced(storage: Storage) -> None:
    contents = {bytes([letter]) * 50_000 for letter in b"abcd"}
    storage.put("a", min(contents))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                storage.put("a", content)

    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(write)
        seen = {storage.get("a")[0] for _ in range(20)}
        stop.set()
        writing.result()

    assert seen <= contents


def test_storage_can_be_pickled(storage: Storage) -> None:
    storage.put("a", b"content")
    settings = StorageSettings(concurrency=StorageConcurrencySettings(3, 100))

    copy = pickle.loads(pickle.dumps(storage.with_settings(settings)))

    assert copy.get("a")[0] == b"content"
    assert copy.settings.max_concurrent_requests_for_object == 3
    copy.put("b", b"x", ABSENT)


def test_settings_override_the_defaults(storage: Storage) -> None:
    storage_class = "Cool" if storage.describe()["type"] == "Azure" else "STANDARD"
    changed = storage.with_settings(StorageSettings(storage_class=storage_class))

    changed.put("a", b"x")

    assert storage.get("a")[0] == b"x"
    assert changed.settings.chunks_storage_class == storage_class
    assert changed.settings.max_tries == storage.settings.max_tries


def test_put_accepts_object_metadata(storage: Storage) -> None:
    storage.put("a", b"x", metadata={"icspecver": "2"})
    storage.put("b", b"x", ABSENT, metadata={"icspecver": "2"})

    assert storage.get("a")[0] == storage.get("b")[0] == b"x"


def test_reprs_contain_no_secrets(storage: Storage) -> None:
    storage.put("a", b"x")

    for shown in (repr(storage), str(storage), storage._repr_html_(), str(dict(storage.describe()))):
        assert SECRET not in shown
        assert "type" in shown


def test_probe_reports_a_safe_storage_and_cleans_up(storage: Storage) -> None:
    report = probe(storage)

    assert report.safe, str(report)
    assert "safe for concurrent commits" in str(report)
    assert list(storage.list_prefix()) == []


def _race(storage: Storage, path: str, condition: PutCondition) -> list[int]:
    start = threading.Barrier(RACERS)

    def racer(number: int) -> int | None:
        start.wait()
        try:
            storage.put(path, b"%d" % number, condition)
        except ConditionNotMetError:
            return None
        return number

    with ThreadPoolExecutor(RACERS) as threads:
        return [n for n in threads.map(racer, range(RACERS)) if n is not None]
