"""A model of a repository in plain Python: the expected behaviour of the engine in readable form.

Nodes are groups, or arrays of one dimension whose chunks hold one number each. A session is a set of changes
over the tree of a snapshot; a rebase lays the same changes over another tree. There are no files, no ids that
mean anything and no concurrency: whoever uses this says in which order things happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

Cell: TypeAlias = tuple[int, int]
"""A chunk: the key of its array, and its index."""

PlainTree: TypeAlias = dict[str, tuple[int | None, int, dict[int, int]]]
"""By path: the rows of an array or None for a group, the label, and the numbers in chunks that exist."""

_keys = count(1)


@dataclass(frozen=True, slots=True)
class Node:
    """A group, or an array with a number of rows of one chunk each."""

    key: int
    """Its identity, for as long as it lives and wherever it moves."""
    label: int
    """An attribute in its metadata."""
    rows: int | None = None
    """None for a group."""

    @staticmethod
    def new(rows: int | None, label: int) -> Node:
        """Return a new node."""
        return Node(next(_keys), label, rows)


@dataclass(frozen=True, slots=True)
class Tree:
    """The nodes and chunks of a snapshot or session."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    cells: Mapping[Cell, int] = field(default_factory=dict)

    def plain(self) -> PlainTree:
        """Return the tree without node identities, for comparison with a stored one."""
        found: PlainTree = {path: (node.rows, node.label, {}) for path, node in self.nodes.items()}
        paths = {node.key: path for path, node in self.nodes.items()}
        for (key, index), value in self.cells.items():
            found[paths[key]][2][index] = value
        return found

    def below(self, path: str) -> list[str]:
        """Return a node and everything below it."""
        return [each for each in self.nodes if each == path or each.startswith(path + "/")]

    def path_of(self, key: int) -> str | None:
        """Return the path of a node."""
        return next((path for path, node in self.nodes.items() if node.key == key), None)


@dataclass(slots=True)
class Changes:
    """The changes of a session or commit relative to a tree."""

    created: dict[str, Node] = field(default_factory=dict)
    updated: dict[int, Node] = field(default_factory=dict)
    """Nodes of the base with other metadata."""
    deleted: dict[int, str] = field(default_factory=dict)
    """Nodes of the base, and where they were."""
    cells: dict[Cell, int | None] = field(default_factory=dict)
    """Chunks written; None where they were erased."""
    moved: dict[int, str] = field(default_factory=dict)
    """Nodes of the base, and where they are now."""

    def __bool__(self) -> bool:
        return bool(self.created or self.updated or self.deleted or self.cells or self.moved)

    def over(self, base: Tree) -> Tree:
        """Apply the changes to a tree."""
        nodes: dict[str, Node] = {}
        for path, node in base.nodes.items():
            if node.key not in self.deleted:
                nodes[self.moved.get(node.key, path)] = self.updated.get(node.key, node)
        nodes |= self.created
        rows = {node.key: node.rows or 0 for node in nodes.values()}
        cells = {
            cell: value
            for cell, value in {**base.cells, **self.cells}.items()
            if value is not None and cell[1] < rows.get(cell[0], 0)
        }
        return Tree(nodes, cells)

    def copy(self) -> Changes:
        """Return a copy of the changes."""
        return Changes(
            dict(self.created), dict(self.updated), dict(self.deleted), dict(self.cells), dict(self.moved)
        )

    def then(self, later: Changes) -> Changes:
        """Combine these changes with later ones."""
        both = self.copy()
        own = {node.key: path for path, node in self.created.items()}
        for key, path in later.deleted.items():
            if key in own:
                del both.created[own[key]]
            else:
                both.deleted[key] = path
            both.updated.pop(key, None)
        for key, path in later.moved.items():
            if key in own:
                both.created[path] = both.created.pop(own[key])
            else:
                both.moved[key] = path
        own = {node.key: path for path, node in both.created.items()}
        for key, node in later.updated.items():
            if key in own:
                both.created[own[key]] = node
            else:
                both.updated[key] = node
        both.created |= later.created
        both.cells = {
            cell: value
            for cell, value in {**self.cells, **later.cells}.items()
            if cell[0] not in later.deleted
        }
        return both

    def arrays(self) -> set[int]:
        """Return the arrays with written or deleted chunks."""
        return {key for key, _ in self.cells}


