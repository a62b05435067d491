"""Every chunk read and decoded, through the codecs that its array names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.concurrency import FanOut
from icefloe.core.assets import AssetStore
from icefloe.core.workspace import Workspace
from icefloe.format.manifest import INLINE, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.ids import SnapshotId
from icefloe.maintenance.findings import Finding, Report
from icefloe.maintenance.reach import Ids, each_id

if TYPE_CHECKING:
    import zarr

OpenArray = Callable[[SnapshotId, str], "zarr.Array[Any]"]
"""An array of a snapshot, by its path."""


def check_chunks(
    snapshots: Ids, assets: AssetStore, open_array: OpenArray, fan_out: FanOut, report: Report
) -> None:
    """Decode all chunks of some snapshots; what several of them share is decoded once."""
    known: set[bytes] = set()
    for id in map(SnapshotId, each_id(snapshots)):
        workspace = Workspace(assets.snapshot(id), assets)
        for node in workspace.base.nodes:
            if isinstance(node.node_data, ArrayNodeData) and node.node_data.manifests:
                _check_array(id, node, workspace.refs(node), known, open_array, fan_out, report)


def _check_array(
    id: SnapshotId,
    node: NodeSnapshot,
    refs: ArrayManifest,
    known: set[bytes],
    open_array: OpenArray,
    fan_out: FanOut,
    report: Report,
) -> None:
    fresh = []
    for row, key in enumerate(_keys(node, refs)):
        if key not in known:
            known.add(key)
            fresh.append(row)
    if not fresh:
        return
    array = open_array(id, node.path)
    sizes = array.shards or array.chunks

    def decode(row: int) -> str | None:
        coords = refs.coords[row].tolist()
        region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(coords, sizes, strict=True))
        try:
            array[region]
        except Exception as error:  # noqa: BLE001  codecs raise whatever they like
            return f"chunk {coords}: {type(error).__name__}: {error}"
        return None

    for message in fan_out(decode, fresh):
        report.chunks += 1
        if message is not None:
            report.findings.append(Finding("undecodable", node.path, f"snapshot {id}", message))


def _keys(node: NodeSnapshot, refs: ArrayManifest) -> Iterator[bytes]:
    """What tells one chunk of one array from another: its bytes, its place, and how they are read."""
    start = blake2b(node.id + node.user_data, digest_size=16)
    for row in range(len(refs)):
        key = start.copy()
        key.update(refs.coords[row].tobytes())
        if refs.kind[row] == INLINE:
            key.update(refs.inline[row])
        elif refs.kind[row] == VIRTUAL:
            key.update(repr(refs.ref(row)).encode())
        else:
            key.update(refs.chunk_ids[row].tobytes())
            key.update(np.array([refs.offsets[row], refs.lengths[row]]).tobytes())
        yield key.digest()
