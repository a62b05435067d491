"""Write the files of a new snapshot: manifests, transaction log and snapshot file. Refs are not moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from icefloe._internal.executor import Executor, Task, ThreadExecutor
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe.core.assets import AssetStore, ManifestUpload
from icefloe.core.commit.limits import check_changes, check_log
from icefloe.core.commit.manifests import (
    ManifestPlan,
    Place,
    Rewritten,
    Sources,
    make_manifests,
    plan,
    splice_refs,
)
from icefloe.core.commit.packs import pack_arrays, select_small_arrays
from icefloe.core.refs.clock import check_clock
from icefloe.core.workspace import Workspace
from icefloe.format.files import SNAPSHOTS, SealedLog
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.repo_changes import choose_later_time
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import (
    ArrayNodeData,
    ManifestFileInfo,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
    list_used_manifests,
)
from icefloe.format.transaction_log import LISTS, MoveOperation, NodeType, TransactionLog, UpdatedChunks

OWN_METADATA: Final = "__icechunk"
"""The key in snapshot metadata under which icefloe describes the commit."""

_MANY_CHUNKS: Final = 1 << 14
"""The number of changed chunks above which writing the transaction log takes noticeable time."""
_SMALL_BYTES: Final = 256 * 1024
_MAX_WAITING: Final = 256
"""The maximum size and number of manifests that are held in memory until the snapshot is written."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """The result of flushing a commit: its snapshot and its transaction log."""

    snapshot: Snapshot
    log: TransactionLog


def flush(
    workspace: Workspace,
    message: str,
    metadata: Mapping[str, Any],
    executor: Executor,
    parent: SnapshotId | None,
    earlier: TransactionLog | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Flushed:
    """Write the manifests, transaction log and snapshot file of a commit. No branch moves yet.

    `earlier` is the transaction log of the commit to amend, whose changes are included. `meanwhile` is called
    while files are being written.
    """
    base, assets = workspace.base, workspace.assets
    # Check the limits first: the official library cannot rebase over a log with 50 million coordinates, and
    # files written before the check would become garbage.
    check_changes(workspace.changes, earlier)
    plans = list(
        executor.map(Task(lambda node: plan(workspace, node), "arrays"), _find_touched_arrays(workspace))
    )
    small, plans = select_small_arrays(workspace, plans)
    uploader = _Uploader(workspace.assets, sum(len(each.places) for each in plans))
    packed = pack_arrays(workspace, small, executor, uploader.put)
    rewritten = _rewrite_manifests(workspace, plans, executor, uploader.put)
    infos = [info for part in rewritten.values() for info in part.infos]
    infos += [*packed.infos, *(info for each in plans for info in each.infos)]
    touched = [*packed.nodes, *(each.finished(rewritten) for each in plans)]
    nodes = build_nodes(workspace, touched, packed.moved)
    id = SnapshotId.random()
    log = make_log(workspace, id)
    if earlier is not None:
        log = merge_logs(id, [earlier, log])
    snapshot = Snapshot(
        id=id,
        parent_id=parent if assets.spec.parent_in_snapshot else None,
        flushed_at_us=choose_later_time(base.flushed_at_us, time.time_ns() // 1000),
        message=message,
        metadata=metadata,
        manifest_files=base.manifest_files.keep(set(list_used_manifests(nodes)), infos),
        nodes=nodes,
    )
    others = [upload.run for upload in uploader.waiting] + ([] if meanwhile is None else [meanwhile])
    write_files(assets, snapshot, log, executor, base, others)
    workspace.rewritten = rewritten
    return Flushed(snapshot, log)


def reword(
    assets: AssetStore,
    base: Snapshot,
    message: str,
    metadata: Mapping[str, Any],
    parent: SnapshotId,
    log: SealedLog,
) -> Snapshot:
    """Write a copy of a snapshot with a new message and metadata. The content and the transaction log stay
    the same.
    """
    id = SnapshotId.random()
    snapshot = replace(
        base,
        id=id,
        parent_id=parent if assets.spec.parent_in_snapshot else None,
        flushed_at_us=choose_later_time(base.flushed_at_us, time.time_ns() // 1000),
        message=message,
        metadata=metadata,
    )
    assets.write_sealed_log(log, id)
    assets.write_snapshot(snapshot)
    return snapshot


def write_files(
    assets: AssetStore,
    snapshot: Snapshot,
    log: TransactionLog,
    executor: Executor,
    base: Snapshot,
    others: Sequence[Callable[[], None]] = (),
) -> None:
    """Write the snapshot and transaction log files of a commit. The commit time is later than the base's.

    All files are written in parallel. Nothing refers to the snapshot yet, so their order does not matter.
    """
    check_log(log)
    writes = [lambda: assets.write_transaction_log(log), lambda: assets.write_snapshot(snapshot), *others]
    if assets.storage.answers_at_once and log.updated_chunks.counts.sum() < _MANY_CHUNKS:
        executor = ThreadExecutor(1)  # starting a thread takes longer than writing a small file
    list(executor.map(Task(lambda write: write(), "files"), writes))
    if not assets.spec.refs_in_repo_info:  # in V2, writing the repo info file checks the clock
        check_clock(assets.storage, f"{SNAPSHOTS}/{snapshot.id}", base.flushed_at_us)


def make_snapshot_info(snapshot: Snapshot, parent_id: SnapshotId) -> SnapshotInfo:
    """Return the repo info entry for a newly written snapshot."""
    return SnapshotInfo(snapshot.id, parent_id, snapshot.flushed_at_us, snapshot.message, snapshot.metadata)


def _find_touched_arrays(workspace: Workspace) -> list[NodeSnapshot]:
    """Return the arrays whose manifests may change because their chunks or shape changed; all arrays if
    requested.
    """
    changes = workspace.changes
    paths = {*changes.updated, *(delta.path for delta in changes.chunks.values())}
    if workspace.rewrites_all:
        paths |= {node.path for node in workspace.arrays_with_chunks(workspace.paths())}
    nodes = [node for path in sorted(paths) if (node := workspace.node(path)) is not None]
    return [node for node in nodes if isinstance(node.node_data, ArrayNodeData)]


class _Uploader:
    """Writes the new manifests of a commit. Small manifests are held back and written together with the
    snapshot.
    """

    def __init__(self, assets: AssetStore, count: int) -> None:
        self._assets = assets
        self._waits = count <= _MAX_WAITING and not assets.storage.answers_at_once
        self.waiting: list[ManifestUpload] = []

    def put(self, manifest: PackedManifest) -> ManifestFileInfo:
        """Write a manifest, immediately or together with the snapshot."""
        upload = self._assets.seal_packed(manifest)
        if self._waits and len(upload.data) <= _SMALL_BYTES:
            self.waiting.append(upload)
        else:
            upload.run()
        return upload.info


def _rewrite_manifests(
    workspace: Workspace,
    plans: Sequence[ManifestPlan],
    executor: Executor,
    put: Callable[[PackedManifest], ManifestFileInfo],
) -> dict[Place, Rewritten]:
    """Create the new manifests of the changed arrays. Manifests of an earlier commit attempt are reused if
    they would be the same.
    """
    items = [(each.node, place, sources) for each in plans for place, sources in each.places.items()]
    earlier: dict[Place, Rewritten] = workspace.rewritten

    def write(item: tuple[NodeSnapshot, Place, Sources]) -> tuple[Place, Rewritten]:
        node, place, sources = item
        # A commit that lost a race usually flushes the same arrays again. Its manifests, the largest files of
        # a flush, remain valid unless the other commit changed their window.
        known = earlier.get(place)
        if known is not None and known.sources.same_as(sources):
            return place, known
        spliced = splice_refs(workspace, node, sources)
        if spliced is not None:
            packed, ref = spliced
            return place, Rewritten(sources, (ref,), (put(packed),))
        made = make_manifests(workspace, node, sources)
        refs = [ManifestRef(manifest.id, manifest.arrays[node.id].extents()) for manifest in made]
        infos = tuple(put(workspace.assets.pack(manifest)) for manifest in made)
        return place, Rewritten(sources, tuple(refs), infos)

    return dict(executor.map(Task(write, "tasks"), items))


def build_nodes(
    workspace: Workspace, rewritten: Iterable[NodeSnapshot], moved: Mapping[str, ManifestId] | None = None
) -> Nodes:
    """Return all nodes of a workspace for the new snapshot, with the new manifests of changed arrays.

    Arrays without changes may also refer to a new manifest, if their references were repacked.
    """
    changes, base = workspace.changes, workspace.base.nodes.with_manifests(moved or {})
    put = {**changes.created, **changes.updated}
    put |= {node.path: node for node in rewritten}
    remove = set(changes.deleted)
    if changes.moved:
        put |= {path: node for path in changes.moved if (node := workspace.node(path)) is not None}
        remove |= set(changes.moved.values()) - set(changes.moved)
    if not put and not remove:
        return base
    return base.with_changes(put.values(), remove)


def make_log(workspace: Workspace, id: SnapshotId) -> TransactionLog:
    """Create the transaction log for the changes of a workspace."""
    with workspace.exclusive():  # readers in other threads may convert the changes to columns
        return _make_log_of_changes(workspace, id)


def _make_log_of_changes(workspace: Workspace, id: SnapshotId) -> TransactionLog:
    changes = workspace.changes

    moves = []
    for path, source in changes.moved.items():
        node = workspace.node(path)
        if node is not None and path != source:
            kind = NodeType.ARRAY if isinstance(node.node_data, ArrayNodeData) else NodeType.GROUP
            moves.append(MoveOperation(source, path, node.id, kind))
    lists = changes.nodes_by_type()
    ids: dict[str, Any] = {name: [node.id for node in nodes] for name, nodes in lists.items()}
    return TransactionLog.of(
        id,
        UpdatedChunks.of_lists(
            [
                (node, delta.regions() if delta.early else delta.coords())
                for node, delta in changes.chunks.items()
            ]
        ),
        moves,
        **ids,
    )


def merge_logs(id: SnapshotId, logs: Sequence[TransactionLog]) -> TransactionLog:
    """Merge the transaction logs of consecutive commits into one, for a snapshot that replaces these
    commits.
    """
    # The lists may overlap, for example if several commits wrote a chunk. Each chunk is kept once.
    chunks = UpdatedChunks.of_lists([each for log in logs for each in log.updated_chunks.lists()])
    lists: dict[str, Any] = {
        name: [NodeId(row.tobytes()) for log in logs for row in getattr(log, name)] for name in LISTS
    }
    extra = next((log.extra for log in reversed(logs) if log.extra is not None), None)
    return TransactionLog.of(id, chunks, _compose_moves(logs), extra, **lists)


def _compose_moves(logs: Sequence[TransactionLog]) -> list[MoveOperation]:
    """Return the net move of each node over consecutive logs."""
    net: dict[NodeId, MoveOperation] = {}
    for log in logs:
        for move in log.moved_nodes:
            before = net.get(move.node_id)
            net[move.node_id] = move if before is None else replace(move, from_path=before.from_path)
    return [move for move in net.values() if move.from_path != move.to_path]