class Session:
    """A session: the tree of a snapshot and changes to it."""

    def __init__(self, base: str, tree: Tree, branch: str) -> None:
        self.base = base
        self.branch = branch
        self.base_tree = tree
        self.changes = Changes()

    @property
    def tree(self) -> Tree:
        """Return the base with the changes applied."""
        return self.changes.over(self.base_tree)

    def put(self, path: str, rows: int | None, label: int) -> None:
        """Create a node, or change its metadata."""
        node = self.tree.nodes.get(path)
        if node is None:
            self.changes.created[path] = Node.new(rows, label)
        elif path in self.changes.created:
            self.changes.created[path] = Node(node.key, label, rows)
        elif (node.rows, node.label) != (rows, label):
            self.changes.updated[node.key] = Node(node.key, label, rows)

    def write(self, path: str, index: int, value: int | None) -> None:
        """Write or delete a chunk."""
        self.changes.cells[self.tree.nodes[path].key, index] = value

    def delete(self, path: str) -> None:
        """Delete a node and everything below it."""
        tree, changes = self.tree, self.changes
        for each in tree.below(path):
            key = tree.nodes[each].key
            changes.cells = {cell: value for cell, value in changes.cells.items() if cell[0] != key}
            changes.updated.pop(key, None)
            if changes.created.pop(each, None) is None:
                changes.deleted[key] = self.base_tree.path_of(key) or each

    def move(self, source: str, target: str) -> None:
        """Move a node and everything below it."""
        tree, moved = self.tree, self.changes.moved
        for path in tree.below(source):
            key = tree.nodes[path].key
            moved[key] = target + path[len(source) :]
            if moved[key] == self.base_tree.path_of(key):
                del moved[key]


def rebased(ours: Changes, base: Tree, commit: Commit, solver: str) -> Changes | set[str]:
    """Rebase changes over a concurrent commit; return the changes or the conflicts.

    `base` is the common tree. The solver "ours" or "theirs" selects a side if both wrote the same chunk;
    "nothing" resolves no conflicts.
    """
    theirs = commit.changes
    found = conflicts(ours, base, commit)
    solved = set() if solver == "nothing" else {"ChunkDoubleUpdate", "DeleteOfUpdated"}
    changes = ours.copy()
    if solver == "theirs":
        for cell in ours.cells.keys() & theirs.cells.keys():
            del changes.cells[cell]
            if cell in _lost_cells(changes, theirs):
                solved.discard("ChunkDoubleUpdate")  # the shape we gave the array has no place for it
    if found - solved:
        return found
    for key in theirs.deleted:
        changes.deleted.pop(key, None)
        changes.moved.pop(key, None)
    return replace(changes, moved={**changes.moved, **_taken_along(changes, base, theirs)})


def _taken_along(ours: Changes, base: Tree, theirs: Changes) -> dict[int, str]:
    """Return the new positions of nodes that the other side created in groups that we moved."""
    found: dict[int, str] = {}
    for path, node in theirs.created.items():
        for above in _ancestors(path):
            if above in base.nodes and (target := ours.moved.get(base.nodes[above].key)) is not None:
                found[node.key] = target + path[len(above) :]
                break
    return found


def conflicts(ours: Changes, base: Tree, commit: Commit) -> set[str]:
    """Return the conflicts with a commit, named approximately as in `ConflictType`."""
    theirs = commit.changes
    if theirs.moved:
        return {"MoveOperationCannotBeRebased"}
    written = theirs.arrays()
    rules = {
        "ChunkDoubleUpdate": ours.cells.keys() & theirs.cells.keys(),
        "ChunksUpdatedInUpdatedArray": ours.arrays() & theirs.updated.keys(),
        "ChunksUpdatedInDeletedArray": ours.arrays() & theirs.deleted.keys(),
        "ZarrMetadataDoubleUpdate": ours.updated.keys() & theirs.updated.keys(),
        "ZarrMetadataUpdateOfDeleted": ours.updated.keys() & theirs.deleted.keys(),
        "ZarrMetadataUpdateOfWrittenArray": _lost_cells(ours, theirs),
        "DeleteOfUpdated": ours.deleted.keys() & (theirs.updated.keys() | written),
    }
    return {name for name, broken in rules.items() if broken} | set(_misplaced(ours, base, theirs))


def _lost_cells(ours: Changes, theirs: Changes) -> set[Cell]:
    """Return chunks that only the other side wrote, and that are outside of our new shape."""
    return {
        (key, index)
        for key, index in theirs.cells.keys() - ours.cells.keys()
        if key in ours.updated and index >= (ours.updated[key].rows or 0)
    }


