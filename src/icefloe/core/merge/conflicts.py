"""The rules that detect conflicts between the changes of a session and those in a transaction log.

"Ours" are the changes of the session, "theirs" those in the log. Rules are in the order in which the official
library lists conflicts. Each additional rule follows the official rule that it resembles most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId
from icefloe._internal.paths import get_parent, list_ancestors
from icefloe.conflicts import Conflict, ConflictType
from icefloe.core.changeset import ArrayDelta, ChangeSet
from icefloe.core.commit.idempotency import is_key_node
from icefloe.format import coordinates
from icefloe.format.chunk_regions import ChunkRegions
from icefloe.format.coordinates import Coords
from icefloe.format.id_columns import is_member, view_id_keys
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import ArrayNodeData, GroupNodeData, Nodes, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import NodeIds, TransactionLog

_MEANS_NOTHING_TO_CHUNKS: Final = ("attributes", "dimension_names", "shape")
"""The zarr.json entries that do not affect how chunks are decoded."""


@dataclass(frozen=True, slots=True)
class Found:
    """A detected conflict, with the chunks to which the solver's decision applies."""

    conflict: Conflict
    node: NodeId | None = None
    coords: Coords | None = None
    theirs_would_be_lost: bool = False
    """True if some of their chunks are outside our version of the array's shape."""

    @staticmethod
    def of(kind: ConflictType, path: str) -> Found:
        """Create a conflict about a whole node."""
        return Found(Conflict(kind, path))


class TheirChanges:
    """Their changes: the changes of another commit, which are checked for conflicts with ours.

    Node paths are read only if a rule needs them.
    """

    def __init__(self, log: TransactionLog, after: Callable[[], Snapshot]) -> None:
        self.log = log
        self._after = after

    @cached_property
    def new_nodes(self) -> Mapping[str, bool]:
        """The paths of the nodes that the other side created, each with a flag that is True for arrays."""
        fresh = np.concatenate([self.log.new_groups, self.log.new_arrays])
        if not len(fresh):
            return {}
        nodes = self._after().nodes
        if not len(nodes):
            return {}
        order = view_id_keys(fresh).argsort()
        rows = np.flatnonzero(is_member(nodes.columns["id"], fresh[order])).tolist()
        kinds, paths = nodes.columns["node_data"].kinds, nodes.paths()
        found = {paths[row]: bool(kinds[row] == ARRAY_NODE) for row in rows}
        return {path: is_array for path, is_array in found.items() if not is_key_node(path)}

    def deleted(self, node: NodeSnapshot | None) -> bool:
        """Return True if the other side deleted a node, or if the node did not exist on that side."""
        if node is None:
            return True
        return _has(self.log.deleted_arrays if _is_array(node) else self.log.deleted_groups, node.id)

    @cached_property
    def chunks(self) -> Mapping[NodeId, list[Coords | ChunkRegions]]:
        """The chunks that the other side changed, as lists per array and rank."""
        found: dict[NodeId, list[Coords | ChunkRegions]] = {}
        for node, chunks in self.log.updated_chunks.lists():
            found.setdefault(node, []).append(chunks)
        return found

    def blocks(self, node: NodeId) -> Iterator[Coords]:
        """Yield the coordinates of the chunks that the other side changed in an array, in blocks."""
        for chunks in self.chunks.get(node, ()):
            yield from chunks.blocks() if isinstance(chunks, ChunkRegions) else (chunks,)


