"""Objects copied from one storage to another: in batches, several at once, in a bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe._internal.ids import encode_column
from icefloe.core.assets import object_metadata
from icefloe.errors import ErrorKind, StorageError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.format.id_columns import id_keys, is_member
from icefloe.format.spec import Spec
from icefloe.maintenance.listings import Listing
from icefloe.maintenance.reachable import Ids
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage

_BATCH_BYTES: Final = 8 << 20
_BATCH_OBJECTS: Final = 100
_FILE_TYPES: Final = {SNAPSHOTS: "snapshot", MANIFESTS: "manifest", TRANSACTIONS: "transaction-log"}


@dataclass(frozen=True, slots=True)
class Copier:
    """How objects get from one place to another."""

    source: Storage
    target: Storage
    spec: Spec
    read_back: bool
    """Whether each copy is read again and compared."""

    def __call__(self, order: tuple[str, Sequence[str]]) -> int:
        """Copy some objects of a folder, one after the other; how many bytes."""
        folder, names = order
        total = sum(self._copy(folder, name) for name in names)
        self.target.sync()  # another process may move the refs
        return total

    def _copy(self, folder: str, name: str) -> int:
        path = f"{folder}/{name}"
        try:
            data, _ = self.source.get(path)
        except ObjectNotFoundError:
            raise gone(path, self.source) from None
        if folder == CHUNKS:
            self.target.put(path, data, kind=ObjectKind.CHUNK)
        else:
            self.target.put(path, data, metadata=object_metadata(self.spec, _FILE_TYPES[folder]))
        if self.read_back and self.target.get(path)[0] != data:
            raise StorageError(
                f"{path} has other bytes in {self.target.place} than were just written there",
                kind=ErrorKind.STORAGE_OTHER,
            )
        return len(data)


def gone(path: str, place: Storage) -> StorageError:
    """The error for an object that is needed and not there."""
    return StorageError(
        f"{path} is needed and is not in {place.place}; it is missing, which `verify` tells, or was deleted "
        "meanwhile by a garbage collection: then try again",
        kind=ErrorKind.OBJECT_NOT_FOUND,
    )


def needed_rows(listed: Listing, needed: Ids, place: Storage) -> Listing:
    """What a listing says of some objects; StorageError for one that is not there."""
    missing = needed[~is_member(needed, listed.ids)]
    if len(missing):
        raise gone(f"{listed.folder}/{encode_column(missing[:1])[0]}", place)
    return listed.take(id_keys(listed.ids).searchsorted(id_keys(needed)))


def absent_from(wanted: Listing, there: Listing) -> Listing:
    """Those objects that another place has not, or has in another size."""
    known = is_member(wanted.ids, there.ids)
    rows = id_keys(there.ids).searchsorted(id_keys(wanted.ids[known]))
    same = known.copy()
    same[known] = there.sizes[rows] == wanted.sizes[known]
    return wanted.take(~same)


def copy_all(
    copier: Copier, listing: Listing, executor: Executor | None, limits: Limits, progress: Progress | None
) -> int:
    """Copy all objects of a listing; how many bytes."""
    batches = list(_batches(listing))
    spread = executor or ThreadExecutor(limits.threads_for(listing), "copies")
    total, done = 0, 0
    for count, copied in zip(
        (len(names) for _, names in batches),
        spread.map(Task(partial(_run, copier), "batches of objects"), batches),
        strict=True,
    ):
        total += copied
        done += count
        if progress is not None:
            progress(listing.folder, done, len(listing))
    return total


def _run(copier: Copier, order: tuple[str, Sequence[str]]) -> int:
    return copier(order)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way at once."""

    max_concurrent_requests: int = 64
    max_memory_bytes: int = 512 << 20

    def threads_for(self, listing: Listing) -> int:
        """How many objects may be held at once so that the largest of them fit, with what was read back."""
        largest = int(listing.sizes.max(initial=1))
        return max(1, min(self.max_concurrent_requests, self.max_memory_bytes // (2 * largest)))


def _batches(listing: Listing) -> Iterator[tuple[str, list[str]]]:
    """Objects in a row until they are many or large."""
    number = np.maximum(np.cumsum(listing.sizes) // _BATCH_BYTES, np.arange(len(listing)) // _BATCH_OBJECTS)
    borders = np.flatnonzero(np.diff(number)) + 1
    for rows in np.split(np.arange(len(listing)), borders):
        if len(rows):
            yield listing.folder, encode_column(listing.ids[rows])
