"""Three-way merge: find conflicts, resolve them, and return the changes to make on our side.

"Ours" is the state to merge into, "theirs" the state to merge. Both are compared with their common ancestor,
the base. If both sides made the same change, there is no conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from icefloe._internal.ids import NodeId
from icefloe._internal.paths import ROOT, get_parent, is_within, list_ancestors
from icefloe.conflicts import ConflictGroup, ConflictType, MergeStrategy
from icefloe.core.changeset import ChangeSet, count_dimensions
from icefloe.core.commit.flush import make_log
from icefloe.core.merge.conflict_details import ConflictReader
from icefloe.core.merge.conflicts import Detection, Found, TheirChanges, have_incompatible_metadata
from icefloe.core.merge.rebase import is_record, transfer_changes
from icefloe.core.merge.state_changes import State, Touched, drop_manifests, find_same_chunks, put_differences
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, InlineRef, NativeRef
from icefloe.format.snapshot import ArrayNodeData, GroupNodeData, NodeSnapshot


@dataclass(frozen=True, slots=True)
class Sides:
    """The inputs of a three-way merge: the three states with all nodes at their final paths, and the changes
    of both sides.
    """

    base: State
    ours: State
    theirs: State
    our_changes: ChangeSet
    their_changes: ChangeSet
    our_touched: Touched
    their_touched: Touched


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a three-way merge: the changes to make on our side, and all conflicts."""

    changes: ChangeSet
    conflicts: tuple[ConflictGroup, ...]
    decided: bool
    """True if there were no conflicts, or if the strategy resolved all of them."""


def merge(sides: Sides, strategy: MergeStrategy) -> Merged:
    """Merge their changes into our state, given the common base."""
    # Equal changes on both sides are not conflicts, so they are dropped first. The remaining changes are
    # checked by the rules of a rebase. A strategy then edits the two change sets until no conflict is left.
    ours, theirs = sides.our_changes.copy(), sides.their_changes.copy()
    _drop_common_changes(sides, ours, theirs)
    every = _find_conflicts(sides, ours, theirs)
    found = [each for each in every if not is_record(each)]
    reader = ConflictReader(sides.ours, sides.theirs)
    groups = tuple(_group_conflicts(sides, ours, theirs, each, reader) for each in found)
    decided = strategy != "fail"
    resolution = _Resolution(sides, ours, theirs)
    for each in every:
        if is_record(each):
            resolution.keep_ours(each)
        elif decided:
            (resolution.take_theirs if strategy == "theirs" else resolution.keep_ours)(each)
    return Merged(transfer_changes(sides.ours.snapshot.nodes, theirs), groups, decided or not found)


def _drop_common_changes(sides: Sides, ours: ChangeSet, theirs: ChangeSet) -> None:
    """Drop changes that both sides made, and compare nodes that exist on both sides but not in the base."""
    mine = {node.id: path for path, node in ours.created.items()}
    for path, node in list(theirs.created.items()):
        if mine.get(node.id) == path:  # both sides received the same node in an earlier merge or cherry-pick
            own = ours.created.pop(path)
            del theirs.created[path]
            if own.user_data != node.user_data:
                ours.updated[path], theirs.updated[path] = own, node
            if count_dimensions(own) == count_dimensions(node):
                _record_deletions(own, ours, theirs, sides.our_touched)
                _record_deletions(node, theirs, ours, sides.their_touched)
    for path, node in list(theirs.updated.items()):
        own_update = ours.updated.get(path)
        if own_update is not None and own_update.user_data == node.user_data:
            del theirs.updated[path]
    for id, delta in list(theirs.chunks.items()):
        own_delta = ours.chunks.get(id)
        if own_delta is None or own_delta.rank != delta.rank:
            continue
        written, gone = delta.resolve()
        own_written, own_gone = own_delta.resolve()
        common = gone[coordinates.contains(gone, own_gone)]
        if written is not None and own_written is not None:
            common = np.concatenate([common, find_same_chunks(written, own_written)])
        delta.forget(coordinates.keep_last_of_equal(common)[0])
        if not len(delta.coords()):
            del theirs.chunks[id]


def _record_deletions(node: NodeSnapshot, changes: ChangeSet, other: ChangeSet, touched: Touched) -> None:
    """Record the chunks of an array that exist only on the other side and that this side may have deleted.

    The base does not contain the array. A chunk is certainly new on the other side only if the logs of this
    side list every chunk that this side ever had, and the chunk is not among them.
    """
    # Without a common base, a chunk that exists only on one side was either deleted or added. The logs
    # determine which. If they are incomplete, a deletion is assumed, so that it is reported as a conflict
    # instead of being undone silently.
    there, here = other.chunks.get(node.id), changes.chunks.get(node.id)
    if there is None:
        return
    coords = there.coords()
    missing = coords if here is None else coords[~coordinates.contains(coords, here.coords())]
    if touched.is_complete:
        had = touched.chunks.get((node.id, count_dimensions(node)), missing[:0])
        missing = missing[coordinates.contains(missing, had)]
    if len(missing):
        changes.delta(node).delete_many(missing)


