"""Run a job that writes slowly, so that its processes can be killed meanwhile.

python -m tests.support.spark.fault_job MASTER FOLDER HOW [VICTIM ...]     prints "all well" at the end

HOW is write or save. The job kills one worker or executor for each VICTIM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from icefloe.spark import scan, session_at, write
from tests.support.spark.cluster_job import QUICK

SETTINGS = {
    **QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "40",
}


def slowly(traces: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and leave a trace of the process that has them."""
    for batch in batches:
        (Path(traces) / str(os.getpid())).touch()
        time.sleep(0.3)
        yield batch


def parent_of(process: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def kill_one(traces: Path, victim: str) -> None:
    """Wait until a worker of this job has rows, and kill it or its executor."""
    while not (seen := sorted(traces.iterdir(), key=lambda trace: trace.stat().st_mtime)):
        time.sleep(0.05)
    worker = int(seen[-1].name)
    os.kill(worker if victim == "worker" else parent_of(parent_of(worker)), signal.SIGKILL)


def main(master: str, folder: str, how: str, *victims: str) -> None:
    """Add one to all values while processes are killed."""
    spark: Any = session_at(master, "icefloe fault test", SETTINGS)
    traces = Path(folder).with_name("traces")
    for number, victim in enumerate(victims or ("",)):
        mine = traces / f"{os.getpid()}-{number}"
        mine.mkdir(parents=True)
        rows = scan(spark, folder, partition_bytes=4096, snapshot_id=base(folder))
        frame = rows.select("time", "lat", "lon", "rain").to_df()
        slow = frame.mapInArrow(partial(slowly, str(mine)), frame.schema)
        changed = slow.selectExpr("time", "lat", "lon", f"cast(rain + {number + 1} AS smallint) AS rain")
        killer = threading.Thread(target=kill_one, args=(mine, victim), daemon=True)
        if victim:
            killer.start()
        if how == "write":
            write(changed, folder, txn_app_id="faults", txn_version=number)
        else:
            options = {"path": folder, "txnAppId": "faults", "txnVersion": str(number)}
            changed.write.format("icechunk").mode("append").options(**options).save()
        if victim:
            killer.join()
    spark.stop()
    print("all well")  # noqa: T201 - the test looks for it


def base(folder: str) -> str:
    """Return the snapshot with which the test began."""
    return Path(folder).with_name("base").read_text()


if __name__ == "__main__":
    main(*sys.argv[1:])
