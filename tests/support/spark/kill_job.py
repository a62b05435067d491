"""Run a repeatable job of many writes while workers and executors are killed at random times.

python -m tests.support.spark.kill_job MASTER FOLDER HOW WRITES     prints "all well" at the end

HOW is write or save. Each write changes a third of the cells and has its own key.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.spark import session_at, write
from tests.support.spark.fault_job import SETTINGS, kill_one, slowly
from tests.support.spark.weather import weather

LONGEST_WAIT_S = 3.0


def changed(spark: Any, number: int) -> Any:
    """Create the rows of one write."""
    days, lats, lons = weather()["rain"].shape
    cells = spark.range(0, days * lats * lons, 1, 4).where(f"(id * 7 + {number}) % 3 = 0")
    return cells.selectExpr(
        f"TIMESTAMP_NTZ '2019-12-28' + make_dt_interval(cast(id AS int) div {lats * lons}) AS time",
        f"cast(60 - 5 * (id div {lons} % {lats}) AS double) AS lat",
        f"id % {lons} * 2.5D AS lon",
        f"cast((id + {number} * 37) % 30000 AS smallint) AS rain",
    )


def after(writes: int) -> NDArray[Any]:
    """Return the expected values after all writes."""
    rain = weather()["rain"].values.copy()
    ids = np.arange(rain.size).reshape(rain.shape)
    for number in range(writes):
        chosen = (ids * 7 + number) % 3 == 0
        rain[chosen] = ((ids + number * 37) % 30000)[chosen]
    return rain


def kill_later(traces: Path, victim: str, wait_s: float) -> None:
    """Kill a worker or executor some time after its first rows, if it is still running."""
    while not any(traces.iterdir()):
        time.sleep(0.02)
    time.sleep(wait_s)
    try:
        kill_one(traces, victim)
    except (FileNotFoundError, ProcessLookupError):
        return  # it had already ended


def main(master: str, folder: str, how: str, writes: str) -> None:
    """Write, whatever happens."""
    spark: Any = session_at(master, "icefloe kill test", SETTINGS)
    chance = random.Random()
    for number in range(int(writes)):
        traces = Path(folder).with_name("traces") / f"{os.getpid()}-{number}"
        traces.mkdir(parents=True)
        frame = changed(spark, number)
        rows = frame.mapInArrow(partial(slowly, str(traces)), frame.schema)
        victim = chance.choice(["", "worker", "executor"])
        if victim:
            wait_s = chance.uniform(0, LONGEST_WAIT_S)
            threading.Thread(target=kill_later, args=(traces, victim, wait_s), daemon=True).start()
        if how == "write":
            write(rows, folder, txn_app_id="kills", txn_version=number)
        else:
            options = {"path": folder, "txnAppId": "kills", "txnVersion": str(number)}
            rows.write.format("icechunk").mode("append").options(**options).save()
    spark.stop()
    print("all well")  # noqa: T201 - the test looks for it


if __name__ == "__main__":
    main(*sys.argv[1:])
