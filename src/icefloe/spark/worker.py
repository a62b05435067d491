"""What every task does first and last: check the version, and make an error one sentence."""

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
    """An error where the driver runs another icefloe than this process."""
    if driver != VERSION:
        raise SessionStateError(
            f"the driver runs icefloe {driver} and this executor {VERSION}; install the same version on both"
            " (docs/tables.md shows how to ship it)",
            kind=ErrorKind.NOT_ALLOWED,
        )


@contextmanager
def readable_errors() -> Iterator[None]:
    """Errors of ours leave a Python worker of Spark as one sentence, without the trace of calls."""
    try:
        yield
    except IcechunkError:
        _hide_trace_from_env()
        raise
    finally:
        exempt_modules()


@functools.cache
def exempt_modules() -> None:
    """Exempt all objects of a worker from garbage collections, once, at the end of its first task.

    Spark collects garbage after every task. The modules of pandas, xarray and zarr took 50 ms each time.
    """
    gc.freeze()


def _hide_trace_from_env() -> None:
    # Spark asks for this when it makes text of the exception, and ends the worker afterwards.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
