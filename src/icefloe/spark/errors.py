"""Convert Spark errors to icefloe errors with a one-sentence message instead of a Java stack trace."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger

from icefloe import errors
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.query.spark_types import quote_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS: Final = re.compile(r"icefloe\.[\w.]*?(\w+Error): (.*?)(?:\nkind: ([\w-]+))?(?:\n|$)", re.DOTALL)

_VIEW: Final = re.compile(r"EXPECT_TABLE_NOT_VIEW.*'INSERT' expects a table but `([^`]+)` is a view")


@contextmanager
def unwrap_errors() -> Iterator[None]:
    """Re-raise icefloe errors that Spark wrapped in a Java stack trace within the `with` block."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        kind = getattr(errors, found[1], errors.IcechunkError)
        raise kind(found[2], kind=found[3]) from None


@contextmanager
def name_write_view(spark: SparkSession) -> Iterator[None]:
    """Convert Spark's error for INSERT INTO a read-only view to an error that names the view that accepts
    rows.
    """
    try:
        yield
    except AnalysisException as error:
        found = _VIEW.search(str(error))
        if found is None or not spark.catalog.tableExists(quote_name(f"{found[1]}_write")):
            raise
        raise InvalidInputError(
            f"{found[1]} is a view, which accepts no rows; use INSERT INTO {found[1]}_write, or pass the"
            " repository to icefloe.spark.sql by name",
            kind=ErrorKind.NOT_ALLOWED,
        ) from None


@contextmanager
def mute_query_logs() -> Iterator[None]:
    """Keep PySpark from logging the errors of this thread, because it also raises them."""
    here = threading.get_ident()

    def is_from_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != here

    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    for logger in loggers:
        logger.addFilter(is_from_other_thread)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_from_other_thread)


_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_DIED = re.compile(
    r"Python worker (?:exited|failed)|ExecutorLostFailure|Executor(?:Exited)? heartbeat|SIGKILL"
)
_GONE = re.compile(r"SparkContext was shut ?down|stopped SparkContext|Connection refused|Answer from Java")
_OTHER_PYTHON = re.compile(r"Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)")
_CAUSE = re.compile(r"Caused by: (?:[\w.$]+: )?(.+)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\).*?(?=\n\tat |\Z)", re.DOTALL)
_RAISED = re.compile(r"^([\w.]+: .+)", re.MULTILINE)
"""Matches the last line of a Python traceback, which contains the error message."""
_MAX_CHARACTERS = 200


@contextmanager
def translate_failures() -> Iterator[None]:
    """Convert Spark errors within the `with` block to one-sentence icefloe errors, keeping the original error
    as the cause.
    """
    try:
        yield
    except IcechunkError:
        raise
    except Exception as error:
        if not _is_spark_error(error):
            raise
        raise IcechunkError(_describe(error), kind=ErrorKind.CONCURRENCY) from error


def _is_spark_error(error: Exception) -> bool:
    """Return True if an error comes from Spark or from the connection to it. Spark Connect clients may lack
    py4j."""
    known = isinstance(error, PySparkException | ConnectionError | EOFError)
    return known or type(error).__module__.partition(".")[0] in {"py4j", "grpc"}


def _describe(error: Exception) -> str:
    text = str(getattr(error, "java_exception", None) or error)
    is_network = isinstance(error, ConnectionError | EOFError) or "Network" in type(error).__name__
    if is_network or _GONE.search(text):
        return "the connection to Spark was lost, because its driver or master has ended: run this again"
    if _DIED.search(text):
        return (
            "Spark workers died repeatedly, probably because they ran out of memory: "
            "reduce the memory per task or give workers more memory, and run this again"
        )
    if versions := _OTHER_PYTHON.search(text):
        worker, driver = versions.groups()
        return (
            f"the workers of Spark run Python {worker} and the driver {driver}: set PYSPARK_PYTHON to an "
            "interpreter of the same version, and run this again"
        )
    traceback = _TRACEBACK.search(text)
    causes = (_RAISED if traceback else _CAUSE).findall(traceback[0] if traceback else text)
    line = (causes[-1] if causes else text.strip().splitlines()[0]).strip()
    return f"Spark failed: {line[:_MAX_CHARACTERS]}; fix the cause and run this again"
