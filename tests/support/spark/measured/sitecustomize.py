"""Let the Python workers of Spark save their coverage after each task, because Spark kills them in the end.

`make coverage` puts this folder on `PYTHONPATH`, so that every process imports this module when it starts.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any


def measure_worker() -> None:
    """Wrap the function that a worker, which the daemon just forked, calls for each task."""
    words = sys.argv[1:]
    module: Any = importlib.import_module(
        words[0] if words and words[0].startswith("pyspark") else "pyspark.worker"
    )
    run_task: Any = module.main

    @functools.wraps(run_task)
    def run_and_save(*args: Any) -> Any:
        try:
            return run_task(*args)
        finally:
            measurement = importlib.import_module("coverage").Coverage.current()
            if measurement is not None:
                measurement.save()

    module.main = run_and_save


if "pyspark.daemon" in sys.orig_argv:
    os.register_at_fork(after_in_child=measure_worker)
