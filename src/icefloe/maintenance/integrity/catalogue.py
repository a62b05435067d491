"""The checksum catalogue, which is stored next to the repository's objects.

Its files are below `icefloe/checksums/`. Official readers and garbage collection ignore this folder, and
clones do not copy it. Each file is one zstd frame with its own checksum. It contains magic bytes and
sorted rows of 37 bytes: the kind (one byte, the index in `KINDS`), the id (12), the size in bytes (8, little
endian) and the blake2b digest (16).

A snapshot file of version 1 contains the id of its parent, and an expiration rewrites it with another parent.
To distinguish this from damage, such a file has two more rows: one with the digest of its content without the
parent, and one with the parent instead of a digest. The repo info file of version 2 has the time of the
newest entry of its ops log instead of an id, because every change of the file adds an entry.
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
from icefloe._internal.ids import ChunkId, SnapshotId
from icefloe.encoding.envelope import open_frames
from icefloe.errors import ErrorKind, FormatError, IcechunkError
from icefloe.format.files import (
    CHUNKS,
    MANIFESTS,
    SNAPSHOTS,
    TRANSACTIONS,
    is_own_path,
    split_snapshot_parent,
)
from icefloe.format.id_columns import is_member, view_id_keys
from icefloe.maintenance.listings import OBJECT_ID, Ids, ObjectListing, iterate_ids
from icefloe.storage.base import ObjectNotFoundError, Storage

FOLDERS: Final = (SNAPSHOTS, TRANSACTIONS, MANIFESTS, CHUNKS)
WITHOUT_PARENT: Final = "snapshots without parents"
PARENT: Final = "parents of snapshots"
REPO_INFO: Final = "repo info"
KINDS: Final = (*FOLDERS, WITHOUT_PARENT, PARENT, REPO_INFO)
FOLDER: Final = "icefloe/checksums"
_MAGIC: Final = b"icefloe sums 1\n\0"
_ROW: Final = np.dtype([("kind", "u1"), ("id", "V12"), ("size", "<u8"), ("digest", "V16")])
_MAX_FILES: Final = 16

Rows = NDArray[np.void]


class Catalogue:
    """The checksum catalogue: one row per object with a recorded checksum."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, kind: str) -> Rows:
        """Return the rows of the checksum catalogue for one kind of object, sorted by id."""
        start, stop = self.rows["kind"].searchsorted(
            np.array([KINDS.index(kind), KINDS.index(kind) + 1], np.uint8)
        )
        return self.rows[start:stop]

    def find(self, kind: str, ids: Ids) -> tuple[Rows, NDArray[np.bool_]]:
        """Look up objects in the checksum catalogue. Return their rows, and a mask of the objects that have
        one.
        """
        rows = self.of(kind)
        if not len(rows):
            return rows, np.zeros(len(ids), np.bool_)
        known, keys = view_id_keys(get_row_ids(rows)), view_id_keys(ids)
        places = np.minimum(known.searchsorted(keys), len(known) - 1)
        there = known[places] == keys
        return rows[places[there]], there

    def with_new_parents(self, rows: Rows) -> Ids:
        """Return the recorded snapshots of which only the parent changed, if the catalogue contains the new
        parent.
        """
        content, parents = (
            select_kind(rows, WITHOUT_PARENT),
            select_kind(rows, PARENT),
        )  # rows of the same ids
        was, known = self.find(WITHOUT_PARENT, get_row_ids(content))
        was_parent, _ = self.find(PARENT, get_row_ids(content))
        content, parents = content[known], parents[known]
        now = np.ascontiguousarray(parents["digest"]).view(np.uint8).reshape(-1, 16)[:, : SnapshotId.SIZE]
        same = (was["size"] == content["size"]) & (was["digest"] == content["digest"])
        other = was_parent["digest"] != parents["digest"]
        changed: Ids = get_row_ids(content)[same & other & is_member(now, get_row_ids(self.of(SNAPSHOTS)))]
        return changed


def make_repo_info_row(data: bytes, newest_us: int) -> Rows:
    """Return the catalogue row for a repo info file, identified by the time of its newest entry."""
    row = (KINDS.index(REPO_INFO), to_time_ids(np.array([newest_us])).tobytes(), len(data), _hash(data))
    return np.array([row], _ROW)


def to_time_ids(times_us: NDArray[Any]) -> Ids:
    """Convert times to ids that sort in the same order, for rows of the checksum catalogue."""
    ids = np.zeros((len(times_us), OBJECT_ID), np.uint8)
    ids[:, :8] = times_us.astype(">u8").view(np.uint8).reshape(-1, 8)
    return ids


