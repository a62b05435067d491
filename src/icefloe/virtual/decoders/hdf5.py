"""Decode data that HDF5 filters encoded.

Each filter has an id registered with the HDF Group, and parameters that are stored in the file. imagecodecs
and numcodecs implement the compression filters. Scale-offset and n-bit exist only in HDF5, so they are
implemented here (HDF5 File Format Specification, section IV.A.2.l).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

_INTEGERS, _FLOATS = 0, 1
"""Data type classes in the parameters of the scale-offset filter."""
_ATOMIC: Final = 1
"""The class of atomic types in the parameters of the n-bit filter."""
_SCALE_OFFSET_HEADER: Final = 21
_BITSHUFFLE_LZ4, _BITSHUFFLE_ZSTD = 2, 3
_BLOSC2_MAGIC: Final = b"b2frame\0"
_BLOSC2_ZEROS, _BLOSC2_NAN, _BLOSC2_UNSET = 1, 2, 4
"""Special chunk types in Blosc2 frames. The frame records only the type, because all values are equal."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The shape and data type of a chunk that HDF5 filters decode."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        """The decoded size of an HDF5 chunk in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


Decoder: TypeAlias = Callable[[bytes, Sequence[int], Chunk], Any]


def decode_filter(number: int, values: Sequence[int], data: bytes, chunk: Chunk) -> bytes:
    """Decode bytes that an HDF5 filter encoded. Raise ValueError if the filter id is unknown."""
    if number not in DECODERS:
        known = ", ".join(map(str, sorted(DECODERS)))
        raise ValueError(f"HDF5 filter {number} cannot be decoded; known filters are {known}")
    return bytes(DECODERS[number](data, values, chunk))


def _numcodec(name: str) -> Decoder:
    def decode(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
        import numcodecs

        return numcodecs.get_codec({"id": name}).decode(data)

    return decode


def _shuffle(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Undo the HDF5 shuffle filter. Trailing bytes that do not form a whole value are not shuffled."""
    size = values[0]
    whole = len(data) - len(data) % size
    table = np.frombuffer(data[:whole], np.uint8).reshape(size, -1)
    return table.T.tobytes() + data[whole:]