def _misplaced(ours: Changes, base: Tree, theirs: Changes) -> Iterator[str]:
    """Return nodes with the same path, or below a deleted node or an array."""
    arrays = {path for path, node in theirs.created.items() if node.rows is not None}

    def lost(group: str) -> bool:
        was = base.nodes.get(group)
        known = group in ours.created or group in theirs.created
        return not known and was is not None and was.key in theirs.deleted

    for path in ours.created:
        above = list(_ancestors(path))
        if path in theirs.created:
            again = path in ours.deleted.values()
            yield "NodeRecreatedByBothSides" if again else "NewNodeConflictsWithExistingNode"
        if arrays & set(above):
            yield "NewNodeInInvalidGroup"
        if any(map(lost, above)):
            yield "NewNodeInDeletedGroup"
    for path in theirs.created:
        above = list(_ancestors(path))
        if any(each in ours.created and ours.created[each].rows is not None for each in above):
            yield "NewNodeInInvalidGroup"
        if any(
            base.nodes[each].key in ours.deleted.keys() - theirs.deleted.keys()
            for each in above
            if each in base.nodes
        ):
            yield "DeleteOfGroupWithNewNodes"
    yield from _misplaced_moves(ours, base, theirs, lost)


def _misplaced_moves(
    ours: Changes, base: Tree, theirs: Changes, lost: Callable[[str], bool]
) -> Iterator[str]:
    for key, target in ours.moved.items():
        source = base.path_of(key) or ""
        group, old_group = target.rpartition("/")[0], source.rpartition("/")[0]
        if target in theirs.created or target in _taken_along(ours, base, theirs).values():
            yield "MoveToExistingNode"
        if old_group in base.nodes and ours.moved.get(base.nodes[old_group].key) == group:
            continue  # it went along with the group it is in
        if key in theirs.deleted:
            yield "MoveOfDeletedNode"
        if lost(group):
            yield "NewNodeInDeletedGroup"
        if group in theirs.created and theirs.created[group].rows is not None:
            yield "NewNodeInInvalidGroup"


def _ancestors(path: str) -> Iterator[str]:
    while path.count("/") > 1:
        path = path.rpartition("/")[0]
        yield path


@dataclass(frozen=True, slots=True)
class Commit:
    """A snapshot: its parent, its content and its changes."""

    parent: str | None
    tree: Tree
    changes: Changes
    merged: tuple[str, ...] = ()
    """Snapshots of other branches that went into it."""


@dataclass(frozen=True, slots=True)
class Refs:
    """The mutable state of a repository. Methods return the new state, or raise KeyError if not allowed."""

    branches: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()

    def create_branch(self, name: str, snapshot: str) -> Refs:
        """Create a branch."""
        self._refuse_if(name in self.branches, f"branch {name} exists")
        return replace(self, branches={**self.branches, name: snapshot})

    def delete_branch(self, name: str) -> Refs:
        """Delete a branch."""
        self._refuse_if(name == "main" or name not in self.branches, f"no branch {name} to delete")
        return replace(self, branches={each: at for each, at in self.branches.items() if each != name})

    def advance(self, name: str, base: str, snapshot: str) -> Refs:
        """Move a branch by a commit or amend, if its tip is still the base."""
        self._refuse_if(self.branches.get(name) != base, f"{name} is not at {base}")
        return replace(self, branches={**self.branches, name: snapshot})

    def reset_branch(self, name: str, snapshot: str, expected: str | None = None) -> Refs:
        """Move a branch to any snapshot."""
        self._refuse_if(name not in self.branches, f"no branch {name}")
        self._refuse_if(expected not in (None, self.branches.get(name)), f"{name} is not at {expected}")
        return replace(self, branches={**self.branches, name: snapshot})

    def create_tag(self, name: str, snapshot: str) -> Refs:
        """Create a tag; names of deleted tags cannot be reused."""
        self._refuse_if(name in self.tags or name in self.deleted_tags, f"tag {name} exists or existed")
        return replace(self, tags={**self.tags, name: snapshot})

    def delete_tag(self, name: str) -> Refs:
        """Delete a tag."""
        self._refuse_if(name not in self.tags, f"no tag {name}")
        kept = {each: at for each, at in self.tags.items() if each != name}
        return replace(self, tags=kept, deleted_tags=self.deleted_tags | {name})

    @staticmethod
    def _refuse_if(wrong: bool, why: str) -> None:
        if wrong:
            raise KeyError(why)
