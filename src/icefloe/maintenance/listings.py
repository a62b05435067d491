"""Listings of repository objects in columnar form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import count_characters, decode_names, encode_column
from icefloe.format.id_columns import is_member, sort_ids, view_id_keys
from icefloe.storage.base import ListedObjects, Storage

OBJECT_ID: Final = 12
_BATCH_BYTES: Final = 8 << 20
_BATCH_OBJECTS: Final = 100

Ids = NDArray[np.uint8]
"""A column of object ids of shape (n, 12), sorted and without duplicates."""

NO_IDS: Final = np.zeros((0, OBJECT_ID), np.uint8)


def to_column(ids: Iterable[bytes]) -> Ids:
    """Convert object ids to a sorted column without duplicates."""
    return sort_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, OBJECT_ID))


def iterate_ids(ids: Ids) -> list[bytes]:
    """Yield the ids of a column or listing one by one."""
    data = ids.tobytes()
    return [data[start : start + OBJECT_ID] for start in range(0, len(data), OBJECT_ID)]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectListing:
    """The objects in one folder of a repository."""

    folder: str
    ids: NDArray[np.uint8]
    """The ids of the objects, of shape (n, 12)."""
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """The last modification times according to the storage's clock, in microseconds since 1970-01-01 UTC;
    empty if not requested.
    """

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> Self:
        """Return a listing with only the given rows."""
        times = self.times_us[rows] if len(self.times_us) else self.times_us
        return type(self)(self.folder, self.ids[rows], self.sizes[rows], times)

    def paths(self) -> list[str]:
        """Return the storage paths of the listed objects."""
        return [f"{self.folder}/{name}" for name in encode_column(self.ids)]

    def find(self, ids: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Look up ids in this listing. Return a mask of the ids that it contains, and the sizes of their
        objects.
        """
        found = is_member(ids, self.ids)
        return found, self.sizes[view_id_keys(self.ids).searchsorted(view_id_keys(ids[found]))]

    def batches(self) -> Iterator[Self]:
        """Split a listing into batches, one per task, limited by number of objects and total size."""
        number = np.maximum(np.cumsum(self.sizes) // _BATCH_BYTES, np.arange(len(self)) // _BATCH_OBJECTS)
        for rows in np.split(np.arange(len(self)), np.flatnonzero(np.diff(number)) + 1):
            if len(rows):
                yield self.take(rows)


def list_folder(storage: Storage, folder: str) -> ObjectListing:
    """List the objects in a folder, sorted by id. Files whose names are not ids are ignored."""
    found = filter_folder(storage, folder, lambda part: part)
    return found.take(view_id_keys(found.ids).argsort(kind="stable"))


def filter_folder(
    storage: Storage, folder: str, select: Callable[[ObjectListing], ObjectListing], *, dated: bool = True
) -> ObjectListing:
    """List a folder part by part, and keep only the objects that `select` returns for each part, in any
    order.

    Only selected rows are held in memory, so folders with many millions of objects can be listed.
    """
    # The buffers grow in place, because concatenating columns would need twice the memory.
    ids, sizes, times = bytearray(), bytearray(), bytearray()
    for part in storage.list_columns(f"{folder}/"):
        selected = select(_with_ids(folder, part))
        ids += selected.ids.tobytes()
        sizes += selected.sizes.tobytes()
        if dated:
            times += selected.times_us.tobytes()
    return ObjectListing(
        folder,
        np.frombuffer(ids, np.uint8).reshape(-1, OBJECT_ID),
        np.frombuffer(sizes, np.int64),
        np.frombuffer(times, np.int64),
    )


def _with_ids(folder: str, part: ListedObjects) -> ObjectListing:
    """Parse the names of listed files as ids, and skip all other files."""
    start = len(folder) + 1
    width = start + count_characters(OBJECT_ID)
    keys, sizes, times = part.keys, part.sizes, part.times_us
    if set(map(len, keys)) != {width}:
        rows = [row for row, key in enumerate(keys) if len(key) == width]
        keys, sizes, times = [keys[row] for row in rows], sizes[rows], times[rows]
    ids, valid = decode_names(keys, OBJECT_ID, start)
    return ObjectListing(folder, ids, sizes[valid], times[valid])
