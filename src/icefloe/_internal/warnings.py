"""Suppress warnings from libraries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Suppress all warnings within the `with` block, for example zarr's warning about unstable data types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
