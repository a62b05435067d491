"""Data frames whose rows come from tasks of ours, and the Spark jobs that compute them.

Everything works with classic sessions and with Spark Connect.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Read = Callable[[int], Iterator[pa.RecordBatch]]


def make_frame(spark: SparkSession, tasks: int, read: Read, ddl: str, title: str) -> DataFrame:
    """Make a data frame of the rows that `read` returns for the numbers 0 to `tasks` - 1.

    The function is pickled with its arguments. Spark's pages show the title in the plan.
    """
    driver = VERSION

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_tracebacks():
            check_version(driver)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(number)

    run.__name__ = run.__qualname__ = _OWN + title
    numbers: Any = spark.range(0, tasks, 1, max(tasks, 1))
    return map_in_arrow(numbers, run, ddl)


def count_slots(spark: SparkSession) -> int:
    """Count the tasks that run at the same time. Clients of Spark Connect get an estimate."""
    return _SLOTS if is_client(spark) else int(spark.sparkContext.defaultParallelism)


_SLOTS: Final = 8


def is_client(spark: SparkSession) -> bool:
    """Check whether a session is one of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")


def convert_schema(schema: StructType) -> pa.Schema:
    """Convert the schema of a data frame to Arrow, as tasks receive it."""
    # Releases before 4.2 do not have the argument, and assume UTC.
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def map_in_arrow(frame: Any, function: Any, ddl: str) -> DataFrame:
    """Call `DataFrame.mapInArrow` without its warning about pandas."""
    with warnings.catch_warnings():
        # Arrow batches never become pandas frames here, whatever its version.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped: DataFrame = frame.mapInArrow(function, ddl)
    return mapped


_DESCRIPTION: Final = "spark.job.description"
_SWITCH: Final = "spark.icefloe.jobDescriptions"
_OWN: Final = "icefloe "
"""Prefix of our job descriptions."""


@contextmanager
def describe_jobs(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs in this block on Spark's pages, after the user's own description.

    Spark Connect does not support descriptions.
    """
    context = _get_context(spark)
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(_OWN + text if _is_free(before) else f"{before}: {_OWN}{text}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def describe_next_jobs(spark: SparkSession, titles: Iterable[str]) -> None:
    """Describe the next jobs of this thread, which run when a data frame is used.

    The description stays until the next frame of ours or until the user sets one. The user's is never
    replaced.
    """
    context = _get_context(spark)
    if context is None or not _is_free(context.getLocalProperty(_DESCRIPTION)):
        return
    if str(spark.conf.get(_SWITCH, "true")).lower() == "true":
        context.setJobDescription(_OWN + "; ".join(dict.fromkeys(titles)))


def _get_context(spark: SparkSession) -> Any:
    return None if is_client(spark) else spark.sparkContext


def _is_free(description: str | None) -> bool:
    return description is None or description.startswith(_OWN)


_INTERVAL_S = 0.5


@contextmanager
def watch_stages(spark: SparkSession, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report the number of finished tasks and of all known tasks, which grows when a stage begins."""
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
