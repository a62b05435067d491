"""Compare arrays as Spark tables with Parquet, xarray and the minimal cost of Python data sources.

python benchmarks/tables.py FOLDER [ROW ...]     FOLDER keeps the data from run to run

One warm Spark session runs all sides in alternating turns. The result is the CPU time of the driver, the JVM
and the Python workers together. A job with one empty task is reported separately.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
import zarr
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import icefloe
from benchmarks.spark_cpu import interleaved
from icefloe.format.manifest import ArrayManifest
from icefloe.spark import local_session, scan, sql

Jobs = Mapping[str, Callable[[], Any]]
REPEAT = 3
SHORT = 7
"""Turns of rows that take a second, after as many warm-up turns, in which the JVM compiles the code."""
BATCH = 65536


def dataset(steps: int, step: Any, lat: int, lon: int, variables: Sequence[str]) -> xr.Dataset:
    """Create temperatures with one decimal, as in archives."""
    random = np.random.default_rng(0)
    shape = (steps, lat, lon)
    data = {
        name: (("time", "lat", "lon"), random.normal(280, 10, shape).round(1).astype("f4"))
        for name in variables
    }
    times = np.datetime64("2010-01-01", "ns") + np.arange(steps) * np.timedelta64(1, step)
    return xr.Dataset(
        data,
        {
            "time": times,
            "lat": np.linspace(90, -90, lat),
            "lon": np.arange(lon) * 360 / lon,
        },
    )


def stored(folder: Path, made: Callable[[], xr.Dataset], chunks: tuple[int, int, int]) -> str:
    """Create a repository and a folder of Parquet files sorted by time, with the same rows."""
    if (folder / "done").exists():
        return str(folder)
    full = made()
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    session = repo.writable_session("main")
    encoding = {name: {"chunks": chunks} for name in full.data_vars}
    full.to_zarr(session.store, consolidated=False, zarr_format=3, encoding=encoding)
    session.commit("written")
    (folder / "parquet").mkdir()
    steps = max(4_000_000 // (full.sizes["lat"] * full.sizes["lon"]), 1)
    for start in range(0, full.sizes["time"], steps):
        part = full.isel(time=slice(start, start + steps))
        pq.write_table(_rows(part), folder / "parquet" / f"{start:06}.parquet", row_group_size=1_000_000)
    (folder / "done").touch()
    return str(folder)


def _rows(part: xr.Dataset) -> pa.Table:
    shape = tuple(part.sizes[dim] for dim in ("time", "lat", "lon"))
    columns: dict[str, Any] = {}
    for axis, dim in enumerate(("time", "lat", "lon")):
        values = part[dim].values.reshape([-1 if a == axis else 1 for a in range(3)])
        columns[dim] = np.broadcast_to(values, shape).reshape(-1)
    columns["time"] = columns["time"].astype("M8[us]")
    for name in part.data_vars:
        columns[str(name)] = part[name].values.reshape(-1)
    return pa.table(columns)


class Floor(DataSource):
    """A data source of constant rows: the minimal cost of a Python data source."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return "time timestamp_ntz, lat double, lon double, a float, b float, c float"

    def reader(self, schema: Any) -> DataSourceReader:
        return _FloorReader(int(self.options["tasks"]), int(self.options["batches"]))


class _FloorReader(DataSourceReader):
    def __init__(self, tasks: int, batches: int) -> None:
        self._tasks, self._batches = tasks, batches

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = {
            "time": pa.array(np.zeros(65536, "M8[us]")),
            **{name: pa.array(np.arange(65536, dtype="f8")) for name in ("lat", "lon")},
            **{name: pa.array(np.arange(65536, dtype="f4")) for name in "abc"},
        }
        batch = pa.RecordBatch.from_pydict(columns)
        for _ in range(self._batches):
            yield batch


def empty_job(spark: Any, folder: Path) -> Jobs:
    """Measure a job with one empty task."""
    spark.dataSource.register(Floor)
    empty = spark.read.format("floor").options(tasks=1, batches=0)
    return {"one empty task": lambda: empty.load().selectExpr("max(time)").collect()}


SUMS = "sum(a), sum(b), sum(c), sum(lat), sum(lon), max(time)"


def full_scan(spark: Any, folder: Path) -> Jobs:
    """Read all rows of three variables and three coordinates."""
    place = stored(folder / "scan", lambda: dataset(48, "h", 360, 720, "abc"), (6, 180, 360))
    spark.dataSource.register(Floor)
    loaded = spark.read.format("icechunk").option("path", f"{place}/repo").load()
    tasks = loaded.rdd.getNumPartitions()
    batches = 48 * 360 * 720 // 65536 // tasks
    floor = spark.read.format("floor").options(tasks=tasks, batches=batches).load()
    parquet = spark.read.parquet(f"{place}/parquet")

    def asked(frame: Any) -> Any:
        return frame.selectExpr(*SUMS.split(", ")).collect()

    return {
        "load": partial(asked, loaded),
        "floor": partial(asked, floor),
        "Parquet": partial(asked, parquet),
    }


