"""Wrap every task: check the version of icefloe, and reduce an error to one sentence."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from icefloe._version import __version__
from icefloe.errors import ErrorKind, IcechunkError, SessionStateError

VERSION: Final = __version__


def check_version(driver: str) -> None:
    """Raise an error if the driver runs a different version of icefloe."""
    if driver != VERSION:
        raise SessionStateError(
            f"the driver runs icefloe {driver} and this executor {VERSION}; install the same version on both"
            " (docs/how-to/cluster.md shows how to ship it)",
            kind=ErrorKind.NOT_ALLOWED,
        )


@contextmanager
def hide_tracebacks() -> Iterator[None]:
    """Keep Spark from printing the traceback of icefloe errors in a Python worker."""
    try:
        yield
    except IcechunkError:
        _hide_trace_from_env()
        raise
    finally:
        freeze_modules()


@functools.cache
def freeze_modules() -> None:
    """Exempt all objects of a worker from garbage collection, once, at the end of its first task.

    Spark collects garbage after every task. The modules of pandas, xarray and zarr took 50 ms each time.
    """
    gc.freeze()


def _hide_trace_from_env() -> None:
    # Spark reads the variable when it formats the exception, and ends the worker afterwards.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
