"""Where nodes are after a merge when one side moved some, or both did.

A node is known by its id and has a place: the group it is in, and its name there. What is in a group that
moved goes along and keeps its place. Places are merged like everything else: that of the side that changed it
counts. Three states are then told anew with every node where it will be, so that whoever merges what nodes
hold needs to know nothing of moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import ancestors, component_key, join, name, parent
from icefloe.conflicts import ConflictGroup, ConflictType
from icefloe.core.changeset import ChangeSet
from icefloe.core.merge.state_changes import State
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.format.transaction_log import MoveOperation, NodeType, TransactionLog
from icefloe.snapshots import Diff

Place: TypeAlias = tuple[NodeId | str | None, str]
"""The group, by its path where it has no node, and the name in it."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Three states whose nodes are where they will be, and what that takes on our side."""

    base: State
    ours: State
    theirs: State
    origins: Mapping[str, str]
    """Of each node of ours that is moved: where it will be, and where it is."""
    dropped: tuple[NodeSnapshot, ...] = ()
    """Nodes of ours that theirs deleted, and in whose place another comes."""
    conflicts: tuple[ConflictGroup, ...] = ()
    """No strategy decides them: where a node is, is one thing for both sides."""

    def is_empty(self) -> bool:
        """Whether all nodes of ours are where they were."""
        return not self.origins and not self.dropped

    def log(self, changes: ChangeSet, id: SnapshotId) -> TransactionLog:
        """What was done to our side before further changes are made."""
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

    def told(self, diff: Diff) -> Diff:
        """What changes on our side in all, from what changes after the moves."""
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
                for path in sorted(self.origins, key=component_key)
                if path not in deleted
            ],
        )


def arranged(base: State, ours: State, theirs: State, touched: Iterable[NodeId]) -> Arrangement:
    """The states with places merged; only nodes that were touched can have moved."""
    states = (base, ours, theirs)
    if not any(len({path for state in states if (path := state.path(id))}) > 1 for id in touched):
        return Arrangement(base, ours, theirs, {})
    return _Arranging(base, ours, theirs).run()


