"""The demo: a year of weather in NetCDF files becomes one versioned array, through Apache Spark.

Eleven months of files are ingested, audited and published in one commit. December follows in a second run
over the same folder, which takes only what is new. SQL compares the two versions, xarray compares every value
with the files, and the last step draws a map. Every printed number is computed in the run.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for demo.weather

import icefloe
from demo.weather import Weather
from icefloe.cli.main import main as icefloe_command
from icefloe.cli.terminal import run_with_streams
from icefloe.ingest.options import Check
from icefloe.spark import QUICK_START, ingest, local_session, scan, sql

GRID = Weather(np.linspace(90, -90, 121), np.arange(0, 360, 1.5))
HOURS = np.arange(0, 24, 6, dtype="m8[h]")
DECEMBER = np.datetime64("2024-12-01")
SCALE = 0.01
"""Degrees per unit of the 16-bit integers in the files."""
CHUNKS = {"time": 40, "latitude": 31, "longitude": 60}
CHECKS = {
    "times in order": Check("monotone"),
    "no gaps": Check("gaps"),
    "no outliers": Check("range", "t2m", low=-90, high=60),
    "samples match the files": Check("source"),
    "SQL: sane means": Check(
        "sql", query="SELECT time FROM staged GROUP BY time HAVING avg(t2m) NOT BETWEEN -10 AND 20"
    ),
}
EXTREMES = "SELECT min(t2m) AS coldest, max(t2m) AS hottest, count(*) AS count FROM weather"
NORTH, SOUTH, WEST, EAST = 72, 36, 0, 40
"""The bounds of Europe."""
MEANS = f"""
SELECT month(time) AS month, sum(t2m * cos(radians(latitude))) / sum(cos(radians(latitude))) AS mean
FROM weather VERSION AS OF '{{version}}'
WHERE latitude BETWEEN {SOUTH} AND {NORTH} AND longitude BETWEEN {WEST} AND {EAST}
GROUP BY month(time) ORDER BY month(time)
"""
VERSIONS = ("january-november", "main")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MAP_TIME = "time=2024-01-15T12"
COLUMNS = 97

Note = Callable[[str], None]


def main(folder: Path) -> int:
    """Run the pipeline in a folder, which is emptied first."""
    begin = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    data, location = folder / "netcdf", shown(folder / "repository")
    days = np.arange("2024-01-01", "2025-01-01", dtype="M8[D]")
    print("icefloe demo: a year of weather files becomes one versioned Zarr array, with Apache Spark.")
    print(f"Data: synthetic 2 m temperature, 6-hourly for {len(days)} days on a 1.5 degree grid (121 x 240).")

    with step("1. Write NetCDF files, one per day, January to November") as note:
        files = write_files(data, days[days < DECEMBER])
        size = sum(file.stat().st_size for file in files)
        note(f"{len(files)} files, {megabytes(size)}, {millions(values_in(files))} values")
    with step("2. Start Spark on this machine") as note:
        spark = local_session("icefloe demo", settings=QUICK_START)
        note(f"Spark {spark.version} on {spark.sparkContext.defaultParallelism} cores")

    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repository")))
    with step("3. Ingest: Spark reads the files, writes one array, audits it and publishes it") as note:
        done = ingest_folder(spark, data, repo, "January to November")
        note(f"{done.new} files, {millions(done.values)} values: {millions(done.rate)} values per second")
        note(f"{done.written} chunks written, {megabytes(done.stored_bytes)} compressed")
        note(f"Audit passed: {', '.join(CHECKS)}")
        repo.create_tag(VERSIONS[0], repo.lookup_branch("main"))
        note(f'Published in one commit: readers see all of it or nothing. Tagged "{VERSIONS[0]}"')
    with step("4. Derive daily means from the array, as a recipe describes them") as note:
        derive_daily_means(location, note)
    files += write_files(data, days[days >= DECEMBER])
    with step("5. December arrives: ingest the same folder again") as note:
        done = ingest_folder(spark, data, repo, "December")
        note(f"{done.known} files skipped, as the repository has them; {done.new} new files read")
        shared = done.chunks - done.written
        note(f"{done.written} chunks written, audited and published; {shared} are shared by both versions")
    with step("6. Derive daily means again: only days in chunks that December changed") as note:
        derive_daily_means(location, note)
    with step("7. Query all rows with SQL: the extremes of the year") as note:
        find_extremes(spark, repo, note)
    with step("8. Query a region with SQL, in both versions: monthly means of Europe in °C") as note:
        compare_versions(spark, repo, note)
    spark.stop()
    with step("9. Read everything back with xarray and compare it with the files") as note:
        compare_with_files(repo, files, note)

    show_history_and_map(location, shown(folder / "map.png"))
    print(f"\nAll of this took {time.perf_counter() - begin:.0f} s. Three commands to try next:")
    for words in (
        ["plot", location, "t2m", "--sel", "time=2024-07-15T12"],
        ["sql", f"w={location}", "SELECT max(t2m) FROM w"],
        ["serve", location],
    ):
        print(" ", shlex.join([shown(Path(sys.executable).with_name("icefloe")), *words]))
    return 0


def derive_daily_means(location: str, note: Note) -> None:
    """Bring daily means up to date, and report how many days were computed."""
    recipe = {
        "repository": location,
        "outputs": {
            "t2m_daily": {
                "function": "mean",
                "inputs": {"t2m": "t2m"},
                "dimensions": {"time": {"group": "time.day"}},
                "chunks": {"time": 1, "latitude": -1, "longitude": -1},
            }
        },
    }
    report = icefloe.derive_arrays(recipe)
    total = report.recomputed + report.moved + report.kept
    note(f"{report.recomputed} of {total} days computed from {megabytes(report.bytes_read)}")


@contextmanager
def step(title: str) -> Iterator[Note]:
    """Print what is done and how long it took, then notes about the result."""
    notes: list[str] = []
    print(f"\n{title} ", end="", flush=True)
    begin = time.perf_counter()
    yield notes.append
    print(f"{time.perf_counter() - begin:{COLUMNS - len(title) - 3}.1f} s")
    for note in notes:
        print(f"   {note}", flush=True)


def write_files(folder: Path, days: Any) -> list[Path]:
    """Write a NetCDF file per day."""
    folder.mkdir(parents=True, exist_ok=True)
    empty = folder.with_suffix(".nc")
    write_empty_file(empty)
    with ThreadPoolExecutor(2) as threads:
        files = list(threads.map(lambda day: write_day(empty, folder / f"t2m-{day}.nc", day), days))
    empty.unlink()
    return files


def write_empty_file(path: Path) -> None:
    """Write a file with the dimensions, coordinates and attributes of a day, and without its values."""
    coordinates = {
        "time": (np.zeros(len(HOURS), "i4"), "hours since 2024-01-01"),
        "latitude": (GRID.latitudes, "degrees_north"),
        "longitude": (GRID.longitudes, "degrees_east"),
    }
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {name: len(values) for name, (values, _) in coordinates.items()}
        for name, (values, units) in coordinates.items():
            file.create_variable(name, (name,), data=values).attrs["units"] = units
        t2m = file.create_variable("t2m", tuple(coordinates), "i2")
        t2m.attrs["long_name"] = "2 metre temperature"
        t2m.attrs["units"] = "degC"
        t2m.attrs["scale_factor"] = SCALE


def write_day(empty: Path, path: Path, day: Any) -> Path:
    """Fill a copy of the empty file, which is faster than creating a new one."""
    shutil.copyfile(empty, path)
    times = day + HOURS
    with h5py.File(path, "r+") as file:
        file["time"][:] = (times - np.datetime64("2024-01-01")) // np.timedelta64(1, "h")
        file["t2m"][:] = np.rint(GRID.temperature(times) / SCALE)
    return path


@dataclass(frozen=True, slots=True)
class Ingested:
    """Figures of an ingest."""

    known: int
    new: int
    values: int
    rate: float
    written: int
    chunks: int
    stored_bytes: int


def ingest_folder(spark: Any, folder: Path, repo: icefloe.Repository, message: str) -> Ingested:
    """Ingest the files that are new, audit the result, and publish it in one commit."""
    before, begin = repo.lookup_branch("main"), time.perf_counter()
    report = ingest(spark, folder, repo, chunks=CHUNKS, checks=tuple(CHECKS.values()), message=message)
    seconds = time.perf_counter() - begin
    assert report.published is not None, f"checks failed: {report.checks}"
    new = report.outcome.wanted
    written = repo.diff(from_snapshot_id=before, to_snapshot_id=report.published).updated_chunks["/t2m"]
    arrays = {
        row["array"]: row for row in repo.storage_stats(by="array", snapshot_id=report.published).rows()
    }
    return Ingested(
        known=len(report.outcome.sources.known),
        new=len(new),
        values=values_in(new),
        rate=values_in(new) / seconds,
        written=len(written),
        chunks=arrays["/t2m"]["chunks"],
        stored_bytes=arrays["/t2m"]["native_bytes"],
    )


def find_extremes(spark: Any, repo: icefloe.Repository, note: Note) -> None:
    """Find the lowest and the highest value of all."""
    begin = time.perf_counter()
    (row,) = sql(spark, EXTREMES, {"weather": repo}).collect()
    rate = row["count"] / (time.perf_counter() - begin)
    note(f"{millions(row['count'])} rows, {millions(rate)} rows per second")
    note(f"lowest {row['coldest']:.1f} °C, highest {row['hottest']:.1f} °C")


def compare_versions(spark: Any, repo: icefloe.Repository, note: Note) -> None:
    """Query both versions, and count the chunks that the region lies in."""
    note(f"{'version':17}" + "".join(f"{month:>6}" for month in MONTHS))
    for version in VERSIONS:
        rows = sql(spark, MEANS.format(version=version), {"weather": repo}).collect()
        note(f"{version:17}" + "".join(f"{row['mean']:6.1f}" for row in rows))
    world = scan(spark, repo)
    europe = world.sel(latitude=slice(NORTH, SOUTH), longitude=slice(WEST, EAST))
    total, read = (math.prod(map(len, each.plan().edges)) for each in (world, europe))
    note(f"{read} of {total} chunks read; {total - read} skipped, because they lie outside of the region")


def compare_with_files(repo: icefloe.Repository, files: Sequence[Path], note: Note) -> None:
    """Compare every value and every time with the files."""
    store = repo.readonly_session("main").store
    stored = xr.open_zarr(store, consolidated=False, chunks=None, decode_cf=False).load()
    for number, path in enumerate(files):
        part = stored.isel(time=slice(number * len(HOURS), (number + 1) * len(HOURS)))
        with h5py.File(path) as file:
            np.testing.assert_array_equal(part["t2m"], file["t2m"][:])
            np.testing.assert_array_equal(part["time"], file["time"][:])
    note(f"{millions(stored['t2m'].size)} values, all equal to those in the {len(files)} files")


def show_history_and_map(location: str, picture: str) -> None:
    """Run a command like a user."""
    plot = ["plot", location, "t2m", "--sel", MAP_TIME]
    for words in (["log", location, "--graph"], [*plot, "--width", "81"], [*plot, "--file", picture]):
        print(f"\n$ {shlex.join(['icefloe', *words])}", flush=True)
        assert icefloe_command(words) == 0


def values_in(files: Sequence[Any]) -> int:
    """Count the temperatures in some files."""
    return len(files) * len(HOURS) * len(GRID.latitudes) * len(GRID.longitudes)


def shown(path: Path) -> str:
    """Write a path as people type it: relative where it lies below the working directory."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def millions(count: float) -> str:
    """Write a count in millions."""
    return f"{count / 1e6:.1f} million"


def megabytes(count: int) -> str:
    """Write a number of bytes in megabytes."""
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo").absolute()
    raise SystemExit(run_with_streams(lambda: main(target)))
