"""Create and read V2 repositories in a folder with `icefloe.format` alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.format import files
from icefloe.format.manifest import ArrayManifest, Manifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_info import RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.format.spec import V2
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks
from icefloe.format.updates import RepoStatus, Update, Updates
from icefloe.ops import UpdateType

CHUNK = 10
_YEAR_3000_MS = 32_503_680_000_000


def array_node(path: str, grid: Sequence[int]) -> NodeSnapshot:
    """Create an array without chunks, with `CHUNK` elements per dimension and chunk."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [count * CHUNK for count in grid],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK] * len(grid)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "storage_transformers": [],
    }
    shape = tuple(DimensionShape(count * CHUNK, count) for count in grid)
    return NodeSnapshot(NodeId.random(), path, json.dumps(document).encode(), ArrayNodeData(shape))


def group_node(path: str) -> NodeSnapshot:
    """Create a group."""
    document = b'{"zarr_format":3,"node_type":"group","attributes":{}}'
    return NodeSnapshot(NodeId.random(), path, document, GroupNodeData())


def create(folder: Path, nodes: Sequence[NodeSnapshot]) -> None:
    """Create a repository with one commit of these nodes."""
    now = _now_us()
    first = SnapshotInfo(INITIAL_SNAPSHOT_ID, None, now, "Repository initialized")
    empty = Snapshot(first.id, None, now, first.message, {}, ManifestFiles.of([]), Nodes.of([]))
    _write(folder, files.SNAPSHOTS, first.id, files.write_snapshot(empty, V2))
    _write(folder, files.TRANSACTIONS, first.id, files.write_transaction_log(TransactionLog.of(first.id), V2))
    info = RepoInfo(
        SnapshotInfos.of([first]),
        branches={"main": first.id},
        tags={},
        deleted_tags=frozenset(),
        status=RepoStatus(set_at_us=now),
        latest_updates=Updates.of([Update(UpdateType.RepoInitialized(), now)]),
    )
    commit(folder, info, empty, nodes, {}, "nodes")


def commit(
    folder: Path,
    info: RepoInfo,
    base: Snapshot,
    nodes: Sequence[NodeSnapshot],
    chunks: Mapping[NodeId, ArrayManifest],
    message: str,
) -> None:
    """Write all files of a commit: manifests, transaction log, snapshot and finally the repo info file."""
    manifests = {node: ManifestId.random() for node in chunks}
    listed = list(base.manifest_files)
    changed = []
    for node in nodes:
        refs = chunks.get(node.id)
        if refs is None or not isinstance(node.node_data, ArrayNodeData):
            changed.append(node)
            continue
        id = manifests[node.id]
        data = files.write_manifest(Manifest(id, {node.id: refs}), V2)
        _write(folder, files.MANIFESTS, id, data)
        listed.append(ManifestFileInfo(id, len(data), len(refs)))
        array = ArrayNodeData(node.node_data.shape, (ManifestRef(id, refs.extents()),))
        changed.append(NodeSnapshot(node.id, node.path, node.user_data, array))
    now = max(_now_us(), info.latest_updates[0].updated_at_us + 1)
    snapshot = Snapshot(
        SnapshotId.random(),
        None,
        now,
        message,
        {},
        ManifestFiles.of(listed),
        base.nodes.with_changes(changed),
    )
    log = TransactionLog.of(
        snapshot.id,
        UpdatedChunks.of({node: refs.coords for node, refs in chunks.items()}),
        new_arrays=[n.id for n in nodes if n.path not in base.nodes and not _is_group(n)],
        new_groups=[n.id for n in nodes if n.path not in base.nodes and _is_group(n)],
    )
    _write(folder, files.TRANSACTIONS, snapshot.id, files.write_transaction_log(log, V2))
    _write(folder, files.SNAPSHOTS, snapshot.id, files.write_snapshot(snapshot, V2))
    _move_branch(folder, info, snapshot, now)


def _move_branch(folder: Path, info: RepoInfo, snapshot: Snapshot, now_us: int) -> None:
    backup = f"repo.{_YEAR_3000_MS - now_us // 1000:014d}.{SnapshotId.random()}"
    (newest, *older) = info.latest_updates
    entry = SnapshotInfo(snapshot.id, info.branches["main"], now_us, snapshot.message)
    after = RepoInfo(
        SnapshotInfos.of([*info.snapshots, entry]),
        branches={**info.branches, "main": snapshot.id},
        tags=info.tags,
        deleted_tags=info.deleted_tags,
        status=info.status,
        latest_updates=Updates.of(
            [
                Update(UpdateType.NewCommit("main", str(snapshot.id)), now_us),
                Update(newest.update_type, newest.updated_at_us, backup),
                *older,
            ]
        ),
        repo_before_updates=info.repo_before_updates,
        metadata=info.metadata,
        config=info.config,
    )
    current = folder / files.REPO_PATH
    if current.exists():
        _write(folder, files.OVERWRITTEN, backup, current.read_bytes())
    current.write_bytes(files.write_repo_info(after, V2))


def open_main(folder: Path) -> tuple[RepoInfo, Snapshot]:
    """Read the repo info file and the snapshot at the tip of main."""
    info = files.read_repo_info((folder / files.REPO_PATH).read_bytes())
    tip = info.branches["main"]
    return info, files.read_snapshot((folder / files.SNAPSHOTS / str(tip)).read_bytes(), tip)


def open_manifest(folder: Path, path: str) -> tuple[NodeId, PackedManifest]:
    """Read the only manifest of an array, given the folder."""
    _, snapshot = open_main(folder)
    node = snapshot.nodes.find(path)
    assert node is not None
    assert isinstance(node.node_data, ArrayNodeData)
    (ref,) = node.node_data.manifests
    data = (folder / files.MANIFESTS / str(ref.id)).read_bytes()
    return node.id, files.read_manifest(data, ref.id)


def set_virtual_refs(
    folder: Path, path: str, grid: Sequence[int], locations: Sequence[str], offsets: Any, lengths: Any
) -> None:
    """Commit one virtual reference per chunk of an array, in C order, to main."""
    info, base = open_main(folder)
    node = base.nodes.find(path)
    assert node is not None
    coords = np.indices(grid, np.uint32).reshape(len(grid), -1).T
    refs = ArrayManifest.virtual(coords, locations, offsets, lengths)
    commit(folder, info, base, [node], {node.id: refs}, "set virtual references")


def _is_group(node: NodeSnapshot) -> bool:
    return isinstance(node.node_data, GroupNodeData)


def _write(folder: Path, kind: str, name: object, data: bytes) -> None:
    (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / kind / str(name)).write_bytes(data)


def _now_us() -> int:
    return time.time_ns() // 1000
