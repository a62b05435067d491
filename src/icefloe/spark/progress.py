"""The progress of Spark jobs, from Spark's status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTERVAL_S = 0.5


@contextmanager
def watch_stages(spark: SparkSession, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report how many tasks are done, of all that are known; their number grows when a stage begins."""
    context = getattr(spark, "_sc", None)
    if progress is None or context is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        sizes: dict[int, int] = {}
        while not over.wait(_INTERVAL_S):
            try:
                active = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
            except Exception:  # noqa: BLE001 - Spark is gone, which the other thread reports
                return
            sizes |= {stage: info.numTasks for stage, info in active.items() if info}
            left = sum(info.numTasks - info.numCompletedTasks for info in active.values() if info)
            progress(sum(sizes.values()) - left, sum(sizes.values()))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
