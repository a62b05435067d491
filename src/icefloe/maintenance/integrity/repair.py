"""Repair: restore lost objects from a source or, on request, drop the references to them.

Existing files are never changed. Lost chunks and manifests are restored by a commit on a branch; earlier
snapshots still refer to the lost objects until they expire. A missing transaction log is computed from the
snapshots before and after it. A missing snapshot is removed from the history. Virtual references can be
changed to new locations of their files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import ThreadExecutor
from icefloe._internal.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, SnapshotId
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe.core.assets import AssetStore
from icefloe.core.commit.computed_log import compute_log
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.core.virtual_chunks.locations import to_stored_form
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS
from icefloe.format.manifest import NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.pruning import shorten_history
from icefloe.format.repo_changes import Changed
from icefloe.format.repo_info import NO_PARENT, RepoInfo
from icefloe.format.snapshot import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.integrity.checksums import record_again
from icefloe.maintenance.integrity.findings import Finding, Findings, Level
from icefloe.maintenance.integrity.verify_sources import check_sources, find_sources
from icefloe.maintenance.listings import ObjectListing, list_folder
from icefloe.ops import UpdateType

if TYPE_CHECKING:
    from icefloe.session import Session

ReadChunk: TypeAlias = Callable[[str, tuple[int, ...]], "bytes | NDArray[Any] | None"]
"""A function that takes an array path and chunk coordinates, and returns stored bytes, values or None."""


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """A source of chunks for a repair: a function that takes an array path and chunk coordinates.

    Parameters
    ----------
    read
        Returns the stored bytes of the chunk, its values as a numpy array, or None if it has no such chunk.
    """

    read: ReadChunk

    def __call__(self, path: str, coords: tuple[int, ...], /) -> bytes | NDArray[Any] | None:
        return self.read(path, coords)

    @staticmethod
    def from_session(session: Session) -> ChunkSource:
        """Create a chunk source for a repair from a session, for example on a clone.

        Parameters
        ----------
        session
            A session on a snapshot that has the chunks.

        Returns
        -------
        ChunkSource
        """

        def read(path: str, coords: tuple[int, ...]) -> bytes | None:
            workspace = session._workspace
            ref = workspace.ref(workspace.array(path), coords)
            return None if ref is None else workspace.read(ref, 0, ref.length, f"{list(coords)} of {path}")

        return ChunkSource(read)


@dataclass(frozen=True, slots=True)
class RepairReport(Report):
    """The result of a repair: the damage found, and the actions taken or, with `dry_run`, planned."""

    dry_run: bool
    """True if nothing was written."""
    snapshot_id: str | None = None
    """The snapshot id of the repair commit."""
    actions: tuple[Action, ...] = ()
    """One tuple per problem: the object, its referrer, the problem and the action."""

    @property
    def complete(self) -> bool:
        """True if the repair left no damage."""
        return all(action != LEFT for *_, action in self.actions)

    def table(self) -> Table:
        """Return the damage found by a repair as a table: object, where, problem, action.

        Returns
        -------
        Table
        """
        names = ("object", "where", "problem", "action")
        return Table({name: [row[at] for row in self.actions] for at, name in enumerate(names)})


Action: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Repairs:
    """The actions taken by a repair in progress."""

    dry_run: bool
    drop: bool
    actions: list[Action] = field(default_factory=list)


RESTORED, DROPPED, LEFT = "restored", "dropped", "left unchanged"
RELOCATED = "relocated"
_GONE = ("missing", "unreadable")
_LOST_SOURCE = ("missing", "changed", "short")
"""The kinds of findings that mean that a file is lost. Unreachable files may be intact, so they are
excluded.
"""


def repair(
    refs: RefStore,
    assets: AssetStore,
    findings: Sequence[Finding],
    open_session: Callable[[], Session],
    *,
    sources: ReadChunk | Mapping[str, ReadChunk] | None,
    relocate: Mapping[str, str],
    drop: bool,
    dry_run: bool,
    message: str,
) -> RepairReport:
    """Repair the problems found by a verification in one commit; see `Repository.repair`."""
    report = Repairs(dry_run, drop)
    _drop_snapshots(refs, assets, findings, report)
    _rebuild_logs(refs, assets, findings, report)
    damaged = {
        ChunkId.parse(found.object.partition("/")[2])
        for found in findings
        if found.kind == "checksum" and found.object.startswith(f"{CHUNKS}/")
    }
    session = open_session()
    source, workspace = _as_source(sources), session._workspace
    for lost in _find_lost(workspace, list_folder(assets.storage, CHUNKS), damaged):
        _repair_array(workspace, lost, source, partial(_write_values, session), report)
    moves = {_encode_prefix(old): _encode_prefix(new) for old, new in relocate.items()}
    _repair_virtual(workspace, _find_broken_sources(findings), moves, report)
    made = session.commit(message) if session.has_uncommitted_changes else None
    return RepairReport(dry_run, made, tuple(report.actions))


# The history


def _rebuild_logs(refs: RefStore, assets: AssetStore, findings: Sequence[Finding], report: Repairs) -> None:
    """Compute missing transaction logs, except for expired snapshots, whose logs cannot be computed."""
    made = []
    for found in findings:
        folder, _, name = found.object.partition("/")
        if folder == TRANSACTIONS:
            log = _compute_log(refs, assets, SnapshotId.parse(name))
            if log is not None and not report.dry_run:
                assets.write_transaction_log(log)
                made.append(log.id)
            report.actions.append((found.object, found.where, found.kind, LEFT if log is None else RESTORED))
    record_again(assets.storage, TRANSACTIONS, made)


def _compute_log(refs: RefStore, assets: AssetStore, id: SnapshotId) -> TransactionLog | None:
    try:
        parent = refs.snapshot(id).parent_id
        return None if parent is None else compute_log(assets.snapshot(parent), assets.snapshot(id), assets)
    except (
        IcechunkError
    ):  # the snapshot has expired, or a snapshot or manifest before or after it is also missing
        return None


def _drop_snapshots(refs: RefStore, assets: AssetStore, findings: Sequence[Finding], report: Repairs) -> None:
    """Remove missing snapshots from the history, and reset branches to their newest existing snapshot.

    In version 1, only the snapshot file contains the id of its parent, so the ancestors of a missing snapshot
    are unknown. Its child is rewritten with the first snapshot as its parent, as in an expiration. Branches
    and tags of version 1 at a missing snapshot are not changed.
    """
    noted = [found for found in findings if found.object.startswith(f"{SNAPSHOTS}/")]
    lost = {SnapshotId.parse(found.object.partition("/")[2]): found for found in noted if found.kind in _GONE}
    for found in noted:
        if found.kind not in _GONE:
            report.actions.append((found.object, found.where, found.kind, LEFT))
    after = {} if isinstance(refs, RefStoreV2) else _find_children(refs, lost)
    for id, found in lost.items():
        may_go = report.drop and (isinstance(refs, RefStoreV2) or id in after)
        report.actions.append((found.object, found.where, found.kind, DROPPED if may_go else LEFT))
    if report.dry_run or not report.drop or not lost:
        return
    if isinstance(refs, RefStoreV2):
        refs.update(lambda info: _remove_lost(info, set(lost)))
    for followers in after.values():
        for id in followers:
            assets.write_snapshot(replace(assets.snapshot(id), parent_id=INITIAL_SNAPSHOT_ID))


def _find_children(refs: RefStore, lost: Collection[SnapshotId]) -> dict[SnapshotId, set[SnapshotId]]:
    """Return the children of lost snapshots; empty if the first snapshot, their new parent, is also lost."""
    found: dict[SnapshotId, set[SnapshotId]] = {}
    if not lost or INITIAL_SNAPSHOT_ID in lost:
        return found
    for tip in {*refs.branches().values(), *refs.tags().values()}:
        with contextlib.suppress(IcechunkError):  # the history ends at a lost snapshot
            for info in refs.ancestry(tip):
                if info.parent_id is not None and info.parent_id in lost:
                    found.setdefault(info.parent_id, set()).add(info.id)
    return found


def _remove_lost(info: RepoInfo, lost: set[SnapshotId]) -> Changed:
    snapshots = info.snapshots
    keep = np.array([snapshots.id_at(row) not in lost for row in range(len(snapshots))], np.bool_)
    first = (snapshots.parents == NO_PARENT) & ~keep
    keep |= first  # other snapshots need it as an ancestor

    def last_there(tip: SnapshotId) -> SnapshotId:
        return next(snapshots.id_at(row) for row in snapshots.ancestry(tip) if keep[row])

    gone = {tag for tag, id in info.tags.items() if last_there(id) != id}
    changed = replace(
        info,
        snapshots=shorten_history(snapshots, keep),
        branches={name: last_there(tip) for name, tip in info.branches.items()},
        tags={tag: id for tag, id in info.tags.items() if tag not in gone},
        deleted_tags=info.deleted_tags | gone,
    )
    return changed, UpdateType.ExpirationRan()


# Chunks


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """The lost manifests and chunks of an array, which a repair restores or drops."""

    node: NodeSnapshot
    manifests: tuple[ManifestRef, ...]
    coords: NDArray[np.uint32]
    """The coordinates of chunks whose object is missing, too short or damaged."""

    def chunks(self) -> Iterator[tuple[int, ...]]:
        """Yield the coordinates of all chunks of an array that may be lost."""
        yield from map(tuple, self.coords.tolist())
        for ref in self.manifests:
            yield from self.extents(ref)

    def extents(self, ref: ManifestRef) -> Iterator[tuple[int, ...]]:
        """Return the extents of a lost manifest, or the whole chunk grid if they are unknown."""
        data = self.node.node_data
        grid = [range(d.num_chunks) for d in data.shape] if isinstance(data, ArrayNodeData) else []
        return product(*(ref.extents if len(ref.extents) == len(grid) else grid))


def _find_lost(workspace: Workspace, listed: ObjectListing, damaged: set[ChunkId]) -> Iterator[Lost]:
    """Yield the arrays of a snapshot that have lost manifests or chunks."""
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
                parts.append(refs.coords[_find_dangling(refs, listed, damaged)])
        coords = np.concatenate([np.zeros((0, len(data.shape)), np.uint32), *parts])
        if manifests or len(coords):
            yield Lost(node, tuple(manifests), coords)


def _find_dangling(refs: ArrayManifest, listed: ObjectListing, damaged: set[ChunkId]) -> NDArray[np.bool_]:
    native = np.flatnonzero(refs.kind == NATIVE)
    wrong = np.zeros(len(refs), np.bool_)
    if not len(native):
        return wrong
    ids = refs.chunk_ids[native]
    there, sizes = listed.find(ids)
    wrong[native[~there]] = True
    ends = (refs.offsets + refs.lengths)[native[there]]
    wrong[native[there]] = sizes.astype(np.uint64) < ends
    if damaged:
        wrong[native] |= np.array([ChunkId(row.tobytes()) in damaged for row in ids], np.bool_)
    return wrong


def _repair_array(
    workspace: Workspace,
    lost: Lost,
    source: ReadChunk | None,
    write_values: Callable[[str, tuple[int, ...], NDArray[Any]], None],
    report: Repairs,
) -> None:
    """Restore the lost chunks of an array from a source. On request, drop chunks that cannot be restored."""
    node = lost.node
    found = {} if source is None else _read_lost(source, lost)
    unknown = {ref.id: any(at not in found for at in lost.extents(ref)) for ref in lost.manifests}
    stuck = any(unknown.values()) and not report.drop  # the array cannot be rewritten
    for ref in lost.manifests:
        action = LEFT if stuck else DROPPED if unknown[ref.id] else RESTORED
        report.actions.append((f"{MANIFESTS}/{ref.id}", node.path, "manifest lost", action))
    dropped = []
    for coords in map(tuple, lost.coords.tolist()):
        action = LEFT if stuck else RESTORED if coords in found else DROPPED if report.drop else LEFT
        report.actions.append((f"{node.path} {list(coords)}", CHUNKS, "chunk lost", action))
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


def _read_lost(source: ReadChunk, lost: Lost) -> dict[tuple[int, ...], bytes | NDArray[Any]]:
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
        # Treat the metadata as changed, because the chunks of the lost manifests are unknown.
        workspace.changes.updated[node.path] = replace(node, node_data=replace(data, manifests=kept))
        workspace.rebase(workspace.base, workspace.changes)


def _as_source(sources: ReadChunk | Mapping[str, ReadChunk] | None) -> ReadChunk | None:
    """Combine the chunk sources of single arrays into one."""
    if not isinstance(sources, Mapping):
        return sources
    table = dict(sources)
    return lambda path, coords: table[path](path, coords) if path in table else None


def _write_values(session: Session, path: str, coords: tuple[int, ...], values: NDArray[Any]) -> None:
    """Encode and write one chunk of an array."""
    import zarr

    array = zarr.open_array(session.store, path=path.strip("/"))
    sizes = array.shards or array.chunks
    region = tuple(
        slice(at * size, min((at + 1) * size, length))
        for at, size, length in zip(coords, sizes, array.shape, strict=True)
    )
    array[region] = values[tuple(slice(0, part.stop - part.start) for part in region)]


# Virtual references


def _find_broken_sources(findings: Sequence[Finding]) -> dict[str, str]:
    """Map each damaged source file of virtual references to its problem."""
    return {
        found.object: found.kind
        for found in findings
        if found.where == "virtual references" and found.kind in _LOST_SOURCE
    }


def _repair_virtual(
    workspace: Workspace,
    broken: Mapping[str, str],
    relocate: Mapping[str, str],
    report: Repairs,
) -> None:
    """Change references to missing files to the new locations of these files, or drop them on request.

    The version of a file at its new location is unknown, so the new references have no checksum.
    """
    for node, refs in _find_references_to(workspace, set(broken)):
        for location, rows in _group_by_location(refs):
            moved = _relocate(workspace, refs.take(rows), location, relocate)
            action = RELOCATED if moved is not None else DROPPED if report.drop else LEFT
            report.actions.append((location, node.path, broken[location], action))
            if report.dry_run or action == LEFT:
                continue
            array = workspace.array(node.path)
            if moved is not None:
                workspace.put_refs(array, moved)
            else:
                workspace.delete_chunks(array, refs.coords[rows])


def _find_references_to(
    workspace: Workspace, broken: set[str]
) -> Iterator[tuple[NodeSnapshot, ArrayManifest]]:
    """Yield, for each array, the references that point to the given files."""
    for node in list(workspace.base.nodes):
        data = node.node_data
        for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
            try:
                refs = workspace.manifest_refs(node, ref)
            except IcechunkError:  # lost manifests are repaired separately
                continue
            codes = [code for code, text in enumerate(refs.locations) if _to_text(text) in broken]
            rows = (refs.kind == VIRTUAL) & np.isin(refs.location_codes, codes)
            if rows.any():
                yield node, refs.take(rows)


def _group_by_location(refs: ArrayManifest) -> Iterator[tuple[str, NDArray[np.intp]]]:
    for code in np.unique(refs.location_codes).tolist():
        yield _to_text(refs.locations[code]), np.flatnonzero(refs.location_codes == code)


def _relocate(
    workspace: Workspace, refs: ArrayManifest, location: str, relocate: Mapping[str, str]
) -> ArrayManifest | None:
    """Return references to a file at its new location, or None if it does not exist there."""
    prefixes = [prefix for prefix in relocate if location.startswith(prefix)]
    if not prefixes:
        return None
    prefix = max(prefixes, key=len)
    target = relocate[prefix] + location.removeprefix(prefix)
    moved = ArrayManifest.virtual(refs.coords, [target] * len(refs), refs.offsets, refs.lengths)
    found = Findings(Level.SOURCES)
    check_sources(find_sources(moved), workspace.assets.virtual, ThreadExecutor(1), found)
    return moved if found.ok else None


def _encode_prefix(prefix: str) -> str:
    """Percent-encode the path of a file URL as in stored locations, so that both can be compared."""
    return to_stored_form(prefix) if prefix[:5].lower() == "file:" else prefix


def _to_text(location: bytes) -> str:
    return location.decode("utf-8", "replace")
