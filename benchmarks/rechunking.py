"""Benchmark rechunking of maps to time series on Spark and dask, each with two running workers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import icefloe
from benchmarks import engines
from benchmarks.harness import Job, Row, Side

DAYS = engines.scaled(240)
MAP = (721, 1440)
CELLS = 24
MEMORY_BYTES = 256 << 20


def setup(folder: Path) -> None:
    """Create maps of most of a year, about as noisy as a reanalysis rounded to hundredths."""
    storage = icefloe.local_filesystem_storage(str(folder / "repo"))
    session = icefloe.Repository.create(storage).writable_session("main")
    array = zarr.create_array(
        session.store,
        name="t2m",
        shape=(DAYS, *MAP),
        chunks=(1, *MAP),
        dtype="f4",
        dimension_names=("time", "lat", "lon"),
    )
    latitude = np.linspace(90, -90, MAP[0])[:, None]
    random = np.random.default_rng(0)
    for day in range(DAYS):
        field = 270 + 30 * np.cos(np.radians(latitude)) + random.normal(0, 1, MAP) + day / 100
        array[day] = field.round(2).astype("f4")
    session.commit("maps")


def prepare_spark(folder: Path, _: Path) -> Job:
    """Create a branch per turn."""
    from icefloe.spark import rechunk

    spark = engines.spark()
    place = str(folder / "repo")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    _new_branch(repo, "ours")

    def job() -> Any:
        chunks = {"time": -1, "lat": CELLS, "lon": CELLS}
        report = rechunk(spark, repo, "t2m", chunks, branch="ours", memory_bytes=MEMORY_BYTES)
        engines.tell(f"icefloe, {report.memory_bytes >> 20} MiB per task stated", "pyspark.daemon")
        return icefloe.Repository.open(icefloe.local_filesystem_storage(place)).readonly_session("ours").store

    return job


def prepare_dask(folder: Path, _: Path) -> Job:
    """Rechunk with dask, reading and writing with the official package."""
    import icechunk
    from icechunk.dask import store_dask

    engines.dask()
    da: Any = importlib.import_module("dask.array")
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder / "repo")))
    _new_branch(repo, "theirs")

    def job() -> Any:
        source: Any = da.from_zarr(zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r"))
        session = repo.writable_session("theirs")
        target = zarr.create_array(
            session.store, name="series", shape=source.shape, chunks=(DAYS, CELLS, CELLS), dtype="f4"
        )
        session.commit("array")
        session = repo.writable_session("theirs")
        fork = session.fork()
        target = zarr.open_array(fork.store, path="series", mode="r+")
        session.merge(store_dask(sources=[source.rechunk(target.chunks)], targets=[target]))
        session.commit("series")
        engines.tell("dask", "multiprocessing")
        return repo.readonly_session("theirs").store

    return job


def _new_branch(repo: Any, name: str) -> None:
    if name in repo.list_branches():
        repo.delete_branch(name)
    repo.create_branch(name, repo.lookup_branch("main"))


def check(ours: Any, theirs: Any) -> None:
    """Check that both results have the same values in some chunks."""
    mine = zarr.open_array(ours, path="t2m", mode="r")
    other = zarr.open_array(theirs, path="series", mode="r")
    for corner in ((0, 0), (312, 720), (720, 1416)):
        key = (slice(None), *(slice(start, start + CELLS) for start in corner))
        np.testing.assert_array_equal(mine[key], other[key])


ROWS = (
    Row(
        "rechunk-series",
        f"{DAYS} maps of {MAP[0]} x {MAP[1]} float32 (1 GB) to series of {DAYS} x {CELLS} x {CELLS}",
        Side("icefloe.spark.rechunk, 256 MiB per task, Spark runs already", prepare_spark),
        Side("dask.array.rechunk and store_dask on a LocalCluster that runs already", prepare_dask),
        cpu_ratio=1.0,
        wall_ratio=1.0,
        setup=setup,
        check=check,
        repeat=3,
    ),
)
