"""Decode manifests of old formats, which contain references of several arrays in one flat map or grouped by
array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from icefloe._internal.ids import ChunkId, ManifestId, NodeId
from icefloe.encoding.envelope import FileType
from icefloe.format.manifest import (
    ArrayManifest,
    Checksum,
    ChunkRef,
    ETag,
    InlineRef,
    LastModified,
    NativeRef,
    VirtualRef,
)
from icefloe.legacy.codec.files import open_file
from icefloe.legacy.codec.ids import make_node_id, make_object_id
from icefloe.legacy.codec.structures import (
    LegacyFindings,
    Structure,
    make_damage_error,
    show_value,
    to_bytes,
    to_items,
    to_number,
    to_text,
    to_variant,
)

ArraysByRank: TypeAlias = Mapping[NodeId, Mapping[int, ArrayManifest]]
"""The references of each array, by number of coordinates. Early writers mixed up arrays, so an array may have
several ranks.
"""

MANIFEST: Final = Structure(
    "a manifest",
    (
        ("icechunk_manifest_format_version", "icechunk_manifest_format_flags", "chunks"),
        ("icechunk_manifest_format_version", "icechunk_manifest_format_flags", "id", "chunks"),
        ("id", "chunks"),
        ("chunks",),
    ),
    frozenset({"id", "icechunk_manifest_format_version", "icechunk_manifest_format_flags"}),
)
_NATIVE: Final = Structure("a chunk reference", (("id", "offset", "length"),))
_VIRTUAL: Final = Structure(
    "a virtual reference",
    (("location", "offset", "length"), ("location", "offset", "length", "checksum")),
    frozenset({"checksum"}),
)
_TOKENS: Final = re.compile(r"[0-9A-Za-z]+")
_MAX_RANK: Final = 255
_U32_MAX: Final = 0xFFFFFFFF
_PAYLOADS: Final = frozenset({"Inline", "Ref", "Virtual"})


def read_manifest(data: bytes, id: ManifestId, place: str, findings: LegacyFindings) -> ArraysByRank:
    """Decode a legacy manifest file."""
    fields = MANIFEST.read(open_file(data, FileType.MANIFEST, place), place, findings)
    if fields.get("id") is not None:
        inner = make_object_id(ManifestId, fields["id"], f"{place}: id", findings)
        if inner != id:
            findings.note(f"{place}: contains the id {inner}, which does not match the file name")
    # A loop over references, because MessagePack and JSON have no columns.
    found: dict[NodeId, dict[int, tuple[list[tuple[int, ...]], list[Any]]]] = {}
    for node, coords, payload in iterate_chunks(fields["chunks"], place):
        rows = found.setdefault(node, {}).setdefault(len(coords), ([], []))
        rows[0].append(coords)
        rows[1].append(payload)
    return {
        node: {rank: _decode_array(node, rank, *rows, place, findings) for rank, rows in by_rank.items()}
        for node, by_rank in found.items()
    }


def _decode_array(
    node: NodeId,
    rank: int,
    coords: list[tuple[int, ...]],
    payloads: list[Any],
    place: str,
    findings: LegacyFindings,
) -> ArrayManifest:
    """Decode the references of one array."""
    if len(set(coords)) != len(coords):
        raise make_damage_error(f"{place}: there are two references to the same chunk of {node}")
    refs = {
        at: _parse_payload(payload, place, findings) for at, payload in zip(coords, payloads, strict=True)
    }
    return ArrayManifest.from_refs(refs, rank)


def iterate_chunks(chunks: Any, place: str) -> Iterator[tuple[NodeId, tuple[int, ...], Any]]:
    """Yield the array id, coordinates and reference of each chunk in a legacy manifest of any layout."""
    where = f"{place}: chunks"
    ids: dict[Any, NodeId] = {}

    def node(value: Any) -> NodeId:
        if value not in ids:
            ids[value] = make_node_id(value, where)
        return ids[value]

    if isinstance(chunks, list | tuple):  # a map stored as pairs, because JSON does not support such keys
        for entry in chunks:
            if len(to_items(entry, where)) != 2:
                raise make_damage_error(
                    f"{where}: expected a pair of a chunk and its reference, not {show_value(entry)}"
                )
            owner, coords = _parse_key(entry[0], where)
            yield node(owner), coords, entry[1]
        return
    if not isinstance(chunks, Mapping):
        raise make_damage_error(f"{where}: expected a map, not {show_value(chunks)}")
    for key, value in chunks.items():
        if type(key) is tuple and len(key) == 2 and type(value) is dict and not _PAYLOADS.isdisjoint(value):
            yield node(key[0]), _parse_coords(key[1], where), value
        elif isinstance(value, Mapping) and not any(
            isinstance(name, str) and name[:1].isalpha() for name in value
        ):
            owner = node(key)
            for coords, payload in value.items():
                yield owner, _parse_coords(coords, where), payload
        else:
            owner, coords = _parse_key(key, where)
            yield node(owner), coords, value


def _parse_key(key: Any, where: str) -> tuple[Any, tuple[int, ...]]:
    """Parse the node id and coordinates of a chunk from a pair, or from a text with separators."""
    if isinstance(key, str):
        tokens = _TOKENS.findall(key)
        if tokens:
            return tokens[0], _parse_coords(tokens[1:], where)
    elif isinstance(key, list | tuple) and len(key) == 2:
        owner = key[0]
        return tuple(owner) if isinstance(owner, list) else owner, _parse_coords(key[1], where)
    raise make_damage_error(f"{where}: invalid chunk {show_value(key)}")


def _parse_coords(value: Any, where: str) -> tuple[int, ...]:
    if type(value) is tuple and all(type(n) is int and 0 <= n <= _U32_MAX for n in value):
        return value
    if isinstance(value, str):
        value = _TOKENS.findall(value)
    numbers = to_items(value, where)
    if len(numbers) > _MAX_RANK:
        raise make_damage_error(f"{where}: a chunk has {len(numbers)} coordinates, which is too many")
    return tuple(
        to_number(int(n) if isinstance(n, str) and n.isascii() and n.isdecimal() else n, where, 32)
        for n in numbers
    )


def _parse_payload(stored: Any, place: str, findings: LegacyFindings) -> ChunkRef:
    name, content = to_variant(stored, f"{place}: a chunk")
    if name == "Inline":
        return InlineRef(to_bytes(content, f"{place}: an inline chunk"))
    if name == "Ref":
        fields = _NATIVE.read(content, place, findings)
        id = make_object_id(ChunkId, fields["id"], f"{place}: a chunk reference", findings)
        return NativeRef(id, *_parse_range(fields, place))
    if name == "Virtual":
        fields = _VIRTUAL.read(content, place, findings)
        location = _decode_location(fields["location"], place)
        return VirtualRef(
            location, *_parse_range(fields, place), _decode_checksum(fields.get("checksum"), place)
        )
    raise make_damage_error(f"{place}: unknown kind of chunk {name!r}")


def _parse_range(fields: Mapping[str, Any], place: str) -> tuple[int, int]:
    offset, length = (to_number(fields[name], f"{place}: {name} of a chunk") for name in ("offset", "length"))
    if offset + length >= 1 << 64:
        raise make_damage_error(f"{place}: a chunk ends beyond 2**64")
    return offset, length


def _decode_location(stored: Any, place: str) -> str:
    if isinstance(stored, str):
        return to_text(stored, f"{place}: a virtual location")
    name, content = to_variant(stored, f"{place}: a virtual location")
    if name != "Absolute":
        raise make_damage_error(f"{place}: unknown kind of virtual location {name!r}")
    return to_text(content, f"{place}: a virtual location")


def _decode_checksum(stored: Any, place: str) -> Checksum | None:
    if stored is None:
        return None
    name, content = to_variant(stored, f"{place}: a checksum")
    if isinstance(content, list | tuple) and len(content) == 1:
        content = content[0]
    if name == "LastModified":
        return LastModified(to_number(content, f"{place}: time of a checksum", 32))
    if name == "ETag":
        return ETag(to_text(content, f"{place}: etag of a checksum"))
    raise make_damage_error(f"{place}: unknown kind of checksum {name!r}")
