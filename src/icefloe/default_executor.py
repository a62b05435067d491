"""The default executor, for `executor=None`: the active Spark session, local Spark, or processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from icefloe._internal.executor import Executor, ProcessExecutor, Progress


@contextmanager
def start_default_executor(progress: Progress | None) -> Iterator[Executor]:
    """Start the default executor, and stop it at the end of the block: Spark, or processes without pyspark or
    Java.
    """
    try:
        from icefloe.spark.executor import SparkExecutor
        from icefloe.spark.session import open_default_session
    except ModuleNotFoundError:
        pass
    else:
        with open_default_session() as session:
            if session is not None:
                yield SparkExecutor(session, progress=progress)
                return
    with ProcessExecutor(progress=progress) as processes:
        yield processes
