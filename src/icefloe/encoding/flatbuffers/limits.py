"""How large a payload may be, and how it begins."""

from __future__ import annotations

import struct
from typing import Final

from icefloe.errors import ErrorKind, FormatError

IDENTIFIER: Final = b"Ichk"
MAX_PAYLOAD_BYTES: Final = (1 << 31) - 1
"""FlatBuffers offsets are signed 32-bit numbers in places."""


def check_size(size: int, place: str) -> None:
    """Refuse a payload that no reader could find its way in."""
    if size > MAX_PAYLOAD_BYTES:
        raise FormatError(
            f"{place}: {size} bytes, a file holds at most {MAX_PAYLOAD_BYTES}; split it",
            kind=ErrorKind.SERIALIZATION,
        )


def file_head(root: int) -> bytes:
    """The first bytes of a payload: where its root table stands, and what it is."""
    return struct.pack("<I4s", root, IDENTIFIER)
