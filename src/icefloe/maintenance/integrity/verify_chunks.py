"""Verify chunks by decoding them with the codecs of their arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.id_columns import is_member
from icefloe.format.manifest import INLINE, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.integrity.findings import Finding, Findings
from icefloe.maintenance.listings import NO_IDS, Ids, iterate_ids

if TYPE_CHECKING:
    import zarr

OpenArray = Callable[[SnapshotId, str], "zarr.Array[Any]"]
"""A function that opens the array at a path in a snapshot."""


def check_chunks(
    snapshots: Ids,
    assets: AssetStore,
    open_array: OpenArray,
    executor: Executor,
    report: Findings,
    after: Ids = NO_IDS,
) -> None:
    """Verify the chunks of the given snapshots by decoding them. Chunks in several snapshots are decoded
    once.

    The snapshots in `after` directly follow verified snapshots, so only the chunks in their transaction logs
    are decoded.
    """
    known: set[bytes] = set()
    following = set(iterate_ids(after))
    for id in map(SnapshotId, iterate_ids(snapshots)):
        workspace = Workspace(assets.snapshot(id), assets)
        log = assets.transaction_log(id) if bytes(id) in following else None
        for node in workspace.base.nodes:
            if isinstance(node.node_data, ArrayNodeData) and node.node_data.manifests:
                refs = workspace.refs(node)
                refs = refs if log is None else _find_changed(log, node, refs)
                _check_array(id, node, refs, known, open_array, executor, report)


def _find_changed(log: TransactionLog, node: NodeSnapshot, refs: ArrayManifest) -> ArrayManifest:
    """Return the references that a commit wrote, or all references if the array or its metadata is new."""
    own = np.frombuffer(node.id, np.uint8)[None]
    if is_member(own, log.new_arrays)[0] or is_member(own, log.updated_arrays)[0]:
        return refs
    lists = [coords for id, coords in log.updated_chunks if id == node.id and coords.shape[1] == refs.rank]
    written = np.concatenate([refs.coords[:0], *lists])
    return refs.take(coordinates.contains(refs.coords, coordinates.keep_last_of_equal(written)[0]))


def _check_array(
    id: SnapshotId,
    node: NodeSnapshot,
    refs: ArrayManifest,
    known: set[bytes],
    open_array: OpenArray,
    executor: Executor,
    report: Findings,
) -> None:
    fresh = []
    for row, key in enumerate(_list_keys(node, refs)):
        if key not in known:
            known.add(key)
            fresh.append(row)
    if not fresh:
        return
    try:
        array = open_array(id, node.path)
    except Exception as error:  # noqa: BLE001  for example an unknown codec or chunk grid
        why = f"zarr cannot open the array: {type(error).__name__}: {error}"
        report.findings.append(Finding("undecodable", node.path, f"snapshot {id}", why))
        return
    grid = get_stored_grid(json.loads(node.user_data))

    def decode(row: int) -> str | None:
        coords = refs.coords[row].tolist()
        try:
            array[grid.box(coords)]
        except Exception as error:  # noqa: BLE001  codecs may raise anything
            return f"chunk {coords}: {type(error).__name__}: {error}"
        return None

    for message in executor.map(Task(decode, "chunks"), fresh):
        report.counts["chunks"] += 1
        if message is not None:
            report.findings.append(Finding("undecodable", node.path, f"snapshot {id}", message))


def _list_keys(node: NodeSnapshot, refs: ArrayManifest) -> Iterator[bytes]:
    """Yield a key for each chunk. Two keys are equal if position, stored bytes and metadata are equal."""
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
