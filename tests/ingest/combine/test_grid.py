"""Descriptions of huge arrays are combined without allocating memory of their size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InvalidInputError
from icefloe.ingest.combine.pieces import Origin, PieceArray, Pieces
from icefloe.ingest.combine.runs import combine_datasets
from icefloe.ingest.options import Combining

TIMES, LATS, LONS = 5_000, 721, 1440


def empty_dataset(number: int, rows: slice) -> xr.Dataset:
    """Some rows of a file with 5,000 maps, 20 GB of float32."""
    lat = np.linspace(-90, 90, LATS)[rows]
    shape = (TIMES, len(lat), LONS)
    origins = {number: Origin(shape)}
    data = PieceArray("t2m", shape, np.dtype("f4"), Pieces.whole(number, shape), origins)
    time = np.datetime64("2000-01-01", "h") + np.arange(number * TIMES, (number + 1) * TIMES)
    coords = {"time": time.astype("M8[ns]"), "lat": lat, "lon": np.linspace(0, 359.75, LONS)}
    return xr.Dataset({"t2m": (("time", "lat", "lon"), data)}, coords)


def test_rows_missing_from_some_files_are_aligned() -> None:
    parts = [
        empty_dataset(0, slice(0, 600)),
        empty_dataset(1, slice(100, 721)),
        empty_dataset(2, slice(0, 721)),
    ]
    tracemalloc.start()

    found = combine_datasets(parts, Combining("time", join="outer"))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    data = found["t2m"].variable.data
    assert data.shape == (3 * TIMES, LATS, LONS)
    assert data.missing == TIMES * LONS * (121 + 100)
    assert peak < 10 << 20


def small(number: int) -> PieceArray:
    return PieceArray("a", (2, 3), np.dtype("f4"), Pieces.whole(number, (2, 3)), {number: Origin((2, 3))})


def test_placeholder_arrays_have_no_values() -> None:
    some = np.array([[True, False, True], [True, True, True]])

    with pytest.raises(NotImplementedError, match="indexed with a single number"):
        small(0)[0]
    with pytest.raises(NotImplementedError, match="cannot be compared"):
        np.where(some, small(0), small(1))
    with pytest.raises(NotImplementedError, match="cannot be replaced"):
        np.where(some, small(0), 0.0)
    with pytest.raises(TypeError, match="has no values"):
        np.asarray(small(0))


def test_xarray_combine_errors_are_reported() -> None:
    one, other = (empty_dataset(number, slice(0, 600)).drop_vars("lon") for number in range(2))
    parts = [one, other.isel(lon=slice(0, 700))]  # of other lengths, with nothing to align them by

    with pytest.raises(InvalidInputError, match="the files cannot be combined: "):
        combine_datasets(parts, Combining("time"))


def test_files_without_coordinates_need_concat_dim() -> None:
    parts = [empty_dataset(number, slice(0, 2)).drop_vars(["time", "lat", "lon"]) for number in range(2)]

    with pytest.raises(
        InvalidInputError, match=r"dimensions are time, lat, lon; name .* along with concat_dim"
    ):
        combine_datasets(parts, Combining())
