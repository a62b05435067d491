"""Ids in old formats: text, bytes, lists of numbers or, for nodes, single numbers."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from icefloe._internal.ids import NodeId, ObjectId, SnapshotId, count_characters
from icefloe.errors import InvalidInputError
from icefloe.legacy.codec.structures import (
    LONG_ID,
    SHORT_ID,
    LegacyFindings,
    make_damage_error,
    shorten_id,
    show_value,
)

Id = TypeVar("Id", bound=ObjectId)

SUFFIXES: Final = ("", ".msgpack", ".json")
"""The possible suffixes of legacy file names."""

_U32_DIGITS: Final = 10
_HEX: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class LongId(ObjectId):
    """A 16-byte id, as used in the draft format before version 1."""

    __slots__ = ()
    _NAME = "id of the draft format"
    SIZE = LONG_ID


def make_object_id(kind: type[Id], value: Any, place: str, findings: LegacyFindings) -> Id:
    """Convert the id of a legacy snapshot, manifest or chunk to a 12-byte object id."""
    raw = to_raw_id(value, place)
    if len(raw) == LONG_ID:
        raw = findings.shorten(raw)
    if len(raw) != SHORT_ID:
        raise make_damage_error(f"{place}: an id has {len(raw)} bytes, expected {SHORT_ID} or {LONG_ID}")
    return kind(raw)


def parse_snapshot_id(text: str) -> SnapshotId:
    """Parse a legacy snapshot id of 12 bytes, or of 16 bytes in the draft format."""
    long = _parse(text, LONG_ID)
    return SnapshotId.parse(text) if long is None else SnapshotId(shorten_id(long))


def make_node_id(value: Any, place: str) -> NodeId:
    """Convert a legacy node id. A number becomes 8 big-endian bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return NodeId(value.to_bytes(NodeId.SIZE, "big"))
    if isinstance(value, str) and value.isdecimal() and len(value) <= _U32_DIGITS:
        return make_node_id(int(value), place)  # a number as text, because JSON keys are strings
    raw = to_raw_id(value, place)
    if len(raw) != NodeId.SIZE:
        raise make_damage_error(f"{place}: a node id has {len(raw)} bytes, expected {NodeId.SIZE}")
    return NodeId(raw)


def parse_file_name(name: str) -> bytes | None:
    """Parse the id of 12 or 16 bytes in the name of a legacy file; None if there is none."""
    suffix = next((suffix for suffix in SUFFIXES[1:] if name.endswith(suffix)), "")
    stem = name.removesuffix(suffix)
    if _HEX.fullmatch(stem):
        return bytes.fromhex(stem.replace("-", ""))
    return _parse(stem, SHORT_ID) or _parse(stem, LONG_ID)


def to_raw_id(value: Any, place: str) -> bytes:
    """Return the bytes of a legacy id, whatever its form."""
    if isinstance(value, str):
        sizes = (SHORT_ID, LONG_ID, NodeId.SIZE)
        found = next((raw for size in sizes if (raw := _parse(value, size)) is not None), None)
        if found is None and _HEX.fullmatch(value):
            found = bytes.fromhex(value.replace("-", ""))
        if found is not None:
            return found
    if isinstance(value, bytes):
        return value
    if isinstance(value, list | tuple):
        if len(value) in (1, 2) and not isinstance(value[0], int) and not any(value[1:]):
            return to_raw_id(value[0], place)  # the bytes, followed by an empty marker type
        if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
            return bytes(value)
    raise make_damage_error(f"{place}: invalid id {show_value(value)}")


_CLASSES: Final = {kind.SIZE: kind for kind in (LongId, NodeId)}


class _ShortId(ObjectId):
    __slots__ = ()
    _NAME = "id"
    SIZE = SHORT_ID


def _parse(text: str, size: int) -> bytes | None:
    if len(text) != count_characters(size):
        return None
    try:
        return bytes(_CLASSES.get(size, _ShortId).parse(text))
    except InvalidInputError:
        return None