class _Arranging:
    """One merge of places."""

    def __init__(self, base: State, ours: State, theirs: State) -> None:
        self._base, self._ours, self._theirs = base, ours, theirs
        self._states = (base, ours, theirs)
        self._ids = {id for state in self._states for id in state.ids()}
        self._paths: dict[NodeId, str | None] = {}
        self._moved_by_us, self._moved_by_them = self._moved(ours), self._moved(theirs)

    def run(self) -> Arrangement:
        conflicts = tuple(self._double_moves())
        if not conflicts:
            conflicts = (*self._circles(), *self._moves_to_nowhere())
        dropped: set[NodeId] = set()
        if not conflicts:
            conflicts = tuple(self._meetings(dropped))
        if conflicts:
            return Arrangement(self._base, self._ours, self._theirs, {}, conflicts=conflicts)
        ours = self._ours
        origins = {
            path: origin
            for id in ours.ids() - dropped
            if (path := self._path(id)) != (origin := ours.path(id)) and path and origin
        }
        gone = tuple(node for id in sorted(dropped) if (node := ours.node(id)) is not None)
        base, ours, theirs = (self._rearranged(state, dropped) for state in self._states)
        return Arrangement(base, ours, theirs, origins, gone)

    def _place(self, state: State, id: NodeId) -> Place:
        path = state.path(id) or ""
        group = parent(path)
        return (None if group is None else state.id_at(group) or group), name(path)

    def _moved(self, state: State) -> set[NodeId]:
        """The nodes that a side moved on their own, not with the group they are in."""
        base = self._base
        return {
            id
            for id in base.ids() & state.ids()
            if base.path(id) != state.path(id) and self._place(base, id) != self._place(state, id)
        }

    def _is_dead(self, id: NodeId) -> bool:
        """Whether a side deleted a node."""
        return self._base.path(id) is not None and None in (self._ours.path(id), self._theirs.path(id))

    def _path(self, id: NodeId) -> str | None:
        """Where a node will be; None where it would be inside itself."""
        if id not in self._paths:
            self._paths[id] = None  # for whoever asks on the way up
            sides = (self._theirs,) if id in self._moved_by_them else (self._ours, self._theirs, self._base)
            side = next(state for state in sides if state.path(id) is not None)
            group, called = self._place(side, id)
            above = self._path(group) if isinstance(group, NodeId) else group
            if group is None:
                self._paths[id] = side.path(id)
            elif above is not None:
                self._paths[id] = join(above, called)
        return self._paths[id]

    # Conflicts

    def _double_moves(self) -> Iterator[ConflictGroup]:
        # What came to both sides by an earlier merge or pick is not in the base, and may have moved since.
        shared = (self._ours.ids() & self._theirs.ids()) - self._base.ids()
        both = self._moved_by_us & self._moved_by_them | shared
        for id in self._in_order(self._moved_by_us | self._moved_by_them | shared):
            if self._is_dead(id):
                yield self._conflict(ConflictType.MoveOfDeletedNode, id)
            elif id in both and self._place(self._ours, id) != self._place(self._theirs, id):
                yield self._conflict(ConflictType.NodeMovedByBothSides, id)

    def _circles(self) -> Iterator[ConflictGroup]:
        for id in self._in_order(self._moved_by_us | self._moved_by_them):
            if self._path(id) is None:
                yield self._conflict(ConflictType.NodeMovedByBothSides, id)

    def _moves_to_nowhere(self) -> Iterator[ConflictGroup]:
        """Nodes moved into what the other side deleted, or made an array."""
        arrays = {self._path(id) for id in self._ids if self._is_array(id) and not self._is_dead(id)}
        for id in self._in_order(self._moved_by_us | self._moved_by_them):
            side = self._theirs if id in self._moved_by_them else self._ours
            groups = [state_id for path in ancestors(side.path(id) or "/") if (state_id := side.id_at(path))]
            if any(map(self._is_dead, groups)):
                yield self._conflict(ConflictType.NewNodeInDeletedGroup, id)
            elif arrays.intersection(ancestors(self._path(id) or "/")):
                yield self._conflict(ConflictType.NewNodeInInvalidGroup, id)

    def _meetings(self, dropped: set[NodeId]) -> Iterator[ConflictGroup]:
        """Two nodes of one state at one path. One that was deleted gives way, unless it was changed too."""
        found: dict[str, set[NodeId]] = defaultdict(set)
        for state in self._states:
            at: dict[str, NodeId] = {}
            for id in state.ids():
                path = self._path(id) or ""
                if path in at:
                    found[path] |= {id, at[path]}
                at[path] = id
        for path, ids in sorted(found.items()):
            dead = {id for id in ids if self._is_dead(id)}
            if len(ids - dead) > 1 or any(map(self._is_changed, dead)):
                here, there = (self._words(state, ids) for state in self._states[1:])
                yield ConflictGroup(path, ConflictType.MoveToExistingNode, None, here, there)
            dropped |= dead

    def _is_changed(self, id: NodeId) -> bool:
        """Whether the side that did not delete a node changed it."""
        before, after = self._base.node(id), self._ours.node(id) or self._theirs.node(id)
        return before is not None and after is not None and replace(after, path=before.path) != before

    def _is_array(self, id: NodeId) -> bool:
        return any(_is_array(node) for state in self._states if (node := state.node(id)) is not None)

    def _in_order(self, ids: set[NodeId]) -> list[NodeId]:
        return sorted(ids, key=lambda id: self._base.path(id) or self._ours.path(id) or "")

    def _conflict(self, kind: ConflictType, id: NodeId) -> ConflictGroup:
        path = self._base.path(id) or self._ours.path(id) or ""
        here, there = (self._words(state, {id}) for state in self._states[1:])
        return ConflictGroup(path, kind, None, here, there)

    def _words(self, state: State, ids: set[NodeId]) -> _Words:
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
        return _Words(", ".join(words) or "left it where it was")

    # The result

    def _rearranged(self, state: State, dropped: set[NodeId]) -> State:
        gone = [state.path(id) or "" for id in state.ids() & dropped]
        put = []
        for id in state.ids() - dropped:
            path, node = self._path(id), state.node(id)
            if node is not None and path is not None and path != node.path:
                gone.append(node.path)
                put.append(replace(node, path=path))
        nodes = state.snapshot.nodes.updated(put, gone)
        return State(replace(state.snapshot, nodes=nodes), state.workspace.assets)


@dataclass(frozen=True, slots=True)
class _Words:
    """One cell of the table of conflicts."""

    text: str

    def __call__(self) -> list[str]:
        return [self.text]


def _is_array(node: NodeSnapshot) -> bool:
    return isinstance(node.node_data, ArrayNodeData)
