"""Ingest files into a repository, on any executor.

The stages are `discover`, `inspect`, `combine`, `plan`, `write` and `publish`; `job` runs them in this order.
A ledger in the repository records the region of each file. Users call `icefloe.ingest_files`. Names are
loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.ingest.job import ingest
    from icefloe.ingest.options import Options, make_options
    from icefloe.ingest.rechunk_job import RechunkReport, rechunk
    from icefloe.ingest.recovery import LedgerChunks
    from icefloe.ingest.report import Report

__all__ = ["LedgerChunks", "Options", "RechunkReport", "Report", "ingest", "make_options", "rechunk"]

_HOMES = {
    "LedgerChunks": "recovery",
    "Options": "options",
    "RechunkReport": "rechunk_job",
    "Report": "report",
    "ingest": "job",
    "make_options": "options",
    "rechunk": "rechunk_job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
