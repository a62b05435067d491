"""Checksums of a repository's objects, kept beside it.

They stand in files below `icefloe/checksums/`: official readers look at no such place, official garbage
collection lists the four folders of the format alone, and a clone leaves them behind. Each file is one zstd
frame with a checksum of its own around the magic bytes and rows of 37 bytes, sorted: the kind (one byte, its
place in `KINDS`), the id (12), the size in bytes (8, little endian) and the blake2b digest (16).

A snapshot file of version 1 names its parent, and an expiration writes it anew with another one. Such a file
has two rows more: what it says apart from its parent, and the parent in place of a digest. So it can be told
from one that is damaged. The repo info file of version 2 is recorded under the time of the newest entry of
its ops log, in place of an id: whoever changes the file adds an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Progress, Task
from icefloe._internal.ids import ChunkId, SnapshotId, encode_column
from icefloe.encoding.envelope import open_frames
from icefloe.errors import ErrorKind, FormatError, IcechunkError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS, is_own_path, snapshot_but_parent
from icefloe.format.id_columns import id_keys, is_member
from icefloe.maintenance.listings import OBJECT_ID, Listing
from icefloe.maintenance.reachable import Ids
from icefloe.storage.base import ObjectNotFoundError, Storage

FOLDERS: Final = (SNAPSHOTS, TRANSACTIONS, MANIFESTS, CHUNKS)
BUT_PARENT: Final = "snapshots but for their parents"
PARENT: Final = "parents of snapshots"
REPO_INFO: Final = "repo info"
KINDS: Final = (*FOLDERS, BUT_PARENT, PARENT, REPO_INFO)
PLACE: Final = "icefloe/checksums"
_MAGIC: Final = b"icefloe sums 1\n\0"
_ROW: Final = np.dtype([("kind", "u1"), ("id", "V12"), ("size", "<u8"), ("digest", "V16")])
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

    def of(self, kind: str) -> Rows:
        """Those of one kind, sorted by id."""
        start, stop = self.rows["kind"].searchsorted(
            np.array([KINDS.index(kind), KINDS.index(kind) + 1], np.uint8)
        )
        return self.rows[start:stop]

    def find(self, kind: str, ids: Ids) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows of some objects, and which of the objects have one."""
        rows = self.of(kind)
        if not len(rows):
            return rows, np.zeros(len(ids), np.bool_)
        known, keys = id_keys(row_ids(rows)), id_keys(ids)
        places = np.minimum(known.searchsorted(keys), len(known) - 1)
        there = known[places] == keys
        return rows[places[there]], there

    def tied_anew(self, rows: Rows) -> Ids:
        """The snapshots that are what was recorded, but for a parent that was recorded too."""
        said, parents = of_kind(rows, BUT_PARENT), of_kind(rows, PARENT)  # both of the same ids, in one order
        was, known = self.find(BUT_PARENT, row_ids(said))
        was_parent, _ = self.find(PARENT, row_ids(said))
        said, parents = said[known], parents[known]
        now = np.ascontiguousarray(parents["digest"]).view(np.uint8).reshape(-1, 16)[:, : SnapshotId.SIZE]
        same = (was["size"] == said["size"]) & (was["digest"] == said["digest"])
        other = was_parent["digest"] != parents["digest"]
        tied: Ids = row_ids(said)[same & other & is_member(now, row_ids(self.of(SNAPSHOTS)))]
        return tied


def repo_info_row(data: bytes, newest_us: int) -> Rows:
    """The checksum of a repo info file whose newest change was made at a time."""
    row = (KINDS.index(REPO_INFO), times_as_ids(np.array([newest_us])).tobytes(), len(data), _hash(data))
    return np.array([row], _ROW)


def times_as_ids(times_us: NDArray[Any]) -> Ids:
    """Times in the form of ids, which sort like them."""
    ids = np.zeros((len(times_us), OBJECT_ID), np.uint8)
    ids[:, :8] = times_us.astype(">u8").view(np.uint8).reshape(-1, 8)
    return ids


