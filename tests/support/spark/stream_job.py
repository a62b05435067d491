"""Write a stream of files into a repository, one batch per file, until all are written.

python -m tests.support.spark.stream_job MASTER FOLDER     prints "all well" at the end

The files are in the folder `rows` beside FOLDER, the checkpoint in the folder `checkpoint`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.spark import session_at
from tests.support.spark.fault_job import SETTINGS

STATIONS = 3
STEPS = 2


def write_files(folder: Path, number: int) -> NDArray[Any]:
    """Create the files of a stream. Return the expected values of all stations by time."""
    folder.mkdir()
    values = np.arange(number * STEPS * STATIONS, dtype=float).reshape(-1, STATIONS)
    for batch in range(number):
        rows = [
            {"step": step, "station": station, "v": values[step, station]}
            for step in range(batch * STEPS, (batch + 1) * STEPS)
            for station in range(STATIONS)
        ]
        path = folder / f"{batch:04}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1e9 + batch, 1e9 + batch))  # Spark reads files in the order of their times
    return values


def main(master: str, folder: str) -> None:
    """Write all files, whatever happens."""
    spark: Any = session_at(master, "icefloe stream kill test", SETTINGS)
    files = spark.readStream.schema("step int, station long, v double").option("maxFilesPerTrigger", 1)
    time = "TIMESTAMP_NTZ '2024-01-01' + make_dt_interval(step) AS time"
    rows = files.json(str(Path(folder).with_name("rows"))).selectExpr(time, "station", "v")
    options = {"path": folder, "create": "true", "dims": "time,station"}
    writing = rows.writeStream.format("icechunk").options(**options)
    checkpoint = str(Path(folder).with_name("checkpoint"))
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()
    print("all well")  # noqa: T201 - the test looks for it


if __name__ == "__main__":
    main(*sys.argv[1:])
