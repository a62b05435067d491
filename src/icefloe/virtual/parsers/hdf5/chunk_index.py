"""Read the chunk index of an HDF5 dataset directly from the bytes of a local file.

The HDF5 library calls a Python function for each chunk, which takes more than a microsecond. The two most
common index types, version 1 B-trees and fixed arrays, have fixed-size entries that numpy can read at once.
For all other types, and whenever the result disagrees with the library, the caller uses the library instead.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import h5py

Table: TypeAlias = NDArray[np.uint64]
"""Chunk locations with one row per chunk: the indices of its first element, its file offset, its size, and
the mask of skipped filters.
"""
_Read: TypeAlias = Callable[[int, int], bytes]

_MANY_CHUNKS: Final = 1000
"""The number of chunks above which reading the index directly is faster."""
_UNDEFINED: Final = np.uint64((1 << 64) - 1)
_LAYOUT: Final = 8
_CONTINUATION: Final = 16
_CHUNKED: Final = 2
_FIXED_ARRAY: Final = 3


class _UnknownIndexError(Exception):
    """Error raised when a chunk index is damaged or has an unsupported type."""


def read_chunk_index(dataset: h5py.Dataset) -> Table | None:
    """Read all chunk locations from an HDF5 chunk index. Return None if only the library can read it."""
    file = dataset.file
    grid = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    if math.prod(grid) < _MANY_CHUNKS or file.driver != "sec2" or file.mode != "r":
        return None
    properties = file.id.get_create_plist()
    if properties.get_userblock() or properties.get_sizes() != (8, 8):
        return None
    try:
        with open(file.filename, "rb", buffering=0) as raw:
            table = _read_index(dataset, lambda at, size: _read(raw.fileno(), at, size))
    except (OSError, ValueError, struct.error, _UnknownIndexError):
        return None
    return table if _agrees_with_library(dataset, table) else None


def _read(file: int, at: int, size: int) -> bytes:
    data = os.pread(file, size, at)
    if len(data) < size:
        raise _UnknownIndexError
    return data


def _agrees_with_library(dataset: h5py.Dataset, table: Table) -> bool:
    """Return True if the HDF5 library reports the same number of chunks, and the same locations for a few."""
    rank = len(dataset.shape)
    if not len(table) or dataset.id.get_num_chunks() != len(table):
        return False
    for row in table[[0, len(table) // 2, -1]].tolist():
        found = dataset.id.get_chunk_info_by_coord(tuple(row[:rank]))
        if [found.byte_offset, found.size, found.filter_mask] != row[rank:]:
            return False
    return True


def _read_index(dataset: h5py.Dataset, read: _Read) -> Table:
    import h5py

    layout = _find_layout(read, h5py.h5o.get_info(dataset.id).addr)
    rank = len(dataset.shape)
    if layout[:2] == bytes((3, _CHUNKED)) and layout[2] == rank + 1:
        (root,) = struct.unpack_from("<Q", layout, 3)
        return _read_tree(read, root, rank)
    if layout[0] in (4, 5) and layout[1] == _CHUNKED and layout[3] == rank + 1:
        at = 5 + layout[4] * (rank + 1)
        if layout[at] == _FIXED_ARRAY:
            (header,) = struct.unpack_from("<Q", layout, at + 2)
            return _read_fixed_array(read, header, dataset)
    raise _UnknownIndexError


def _find_layout(read: _Read, header: int) -> bytes:
    """Return the data layout message from an HDF5 object header."""
    start = read(header, 16)
    if start[:4] == b"OHDR":
        flags = start[5]
        at = 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(read(header + at, width), "little")
        messages = _iterate_messages(read, header + at + width, size, 6 if flags & 4 else 4, is_new=True)
    elif start[0] == 1:
        messages = _iterate_messages(
            read, header + 16, int.from_bytes(start[8:12], "little"), 8, is_new=False
        )
    else:
        raise _UnknownIndexError
    for kind, data in messages:
        if kind == _LAYOUT:
            return data
    raise _UnknownIndexError


def _iterate_messages(
    read: _Read, start: int, size: int, head: int, *, is_new: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each message in an HDF5 object header, including continuation blocks."""
    blocks = [(start, size)]
    for start, size in blocks:  # grows while it is read
        data, at = read(start, size), 0
        while at + head <= len(data):
            kind, length = (data[at], data[at + 1 : at + 3]) if is_new else (data[at], data[at + 2 : at + 4])
            stop = at + head + int.from_bytes(length, "little")
            message = data[at + head : stop]
            if kind == _CONTINUATION and len(blocks) < 1000:
                more, count = struct.unpack_from("<QQ", message)
                # Version 2 blocks have a signature and a checksum.
                blocks.append((more + 4, count - 8) if is_new else (more, count))
            yield kind, message
            at = stop


