"""Overlap checks for manifest extents, which are windows of a chunk grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import BLOCK, Ragged, expand_ranges


def find_overlapping(manifests: Ragged) -> int | None:
    """Find the first array whose manifests have overlapping extents; None if there is none."""
    for row in np.flatnonzero(manifests.lengths > 1).tolist():  # few arrays have several manifests
        extents: Ragged = manifests.take([row]).items["extents"]
        # Official writers keep extents of the old rank when the rank of an array changes.
        for rank in np.unique(extents.lengths).tolist():
            boxes = extents.take(extents.lengths == rank).rectangle(rank)
            if (
                boxes is not None
                and len(boxes) > 1
                and (rank == 0 or have_overlap(boxes["from"].astype(np.int64), boxes["to"].astype(np.int64)))
            ):
                return int(row)
    return None


def have_overlap(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bool:
    """Return True if any two manifest extents overlap, using a sweep along the dimension that separates them
    best.
    """
    filled = (stops > starts).all(axis=1)
    starts, stops = starts[filled], stops[filled]
    if len(starts) < 2:
        return False
    axis = min(range(starts.shape[1]), key=lambda d: _count_pairs(starts[:, d], stops[:, d]))
    order = starts[:, axis].argsort(kind="stable")
    starts, stops = starts[order], stops[order]
    after = np.arange(1, len(starts) + 1)
    last = starts[:, axis].searchsorted(stops[:, axis])  # all later boxes start after this one
    reach = np.maximum(last - after, 0)
    step = max(BLOCK * 4 // max(int(reach.max()), 1), 1)
    for block in range(0, len(starts), step):
        part = slice(block, block + step)
        left = np.repeat(np.arange(len(starts))[part], reach[part])
        right = expand_ranges(after[part], reach[part])
        apart = (starts[left] >= stops[right]) | (starts[right] >= stops[left])
        if not apart.any(axis=1).all():
            return True
    return False


def _count_pairs(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Count the pairs of ranges that overlap along one dimension."""
    return int(np.sort(starts).searchsorted(stops).sum()) - len(starts) * (len(starts) + 1) // 2
