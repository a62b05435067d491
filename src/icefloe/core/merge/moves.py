"""Find the paths of nodes after a merge in which one or both sides moved nodes.

A node has an id and a place, which consists of its group and its name. The members of a moved group keep
their places. Places are merged like other data: the side that changed a place wins. Then the three states are
rewritten with every node at its final path, so that merging the content of nodes does not have to consider
moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import get_name, get_parent, join, list_ancestors, make_component_key
from icefloe.conflicts import ConflictGroup, ConflictType
from icefloe.core.changeset import ChangeSet
from icefloe.core.merge.state_changes import State
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.format.transaction_log import MoveOperation, NodeType, TransactionLog
from icefloe.snapshots import Diff

Place: TypeAlias = tuple[NodeId | str | None, str]
"""The parent group (its id, or its path if it is implicit), and the name in that group."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The result of merging the moves of both sides: the three states of a merge with all nodes at their
    final paths.
    """

    base: State
    ours: State
    theirs: State
    origins: Mapping[str, str]
    """The current path of each of our nodes that will move, by final path."""
    dropped: tuple[NodeSnapshot, ...] = ()
    """Our nodes that the other side deleted and whose paths are taken by other nodes."""
    conflicts: tuple[ConflictGroup, ...] = ()
    """Conflicts that no strategy can resolve, because a node can have only one path."""

    def is_empty(self) -> bool:
        """Return True if the merge does not move any of our nodes."""
        return not self.origins and not self.dropped

    def log(self, changes: ChangeSet, id: SnapshotId) -> TransactionLog:
        """Return the node moves and deletions that the merge makes on our side, before all other changes."""
        moves = [
            MoveOperation(origin, path, node.id, NodeType.ARRAY if _is_array(node) else NodeType.GROUP)
            for path, origin in self.origins.items()
            if path not in changes.deleted and (node := self.ours.snapshot.nodes.find(path)) is not None
        ]
        return TransactionLog.of(
            id,
            moved_nodes=moves,
            deleted_arrays=[node.id for node in self.dropped if _is_array(node)],
            deleted_groups=[node.id for node in self.dropped if not _is_array(node)],
        )

    def all_changes(self, diff: Diff) -> Diff:
        """Return all changes that the merge makes on our side: node moves first, then the given changes."""
        gone = [
            {self.origins.get(path, path) for path in paths}
            for paths in (diff.deleted_arrays, diff.deleted_groups)
        ]
        deleted = diff.deleted_arrays | diff.deleted_groups
        return replace(
            diff,
            deleted_arrays=gone[0] | {node.path for node in self.dropped if _is_array(node)},
            deleted_groups=gone[1] | {node.path for node in self.dropped if not _is_array(node)},
            moved_nodes=[
                (self.origins[path], path)
                for path in sorted(self.origins, key=make_component_key)
                if path not in deleted
            ],
        )


def arrange(base: State, ours: State, theirs: State, touched: Iterable[NodeId]) -> Arrangement:
    """Merge the node moves of both sides, and return the three states with all nodes at their final paths."""
    states = (base, ours, theirs)
    if not any(len({path for state in states if (path := state.path(id))}) > 1 for id in touched):
        return Arrangement(base, ours, theirs, {})
    return _Arranger(base, ours, theirs).run()


class _Arranger:
    """Merges the places of all nodes, and detects conflicting moves."""

    def __init__(self, base: State, ours: State, theirs: State) -> None:
        self._base, self._ours, self._theirs = base, ours, theirs
        self._states = (base, ours, theirs)
        self._ids = {id for state in self._states for id in state.ids()}
        self._paths: dict[NodeId, str | None] = {}
        self._moved_by_us, self._moved_by_them = self._find_moved(ours), self._find_moved(theirs)

    def run(self) -> Arrangement:
        # Final paths are defined only if no node has two of them, and two nodes can meet only if all final
        # paths exist. So each kind of conflict is searched only if the kinds before it do not occur.
        conflicts = tuple(self._find_double_moves())
        if not conflicts:
            conflicts = (*self._find_cycles(), *self._find_moves_to_nowhere())
        dropped: set[NodeId] = set()
        if not conflicts:
            conflicts = tuple(self._find_meetings(dropped))
        if conflicts:
            return Arrangement(self._base, self._ours, self._theirs, {}, conflicts=conflicts)
        ours = self._ours
        origins = {
            path: origin
            for id in ours.ids() - dropped
            if (path := self._resolve_path(id)) != (origin := ours.path(id)) and path and origin
        }
        gone = tuple(node for id in sorted(dropped) if (node := ours.node(id)) is not None)
        base, ours, theirs = (self._rearrange(state, dropped) for state in self._states)
        return Arrangement(base, ours, theirs, origins, gone)

    def _get_place(self, state: State, id: NodeId) -> Place:
        path = state.path(id) or ""
        group = get_parent(path)
        return (None if group is None else state.id_at(group) or group), get_name(path)

    def _find_moved(self, state: State) -> set[NodeId]:
        """Return the nodes that one side moved directly, excluding nodes that moved with their group."""
        base = self._base
        return {
            id
            for id in base.ids() & state.ids()
            if base.path(id) != state.path(id) and self._get_place(base, id) != self._get_place(state, id)
        }

    def _is_deleted(self, id: NodeId) -> bool:
        """Return True if either side deleted a node."""
        return self._base.path(id) is not None and None in (self._ours.path(id), self._theirs.path(id))

    def _resolve_path(self, id: NodeId) -> str | None:
        """Return the final path of a node; None if it would be inside itself."""
        if id not in self._paths:
            self._paths[id] = None  # stops the recursion at a cycle
            # The side that moved a node decides its place. A node that only we moved, or nobody, has its
            # place in our state. The other states are needed for nodes that we do not have.
            sides = (self._theirs,) if id in self._moved_by_them else (self._ours, self._theirs, self._base)
            side = next(state for state in sides if state.path(id) is not None)
            group, called = self._get_place(side, id)
            above = self._resolve_path(group) if isinstance(group, NodeId) else group
            if group is None:
                self._paths[id] = side.path(id)
            elif above is not None:
                self._paths[id] = join(above, called)
        return self._paths[id]

    # Conflicts

    def _find_double_moves(self) -> Iterator[ConflictGroup]:
        # Nodes that both sides received in an earlier merge are not in the base, and may have moved since.
        shared = (self._ours.ids() & self._theirs.ids()) - self._base.ids()
        both = self._moved_by_us & self._moved_by_them | shared
        for id in self._sort_ids(self._moved_by_us | self._moved_by_them | shared):
            if self._is_deleted(id):
                yield self._make_conflict(ConflictType.MoveOfDeletedNode, id)
            elif id in both and self._get_place(self._ours, id) != self._get_place(self._theirs, id):
                yield self._make_conflict(ConflictType.NodeMovedByBothSides, id)

    def _find_cycles(self) -> Iterator[ConflictGroup]:
        for id in self._sort_ids(self._moved_by_us | self._moved_by_them):
            if self._resolve_path(id) is None:
                yield self._make_conflict(ConflictType.NodeMovedByBothSides, id)

    def _find_moves_to_nowhere(self) -> Iterator[ConflictGroup]:
        """Yield a conflict for each node that was moved into a group that the other side deleted or replaced
        with an array.
        """
        arrays = {
            self._resolve_path(id) for id in self._ids if self._is_array(id) and not self._is_deleted(id)
        }
        for id in self._sort_ids(self._moved_by_us | self._moved_by_them):
            side = self._theirs if id in self._moved_by_them else self._ours
            groups = [
                state_id for path in list_ancestors(side.path(id) or "/") if (state_id := side.id_at(path))
            ]
            if any(map(self._is_deleted, groups)):
                yield self._make_conflict(ConflictType.NewNodeInDeletedGroup, id)
            elif arrays.intersection(list_ancestors(self._resolve_path(id) or "/")):
                yield self._make_conflict(ConflictType.NewNodeInInvalidGroup, id)

    def _find_meetings(self, dropped: set[NodeId]) -> Iterator[ConflictGroup]:
        """Yield a conflict for each pair of nodes that end up at the same path. Deleted nodes count only if
        they were changed.
        """
        # Two nodes collide if one state contains both. Nodes that both sides created at one path are compared
        # later, by the rules of conflict.
        found: dict[str, set[NodeId]] = defaultdict(set)
        for state in self._states:
            at: dict[str, NodeId] = {}
            for id in state.ids():
                path = self._resolve_path(id) or ""
                if path in at:
                    found[path] |= {id, at[path]}
                at[path] = id
        for path, ids in sorted(found.items()):
            dead = {id for id in ids if self._is_deleted(id)}
            if len(ids - dead) > 1 or any(map(self._is_changed, dead)):
                here, there = (self._describe(state, ids) for state in self._states[1:])
                yield ConflictGroup(path, ConflictType.MoveToExistingNode, None, here, there)
            dropped |= dead

    def _is_changed(self, id: NodeId) -> bool:
        """Return True if one side deleted a node and the other side changed it."""
        before, after = self._base.node(id), self._ours.node(id) or self._theirs.node(id)
        return before is not None and after is not None and replace(after, path=before.path) != before

    def _is_array(self, id: NodeId) -> bool:
        return any(_is_array(node) for state in self._states if (node := state.node(id)) is not None)

    def _sort_ids(self, ids: set[NodeId]) -> list[NodeId]:
        return sorted(ids, key=lambda id: self._base.path(id) or self._ours.path(id) or "")

    def _make_conflict(self, kind: ConflictType, id: NodeId) -> ConflictGroup:
        path = self._base.path(id) or self._ours.path(id) or ""
        here, there = (self._describe(state, {id}) for state in self._states[1:])
        return ConflictGroup(path, kind, None, here, there)

    def _describe(self, state: State, ids: set[NodeId]) -> _DistinctTexts:
        words = []
        for id in sorted(ids, key=lambda id: state.path(id) or ""):
            before, after = self._base.path(id), state.path(id)
            if before != after:
                words.append(
                    f"deleted {before}"
                    if after is None
                    else f"created {after}"
                    if before is None
                    else f"moved {before} to {after}"
                )
        return _DistinctTexts(", ".join(words) or "did not move it")

    # The result

    def _rearrange(self, state: State, dropped: set[NodeId]) -> State:
        gone = [state.path(id) or "" for id in state.ids() & dropped]
        put = []
        for id in state.ids() - dropped:
            path, node = self._resolve_path(id), state.node(id)
            if node is not None and path is not None and path != node.path:
                gone.append(node.path)
                put.append(replace(node, path=path))
        nodes = state.snapshot.nodes.with_changes(put, gone)
        return State(replace(state.snapshot, nodes=nodes), state.workspace.assets)


@dataclass(frozen=True, slots=True)
class _DistinctTexts:
    """The distinct strings to show in one cell of the conflict table."""

    text: str

    def __call__(self) -> list[str]:
        return [self.text]


def _is_array(node: NodeSnapshot) -> bool:
    return isinstance(node.node_data, ArrayNodeData)