def _read_tree(read: _Read, root: int, rank: int) -> Table:
    """Read an HDF5 version 1 B-tree, level by level."""
    entry = np.dtype(
        [("size", "<u4"), ("mask", "<u4"), ("start", "<u8", (rank,)), ("element", "<u8"), ("child", "<u8")]
    )
    nodes, level = [root], -1
    while True:
        parts = []
        for node in nodes:
            head = read(node, 24)
            if head[:5] != b"TREE\1" or (level >= 0 and head[5] != level):
                raise _UnknownIndexError
            level = head[5]
            count = int.from_bytes(head[6:8], "little")
            parts.append(np.frombuffer(read(node + 24, count * entry.itemsize), entry))
        entries = np.concatenate(parts)
        if level == 0:
            columns = (entries["child"], entries["size"], entries["mask"])
            return np.column_stack([entries["start"], *(column.astype(np.uint64) for column in columns)])
        nodes, level = entries["child"].tolist(), level - 1


def _read_fixed_array(read: _Read, header: int, dataset: h5py.Dataset) -> Table:
    """Read an HDF5 fixed array index. Pages in which no chunk was written are not stored."""
    signature, _, client, width, page_bits, count, block = struct.unpack("<4sBBBBQQ", read(header, 24))
    grid = [-(-size // chunk) for size, chunk in zip(dataset.maxshape, dataset.chunks, strict=True)]
    if signature != b"FAHD" or client > 1 or math.prod(grid) != count:
        raise _UnknownIndexError
    data = _read_elements(read, block, count, width, 1 << page_bits)
    elements: NDArray[Any] = np.frombuffer(data, np.uint8).reshape(count, width)
    addresses = np.ascontiguousarray(elements[:, :8]).view("<u8")[:, 0]
    rows = np.flatnonzero(addresses != _UNDEFINED)
    table = np.empty((len(rows), len(grid) + 3), np.uint64)
    for axis, numbers in enumerate(np.unravel_index(rows, grid)):
        table[:, axis] = numbers * dataset.chunks[axis]
    table[:, -3] = addresses[rows]
    if client:
        sizes = np.zeros((len(rows), 8), np.uint8)
        sizes[:, : width - 12] = elements[rows, 8:-4]
        table[:, -2] = sizes.view("<u8")[:, 0]
        table[:, -1] = np.ascontiguousarray(elements[rows, -4:]).view("<u4")[:, 0]
    else:
        table[:, -2] = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        table[:, -1] = 0
    return table


def _read_elements(read: _Read, block: int, count: int, width: int, page: int) -> bytes:
    """Read all elements in the data block of an HDF5 fixed array."""
    if read(block, 4) != b"FADB":
        raise _UnknownIndexError
    if count <= page:
        return read(block + 14, count * width)
    pages = -(-count // page)
    bitmap = np.unpackbits(np.frombuffer(read(block + 14, -(-pages // 8)), np.uint8))
    first = block + 14 + -(-pages // 8) + 4
    parts = []
    for number in range(pages):  # a thousand elements each
        size = min(page, count - number * page) * width
        at = first + number * (page * width + 4)
        parts.append(read(at, size) if bitmap[number] else b"\xff" * size)
    return b"".join(parts)
