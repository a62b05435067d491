"""What a garbage collection would delete, as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from icefloe.maintenance.gc import Garbage
from icefloe.maintenance.listings import Listing
from icefloe.tables import Table

_KINDS = {
    "snapshots": ("snapshot", "no branch or tag leads to it"),
    "transaction_logs": ("transaction log", "no snapshot has it in its history"),
    "manifests": ("manifest", "no snapshot uses it"),
    "chunks": ("chunk", "no manifest refers to it"),
}


def garbage_table(garbage: Garbage) -> Table:
    """One row per object, in the order in which they are deleted."""
    now_us = time.time_ns() // 1000
    parts = list(garbage.phases())
    times = np.concatenate([listing.times_us for _, listing in parts])
    return Table(
        {
            "object": [path for _, listing in parts for path in listing.paths()],
            "kind": _repeated((_KINDS[name][0], listing) for name, listing in parts),
            "bytes": np.concatenate([listing.sizes for _, listing in parts]),
            "written_at": times.astype("M8[us]"),
            "age_s": (now_us - times) / 1e6,
            "reason": _repeated((_KINDS[name][1], listing) for name, listing in parts),
        }
    )


def _repeated(parts: Iterator[tuple[str, Listing]]) -> NDArray[np.object_]:
    return np.concatenate([np.full(len(listing), text, object) for text, listing in parts])
