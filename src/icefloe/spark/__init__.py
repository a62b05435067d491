"""Queries, writes, ingests and maintenance on Apache Spark.

Names are loaded on first use, so that Java can be found without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.spark.executor import SparkExecutor
    from icefloe.spark.ingest_files import ingest, rechunk
    from icefloe.spark.run_sql import sql
    from icefloe.spark.scan_tables import Scan, scan
    from icefloe.spark.session import QUICK_START, local_session, session_at
    from icefloe.spark.write_rows import write

__all__ = [
    "QUICK_START",
    "Scan",
    "SparkExecutor",
    "ingest",
    "local_session",
    "rechunk",
    "scan",
    "session_at",
    "sql",
    "write",
]

_HOMES = {
    "QUICK_START": "session",
    "Scan": "scan_tables",
    "SparkExecutor": "executor",
    "ingest": "ingest_files",
    "local_session": "session",
    "rechunk": "ingest_files",
    "scan": "scan_tables",
    "session_at": "session",
    "sql": "run_sql",
    "write": "write_rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
