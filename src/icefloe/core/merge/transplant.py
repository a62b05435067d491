"""Transplant the commits of one branch to another, one by one, reusing their manifests and transaction logs.

A merge compares chunks, and its transaction log lists all of them. A hundred million chunks exceed the limit
of one commit and the memory of one process. A transplant compares only nodes. It is possible if the two sides
changed different nodes, which is usually the case for a staged ingest and unrelated commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import ROOT, get_parent
from icefloe.core.ancestry import list_steps_between
from icefloe.core.assets import AssetStore
from icefloe.core.commit.flush import make_snapshot_info
from icefloe.core.refs.base import RefStore
from icefloe.format.repo_changes import choose_later_time
from icefloe.format.snapshot import (
    ArrayNodeData,
    GroupNodeData,
    ManifestFileInfo,
    NodeSnapshot,
    Snapshot,
    list_used_manifests,
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A commit to transplant, with the nodes that it created or changed."""

    snapshot: Snapshot
    nodes: tuple[NodeSnapshot, ...]


def can_transplant(
    refs: RefStore, assets: AssetStore, base: SnapshotId, source: SnapshotId, onto: SnapshotId
) -> bool:
    """Return True if the commits between two snapshots can be applied to a third snapshot unchanged."""
    return _plan(refs, assets, base, source, onto) is not None


def transplant(
    refs: RefStore,
    assets: AssetStore,
    base: SnapshotId,
    source: SnapshotId,
    branch: str,
    metadata: Mapping[str, Any],
) -> SnapshotId | None:
    """Apply the commits between two snapshots to a branch, one by one, and return its new tip.

    Returns None, without writing anything, if both sides changed the same node. The last commit gets the
    given metadata.
    """
    mark, tip = refs.now(), refs.branch(branch)
    steps = _plan(refs, assets, base, source, tip)
    if steps is None:
        return None
    state = assets.snapshot(tip)
    for step in steps:
        id = SnapshotId.random()
        nodes = state.nodes.with_changes(step.nodes)
        infos = _list_new_manifests(state, step)
        state = replace(
            step.snapshot,
            id=id,
            flushed_at_us=choose_later_time(state.flushed_at_us, time.time_ns() // 1000),
            metadata=metadata if step is steps[-1] else step.snapshot.metadata,
            nodes=nodes,
            manifest_files=state.manifest_files.keep(set(list_used_manifests(nodes)), infos),
        )
        assets.write_sealed_log(assets.read_sealed_log(step.snapshot.id), id)
        assets.write_snapshot(state)
        refs.advance(branch, tip, make_snapshot_info(state, tip), mark)
        tip = id
    return tip


def _plan(
    refs: RefStore, assets: AssetStore, base: SnapshotId, source: SnapshotId, onto: SnapshotId
) -> list[_Step] | None:
    """Return the commits to transplant; None if they cannot be applied unchanged."""
    steps = list_steps_between(refs, base, source)
    if not steps or any(len(step.logs) > 1 for step in steps) or not refs.spec.refs_in_repo_info:
        return None
    states = [assets.snapshot(id) for id in (base, *(step.snapshot for step in steps))]
    found = []
    for before, after in pairwise(states):
        nodes = _find_changed_nodes(before, after)
        if nodes is None:
            return None
        found.append(_Step(after, nodes))
    changed = {node.path: node for step in found for node in step.nodes}
    return found if _is_apart(states[0], assets.snapshot(onto), changed) else None


def _find_changed_nodes(before: Snapshot, after: Snapshot) -> tuple[NodeSnapshot, ...] | None:
    """Return the nodes that a commit created or changed; None if it deleted, moved or replaced a node."""
    old = _by_path(before.nodes)
    nodes = list(after.nodes)
    kept = sum(node.path in old and old[node.path].id == node.id for node in nodes)
    if kept < len(old):
        return None
    return tuple(node for node in nodes if old.get(node.path) != node)


def _is_apart(before: Snapshot, onto: Snapshot, changed: Mapping[str, NodeSnapshot]) -> bool:
    """Return True if a snapshot that descends from `before` has not changed any of the given nodes."""
    old, now = _by_path(before.nodes), _by_path(onto.nodes)
    for path in changed:
        if old.get(path) != now.get(path):
            return False
        parent = ROOT if path == ROOT else get_parent(path) or ROOT
        above = now.get(parent) or changed.get(parent)
        if above is None or not (path == ROOT or isinstance(above.node_data, GroupNodeData)):
            return False
    return True


def _by_path(nodes: Iterable[NodeSnapshot]) -> dict[str, NodeSnapshot]:
    return {node.path: node for node in nodes}


def _list_new_manifests(state: Snapshot, step: _Step) -> list[ManifestFileInfo]:
    """Return the entries of the manifests of changed arrays that a snapshot does not list yet."""
    arrays = [node.node_data for node in step.nodes if isinstance(node.node_data, ArrayNodeData)]
    ids = {ref.id for data in arrays for ref in data.manifests}
    new = [id for id in ids if state.manifest_files.row(id) is None]
    return [info for id in new if (info := step.snapshot.manifest_files.find(id)) is not None]
