"""The objects of a repository as its storage lists them, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.id_columns import id_keys
from icefloe.ids import decode_names, encode_column, text_size
from icefloe.storage.base import ListedObjects, Storage

OBJECT_ID: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects of one folder, sorted by id."""

    folder: str
    ids: NDArray[np.uint8]
    """(n, 12)"""
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """When each was written by the clock of the storage, in microseconds since 1970-01-01 UTC."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Any) -> Self:
        """Some of them."""
        return type(self)(self.folder, self.ids[rows], self.sizes[rows], self.times_us[rows])

    def before(self, time_us: int) -> Self:
        """Those that were written before a time."""
        old = self.times_us < time_us
        return self if old.all() else self.take(old)

    def paths(self) -> list[str]:
        """Where they lie in the storage."""
        return [f"{self.folder}/{name}" for name in encode_column(self.ids)]


def list_folder(storage: Storage, folder: str) -> Listing:
    """All objects of a folder whose names are ids; what else lies there is nobody's business."""
    # Buffers that grow in place: columns of many parts would be held twice while they are put together.
    ids, sizes, times = bytearray(), bytearray(), bytearray()
    for part in storage.list_columns(f"{folder}/"):
        named = _with_ids(folder, part)
        ids += named.ids.tobytes()
        sizes += named.sizes.tobytes()
        times += named.times_us.tobytes()
    found = np.frombuffer(ids, np.uint8).reshape(-1, OBJECT_ID)
    order = id_keys(found).argsort(kind="stable")
    found = found[order]
    del ids
    return Listing(
        folder, found, np.frombuffer(sizes, np.int64)[order], np.frombuffer(times, np.int64)[order]
    )


def _with_ids(folder: str, part: ListedObjects) -> Listing:
    start = len(folder) + 1
    width = start + text_size(OBJECT_ID)
    rows = [row for row, key in enumerate(part.keys) if len(key) == width]
    ids, valid = decode_names([part.keys[row][start:] for row in rows], OBJECT_ID)
    named = np.array(rows, np.intp)[valid]
    return Listing(folder, ids, part.sizes[named], part.times_us[named])
