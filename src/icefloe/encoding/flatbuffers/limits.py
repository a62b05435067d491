"""The size limit of FlatBuffers payloads, and their first bytes."""

from __future__ import annotations

import struct
from typing import Final

from icefloe.errors import ErrorKind, FormatError

IDENTIFIER: Final = b"Ichk"
MAX_PAYLOAD_BYTES: Final = (1 << 31) - 1
"""The maximum size of a payload. Some FlatBuffers offsets are signed 32-bit numbers."""


def check_size(size: int, place: str) -> None:
    """Raise FormatError if a FlatBuffers payload exceeds the size limit of readers."""
    if size > MAX_PAYLOAD_BYTES:
        raise FormatError(
            f"{place}: {size} bytes exceed the limit of {MAX_PAYLOAD_BYTES} per file; split it",
            kind=ErrorKind.SERIALIZATION,
        )


def make_file_head(root: int) -> bytes:
    """Return the first bytes of a FlatBuffers payload: the position of the root table, and the file
    identifier.
    """
    return struct.pack("<I4s", root, IDENTIFIER)
