"""Describe the quality of array values from chunk statistics: range, moments and missing data."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.maintenance.statistics.describe import compute_moments, decode_extremes, find_extremes
from icefloe.maintenance.statistics.lookup import ChunkStatistics
from icefloe.serve.windows import value_text


def describe_quality(found: ChunkStatistics) -> dict[str, Any]:
    """Describe the values of an array: range, moments and missing data."""
    known = found.known
    low, high = find_extremes(found)
    mean, std = compute_moments(found)
    values = (("minimum", low), ("mean", mean), ("maximum", high), ("standard deviation", std))
    return {
        "known": int(known.sum()),
        "chunks": len(known),
        "unchecked": int((~found.chunks.is_checked).sum()),
        "missing": int(found.rows.nulls[known].sum()),
        "cells": int(found.cells[known].sum()),
        "values": [(name, _format(value)) for name, value in values if value is not None],
    }


def find_scale(*versions: ChunkStatistics | None) -> tuple[float, float] | None:
    """Find the range of the colour scale from chunk statistics. Return None unless all chunks have
    statistics.
    """
    ranges = []
    for found in versions:
        if found is None or not found.meaning.has_sums or not found.known.all():
            return None
        ranges.append(find_extremes(found))
    ends = [float(end) for pair in ranges for end in pair if end is not None]
    return (min(ends), max(ends)) if ends and np.isfinite(ends).all() else None


def describe_chunk(found: ChunkStatistics, coords: tuple[int, ...]) -> list[tuple[str, str]]:
    """Describe the values of one chunk from its statistics; empty if it has none."""
    number = int(np.ravel_multi_index(coords, found.chunks.counts)) if coords else 0
    if not found.known[number]:
        return []
    rows, cells, meaning = found.rows.take([number]), int(found.cells[number]), found.meaning
    missing = int(rows.nulls[0])
    facts = [("missing", f"{missing} of {cells} cells")]
    if meaning.has_extremes and missing < cells:
        pair = np.array([rows.minimum[0], rows.maximum[0]], meaning.coding.effective)
        ends = [_format(each) for each in decode_extremes(meaning, pair)]
        facts.insert(0, ("values", " to ".join(dict.fromkeys(ends))))
    return facts


def _format(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else value_text(value)
