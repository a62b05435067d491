"""An `Executor` that runs tasks on a Spark cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from icefloe._internal.concurrency import give_back_large_buffers
from icefloe._internal.executor import Executor, Progress, Task
from icefloe.spark.errors import translate_failures
from icefloe.spark.progress import describe_jobs, is_client, watch_stages
from icefloe.spark.run_sql import run_query
from icefloe.spark.task_frames import map_in_arrow
from icefloe.spark.worker import cloudpickle, freeze_modules, pack_outcome, unpack_outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_SCHEMA = "number long, result binary"

_SHOWN_ROWS = 5


class SparkExecutor(Executor):
    """An executor that runs tasks on a Spark cluster, through the classic API or Spark Connect.

    The function, the items and the results are pickled and should be small. Modules that the function needs
    must be installed on the Spark executors. If an executor is lost or slow, Spark may run an item twice; it
    uses only one of the results. The exception of the first failed item is raised on the driver. Unlike with
    threads, all results arrive at once.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    tasks
        Maximum number of Spark tasks, each of which runs several items. Determined by the `Task` by default.
        A Spark task costs about 0.1 s of CPU time, so give it a few seconds of work.
    progress
        Called twice a second with Spark's status, which Spark Connect does not provide.
    title
        Name of the jobs in Spark's web UI.
    """

    has_sql = True

    def __init__(
        self,
        spark: SparkSession,
        tasks: int | None = None,
        progress: Progress | None = None,
        title: str | None = None,
    ) -> None:
        if tasks is not None and tasks < 1:
            raise ValueError(f"tasks must be at least 1, not {tasks}")
        self._spark = spark
        self._tasks = tasks
        self.progress = progress
        self._title = title

    @property
    def parallelism(self) -> int:  # type: ignore[override]
        """The number of tasks that Spark can run concurrently."""
        try:
            return max(1, int(self._spark.sparkContext.defaultParallelism))
        except (AttributeError, NotImplementedError):
            return 2  # Spark Connect does not expose this number

    def map(self, task: Task[T, R], items: Iterable[T], /) -> Iterator[R]:
        # docstring inherited
        pickled_items = [cloudpickle.dumps(item) for item in items]
        if not pickled_items:
            return
        tasks = self._spark_tasks(task, len(pickled_items))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _run(task.run, pickled_items, batches)

        with translate_failures():
            numbers: Any = self._spark.range(0, len(pickled_items), 1, tasks)
        results = map_in_arrow(numbers, run, _SCHEMA)
        # Collect the DataFrame only once: Spark would repeat the work each time it is used.
        named = nullcontext() if self._title is None else describe_jobs(self._spark, self._title)
        with translate_failures(), self._watch(task.label, tasks, len(pickled_items)), named:
            rows = results.collect()
        for row in sorted(rows, key=lambda row: int(row["number"])):
            yield unpack_outcome(row["result"])

    def query(self, sql: str, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        # docstring inherited
        return run_query(self._spark, sql, tables, _SHOWN_ROWS)[1]

    def _spark_tasks(self, task: Task[T, R], items: int) -> int:
        if self._tasks is not None:
            return min(self._tasks, items)
        if task.per_core is None:
            return items
        by_size = items // (task.items_per_task or items)
        return min(items, max(task.per_core * self.parallelism, by_size))

    @contextmanager
    def _watch(self, label: str, tasks: int, items: int) -> Iterator[None]:
        """Report the number of finished items, estimated from the share of finished Spark tasks."""
        progress = self.progress

        def report(done: int, _: int) -> None:
            if progress is not None:
                progress(label, items * min(tasks, done) // tasks, items)

        with watch_stages(self._spark, report if progress is not None else None):
            yield
        if progress is not None and not is_client(self._spark):
            progress(label, items, items)


def _run(
    function: Callable[[Any], Any], pickled_items: Sequence[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the items whose numbers arrive in the batches, inside a Spark task."""
    give_back_large_buffers()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = pack_outcome(partial(_run_item, function, pickled_items[number]))
            yield pa.RecordBatch.from_pydict(
                {"number": [number], "result": [result]},
                schema=pa.schema([("number", pa.int64()), ("result", pa.binary())]),
            )
    freeze_modules()


def _run_item(function: Callable[[Any], Any], pickled_item: bytes) -> Any:
    return function(pickle.loads(pickled_item))
