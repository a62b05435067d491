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
_NO_IDS: Final = np.zeros((0, OBJECT_ID), np.uint8)
_NO_NUMBERS: Final = np.zeros(0, np.int64)


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
    ids, sizes, times = [_NO_IDS], [_NO_NUMBERS], [_NO_NUMBERS]
    for part in storage.list_columns(f"{folder}/"):
        named = _with_ids(folder, part)
        ids.append(named.ids)
        sizes.append(named.sizes)
        times.append(named.times_us)
    found = _joined(ids)
    order = id_keys(found).argsort(kind="stable")
    found = found[order]
    return Listing(folder, found, _joined(sizes)[order], _joined(times)[order])


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Parts of a column as one; they are let go, as a listing may be a good part of all memory there is."""
    joined = np.concatenate(parts)
    parts.clear()
    return joined


def _with_ids(folder: str, part: ListedObjects) -> Listing:
    start = len(folder) + 1
    width = start + text_size(OBJECT_ID)
    rows = [row for row, key in enumerate(part.keys) if len(key) == width]
    ids, valid = decode_names([part.keys[row][start:] for row in rows], OBJECT_ID)
    named = np.array(rows, np.intp)[valid]
    return Listing(folder, ids, part.sizes[named], part.times_us[named])
