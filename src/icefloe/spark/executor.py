"""A `FanOut` over the executors of a Spark cluster."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
from pyspark import cloudpickle as _cloudpickle

from icefloe._internal.concurrency import give_back_large_buffers
from icefloe.spark.dataframe import described
from icefloe.spark.failures import told_failures
from icefloe.spark.worker import exempt_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

cloudpickle: Any = _cloudpickle
_SCHEMA = "number long, result binary"
_LOOK_EVERY_S = 0.5

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many tasks are done, of how many."""


class SparkFanOut:
    """Applies a function to many items on Spark, over the classic API and over Spark Connect alike.

    The function and the items are pickled, and so are the results: all of them should be small, and forks and
    receipts are. Modules that the function needs must be installed on the executors. Spark may run an item
    twice, when an executor is lost or slow; the result of one run counts.

    An exception in the function is raised here, for the first of the items that failed. Unlike threads, Spark
    gives all its results at once: nothing is known before the last item is done.
    """

    def __init__(
        self,
        spark: SparkSession,
        tasks: int | None = None,
        progress: Progress | None = None,
        title: str | None = None,
    ) -> None:
        """At most so many `tasks`, each with some items in a row; without it, one task per item.

        A task costs about 0.1 s of CPU, so an item should be worth some seconds of work. `progress` is fed
        from Spark's status, twice a second; Spark Connect does not have that. The `title` is what Spark's
        pages call the jobs.
        """
        if tasks is not None and tasks < 1:
            raise ValueError(f"tasks must be at least 1, not {tasks}")
        self._spark = spark
        self._tasks = tasks
        self._progress = progress
        self._title = title

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        orders = [cloudpickle.dumps(item) for item in items]
        if not orders:
            return
        tasks = min(self._tasks or len(orders), len(orders))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _run(function, orders, batches)

        with told_failures():
            numbers: Any = self._spark.range(0, len(orders), 1, tasks)
        with warnings.catch_warnings():
            # Arrow batches never become pandas frames here, whatever its version.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            results = numbers.mapInArrow(run, _SCHEMA)
        # Collected once and used once: Spark would do the work again for every other look at the frame.
        named = nullcontext() if self._title is None else described(self._spark, self._title)
        with told_failures(), _watched(self._spark, tasks, self._progress), named:
            rows = results.collect()
        for row in sorted(rows, key=lambda row: int(row["number"])):
            failed, value = pickle.loads(bytes(row["result"]))
            if failed:
                raise value
            yield value


@contextmanager
def _watched(spark: SparkSession, tasks: int, progress: Progress | None) -> Iterator[None]:
    """Look at Spark's status from a thread, while this one waits for the results of so many tasks."""
    with watched_stages(spark, progress and (lambda done, _: progress(min(tasks, done), tasks))):
        yield
    if progress is not None and getattr(spark, "_sc", None) is not None:
        progress(tasks, tasks)


@contextmanager
def watched_stages(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Tell of all tasks that Spark runs meanwhile; their number grows when a stage begins."""
    context = getattr(spark, "_sc", None)
    if progress is None or context is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        sizes: dict[int, int] = {}
        while not over.wait(_LOOK_EVERY_S):
            try:
                active = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
            except Exception:  # noqa: BLE001 - Spark is gone, which the other thread tells
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


def _run(
    function: Callable[[Any], Any], orders: Sequence[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What an executor does with the numbers of some items."""
    give_back_large_buffers()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict(
                {"number": [number], "result": [_outcome(function, orders[number])]},
                schema=pa.schema([("number", pa.int64()), ("result", pa.binary())]),
            )
    exempt_modules()


def _outcome(function: Callable[[Any], Any], order: bytes) -> bytes:
    """Whether it failed, and the result or the exception.

    An exception goes home as a value: Spark would make text of it, after it had tried some times more.
    """
    try:
        outcome: tuple[bool, Any] = (False, function(pickle.loads(order)))
    except Exception as error:  # noqa: BLE001 - raised again on the driver
        outcome = (True, error)
    try:
        packed: bytes = cloudpickle.dumps(outcome)
        pickle.loads(packed)  # some exceptions are pickled but never come back
    except Exception as error:
        if not outcome[0]:
            raise TypeError(f"the result of a task cannot be pickled: {error}") from error
        packed = cloudpickle.dumps((True, RuntimeError(f"{type(outcome[1]).__name__}: {outcome[1]}")))
    return packed
