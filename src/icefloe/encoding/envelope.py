"""The envelope of every metadata file: a 39-byte header, then the payload as one zstd frame."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe._version import __version__
from icefloe.encoding.flatbuffers.limits import MAX_PAYLOAD_BYTES
from icefloe.errors import ErrorKind, FormatError

MAGIC = "ICE🧊CHUNK".encode()
IMPLEMENTATION = f"icefloe-{__version__}"
HEADER = struct.Struct("<12s24sBBB")
ZSTD = 1
DEFAULT_LEVEL = 3

PLAUSIBLE_BYTES = 512 << 20
PLAUSIBLE_RATIO = 1000
"""A payload over PLAUSIBLE_BYTES may be at most so many times its file. References pack up to 100 times; only
inline chunks that are all alike pack better, some 4,000 times.
"""

_SLICE = 16 << 10
"""Compressed bytes fed at a time where a frame does not say how large it is: at most 512 MiB come out."""
_FEW_BLOCKS = 1000
_SMALL_BLOCK = 1 << 10
"""A frame that tells its size may have _FEW_BLOCKS and one more for each _SMALL_BLOCK of bytes."""
_PARALLEL_BYTES = 8 << 20
"""Payloads from here on are compressed by two threads."""


_idle_compressors: dict[int, deque[zstandard.ZstdCompressor]] = {}
"""By level."""
_idle_decompressors: deque[zstandard.ZstdDecompressor] = deque()


class FileType(IntEnum):
    """What a metadata file holds, as its header says."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO_INFO = 6


@dataclass(frozen=True, slots=True)
class Header:
    """The first 39 bytes of a metadata file."""

    implementation: str
    spec: int
    file_type: FileType


def seal(payload: bytes | NDArray[np.uint8], header: Header, level: int = DEFAULT_LEVEL) -> bytes:
    """A metadata file around a payload. The frame carries its size and a checksum.

    Levels beyond the highest count as that one, as they do in official writers.
    """
    name = header.implementation.encode()[:24].ljust(24)
    head = HEADER.pack(MAGIC, name, header.spec, header.file_type, ZSTD)
    view = memoryview(payload) if isinstance(payload, bytes) else payload.data
    return head + _compressed(view, min(level, zstandard.MAX_COMPRESSION_LEVEL))


def _compressed(payload: memoryview, level: int) -> bytes:
    """One frame. Compressors are kept: to make one takes longer than to compress a small file with it."""
    if len(payload) >= _PARALLEL_BYTES:
        return zstandard.ZstdCompressor(level=level, write_checksum=True, threads=2).compress(payload)
    idle = _idle_compressors.setdefault(level, deque())
    try:
        compressor = idle.pop()  # one for each caller: a compressor works for one at a time
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    frame = compressor.compress(payload)
    idle.append(compressor)
    return frame


def open_header(data: bytes | memoryview, place: str) -> Header:
    """The header of a metadata file; FormatError where it is none of ours to read."""
    if len(data) < HEADER.size:
        _refuse(f"{place}: {len(data)} bytes are too few for a header of {HEADER.size}")
    magic, name, spec, type_byte, compression = HEADER.unpack_from(data)
    if magic != MAGIC:
        _refuse(f"{place}: does not begin as an Icechunk file does")
    if type_byte not in FileType.__members__.values():
        _refuse(f"{place}: unknown file type {type_byte}")
    if compression != ZSTD:
        # The specification lists 0 for none; no release ever read or wrote it.
        _refuse(f"{place}: unknown compression {compression}, only zstd (1) is in use")
    implementation = name.decode("utf-8", "replace").rstrip(" \0")
    return Header(implementation, spec, FileType(type_byte))


def open_payload(data: bytes | memoryview, place: str) -> NDArray[np.uint8] | bytearray:
    """The decompressed payload of a metadata file whose header was checked."""
    return open_frames(memoryview(data)[HEADER.size :], place)


def open_frames(frames: memoryview, place: str) -> NDArray[np.uint8] | bytearray:
    """What zstd frames hold; FormatError where they are damaged or claim more than is plausible."""
    limit = min(max(PLAUSIBLE_BYTES, PLAUSIBLE_RATIO * len(frames)), MAX_PAYLOAD_BYTES)
    return inflate(frames, limit, place)


def inflate(frames: memoryview, limit: int, place: str) -> NDArray[np.uint8] | bytearray:
    """What zstd frames hold, if that is no more than a number of bytes."""
    try:
        size = zstandard.frame_content_size(frames)
        if size < 0 or size >= zstandard.CONTENTSIZE_ERROR:
            return _decompress_stream(frames, limit, place)
        if size > limit:
            _refuse(f"{place}: {len(frames)} bytes claim to hold {size}, more than the {limit} allowed")
        return _decompress_sized(frames, size, place)
    except zstandard.ZstdError as error:
        raise FormatError(
            f"{place}: damaged zstd frame: {error}", kind=ErrorKind.INVALID_FILE_FORMAT
        ) from None


def _decompress_sized(frame: memoryview, size: int, place: str) -> NDArray[np.uint8]:
    """The one frame of known size. Memory comes from numpy, which asks for huge pages: far fewer faults."""
    end = _frame_end(frame, size)
    if end != len(frame):
        _refuse(f"{place}: the zstd frame ends at byte {end} of {len(frame)}")
    room = np.empty(size + 1, np.uint8)  # the library stops at the last byte it has room for, checksum unseen
    try:
        decompressor = _idle_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    with decompressor.stream_reader(frame) as reader:
        if reader.readinto(room.data) != size:
            _refuse(f"{place}: the zstd frame does not hold the {size} bytes it claims")
    _idle_decompressors.append(decompressor)
    return room[:size]


def _frame_end(frame: memoryview, size: int) -> int:
    """Where a frame ends by the lengths of its blocks (RFC 8878, 3.1.1.2): the library takes one cut off."""
    at = zstandard.frame_header_size(frame)
    for _ in range(_FEW_BLOCKS + size // _SMALL_BLOCK):
        head = int.from_bytes(frame[at : at + 3], "little")
        is_repeated_byte = head >> 1 & 3 == 1
        at += 3 + (1 if is_repeated_byte else head >> 3)
        if head & 1 or at > len(frame):
            return at + (4 if zstandard.get_frame_parameters(frame).has_checksum else 0)
    return at


def _decompress_stream(frames: memoryview, limit: int, place: str) -> bytearray:
    """Frames that do not say their size, as releases before 2.3 wrote them; there may be several."""
    payload = bytearray()
    frame: Any = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(frames), _SLICE):
        rest = bytes(frames[start : start + _SLICE])
        while rest:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            payload += frame.decompress(rest)
            if len(payload) > limit:
                _refuse(f"{place}: {len(frames)} bytes hold more than the {limit} allowed")
            rest = frame.unused_data if frame.eof else b""
    if not frame.eof:
        _refuse(f"{place}: the zstd frame is cut off after {len(frames)} bytes")
    return payload


def _refuse(message: str) -> NoReturn:
    raise FormatError(message, kind=ErrorKind.INVALID_FILE_FORMAT)
