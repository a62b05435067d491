"""Run the jobs of `tests.support.ingest.fault_jobs` that are named on standard input.

python -m tests.support.spark.ingest_driver MASTER [NAME=VALUE ...]

Prints "ready" when Spark runs. Each job is a line of JSON; the reply is a line of JSON with the error message
that the command line would print, or null.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from icefloe._internal.executor import Task
from icefloe.cli.errors import explain
from icefloe.spark import session_at
from icefloe.spark.executor import SparkExecutor
from tests.support.ingest.fault_jobs import JOBS
from tests.support.spark.cluster_job import QUICK


def warm(_: int) -> int:
    """Import the modules that a worker needs for these jobs."""
    names = (
        "icefloe.ingest.job",
        "icefloe.ingest.rechunk_job",
        "icefloe.virtual.parsers.hdf5.file",
        "h5netcdf",
    )
    return len([importlib.import_module(name) for name in names])


def main(master: str, *settings: str) -> None:
    """Run jobs until the input ends."""
    warnings.simplefilter("ignore")
    pairs = dict(each.split("=", 1) for each in settings)
    spark: Any = session_at(
        master, "icefloe ingest faults", {**QUICK, "spark.executor.memory": "512m", **pairs}
    )
    list(SparkExecutor(spark).map(Task(warm, "warm-ups"), range(4)))
    executor = SparkExecutor(spark)
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            JOBS[order["job"]].run(Path(order["folder"]), order["files"], executor, order["on_change"])
        except Exception as error:  # noqa: BLE001 - whatever it is, a sentence is made of it
            say(json.dumps(explain(error)[0]))
        else:
            say("null")


def say(line: str) -> None:
    """Print a reply."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
