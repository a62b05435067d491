"""Benchmark ingests on Spark, and their alternatives without it.

Spark, dask and a pool of processes are already running, with all modules imported. The timed work begins with
a list of files and ends with a commit.
"""

from __future__ import annotations

import importlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import xarray as xr

import icefloe
from benchmarks import engines
from benchmarks.harness import Job, Row, Side
from benchmarks.parsing import LONG_AGO

HOURS, MAP = 24, (721, 1440)
DAYS = engines.scaled(20)
"""Create files of a hundred megabytes each."""
CHUNKS = {"time": HOURS, "lat": 181, "lon": 360}
MEMORY_BYTES = 256 << 20
SMALL_FILES = engines.scaled(2000, 8)
LARGE_FILES, LARGE_GRID = engines.scaled(100, 2), (100, 1000)
HUGE_FILES = 10 * LARGE_FILES


def _setup_days(folder: Path) -> None:
    """Create hourly fields, a day per file, about as noisy as a reanalysis rounded to hundredths."""
    random = np.random.default_rng(0)
    lat, lon = np.linspace(90, -90, MAP[0]), np.arange(MAP[1]) * 0.25
    for day in range(DAYS):
        noise = random.normal(0, 1, (HOURS, *MAP)).astype("f4")
        values = (270 + 30 * np.cos(np.radians(lat))[:, None] + noise).round(2).astype("f4")
        time = np.datetime64("2024-01-01", "ns") + np.arange(HOURS) * np.timedelta64(1, "h")
        dataset = xr.Dataset(
            {"t2m": (("time", "lat", "lon"), values, {"units": "K"})},
            {"time": time + np.timedelta64(day, "D"), "lat": lat, "lon": lon},
        )
        encoding = {"t2m": {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": (1, *MAP)}}
        dataset.to_netcdf(folder / f"{day:03}.nc", engine="h5netcdf", encoding=encoding)


def _ours(mode: Literal["native", "virtual"], kind: str, cores: int = engines.WORKERS, **options: Any) -> Any:
    def prepare(folder: Path, scratch: Path) -> Job:
        from icefloe.spark import ingest

        engines.stop_dask()
        spark = engines.spark(cores)
        files = sorted(map(str, folder.glob("*.nc")))
        # The official package does not wait for the disk, either.
        storage = icefloe.storage_from_url(str(scratch / "repo"), sync=False)
        repo = icefloe.Repository.create(storage)

        def job() -> Any:
            report = ingest(spark, files, repo, mode=mode, memory_bytes=MEMORY_BYTES, **options)
            assert report.published is not None
            plan = report.plan
            stated = f", {plan.memory_bytes >> 20} MiB per task stated" if plan and plan.memory_bytes else ""
            engines.tell(f"icefloe on {cores} cores{stated}", "pyspark.daemon")
            return _summary(icefloe, scratch / "repo", kind)

        return job

    return prepare


def _summary(package: Any, folder: Path, name: str) -> tuple[Any, ...]:
    """Return values of the result that must be equal on both sides."""
    storage = package.local_filesystem_storage(str(folder))
    store = package.Repository.open(storage).readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, chunks=None) as found:
        values = found[name]
        some = np.asarray(values[-1, ::50, ::50]) if name == "t2m" else values.shape
        return found["time"].values.tolist(), np.asarray(some).tolist()


def _dask(folder: Path, scratch: Path) -> Job:
    """Ingest with xarray and dask on a cluster of processes, and the official package."""
    import icechunk
    from icechunk.xarray import to_icechunk
    from zarr.codecs import ZstdCodec

    engines.dask()
    files = sorted(map(str, folder.glob("*.nc")))
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(scratch / "repo")))

    def job() -> Any:
        options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}
        dataset = xr.open_mfdataset(
            files, engine="h5netcdf", combine="nested", concat_dim="time", chunks={"time": HOURS}, **options
        )
        for variable in dataset.variables.values():
            variable.encoding = {}
        session = repo.writable_session("main")
        codecs = {"chunks": tuple(CHUNKS.values()), "compressors": ZstdCodec(level=3)}
        to_icechunk(dataset, session, encoding={"t2m": codecs})
        session.commit("days")
        engines.tell("dask", "multiprocessing")
        return _summary(icechunk, scratch / "repo", "t2m")

    return job


def _decode_and_encode(folder: Path, scratch: Path) -> Job:
    """Decode all files and encode all chunks in this process: what every ingest must do."""
    from numcodecs import Zstd

    engines.stop_dask()
    files = sorted(folder.glob("*.nc"))

    def job() -> Any:
        values = np.empty((HOURS, *MAP), "f4")
        codec, chunk, written = Zstd(level=3), np.empty(tuple(CHUNKS.values()), "f4"), 0
        for path in files:
            with h5py.File(path) as file:
                file["t2m"].read_direct(values)
            for lat in range(0, MAP[0], CHUNKS["lat"]):
                for lon in range(0, MAP[1], CHUNKS["lon"]):
                    part = values[:, lat : lat + CHUNKS["lat"], lon : lon + CHUNKS["lon"]]
                    chunk[:, : part.shape[1]] = part
                    (scratch / str(written)).write_bytes(codec.encode(chunk))
                    written += 1
        return written

    return job


def _same(ours: Any, theirs: Any) -> None:
    assert ours == theirs


