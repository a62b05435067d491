"""Sorting and searching of object ids, stored as columns of bytes."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ObjectId

Id = TypeVar("Id", bound=ObjectId)

_HEAD: Final = 8
_MANY: Final = 64
"""The number of ids to look up, and its ratio to the number of known ids, above which building an index pays
off.
"""


def view_id_keys(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """View a column of object ids as fixed-size items that numpy compares byte by byte.

    Use the items only for comparisons: extracting a single item would strip its trailing zero bytes.
    """
    width = ids.shape[1]
    return np.ascontiguousarray(ids).reshape(-1).view(f"S{width}")


def to_id_bytes(keys: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    """Convert sort keys back to a column of object ids."""
    return keys.view(np.uint8).reshape(len(keys), keys.itemsize)


def to_ids(keys: NDArray[np.bytes_], kind: type[Id]) -> list[Id]:
    """Convert a column of ids to a list of id objects."""
    data, width = keys.tobytes(), keys.itemsize
    return [kind(data[start : start + width]) for start in range(0, len(data), width)]


def are_ids_ascending(ids: NDArray[np.uint8]) -> bool:
    """Return True if a column of object ids is sorted and unique."""
    if len(ids) < 2:
        return True
    keys = view_id_keys(ids)
    return bool((keys[1:] > keys[:-1]).all())


def find_id_row(ids: NDArray[np.uint8], wanted: ObjectId) -> int:
    """Return the first row of a sorted column of object ids whose id is not less than the given one."""
    # A few steps in Python are faster than viewing the column as keys.
    return bisect_left(range(len(ids)), bytes(wanted), key=lambda row: ids[row].tobytes())


def find_id(ids: NDArray[np.uint8], wanted: ObjectId) -> int | None:
    """Return the row of an id in a sorted column of object ids; None if it is absent."""
    row = find_id_row(ids, wanted)
    return row if row < len(ids) and ids[row].tobytes() == wanted.__bytes__() else None


def is_member(ids: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the object ids that occur in a sorted column of ids."""
    if len(ids) > max(_MANY, len(known) // _MANY):
        return IdIndex(known).has(ids)
    if not len(known):
        return np.zeros(len(ids), np.bool_)
    keys, others = view_id_keys(ids), view_id_keys(known)
    places = np.minimum(others.searchsorted(keys), len(others) - 1)
    same: NDArray[np.bool_] = others[places] == keys
    return same


class IdIndex:
    """An index that speeds up many lookups in a sorted column of object ids.

    The first eight bytes of each id are stored as a number, because numpy searches numbers six times as fast
    as strings.
    """

    def __init__(self, ids: NDArray[np.uint8]) -> None:
        self.heads, self.tails = _get_heads(ids), ids[:, _HEAD:].copy()

    @staticmethod
    def of_columns(heads: NDArray[np.uint64], tails: NDArray[np.uint8]) -> IdIndex:
        """Create an index of object ids from its two columns, without copying them."""
        index = object.__new__(IdIndex)
        index.heads, index.tails = heads, tails
        return index

    def __len__(self) -> int:
        return len(self.heads)

    def ids(self) -> NDArray[np.uint8]:
        """Return the indexed column of object ids."""
        heads = self.heads.astype(">u8").view(np.uint8).reshape(-1, _HEAD)
        return np.concatenate([heads, self.tails], axis=1)

    def has(self, ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask of the object ids that occur in the indexed column."""
        found = np.zeros(len(ids), np.bool_)
        if not len(self.heads):
            return found
        heads = _get_heads(ids)
        places = self.heads.searchsorted(heads)
        rows = np.flatnonzero(places < len(self.heads))
        # Several iterations only for ids that differ just in their last bytes: bad luck, or an attack.
        while len(rows := rows[self.heads[places[rows]] == heads[rows]]):
            found[rows] |= (self.tails[places[rows]] == ids[rows, _HEAD:]).all(axis=1)
            places[rows] += 1
            rows = rows[~found[rows] & (places[rows] < len(self.heads))]
        return found


def _get_heads(ids: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(ids[:, :_HEAD]).view(">u8").reshape(-1).astype(np.uint64)


def sort_ids(ids: NDArray[Any]) -> NDArray[np.uint8]:
    """Sort a column of object ids and drop duplicates."""
    if len(ids) < 2:
        return ids
    return to_id_bytes(sort_distinct(view_id_keys(ids)))


def sort_distinct(items: NDArray[Any]) -> NDArray[Any]:
    """Sort the keys of a column of object ids and drop duplicates, in half the time and memory of
    `np.unique`.
    """
    items = np.sort(items)
    if len(items) < 2:
        return items
    first = np.concatenate([[True], items[1:] != items[:-1]])
    return items if first.all() else items[first]
