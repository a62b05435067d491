"""The envelope of metadata files: a 39-byte header, followed by the payload as one zstd frame."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
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
"""The maximum compression ratio for payloads larger than PLAUSIBLE_BYTES. References compress by a factor of
up to 100. Only identical inline chunks compress better, by about 4,000.
"""

_SLICE = 16 << 10
"""The number of compressed bytes to process at a time if a frame does not declare its size. They expand to at
most 512 MiB.
"""
_FEW_BLOCKS = 1000
_SMALL_BLOCK = 1 << 10
"""The minimum average block size. A frame that declares its size may have _FEW_BLOCKS blocks, plus one per
_SMALL_BLOCK bytes.
"""
_PART_BYTES = 4 << 20
_PARALLEL_BYTES = 8 << 20
"""Payloads larger than this are compressed by two threads."""


_idle_compressors: dict[int, deque[zstandard.ZstdCompressor]] = {}
"""Idle compressors, by compression level."""
_idle_decompressors: deque[zstandard.ZstdDecompressor] = deque()


class FileType(IntEnum):
    """The type of a metadata file, as declared in its header."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO_INFO = 6


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a metadata file: its first 39 bytes."""

    implementation: str
    spec: int
    file_type: FileType


def seal(payload: bytes | NDArray[np.uint8], header: Header, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a payload and prepend the header of a metadata file. The zstd frame declares its size and has
    a checksum.

    Compression levels above the maximum are clipped, as in official writers.
    """
    view = memoryview(payload) if isinstance(payload, bytes) else payload.data
    return _pack_header(header) + _compress(view, min(level, zstandard.MAX_COMPRESSION_LEVEL))


def seal_parts(
    size: int, parts: Iterable[bytes | memoryview], header: Header, level: int = DEFAULT_LEVEL
) -> bytes:
    """Wrap a payload of known size in an envelope, part by part. Only one part is in memory at a time."""
    level = min(level, zstandard.MAX_COMPRESSION_LEVEL)
    frame = zstandard.ZstdCompressor(level=level, write_checksum=True, threads=2).compressobj(size=size)
    file = BytesIO()
    file.write(_pack_header(header))
    for part in parts:
        file.write(frame.compress(part))
    file.write(frame.flush())
    return file.getvalue()


def _pack_header(header: Header) -> bytes:
    name = header.implementation.encode()[:24].ljust(24)
    return HEADER.pack(MAGIC, name, header.spec, header.file_type, ZSTD)


def _compress(payload: memoryview, level: int) -> bytes:
    """Compress a payload into one zstd frame. Compressors are reused, because creating one takes longer than
    compressing a small file.
    """
    if len(payload) >= _PARALLEL_BYTES:
        return zstandard.ZstdCompressor(level=level, write_checksum=True, threads=2).compress(payload)
    idle = _idle_compressors.setdefault(level, deque())
    try:
        compressor = idle.pop()  # one for each caller, because compressors are not thread-safe
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    frame = compressor.compress(payload)
    idle.append(compressor)
    return frame


def open_header(data: bytes | memoryview, place: str) -> Header:
    """Decode the header of a metadata file; raise FormatError if it is invalid."""
    if len(data) < HEADER.size:
        _refuse(f"{place}: {len(data)} bytes are too few for the header, which has {HEADER.size}")
    magic, name, spec, type_byte, compression = HEADER.unpack_from(data)
    if magic != MAGIC:
        _refuse(f"{place}: not an Icechunk file")
    if type_byte not in FileType.__members__.values():
        _refuse(f"{place}: unknown file type {type_byte}")
    if compression != ZSTD:
        # The specification lists 0 for no compression, but no release ever read or wrote it.
        _refuse(f"{place}: unknown compression {compression}, expected zstd (1)")
    implementation = name.decode("utf-8", "replace").rstrip(" \0")
    return Header(implementation, spec, FileType(type_byte))


def open_payload(data: bytes | memoryview, place: str) -> NDArray[np.uint8] | bytearray:
    """Decompress the payload of a metadata file whose header was already checked."""
    return open_frames(memoryview(data)[HEADER.size :], place)


