"""Missing, damaged and contradictory files: errors that name the file, or reported gaps."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import zarr
import zstandard

from icefloe.encoding.envelope import HEADER, MAGIC
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcechunkError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.repository import Repository
from icefloe.storage.base import Storage
from tests.support.format import golden
from tests.support.legacy.contents import described
from tests.support.legacy.edits import edited
from tests.support.legacy.locations import contents, place
from tests.support.legacy.repositories import FORMATS, write_older
from tests.support.legacy.small import tiny

ALPHA = "handmade-002-alpha8"
LAST = "handmade-004-0.1.3"
TIP = "snapshots/MA67EQEME6VRHHPT5BHG"
PARENT = "snapshots/SW5143T880YYN2KFHCQ0"
MANIFEST = "manifests/11FKWP1P2ZDYTTXH4160"
NATIVE = "grp/native 日本"


def files_of(name: str, *, without: tuple[str, ...] = (), **others: bytes) -> dict[str, bytes]:
    files = {
        path: data for path, data in golden.load(name).files.items() if not path.startswith(without or "?")
    }
    return files | {path.replace("__", "/"): data for path, data in others.items()}


def array_of(repo: Repository, path: str) -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")


# Missing


@pytest.mark.parametrize("name", [ALPHA, LAST])
def test_missing_tip_raises_an_error(name: str) -> None:
    repo = Repository.open(place(files_of(name, without=(TIP,))))

    with pytest.raises(SnapshotNotFoundError, match="MA67EQEME6VRHHPT5BHG"):
        repo.readonly_session("main")


def test_missing_ancestor_is_described_by_its_descendants(caplog: pytest.LogCaptureFixture) -> None:
    repo = Repository.open(place(files_of(ALPHA, without=(PARENT,))))

    messages = [info.message for info in repo.ancestry(branch="main")]

    assert messages == ["data ❄", "structure only", "Repository initialized"]
    assert "SW5143T880YYN2KFHCQ0 is missing" in caplog.text
    with pytest.raises(SnapshotNotFoundError):
        repo.readonly_session(snapshot_id="SW5143T880YYN2KFHCQ0")


def test_unknown_missing_ancestor_raises_an_error() -> None:
    repo = Repository.open(place(files_of(LAST, without=(PARENT,))))
    history = repo.ancestry(branch="main")

    assert next(history).message == "data ❄"
    with pytest.raises(SnapshotNotFoundError, match="SW5143T880YYN2KFHCQ0"):
        next(history)


def test_chunks_of_a_missing_manifest_raise_an_error() -> None:
    repo = Repository.open(place(files_of(ALPHA, without=(MANIFEST,))))

    assert array_of(repo, NATIVE).shape == (100,)
    with pytest.raises(StorageError, match="11FKWP1P2ZDYTTXH4160"):
        array_of(repo, NATIVE)[:]


@pytest.mark.parametrize("data", [None, b"", b"\0" * 319])
def test_missing_or_short_chunk_object_raises_an_error(data: bytes | None) -> None:
    files = files_of(ALPHA, without=("chunks/65C2772WK3CDTTQBF43G",))
    if data is not None:
        files["chunks/65C2772WK3CDTTQBF43G"] = data

    with pytest.raises(StorageError, match="65C2772WK3CDTTQBF43G"):
        array_of(Repository.open(place(files)), NATIVE)[:]


def test_missing_branch_or_tag_raises_an_error() -> None:
    repo = Repository.open(place(files_of(ALPHA)))

    with pytest.raises(RefNotFoundError):
        repo.lookup_branch("nope")
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("nope")


# References


def test_gap_in_a_branch_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    repo = Repository.open(place(files_of(ALPHA, without=("refs/branch.main/ZZZZZZZY.json",))))

    assert repo.lookup_branch("main") == "MA67EQEME6VRHHPT5BHG"
    assert "branch main: the files of commits 1 are missing" in caplog.text


def test_legacy_branch_without_its_first_file_is_found() -> None:
    repo = Repository.open(place(files_of(ALPHA, without=("refs/branch.main/ZZZZZZZZ.json",))))

    assert repo.lookup_branch("main") == "MA67EQEME6VRHHPT5BHG"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"snapshot": 5}', b'{"snapshot":"nope"}', b"\xff"])
def test_damaged_tip_raises_an_error(data: bytes) -> None:
    repo = Repository.open(place(files_of(ALPHA) | {"refs/branch.main/ZZZZZZZX.json": data}))

    with pytest.raises(FormatError, match=r"refs/branch\.main/ZZZZZZZX\.json"):
        repo.lookup_branch("main")


def test_deleted_tag_is_hidden() -> None:
    storage = place(files_of(LAST) | {"refs/tag.v1/ref.json.deleted": b""})
    repo = Repository.open(storage)

    assert repo.list_tags() == set()
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("v1")


BOTH: dict[str, Callable[[], dict[str, bytes]]] = {
    "MessagePack and draft": lambda: files_of(ALPHA) | files_of("handmade-001-json"),
    "MessagePack and version 1": lambda: files_of(ALPHA) | dict(golden.load("v1-1.1.21-basic").files),
    "draft and version 1": lambda: files_of("handmade-001-json") | dict(golden.load("v1-1.1.21-basic").files),
}


@pytest.mark.parametrize("both", BOTH)
def test_repositories_of_two_formats_at_one_location_raise_an_error(both: str) -> None:
    storage = place(BOTH[both]())

    with pytest.raises(FormatError, match=r"two (old )?formats.*move one of them"):
        Repository.open(storage)


def test_version_2_next_to_old_files_is_opened() -> None:
    storage = place(files_of(ALPHA) | dict(golden.load("v2-2.3.0-basic").files))

    assert Repository.open(storage).spec_version.value == 2


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("refs/branch:main/ZZZZZZZZ.json", "in two folders"),
        ("refs/branch.main/ZZZZZZZZZZZZY.json", "of two forms|both commit"),
        ("refs/tag:v1/ref.json", "in two folders"),
    ],
)
def test_two_files_for_one_reference_raise_an_error(path: str, words: str) -> None:
    storage = place(files_of(ALPHA) | {path: b'{"snapshot":"MA67EQEME6VRHHPT5BHG"}'})

    with pytest.raises(FormatError, match=words):
        Repository.open(storage).list_branches()


def test_unknown_files_are_ignored() -> None:
    strange = {
        "refs/notes.txt": b"x",
        "refs/branch.main/README": b"x",
        "refs/branch.main/zzz.json": b"x",
        "refs/other/ZZZZZZZZ.json": b"x",
        "snapshots/README": b"x",
        "stray": b"x",
    }
    repo = Repository.open(place(files_of(ALPHA) | strange))

    assert repo.list_branches() == {"main", "dev"}
    assert len(list(repo.ancestry(branch="main"))) == 3


# Contents


def zarr_of(value: Any, path: str = "/types/int8") -> Any:
    return value[10][path][3]["Array"][0]


def set_item(index: int, new: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        zarr_of(value)[index] = new

    return change


def set_top(index: int, new: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        value[index] = new

    return change


def set_node(index: int, new: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        value[10]["/types/int8"][index] = new

    return change


SNAPSHOT_DAMAGE: dict[str, tuple[Callable[[Any], None], str]] = {
    "a field more": (lambda value: value.append(1), "12 fields, expected 7 or 8 or 9 or 11"),
    "many fields fewer": (lambda value: value.__delitem__(slice(5, None)), "5 fields"),
    "nodes no map": (set_top(10, [1]), "nodes: a list of 1, expected a map"),
    "time": (set_top(7, ["MA67EQEME6VRHHPT5BHG", "yesterday", "m"]), "invalid time 'yesterday'"),
    "message": (set_top(7, ["MA67EQEME6VRHHPT5BHG", "2024-10-20T12:00:00Z", 5]), "message: a int"),
    "id": (set_top(7, ["MA67", "2024-10-20T12:00:00Z", "m"]), "invalid id 'MA67'"),
    "properties": (set_top(9, {1: 2}), "properties"),
    "history": (set_top(6, [[1, 2]]), "2 fields, expected 3"),
    "manifest files": (set_top(2, [[b"x", 0]]), "an id has 1 bytes"),
    "shape": (set_item(0, [-4, 3]), "expected an integer below 2..64, not -4"),
    "huge shape": (set_item(0, [2**63, 3]), "more than 2\\*\\*32 - 1 chunks"),
    "data type": (set_item(1, "int7"), "unknown data_type 'int7'"),
    "chunk shape": (set_item(2, [0, 2]), "chunk_shape is 0"),
    "ranks": (set_item(2, [2]), "chunk_shape has 1 dimensions, shape has 2"),
    "key encoding": (set_item(3, "Backslash"), "unknown chunk_key_encoding"),
    "fill value": (set_item(4, {"Int8": 300}), "fill_value of int8: 300 does not fit"),
    "fill value of another type": (set_item(4, {"String": "x"}), "fill_value of int8: 'x'"),
    "no fill value": (set_item(4, None), "fill_value of int8: None"),
    "codecs": (set_item(5, [[1, 2, 3]]), "a codec has 3 fields"),
    "dimension names": (set_item(7, ["x"]), "1 dimension_names for 2 dimensions"),
    "node id": (set_node(0, -1), "invalid id -1"),
    "path": (set_node(1, "/elsewhere"), "contains the path '/elsewhere'"),
    "attributes": (set_node(2, {"Inline": 5}), "attributes: a int"),
    "attributes elsewhere": (set_node(2, {"Ref": ["x", 0, []]}), "in a separate file are not supported"),
    "node data": (set_node(3, "Dataset"), "neither a group nor an array"),
    "two with one id": (set_node(0, "Y9K1HJKZCMJPP"), "two nodes have the same id"),
}


@pytest.mark.parametrize("what", SNAPSHOT_DAMAGE)
def test_snapshot_with_wrong_fields_raises_an_error(what: str) -> None:
    change, words = SNAPSHOT_DAMAGE[what]
    files = files_of(ALPHA)
    repo = Repository.open(place(files | {TIP: edited(files[TIP], change)}))

    with pytest.raises(FormatError, match=f"{TIP}.*{words}"):
        repo.readonly_session("main")


def payload(new: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        chunks = value[2]
        for key in list(chunks):
            if key[0] == "K6DA9NAD7V764":
                chunks[key] = new

    return change


MANIFEST_DAMAGE: dict[str, tuple[Callable[[Any], None], str]] = {
    "kind": (payload({"Elsewhere": 1}), "unknown kind of chunk 'Elsewhere'"),
    "no kind": (payload(5), "invalid variant 5"),
    "id": (payload({"Ref": ["x", 0, 1]}), "invalid id 'x'"),
    "offset": (payload({"Ref": ["65C2772WK3CDTTQBF43G", -1, 1]}), "offset of a chunk"),
    "end": (payload({"Ref": ["65C2772WK3CDTTQBF43G", 2**64 - 1, 2]}), "ends beyond 2"),
    "inline": (payload({"Inline": [1, 256]}), "not a list of bytes"),
    "location": (
        payload({"Virtual": [{"Relative": "x"}, 0, 1, None]}),
        "virtual location 'Relative'",
    ),
    "checksum": (payload({"Virtual": ["s3://b/x", 0, 1, {"Md5": "x"}]}), "unknown kind of checksum 'Md5'"),
    "coordinates": (lambda value: value[2].update({("K6DA9NAD7V764", (2**32,)): {"Inline": b""}}), "below 2"),
    "key": (lambda value: value[2].update({5: {"Inline": b""}}), "invalid chunk 5"),
    "no map": (set_top(2, 5), "chunks: expected a map, not 5"),
    "fields": (lambda value: value.extend([1, 2]), "a manifest has 5 fields"),
}


@pytest.mark.parametrize("what", MANIFEST_DAMAGE)
def test_manifest_with_wrong_fields_raises_an_error(what: str) -> None:
    change, words = MANIFEST_DAMAGE[what]
    files = files_of(ALPHA)
    repo = Repository.open(place(files | {MANIFEST: edited(files[MANIFEST], change)}))

    with pytest.raises(FormatError, match=f"{MANIFEST}.*{words}"):
        array_of(repo, NATIVE)[:]


def test_unknown_fields_of_a_map_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    files = dict(golden.load("handmade-001-json").files)
    for path, data in files.items():
        if path.startswith(("s/", "m/", "r/")):
            files[path] = json.dumps({**json.loads(data), "colour": "blue"}).encode()

    repo = Repository.open(place(files))
    array_of(repo, NATIVE)[:]

    told = [record.message for record in caplog.records if "colour" in record.message]
    assert {message[0] for message in told} == {"s", "m", "r"}


@pytest.mark.parametrize("lacking", ["nodes", "metadata", "short_term_history", "properties"])
def test_map_without_a_required_field_raises_an_error(lacking: str) -> None:
    files = dict(golden.load("handmade-001-json").files)
    for path in [path for path in files if path.startswith("s/")]:
        stored = json.loads(files[path])
        stored.pop(lacking)
        files[path] = json.dumps(stored).encode()

    with pytest.raises(FormatError, match="a snapshot lacks"):
        Repository.open(place(files)).readonly_session("main")


def test_file_of_another_type_raises_an_error() -> None:
    files = files_of(LAST)

    repo = Repository.open(place(files | {MANIFEST: files[TIP]}))

    with pytest.raises(FormatError, match="the file has type 1, expected manifest"):
        array_of(repo, NATIVE)[:]


def test_damaged_log_raises_an_error() -> None:
    path = "transactions/MA67EQEME6VRHHPT5BHG"
    repo = Repository.open(place(files_of(ALPHA) | {path: b"\xc1"}))

    with pytest.raises(FormatError, match=path):
        repo.diff(from_snapshot_id="1233FHBSJH0VT209GERG", to_branch="main")


@pytest.mark.parametrize("data", [b"\xff", b"- 1", b"a: [", b"a: &x 1\nb: *x"])
def test_damaged_configuration_raises_an_error(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"config\.yaml") as caught:
        Repository.open(place(files_of(ALPHA) | {"config.yaml": data}))

    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


# Bounds

ZEROS = zstandard.ZstdCompressor().compress(b"\xdd\x08\0\0\0" + b"\xc0" * (1 << 27))
BOMBS: dict[str, bytes] = {
    "a list that claims too much": b"\xdd\xff\xff\xff\xff",
    "a map that claims too much": b"\xdf\xff\xff\xff\xff\x01",
    "bytes that claim too much": b"\xc6\xff\xff\xff\xff",
    "lists in lists": b"\x91" * 100_000,
    "maps in maps": b"\x81\x01" * 100_000,
    "zeros behind zstd": ZEROS,
    "zeros behind a header": HEADER.pack(MAGIC, b"x".ljust(24), 1, 1, 1) + ZEROS,
    "lists in lists in JSON": b"[" * 100_000,
    "a number of many digits": b"[" + b"1" * 10_000 + b"]",
    "nothing": b"",
    "half a header": MAGIC,
    "an extension": b"\xd4\x01\x00",
    "bytes to spare": b"\x90\x90",
}


@pytest.mark.parametrize("what", BOMBS)
def test_malicious_file_is_rejected_in_bounded_memory(what: str) -> None:
    repo = Repository.open(place(files_of(ALPHA) | {TIP: BOMBS[what]}))

    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=TIP):
            repo.readonly_session("main")
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


# Damage anywhere


def damaged(data: bytes, step: int) -> list[tuple[bytes, bool]]:
    """Return a file cut off at many places, and with many bits flipped; true where it is cut."""
    cuts = [(data[:at], True) for at in range(0, len(data), step)]
    flips = [
        (data[:at] + bytes([data[at] ^ 1 << (at % 8)]) + data[at + 1 :], False)
        for at in range(0, len(data), step)
    ]
    return cuts + flips


def check_damage(name: str, places: int) -> tuple[int, int]:
    """Return the numbers of damaged files that were tried and rejected. Truncation must be detected."""
    source = tiny()
    older: Storage = place({})
    write_older(source, older, FORMATS[name])
    files, expected = contents(older), described(source)
    refused = tried = 0
    for path, data in files.items():
        for wrong, is_cut in damaged(data, max(len(data) // places, 1)):
            tried += 1
            try:
                found = described(Repository.open(place(files | {path: wrong})))
            except IcechunkError:
                refused += 1
                continue
            # Without a checksum, a flipped bit can change a value; truncation cannot.
            assert not is_cut or found == expected, (path, len(wrong))
    return tried, refused


@pytest.mark.parametrize("name", ["001-json", "002-alpha9", "004-0.1.3"])
def test_damaged_file_raises_an_error_or_is_harmless(name: str) -> None:
    tried, refused = check_damage(name, places=2)

    assert tried > 50
    assert refused > tried // 3