def _find_conflicts(sides: Sides, ours: ChangeSet, theirs: ChangeSet) -> list[Found]:
    if theirs.is_empty():
        return []
    # Apply the rules of a rebase, with their changes as the session and a log of our changes as the earlier
    # commit. A merge and a rebase of the same changes then report the same conflicts.
    log = make_log(Workspace(sides.base.snapshot, sides.base.workspace.assets, ours), sides.ours.snapshot.id)
    detection = Detection(sides.base.snapshot.nodes, theirs, TheirChanges(log, lambda: sides.ours.snapshot))
    return [each for each in detection.conflicts() if not _is_compatible(sides, theirs, each)]


def _is_compatible(sides: Sides, theirs: ChangeSet, found: Found) -> bool:
    """Return True if their chunks can be decoded with our metadata. If not, a rebase would reject all of
    them.
    """
    if _get_kind(found) is not ConflictType.ChunksUpdatedInUpdatedArray:
        return False
    path = found.conflict.path
    here, there = sides.ours.snapshot.nodes.find(path), sides.theirs.snapshot.nodes.find(path)
    if here is None or there is None or have_incompatible_metadata(here, there):
        return False
    data = here.node_data
    if not isinstance(data, ArrayNodeData):
        return False
    grid = [range(max(dimension.num_chunks, 1)) for dimension in data.shape]
    return bool(coordinates.are_inside(theirs.chunks[here.id].coords(), grid).all())


def _get_kind(found: Found) -> ConflictType:
    return found.conflict.conflict_type


# Table of conflicts


def _group_conflicts(
    sides: Sides, ours: ChangeSet, theirs: ChangeSet, found: Found, reader: ConflictReader
) -> ConflictGroup:
    conflict = found.conflict
    if found.coords is not None and found.node is not None:
        here = partial(_describe_chunks, sides.ours, found.node, found.coords)
        there = partial(_describe_chunks, sides.theirs, found.node, found.coords)
        details = partial(reader.details, found.node)
        return ConflictGroup(conflict.path, conflict.conflict_type, found.coords, here, there, details)
    here, there = (partial(_describe_node_changes, changes, conflict.path) for changes in (ours, theirs))
    return ConflictGroup(conflict.path, conflict.conflict_type, None, here, there)


def _describe_chunks(state: State, id: NodeId, coords: Coords) -> list[str]:
    """Describe the state of one side's chunks at the given coordinates."""
    node = state.node(id)
    if node is None:
        return ["deleted"] * len(coords)
    refs = state.refs_at(node, coords)
    rows = iter(range(len(refs)))
    present = coordinates.contains(coords, refs.coords).tolist()
    return [_describe_ref(refs, next(rows)) if there else "deleted" for there in present]


def _describe_ref(refs: ArrayManifest, row: int) -> str:
    match refs.ref(row):
        case InlineRef(data):
            return f"{len(data)} bytes inline"
        case NativeRef(id, offset, length):
            return f"{length} bytes at {offset} of chunk {id}"
        case virtual:
            return f"{virtual.length} bytes at {virtual.offset} of {virtual.location}"


def _describe_node_changes(changes: ChangeSet, path: str) -> list[str]:
    """Describe how one side changed a node."""
    words = []
    if path in changes.deleted:
        words.append("deleted")
    if (created := changes.created.get(path)) is not None:
        words.append(
            "created a group" if isinstance(created.node_data, GroupNodeData) else "created an array"
        )
    if path in changes.updated:
        words.append("changed its metadata")
    if any(delta.path == path for delta in changes.chunks.values()) and path not in changes.created:
        words.append("wrote chunks")
    if any(above in changes.deleted for above in list_ancestors(path)) and not words:
        words.append("deleted its group")
    if any(path in list_ancestors(each) for each in changes.created):
        words.append("created nodes in it")
    return [", ".join(words) or "did not change it"]


# Resolution of conflicts


