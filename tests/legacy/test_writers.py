"""Files that `tests.support.legacy` writes equal those of another encoder, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
import zstandard

from icefloe import Repository, in_memory_storage
from icefloe._internal.ids import NodeId
from icefloe.encoding.envelope import HEADER, MAGIC
from icefloe.format.manifest import ChunkRef, InlineRef, NativeRef
from icefloe.legacy.codec.files import loads_json
from icefloe.legacy.codec.ids import make_node_id, parse_file_name, to_raw_id
from icefloe.legacy.codec.manifest import MANIFEST, iterate_chunks
from icefloe.legacy.codec.refs import parse_sequence_number
from icefloe.legacy.codec.snapshot import MANIFEST_REF, METADATA, NODE, SNAPSHOT
from icefloe.legacy.codec.structures import LegacyFindings
from icefloe.legacy.codec.transaction_log import TRANSACTION_LOG
from icefloe.legacy.codec.zarr_json import ARRAY_METADATA
from tests.support.format import golden
from tests.support.legacy.files import (
    FORMATS,
    OlderArray,
    OlderFiles,
    OlderFormat,
    OlderLog,
    OlderNode,
    OlderSnapshot,
    Single,
)
from tests.support.legacy.repositories import write_older

FORM_OF = {
    "handmade-001-json": "001-json",
    "handmade-001-dev-20240918": "001-dev",
    "handmade-rust-alpha1": "002-crate-alpha1",
    "handmade-002-alpha2": "002-alpha2",
    "handmade-002-alpha8": "002-alpha8",
    "handmade-002-alpha9": "002-alpha9",
    "handmade-004-alpha10": "004-alpha10",
    "handmade-004-alpha12": "004-alpha12",
    "handmade-004-alpha15": "004-alpha15",
    "handmade-004-0.1.3": "004-0.1.3",
}
FINDINGS = LegacyFindings()


def unwrapped(data: bytes) -> tuple[bytes, bytes]:
    """Return the header, and the payload without compression."""
    head = data[: HEADER.size] if data.startswith(MAGIC) else b""
    rest = data[len(head) :]
    if rest[:4] == b"\x28\xb5\x2f\xfd":
        rest = zstandard.ZstdDecompressor().decompressobj().decompress(rest)
    return head, rest


def decoded(payload: bytes) -> Any:
    if payload[:1] in b"{[":
        return loads_json(payload, "golden")
    return msgpack.unpackb(payload, use_list=False, strict_map_key=False)


def node(stored: Any, payload: bytes) -> OlderNode:
    fields = NODE.read(stored, "", FINDINGS)
    attributes = fields["user_attributes"]
    array = None
    if fields["node_data"] != "Group":
        metadata, manifests = fields["node_data"]["Array"]
        array = array_of(ARRAY_METADATA.read(metadata, "", FINDINGS), manifests, payload)
    return OlderNode(
        make_node_id(fields["id"], ""),
        fields["path"],
        None if attributes is None else attributes["Inline"],
        array,
    )


def array_of(fields: Mapping[str, Any], manifests: Any, payload: bytes) -> OlderArray:
    refs = [MANIFEST_REF.read(ref, "", FINDINGS) for ref in manifests]
    codecs = [
        (codec["name"], codec["configuration"]) if isinstance(codec, Mapping) else codec
        for codec in fields["codecs"]
    ]
    return OlderArray(
        fields["shape"],
        fields["data_type"],
        fields["chunk_shape"],
        {name: singles(value, name) for name, value in fields["fill_value"].items()},
        codecs,
        fields["storage_transformers"],
        fields["dimension_names"],
        [(to_raw_id(ref["object_id"], ""), ref["extents"]) for ref in refs],
    )


def singles(value: Any, name: str) -> Any:
    if isinstance(value, list | tuple):
        return [singles(item, name) for item in value]
    return (
        Single(value) if name in ("Float16", "Float32", "Complex64") and not isinstance(value, str) else value
    )


def snapshot(payload: bytes, name: str) -> OlderSnapshot:
    fields = SNAPSHOT.read(decoded(payload), "", FINDINGS)
    nodes = [node(entry, payload) for entry in fields["nodes"].values()]
    files = [entry_of(entry) for entry in fields.get("manifest_files", ())]
    own = parse_file_name(name) or b""
    if "short_term_history" not in fields:
        parent = fields["parent_id"]
        ancestors = [] if parent is None else [(to_raw_id(parent, ""), "", "")]
        return OlderSnapshot(
            own, fields["flushed_at"], fields["message"], ancestors, fields["metadata"], nodes, files
        )
    infos = [
        METADATA.read(entry, "", FINDINGS) for entry in (fields["metadata"], *fields["short_term_history"])
    ]
    told = [(to_raw_id(info["id"], ""), info["written_at"], info["message"]) for info in infos]
    return OlderSnapshot(
        own, told[0][1], told[0][2], told[1:], fields["properties"], nodes, files, fields["started_at"]
    )


def entry_of(entry: Any) -> dict[str, Any]:
    numbers = {2: (0, 0), 3: (entry[-1], 0), 4: entry[2:]}[len(entry)]
    if len(entry) == 3 and isinstance(entry[0], tuple) and entry[1] != 1:
        numbers = entry[1:]
    return {"id": to_raw_id(entry[0], ""), "size": numbers[0], "rows": numbers[1]}


def payload_of(stored: Mapping[str, Any]) -> ChunkRef:
    ((kind, content),) = stored.items()
    if kind == "Inline":
        return InlineRef(bytes(content))
    values = tuple(content.values()) if isinstance(content, Mapping) else content
    id: Any = to_raw_id(values[0], "")
    return NativeRef(id, values[1], values[2])


def log_of(stored: Any) -> OlderLog:
    fields = TRANSACTION_LOG.read(stored, "", FINDINGS)
    lists = {
        name: [make_node_id(id, "") for id in fields[name]]
        for name in OlderLog.__slots__
        if name != "updated_chunks"
    }
    chunks = {make_node_id(id, ""): coords for id, coords in fields["updated_chunks"].items()}
    return OlderLog(**lists, updated_chunks=chunks)


def written_again(form: OlderFormat, path: str, data: bytes) -> bytes | None:
    """Return the same file from the writer; None where there is nothing to write."""
    files, folders = OlderFiles(form), form.folders
    folder, name = path.split("/", 1)
    payload = unwrapped(data)[1]
    if folder == folders.chunks:
        return None
    if folder == folders.refs:
        stored = loads_json(payload, path)
        id = to_raw_id(stored["snapshot"], path)
        return files.ref(id, stored.get("timestamp", ""), stored.get("properties"))
    if folder == folders.snapshots:
        return files.snapshot(snapshot(payload, name))
    if folder == folders.transactions:
        return files.log(log_of(decoded(payload)))
    refs: dict[NodeId, dict[tuple[int, ...], ChunkRef]] = {}
    fields = MANIFEST.read(decoded(payload), "", FINDINGS)
    for owner, coords, ref in iterate_chunks(fields["chunks"], ""):
        refs.setdefault(owner, {})[coords] = payload_of(ref)
    return files.manifest(parse_file_name(name) or b"", refs)


@pytest.mark.parametrize("name", golden.OLDER_NAMES)
def test_files_match_another_encoder(name: str) -> None:
    form = FORMATS[FORM_OF[name]]
    compared = 0

    for path, data in golden.load(name).files.items():
        again = written_again(form, path, data)
        if again is not None:
            assert unwrapped(again) == unwrapped(data), path
            compared += 1

    assert compared >= 7


@pytest.mark.parametrize("name", golden.OLDER_NAMES)
def test_file_names_match_those_of_an_independent_encoder(name: str) -> None:
    form = FORMATS[FORM_OF[name]]
    files, folders = OlderFiles(form), form.folders
    repo = golden.load(name)

    made = set()
    for path in repo.files:
        folder, _, file = path.partition("/")
        if folder != folders.refs:
            made.add(files.path(folder, parse_file_name(file) or b""))
    for branch in repo.expected["branches"]:
        folder = form.ref_folder.format(kind="branch", name=branch)
        numbers = [parse_sequence_number(path.split("/")[-1]) for path in repo.files if f"/{folder}/" in path]
        made.update(files.branch_path(branch, number) for number in numbers if number is not None)
    made.update(files.tag_path(tag) for tag in repo.expected["tags"])

    assert made == set(repo.files)


def test_numbers_of_both_sizes_are_written() -> None:
    from tests.support.legacy.files import pack

    assert pack([Single(1.5), 1.5]) == b"\x92\xca" + struct.pack(">f", 1.5) + b"\xcb" + struct.pack(">d", 1.5)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.deleted_tags])
def test_formats_without_deleted_tags_reject_them(name: str) -> None:
    repo = Repository.create(in_memory_storage())
    older = in_memory_storage()

    with pytest.raises(ValueError, match="no deleted tags"):
        write_older(repo, older, FORMATS[name], {"gone": repo.lookup_branch("main")})

    assert older.list_objects() == []
