"""Benchmark the extraction of points, beside xarray's vectorised indexing of the same store.

The limit of each row is the time to fetch and decompress the chunks, which both sides do once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import icefloe
from benchmarks import engines
from benchmarks.harness import Job, Row, Side
from icefloe.core.chunk_values import find_decoder
from icefloe.xarray import to_icechunk

HOURS = engines.scaled(2880, least=240)
MAP = (181, 360)
CHUNKS = (120, 46, 90)
DAY = 240


def setup(folder: Path) -> None:
    """Create hourly maps: 0.75 GB in 384 chunks."""
    random = np.random.default_rng(0)
    values = random.normal(280, 10, (HOURS, *MAP)).astype("f4").round(1)
    coordinates = {
        "time": np.datetime64("2024-01-01", "ns") + np.arange(HOURS) * np.timedelta64(1, "h"),
        "lat": np.linspace(90, -90, MAP[0]),
        "lon": np.arange(MAP[1], dtype="f8"),
    }
    dataset = xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, coordinates)
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    to_icechunk(dataset, session, encoding={"t2m": {"chunks": CHUNKS}})
    session.commit("hourly maps")


def _draw(number: int, rows: int, columns: int) -> Mapping[str, Any]:
    """Draw points in the first rows and columns of the map."""
    random = np.random.default_rng(number)
    return {
        "station": np.arange(number),
        "lat": 90 - random.uniform(0, rows - 1, number),
        "lon": random.uniform(0, columns - 1, number),
    }


def _open(folder: Path) -> Any:
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "repo")))
    return repo.readonly_session("main")


def _prepare_points(points: Mapping[str, Any], hours: int, folder: Path, _: Path) -> Job:
    """Read a row per time and point."""

    def job() -> Any:
        scan = icefloe.scan(_open(folder)).isel(time=slice(hours))
        return scan.points(points).column("t2m").to_numpy().reshape(hours, -1)

    return job


def _prepare_xarray(points: Mapping[str, Any], hours: int, folder: Path, _: Path) -> Job:
    """Select the nearest cells of all points at once."""
    places = {name: xr.DataArray(points[name], dims="station") for name in ("lat", "lon")}

    def job() -> Any:
        dataset = xr.open_zarr(_open(folder).store, consolidated=False, chunks=None)
        return dataset["t2m"].isel(time=slice(hours)).sel(places, method="nearest").values

    return job


def _prepare_limit(points: Mapping[str, Any], hours: int, folder: Path, _: Path) -> Job:
    """Fetch and decompress the chunks that the points need, and nothing else."""
    chunks = {
        (block, int((90 - lat + 0.5) // CHUNKS[1]), int((lon + 0.5) % MAP[1] // CHUNKS[2]))
        for lat, lon in zip(points["lat"], points["lon"], strict=True)
        for block in range(-(-hours // CHUNKS[0]))
    }

    def job() -> None:
        workspace = _open(folder)._workspace
        node = workspace.array("/t2m")
        decoder = find_decoder(json.loads(node.user_data))
        assert decoder is not None
        for coords in chunks:
            ref = workspace.ref(node, coords)
            decoder.decode(workspace.read(ref, 0, ref.length))

    return job


def check(ours: Any, theirs: Any) -> None:
    """Check that both sides have the same values."""
    np.testing.assert_array_equal(ours, theirs)


def _compare(name: str, title: str, points: Mapping[str, Any], hours: int, ratio: float) -> Row:
    return Row(
        name,
        f"{title}, {hours:,} times",
        Side("icefloe.scan(...).points", partial(_prepare_points, points, hours)),
        Side("xarray's sel with vectorised indexing, same store", partial(_prepare_xarray, points, hours)),
        Side("only fetching and decompressing these chunks", partial(_prepare_limit, points, hours)),
        cpu_ratio=ratio,
        setup=setup,
        check=check,
        repeat=3,
    )


ROWS = (
    _compare("points-column", "100 points in one column of chunks", _draw(100, *CHUNKS[1:]), HOURS, 5.0),
    _compare("points-everywhere", "1,000 points everywhere", _draw(1000, *MAP), HOURS, 2.0),
    _compare("points-few-times", "10,000 points everywhere", _draw(10_000, *MAP), DAY, 1.0),
    _compare("points-single", "one point", _draw(1, *CHUNKS[1:]), HOURS, 1.0),
)
