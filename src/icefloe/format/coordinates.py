"""Sorting and searching of chunk coordinates, stored as (n, dimensions) uint32 arrays."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Coords = NDArray[np.uint32]
Rows = NDArray[np.int64]

_MARKED_PER_ROW: Final = 32
"""Grids with at most this many cells per chunk are searched through a mask of all cells, sparser grids by
binary search.
"""


def is_strictly_sorted(coords: Coords) -> bool:
    """Return True if chunk coordinates are strictly ascending, and therefore unique."""
    return not find_unsorted_rows(coords).any()


def find_unsorted_rows(coords: Coords) -> NDArray[np.bool_]:
    """Return a mask of the rows whose chunk coordinates are not greater than those of the previous row."""
    fails = np.ones(max(len(coords) - 1, 0), np.bool_)
    columns: list[NDArray[Any]] = list(coords.T)
    if len(columns) > 1:  # combine two columns into one number: half the comparisons
        minor = columns.pop()
        columns[-1] = columns[-1].astype(np.uint64) << 32 | minor
    for column in reversed(columns):
        before, after = column[:-1], column[1:]
        fails &= after == before
        fails |= after < before
    return fails


def sort_order(coords: Coords) -> Rows | None:
    """Return the indices that sort chunk coordinates stably; None if they are already sorted."""
    if is_strictly_sorted(coords):
        return None
    keys = sort_keys(coords, find_limits(coords))
    if keys is not None:
        return keys.argsort(kind="stable")
    return np.lexsort(coords.T[::-1])


def keep_last_of_equal(coords: Coords) -> tuple[Coords, Rows | None]:
    """Return sorted unique chunk coordinates and their row numbers. The last of several equal rows wins."""
    if len(coords) < 2:
        return coords, None
    order = sort_order(coords)
    if order is None:
        return coords, None
    ordered = coords[order]
    differs = np.ones(len(order), np.bool_)
    differs[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[differs], order[differs]


def find_limits(*columns: Coords) -> list[int]:
    """Return the exclusive upper bound of chunk coordinates in each dimension, over several coordinate
    arrays.
    """
    # Column by column, because numpy's maximum along the long axis takes thirty times as long.
    tops = [[int(numbers.max()) for numbers in column.T] for column in columns if len(column)]
    return [max(top) + 1 for top in zip(*tops, strict=True)]


def sort_keys(coords: Coords, sizes: Sequence[int]) -> NDArray[np.uint64] | None:
    """Return one integer sort key per row of chunk coordinates; None if the keys would exceed 64 bits."""
    cells = 1
    for size in sizes:
        cells *= size
    if cells >= 1 << 64:
        return None
    keys = np.zeros(len(coords), np.uint64)
    for column, size in zip(coords.T, sizes, strict=False):
        keys *= np.uint64(size)
        keys += column
    return keys


def find(coords: Coords, wanted: Sequence[int]) -> int | None:
    """Return the row of one chunk's coordinates in a sorted array; None if they are absent."""
    target = tuple(wanted)
    if len(target) != coords.shape[1]:
        return None
    row = bisect_left(range(len(coords)), target, key=lambda i: tuple(coords[i].tolist()))
    return row if row < len(coords) and tuple(coords[row].tolist()) == target else None


def contains(coords: Coords, wanted: Coords) -> NDArray[np.bool_]:
    """Return a mask of the chunk coordinates that are in `wanted`. Both arrays must be sorted."""
    if not len(wanted) or not len(coords):
        return np.zeros(len(coords), np.bool_)
    if np.array_equal(coords, wanted):  # usual in conflicts: two writers of the same region
        return np.ones(len(coords), np.bool_)
    sizes = find_limits(coords, wanted)
    keys, others = sort_keys(coords, sizes), sort_keys(wanted, sizes)
    if keys is None or others is None:
        known = {row.tobytes() for row in np.ascontiguousarray(wanted)}  # rare: more than 2**64 cells
        return np.fromiter(
            (row.tobytes() in known for row in np.ascontiguousarray(coords)), np.bool_, len(coords)
        )
    cells = math.prod(sizes)
    if cells <= _MARKED_PER_ROW * (len(keys) + len(others)):
        marked = np.zeros(cells, np.bool_)
        marked[others.view(np.int64)] = True
        return marked[keys.view(np.int64)]
    places = np.minimum(others.searchsorted(keys), len(others) - 1)
    known_keys: NDArray[np.bool_] = others[places] == keys
    return known_keys


def are_inside(coords: Coords, extents: Sequence[range]) -> NDArray[np.bool_]:
    """Return a mask of the chunk coordinates inside a window of the chunk grid."""
    rows = np.ones(len(coords), np.bool_)
    for column, extent in zip(coords.T, extents, strict=True):
        rows &= (column >= extent.start) & (column < extent.stop)
    return rows


def list_window(extents: Sequence[range]) -> Coords:
    """Return all coordinates in a window of the chunk grid, in order."""
    shape = tuple(map(len, extents))
    coords = np.empty((*shape, len(shape)), np.uint32)
    for axis, extent in enumerate(extents):
        steps = np.arange(extent.start, extent.stop, dtype=np.uint32)
        coords[..., axis] = steps.reshape((len(extent),) + (1,) * (len(shape) - axis - 1))
    return coords.reshape(math.prod(shape), len(shape))


def find_bounding_box(coords: Coords) -> tuple[range, ...]:
    """Return the bounding box of chunk coordinates, as one range per dimension; empty ranges if there are
    none.
    """
    if not len(coords):
        return tuple(range(0) for _ in range(coords.shape[1]))
    return tuple(range(int(numbers.min()), int(numbers.max()) + 1) for numbers in coords.T)
