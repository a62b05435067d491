"""Run maintenance on Spark: executors read, copy and decode, and the driver moves refs and deletes
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
    """Return the repository with maintenance on Spark: executors read, copy and decode.

    Parameters
    ----------
    spark
        The session that runs the tasks.
    repo
        A repository in a storage that the executors can reach.
    tasks
        Largest number of tasks per step. By default four per core; a task costs about 0.1 s.

    Returns
    -------
    Repository
        The same repository. Its methods `garbage_collect`, `verify`, `clone_to` and the like use Spark.

    Raises
    ------
    InvalidInputError
        If the repository is in the memory of this process.

    Examples
    --------
    >>> report = on_spark(spark, repo).verify("chunks")  # doctest: +SKIP
    """
    refuse_memory(repo)
    cores = int(spark.sparkContext.defaultParallelism)
    title = f"maintenance of {describe_location(repo)}"
    return repo.with_executor(SparkExecutor(spark, tasks or _TASKS_PER_CORE * cores, title=title))


def to_dataframe(spark: SparkSession, table: Table) -> DataFrame:
    """Convert a table that a maintenance method returned, such as `Repository.find_garbage`, to a Spark data
    frame.

    Parameters
    ----------
    spark
        The session of the data frame.
    table
        A table that a method of `Repository` returned.

    Returns
    -------
    DataFrame
        The same rows. Times are instants, shown in the time zone of the Spark session.
    """
    session: Any = spark
    frame: DataFrame = session.createDataFrame(table.to_arrow())
    return frame