class _Resolution:
    """Resolves conflicts by editing both change sets. Applying the same decision twice has no further
    effect.
    """

    def __init__(self, sides: Sides, ours: ChangeSet, theirs: ChangeSet) -> None:
        self._our_state, self._their_state = sides.ours, sides.theirs
        self._our_nodes, self._their_nodes = sides.ours.snapshot.nodes, sides.theirs.snapshot.nodes
        self._ours = ours
        self._changes = theirs

    def keep_ours(self, found: Found) -> None:
        """Resolve a conflict by dropping their change."""
        path, changes = found.conflict.path, self._changes
        match _get_kind(found):
            case ConflictType.NewNodeConflictsWithExistingNode | ConflictType.NodeRecreatedByBothSides:
                self._drop_created(path, alone=self._are_groups(path))
            case ConflictType.NewNodeInInvalidGroup | ConflictType.NewNodeInDeletedGroup:
                self._drop_created(path)
            case ConflictType.ZarrMetadataDoubleUpdate:
                if self._read_differently(path):
                    self._drop_chunks(path)
                changes.updated.pop(path, None)
            case ConflictType.ChunkDoubleUpdate:
                if found.node in changes.chunks and found.coords is not None:
                    changes.chunks[found.node].forget(found.coords)
            case ConflictType.DeleteOfUpdatedArray | ConflictType.DeleteOfUpdatedGroup:
                self._keep(path)
            case ConflictType.DeleteOfGroupWithNewNodes:
                for new in self._list_new_below(path):
                    self._keep(new)
            case _:  # metadata or chunks of nodes that we deleted, or that do not fit our metadata
                changes.updated.pop(path, None)
                self._drop_chunks(path)

    def take_theirs(self, found: Found) -> None:
        """Resolve a conflict by removing what prevents their change from our side."""
        path = found.conflict.path
        match _get_kind(found):
            case ConflictType.NewNodeConflictsWithExistingNode | ConflictType.NodeRecreatedByBothSides:
                self._replace(path)
            case ConflictType.NewNodeInInvalidGroup:
                if path in self._changes.created:
                    for new in self._list_new_below(path):
                        self._delete(new)
                else:
                    self._delete(path)
                    self._restore(path)
            case ConflictType.NewNodeInDeletedGroup:
                self._restore(get_parent(path) or ROOT)
            case ConflictType.ZarrMetadataDoubleUpdate:
                if self._read_differently(path):
                    self._take_array(path)
            case ConflictType.ChunksUpdatedInUpdatedArray | ConflictType.ZarrMetadataUpdateOfWrittenArray:
                self._take_array(path)
            case ConflictType.DeleteOfGroupWithNewNodes:
                for new in self._list_new_below(path):
                    self._delete(new)
            case (
                ConflictType.ZarrMetadataUpdateOfDeletedArray
                | ConflictType.ZarrMetadataUpdateOfDeletedGroup
                | ConflictType.ChunksUpdatedInDeletedArray
            ):
                self._restore(path)

    def _are_groups(self, path: str) -> bool:
        here, there = self._our_nodes.find(path), self._their_nodes.find(path)
        return _is_group(here) and _is_group(there)

    def _read_differently(self, path: str) -> bool:
        here, there = self._our_nodes.find(path), self._their_nodes.find(path)
        return here is not None and there is not None and have_incompatible_metadata(here, there)

    def _list_new_below(self, path: str) -> list[str]:
        return [new for new in self._ours.created if path in list_ancestors(new)]

    def _drop_created(self, path: str, *, alone: bool = False) -> None:
        """Drop a node that they created, and all nodes inside it."""
        for each in [path] if alone else [p for p in self._changes.created if is_within(p, path)]:
            node = self._changes.created.pop(each, None)
            if node is not None:
                self._changes.chunks.pop(node.id, None)

    def _drop_chunks(self, path: str) -> None:
        for id in [id for id, delta in self._changes.chunks.items() if delta.path == path]:
            del self._changes.chunks[id]

    def _keep(self, path: str) -> None:
        """Keep a node and its parent groups. If the other side replaced one of these groups, take its
        version.
        """
        self._keep_at(path, alone=self._are_groups(path))
        for above in list_ancestors(path):
            if not _is_group(self._changes.created.get(above)):
                self._keep_at(above)

    def _keep_at(self, path: str, *, alone: bool = False) -> None:
        """Keep a node that they deleted or replaced."""
        if self._changes.deleted.pop(path, None) is not None:
            self._drop_created(path, alone=alone)

    def _delete(self, path: str) -> None:
        """Delete one of our nodes and all nodes below it."""
        for each in self._our_state.workspace.below(path):
            node = self._our_nodes.find(each)
            if node is not None:
                self._changes.deleted[each] = node

    def _replace(self, path: str) -> None:
        """Replace our node with theirs. If both are groups, replace only the metadata."""
        here, there = self._our_nodes.find(path), self._changes.created.get(path)
        if here is None or there is None:
            return
        if self._are_groups(path):
            del self._changes.created[path]
            self._changes.updated[path] = replace(here, user_data=there.user_data)
        else:
            self._delete(path)

    def _restore(self, path: str) -> None:
        """Restore their version of a node that we deleted or replaced, and of its parent groups."""
        for each in (*list_ancestors(path), path):
            here, there = self._our_nodes.find(each), self._their_nodes.find(each)
            if there is None or each in self._changes.created or (here is not None and here.id == there.id):
                continue
            self._changes.updated.pop(each, None)
            if here is not None and self._are_groups(each):
                if each == path:
                    self._changes.updated[each] = replace(here, user_data=there.user_data)
                continue
            self._delete(each)
            self._changes.created[each] = drop_manifests(there)
            self._changes.chunks.pop(there.id, None)
            put_differences(self._changes, there, None, self._their_state.workspace.refs(there))

    def _take_array(self, path: str) -> None:
        """Take their version of an array, both metadata and chunks."""
        here, there = self._our_nodes.find(path), self._their_nodes.find(path)
        if here is None or there is None:
            return
        self._changes.updated[path] = drop_manifests(there)
        self._changes.chunks.pop(there.id, None)
        new, old = self._their_state.workspace.refs(there), self._our_state.workspace.refs(here)
        put_differences(self._changes, there, old if old.rank == new.rank else None, new)


def _is_group(node: NodeSnapshot | None) -> bool:
    return node is not None and isinstance(node.node_data, GroupNodeData)
