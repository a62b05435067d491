"""The pipeline: NetCDF files, read by Spark's executors, become one version-controlled array.

Files are surveyed, combined and checked; executors write their blocks of the array and return receipts; the
driver makes one commit on a branch beside `main`, checks it, also in SQL, and publishes it. A second run over
the whole folder takes only what is new. Then SQL compares the two versions, and one of them is drawn.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import icefloe
from icefloe.cli.app import main as icefloe_command
from icefloe.ingest.checks import Check
from icefloe.spark import QUICK_START, ingest, local_session, sql

YEAR = 2024
SHAPE = (90, 180)
"""Latitudes and longitudes, every two degrees."""
DAYS_PER_CHUNK = 10
CHECKS = (
    Check("monotone"),
    Check("source"),
    Check("range", "temperature", low=-80, high=60),
    Check("sql", query="SELECT time FROM staged GROUP BY time HAVING avg(temperature) > 40"),
)
SEASONS = """
SELECT month(time) AS month, round(avg(temperature), 2) AS mean, count(DISTINCT time) AS days
FROM demo VERSION AS OF '{version}' WHERE latitude > 60 GROUP BY month(time) ORDER BY month(time)
"""


def main(folder: Path) -> None:
    """Write files, ingest them in two batches, and look at the result."""
    shutil.rmtree(folder, ignore_errors=True)
    data, place = folder / "netcdf", str(folder / "repository")
    files = [write_days(data, month, part) for month in range(1, 7) for part in range(3)]
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(place))

    with said("starting Spark on this machine"):
        spark = local_session("icefloe demo", settings=QUICK_START)
    options: dict[str, Any] = {"chunks": {"time": DAYS_PER_CHUNK}, "checks": CHECKS, "told": step}
    with said(f"January to June: {len(files)} NetCDF files"):
        first = ingest(spark, data, repo, message="January to June", **options)
    repo.create_tag("half-year", str(first.published))
    files += [write_days(data, month, part) for month in range(7, 13) for part in range(3)]
    with said(f"the same folder again, with {len(files)} files now"):
        ingest(spark, data, repo, message="July to December", **options)
    with said("SQL over two versions: the mean north of 60 degrees, month by month"):
        for version in ("half-year", "main"):
            rows = sql(spark, SEASONS.format(version=version), {"demo": repo}).collect()
            means = " ".join(f"{row['mean']:6.2f}" for row in rows)
            step(f"{version:9} {sum(row['days'] for row in rows)} days: {means}")
    spark.stop()

    compare(repo, files)
    show_changes(repo)
    for command in (
        ["log", place, "--graph"],
        ["plot", place, "temperature", "--sel", f"time={YEAR}-07-15", "--width", "72"],
        ["plot", place, "temperature", "--isel", "latitude=80", "--isel", "longitude=0", "--width", "72"],
        ["plot", place, "temperature", "--sel", f"time={YEAR}-07-15", "--file", str(folder / "july.png")],
    ):
        print(f"\n$ icefloe {' '.join(command)}", flush=True)
        icefloe_command(command)
    print(f"\nOpen it: icefloe.open({place!r}), or: icefloe tree {place}")


def step(sentence: str) -> None:
    """Print what the pipeline does."""
    print(f"    {sentence}", flush=True)


def write_days(folder: Path, month: int, part: int) -> Path:
    """A file of about ten days of temperatures, the same on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = np.datetime64(f"{YEAR}-{month:02}", "M")
    whole = np.arange(begin, begin + np.timedelta64(1, "M"), dtype="M8[D]")
    days = np.array_split(whole, 3)[part]
    latitude, longitude = np.linspace(-89, 89, SHAPE[0]), np.arange(0, 360, 360 / SHAPE[1])
    season = np.cos((days - np.datetime64(f"{YEAR}-01-15")).astype(float) / 366 * 2 * np.pi)
    zonal = 30 * np.cos(np.radians(latitude)) - 10
    noise = np.random.default_rng(3 * month + part).normal(0, 1, (len(days), *SHAPE))
    values = zonal[:, None] - season[:, None, None] * 12 * np.sin(np.radians(latitude))[:, None] + noise
    dataset = xr.Dataset(
        {"temperature": (("time", "latitude", "longitude"), values.astype("f4"), {"units": "degC"})},
        {"time": days.astype("M8[ns]"), "latitude": latitude, "longitude": longitude},
        {"title": "invented temperatures"},
    )
    file = folder / f"temperature-{YEAR}-{month:02}-{part}.nc"
    dataset.to_netcdf(file, engine="h5netcdf")
    return file


def compare(repo: icefloe.Repository, files: Sequence[Path]) -> None:
    """Read all back and compare it with the files."""
    found = xr.open_zarr(repo.readonly_session("main").store, consolidated=False, chunks=None).load()
    parts = []
    for file in files:
        with xr.open_dataset(file, engine="h5netcdf") as dataset:
            parts.append(dataset.load())
    xr.testing.assert_equal(found, xr.concat(parts, "time"))
    print(f"\nread back: {dict(found.sizes)}, equal to the {len(files)} files")


def show_changes(repo: icefloe.Repository) -> None:
    """Print what the last commit wrote: whole chunks of the first half year are not among it."""
    tip, before, *_ = (snapshot.id for snapshot in repo.ancestry(branch="main"))
    changed = repo.diff(from_snapshot_id=before, to_snapshot_id=tip).updated_chunks
    arrays = {array: chunks for array, chunks in changed.items() if not array.startswith("/_icefloe")}
    counts = ", ".join(f"{len(chunks)} of {array}" for array, chunks in arrays.items())
    print(f"chunks written by the last commit: {counts}")


@contextmanager
def said(what: str) -> Iterator[None]:
    """Print what is done and how long it took."""
    print(f"\n{what} ...", flush=True)
    start = time.perf_counter()
    yield
    print(f"    {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo").absolute())
