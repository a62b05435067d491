"""Checksums of a repository's objects, kept beside it.

They stand in files below `icefloe/checksums/`: official readers look at no such place, official garbage
collection lists the four folders of the format alone, and a clone leaves them behind. Each file is one zstd
frame with a checksum of its own around the magic bytes and rows of 37 bytes, sorted: the folder (one byte,
its place in `FOLDERS`), the id (12), the size in bytes (8, little endian) and the blake2b digest (16).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.concurrency import FanOut
from icefloe.encoding.envelope import open_frames
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.format.id_columns import id_keys
from icefloe.ids import ChunkId, encode_column
from icefloe.maintenance.copies import Progress
from icefloe.maintenance.listings import Listing
from icefloe.maintenance.reach import Ids
from icefloe.storage.base import ObjectNotFoundError, Storage

FOLDERS: Final = (SNAPSHOTS, TRANSACTIONS, MANIFESTS, CHUNKS)
PLACE: Final = "icefloe/checksums"
_MAGIC: Final = b"icefloe sums 1\n\0"
_ROW: Final = np.dtype([("folder", "u1"), ("id", "V12"), ("size", "<u8"), ("digest", "V16")])
_BATCH_BYTES: Final = 8 << 20
_BATCH_OBJECTS: Final = 100
_MOST_FILES: Final = 16

Rows = NDArray[np.void]


class Catalogue:
    """The checksums that were recorded, each object's once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, folder: str) -> Rows:
        """Those of one folder, sorted by id."""
        start, stop = self.rows["folder"].searchsorted(
            np.array([FOLDERS.index(folder), FOLDERS.index(folder) + 1], np.uint8)
        )
        return self.rows[start:stop]

    def find(self, folder: str, ids: Ids) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows of some objects, and which of the objects have one."""
        rows = self.of(folder)
        if not len(rows):
            return rows, np.zeros(len(ids), np.bool_)
        known, keys = id_keys(row_ids(rows)), id_keys(ids)
        places = np.minimum(known.searchsorted(keys), len(known) - 1)
        there = known[places] == keys
        return rows[places[there]], there


def load(storage: Storage) -> Catalogue:
    """All checksums of a repository; FormatError for a file that is damaged."""
    parts = [_read(storage, key) for key in sorted(_files(storage))]
    return Catalogue(_sorted(np.concatenate([np.zeros(0, _ROW), *parts])))


def record(storage: Storage, known: Catalogue, rows: Rows) -> None:
    """Add checksums. When files have become many, they are written as one."""
    if not len(rows):
        return
    files = sorted(_files(storage))
    joined = _sorted(np.concatenate([known.rows, rows]))
    many = len(files) >= _MOST_FILES
    data = (joined if many else _sorted(rows)).tobytes()
    name = f"{len(files):06d}-{ChunkId.random()}"
    sealed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(_MAGIC + data)
    storage.put(f"{PLACE}/{name}", sealed)
    storage.sync()
    if many:
        storage.delete(files)


def digests(
    storage: Storage, listings: Sequence[Listing], fan_out: FanOut, progress: Progress | None = None
) -> Iterator[Rows]:
    """The checksums of objects as they are now; one that is gone has none."""
    orders = [order for listing in listings for order in _orders(listing)]
    done, total = 0, sum(map(len, listings))
    for order, rows in zip(orders, fan_out(partial(_digest, storage), orders), strict=True):
        done += len(order[1])
        if progress is not None:
            progress("checksums", done, total)
        yield rows


def _digest(storage: Storage, order: tuple[str, Ids]) -> Rows:
    folder, ids = order
    rows = np.zeros(len(ids), _ROW)
    rows["folder"], rows["id"] = FOLDERS.index(folder), np.ascontiguousarray(ids).view("V12").reshape(-1)
    there = np.ones(len(ids), np.bool_)
    for at, name in enumerate(encode_column(ids)):  # each is an object to read
        try:
            data, _ = storage.get(f"{folder}/{name}")
        except ObjectNotFoundError:
            there[at] = False
            continue
        rows["size"][at] = len(data)
        rows["digest"][at] = np.void(blake2b(data, digest_size=16).digest())
    return rows[there]


def _orders(listing: Listing) -> Iterator[tuple[str, Ids]]:
    number = np.maximum(np.cumsum(listing.sizes) // _BATCH_BYTES, np.arange(len(listing)) // _BATCH_OBJECTS)
    for ids in np.split(listing.ids, np.flatnonzero(np.diff(number)) + 1):
        if len(ids):
            yield listing.folder, ids


def row_ids(rows: Rows) -> Ids:
    """The ids of rows, in their order."""
    found: Ids = np.ascontiguousarray(rows["id"]).view(np.uint8).reshape(-1, 12)
    return found


def _files(storage: Storage) -> list[str]:
    return [info.key for info in storage.list_prefix(f"{PLACE}/")]


def _read(storage: Storage, key: str) -> Rows:
    data = bytes(open_frames(memoryview(storage.get(key)[0]), key))
    if not data.startswith(_MAGIC) or (len(data) - len(_MAGIC)) % _ROW.itemsize:
        raise FormatError(
            f"{key}: no catalogue of checksums of this release; delete it and record them again",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return np.frombuffer(data, _ROW, offset=len(_MAGIC))


def _sorted(rows: Rows) -> Rows:
    """By folder and id, the last of equal ones."""
    order = np.lexsort((id_keys(row_ids(rows)), rows["folder"]))
    rows = rows[order]
    last = np.ones(len(rows), np.bool_)
    last[:-1] = (rows["folder"][1:] != rows["folder"][:-1]) | (
        id_keys(row_ids(rows))[1:] != id_keys(row_ids(rows))[:-1]
    )
    return rows[last]
