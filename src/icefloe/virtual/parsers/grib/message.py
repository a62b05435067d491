"""Locate the GRIB messages in a file, and read their headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icefloe.virtual.decoders.grib import END
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.sources import SourceFile

MAGIC: Final = b"GRIB"
_SEARCHED: Final = 1 << 12
_HAS_GRID, _HAS_BITMAP = 0x80, 0x40
"""Flags in the product definition section of GRIB 1."""
_BITMAP, _VALUES = 6, 7
"""Section numbers of GRIB 2."""
_NO_BITMAP: Final = (6).to_bytes(4) + bytes([_BITMAP, 255])
_NO_VALUES: Final = (5).to_bytes(4) + bytes([_VALUES])


@dataclass(frozen=True, slots=True)
class Message:
    """The byte range of a GRIB message in its file."""

    offset: int
    length: int
    edition: int


def read_headers(file: SourceFile, message: Message) -> list[bytes]:
    """Read each field of a GRIB message as a header-only message, without data values.

    For edition 2, only the sections before the data section are read. An edition 1 message is read
    completely, because its number of points may be known only from the values.
    """
    if message.edition == 1:
        return [file.read(message.offset, message.offset + message.length)]
    return _read_headers_2(file, message)


def _read_headers_2(file: SourceFile, message: Message) -> list[bytes]:
    head = file.peek(message.offset, message.offset + 16)
    position, end = message.offset + 16, message.offset + message.length - len(END)
    shared: dict[int, bytes] = {}
    fields: list[bytes] = []
    while position < end:
        start = file.peek(position, position + 6)
        length, number = int.from_bytes(start[:4]), start[4]
        if length < 5 or position + length > end:
            raise ValueError(f"a section of {length} bytes at byte {position}")
        if number == _VALUES:
            body = b"".join(shared[each] for each in sorted(shared)) + _NO_VALUES + END
            fields.append(head[:8] + (16 + len(body)).to_bytes(8) + body)
        elif number == _BITMAP:
            shared[number] = _NO_BITMAP
        else:
            shared[number] = file.peek(position, position + length)
        position += length
    return fields


def iterate_messages(file: SourceFile) -> Iterator[Message]:
    """Iterate over the GRIB messages of a file in order, skipping any bytes between them."""
    position = _find_next_magic(file, 0)
    while position is not None:
        message = _read_message_at(file, position)
        end = message.offset + message.length
        if end > file.size_bytes or file.peek(end - 4, end) != END:
            raise CannotVirtualizeError(
                f"{file.location}: the GRIB message at byte {position} does not end after {message.length} "
                f"bytes; the file of {file.size_bytes} bytes is truncated or damaged"
            )
        yield message
        position = _find_next_magic(file, end)


def _find_next_magic(file: SourceFile, start: int) -> int | None:
    while start < file.size_bytes:
        window = file.peek(start, start + _SEARCHED)
        found = window.find(MAGIC)
        if found >= 0:
            return start + found
        start += max(len(window) - len(MAGIC) + 1, 1)
    return None


def _read_message_at(file: SourceFile, offset: int) -> Message:
    head = file.peek(offset, offset + 16)
    edition = head[7] if len(head) == 16 else 0
    if edition == 2:
        return Message(offset, int.from_bytes(head[8:16]), 2)
    if edition == 1:
        return Message(offset, _read_first_edition_length(file, offset, int.from_bytes(head[4:7])), 1)
    raise CannotVirtualizeError(
        f"{file.location}: the GRIB message at byte {offset} has the unknown edition {edition}"
    )


def _read_first_edition_length(file: SourceFile, offset: int, length: int) -> int:
    """Return the length of a GRIB 1 message, whose three-byte length field is limited to 8 MB.

    ECMWF encodes the length of longer messages in units of 120 bytes, with the remainder in the length field
    of the last section.
    """
    if not length & 0x800000:
        return length
    total = (length & 0x7FFFFF) * 120
    section = offset + 8
    flags = file.peek(section + 7, section + 8)[0]
    for present in (True, bool(flags & _HAS_GRID), bool(flags & _HAS_BITMAP)):
        if present:
            section += int.from_bytes(file.peek(section, section + 3))
    rest = int.from_bytes(file.peek(section, section + 3))
    return total - rest + 4 if rest < 120 else total