class Detection:
    """Detects conflicts between our changes and theirs, given the nodes of their common base."""

    def __init__(self, base: Nodes, ours: ChangeSet, theirs: TheirChanges) -> None:
        self._base = base
        self._ours = ours
        self._theirs = theirs
        self._log = theirs.log

    def conflicts(self) -> Iterator[Found]:
        """Find all conflicts between our changes and theirs, in the order of the official library."""
        # A log lists nodes by id, and a move changes the paths of whole subtrees. Official rebases also
        # reject logs with moves. Merges align the paths of both sides first (see `moves`).
        if self._log.moved_nodes:
            yield Found.of(ConflictType.MoveOperationCannotBeRebased, "")
            return
        for rule in (
            self._find_new_node_conflicts,
            self._find_nodes_in_arrays,
            self._find_nodes_in_deleted_groups,
            self._find_move_conflicts,
            self._find_metadata_double_updates,
            self._find_metadata_of_deleted,
            self._find_chunks_in_deleted,
            self._find_chunks_in_updated,
            self._find_chunk_double_updates,
            self._find_metadata_of_written,
            self._find_deletes_of_updated,
            self._find_deletes_of_groups_with_new_nodes,
        ):
            # Commit keys never conflict, because they are combined.
            yield from (found for found in rule() if not is_key_node(found.conflict.path))

    def _find_new_node_conflicts(self) -> Iterator[Found]:
        for path in sorted(self._ours.created):
            if path in self._theirs.new_nodes:
                again = path in self._ours.deleted
                yield Found.of(
                    ConflictType.NodeRecreatedByBothSides
                    if again
                    else ConflictType.NewNodeConflictsWithExistingNode,
                    path,
                )

    def _find_nodes_in_arrays(self) -> Iterator[Found]:
        created = self._ours.created
        if not created:
            return
        new_arrays = {path for path, is_array in self._theirs.new_nodes.items() if is_array}
        for path in sorted(created):
            # An array cannot contain nodes. Their new array is at a path where our side has a group,
            # possibly an implicit group without a zarr.json.
            for above in new_arrays.intersection(list_ancestors(path)):
                yield Found.of(ConflictType.NewNodeInInvalidGroup, above)
        own_arrays = {path for path, node in created.items() if _is_array(node)}
        inside = {
            above
            for path in self._theirs.new_nodes
            for above in own_arrays.intersection(list_ancestors(path))
        }
        for path in sorted(inside - self._theirs.new_nodes.keys()):
            yield Found.of(ConflictType.NewNodeInInvalidGroup, path)

    def _find_nodes_in_deleted_groups(self) -> Iterator[Found]:
        if not len(self._log.deleted_groups):
            return
        for path in sorted(self._ours.created):
            if any(self._is_lost_group(above) for above in list_ancestors(path)):
                yield Found.of(ConflictType.NewNodeInDeletedGroup, path)

    def _is_lost_group(self, path: str) -> bool:
        """Return True if a group of the base no longer exists on either side."""
        if path in self._ours.created or path in self._theirs.new_nodes:
            return False
        group = self._base.find(self._ours.moved.get(path, path))
        return group is not None and _has(self._log.deleted_groups, group.id)

    def _find_move_conflicts(self) -> Iterator[Found]:
        moved = self._ours.moved
        if not moved:
            return
        for path in sorted(moved):
            is_array = (node := self._base.find(moved[path])) is not None and _is_array(node)
            if path in self._theirs.new_nodes or (is_array and self._list_new_below(path)):
                yield Found.of(ConflictType.MoveToExistingNode, path)
        for path in sorted(moved.keys() & find_moved_along(moved, self._theirs.new_nodes)):
            yield Found.of(ConflictType.MoveToExistingNode, path)
        for path in sorted(path for path in moved if is_move_itself(moved, path)):
            if self._theirs.deleted(self._base.find(moved[path])):
                yield Found.of(ConflictType.MoveOfDeletedNode, moved[path])
            group = get_parent(path)
            if group is not None and self._is_lost_group(group):
                yield Found.of(ConflictType.NewNodeInDeletedGroup, path)
            elif group is not None and self._theirs.new_nodes.get(group):
                yield Found.of(ConflictType.NewNodeInInvalidGroup, group)

    def _list_new_below(self, path: str) -> bool:
        return any(path in list_ancestors(new) for new in self._theirs.new_nodes)

    def _find_metadata_double_updates(self) -> Iterator[Found]:
        updated = self._ours.updated
        for path in _find_paths(updated, self._log.updated_arrays) + _find_paths(
            updated, self._log.updated_groups
        ):
            yield Found.of(ConflictType.ZarrMetadataDoubleUpdate, path)

    def _find_metadata_of_deleted(self) -> Iterator[Found]:
        for path in _find_paths(self._ours.updated, self._log.deleted_arrays):
            yield Found.of(ConflictType.ZarrMetadataUpdateOfDeletedArray, path)
        for path in _find_paths(self._ours.updated, self._log.deleted_groups):
            yield Found.of(ConflictType.ZarrMetadataUpdateOfDeletedGroup, path)

    def _find_chunks_in_deleted(self) -> Iterator[Found]:
        for path in self._find_written_among(self._log.deleted_arrays):
            yield Found.of(ConflictType.ChunksUpdatedInDeletedArray, path)

    def _find_chunks_in_updated(self) -> Iterator[Found]:
        for path in self._find_written_among(self._log.updated_arrays):
            yield Found.of(ConflictType.ChunksUpdatedInUpdatedArray, path)

    def _find_written_among(self, column: NodeIds) -> list[str]:
        # If all our chunks were dropped in favor of theirs, no conflict is left.
        written = self._ours.chunks.items() if len(column) else ()
        return sorted(delta.path for node, delta in written if _has(column, node) and delta.has_changes())

    def _find_chunk_double_updates(self) -> Iterator[Found]:
        for node, delta in sorted(self._ours.chunks.items(), key=lambda item: item[1].path):
            both = self._find_shared_chunks(node, delta)
            if len(both):
                conflict = Conflict.of_column(ConflictType.ChunkDoubleUpdate, delta.path, both)
                yield Found(conflict, node, both, bool(self._mark_outside(delta.path, both).any()))

    def _find_shared_chunks(self, node: NodeId, delta: ArrayDelta) -> Coords:
        """Return the sorted coordinates of the chunks that both sides changed."""
        blocks = (coords for coords in self._theirs.blocks(node) if coords.shape[1] == delta.rank)
        shared = [coords[mask] for coords in blocks if (mask := delta.find_changed(coords)).any()]
        return np.concatenate([np.zeros((0, delta.rank), np.uint32), *shared])

    def _mark_outside(self, path: str, coords: Coords) -> NDArray[np.bool_]:
        """Return a mask of the chunks that are outside our version of the array's shape."""
        node = self._ours.updated.get(path)
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            return np.zeros(len(coords), np.bool_)
        grid = [range(max(dimension.num_chunks, 1)) for dimension in node.node_data.shape]
        return (
            ~coordinates.are_inside(coords, grid)
            if len(grid) == coords.shape[1]
            else np.ones(len(coords), np.bool_)
        )

    def _find_metadata_of_written(self) -> Iterator[Found]:
        for path, node in sorted(self._ours.updated.items()):
            # Our metadata determines how chunks are decoded and which chunks exist. It conflicts with chunks
            # that the other side wrote for the old metadata, even if we did not write any chunks.
            before = self._base.find(path)
            if before is None or node.id not in self._theirs.chunks:
                continue
            if have_incompatible_metadata(before, node):
                yield Found.of(ConflictType.ZarrMetadataUpdateOfWrittenArray, path)
                continue
            lost = [coords[self._mark_outside(path, coords)] for coords in self._theirs.blocks(node.id)]
            delta = self._ours.chunks.get(node.id)
            if delta is not None:  # chunks that our side also changed are chunk double updates
                lost = [each[~delta.find_changed(each)] for each in lost]
            coords = [row for each in lost for row in each.tolist()]
            if coords:
                yield Found(Conflict(ConflictType.ZarrMetadataUpdateOfWrittenArray, path, coords), node.id)

    def _find_deletes_of_updated(self) -> Iterator[Found]:
        deleted, log = self._ours.deleted, self._log
        chunks = log.updated_chunks
        # A commit whose chunks of an array were all dropped in a rebase still lists the array.
        written = chunks.node_ids[chunks.counts > 0]
        touched = {*_find_paths(deleted, log.updated_arrays), *_find_paths(deleted, written)}
        for path in sorted(touched):
            yield Found.of(ConflictType.DeleteOfUpdatedArray, path)
        for path in _find_paths(deleted, log.updated_groups):
            yield Found.of(ConflictType.DeleteOfUpdatedGroup, path)

    def _find_deletes_of_groups_with_new_nodes(self) -> Iterator[Found]:
        gone = {
            path
            for path, node in self._ours.deleted.items()
            if isinstance(node.node_data, GroupNodeData) and not _has(self._log.deleted_groups, node.id)
        }
        if gone:
            for path in sorted(
                {_find_topmost(new, gone) for new in self._theirs.new_nodes} - {None}, key=str
            ):
                yield Found.of(ConflictType.DeleteOfGroupWithNewNodes, str(path))