def stream_payload(data: bytes | memoryview, place: str) -> tuple[int, Iterator[bytes]] | None:
    """Return the size of a metadata file's payload, and an iterator that decompresses it part by part; None
    if the file does not declare the size.

    Damage is detected only while the parts are read.
    """
    frames = memoryview(data)[HEADER.size :]
    try:
        size = zstandard.frame_content_size(frames)
    except zstandard.ZstdError:
        return None
    if not 0 < size <= min(max(PLAUSIBLE_BYTES, PLAUSIBLE_RATIO * len(frames)), MAX_PAYLOAD_BYTES):
        return None
    return size, _decompress_parts(frames, size, place)


def _decompress_parts(frame: memoryview, size: int, place: str) -> Iterator[bytes]:
    if _find_frame_end(frame, size) != len(frame):
        _refuse(f"{place}: the zstd frame does not end at byte {len(frame)}")
    left = size
    try:
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            while part := reader.read(_PART_BYTES):
                left -= len(part)
                yield part
    except zstandard.ZstdError as error:
        raise FormatError(
            f"{place}: damaged zstd frame: {error}", kind=ErrorKind.INVALID_FILE_FORMAT
        ) from None
    if left:
        _refuse(f"{place}: the zstd frame does not contain the {size} bytes that it declares")


def open_frames(frames: memoryview, place: str) -> NDArray[np.uint8] | bytearray:
    """Decompress the zstd frames of a file; raise FormatError if they are damaged or implausibly large."""
    limit = min(max(PLAUSIBLE_BYTES, PLAUSIBLE_RATIO * len(frames)), MAX_PAYLOAD_BYTES)
    return inflate(frames, limit, place)


def inflate(frames: memoryview, limit: int, place: str) -> NDArray[np.uint8] | bytearray:
    """Decompress zstd frames, up to a maximum number of bytes."""
    try:
        size = zstandard.frame_content_size(frames)
        if size < 0 or size >= zstandard.CONTENTSIZE_ERROR:
            return _decompress_stream(frames, limit, place)
        if size > limit:
            _refuse(
                f"{place}: {len(frames)} bytes claim to contain {size} bytes; at most {limit} are allowed"
            )
        return _decompress_sized(frames, size, place)
    except zstandard.ZstdError as error:
        raise FormatError(
            f"{place}: damaged zstd frame: {error}", kind=ErrorKind.INVALID_FILE_FORMAT
        ) from None


def _decompress_sized(frame: memoryview, size: int, place: str) -> NDArray[np.uint8]:
    """Decompress a frame of known size into memory from numpy, which uses huge pages and saves page
    faults.
    """
    end = _find_frame_end(frame, size)
    if end != len(frame):
        _refuse(f"{place}: the zstd frame ends at byte {end} of {len(frame)}")
    room = np.empty(size + 1, np.uint8)  # without the extra byte, the library does not verify the checksum
    try:
        decompressor = _idle_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    with decompressor.stream_reader(frame) as reader:
        if reader.readinto(room.data) != size:
            _refuse(f"{place}: the zstd frame does not contain the {size} bytes that it declares")
    _idle_decompressors.append(decompressor)
    return room[:size]


def _find_frame_end(frame: memoryview, size: int) -> int:
    """Find the end of a frame from its block headers (RFC 8878, 3.1.1.2), to detect truncated frames."""
    at = zstandard.frame_header_size(frame)
    for _ in range(_FEW_BLOCKS + size // _SMALL_BLOCK):
        head = int.from_bytes(frame[at : at + 3], "little")
        is_repeated_byte = head >> 1 & 3 == 1
        at += 3 + (1 if is_repeated_byte else head >> 3)
        if head & 1 or at > len(frame):
            return at + (4 if zstandard.get_frame_parameters(frame).has_checksum else 0)
    return at


def _decompress_stream(frames: memoryview, limit: int, place: str) -> bytearray:
    """Decompress one or more frames that do not declare their size, as written by releases before 2.3."""
    payload = bytearray()
    frame: Any = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(frames), _SLICE):
        rest = bytes(frames[start : start + _SLICE])
        while rest:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            payload += frame.decompress(rest)
            if len(payload) > limit:
                _refuse(f"{place}: {len(frames)} bytes contain more than the allowed {limit} bytes")
            rest = frame.unused_data if frame.eof else b""
    if not frame.eof:
        _refuse(f"{place}: the zstd frame is truncated after {len(frames)} bytes")
    return payload


def _refuse(message: str) -> NoReturn:
    raise FormatError(message, kind=ErrorKind.INVALID_FILE_FORMAT)
