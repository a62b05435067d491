"""A repository to look at: two years of temperatures on a globe, with branches, a tag and a correction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from icefloe import Repository, local_filesystem_storage

DAYS = 365
SHAPE = (DAYS, 90, 180)


def climate_repository(folder: Path) -> Repository:
    """Create the repository, with `tas`, its coordinates, `profile` and `labels`."""
    repo = Repository.create(local_filesystem_storage(str(folder)))
    with repo.transaction("main", message="January to July 2025") as store:
        _create(store)
        tas = zarr.open_array(store, path="tas", mode="r+")
        tas[:212] = temperatures(range(212))
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="August to December 2025") as store:
        zarr.open_array(store, path="tas", mode="r+")[212:] = temperatures(range(212, DAYS))
    repo.create_branch("experiment", repo.lookup_branch("main"))
    with repo.transaction("experiment", message="Warmer tropics, June") as store:
        array = zarr.open_array(store, path="tas", mode="r+")
        array[150:160, 35:55] = np.asarray(array[150:160, 35:55]) + 3
    with repo.transaction("main", message="Correct the bias over Europe in April and May") as store:
        array = zarr.open_array(store, path="tas", mode="r+")
        array[90:150, 45:] = np.asarray(array[90:150, 45:]) + europe()[45:]
    return repo


def latitudes() -> Any:
    """Return the latitudes, from south to north."""
    return np.linspace(-89, 89, SHAPE[1])


def longitudes() -> Any:
    """Return the longitudes, from west to east."""
    return np.arange(-179, 180, 2.0)


def temperatures(days: range) -> Any:
    """Return temperatures in K that depend on the latitude, the season and a little on the longitude."""
    lat, lon = np.deg2rad(latitudes()), np.deg2rad(longitudes())
    season = np.cos(2 * np.pi * (np.array(days) - 200) / 365)[:, None, None]
    base = 255 + 45 * np.cos(lat)[None, :, None] ** 2
    swing = 18 * np.sin(lat)[None, :, None] * season
    waves = 4 * np.cos(3 * lon)[None, None, :] * np.sin(2 * lat)[None, :, None]
    return (base + swing + waves).astype("f4")


def europe() -> Any:
    """Return a warming of 1.8 K, centred at 50 N 12 E."""
    east = (longitudes() - 12 + 180) % 360 - 180
    bump = np.exp(-(((latitudes() - 50) / 10) ** 2)[:, None] - ((east / 14) ** 2)[None, :])
    found = (1.8 * bump).astype("f4")
    found[found < 0.01] = 0
    return found


def _create(store: Any) -> None:
    root = zarr.create_group(store, attributes={"title": "A sample climate", "Conventions": "CF-1.11"})
    named: Any = {"dimension_names": ["time", "lat", "lon"], "fill_value": np.nan}
    about: Any = {
        "long_name": "Near-surface air temperature",
        "units": "K",
        "standard_name": "air_temperature",
    }
    root.create_array("tas", shape=SHAPE, chunks=(5, 45, 90), dtype="f4", attributes=about, **named)
    time = root.create_array("time", shape=(DAYS,), chunks=(DAYS,), dtype="i8", dimension_names=["time"])
    time[...] = np.arange(DAYS)
    time.attrs.update({"units": "days since 2025-01-01", "calendar": "standard"})
    for name, values, units in (("lat", latitudes(), "degrees_north"), ("lon", longitudes(), "degrees_east")):
        array = root.create_array(name, shape=values.shape, dtype="f8", dimension_names=[name])
        array[...] = values
        array.attrs["units"] = units
    profile = root.create_array("profile", shape=(40,), dtype="f8", dimension_names=["height"])
    profile[...] = 300 * np.exp(-np.arange(40) / 15)
    labels = root.create_array("labels", shape=(3,), dtype=str, dimension_names=["station"])
    labels[...] = np.array(["Oslo", "Nairobi", "Lima"])
