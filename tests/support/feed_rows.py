"""Rows for tests of appends and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import icefloe

ENCODING: dict[str, dict[str, Any]] = {
    "time": {"units": "hours since 2026-01-01", "dtype": "int64", "chunks": (100,)},
    "t": {"chunks": (1, 2)},
    "u": {"chunks": (3, 4)},
}


def rows(first: int, count: int = 1, names: tuple[str, ...] = ("t", "u"), offset: float = 0.0) -> xr.Dataset:
    """Return hours of a small grid, with values that can be recognised."""
    hours = np.arange(first, first + count)
    values = hours[:, None] * 10.0 + np.arange(4) + offset
    times = np.datetime64("2026-01-01", "ns") + hours * np.timedelta64(1, "h")
    data = dict.fromkeys(names, (("time", "x"), values))
    return xr.Dataset(data, coords={"time": times, "x": np.arange(4.0)})


def stored(repo: icefloe.Repository) -> xr.Dataset:
    """Read the tip of main."""
    found: xr.Dataset = xr.open_zarr(repo.readonly_session("main").store, consolidated=False).load()
    return found
