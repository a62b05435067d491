"""The expected result of a merge, computed from three trees of the model."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias, TypeVar

from tests.support.simulation.model import Cell, Node, Tree

V = TypeVar("V")
_Place: TypeAlias = tuple[int | None, str]
"""The key of the group a node is in, and its name there; None and its path where it is in none."""


class _Clash(Exception):  # noqa: N818 - it never leaves this module
    """A conflict: both sides changed the same item differently."""


def merged(base: Tree, ours: Tree, theirs: Tree) -> Tree | None:
    """Merge positions, nodes and chunks, each from the side that changed it; None if there is a conflict.

    A node can be deleted only if the other side did not change it. The children of a moved group move with
    it. A new node may end up in a different group if its own was deleted and another group was created at the
    same path.
    """
    try:
        return _merged(base, ours, theirs)
    except _Clash:
        return None


def may_clash(
    base: Tree, ours: Tree, theirs: Tree, our_cells: Collection[Cell], their_cells: Collection[Cell]
) -> bool:
    """Return True if a merge may be rejected although it is possible, because both sides wrote equal numbers.

    The engine compares references and cannot know that the numbers are equal.
    """
    gone = [{node.key for node in base.nodes.values()} - _keys(side) for side in (ours, theirs)]
    return (
        bool(set(our_cells) & set(their_cells))
        or any(key in gone[1] for key, _ in our_cells)
        or any(key in gone[0] for key, _ in their_cells)
    )


def _merged(base: Tree, ours: Tree, theirs: Tree) -> Tree:
    nodes: dict[int, Node] = {}
    places: dict[int, _Place] = {}
    dead: dict[int, _Place] = {}
    for key in _keys(ours) | _keys(theirs):
        before, here, there = (_found(side, key) for side in (base, ours, theirs))
        if before is not None and (here is None or there is None):
            if (here or there) != before:
                raise _Clash
            dead[key] = before[0]
            continue  # one side deleted what the other left as it was
        both = here and there
        place_before, place_here, place_there = (found and found[0] for found in (before, here, there))
        node_before, node_here, node_there = (found and found[1] for found in (before, here, there))
        place = _chosen(place_before, place_here, place_there) if both else place_here or place_there
        node = _chosen(node_before, node_here, node_there) if both else node_here or node_there
        if place is None or node is None:
            raise AssertionError("a node that is on both sides, or on one, is somewhere")
        places[key], nodes[key] = place, node
    cells: dict[Cell, int] = {}
    for cell in {**base.cells, **ours.cells, **theirs.cells}:
        if cell[0] in nodes:
            value = _cell(cell, base, ours, theirs)
            if value is not None:
                cells[cell] = value
    old = _keys(base)
    paths = {key: _path(key, places if key in old else dead | places) for key in nodes}
    return _checked(paths, nodes, cells)


def _cell(cell: Cell, base: Tree, ours: Tree, theirs: Tree) -> int | None:
    key = cell[0]
    if key not in _keys(base) and (key not in _keys(ours) or key not in _keys(theirs)):
        return ours.cells.get(cell, theirs.cells.get(cell))  # only one side has the node
    return _chosen(base.cells.get(cell), ours.cells.get(cell), theirs.cells.get(cell))


def _chosen(before: V, here: V, there: V) -> V:
    if before not in (here, there) and here != there:
        raise _Clash
    return here if there == before else there


def _keys(tree: Tree) -> set[int]:
    return {node.key for node in tree.nodes.values()}


def _found(tree: Tree, key: int) -> tuple[_Place, Node, frozenset[tuple[Cell, int]]] | None:
    """Return a node with its position and content."""
    path = tree.path_of(key)
    if path is None:
        return None
    above, _, name = path.rpartition("/")
    group = tree.nodes.get(above or "/") if path != "/" else None
    place = (None, path) if group is None else (group.key, name)
    return place, tree.nodes[path], frozenset(each for each in tree.cells.items() if each[0][0] == key)


def _path(key: int, places: dict[int, _Place]) -> str:
    names: list[str] = []
    seen: set[int] = set()
    at: int | None = key
    while at is not None:
        if at in seen or at not in places:
            raise _Clash  # a group inside itself, or a node in a group that is gone
        seen.add(at)
        at, name = places[at]
        names.append(name)
    return "/" + "/".join(part for name in reversed(names) for part in name.split("/") if part)


def _checked(paths: dict[int, str], nodes: dict[int, Node], cells: dict[Cell, int]) -> Tree:
    """Return the tree if every node has a unique path in a group, and every chunk lies in its array."""
    placed = {path: nodes[key] for key, path in paths.items()}
    groups = {path for path, node in placed.items() if node.rows is None}
    if (
        len(placed) < len(paths)
        or not all((path.rpartition("/")[0] or "/") in groups for path in placed if path != "/")
        or not all(index < (nodes[key].rows or 0) for key, index in cells)
    ):
        raise _Clash
    return Tree(placed, cells)
