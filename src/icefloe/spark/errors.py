"""Turn errors of Spark into errors of icefloe: one sentence, without pages of Java."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from icefloe import errors

if TYPE_CHECKING:
    pass
from icefloe.errors import ErrorKind, IcechunkError

_OURS: Final = re.compile(r"icefloe\.[\w.]*?(\w+Error): (.*?)(?:\nkind: ([\w-]+))?(?:\n|$)", re.DOTALL)


@contextmanager
def plain_errors() -> Iterator[None]:
    """An error of ours that Spark brings home, with pages of Java around it, is raised as it was."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        kind = getattr(errors, found[1], errors.IcechunkError)
        raise kind(found[2], kind=found[3]) from None


@contextmanager
def quiet_errors() -> Iterator[None]:
    """What Spark refuses is raised and no more: PySpark would also log it, with all calls of the JVM."""
    here = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != here

    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    for logger in loggers:
        logger.addFilter(of_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(of_others)


_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_DIED = re.compile(
    r"Python worker (?:exited|failed)|ExecutorLostFailure|Executor(?:Exited)? heartbeat|SIGKILL"
)
_GONE = re.compile(r"SparkContext was shut ?down|stopped SparkContext|Connection refused|Answer from Java")
_OTHER_PYTHON = re.compile(r"Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)")
_CAUSE = re.compile(r"Caused by: (?:[\w.$]+: )?(.+)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\).*?(?=\n\tat |\Z)", re.DOTALL)
_RAISED = re.compile(r"^([\w.]+: .+)", re.MULTILINE)
"""The last line of a traceback of Python."""
_MOST = 200


@contextmanager
def told_failures() -> Iterator[None]:
    """Make a sentence of what Spark raises; where it came from stays in the cause."""
    try:
        yield
    except IcechunkError:
        raise
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise IcechunkError(_sentence(error), kind=ErrorKind.CONCURRENCY) from error


def _is_of_spark(error: Exception) -> bool:
    """Whether it tells of Spark, or of the way to it; that of a Connect client has no py4j."""
    known = isinstance(error, PySparkException | ConnectionError | EOFError)
    return known or type(error).__module__.partition(".")[0] in {"py4j", "grpc"}


def _sentence(error: Exception) -> str:
    text = str(getattr(error, "java_exception", None) or error)
    is_network = isinstance(error, ConnectionError | EOFError) or "Network" in type(error).__name__
    if is_network or _GONE.search(text):
        return "the connection to Spark was lost, its driver or its master has ended: run this again"
    if _DIED.search(text):
        return (
            "a worker of Spark died again and again, killed or out of memory: "
            "give tasks less to hold or workers more memory, and run this again"
        )
    if versions := _OTHER_PYTHON.search(text):
        worker, driver = versions.groups()
        return (
            f"the workers of Spark run Python {worker} and the driver {driver}: set PYSPARK_PYTHON to an "
            "interpreter like that of the driver, and run this again"
        )
    traceback = _TRACEBACK.search(text)
    causes = (_RAISED if traceback else _CAUSE).findall(traceback[0] if traceback else text)
    line = (causes[-1] if causes else text.strip().splitlines()[0]).strip()
    return f"Spark gave up: {line[:_MOST]}; when that is mended, run this again"
