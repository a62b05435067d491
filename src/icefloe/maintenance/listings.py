"""The objects of a repository as its storage lists them, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.id_columns import id_keys
from icefloe.ids import ALPHABET, decode_column, encode_column, text_size
from icefloe.storage.base import Storage, StorageObjectInfo
from icefloe.times import to_microseconds

OBJECT_ID: Final = 12
_BATCH: Final = 10_000
_DIGITS: Final = ALPHABET.decode()
_LAST_DIGITS: Final = _DIGITS[:: 1 << 4]
"""The last of 20 digits of 5 bits has one bit of the 96."""


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

    def paths(self) -> list[str]:
        """Where they lie in the storage."""
        return [f"{self.folder}/{name}" for name in encode_column(self.ids)]


def list_folder(storage: Storage, folder: str) -> Listing:
    """All objects of a folder whose names are ids; what else lies there is nobody's business."""
    found = storage.list_prefix(f"{folder}/")
    parts = []
    while batch := list(islice(found, _BATCH)):
        parts.append(_columns(folder, batch))
    ids = np.concatenate([part.ids for part in parts] or [np.zeros((0, OBJECT_ID), np.uint8)])
    sizes = np.concatenate([part.sizes for part in parts] or [np.zeros(0, np.int64)])
    times = np.concatenate([part.times_us for part in parts] or [np.zeros(0, np.int64)])
    return Listing(folder, ids, sizes, times).take(id_keys(ids).argsort(kind="stable"))


def _columns(folder: str, infos: list[StorageObjectInfo]) -> Listing:
    start, width = len(folder) + 1, text_size(OBJECT_ID)
    named = [info for info in infos if len(info.key) == start + width and _is_id(info.key[start:])]
    ids = decode_column([info.key[start:] for info in named], OBJECT_ID)
    sizes = np.array([info.size_bytes for info in named], np.int64)
    times = np.array([to_microseconds(info.created_at) for info in named], np.int64)
    return Listing(folder, ids, sizes, times)


def _is_id(name: str) -> bool:
    """Whether a name is an id as readers spell it; in another spelling it is not that object."""
    return not name.strip(_DIGITS) and name[-1] in _LAST_DIGITS
