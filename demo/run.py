"""A first pipeline: NetCDF files, read by Spark's executors, become one version-controlled array.

Each executor gets a fork of one session and the name of a file, writes the days of that file into their
region of the array, and returns a receipt: some hundred bytes that say which chunks it wrote. The driver
makes one commit of all receipts. Nobody sees half of it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dask.array
import numpy as np
import xarray as xr

import icefloe
from icefloe.distributed import commit_forks, receipt
from icefloe.spark import QUICK_START, SparkFanOut, local_session

YEAR = 2024
SHAPE = (90, 180)
"""Latitudes and longitudes, every two degrees."""
DAYS_PER_CHUNK = 1


@dataclass(frozen=True, slots=True)
class Order:
    """What one task is to do."""

    fork: icefloe.ForkSession
    file: str
    first_day: int


def main(folder: Path) -> None:
    """Write files, ingest them in two batches, and look at the result."""
    shutil.rmtree(folder, ignore_errors=True)
    files = [write_month(folder / "netcdf", month) for month in range(1, 13)]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    print(f"{len(files)} NetCDF files, {megabytes:.1f} MB, in {folder / 'netcdf'}")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repository")))

    with said("starting Spark on this machine"):
        spark = local_session("icefloe demo", settings=QUICK_START)
        fan_out = SparkFanOut(spark)
    with said("January to June, one task per file, one commit"):
        first = ingest(repo, fan_out, files[:6], "January to June")
    repo.create_tag("half-year", first)
    with said("July to December appended, one commit"):
        ingest(repo, fan_out, files[6:], "July to December")
    spark.stop()

    compare(repo, files)
    show_history(repo)
    travel_in_time(repo)
    print(f"\nOpen it: icefloe.open({str(folder / 'repository')!r})")


def write_month(folder: Path, month: int) -> Path:
    """A file of daily temperatures, the same on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = np.datetime64(f"{YEAR}-{month:02}", "M")
    days = np.arange(begin, begin + np.timedelta64(1, "M"), dtype="M8[D]")
    latitude, longitude = np.linspace(-89, 89, SHAPE[0]), np.arange(0, 360, 360 / SHAPE[1])
    season = np.cos((days - np.datetime64(f"{YEAR}-01-15")).astype(float) / 366 * 2 * np.pi)
    zonal = 30 * np.cos(np.radians(latitude)) - 10
    noise = np.random.default_rng(month).normal(0, 1, (len(days), *SHAPE))
    values = zonal[:, None] - season[:, None, None] * 12 * np.sin(np.radians(latitude))[:, None] + noise
    dataset = xr.Dataset(
        {"temperature": (("time", "latitude", "longitude"), values.astype("f4"), {"units": "degC"})},
        {"time": days.astype("M8[ns]"), "latitude": latitude, "longitude": longitude},
        {"title": "invented temperatures"},
    )
    file = folder / f"temperature-{YEAR}-{month:02}.nc"
    dataset.to_netcdf(file, engine="h5netcdf")
    return file


def ingest(repo: icefloe.Repository, fan_out: SparkFanOut, files: Sequence[Path], message: str) -> str:
    """Make room for the days of some files, have them written by executors, and commit: the driver's part."""
    session = repo.writable_session("main")
    first_day = days_in(repo)
    starts = make_room(session, files, first_day)
    fork = session.fork()
    orders = [Order(fork, str(file), start) for file, start in zip(files, starts, strict=True)]
    receipts = list(fan_out(write_file, orders))
    print(f"    {len(receipts)} receipts of {max(map(len, receipts))} bytes at most")
    return commit_forks(session, receipts, message, {"files": [file.name for file in files]})


def write_file(order: Order) -> bytes:
    """Write one file into its region: an executor's part. It may run twice and does not mind."""
    with xr.open_dataset(order.file, engine="h5netcdf") as dataset:
        days = slice(order.first_day, order.first_day + dataset.sizes["time"])
        values = dataset[["temperature"]].drop_vars(["latitude", "longitude", "time"]).load()
    values.to_zarr(order.fork.store, region={"time": days}, consolidated=False)
    return receipt(order.fork)


def days_in(repo: icefloe.Repository) -> int:
    """How many days there are already."""
    store = repo.readonly_session("main").store
    try:
        return int(xr.open_zarr(store, consolidated=False, chunks=None).sizes["time"])
    except FileNotFoundError:
        return 0


def make_room(session: icefloe.Session, files: Sequence[Path], first_day: int) -> list[int]:
    """Create the array, or make it longer, without its values; where each file begins."""
    heads = []
    for file in files:
        with xr.open_dataset(file, engine="h5netcdf") as dataset:
            heads.append(dataset.drop_vars("temperature").load())
    counts = [head.sizes["time"] for head in heads]
    template = xr.concat(heads, "time")
    shape = (sum(counts), *SHAPE)
    empty = dask.array.zeros(shape, chunks=(DAYS_PER_CHUNK, *SHAPE), dtype="f4")
    template["temperature"] = (("time", "latitude", "longitude"), empty, {"units": "degC"})
    encoding = {"temperature": {"chunks": (DAYS_PER_CHUNK, *SHAPE)}, "time": {"chunks": (366,)}}
    if first_day:
        template = template.drop_vars(["latitude", "longitude"])
        template.to_zarr(session.store, append_dim="time", compute=False, consolidated=False)
    else:
        template.to_zarr(session.store, encoding=encoding, compute=False, consolidated=False)
    starts: list[int] = (first_day + np.cumsum([0, *counts[:-1]])).tolist()
    return starts


def compare(repo: icefloe.Repository, files: Sequence[Path]) -> None:
    """Read all back and compare it with the files."""
    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False, chunks=None).load()
    parts = []
    for file in files:
        with xr.open_dataset(file, engine="h5netcdf") as dataset:
            parts.append(dataset.load())
    xr.testing.assert_equal(found, xr.concat(parts, "time"))
    print(f"\nread back: {dict(found.sizes)}, equal to the {len(files)} files")


def show_history(repo: icefloe.Repository) -> None:
    """Print the commits and what the last one changed."""
    print("\nhistory of main")
    for snapshot in repo.ancestry(branch="main"):
        files = snapshot.metadata.get("files", [])
        print(f"    {snapshot.id}  {snapshot.message}" + (f", {len(files)} files" if files else ""))
    tip, before, *_ = (snapshot.id for snapshot in repo.ancestry(branch="main"))
    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=tip).updated_chunks
    counts = ", ".join(f"{len(chunks)} of {array}" for array, chunks in changed.items())
    print(f"    chunks written by the last commit: {counts}")


def travel_in_time(repo: icefloe.Repository) -> None:
    """Look at the array as it was."""
    print("\ntime travel")
    for label, session in (
        ("tag half-year", repo.readonly_session(tag="half-year")),
        ("branch main", repo.readonly_session("main")),
    ):
        dataset = xr.open_zarr(session.store, consolidated=False, chunks=None)
        mean = float(dataset["temperature"].mean())
        last = str(dataset["time"].values[-1])[:10]
        print(f"    {label:14} {dataset.sizes['time']} days up to {last}, mean {mean:.2f} degC")


@contextmanager
def said(what: str) -> Iterator[None]:
    """Print what is done and how long it took."""
    print(f"\n{what} ...", flush=True)
    start = time.perf_counter()
    yield
    print(f"    {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo").absolute())