def select_kind(rows: Rows, kind: str) -> Rows:
    """Select the rows of the checksum catalogue for one kind of object, in their original order."""
    found: Rows = rows[rows["kind"] == KINDS.index(kind)]
    return found


def load(storage: Storage) -> Catalogue:
    """Load the checksum catalogue of a repository. Raise FormatError if a file is damaged."""
    parts = [_read(storage, key) for key in sorted(_files(storage))]
    return Catalogue(_sort_rows(np.concatenate([np.zeros(0, _ROW), *parts])))


def record(storage: Storage, rows: Rows) -> None:
    """Record checksums in the catalogue, replacing earlier checksums of the same objects.

    If there are many files, they are merged into one.
    """
    if not len(rows):
        return
    files = sorted(_files(storage))
    many = len(files) >= _MAX_FILES
    if many:
        rows = np.concatenate([*(_read(storage, key) for key in files), rows])
    number = int(files[-1].removeprefix(f"{FOLDER}/").partition("-")[0]) + 1 if files else 0
    data = _MAGIC + _sort_rows(rows).tobytes()
    sealed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
    storage.put(f"{FOLDER}/{number:06d}-{ChunkId.random()}", sealed)
    storage.sync()
    if many:
        storage.delete(files)


def compute_digests(
    storage: Storage, listings: Sequence[ObjectListing], executor: Executor, progress: Progress | None = None
) -> Iterator[Rows]:
    """Compute object checksums for the catalogue in batches. Missing objects have none."""
    batches = [batch for listing in listings for batch in listing.batches()]
    done, total = 0, sum(map(len, listings))
    results = executor.map(Task(partial(_digest, storage), "checksums"), batches)
    for batch, rows in zip(batches, results, strict=True):
        done += len(batch)
        if progress is not None:
            progress("checksums", done, total)
        yield rows


def _digest(storage: Storage, batch: ObjectListing) -> Rows:
    found = []
    for id, path in zip(iterate_ids(batch.ids), batch.paths(), strict=True):  # one request per object
        try:
            data, _ = storage.get(path)
        except ObjectNotFoundError:
            continue
        found.append((FOLDERS.index(batch.folder), id, len(data), _hash(data)))
        if batch.folder == SNAPSHOTS:
            found += _list_rows_without_parent(data, SnapshotId(id))
    return np.array(found, _ROW)


def _list_rows_without_parent(data: bytes, id: SnapshotId) -> list[tuple[int, bytes, int, bytes]]:
    try:
        found = split_snapshot_parent(data, id)
    except IcechunkError:  # only the digest of the whole file is recorded
        return []
    if found is None:
        return []
    content, parent = found
    name = bytes(parent or b"")
    return [
        (KINDS.index(WITHOUT_PARENT), bytes(id), len(content), _hash(content)),
        (KINDS.index(PARENT), bytes(id), len(name), name.ljust(16, b"\0")),
    ]


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def get_row_ids(rows: Rows) -> Ids:
    """Return the object ids of checksum catalogue rows, in the same order."""
    found: Ids = np.ascontiguousarray(rows["id"]).view(np.uint8).reshape(-1, 12)
    return found


def _files(storage: Storage) -> list[str]:
    return [info.key for info in storage.list_prefix(f"{FOLDER}/") if is_own_path(info.key)]


def _read(storage: Storage, key: str) -> Rows:
    data = bytes(open_frames(memoryview(storage.get(key)[0]), key))
    if not data.startswith(_MAGIC) or (len(data) - len(_MAGIC)) % _ROW.itemsize:
        raise FormatError(
            f"{key} is not a valid catalogue of checksums; delete it and record checksums again",
            kind=ErrorKind.INVALID_FILE_FORMAT,
        )
    return np.frombuffer(data, _ROW, offset=len(_MAGIC))


def _sort_rows(rows: Rows) -> Rows:
    """Sort rows by kind and id, and keep only the last row of each object."""
    order = np.lexsort((view_id_keys(get_row_ids(rows)), rows["kind"]))
    rows = rows[order]
    last = np.ones(len(rows), np.bool_)
    last[:-1] = (rows["kind"][1:] != rows["kind"][:-1]) | (
        view_id_keys(get_row_ids(rows))[1:] != view_id_keys(get_row_ids(rows))[:-1]
    )
    return rows[last]
