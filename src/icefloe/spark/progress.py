"""Spark job progress: the number of finished tasks, and job descriptions in Spark's web UI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"
_SWITCH: Final = "spark.icefloe.jobDescriptions"
OWN: Final = "icefloe "
"""The prefix of icefloe's job descriptions."""
_INTERVAL_S = 0.5


@contextmanager
def watch_stages(spark: SparkSession, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Watch the stages of Spark jobs, and report the number of finished tasks and the number of tasks known
    so far.
    """
    context = _get_context(spark)
    if progress is None or context is None:
        yield
        return
    over = threading.Event()

    def poll() -> None:
        tracker = context.statusTracker()
        sizes: dict[int, int] = {}
        while not over.wait(_INTERVAL_S):
            try:
                active = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
            except Exception:  # noqa: BLE001 - Spark has stopped, which the main thread reports
                return
            sizes |= {stage: info.numTasks for stage, info in active.items() if info}
            left = sum(info.numTasks - info.numCompletedTasks for info in active.values() if info)
            progress(sum(sizes.values()) - left, sum(sizes.values()))

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def describe_jobs(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the job description in Spark's web UI for jobs started in this block. If the user
    has set a description, it is kept as a prefix.

    Spark Connect does not support job descriptions.
    """
    context = _get_context(spark)
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(OWN + text if _is_free(before) else f"{before}: {OWN}{text}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def describe_next_jobs(spark: SparkSession, titles: Iterable[str]) -> None:
    """Set the description in Spark's web UI for the next jobs of this thread, which start when a DataFrame is
    used.

    The description stays until icefloe creates another DataFrame or the user sets one. A user's own
    description is never replaced.
    """
    context = _get_context(spark)
    if context is None or not _is_free(context.getLocalProperty(_DESCRIPTION)):
        return
    if str(spark.conf.get(_SWITCH, "true")).lower() == "true":
        context.setJobDescription(OWN + "; ".join(dict.fromkeys(titles)))


def is_client(spark: SparkSession) -> bool:
    """Return True if a Spark session uses Spark Connect, which has a different API for progress."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _get_context(spark: SparkSession) -> Any:
    return None if is_client(spark) else spark.sparkContext


def _is_free(description: str | None) -> bool:
    return description is None or description.startswith(OWN)
