"""Suppress warnings of libraries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of readers about what they read, and of zarr about types that may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
