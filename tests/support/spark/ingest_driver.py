"""A driver that runs the jobs of `tests.support.ingest.fault_jobs` that its input names.

python -m tests.support.spark.ingest_driver MASTER [NAME=VALUE ...]

Says "ready" when Spark runs, and after each order, a line of JSON, a line of JSON: what the command line
would have said of an error, or nothing.
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
    """What a worker loads before it can do anything of this kind."""
    names = (
        "icefloe.ingest.job",
        "icefloe.ingest.rewrite.rechunk",
        "icefloe.virtual.parsers.hdf5.file",
        "h5netcdf",
    )
    return len([importlib.import_module(name) for name in names])


def main(master: str, *settings: str) -> None:
    """Work until the input ends."""
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
    """To whoever gave the order."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
