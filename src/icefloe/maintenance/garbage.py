"""What a garbage collection would delete, as a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.table import Table
from icefloe._internal.times import to_microseconds
from icefloe.maintenance.gc import Garbage
from icefloe.storage.base import StorageObjectInfo

_KINDS = {
    "temporary_files": ("temporary file", "a writer was killed while it wrote this file"),
    "snapshots": ("snapshot", "no branch or tag leads to it"),
    "transaction_logs": ("transaction log", "no snapshot has it in its history"),
    "manifests": ("manifest", "no snapshot uses it"),
    "chunks": ("chunk", "no manifest refers to it"),
}


def garbage_table(garbage: Garbage, temporary: Sequence[StorageObjectInfo]) -> Table:
    """Make a table of one row per object, in the order in which they are deleted: temporary files first."""
    now_us = time.time_ns() // 1000
    parts = list(garbage.phases())
    counts = [("temporary_files", len(temporary)), *((name, len(listing)) for name, listing in parts)]
    written_us = np.array([to_microseconds(info.created_at) for info in temporary], np.int64)
    sizes = np.array([info.size_bytes for info in temporary], np.int64)
    times = np.concatenate([written_us, *(listing.times_us for _, listing in parts)])
    return Table(
        {
            "object": [
                *(info.key for info in temporary),
                *(path for _, listing in parts for path in listing.paths()),
            ],
            "kind": _repeated((_KINDS[name][0], count) for name, count in counts),
            "bytes": np.concatenate([sizes, *(listing.sizes for _, listing in parts)]),
            "written_at": times.astype("M8[us]"),
            "age_s": (now_us - times) / 1e6,
            "reason": _repeated((_KINDS[name][1], count) for name, count in counts),
        }
    )


def _repeated(parts: Iterable[tuple[str, int]]) -> NDArray[np.object_]:
    return np.concatenate([np.full(count, text, object) for text, count in parts])
