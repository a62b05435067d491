"""Wrappers for Spark tasks that check the icefloe version and shorten errors to one sentence."""

from __future__ import annotations

import functools
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark import cloudpickle as _cloudpickle

from icefloe._version import __version__
from icefloe.errors import ErrorKind, IcechunkError, SessionStateError

VERSION: Final = __version__
cloudpickle: Any = _cloudpickle


def check_version(driver: str) -> None:
    """Raise an error in a Spark worker if the driver runs a different version of icefloe."""
    if driver != VERSION:
        raise SessionStateError(
            f"the driver runs icefloe {driver} and this executor {VERSION}; install the same version on both"
            " (docs/how-to/cluster.md shows how to ship it)",
            kind=ErrorKind.NOT_ALLOWED,
        )


@contextmanager
def hide_tracebacks() -> Iterator[None]:
    """Keep a Spark worker from printing the tracebacks of icefloe errors."""
    try:
        yield
    except IcechunkError:
        _hide_trace_from_env()
        raise
    finally:
        freeze_modules()


@functools.cache
def freeze_modules() -> None:
    """Exempt all existing objects in a Spark worker from Python's garbage collection after its first task.

    Spark runs Python's garbage collector after every task, which takes 50 ms with pandas, xarray and zarr
    loaded.
    """
    gc.freeze()


def _hide_trace_from_env() -> None:
    # Spark reads the variable when it formats the exception, and then ends the worker.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def pack_outcome(run: Callable[[], Any], caught: type[Exception] = Exception) -> bytes:
    """Pickle the result of a task in a Spark worker, or the exception that it raised.

    Exceptions are returned as values, because otherwise Spark would retry the task and convert them to
    strings.
    """
    try:
        outcome: tuple[bool, Any] = (False, run())
    except caught as error:  # raised again on the driver
        outcome = (True, error)
    try:
        packed: bytes = cloudpickle.dumps(outcome)
        pickle.loads(packed)  # some exceptions can be pickled but not unpickled, so test both
    except Exception as error:
        if not outcome[0]:
            raise TypeError(f"the result of a task cannot be pickled: {error}") from error
        packed = cloudpickle.dumps((True, RuntimeError(f"{type(outcome[1]).__name__}: {outcome[1]}")))
    return packed


def unpack_outcome(packed: bytes) -> Any:
    """Unpickle the outcome of a task: return its result, or raise its exception."""
    failed, value = pickle.loads(bytes(packed))
    if failed:
        raise value
    return value
