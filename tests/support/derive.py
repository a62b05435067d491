"""A small repository with a field over time, and recipes of arrays that are derived from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml
import zarr

import icefloe
from icefloe._internal.executor import ThreadExecutor

DAILY: dict[str, Any] = {
    "function": "mean",
    "inputs": {"t2m": "t2m"},
    "dimensions": {"time": {"group": "time.day"}},
    "chunks": {"time": 1, "y": 3, "x": 4},
}
OUTPUTS: dict[str, Any] = {
    "t2m_daily": DAILY,
    "climatology": {
        "function": "mean",
        "inputs": {"t2m": "t2m"},
        "dimensions": {"time": {"group": "time.monthofyear"}},
    },
    "anomaly": {"function": "anomaly", "inputs": {"t2m": "t2m", "normals": "climatology"}},
    "hottest": {"function": "max", "inputs": {"t2m": "t2m"}, "dimensions": {"time": {"reduce": True}}},
    "coarse": {"function": {"coarsen": {"y": 2, "x": 2}}, "inputs": {"t2m": "t2m"}},
    "celsius": {"function": {"expression": "t2m - 273.15"}, "inputs": {"t2m": "t2m"}},
    "deciles": {
        "function": {"quantile": {"q": [0.1, 0.9]}},
        "inputs": {"t2m": "t2m"},
        "dimensions": {"time": {"group": "time.day"}},
    },
    "series": {
        "function": "copy",
        "inputs": {"t2m": "t2m"},
        "chunks": {"time": -1, "y": 2, "x": 2},
        "path": "s/t2m",
    },
}
"""One output for each kind of mapping."""


def field(start: str, times: int, seed: int = 0) -> xr.Dataset:
    """Make six-hourly temperatures with some missing values."""
    rng = np.random.default_rng(seed)
    time = np.datetime64(start, "ns") + np.arange(times) * np.timedelta64(6, "h").astype("m8[ns]")
    values = rng.normal(280, 10, (times, 6, 8)).astype("f4")
    values[rng.random(values.shape) < 0.01] = np.nan
    coords = {"time": time, "y": np.arange(6.0), "x": np.arange(8.0)}
    return xr.Dataset({"t2m": (("time", "y", "x"), values, {"units": "K"})}, coords)


def make_repository(folder: Path, times: int = 24, **options: Any) -> icefloe.Repository:
    """Create a repository with the array `t2m` in chunks of one day."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")), **options)
    session = repo.writable_session("main")
    time = {"chunks": (4,), "units": "hours since 2020-01-01", "dtype": "int64"}
    encoding = {"t2m": {"chunks": (4, 3, 4)}, "time": time}
    field("2020-01-30", times).to_zarr(session.store, mode="w", encoding=encoding, consolidated=False)
    session.commit("first")
    return repo


def write_recipe(folder: Path, outputs: dict[str, Any]) -> Path:
    """Write a recipe file next to the repository."""
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({"repository": "repo", "outputs": outputs}, sort_keys=False))
    return file


def derive(recipe: Path | dict[str, Any] | icefloe.Repository, **options: Any) -> icefloe.DeriveReport:
    """Run a recipe in this process."""
    return icefloe.derive_arrays(recipe, executor=ThreadExecutor(1), **options)


def open_derived(repo: icefloe.Repository, group: str | None = None, branch: str = "main") -> xr.Dataset:
    """Open a group with xarray."""
    found: xr.Dataset = xr.open_zarr(repo.readonly_session(branch).store, group=group, consolidated=False)
    return found.load()


def stored_values(repo: icefloe.Repository, path: str, branch: str = "main") -> bytes:
    """Return the stored values of an array, bit for bit."""
    array: Any = zarr.open_array(repo.readonly_session(branch).store, path=path, mode="r")
    return np.ascontiguousarray(array[...]).tobytes()
