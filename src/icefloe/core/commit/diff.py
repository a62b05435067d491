"""Compute the diff between two snapshots from transaction logs, or the diff of a session's uncommitted
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId
from icefloe.core.changeset import ChangeSet
from icefloe.core.workspace import Workspace
from icefloe.format.chunk_regions import ChunkRegions, list_chunks
from icefloe.format.coordinates import Coords
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog, get_rank, join_chunks
from icefloe.snapshots import Diff


def diff_session(workspace: Workspace) -> Diff:
    """Return a session's uncommitted changes as a diff."""
    with workspace.exclusive():
        return _make_diff(workspace.changes)


def _make_diff(changes: ChangeSet) -> Diff:
    lists = changes.nodes_by_type()
    paths: dict[str, Any] = {name: {node.path for node in nodes} for name, nodes in lists.items()}
    return Diff(
        **paths,
        updated_chunks={
            delta.path: list_chunks(delta.regions() if delta.early else delta.coords())
            for delta in changes.chunks.values()
        },
        moved_nodes=[(source, path) for path, source in sorted(changes.moved.items())],
    )


def diff_logs(logs: Iterable[TransactionLog], older: Snapshot, newer: Snapshot) -> Diff:
    """Return the diff between two snapshots from the transaction logs of the commits in between. Paths are
    looked up in both snapshots.

    Nodes that were created and deleted in between are omitted.
    """
    before, after = _index_paths_by_id(older), _index_paths_by_id(newer)
    diff = Diff()
    chunks: dict[tuple[str, int], list[Coords | ChunkRegions]] = {}

    def add(target: set[str], ids: NDArray[np.uint8], *sides: Mapping[bytes, str]) -> None:
        for row in ids:
            path = next((side[key] for side in sides if (key := row.tobytes()) in side), None)
            if path is not None:
                target.add(path)

    for log in logs:
        add(diff.new_groups, log.new_groups, after)
        add(diff.new_arrays, log.new_arrays, after)
        add(diff.deleted_groups, log.deleted_groups, before)
        add(diff.deleted_arrays, log.deleted_arrays, before)
        add(diff.updated_groups, log.updated_groups, after, before)
        add(diff.updated_arrays, log.updated_arrays, after, before)
        for node, changed in log.updated_chunks.lists():
            path = _find(node, after, before)
            if path is not None:
                chunks.setdefault((path, get_rank(changed)), []).append(changed)
        diff.moved_nodes.extend((move.from_path, move.to_path) for move in log.moved_nodes)
    for (path, rank), parts in sorted(chunks.items()):
        found = list_chunks(join_chunks(parts, rank))
        earlier = diff.updated_chunks.get(path)  # the rank of the array changed
        diff.updated_chunks[path] = found if earlier is None else [*earlier, *found]
    return diff


def _find(node: NodeId, *sides: Mapping[bytes, str]) -> str | None:
    return next((side[key] for side in sides if (key := node.__bytes__()) in side), None)


def _index_paths_by_id(snapshot: Snapshot) -> dict[bytes, str]:
    if not len(snapshot.nodes):
        return {}
    ids = snapshot.nodes.columns["id"]
    return {ids[row].tobytes(): path for row, path in enumerate(snapshot.nodes.paths())}
