"""Suppress warnings of libraries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress all warnings within the block, for example of zarr about unstable data types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