def selective(spark: Any, folder: Path) -> Jobs:
    """Compute the mean over one per cent of a day of 10M cells, one of three."""
    place = stored(folder / "days", lambda: dataset(72, "h", 600, 700, "a"), (24, 100, 100))
    spark.read.parquet(f"{place}/parquet").createOrReplaceTempView("p")
    where = (
        "time >= '2010-01-02' AND time < '2010-01-03' AND lat BETWEEN 30 AND 48 AND lon BETWEEN 90 AND 126"
    )
    query = f"SELECT avg(a), count(a) FROM p WHERE {where}"
    rows = f"SELECT sum(v), count(v) FROM (SELECT a * a AS v FROM p WHERE {where})"
    repos = {"p": f"{place}/repo"}
    return {
        "sql": lambda: sql(spark, query, repos).collect(),
        "sql, row by row": lambda: sql(spark, rows, repos).collect(),
        "Parquet": lambda: spark.sql(query).collect(),
    }


def climatology(spark: Any, folder: Path) -> Jobs:
    """Compute the mean by latitude, longitude and month over 200M cells."""
    place = stored(folder / "years", lambda: dataset(4000, "D", 200, 250, "a"), (100, 100, 125))
    spark.read.parquet(f"{place}/parquet").createOrReplaceTempView("p")
    session = icefloe.Repository.open(icefloe.local_filesystem_storage(f"{place}/repo")).readonly_session(
        "main"
    )
    query = "SELECT lat, lon, month(time) AS m, avg(a) AS v FROM p GROUP BY lat, lon, month(time)"
    whole = scan(spark, f"{place}/repo")

    def numpy_answer() -> Any:
        lazy = xr.open_zarr(session.store, consolidated=False)
        return lazy["a"].groupby("time.month").mean().compute()

    def summed(frame: Any) -> Any:
        return frame.selectExpr("count(*)", "sum(v)").collect()

    return {
        "aggregate": lambda: summed(whole.aggregate(by=["lat", "lon", "month(time)"], v=("a", "mean"))),
        "sql": lambda: summed(sql(spark, query, {"p": f"{place}/repo"})),
        "Parquet": lambda: summed(spark.sql(query)),
        "xarray and dask": numpy_answer,
    }


