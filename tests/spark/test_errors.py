"""Report failures of Spark in one sentence."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.spark.errors import translate_failures

DIED = """Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times, most recent failure: Lost task
3.3 in stage 7.0 (TID 41) (127.0.0.1 executor 1): org.apache.spark.SparkException: Python worker exited
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala)
Caused by: java.io.EOFException
"""
FULL = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2785)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 93, in check
    raise Wrong(
{}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala)
Caused by: java.io.EOFException
"""
OTHER = (
    "a.PySparkRuntimeError: [X] Python in worker has different version: 3.11 than that in driver: 3.13, so"
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PySparkException(DIED), "Spark workers died repeatedly"),
        (
            PySparkException(FULL),
            "Spark failed: No space left on device; fix",
        ),
        (
            PySparkException(WORKER.format("ModuleNotFoundError: no icefloe")),
            "ModuleNotFoundError: no icefloe",
        ),
        (PySparkException(WORKER.format(OTHER)), "run Python 3.11 and the driver 3.13: set PYSPARK_PYTHON"),
        (PySparkException("Job 3 cancelled"), "Spark failed: Job 3 cancelled;"),
        (Py4JNetworkError("Answer from Java side is empty"), "the connection to Spark was lost"),
        (ConnectionRefusedError(111, "Connection refused"), "the connection to Spark was lost"),
    ],
)
def test_failure_message_is_a_single_line(error: Exception, said: str) -> None:
    with pytest.raises(IcechunkError) as caught, translate_failures():
        raise error

    text = str(caught.value)
    assert said in text
    assert "\n" not in text.strip()
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [InvalidInputError("wrong"), ZeroDivisionError("mine")])
def test_other_errors_are_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, translate_failures():
        raise error

    assert caught.value is error