def of_kind(rows: Rows, kind: str) -> Rows:
    """Those of one kind, in their order."""
    found: Rows = rows[rows["kind"] == KINDS.index(kind)]
    return found


def load(storage: Storage) -> Catalogue:
    """All checksums of a repository; FormatError for a file that is damaged."""
    parts = [_read(storage, key) for key in sorted(_files(storage))]
    return Catalogue(_sorted(np.concatenate([np.zeros(0, _ROW), *parts])))


def record(storage: Storage, rows: Rows) -> None:
    """Add checksums; they count more than earlier ones. Where files have become many, they become one."""
    if not len(rows):
        return
    files = sorted(_files(storage))
    many = len(files) >= _MOST_FILES
    if many:
        rows = np.concatenate([*(_read(storage, key) for key in files), rows])
    number = int(files[-1].removeprefix(f"{PLACE}/").partition("-")[0]) + 1 if files else 0
    data = _MAGIC + _sorted(rows).tobytes()
    sealed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
    storage.put(f"{PLACE}/{number:06d}-{ChunkId.random()}", sealed)
    storage.sync()
    if many:
        storage.delete(files)


def digests(
    storage: Storage, listings: Sequence[Listing], executor: Executor, progress: Progress | None = None
) -> Iterator[Rows]:
    """The checksums of objects as they are now, some of a folder at a time; one that is gone has none."""
    orders = [order for listing in listings for order in _orders(listing)]
    done, total = 0, sum(map(len, listings))
    for order, rows in zip(
        orders, executor.map(Task(partial(_digest, storage), "checksums"), orders), strict=True
    ):
        done += len(order[1])
        if progress is not None:
            progress("checksums", done, total)
        yield rows


def _digest(storage: Storage, order: tuple[str, Ids]) -> Rows:
    folder, ids = order
    found = []
    for id, name in zip(ids, encode_column(ids), strict=True):  # each is an object to read
        try:
            data, _ = storage.get(f"{folder}/{name}")
        except ObjectNotFoundError:
            continue
        found.append((FOLDERS.index(folder), id.tobytes(), len(data), _hash(data)))
        if folder == SNAPSHOTS:
            found += _rows_of_meaning(data, SnapshotId(id.tobytes()))
    return np.array(found, _ROW)


def _rows_of_meaning(data: bytes, id: SnapshotId) -> list[tuple[int, bytes, int, bytes]]:
    try:
        found = snapshot_but_parent(data, id)
    except IcechunkError:  # what cannot be read says nothing
        return []
    if found is None:
        return []
    said, parent = found
    name = bytes(parent or b"")
    return [
        (KINDS.index(BUT_PARENT), bytes(id), len(said), _hash(said)),
        (KINDS.index(PARENT), bytes(id), len(name), name.ljust(16, b"\0")),
    ]


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


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
    return [info.key for info in storage.list_prefix(f"{PLACE}/") if is_own_path(info.key)]


def _read(storage: Storage, key: str) -> Rows:
    data = bytes(open_frames(memoryview(storage.get(key)[0]), key))
    if not data.startswith(_MAGIC) or (len(data) - len(_MAGIC)) % _ROW.itemsize:
        raise FormatError(
            f"{key}: no catalogue of checksums of this release; delete it and record them again",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return np.frombuffer(data, _ROW, offset=len(_MAGIC))


def _sorted(rows: Rows) -> Rows:
    """By kind and id, the last of equal ones."""
    order = np.lexsort((id_keys(row_ids(rows)), rows["kind"]))
    rows = rows[order]
    last = np.ones(len(rows), np.bool_)
    last[:-1] = (rows["kind"][1:] != rows["kind"][:-1]) | (
        id_keys(row_ids(rows))[1:] != id_keys(row_ids(rows))[:-1]
    )
    return rows[last]
