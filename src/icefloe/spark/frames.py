"""Frames whose rows are made by tasks of ours, over the classic API and over Spark Connect alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.spark.worker import VERSION, check_version, readable_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[[int], Iterator[pa.RecordBatch]]


def frame_of(spark: SparkSession, tasks: int, read: Read, ddl: str, title: str) -> DataFrame:
    """A frame with the rows that `read` gives for the numbers of so many tasks.

    The function is pickled with all it holds. Spark's pages show the title where the plan is drawn.
    """
    if not tasks:
        return spark.createDataFrame([], ddl)
    driver = VERSION

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with readable_errors():
            check_version(driver)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(number)

    run.__name__ = run.__qualname__ = title
    numbers: Any = spark.range(0, tasks, 1, tasks)
    return map_in_arrow(numbers, run, ddl)


def map_in_arrow(frame: Any, function: Any, ddl: str) -> DataFrame:
    """`DataFrame.mapInArrow` without its warning."""
    with warnings.catch_warnings():
        # Arrow batches never become pandas frames here, whatever its version.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        mapped: DataFrame = frame.mapInArrow(function, ddl)
    return mapped
