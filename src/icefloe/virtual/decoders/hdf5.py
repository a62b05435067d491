"""HDF5's filters undone: what the bytes of a chunk were before one was applied.

A filter is known by its number in the HDF Group's register, and by the values that a file keeps for it. The
wrapped compressions are those of imagecodecs and numcodecs; the two that only HDF5 has are here.
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
"""Classes of values that scale-offset tells apart."""
_ATOMIC: Final = 1
"""The class of plain numbers of n-bit."""
_SCALE_OFFSET_HEADER: Final = 21
_BITSHUFFLE_LZ4, _BITSHUFFLE_ZSTD = 2, 3
_BLOSC2_MAGIC: Final = b"b2frame\0"
_BLOSC2_ZEROS, _BLOSC2_NAN, _BLOSC2_UNSET = 1, 2, 4
"""Kinds of chunks that a Blosc2 frame does not store."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is known of a chunk once all filters are undone."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        """Of all its values."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


Decoder: TypeAlias = Callable[[bytes, Sequence[int], Chunk], Any]


def undo(number: int, values: Sequence[int], data: bytes, chunk: Chunk) -> bytes:
    """The bytes before filter `number` was applied with `values`; ValueError for one that is not known."""
    if number not in DECODERS:
        known = ", ".join(map(str, sorted(DECODERS)))
        raise ValueError(f"no decoder for HDF5's filter {number}; known are {known}")
    return bytes(DECODERS[number](data, values, chunk))


def _numcodec(name: str) -> Decoder:
    def decode(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
        import numcodecs

        return numcodecs.get_codec({"id": name}).decode(data)

    return decode


def _shuffle(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Bytes put apart by their place in a value; what is left over at the end stayed as it was."""
    size = values[0]
    whole = len(data) - len(data) % size
    table = np.frombuffer(data[:whole], np.uint8).reshape(size, -1)
    return table.T.tobytes() + data[whole:]


def _szip(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    import imagecodecs

    options, pixels_per_block, bits_per_pixel, pixels_per_scanline = values[:4]
    return imagecodecs.szip_decode(
        data,
        options_mask=options,
        pixels_per_block=pixels_per_block,
        bits_per_pixel=bits_per_pixel,
        pixels_per_scanline=pixels_per_scanline,
        header=True,
    )


def _lzf(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    import imagecodecs

    # LZF does not tell how much it was. A checksum of 4 bytes may have been put in before.
    return imagecodecs.lzf_decode(data, out=chunk.size_bytes + 4)


def _lz4(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    import imagecodecs

    return imagecodecs.lz4h5_decode(data)


def _blosc2(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Decode a Blosc2 frame, which holds one compressed chunk and says how its values lie in blocks."""
    import imagecodecs

    if data[2:10] != _BLOSC2_MAGIC:  # versions before the one with frames
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
    """What the index of chunks has instead of a place, for a chunk whose values are all the same."""
    import imagecodecs

    (place,) = struct.unpack("<q", imagecodecs.blosc2_decode(index)[:8])
    match place >> 56 & 7:
        case kind if kind in (_BLOSC2_ZEROS, _BLOSC2_UNSET):
            return bytes(size)
        case kind if kind == _BLOSC2_NAN:
            return np.full(size // dtype.itemsize, np.nan, dtype).tobytes()
    raise ValueError("a chunk of a Blosc2 frame that is neither stored nor all zero")


def _blosc2_blocks(header: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes of the chunk and of the blocks in it; None where values are in their plain order."""
    layers = header[13] if len(header) > 13 else None
    if not layers or b"b2nd" not in layers[1]:
        return None
    names = list(layers[1])
    described = msgpack.unpackb(layers[2][names.index(b"b2nd")], raw=True, strict_map_key=False)
    return tuple(described[3]), tuple(described[4])


def _blosc2_rows(data: bytes, shape: tuple[int, ...], block: tuple[int, ...]) -> bytes:
    """Values that are stored block by block, blocks at the edge being filled up."""
    grid = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    rank, itemsize = len(shape), len(data) // (math.prod(grid) * math.prod(block))
    table = np.frombuffer(data, np.uint8).reshape(*grid, *block, itemsize)
    order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    filled = tuple(number * part for number, part in zip(grid, block, strict=True))
    values = table.transpose(*order, 2 * rank).reshape(*filled, itemsize)
    return values[tuple(slice(size) for size in shape)].tobytes()


def _zfp(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """The file keeps the header that is the same for all chunks in the values, in words of 32 bits."""
    import imagecodecs

    header = np.array(values[1:], "<u4").tobytes()
    return np.ascontiguousarray(imagecodecs.zfp_decode(header + data)).tobytes()


def _jpegls(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    import imagecodecs

    return np.ascontiguousarray(imagecodecs.jpegls_decode(data)).tobytes()


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
        size = min(block_bytes, left - left % (8 * itemsize))  # eight values are the least it works on
        (length,) = struct.unpack(">I", data[position : position + 4])
        shuffled = inflate(data[position + 4 : position + 4 + length], out=size)
        parts.append(bytes(imagecodecs.bitshuffle_decode(shuffled, itemsize=itemsize)))
        position, left = position + 4 + length, left - size
    return b"".join([*parts, data[position : position + left]])


def _scale_offset(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Values less their minimum, in as few bits as the largest needs; all bits set is the fill value."""
    _, factor, count, kind, size, signed, big, has_fill = values[:8]
    bits, width = struct.unpack("<IB", data[:5])
    stored = f"{'>' if big else '<'}{_letter(kind, signed)}{size}"
    packed = data[_SCALE_OFFSET_HEADER:]
    if bits == 8 * size:  # nothing gained: the values as they were
        return np.frombuffer(packed, f"<u{size}", count).astype(stored.replace(stored[1], "u")).tobytes()
    found = _unpacked(packed, count, bits)
    native = np.dtype(_letter(kind, signed) + str(size))
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


def _letter(kind: int, signed: int) -> str:
    return "f" if kind == _FLOATS else "i" if signed else "u"


def _nbit(data: bytes, values: Sequence[int], chunk: Chunk) -> Any:
    """Integers in as many bits as their type says they have; the highest is their sign."""
    if values[1]:  # all bits of the type are in use: nothing was done
        return data
    _, _, count, kind, size, big, bits, offset = values[:8]
    if kind != _ATOMIC or offset:
        raise ValueError("n-bit of values that are not plain integers")
    found = _unpacked(data, count, bits)
    if chunk.dtype.kind == "i":
        sign = np.uint64(1 << (bits - 1))
        found = (found ^ sign) - sign
    return found.astype(f"{'>' if big else '<'}u{size}").tobytes()


def _unpacked(data: bytes, count: int, bits: int) -> NDArray[np.uint64]:
    """Integers of so many bits each, highest bit first, one after the other."""
    wide = np.zeros((count, 64), np.uint8)
    if bits:
        flat = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits)
        wide[:, 64 - bits :] = flat.reshape(count, bits)
    return np.packbits(wide, axis=1).view(">u8").reshape(count).astype(np.uint64)


DECODERS: Final[dict[int, Decoder]] = {
    1: _numcodec("zlib"),
    2: _shuffle,
    4: _szip,
    5: _nbit,
    6: _scale_offset,
    307: _numcodec("bz2"),
    32000: _lzf,
    32001: _numcodec("blosc"),
    32004: _lz4,
    32008: _bitshuffle,
    32013: _zfp,
    32015: _numcodec("zstd"),
    32018: _jpegls,
    32026: _blosc2,
}
