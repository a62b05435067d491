"""Open files of old formats, which have a header, are bare zstd frames or are uncompressed, and contain
MessagePack or JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from icefloe.encoding.envelope import HEADER, MAGIC, ZSTD, FileType, inflate
from icefloe.encoding.msgpack import loads_structures
from icefloe.errors import FormatError
from icefloe.format.spec import V1, get_spec
from icefloe.legacy.codec.structures import make_damage_error

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_PLAIN: Final = 0
_JSON_STARTS: Final = b"{[ \t\r\n\xef"
_PLAUSIBLE_BYTES: Final = 32 << 20
_PLAUSIBLE_RATIO: Final = 100
"""The maximum compression ratio of payloads larger than _PLAUSIBLE_BYTES, because each byte may become a
Python object.
"""

SPEC: Final = replace(V1, number=0, writable=False)
"""The capabilities of all formats before version 1. Their files are recognized by their structure."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The names of the folders of a legacy repository."""

    name: str
    refs: str
    snapshots: str
    manifests: str
    transactions: str
    chunks: str


ALPHA: Final = Folders("MessagePack", "refs", "snapshots", "manifests", "transactions", "chunks")
DRAFT: Final = Folders("draft", "r", "s", "m", "t", "c")


def is_newer(data: bytes, place: str) -> bool:
    """Return True if a file already has version 2, because an upgrade was interrupted."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        return False
    return get_spec(HEADER.unpack_from(data)[2], place).refs_in_repo_info


def open_file(data: bytes, file_type: FileType, place: str) -> Any:
    """Decode a legacy snapshot, manifest or transaction log file to MessagePack or JSON structures."""
    if not data:
        raise make_damage_error(f"{place}: the file is empty")
    payload: Any = data
    if data.startswith(MAGIC):
        payload = _skip_header(data, file_type, place)
    elif data.startswith(_ZSTD_MAGIC):
        payload = _inflate(memoryview(data), place)
    if not len(payload):
        raise make_damage_error(f"{place}: the payload is empty")
    if payload[0] in _JSON_STARTS:
        return loads_json(bytes(payload), place)
    try:
        return loads_structures(bytes(payload))
    except FormatError as error:
        raise FormatError(f"{place}: {error.message}", kind=error.kind) from None


def _skip_header(data: bytes, file_type: FileType, place: str) -> Any:
    if len(data) < HEADER.size:
        raise make_damage_error(
            f"{place}: {len(data)} bytes are too few for the header, which has {HEADER.size}"
        )
    _, _, number, type_byte, compression = HEADER.unpack_from(data)
    if get_spec(number, place).refs_in_repo_info:
        raise make_damage_error(
            f"{place}: the file has version {number} of the format, but the repository is older"
        )
    if type_byte != file_type:
        raise make_damage_error(
            f"{place}: the file has type {type_byte}, expected {file_type.name.lower()} ({int(file_type)})"
        )
    frames = memoryview(data)[HEADER.size :]
    if compression == _PLAIN:
        return frames
    if compression != ZSTD:
        raise make_damage_error(f"{place}: unknown compression {compression}")
    return _inflate(frames, place)


def _inflate(frames: memoryview, place: str) -> Any:
    return inflate(frames, max(_PLAUSIBLE_BYTES, _PLAUSIBLE_RATIO * len(frames)), place)


def loads_json(data: bytes, place: str) -> Any:
    """Decode a legacy JSON document, which must not have duplicate names."""
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_map)
    except (ValueError, RecursionError) as error:
        raise make_damage_error(f"{place}: not JSON: {error}") from None


def _map(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a map with a duplicate name")
    return found
