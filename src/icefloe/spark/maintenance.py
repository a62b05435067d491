"""Run repository maintenance on Spark: executors read, copy and decode, and the driver moves refs and deletes
objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe._internal.table import Table
from icefloe.query.options import describe_location, refuse_memory
from icefloe.repository import Repository
from icefloe.spark.executor import SparkExecutor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["on_spark", "to_dataframe"]

_TASKS_PER_CORE = 4


def on_spark(spark: SparkSession, repo: Repository, *, tasks: int | None = None) -> Repository:
    """Return a repository whose maintenance methods run on Spark: executors read, copy and decode.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    repo
        A repository in storage that the executors can reach.
    tasks
        Maximum number of tasks per step. Four per core by default; a task costs about 0.1 s.

    Returns
    -------
    Repository
        The same repository, whose methods `garbage_collect`, `verify`, `clone_to` and the like use Spark.

    Raises
    ------
    InvalidInputError
        If the repository is in-memory.

    Examples
    --------
    >>> report = on_spark(spark, repo).verify("chunks")  # doctest: +SKIP
    """
    refuse_memory(repo)
    cores = int(spark.sparkContext.defaultParallelism)
    title = f"maintenance of {describe_location(repo)}"
    return repo.with_executor(SparkExecutor(spark, tasks or _TASKS_PER_CORE * cores, title=title))


def to_dataframe(spark: SparkSession, table: Table) -> DataFrame:
    """Convert the table returned by a maintenance method, such as `Repository.find_garbage`, to a Spark
    DataFrame.

    Parameters
    ----------
    spark
        The session in which to create the DataFrame.
    table
        A table returned by a `Repository` method.

    Returns
    -------
    DataFrame
        The same rows. Times are timestamps, which Spark displays in the session time zone.
    """
    session: Any = spark
    frame: DataFrame = session.createDataFrame(table.to_arrow())
    return frame
