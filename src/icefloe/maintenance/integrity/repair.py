"""Repair: what was lost is made again where its source is known, or let go where that is wanted.

Files are never changed. Lost chunks and manifests are repaired by a commit on a branch; snapshots before it
still refer to what they lost, until they expire. A transaction log that is gone is computed from the
snapshots on both sides of it. A snapshot that is gone leaves the history.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, SnapshotId
from icefloe._internal.table import Table
from icefloe.core.assets import AssetStore
from icefloe.core.commit.computed_log import computed_log
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.format.id_columns import id_keys, is_member
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.format.pruning import shortened
from icefloe.format.repo_changes import Changed
from icefloe.format.repo_info import NO_PARENT, RepoInfo
from icefloe.format.snapshot import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.updates import ExpirationRan
from icefloe.maintenance.integrity.checksums import record_again
from icefloe.maintenance.integrity.findings import Finding
from icefloe.maintenance.listings import Listing

ChunkSource: TypeAlias = Callable[[str, tuple[int, ...]], "bytes | NDArray[Any] | None"]
"""A chunk by the path of its array and its coordinates: the bytes as they are stored, or the values, or None
where there is none."""


@dataclass(slots=True)
class RepairReport:
    """What was wrong and what was done about it, or with `dry_run` would be."""

    dry_run: bool
    snapshot_id: str | None = None
    """The commit that repairs the branch."""
    actions: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether something was done about all that was found."""
        return all(action != LEFT for *_, action in self.actions)

    def table(self) -> Table:
        """One row per thing that was wrong: object, where, problem, action."""
        names = ("object", "where", "problem", "action")
        return Table({name: [row[at] for row in self.actions] for at, name in enumerate(names)})


MADE, DROPPED, LEFT = "made again", "dropped", "left as it is"
_GONE = ("missing", "unreadable")


# The history


def rebuild_logs(refs: RefStore, assets: AssetStore, findings: list[Finding], report: RepairReport) -> None:
    """Compute the transaction logs that are gone. A log that an expired snapshot left cannot be."""
    made = []
    for found in findings:
        folder, _, name = found.object.partition("/")
        if folder == TRANSACTIONS:
            log = _computed(refs, assets, SnapshotId.parse(name))
            if log is not None and not report.dry_run:
                assets.write_transaction_log(log)
                made.append(log.id)
            report.actions.append((found.object, found.where, found.kind, LEFT if log is None else MADE))
    record_again(assets.storage, TRANSACTIONS, made)


def _computed(refs: RefStore, assets: AssetStore, id: SnapshotId) -> TransactionLog | None:
    try:
        parent = refs.snapshot(id).parent_id
        return None if parent is None else computed_log(assets.snapshot(parent), assets.snapshot(id), assets)
    except IcechunkError:  # it expired, or a snapshot or manifest on either side is gone too
        return None


def drop_snapshots(
    refs: RefStore, assets: AssetStore, findings: list[Finding], report: RepairReport, *, drop: bool
) -> None:
    """Take snapshots that are gone out of the history; branches at one go back to the last that is there.

    In version 1 nobody knows what came before one. The snapshot after it is written anew, tied to the first
    of all, as an expiration does; a branch or tag at one is left as it is.
    """
    told = [found for found in findings if found.object.startswith(f"{SNAPSHOTS}/")]
    lost = {SnapshotId.parse(found.object.partition("/")[2]): found for found in told if found.kind in _GONE}
    for found in told:
        if found.kind not in _GONE:
            report.actions.append((found.object, found.where, found.kind, LEFT))
    after = {} if isinstance(refs, RefStoreV2) else _following(refs, lost)
    for id, found in lost.items():
        may_go = drop and (isinstance(refs, RefStoreV2) or id in after)
        report.actions.append((found.object, found.where, found.kind, DROPPED if may_go else LEFT))
    if report.dry_run or not drop or not lost:
        return
    if isinstance(refs, RefStoreV2):
        refs.update(lambda info: _without(info, set(lost)))
    for followers in after.values():
        for id in followers:
            assets.write_snapshot(replace(assets.snapshot(id), parent_id=INITIAL_SNAPSHOT_ID))


def _following(refs: RefStore, lost: Collection[SnapshotId]) -> dict[SnapshotId, set[SnapshotId]]:
    """The snapshots whose parent is lost, if the first one is there to tie them to."""
    found: dict[SnapshotId, set[SnapshotId]] = {}
    if not lost or INITIAL_SNAPSHOT_ID in lost:
        return found
    for tip in {*refs.branches().values(), *refs.tags().values()}:
        with contextlib.suppress(IcechunkError):  # the line ends where one is lost
            for info in refs.ancestry(tip):
                if info.parent_id is not None and info.parent_id in lost:
                    found.setdefault(info.parent_id, set()).add(info.id)
    return found


def _without(info: RepoInfo, lost: set[SnapshotId]) -> Changed:
    snapshots = info.snapshots
    keep = np.array([snapshots.id_at(row) not in lost for row in range(len(snapshots))], np.bool_)
    first = (snapshots.parents == NO_PARENT) & ~keep
    keep |= first  # without its first snapshot a history has nothing to be tied to

    def last_there(tip: SnapshotId) -> SnapshotId:
        return next(snapshots.id_at(row) for row in snapshots.ancestry(tip) if keep[row])

    gone = {tag for tag, id in info.tags.items() if last_there(id) != id}
    changed = replace(
        info,
        snapshots=shortened(snapshots, keep),
        branches={name: last_there(tip) for name, tip in info.branches.items()},
        tags={tag: id for tag, id in info.tags.items() if tag not in gone},
        deleted_tags=info.deleted_tags | gone,
    )
    return changed, ExpirationRan()


