"""Answers to queries as plain rows, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.spark.dataframe import plain_errors
from icefloe.spark.progress import watch_stages
from icefloe.spark.run_sql import sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = tuple[list[str], list[tuple[Any, ...]]]
"""The names of the columns, and rows."""


def answered(
    spark: SparkSession,
    query: str,
    repos: Mapping[str, Any],
    limit: int,
    progress: Callable[[int, int], None] | None = None,
) -> Rows:
    """The names of the columns, and so many rows at most; what Spark refuses is one sentence.

    `progress` is told how many tasks are done, of how many that are known so far.
    """
    try:
        with plain_errors(), watch_stages(spark, progress):
            frame = sql(spark, query, repos)
            return list(frame.columns), [tuple(row) for row in frame.limit(limit).collect()]
    except PySparkException as error:
        sentence = str(error).strip().splitlines()[0]
        raise InvalidInputError(f"Spark refuses the query: {sentence}", kind=ErrorKind.NOT_ALLOWED) from None
