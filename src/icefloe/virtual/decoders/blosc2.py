"""Blosc2's frames, as its HDF5 filter writes them: one compressed chunk, and how its values are in blocks."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import msgpack
import numpy as np

_ZEROS, _NAN, _UNSET = 1, 2, 4
"""Kinds of chunks that a frame does not store."""
_MAGIC: Final = b"b2frame\0"


def decode_frame(data: bytes, dtype: np.dtype[Any]) -> bytes:
    """The bytes of the one chunk of a frame."""
    import imagecodecs

    if data[2:10] != _MAGIC:  # versions before the one with frames
        return bytes(imagecodecs.blosc2_decode(data))
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=len(data))
    unpacker.feed(data)
    header = unpacker.unpack()
    start, size, stored, itemsize = header[1], header[4], header[5], header[6]
    blocks = _blocks(header)
    if not stored:
        whole = size if blocks is None else itemsize * math.prod(blocks[0])
        return _not_stored(_chunk_at(data, start), whole, dtype)
    found = bytes(imagecodecs.blosc2_decode(_chunk_at(data, start)))
    return found if blocks is None else _in_rows(found, *blocks)


def _chunk_at(data: bytes, start: int) -> bytes:
    (length,) = struct.unpack("<i", data[start + 12 : start + 16])
    return data[start : start + length]


def _not_stored(index: bytes, size: int, dtype: np.dtype[Any]) -> bytes:
    """What the index of chunks has instead of a place, for a chunk whose values are all the same."""
    import imagecodecs

    (place,) = struct.unpack("<q", imagecodecs.blosc2_decode(index)[:8])
    match place >> 56 & 7:
        case kind if kind in (_ZEROS, _UNSET):
            return bytes(size)
        case kind if kind == _NAN:
            return np.full(size // dtype.itemsize, np.nan, dtype).tobytes()
    raise ValueError("a chunk of a Blosc2 frame that is neither stored nor all zero")


def _blocks(header: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes of the chunk and of the blocks in it; None where values are in their plain order."""
    layers = header[13] if len(header) > 13 else None
    if not layers or b"b2nd" not in layers[1]:
        return None
    names = list(layers[1])
    described = msgpack.unpackb(layers[2][names.index(b"b2nd")], raw=True, strict_map_key=False)
    return tuple(described[3]), tuple(described[4])


def _in_rows(data: bytes, shape: tuple[int, ...], block: tuple[int, ...]) -> bytes:
    """Values that are stored block by block, blocks at the edge being filled up."""
    grid = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    rank, itemsize = len(shape), len(data) // (math.prod(grid) * math.prod(block))
    table = np.frombuffer(data, np.uint8).reshape(*grid, *block, itemsize)
    order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    filled = tuple(number * part for number, part in zip(grid, block, strict=True))
    values = table.transpose(*order, 2 * rank).reshape(*filled, itemsize)
    return values[tuple(slice(size) for size in shape)].tobytes()
