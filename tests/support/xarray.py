"""A dataset to write and read through xarray."""

from __future__ import annotations

import numpy as np
import xarray as xr

from icefloe.session import Session


def dataset(start: int = 0, days: int = 4) -> xr.Dataset:
    """Return a small dataset with variables of every kind; its times begin at `start`."""
    values = np.arange(days * 6, dtype="f4").reshape(days, 2, 3) + start
    return xr.Dataset(
        {
            "temperature": (("time", "y", "x"), values, {"units": "K"}),
            "count": (("time",), np.arange(days, dtype="i2") + start),
        },
        coords={
            "time": np.arange(days).astype("m8[D]")
            + np.datetime64("2020-01-01", "ns")
            + np.timedelta64(start, "D"),
            "x": [1.5, 2.5, 3.5],
            "y": [0, 1],
            "name": ("x", ["a", "bé", "中"]),
            "flag": ("x", [True, False, True]),
        },
        attrs={"title": "sample"},
    )


def opened(session: Session, group: str | None = None) -> xr.Dataset:
    found: xr.Dataset = xr.open_zarr(session.store, group=group, consolidated=False, chunks=None)
    return found.load()