def _setup_small(folder: Path) -> None:
    """Create files like those of models: four variables, a hundred chunks, one day each."""
    for number in range(SMALL_FILES):
        path = folder / f"{number:05}.nc"
        with h5py.File(path, "w") as file:
            for name, size in (("time", 25), ("lat", 20), ("lon", 20)):
                begin = 25 * number if name == "time" else 0
                file[name] = np.arange(begin, begin + size, dtype="f8")
                file[name].make_scale(name)
            file["time"].attrs["units"] = "hours since 2000-01-01"
            for name in ("t", "u", "v", "q"):
                data = file.create_dataset(
                    name, (25, 20, 20), "f4", chunks=(1, 20, 20), compression="gzip", shuffle=True
                )
                data[...] = number
                for axis, scale in enumerate(("time", "lat", "lon")):
                    data.dims[axis].attach_scale(file[scale])
        os.utime(path, (LONG_AGO, LONG_AGO))


def _virtualizarr(folder: Path, scratch: Path) -> Job:
    """Ingest with VirtualiZarr in two processes, xarray's concat, and a commit of the official package."""
    import icechunk

    importlib.import_module("virtualizarr")
    pool = engines.pool()
    files = [f"file://{path}" for path in sorted(folder.glob("*.nc"))]
    config = icechunk.RepositoryConfig.default()
    prefix = f"file://{folder}/"
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    storage = icechunk.local_filesystem_storage(str(scratch / "repo"))
    repo = icechunk.Repository.create(storage, config, {prefix: None})

    def job() -> Any:
        parts = list(pool.map(_parsed, files, chunksize=max(1, len(files) // (8 * engines.WORKERS))))
        options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}
        dataset: Any = xr.concat(parts, dim="time", **options)
        session = repo.writable_session("main")
        dataset.vz.to_icechunk(session.store)
        session.commit("references")
        return _summary(icechunk, scratch / "repo", "t")

    return job


def _parsed(url: str) -> Any:
    """Parse one file in a process of the pool."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore("/")})
    return open_virtual_dataset(url, registry=registry, parser=HDFParser())


def _setup_large(folder: Path, count: int = LARGE_FILES) -> None:
    """Create consecutive files of a hundred thousand chunks each."""
    first = folder / "00000.nc"
    with h5py.File(first, "w", libver="latest") as file:
        for name, size in zip(("time", "x"), LARGE_GRID, strict=True):
            file[name] = np.arange(size, dtype="f8")
            file[name].make_scale(name)
        data = file.create_dataset("v", data=np.zeros(LARGE_GRID, "u1"), chunks=(1, 1))
        for axis, scale in enumerate(("time", "x")):
            data.dims[axis].attach_scale(file[scale])
    for number in range(count):
        path = folder / f"{number:05}.nc"
        if number:
            shutil.copyfile(first, path)
            with h5py.File(path, "r+", libver="latest") as file:
                file["time"][...] = np.arange(LARGE_GRID[0]) + number * LARGE_GRID[0]
        os.utime(path, (LONG_AGO, LONG_AGO))


_GIGABYTES = DAYS * HOURS * MAP[0] * MAP[1] * 4 / 1e9
ROWS = (
    Row(
        "ingest-native",
        f"{DAYS} NetCDF-4 files of 24 x 721 x 1440 float32 ({_GIGABYTES:.2f} GB) to chunks of 24 x 181 x 360",
        Side(
            "icefloe.spark.ingest on two cores, which also checks; Spark runs already",
            _ours("native", "t2m", chunks=CHUNKS),
        ),
        Side("open_mfdataset and to_icechunk on a LocalCluster of two processes that runs already", _dask),
        Side("h5py decodes and numcodecs encodes the same chunks, in one process", _decode_and_encode),
        limit_ratio=1.35,
        cpu_ratio=1.2,
        wall_ratio=1.2,
        setup=_setup_days,
        check=_same,
        repeat=3,
    ),
    Row(
        "ingest-cores",
        f"the same {DAYS} files on two cores and on one",
        Side("icefloe.spark.ingest on local[2]", _ours("native", "t2m", chunks=CHUNKS)),
        Side(
            "icefloe.spark.ingest on local[1], all its processes on that core",
            _ours("native", "t2m", cores=1, chunks=CHUNKS),
        ),
        wall_ratio=1.5,
        setup=_setup_days,
        check=_same,
        repeat=3,
    ),
    Row(
        "ingest-virtual",
        f"{SMALL_FILES} HDF5 files of 100 chunks and three coordinates, by reference",
        Side(
            "icefloe.spark.ingest, virtual, on two cores, which also checks",
            _ours("virtual", "t", concat_dim="time"),
        ),
        Side("VirtualiZarr in a pool of two processes, xarray.concat, and a commit", _virtualizarr),
        wall_ratio=1.0,
        setup=_setup_small,
        check=_same,
        repeat=3,
    ),
    Row(
        "ingest-10M",
        f"{LARGE_FILES * LARGE_GRID[0] * LARGE_GRID[1]:,} references to {LARGE_FILES} files, in one commit",
        Side(
            "icefloe.spark.ingest, virtual; memory of the driver's Python process",
            _ours("virtual", "v", concat_dim="time"),
        ),
        memory_bytes=10**9,
        setup=_setup_large,
        repeat=1,
    ),
    Row(
        "ingest-100M",
        f"{HUGE_FILES * LARGE_GRID[0] * LARGE_GRID[1]:,} references to {HUGE_FILES} files, in several staged "
        "commits that become visible together",
        Side(
            "icefloe.spark.ingest, virtual; memory of the driver's Python process",
            _ours("virtual", "v", concat_dim="time"),
        ),
        memory_bytes=300 * 10**6,
        setup=partial(_setup_large, count=HUGE_FILES),
        repeat=1,
    ),
)
