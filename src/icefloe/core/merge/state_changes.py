"""The changes between two arbitrary snapshots, as a change set.

Only nodes and chunks that the transaction logs mention are compared. The two snapshots may be on different
branches, and either may be older.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import NodeId, SnapshotId
from icefloe.core.ancestry import Step, list_steps_between, read_step_log
from icefloe.core.assets import AssetStore
from icefloe.core.changeset import ChangeSet, count_dimensions
from icefloe.core.merge.lineage import is_squash
from icefloe.core.refs.base import RefStore
from icefloe.core.workspace import Workspace
from icefloe.errors import SessionStateError, SnapshotNotFoundError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import sort_ids, to_ids, view_id_keys
from icefloe.format.manifest import ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, ManifestRef, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import LISTS, TransactionLog
from icefloe.storage.base import ObjectNotFoundError


class State:
    """One state of a merge, based on a snapshot, which is compared with another state."""

    def __init__(self, snapshot: Snapshot, assets: AssetStore) -> None:
        self.snapshot = snapshot
        self.workspace = Workspace(snapshot, assets)

    @cached_property
    def _paths(self) -> Mapping[bytes, str]:
        nodes = self.snapshot.nodes
        if not len(nodes):
            return {}
        ids = np.ascontiguousarray(nodes.columns["id"]).tobytes()
        return {ids[8 * row : 8 * row + 8]: path for row, path in enumerate(nodes.paths())}

    @cached_property
    def _ids(self) -> Mapping[str, NodeId]:
        return {path: NodeId(id) for id, path in self._paths.items()}

    def ids(self) -> set[NodeId]:
        """Return the ids of all nodes in this state."""
        return set(self._ids.values())

    def id_at(self, path: str) -> NodeId | None:
        """Return the id of the node at a path; None if there is none."""
        return self._ids.get(path)

    def path(self, id: NodeId) -> str | None:
        """Return the path of a node; None if it does not exist in this state."""
        return self._paths.get(id.__bytes__())

    def node(self, id: NodeId) -> NodeSnapshot | None:
        """Return the node with an id; None if it does not exist in this state."""
        path = self.path(id)
        return None if path is None else self.snapshot.nodes.find(path)

    def refs_at(self, node: NodeSnapshot, coords: Coords) -> ArrayManifest:
        """Return the references of an array at the given sorted coordinates."""
        if not len(coords) or coords.shape[1] != count_dimensions(node):
            return self.refs_in(node, ())
        box = coordinates.find_bounding_box(coords)
        found = self.refs_in(node, [ref for ref in _get_manifests(node) if _is_overlapping(ref.extents, box)])
        return found.take(coordinates.contains(found.coords, coords))

    def refs_in(self, node: NodeSnapshot, manifests: Collection[ManifestRef]) -> ArrayManifest:
        """Return the references of an array that are stored in the given manifests."""
        parts = [self.workspace.manifest_refs(node, ref) for ref in _get_manifests(node) if ref in manifests]
        empty = ArrayManifest.of(np.zeros((0, count_dimensions(node)), np.uint32), 1)
        return ArrayManifest.concat(parts) if parts else empty


def _is_overlapping(extents: tuple[range, ...], box: tuple[range, ...]) -> bool:
    if len(extents) != len(box):  # some writers omit extents
        return True
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(extents, box, strict=True))


@dataclass(frozen=True, slots=True)
class Touched:
    """The nodes and chunks that may differ between two states of a merge, and therefore have to be
    compared.
    """

    nodes: tuple[NodeId, ...]
    updated: frozenset[NodeId]
    """The arrays whose metadata changed, or that were deleted and restored. They may have lost chunks that no
    transaction log mentions.
    """
    chunks: Mapping[tuple[NodeId, int], Coords]
    """The sorted coordinates of the changed chunks, by array and rank."""
    new: frozenset[NodeId] = frozenset()
    """The ids of the nodes that were created."""
    changed: frozenset[NodeId] = frozenset()
    """The nodes that were created, deleted or moved, or whose metadata changed."""
    is_complete: bool = False
    """True if `chunks` includes every chunk that was ever written, even if it was deleted later."""

    @staticmethod
    def of_all(one: State, other: State) -> Touched:
        """Mark every node of two states as possibly changed, for cases without transaction logs."""
        nodes = one.ids() | other.ids()
        return Touched(tuple(nodes), frozenset(nodes), {}, frozenset(nodes), frozenset(nodes))

    @staticmethod
    def of(logs: Iterable[TransactionLog], *, is_complete: bool = False) -> Touched:
        """Collect the changed nodes and chunks from the transaction logs between two states."""
        lists = list(logs)
        columns = [getattr(log, name) for log in lists for name in LISTS]
        columns += [log.updated_chunks.node_ids for log in lists]
        moved = b"".join(move.node_id for log in lists for move in log.moved_nodes)
        columns.append(np.frombuffer(moved, np.uint8).reshape(-1, NodeId.SIZE))
        parts: dict[tuple[NodeId, int], list[Coords]] = {}
        for log in lists:
            for node, coords in log.updated_chunks:
                parts.setdefault((node, coords.shape[1]), []).append(coords)
        chunks = {key: coordinates.keep_last_of_equal(np.concatenate(each))[0] for key, each in parts.items()}
        updated, new, deleted = (
            {NodeId(row.tobytes()) for log in lists for row in getattr(log, name)}
            for name in ("updated_arrays", "new_arrays", "deleted_arrays")
        )
        nodes = to_ids(view_id_keys(sort_ids(np.concatenate(columns))), NodeId)
        changed = {NodeId(row.tobytes()) for log in lists for name in LISTS for row in getattr(log, name)}
        changed |= {move.node_id for log in lists for move in log.moved_nodes}
        new_groups = {NodeId(row.tobytes()) for log in lists for row in log.new_groups}
        return Touched(
            tuple(nodes),
            frozenset(updated | (new & deleted)),
            chunks,
            frozenset(new | new_groups),
            frozenset(changed),
            is_complete,
        )

    def among(self, nodes: set[NodeId]) -> Touched:
        """Return only the changes that concern the given nodes."""
        chunks = {key: coords for key, coords in self.chunks.items() if key[0] in nodes}
        named = tuple(id for id in self.nodes if id in nodes)
        return replace(self, nodes=named, chunks=chunks, changed=self.changed & nodes)

    def overlaps(self, other: Touched) -> bool:
        """Return True if both sides changed the same chunk, or the metadata or path of the same node."""
        if not (self.changed.isdisjoint(other.nodes) and other.changed.isdisjoint(self.nodes)):
            return True
        shared = self.chunks.keys() & other.chunks.keys()
        return any(coordinates.contains(self.chunks[key], other.chunks[key]).any() for key in shared)

    def explains(self, before: State, after: State) -> bool:
        """Return True if the logs account for all differences between two states, and mention only nodes of
        these states.
        """
        # Chunks may belong to an array that was created and deleted again, and is in no list.
        if not before.ids() | self.new >= {*self.changed, *after.ids()}:
            return False
        for id in before.ids():
            old, new = before.node(id), after.node(id)
            if old == new or old is None:
                continue
            if new is None:
                if id not in self.changed:
                    return False
                continue
            if (old.user_data != new.user_data or old.path != new.path) and id not in self.changed:
                return False
            if not self._explains_chunks(before, after, old, new):
                return False
        return True

    def _explains_chunks(self, before: State, after: State, old: NodeSnapshot, new: NodeSnapshot) -> bool:
        if count_dimensions(old) != count_dimensions(new):
            return old.id in self.updated
        apart = _get_manifests(old) ^ _get_manifests(new)
        changes = ChangeSet()
        put_differences(changes, new, before.refs_in(old, apart), after.refs_in(new, apart))
        delta = changes.chunks.get(new.id)
        if delta is None:
            return True
        written, gone = delta.resolve()
        named = self.chunks.get((new.id, count_dimensions(new)), gone[:0])
        is_named = written is None or bool(coordinates.contains(written.coords, named).all())
        return is_named and (new.id in self.updated or bool(coordinates.contains(gone, named).all()))


def find_touched(
    refs: RefStore, assets: AssetStore, one: SnapshotId, other: SnapshotId, executor: Executor
) -> Touched | None:
    """Return the nodes and chunks that may differ between two snapshots, according to transaction logs; None
    if logs are missing.
    """
    steps = _find_steps_between(refs, one, other)
    if steps is None:
        return None
    is_complete = not any(len(step.logs) > 1 or is_squash(refs.snapshot(step.snapshot)) for step in steps)
    try:
        return Touched.of(
            executor.map(Task(lambda step: read_step_log(assets, step), "transaction logs"), steps),
            is_complete=is_complete,
        )
    except (ObjectNotFoundError, SessionStateError):
        return None


def _find_steps_between(refs: RefStore, one: SnapshotId, other: SnapshotId) -> list[Step] | None:
    """Return the commits from the common ancestor to both snapshots; None if the ancestor is unknown."""
    for early, late in ((one, other), (other, one)):
        with suppress(SnapshotNotFoundError):  # an expired snapshot is found in the other history
            if (direct := list_steps_between(refs, early, late)) is not None:
                return direct
    parted = find_last_common_state(refs, one, other)
    if parted is None:
        return None
    return [step for end in (one, other) for step in list_steps_between(refs, parted, end) or ()]


def find_last_common_state(refs: RefStore, one: SnapshotId, other: SnapshotId) -> SnapshotId | None:
    """Return the newest snapshot that two histories share."""
    try:
        known = {info.id for info in refs.ancestry(one)}
        return next((info.id for info in refs.ancestry(other) if info.id in known), None)
    except SnapshotNotFoundError:
        return None


def find_changes(before: State, after: State, touched: Touched) -> ChangeSet:
    """Find the changes that turn one state of a merge into another.

    Only the nodes in `touched` are compared, and moves are ignored.
    """
    changes = ChangeSet()
    for id in touched.nodes:  # a loop over nodes, not over chunks
        old, new = before.node(id), after.node(id)
        if new is None:
            if old is not None:
                changes.deleted[old.path] = old
            continue
        if old is None:
            changes.created[new.path] = drop_manifests(new)
            put_differences(changes, new, None, after.workspace.refs(new))
            continue
        if new.user_data != old.user_data:
            changes.updated[new.path] = drop_manifests(new)
        rank = count_dimensions(new)
        if id in touched.updated and rank == count_dimensions(old):
            apart = _get_manifests(old) ^ _get_manifests(new)
            put_differences(changes, new, before.refs_in(old, apart), after.refs_in(new, apart))
        elif (coords := touched.chunks.get((id, rank))) is not None:
            put_differences(changes, new, before.refs_at(old, coords), after.refs_at(new, coords))
    return changes


def put_differences(
    changes: ChangeSet, node: NodeSnapshot, old: ArrayManifest | None, new: ArrayManifest
) -> None:
    """Add the chunk changes that turn one state's references into another's."""
    written, gone = new, new.coords[:0]
    if old is not None and len(old):
        written = new.take(~_mark_same(new, old))
        gone = old.coords[~coordinates.contains(old.coords, new.coords)]
    if len(written) or len(gone):
        delta = changes.delta(node)
        if len(gone):
            delta.delete_many(gone)
        if len(written):
            delta.put_many(written)


def find_same_chunks(one: ArrayManifest, other: ArrayManifest) -> Coords:
    """Find the coordinates whose chunks did not change between two states."""
    return one.coords[_mark_same(one, other)]


def _mark_same(one: ArrayManifest, other: ArrayManifest) -> NDArray[np.bool_]:
    """Return a mask of the references that another set also contains at the same coordinates."""
    here = coordinates.contains(one.coords, other.coords)
    there = coordinates.contains(other.coords, one.coords)
    here[here] = one.take(here).equal_rows(other.take(there))
    return here


def drop_manifests(node: NodeSnapshot) -> NodeSnapshot:
    """Return a node without its manifests. Its chunks are listed separately in the change set."""
    data = node.node_data
    return replace(node, node_data=replace(data, manifests=())) if isinstance(data, ArrayNodeData) else node


def _get_manifests(node: NodeSnapshot) -> set[ManifestRef]:
    data = node.node_data
    return set(data.manifests) if isinstance(data, ArrayNodeData) else set()