def find_moved_along(moved: Mapping[str, str], new_nodes: Iterable[str]) -> dict[str, str]:
    """Find new nodes inside groups that the other side moved. Return the paths of the nodes after and before
    the move.
    """
    places = {origin: path for path, origin in moved.items()}
    found: dict[str, str] = {}
    for new in new_nodes:
        above = next((group for group in list_ancestors(new) if group in places), None)
        if above is not None:
            found[places[above] + new[len(above) :]] = new
    return found


def is_move_itself(moved: Mapping[str, str], path: str) -> bool:
    """Return True if a node itself was moved, not just one of the groups that contain it."""
    group, origin = get_parent(path), get_parent(moved[path])
    return group is None or moved.get(group) != origin


def _is_array(node: NodeSnapshot) -> bool:
    return isinstance(node.node_data, ArrayNodeData)


def _has(column: NodeIds, node: NodeId) -> bool:
    return bool(is_member(np.frombuffer(node, np.uint8)[None], column)[0])


def _find_paths(nodes: Mapping[str, NodeSnapshot], column: NodeIds) -> list[str]:
    """Return the sorted paths of the nodes whose ids are in a column."""
    if not nodes or not len(column):
        return []
    paths = sorted(nodes)
    ids = np.frombuffer(b"".join(nodes[path].id for path in paths), np.uint8).reshape(-1, NodeId.SIZE)
    return [paths[row] for row in np.flatnonzero(is_member(ids, column)).tolist()]


def _find_topmost(path: str, groups: Iterable[str]) -> str | None:
    return next((above for above in reversed(list_ancestors(path)) if above in groups), None)


def have_incompatible_metadata(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    """Return True if chunks written with one version of a zarr.json cannot be decoded with another
    version.
    """

    def meaning(node: NodeSnapshot) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(node.user_data)
        return {name: value for name, value in document.items() if name not in _MEANS_NOTHING_TO_CHUNKS}

    return meaning(before) != meaning(after)