# Chunks


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """What an array has lost."""

    node: NodeSnapshot
    manifests: tuple[ManifestRef, ...]
    coords: NDArray[np.uint32]
    """Chunks whose object is gone, too short or damaged."""

    def chunks(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of all that a source may be asked for."""
        yield from map(tuple, self.coords.tolist())
        for ref in self.manifests:
            yield from self.extents(ref)

    def extents(self, ref: ManifestRef) -> Iterator[tuple[int, ...]]:
        """The chunks that a lost manifest may have held: the whole grid where it is not said."""
        data = self.node.node_data
        grid = [range(d.num_chunks) for d in data.shape] if isinstance(data, ArrayNodeData) else []
        return product(*(ref.extents if len(ref.extents) == len(grid) else grid))


def find_lost(workspace: Workspace, listed: Listing, damaged: set[ChunkId]) -> Iterator[Lost]:
    """The arrays of a snapshot that lost something, given the chunk objects there are."""
    for node in workspace.base.nodes:
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            continue
        manifests, parts = [], []
        for ref in data.manifests:
            try:
                refs = workspace.manifest_refs(node, ref)
            except IcechunkError:
                manifests.append(ref)
            else:
                parts.append(refs.coords[_dangling(refs, listed, damaged)])
        coords = np.concatenate([np.zeros((0, len(data.shape)), np.uint32), *parts])
        if manifests or len(coords):
            yield Lost(node, tuple(manifests), coords)


def _dangling(refs: ArrayManifest, listed: Listing, damaged: set[ChunkId]) -> NDArray[np.bool_]:
    native = np.flatnonzero(refs.kind == NATIVE)
    wrong = np.zeros(len(refs), np.bool_)
    if not len(native):
        return wrong
    ids = refs.chunk_ids[native]
    there = is_member(ids, listed.ids)
    wrong[native[~there]] = True
    sizes = listed.sizes[id_keys(listed.ids).searchsorted(id_keys(ids[there]))]
    ends = (refs.offsets + refs.lengths)[native[there]]
    wrong[native[there]] = sizes.astype(np.uint64) < ends
    if damaged:
        wrong[native] |= np.array([ChunkId(row.tobytes()) in damaged for row in ids], np.bool_)
    return wrong


def repair_array(
    workspace: Workspace,
    lost: Lost,
    source: ChunkSource | None,
    write_values: Callable[[str, tuple[int, ...], NDArray[Any]], None],
    report: RepairReport,
    *,
    drop: bool,
) -> None:
    """Ask the source for all that an array has lost; what it has not is dropped, if it may be."""
    node = lost.node
    found = {} if source is None else _asked(source, lost)
    unknown = {ref.id: any(at not in found for at in lost.extents(ref)) for ref in lost.manifests}
    stuck = any(unknown.values()) and not drop  # nothing of the array can be written anew
    for ref in lost.manifests:
        action = LEFT if stuck else DROPPED if unknown[ref.id] else MADE
        report.actions.append((f"{MANIFESTS}/{ref.id}", node.path, "manifest gone", action))
    dropped = []
    for coords in map(tuple, lost.coords.tolist()):
        action = LEFT if stuck else MADE if coords in found else DROPPED if drop else LEFT
        report.actions.append((f"{node.path} {list(coords)}", CHUNKS, "chunk gone", action))
        dropped += [coords] if action is DROPPED else []
    if report.dry_run or stuck:
        return
    if lost.manifests:
        _forget_manifests(workspace, node, set(unknown))
    for coords, data in found.items():
        if isinstance(data, np.ndarray):
            write_values(node.path, coords, data)
        else:
            workspace.write(node.path, coords, data)
    gone = np.array(dropped, np.uint32).reshape(len(dropped), lost.coords.shape[1])
    workspace.delete_chunks(workspace.array(node.path), gone)


def _asked(source: ChunkSource, lost: Lost) -> dict[tuple[int, ...], bytes | NDArray[Any]]:
    found: dict[tuple[int, ...], bytes | NDArray[Any]] = {}
    for coords in lost.chunks():
        data = source(lost.node.path, coords)
        if data is not None:
            found[coords] = data
    return found


def _forget_manifests(workspace: Workspace, node: NodeSnapshot, gone: set[ManifestId]) -> None:
    data = node.node_data
    if isinstance(data, ArrayNodeData):
        kept = tuple(ref for ref in data.manifests if ref.id not in gone)
        # As if the metadata had changed: nobody knows which chunks there were.
        workspace.changes.updated[node.path] = replace(node, node_data=replace(data, manifests=kept))
        workspace.rebase(workspace.base, workspace.changes)


def as_source(sources: ChunkSource | Mapping[str, ChunkSource] | None) -> ChunkSource | None:
    """One source for all arrays, out of one for each."""
    if not isinstance(sources, Mapping):
        return sources
    table = dict(sources)
    return lambda path, coords: table[path](path, coords) if path in table else None