def _references(folder: Path, count: int, chunk: int) -> str:
    """Create a repository with one array of this many chunks, which are never read."""
    if not (folder / "done").exists():
        any_dimension: Any = {icefloe.ManifestSplitDimCondition.Any(): 1000}
        splitting = icefloe.ManifestSplittingConfig.from_dict(
            {icefloe.ManifestSplitCondition.AnyArray(): any_dimension}
        )
        config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=splitting))
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")), config)
        session = repo.writable_session("main")
        side = int(count**0.5)
        zarr.create_array(
            session.store,
            name="a",
            shape=(side * chunk, count // side * chunk),
            chunks=(chunk, chunk),
            dtype="f4",
            dimension_names=("y", "x"),
        )
        _set_references(session, side, count // side)
        session.commit("references")
        (folder / "done").touch()
    return str(folder / "repo")


def _set_references(session: icefloe.Session, rows: int, columns: int) -> None:
    count = rows * columns
    coords = np.indices((rows, columns), np.uint32).reshape(2, -1).T
    ids = np.random.default_rng(0).integers(0, 256, (count, 12), np.uint8)
    workspace = session._workspace
    workspace.put_refs(workspace.array("/a"), ArrayManifest.native(coords, ids, np.full(count, 4096)))


def planning(spark: Any, folder: Path) -> Jobs:
    """Plan a table with a million chunks."""
    place = _references(folder / "million", 1_000_000, 64)
    spark.dataSource.register(Floor)
    empty = spark.read.format("floor").options(tasks=1, batches=0)
    loaded = spark.read.format("icechunk").option("path", place)
    return {
        "load": lambda: loaded.load()._jdf.queryExecution().toRdd().getNumPartitions(),
        "empty source": lambda: empty.load()._jdf.queryExecution().toRdd().getNumPartitions(),
    }


def references(spark: Any, folder: Path) -> Jobs:
    """Plan the metadata table of ten million references, and sum all lengths."""
    place = _references(folder / "tens", 10_000_000, 64)
    table = spark.read.format("icechunk").options(path=place, table="chunks")
    return {
        "plan": lambda: table.load()._jdf.queryExecution().toRdd().getNumPartitions(),
        "sum of lengths": lambda: table.load().selectExpr("sum(length)").collect(),
    }


def merge(spark: Any, folder: Path) -> Jobs:
    """Merge new values for 1 % of 6.2M cells: scattered over all chunks, and in one region."""
    made = dataset(24, "h", 360, 720, "a")
    place = stored(folder / "merge", lambda: made, (6, 180, 360))
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(f"{place}/repo"))
    size = made["a"].size
    chosen = np.random.default_rng(1).choice(size, size // 100, replace=False)
    scattered = _rows(made).take(np.sort(chosen))
    region = _rows(made.isel(time=slice(6), lat=slice(101), lon=slice(103)))
    sources = {"scattered": scattered, "region": region}
    on = " AND ".join(f"t.{dim} = s.{dim}" for dim in ("time", "lat", "lon"))
    text = f"MERGE INTO w t USING src s ON {on} WHEN MATCHED THEN UPDATE SET a = s.a + 1"
    jobs: dict[str, Callable[[], Any]] = {}
    for name, rows in sources.items():
        path = str(folder / f"{name}.parquet")
        pq.write_table(rows, path)
        names = {"w": repo, "src": spark.read.parquet(path)}
        jobs[f"MERGE {name}"] = partial(sql, spark, text, names)
    jobs |= {f"deltalake {name}": job for name, job in _merge_delta(folder, made, sources, on).items()}
    return jobs | {"rewrite the array": partial(_rewrite, repo)}


def _merge_delta(folder: Path, made: xr.Dataset, sources: Mapping[str, pa.Table], on: str) -> Jobs:
    """Merge the same rows with the package deltalake, if it is installed."""
    try:
        deltalake: Any = import_module("deltalake")
    except ModuleNotFoundError:
        print("  deltalake is not installed (pip install deltalake), and left out")
        return {}
    place = str(folder / "delta")
    deltalake.write_deltalake(place, _rows(made), mode="overwrite")

    def run(rows: pa.Table) -> None:
        merging = deltalake.DeltaTable(place).merge(rows, on, source_alias="s", target_alias="t")
        merging.when_matched_update({"a": "s.a + 1"}).execute()

    return {name: partial(run, rows) for name, rows in sources.items()}


def _rewrite(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a", mode="r+")
    array[...] = np.asarray(array[...]) + np.float32(1)
    session.commit("rewritten")


STATIONS = 1000
STEPS = 10


def micro_batches(spark: Any, folder: Path) -> Jobs:
    """Run micro-batches of 10,000 rows and empty ones: written by a sink, and read by a source."""
    place = folder / "streams"
    rmtree(place, ignore_errors=True)
    (place / "rows").mkdir(parents=True)
    for name in ("written", "read"):
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(place / name)))
        with repo.transaction("main", message="stations") as store:
            _observations(0).to_dataset(name="v").to_zarr(
                store, consolidated=False, zarr_format=3, encoding={"v": {"chunks": (STEPS, STATIONS)}}
            )
    schema = "time timestamp_ntz, station bigint, v float"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / "rows"))
    options = {"path": str(place / "written"), "checkpointLocation": str(place / "sink")}
    sink = rows.writeStream.format("icechunk").options(**options, dims="time,station").start()
    source = spark.readStream.format("icechunk").options(
        path=str(place / "read"), grain="rows", startingVersion="latest"
    )
    reader = source.load().writeStream.format("noop").option("checkpointLocation", str(place / "source"))
    numbers = count(1)

    def write(is_empty: bool) -> None:
        number = next(numbers)
        table = pa.Table.from_pandas(
            _observations(number).to_dataframe(name="v").reset_index(), preserve_index=False
        )
        table = table.cast(pa.schema([("time", pa.timestamp("us")), ("station", "int64"), ("v", "float")]))
        pq.write_table(table.slice(0, 0) if is_empty else table, place / "rows" / f"{number:06}.parquet")
        sink.processAllAvailable()

    query = reader.start()
    query.processAllAvailable()

    def read(is_empty: bool) -> None:
        with repo.transaction("main", message="changed") as store:
            array: Any = zarr.open_array(store, path="v", mode="r+")
            array[:STEPS] = np.asarray(array[:STEPS]) + np.float32(not is_empty)
        query.processAllAvailable()

    return {
        "sink, empty": partial(write, True),
        "sink, 10,000 rows": partial(write, False),
        "source, empty": partial(read, True),
        "source, 10,000 rows": partial(read, False),
    }


def _observations(number: int) -> xr.DataArray:
    """Create the observations of all stations in a few hours."""
    hours = np.arange(STEPS * number, STEPS * (number + 1))
    return xr.DataArray(
        np.random.default_rng(number).normal(size=(STEPS, STATIONS)).astype("f4"),
        {
            "time": np.datetime64("2020-01-01", "ns") + hours * np.timedelta64(1, "h"),
            "station": np.arange(STATIONS),
        },
        ("time", "station"),
    )


ROWS = (empty_job, full_scan, selective, climatology, planning, references, merge, micro_batches)


def main(folder: str, *rows: str) -> None:
    warnings.filterwarnings("ignore")
    place = Path(folder)
    spark = local_session("icefloe benchmarks", settings={"spark.driver.memory": "4g"})
    for row in ROWS:
        if rows and row.__name__ not in rows:
            continue
        place.mkdir(parents=True, exist_ok=True)
        print(f"\n{row.__name__}: {row.__doc__}")
        turns = (SHORT, SHORT) if row in (empty_job, selective, micro_batches) else (REPEAT, 1)
        costs = interleaved(row(spark, place), *((1, 1) if row is climatology else turns))
        first = next(iter(costs.values()))
        for name, cost in costs.items():
            print(
                f"  {name:18}{cost.cpu_s:8.2f} CPU s{cost.wall_s:8.2f} s{cost.cpu_s / first.cpu_s:7.2f} x",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
