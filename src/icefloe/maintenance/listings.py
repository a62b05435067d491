"""The objects of a repository as its storage lists them, in columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import decode_names, encode_column, text_size
from icefloe.format.id_columns import id_keys
from icefloe.storage.base import ListedObjects, Storage

OBJECT_ID: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects of one folder."""

    folder: str
    ids: NDArray[np.uint8]
    """(n, 12)"""
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """When each was written by the clock of the storage, in microseconds since 1970-01-01 UTC; empty where
    nobody asked for it."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> Self:
        """Some of them."""
        times = self.times_us[rows] if len(self.times_us) else self.times_us
        return type(self)(self.folder, self.ids[rows], self.sizes[rows], times)

    def paths(self) -> list[str]:
        """Where they lie in the storage."""
        return [f"{self.folder}/{name}" for name in encode_column(self.ids)]


def list_folder(storage: Storage, folder: str) -> Listing:
    """All objects of a folder whose names are ids, sorted; what else lies there is nobody's business."""
    found = sift_folder(storage, folder, lambda part: part)
    return found.take(id_keys(found.ids).argsort(kind="stable"))


def sift_folder(
    storage: Storage, folder: str, sift: Callable[[Listing], Listing], *, dated: bool = True
) -> Listing:
    """What is left of each part of such a listing, in no particular order; nothing else is held."""
    # Buffers that grow in place: columns of many parts would be held twice while they are put together.
    ids, sizes, times = bytearray(), bytearray(), bytearray()
    for part in storage.list_columns(f"{folder}/"):
        left = sift(_with_ids(folder, part))
        ids += left.ids.tobytes()
        sizes += left.sizes.tobytes()
        if dated:
            times += left.times_us.tobytes()
    return Listing(
        folder,
        np.frombuffer(ids, np.uint8).reshape(-1, OBJECT_ID),
        np.frombuffer(sizes, np.int64),
        np.frombuffer(times, np.int64),
    )


def _with_ids(folder: str, part: ListedObjects) -> Listing:
    start = len(folder) + 1
    width = start + text_size(OBJECT_ID)
    keys, sizes, times = part.keys, part.sizes, part.times_us
    if set(map(len, keys)) != {width}:
        rows = [row for row, key in enumerate(keys) if len(key) == width]
        keys, sizes, times = [keys[row] for row in rows], sizes[rows], times[rows]
    ids, valid = decode_names(keys, OBJECT_ID, start)
    return Listing(folder, ids, sizes[valid], times[valid])
