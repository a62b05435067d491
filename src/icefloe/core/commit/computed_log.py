"""Compute a missing transaction log from two consecutive snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.core.assets import AssetStore
from icefloe.core.changeset import count_dimensions, split_by_type
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import TransactionLog


def compute_log(before: Snapshot, after: Snapshot, assets: AssetStore) -> TransactionLog:
    """Compute a missing transaction log by comparing the snapshots before and after a commit."""
    old, new = ({node.id: node for node in side.nodes} for side in (before, after))
    born = [node for id, node in new.items() if id not in old]
    dead = [node for id, node in old.items() if id not in new]
    kept = [(old[id], node) for id, node in new.items() if id in old]
    updated = [node for then, node in kept if then.user_data != node.user_data]
    then, now = Workspace(before, assets), Workspace(after, assets)
    chunks = {node.id: changed for node in born if len(changed := _list_coords(now, node))}
    for earlier, node in kept:
        changed = _find_changed(then, earlier, now, node)
        if len(changed):
            chunks[node.id] = changed
    lists = split_by_type(new=born, deleted=dead, updated=updated)
    ids: dict[str, Any] = {name: [node.id for node in nodes] for name, nodes in lists.items()}
    return TransactionLog.of(after.id, chunks, **ids)


def _list_coords(workspace: Workspace, node: NodeSnapshot) -> Coords:
    return workspace.refs(node).coords if isinstance(node.node_data, ArrayNodeData) else _make_empty_coords(0)


def _make_empty_coords(rank: int) -> Coords:
    return np.zeros((0, rank), np.uint32)


def _find_changed(then: Workspace, earlier: NodeSnapshot, now: Workspace, node: NodeSnapshot) -> Coords:
    """Return the chunks of one array that were written or deleted."""
    one, other = earlier.node_data, node.node_data
    if not isinstance(one, ArrayNodeData) or not isinstance(other, ArrayNodeData):
        return _make_empty_coords(0)
    if one.manifests == other.manifests and one.shape == other.shape:
        return _make_empty_coords(count_dimensions(node))
    old, new = then.refs(earlier), now.refs(node)
    if old.rank != new.rank:
        return new.coords
    kept = coordinates.contains(new.coords, old.coords)
    left = coordinates.contains(old.coords, new.coords)
    return np.concatenate(
        [new.coords[~kept], old.coords[~left], _find_differing(old.take(left), new.take(kept))]
    )


def _find_differing(old: ArrayManifest, new: ArrayManifest) -> Coords:
    """Compare two sets of references with the same coordinates, and return the coordinates where they
    differ.
    """
    if old == new:
        return _make_empty_coords(new.rank)
    # Row by row, because the meaning of a column depends on the kind of the reference. This is acceptable
    # because only legacy commits lack a log.
    changed = [row for row in range(len(new)) if old.ref(row) != new.ref(row)]
    return new.coords[changed]
