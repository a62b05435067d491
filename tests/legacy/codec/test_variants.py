"""All variants that the documentation allows are read: maps or arrays, other names, orders and keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import zarr

from icefloe.legacy.codec.manifest import MANIFEST
from icefloe.legacy.codec.snapshot import MANIFEST_REF, METADATA, NODE, SNAPSHOT
from icefloe.legacy.codec.structures import Structure
from icefloe.legacy.codec.transaction_log import TRANSACTION_LOG
from icefloe.legacy.codec.zarr_json import ARRAY_METADATA
from icefloe.repository import Repository
from tests.support.format import golden
from tests.support.legacy.contents import described
from tests.support.legacy.edits import edited, unpacked
from tests.support.legacy.files import pack
from tests.support.legacy.locations import place

ALPHA = "handmade-002-alpha8"
DRAFT = "handmade-001-json"


def named(structure: Structure, value: Any) -> dict[str, Any]:
    """Return a structure as a map of its fields."""
    order = next(order for order in structure.orders if len(order) == len(value))
    return dict(zip(order, value, strict=True))


def named_snapshot(value: Any) -> dict[str, Any]:
    fields = named(SNAPSHOT, value)
    fields["metadata"] = named(METADATA, fields["metadata"])
    fields["short_term_history"] = [named(METADATA, entry) for entry in fields["short_term_history"]]
    fields["manifest_files"] = [{"id": id, "format_version": v} for id, v in fields["manifest_files"]]
    for path, stored in fields["nodes"].items():
        node = named(NODE, stored)
        if node["node_data"] != "Group":
            metadata, refs = node["node_data"]["Array"]
            array = named(ARRAY_METADATA, metadata)
            array["codecs"] = [{"name": name, "configuration": c} for name, c in array["codecs"]]
            node["node_data"] = {"Array": [array, [named(MANIFEST_REF, ref) for ref in refs]]}
        fields["nodes"][path] = node
    return fields


def named_manifest(value: Any) -> dict[str, Any]:
    fields = named(MANIFEST, value)
    for payload in fields["chunks"].values():
        if "Ref" in payload:
            payload["Ref"] = dict(zip(("id", "offset", "length"), payload["Ref"], strict=True))
    return fields


def as_maps(files: Mapping[str, bytes]) -> dict[str, bytes]:
    changes: dict[str, Callable[[Any], Any]] = {
        "snapshots": named_snapshot,
        "manifests": named_manifest,
        "transactions": lambda value: named(TRANSACTION_LOG, value),
    }
    return {
        path: pack(changes[folder](unpacked(data))) if (folder := path.split("/")[0]) in changes else data
        for path, data in files.items()
    }


def with_suffix(files: Mapping[str, bytes]) -> dict[str, bytes]:
    folders = ("snapshots/", "manifests/")
    return {f"{path}.msgpack" if path.startswith(folders) else path: data for path, data in files.items()}


def oldest_first(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        path: edited(data, lambda value: value[6].reverse()) if path.startswith("snapshots/") else data
        for path, data in files.items()
    }


ALPHA_VARIANTS = {"maps": as_maps, "suffixes": with_suffix, "history the other way round": oldest_first}


@pytest.mark.parametrize("variant", ALPHA_VARIANTS)
def test_messagepack_variants_decode_to_the_same_values(variant: str) -> None:
    files = golden.load(ALPHA).files
    expected = described(Repository.open(place(files)))

    repo = Repository.open(place(ALPHA_VARIANTS[variant](files)))

    assert described(repo) == expected
    oldest = list(repo.ancestry(branch="main"))[-1].id
    assert repo.diff(from_snapshot_id=oldest, to_branch="main").new_arrays


def keys(change: Callable[[str], str]) -> Callable[[Mapping[str, bytes]], dict[str, bytes]]:
    """Return the draft repository with other keys in its manifests."""

    def changed(files: Mapping[str, bytes]) -> dict[str, bytes]:
        found = dict(files)
        for path, data in files.items():
            if path.startswith("m/"):
                chunks = json.loads(data)["chunks"]
                found[path] = json.dumps({"chunks": {change(key): v for key, v in chunks.items()}}).encode()
        return found

    return changed


def split(key: str) -> tuple[str, list[int]]:
    node, *coords = key.split("/")
    return node, list(map(int, coords))


def as_pairs(files: Mapping[str, bytes]) -> dict[str, bytes]:
    found = dict(files)
    for path, data in files.items():
        if path.startswith("m/"):
            chunks = json.loads(data)["chunks"].items()
            pairs = [[[int(split(key)[0]), split(key)[1]], value] for key, value in chunks]
            found[path] = json.dumps({"chunks": pairs}).encode()
    return found


def by_array(files: Mapping[str, bytes]) -> dict[str, bytes]:
    found = dict(files)
    for path, data in files.items():
        if path.startswith("m/"):
            nested: dict[str, dict[str, Any]] = {}
            for key, value in json.loads(data)["chunks"].items():
                node, coords = split(key)
                nested.setdefault(node, {})[".".join(map(str, coords))] = value
            found[path] = json.dumps({"chunks": nested}).encode()
    return found


def hexadecimal(files: Mapping[str, bytes]) -> dict[str, bytes]:
    from icefloe.legacy.codec.ids import parse_file_name

    found = {}
    for path, data in files.items():
        folder, _, name = path.partition("/")
        raw = parse_file_name(name) if folder != "r" else None
        found[path if raw is None else f"{folder}/{raw.hex()}"] = data
    return found


def suffixed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{path}.json" if path[:2] in ("s/", "m/") else path: data for path, data in files.items()}


def bare_words(files: Mapping[str, bytes]) -> dict[str, bytes]:
    words = (b"NaN", b"Infinity", b"-Infinity")
    found = dict(files)
    for path, data in files.items():
        for word in words if path.startswith("s/") else ():
            data = data.replace(b'"' + word + b'"', word)
        found[path] = data
    return found


def dotted(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: data.replace(b'"Slash"', b'"Dot"') for path, data in files.items()}


DRAFT_VARIANTS: dict[str, Callable[[Mapping[str, bytes]], dict[str, bytes]]] = {
    "commas": keys(lambda key: key.replace("/", ",")),
    "tuples": keys(lambda key: f"({split(key)[0]}, {split(key)[1]})"),
    "JSON": keys(lambda key: json.dumps([int(split(key)[0]), split(key)[1]])),
    "pairs": as_pairs,
    "array by array": by_array,
    "hexadecimal names": hexadecimal,
    "suffixes": suffixed,
    "bare words for numbers": bare_words,
    "chunk keys with dots": dotted,
}


@pytest.mark.parametrize("variant", DRAFT_VARIANTS)
def test_variants_of_the_draft_format_decode_to_the_same_values(variant: str) -> None:
    files = golden.load(DRAFT).files
    expected = described(Repository.open(place(files)))

    assert described(Repository.open(place(DRAFT_VARIANTS[variant](files)))) == expected


def test_null_fill_value_is_read_as_nan(caplog: pytest.LogCaptureFixture) -> None:
    files = {
        path: data.replace(b'{"Float32": "NaN"}', b'{"Float32": null}')
        for path, data in golden.load(DRAFT).files.items()
    }

    repo = Repository.open(place(files))

    array: Any = zarr.open_array(repo.readonly_session("main").store, path="types/float32", mode="r")
    assert array.fill_value != array.fill_value
    assert "null instead of a number" in caplog.text


@pytest.mark.parametrize(
    ("data_type", "fill", "shown", "expected"),
    [
        ("string", {"String": "ß"}, "string", "ß"),
        ("bytes", {"Bytes": [0, 255]}, "bytes", b"\0\xff"),
        ({"rawbits": 16}, {"RawBits": [1, 2]}, "raw_bytes", b"\1\2"),
        ("r16", {"RawBits": [1, 2]}, "raw_bytes", b"\1\2"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_rare_data_types_are_reconstructed(data_type: Any, fill: Any, shown: str, expected: Any) -> None:
    path = "snapshots/MA67EQEME6VRHHPT5BHG"
    codec = [["vlen-utf8" if shown == "string" else "vlen-bytes", None]] if shown != "raw_bytes" else None

    def change(value: Any) -> None:
        fields = value[10]["/empty"][3]["Array"][0]
        fields[1], fields[4] = data_type, fill
        fields[5] = codec or fields[5]

    files = golden.load(ALPHA).files
    repo = Repository.open(place(dict(files) | {path: edited(files[path], change)}))

    array: Any = zarr.open_array(repo.readonly_session("main").store, path="empty", mode="r")
    assert (array.fill_value if shown == "string" else bytes(array.fill_value)) == expected
    assert array[...].shape == (0, 3)


@pytest.mark.parametrize("number", [0, 100, 1099511627775])
def test_sequence_numbers_follow_the_documentation(number: int) -> None:
    from icefloe.legacy.codec.refs import make_sequence_file_name, parse_sequence_number

    assert parse_sequence_number(make_sequence_file_name(number)) == number
    assert parse_sequence_number(make_sequence_file_name(number, long=True)) == number
    assert {0: "ZZZZZZZZ", 100: "ZZZZZZWV", 1099511627775: "00000000"}[number] == make_sequence_file_name(
        number
    )[:8]
