"""A job for a cluster: reads, asks, aggregates and writes, with a task that is slow at its first attempt.

python -m tests.spark.cluster_job MASTER FOLDER      says "all well" at the end
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import icefloe
from icefloe.spark import scan, session_at, sql, write
from tests.spark.weather import CHUNKS, opened, repository, weather

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executor.memory": "512m",
}


def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of one task sleeps, so that another is started beside it."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(20)
    return batches


def main(master: str, folder: str) -> None:
    """Do everything once and compare."""
    repo = repository(weather(), icefloe.local_filesystem_storage(folder), CHUNKS)
    spark: Any = session_at(master, "icefloe cluster test", SPECULATION)
    rain = weather()["rain"]

    loaded = spark.read.format("icechunk").options(path=folder, maxPartitionBytes="4k").load()
    assert loaded.selectExpr("sum(rain)").collect()[0][0] == int(rain.astype("i8").sum())
    asked = sql(spark, "SELECT sum(rain) FROM w WHERE lat > 50", {"w": folder}).collect()[0][0]
    assert asked == int(rain.sel(lat=slice(None, 51)).astype("i8").sum())
    sums = scan(spark, folder, partition_bytes=1).aggregate(by=["month(time)"], rain="sum").collect()
    assert sum(row["rain"] for row in sums) == int(rain.astype("i8").sum())

    rows = scan(spark, folder, partition_bytes=4096).select("time", "lat", "lon", "rain").to_df()
    changed = rows.mapInArrow(slow_once, rows.schema).selectExpr(
        "time", "lat", "lon", "cast(rain + 1 AS smallint) AS rain"
    )
    for _ in range(2):
        write(changed, folder, txn_app_id="cluster", txn_version=1)
    spark.stop()

    found = opened(repo.readonly_session("main"))["rain"]
    assert (found.values == rain.values + 1).all()
    assert len(list(repo.ancestry(branch="main"))) == 3
    print("all well")  # noqa: T201 - the test looks for it


if __name__ == "__main__":
    main(*sys.argv[1:])
