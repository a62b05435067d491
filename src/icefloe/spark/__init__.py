"""Heavy work on Apache Spark. Nothing below this package knows it.

Names are loaded when first used: finding a Java needs no pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.spark.fan_out import SparkFanOut
    from icefloe.spark.local import QUICK_START, local_session, session_at
    from icefloe.spark.pipeline import ingest, rechunk
    from icefloe.spark.scans import Scan, scan
    from icefloe.spark.sql_scans import sql
    from icefloe.spark.writes import write

__all__ = [
    "QUICK_START",
    "Scan",
    "SparkFanOut",
    "ingest",
    "local_session",
    "rechunk",
    "scan",
    "session_at",
    "sql",
    "write",
]

_HOMES = {
    "QUICK_START": "local",
    "Scan": "scans",
    "SparkFanOut": "fan_out",
    "ingest": "pipeline",
    "local_session": "local",
    "rechunk": "pipeline",
    "scan": "scans",
    "session_at": "local",
    "sql": "sql_scans",
    "write": "writes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
