"""Spark DataFrames whose rows are computed by icefloe's Python tasks.

This works with classic sessions and with Spark Connect.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from icefloe.spark.progress import OWN, is_client
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Read = Callable[[int], Iterator[pa.RecordBatch]]


def make_frame(spark: SparkSession, tasks: int, read: Read, ddl: str, title: str) -> DataFrame:
    """Create a Spark DataFrame whose rows are computed by icefloe tasks. `read` returns the rows of one task.

    The function is pickled with its arguments. Spark's web UI shows `title` in the query plan.
    """
    driver = VERSION

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_tracebacks():
            check_version(driver)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(number)

    run.__name__ = run.__qualname__ = OWN + title
    numbers: Any = spark.range(0, tasks, 1, max(tasks, 1))
    return map_in_arrow(numbers, run, ddl)


def count_slots(spark: SparkSession) -> int:
    """Return the number of Spark tasks that can run concurrently. For Spark Connect, it is an estimate."""
    return _SLOTS if is_client(spark) else int(spark.sparkContext.defaultParallelism)


_SLOTS: Final = 8


def convert_schema(schema: StructType) -> pa.Schema:
    """Convert the schema of a Spark DataFrame to the Arrow schema that tasks receive."""
    # Spark releases before 4.2 lack this argument and assume UTC.
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def map_in_arrow(frame: Any, function: Any, ddl: str) -> DataFrame:
    """Call Spark's `DataFrame.mapInArrow`, suppressing its warning about the pandas version."""
    with warnings.catch_warnings():
        # Arrow batches are never converted to pandas here, so the version of pandas does not matter.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped: DataFrame = frame.mapInArrow(function, ddl)
    return mapped