def _imagecodec(
    name: str, arguments: Callable[[Sequence[int], Chunk], dict[str, Any]] = lambda values, chunk: {}
) -> Decoder:
    """Wrap an imagecodecs decoder whose arguments are computed from the filter parameters and the chunk."""

    def decode(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
        import imagecodecs

        decoded = getattr(imagecodecs, f"{name}_decode")(data, **arguments(values, chunk))
        return decoded.tobytes() if isinstance(decoded, np.ndarray) else decoded

    return decode


def _make_szip_arguments(values: Sequence[int], chunk: Chunk) -> dict[str, Any]:
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    return {**dict(zip(names, values[:4], strict=True)), "header": True}


def _blosc2(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Decode a Blosc2 frame that contains a single compressed chunk, and undo its division into blocks."""
    import imagecodecs

    if data[2:10] != _BLOSC2_MAGIC:  # older releases of the filter store a chunk without a frame
        return bytes(imagecodecs.blosc2_decode(data))
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=len(data))
    unpacker.feed(data)
    header = unpacker.unpack()
    start, size, stored, itemsize = header[1], header[4], header[5], header[6]
    blocks = _blosc2_blocks(header)
    if not stored:
        whole = size if blocks is None else itemsize * math.prod(blocks[0])
        return _blosc2_constant(_blosc2_chunk(data, start), whole, chunk.dtype)
    found = bytes(imagecodecs.blosc2_decode(_blosc2_chunk(data, start)))
    return found if blocks is None else _blosc2_rows(found, *blocks)


def _blosc2_chunk(data: bytes, start: int) -> bytes:
    (length,) = struct.unpack("<i", data[start + 12 : start + 16])
    return data[start : start + length]


def _blosc2_constant(index: bytes, size: int, dtype: np.dtype[Any]) -> bytes:
    """Decode a Blosc2 chunk of equal values. The frame's index contains the value instead of an offset."""
    import imagecodecs

    (place,) = struct.unpack("<q", imagecodecs.blosc2_decode(index)[:8])
    match place >> 56 & 7:
        case kind if kind in (_BLOSC2_ZEROS, _BLOSC2_UNSET):
            return bytes(size)
        case kind if kind == _BLOSC2_NAN:
            return np.full(size // dtype.itemsize, np.nan, dtype).tobytes()
    raise ValueError("a Blosc2 frame contains a constant chunk of unknown kind")


def _blosc2_blocks(header: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the chunk shape and the block shape of a Blosc2 frame; None if it is not n-dimensional."""
    layers = header[13] if len(header) > 13 else None
    if not layers or b"b2nd" not in layers[1]:
        return None
    names = list(layers[1])
    described = msgpack.unpackb(layers[2][names.index(b"b2nd")], raw=True, strict_map_key=False)
    return tuple(described[3]), tuple(described[4])


def _blosc2_rows(data: bytes, shape: tuple[int, ...], block: tuple[int, ...]) -> bytes:
    """Convert values that are stored block by block, with padded edge blocks, to C order."""
    grid = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    rank, itemsize = len(shape), len(data) // (math.prod(grid) * math.prod(block))
    table = np.frombuffer(data, np.uint8).reshape(*grid, *block, itemsize)
    order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    filled = tuple(number * part for number, part in zip(grid, block, strict=True))
    values = table.transpose(*order, 2 * rank).reshape(*filled, itemsize)
    return values[tuple(slice(size) for size in shape)].tobytes()


def _decode_zfp(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Decode ZFP-compressed data. The filter parameters contain the header that all chunks share, as 32-bit
    words.
    """
    import imagecodecs

    header = np.array(values[1:], "<u4").tobytes()
    return np.ascontiguousarray(imagecodecs.zfp_decode(header + data)).tobytes()


def _bitshuffle(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    import imagecodecs

    itemsize, block, compression = values[2], values[3], values[4] if len(values) > 4 else 0
    if compression not in (_BITSHUFFLE_LZ4, _BITSHUFFLE_ZSTD):
        return imagecodecs.bitshuffle_decode(data, itemsize=itemsize, blocksize=block)
    inflate = imagecodecs.lz4_decode if compression == _BITSHUFFLE_LZ4 else imagecodecs.zstd_decode
    total, block_bytes = struct.unpack(">QI", data[:12])
    parts: list[bytes] = []
    position, left = 12, total
    while left >= 8 * itemsize:
        size = min(block_bytes, left - left % (8 * itemsize))  # bitshuffle works on multiples of eight values
        (length,) = struct.unpack(">I", data[position : position + 4])
        shuffled = inflate(data[position + 4 : position + 4 + length], out=size)
        parts.append(bytes(imagecodecs.bitshuffle_decode(shuffled, itemsize=itemsize)))
        position, left = position + 4 + length, left - size
    return b"".join([*parts, data[position : position + left]])


def _decode_scale_offset(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Decode the scale-offset filter, which stores differences from the minimum in as few bits as possible.

    A difference with all bits set represents the fill value.
    """
    _, factor, count, kind, size, signed, big, has_fill = values[:8]
    bits, width = struct.unpack("<IB", data[:5])
    stored = f"{'>' if big else '<'}{_choose_letter(kind, signed)}{size}"
    packed = data[_SCALE_OFFSET_HEADER:]
    if bits == 8 * size:  # values are stored unchanged if nothing would be saved
        return np.frombuffer(packed, f"<u{size}", count).astype(stored.replace(stored[1], "u")).tobytes()
    found = _unpack(packed, count, bits)
    native = np.dtype(_choose_letter(kind, signed) + str(size))
    minimum: Any = np.frombuffer(data[5 : 5 + width].ljust(8, b"\0")[:size], native.newbyteorder("<"))[0]
    if kind == _FLOATS:
        signed_steps = found.astype(f"u{size}").view(f"i{size}").astype(native)
        result = signed_steps / native.type(10.0 ** np.int32(np.uint32(factor))) + minimum
    else:
        result = found.astype(f"u{size}").view(native) + minimum
    if has_fill:
        words = np.array(values[8:], "<u4").tobytes()
        fill = np.frombuffer(words[:size], native.newbyteorder("<"))[0]
        result[found == np.uint64((1 << bits) - 1)] = fill
    return result.astype(stored).tobytes()


def _choose_letter(kind: int, signed: int) -> str:
    return "f" if kind == _FLOATS else "i" if signed else "u"


def _decode_nbit(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Decode the n-bit filter, which stores only the significant bits of integers. The highest bit is the
    sign.
    """
    if values[1]:  # the type uses all its bits, so the filter stored the values unchanged
        return data
    _, _, count, kind, size, big, bits, offset = values[:8]
    if kind != _ATOMIC or offset:
        raise ValueError("the n-bit filter is only supported for integers")
    found = _unpack(data, count, bits)
    if chunk.dtype.kind == "i":
        sign = np.uint64(1 << (bits - 1))
        found = (found ^ sign) - sign
    return found.astype(f"{'>' if big else '<'}u{size}").tobytes()


def _unpack(data: bytes, count: int, bits: int) -> NDArray[np.uint64]:
    """Unpack consecutive integers of a given bit width, highest bit first."""
    wide = np.zeros((count, 64), np.uint8)
    if bits:
        flat = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits)
        wide[:, 64 - bits :] = flat.reshape(count, bits)
    return np.packbits(wide, axis=1).view(">u8").reshape(count).astype(np.uint64)


DECODERS: Final[dict[int, Decoder]] = {
    1: _numcodec("zlib"),
    2: _shuffle,
    4: _imagecodec("szip", _make_szip_arguments),
    5: _decode_nbit,
    6: _decode_scale_offset,
    307: _numcodec("bz2"),
    # LZF does not store the decoded size, which may include a checksum of 4 bytes.
    32000: _imagecodec("lzf", lambda values, chunk: {"out": chunk.size_bytes + 4}),
    32001: _numcodec("blosc"),
    32004: _imagecodec("lz4h5"),
    32008: _bitshuffle,
    32013: _decode_zfp,
    32015: _numcodec("zstd"),
    32018: _imagecodec("jpegls"),
    32026: _blosc2,
}
