"""Run a job on a cluster that reads, queries, aggregates and writes, with one slow first attempt.

python -m tests.support.spark.cluster_job MASTER FOLDER      prints "all well" at the end
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import icefloe
from icefloe.spark import QUICK_START, register, scan, session_at, sql, write
from tests.support.spark.weather import CHUNKS, opened, repository, weather

SEL = '{"lat": 60}'
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executor.memory": "512m",
}
QUICK = {**QUICK_START, "spark.executor.extraJavaOptions": QUICK_START["spark.driver.extraJavaOptions"]}


def slow_once(attempts: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sleep in the first attempt of one task, so that Spark starts a second one. Each leaves a trace."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0:
        (Path(attempts) / str(context.attemptNumber())).touch()
        if context.attemptNumber() == 0:
            time.sleep(15)
    return batches


def session(master: str) -> Any:
    """Start a classic session, or a Spark Connect client if the URL is that of a Connect server."""
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    return session_at(master, "icefloe cluster test", {**SPECULATION, **QUICK})


def follow(spark: Any, repo: icefloe.Repository, folder: str) -> None:
    """Use a view, a procedure, statements, and a stream from the repository into another one."""
    register(spark, w=folder)
    for value in (1, -1):
        sql(spark, f"UPDATE w SET rain = rain + {value}S WHERE lat = 60", {"w": folder})
    assert spark.sql("SELECT sum(rain) FROM w").collect()[0][0] == int(weather()["rain"].astype("i8").sum())
    spark.sql("SELECT * FROM icefloe_tag('w', 'done')").collect()
    assert repo.list_tags() == {"done"}

    copy, checkpoint = (str(Path(folder).with_name(name)) for name in ("copy", "checkpoint"))
    rows = spark.readStream.format("icechunk").options(path=folder, grain="rows", variables="rain").load()
    sink = rows.drop("_change").writeStream.format("icechunk").outputMode("append")
    sink = sink.options(path=copy, create="true", dims="time,lat,lon", checkpointLocation=checkpoint)
    sink.trigger(availableNow=True).start().awaitTermination()
    session = icefloe.Repository.open(icefloe.local_filesystem_storage(copy)).readonly_session("main")
    written = opened(session)["rain"].sel(weather()["rain"].coords)
    np.testing.assert_array_equal(written.values, weather()["rain"].values)


def main(master: str, folder: str) -> None:
    """Run all steps once and compare the results."""
    repo = repository(weather(), icefloe.local_filesystem_storage(folder), CHUNKS)
    spark = session(master)
    rain = weather()["rain"]

    loaded = spark.read.format("icechunk").options(path=folder, maxPartitionBytes="4k").load()
    assert loaded.selectExpr("sum(rain)").collect()[0][0] == int(rain.astype("i8").sum())
    asked = sql(spark, "SELECT sum(rain) FROM w WHERE lat > 50", {"w": folder}).collect()[0][0]
    assert asked == int(rain.sel(lat=slice(None, 51)).astype("i8").sum())
    mean = sql(spark, "SELECT month(time) AS m, sum(rain) AS r FROM w GROUP BY 1", {"w": folder}).collect()
    assert sum(row["r"] for row in mean) == int(rain.astype("i8").sum())
    spark.sql(f"CREATE TEMPORARY VIEW cells USING icechunk OPTIONS (path '{folder}', sel '{SEL}')")
    assert spark.sql("SELECT count(*) FROM cells").collect()[0][0] == int(rain.sel(lat=60).size)
    sums = scan(spark, folder, partition_bytes=1).aggregate(by=["month(time)"], rain="sum").collect()
    assert sum(row["rain"] for row in sums) == int(rain.astype("i8").sum())

    rows = scan(spark, folder, partition_bytes=4096).select("time", "lat", "lon", "rain").to_df()
    attempts = Path(folder).with_name("attempts")
    attempts.mkdir()
    changed = rows.mapInArrow(partial(slow_once, str(attempts)), rows.schema).selectExpr(
        "time", "lat", "lon", "cast(rain + 1 AS smallint) AS rain"
    )
    for _ in range(2):
        write(changed, folder, txn_app_id="cluster", txn_version=1)
    back = scan(spark, folder).select("time", "lat", "lon", "rain").to_df()
    options = {"path": folder, "txnAppId": "plain", "txnVersion": "1", "commitMessage": "as it was"}
    for _ in range(2):
        fewer = back.selectExpr("time", "lat", "lon", "cast(rain - 1 AS smallint) AS rain").coalesce(1)
        fewer.write.format("icechunk").mode("append").options(**options).save()
    follow(spark, repo, folder)
    spark.stop()

    after = opened(repo.readonly_session("main"))["rain"]
    assert (after.values == rain.values).all()
    assert len(list(repo.ancestry(branch="main"))) == 6
    print("all well")  # noqa: T201 - the test looks for it


if __name__ == "__main__":
    main(*sys.argv[1:])
