"""What snapshots say of their manifests: which part of which array each of them holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.encoding.columns import Ragged, expand_ranges
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import Snapshot

_KEY: Final = np.dtype([("node", "S8"), ("manifest", "S12"), ("digest", "<u8")])
_FACTOR: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Claim:
    """One array's part in one manifest, as some snapshot has it."""

    manifest: ManifestId
    node: NodeId
    path: str
    extents: tuple[range, ...]
    """Empty where the writer left them out."""
    grid: tuple[int, ...]
    """Chunks per dimension."""


class Claims:
    """The claims of many snapshots, each once; most snapshots repeat those of the one before."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def new_in(self, snapshot: Snapshot) -> Iterator[Claim]:
        """Those that no snapshot before had."""
        columns = snapshot.nodes.columns
        arrays = columns["node_data"].tables.get(ARRAY_NODE) if len(columns) else None
        if arrays is None or not len(arrays["manifests"].items):
            return
        parts: Ragged = arrays["manifests"]
        owner = np.repeat(np.arange(len(arrays)), parts.lengths)
        rows = np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE)[owner]
        counts: Ragged = arrays["shape_v2"]
        keys = _keys(columns["id"][rows], parts.items, counts, owner)
        for at, key in enumerate(_items(keys)):
            if key not in self._known:
                self._known.add(key)
                yield _claim(columns, rows[at], parts.items, at, counts, owner[at])


def _keys(nodes: NDArray[np.uint8], parts: Any, counts: Ragged, owner: NDArray[np.int64]) -> NDArray[np.void]:
    keys = np.zeros(len(nodes), _KEY)
    keys["node"] = np.ascontiguousarray(nodes).view("S8").reshape(-1)
    keys["manifest"] = np.ascontiguousarray(parts["object_id"]).view("S12").reshape(-1)
    extents: Ragged = parts["extents"]
    bounds = np.ascontiguousarray(extents.items).view("<u4")
    grid = counts.items["num_chunks"].astype(np.uint64)
    keys["digest"] = _digest(bounds, extents.splits * 2) * np.uint64(3) + _digest(grid, counts.splits)[owner]
    return keys


def _digest(values: NDArray[Any], splits: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number per list that differs, but for bad luck, where the lists do."""
    lengths = np.diff(splits)
    places = expand_ranges(np.zeros(len(lengths), np.int64), lengths).astype(np.uint64)
    mixed = (values.astype(np.uint64) + np.uint64(1)) * (
        places * np.uint64(2 * _FACTOR % 2**64) + np.uint64(_FACTOR)
    )
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    found: NDArray[np.uint64] = sums[splits[1:]] - sums[splits[:-1]]
    return found


def _items(keys: NDArray[np.void]) -> Iterator[bytes]:
    data, size = keys.tobytes(), keys.itemsize
    return (data[start : start + size] for start in range(0, len(data), size))


def _claim(columns: Any, row: int, parts: Any, at: int, counts: Ragged, array: int) -> Claim:
    extents = parts["extents"].take([at]).items
    return Claim(
        ManifestId(parts["object_id"][at].tobytes()),
        NodeId(columns["id"][row].tobytes()),
        columns["path"][int(row)].decode("utf-8", "replace"),
        tuple(range(int(each["from"]), int(each["to"])) for each in extents),
        tuple(counts.take([array]).items["num_chunks"].tolist()),
    )
