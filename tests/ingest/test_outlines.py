"""Outlines of huge arrays are combined without anything of their size in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import xarray as xr

from icefloe.ingest.combining import Combining, combine
from icefloe.ingest.pieces import Origin, PieceArray, Pieces

TIMES, LATS, LONS = 5_000, 721, 1440


def outline(number: int, rows: slice) -> xr.Dataset:
    """Some rows of a file with 5,000 maps, 20 GB of float32."""
    lat = np.linspace(-90, 90, LATS)[rows]
    shape = (TIMES, len(lat), LONS)
    origins = {number: Origin(shape)}
    data = PieceArray("t2m", shape, np.dtype("f4"), Pieces.whole(number, shape), origins)
    time = np.datetime64("2000-01-01", "h") + np.arange(number * TIMES, (number + 1) * TIMES)
    coords = {"time": time.astype("M8[ns]"), "lat": lat, "lon": np.linspace(0, 359.75, LONS)}
    return xr.Dataset({"t2m": (("time", "lat", "lon"), data)}, coords)


def test_rows_that_only_some_files_have() -> None:
    parts = [outline(0, slice(0, 600)), outline(1, slice(100, 721)), outline(2, slice(0, 721))]
    tracemalloc.start()

    found = combine(lambda _: parts, Combining("time"), lambda _: {})

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    data = found["t2m"].variable.data
    assert data.shape == (3 * TIMES, LATS, LONS)
    assert data.missing == TIMES * LONS * (121 + 100)
    assert peak < 10 << 20
