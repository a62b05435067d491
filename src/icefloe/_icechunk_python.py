"""The official package's native module by name, with its names looked up in icefloe's modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from icefloe.errors import ErrorKind

_HOMES = (
    "icefloe",
    "icefloe.config",
    "icefloe.storage",
    "icefloe._internal.concurrency",
    "icefloe.credentials",
    "icefloe.testing",
)


def _all_error_kinds() -> list[str]:
    """Return all error kinds."""
    return [kind.value for kind in ErrorKind]


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
