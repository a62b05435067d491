"""From changes to a new snapshot: writes manifests, transaction log and snapshot file. No ref moves here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.concurrency import FanOut
from icefloe.core.changes import ArrayDelta
from icefloe.core.splitting import split_sizes
from icefloe.core.workspace import Workspace
from icefloe.encoding.columns import concat
from icefloe.encoding.flatbuffers.tables import Tables, from_rows
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import id_keys, is_member
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.repo_changes import later_than
from icefloe.format.schema import MANIFEST_FILE_INFO
from icefloe.format.snapshot import (
    ArrayNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
    used_manifests,
)
from icefloe.format.transaction_log import LISTS, MoveOperation, NodeType, TransactionLog, UpdatedChunks
from icefloe.ids import ManifestId, NodeId, SnapshotId


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush wrote."""

    snapshot: Snapshot
    log: TransactionLog


def flush(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any],
    fan_out: FanOut,
    parent: SnapshotId | None,
    earlier: TransactionLog | None = None,
) -> Flushed:
    """Write the files of a new snapshot. The `earlier` log of a commit that is amended goes into its log."""
    base, assets = workspace.base, workspace.assets
    touched = _touched_arrays(workspace)
    rewritten = list(fan_out(lambda node: _rewrite(workspace, node), touched))
    infos = list(fan_out(assets.write_manifest, [manifest for fresh, _ in rewritten for manifest in fresh]))
    nodes = _new_nodes(workspace, [node for _, node in rewritten])
    id = SnapshotId.random()
    log = _transaction_log(workspace, id)
    if earlier is not None:
        log = merged_logs(id, [earlier, log])
    snapshot = Snapshot(
        id=id,
        parent_id=parent if assets.spec.parent_in_snapshot else None,
        flushed_at_us=later_than(base.flushed_at_us, time.time_ns() // 1000),
        message=message,
        metadata=metadata,
        manifest_files=_manifest_files(base, nodes, infos),
        nodes=nodes,
    )
    writes = [lambda: assets.write_transaction_log(log), lambda: assets.write_snapshot(snapshot)]
    list(fan_out(lambda write: write(), writes))
    return Flushed(snapshot, log)


def _touched_arrays(workspace: Workspace) -> list[NodeSnapshot]:
    """Arrays whose manifests may change: those with changed chunks or another shape."""
    changes = workspace.changes
    paths = {*changes.updated, *(delta.path for delta in changes.chunks.values())}
    nodes = [node for path in sorted(paths) if (node := workspace.node(path)) is not None]
    return [node for node in nodes if isinstance(node.node_data, ArrayNodeData)]


def _rewrite(workspace: Workspace, node: NodeSnapshot) -> tuple[list[Manifest], NodeSnapshot]:
    """New manifests, one per window of the chunk grid in which chunks changed; the others stay."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return [], node
    grid = [range(d.num_chunks if d.num_chunks else 1) for d in data.shape]
    sizes = split_sizes(workspace.assets.config.split_sizes, node)
    delta = workspace.changes.chunks.get(node.id) or ArrayDelta(node.path, len(grid))
    written, gone = delta.resolve()
    touched = [written.coords, gone] if written is not None else [gone]
    dirty = _windows(np.concatenate(touched), sizes)
    kept, loose = _part_manifests(data.manifests, grid, sizes, dirty)
    parts = [workspace.manifest_refs(node, ref) for ref in loose]
    spilled = _windows(np.concatenate([part.coords for part in parts] or [gone[:0]]), sizes)
    more = [ref for ref in kept if _window_of(ref, sizes) in spilled]
    kept = [ref for ref in kept if ref not in more]
    parts += [workspace.manifest_refs(node, ref) for ref in more]
    refs = ArrayManifest.concat(parts) if parts else None
    if refs is not None and len(gone):
        refs = refs.without(gone)
    if written is not None:
        refs = written if refs is None else refs.merge(written)
    if refs is None:
        return [], replace(node, node_data=replace(data, manifests=tuple(kept)))
    inside = coordinates.inside(refs.coords, grid)
    refs = refs if inside.all() else refs.take(inside)
    fresh = [Manifest(ManifestId.random(), {node.id: window}) for window in _by_window(refs, sizes)]
    added = [ManifestRef(manifest.id, manifest.arrays[node.id].extents()) for manifest in fresh]
    manifests = tuple(sorted((*kept, *added), key=lambda ref: [extent.start for extent in ref.extents]))
    return fresh, replace(node, node_data=replace(data, manifests=manifests))


def _part_manifests(
    manifests: Sequence[ManifestRef], grid: Sequence[range], sizes: Sequence[int], dirty: set[tuple[int, ...]]
) -> tuple[list[ManifestRef], list[ManifestRef]]:
    """Those that can stay as they are, and those whose references must be written anew."""
    kept: list[ManifestRef] = []
    loose: list[ManifestRef] = []
    for ref in manifests:
        window = _window_of(ref, sizes)
        in_grid = all(e.stop <= g.stop for e, g in zip(ref.extents, grid, strict=False))
        (kept if window is not None and window not in dirty and in_grid else loose).append(ref)
    return kept, loose


def _window_of(ref: ManifestRef, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The window a manifest lies in; None where it lies in several, does not say or is of another rank."""
    if len(ref.extents) != len(sizes):
        return None
    first = tuple(e.start // size for e, size in zip(ref.extents, sizes, strict=True))
    last = tuple(max(e.stop - 1, e.start) // size for e, size in zip(ref.extents, sizes, strict=True))
    return first if first == last else None


def _windows(coords: Coords, sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """The windows that chunks lie in."""
    if not len(coords):
        return set()
    places = coords // np.array(sizes, np.uint32).reshape(1, -1)
    unique: NDArray[np.uint32] = np.unique(places, axis=0) if places.shape[1] else places[:1]
    return {tuple(row) for row in unique.tolist()}


def _by_window(refs: ArrayManifest, sizes: Sequence[int]) -> list[ArrayManifest]:
    """References parted by the windows they lie in."""
    if not len(refs):
        return []
    places = refs.coords // np.array(sizes, np.uint32).reshape(1, -1)
    if not places.shape[1] or (places == places[0]).all():
        return [refs]
    _, group = np.unique(places, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return [refs.take(np.flatnonzero(group == each)) for each in range(int(group.max()) + 1)]


def _new_nodes(workspace: Workspace, rewritten: Iterable[NodeSnapshot]) -> Nodes:
    changes, base = workspace.changes, workspace.base.nodes
    put = {**changes.created, **changes.updated}
    put |= {node.path: node for node in rewritten}
    remove = set(changes.deleted)
    if changes.moved:
        put |= {path: node for path in changes.moved if (node := workspace.node(path)) is not None}
        remove |= set(changes.moved.values()) - set(changes.moved)
    if not put and not remove:
        return base
    return base.updated(put.values(), remove)


def _manifest_files(base: Snapshot, nodes: Nodes, written: Sequence[ManifestFileInfo]) -> ManifestFiles:
    """The manifests in use: old ones that still are, and new ones."""
    used = np.frombuffer(b"".join(used_manifests(nodes)), np.uint8).reshape(-1, 12)
    old = base.manifest_files.columns
    parts = [old.take(is_member(base.manifest_files.ids, used))] if len(old) else []
    rows = [{"id": i.id, "size_bytes": i.size_bytes, "num_chunk_refs": i.num_chunk_refs} for i in written]
    parts.append(from_rows(MANIFEST_FILE_INFO, rows))
    filled = [part for part in parts if len(part)]
    if not filled:
        return ManifestFiles(parts[-1])
    joined = Tables.concat(filled)
    return ManifestFiles(joined.take(id_keys(joined["id"]).argsort(kind="stable")))


def _transaction_log(workspace: Workspace, id: SnapshotId) -> TransactionLog:
    changes = workspace.changes

    def ids(nodes: Iterable[NodeSnapshot], arrays: bool) -> list[NodeId]:
        return [node.id for node in nodes if isinstance(node.node_data, ArrayNodeData) is arrays]

    moves = []
    for path, source in changes.moved.items():
        node = workspace.node(path)
        if node is not None and path != source:
            kind = NodeType.ARRAY if isinstance(node.node_data, ArrayNodeData) else NodeType.GROUP
            moves.append(MoveOperation(source, path, node.id, kind))
    return TransactionLog.of(
        id,
        UpdatedChunks.of({node: delta.coords() for node, delta in changes.chunks.items()}),
        moves,
        new_groups=ids(changes.created.values(), arrays=False),
        new_arrays=ids(changes.created.values(), arrays=True),
        deleted_groups=ids(changes.deleted.values(), arrays=False),
        deleted_arrays=ids(changes.deleted.values(), arrays=True),
        updated_groups=ids(changes.updated.values(), arrays=False),
        updated_arrays=ids(changes.updated.values(), arrays=True),
    )


def merged_logs(id: SnapshotId, logs: Sequence[TransactionLog]) -> TransactionLog:
    """One log that says what several say one after the other."""
    chunks: dict[NodeId, Any] = {}
    for log in logs:
        for node, coords in log.updated_chunks:
            known = chunks.get(node)
            chunks[node] = coords if known is None or not len(known) else concat([known, coords])
    lists: dict[str, Any] = {
        name: [NodeId(row.tobytes()) for log in logs for row in getattr(log, name)] for name in LISTS
    }
    return TransactionLog.of(id, UpdatedChunks.of(chunks), _composed(logs), **lists)


def _composed(logs: Sequence[TransactionLog]) -> list[MoveOperation]:
    """The net moves, by node."""
    net: dict[NodeId, MoveOperation] = {}
    for log in logs:
        for move in log.moved_nodes:
            before = net.get(move.node_id)
            net[move.node_id] = move if before is None else replace(move, from_path=before.from_path)
    return [move for move in net.values() if move.from_path != move.to_path]
