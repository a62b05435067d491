"""Evaluate the checks `range` and `nulls` from chunk statistics, without reading the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from icefloe.maintenance.statistics.lookup import ChunkStatistics, load_statistics
from icefloe.session import Session

_MARGIN: Final = 1e-6
"""The relative margin around a limit within which values must be read, because xarray decodes some of them as
32-bit floats.
"""


class KnownCounts:
    """Chunk statistics of staged data, for evaluating the checks `range` and `nulls` without
    reading values.
    """

    def __init__(self, session: Session, path: str) -> None:
        self._found: ChunkStatistics | None = load_statistics(session, path)

    def is_within(self, box: Sequence[tuple[int, int]], low: float, high: float) -> bool:
        """Return True if the statistics prove that all values in a box are between two limits."""
        found, rows = self._found, self._find_rows(box)
        if found is None or rows is None or not found.meaning.has_sums:
            return False
        there = rows[found.rows.nulls[rows] < found.cells[rows]]
        if not len(there):
            return True
        ends = np.array([found.rows.minimum[there].min(), found.rows.maximum[there].max()])
        least, most = sorted(found.meaning.coding.unpack(ends).astype(np.float64).tolist())
        finite = [abs(each) for each in (least, most, low, high) if math.isfinite(each)]
        margin = _MARGIN * max(finite, default=0.0)
        return bool(low + margin <= least and most <= high - margin)

    def count_nulls(self, box: Sequence[tuple[int, int]]) -> int | None:
        """Return the number of missing values in a box. Return None if the statistics do not determine it."""
        found, rows = self._found, self._find_rows(box)
        if found is None or rows is None:
            return None
        nulls = int(found.rows.nulls[rows].sum())
        edges, shape = found.chunks.grid.edges, found.chunks.grid.shape
        whole = all(
            start in edge and (stop in edge or stop == size)
            for (start, stop), edge, size in zip(box, edges, shape, strict=True)
        )
        return nulls if whole or nulls == 0 else None

    def _find_rows(self, box: Sequence[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """Return the chunks that a box overlaps. Return None if any of them has no statistics."""
        found = self._found
        if found is None or any(start >= stop for start, stop in box):
            return None
        touched = found.chunks.grid.find_touched([slice(*span) for span in box])
        places = np.ix_(*(np.arange(each.start, each.stop) for each in touched)) if touched else ()
        if not places:
            rows = np.zeros(1, np.int64)
        else:
            rows = np.ravel_multi_index(np.broadcast_arrays(*places), found.chunks.counts).ravel()
        return rows if bool(found.known[rows].all()) else None
