"""Hypothesis strategies for trees with similar names, and for moves, as in `icechunk.testing.trees`.

Paths in trees and in arguments do not start with a slash, and the path of the root is empty. Moves have
absolute paths, as in `Session.move`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from hypothesis import reject
from hypothesis import strategies as st
from zarr.testing.strategies import node_names, zarr_key_chars

from icefloe.testing.models import SMALL_ARRAY, GroupNode, Node
from icefloe.testing.utils import update_paths_after_move

ERR_SELF_OR_DESCENDANT: Final = "into itself or its own descendant"
ERR_OVERWRITE: Final = "overwrite existing node"
ERR_MISSING_PARENT: Final = "destination's parent group"
ERR_SOURCE_MISSING: Final = "node not found|could not create path"
ERR_PARENT_NOT_GROUP: Final = "is an array, not a group"

MixedMove: TypeAlias = tuple[str, str, str | None]
"""The old path, the new path, and either a pattern for the error message or None for an allowed move."""

InvalidMoveReason: TypeAlias = Literal[
    "self_or_descendant", "overwrite", "missing_parent", "source_missing", "parent_not_group"
]

_LEAVES: Final = st.integers(min_value=5, max_value=50)
_CHILDREN: Final = st.integers(min_value=1, max_value=4)
_MOVES: Final = st.integers(min_value=1, max_value=10)
_SHARES: Final = st.floats(min_value=0.0, max_value=1.0)


# Names


def similar_name(non_sibling_names: set[str], sibling_names: set[str]) -> st.SearchStrategy[str]:
    """Return a strategy for names that resemble others: a sibling with an affix, or another node's name.

    Parameters
    ----------
    non_sibling_names, sibling_names
        The names to resemble.
    """
    choices = []
    if sibling_names:
        choices.append(_affixed(sibling_names))
    if non_sibling_names:
        choices.append(st.sampled_from(sorted(non_sibling_names)))
    return st.one_of(choices) if choices else node_names


def _affixed(names: set[str]) -> st.SearchStrategy[str]:
    affixes = st.text(zarr_key_chars, min_size=1, max_size=3)
    parts = st.tuples(st.sampled_from(sorted(names)), st.sampled_from("_-."), affixes)
    after = parts.map("".join)
    before = parts.map(lambda drawn: "".join(reversed(drawn)))
    return (after | before).filter(_is_a_name)


def _is_a_name(text: str) -> bool:
    return not text.startswith("__") and text.lower() != "zarr.json"


def fresh_name(pool: set[str], exclude: set[str]) -> st.SearchStrategy[str]:
    """Return a strategy for new node names, which often resemble other names.

    Parameters
    ----------
    pool
        Names that may be used again.
    exclude
        Names that must not be used.
    """
    if not pool and not exclude:
        return node_names
    return (node_names | similar_name(pool - exclude, exclude)).filter(lambda name: name not in exclude)


@st.composite
def fresh_names(draw: st.DrawFn, pool: set[str], exclude: set[str], n: int) -> list[str]:
    """Draw several distinct new node names; see `fresh_name`.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    pool, exclude
        See `fresh_name`.
    n
        The number of names.
    """
    names: list[str] = []
    for _ in range(n):
        names.append(draw(fresh_name(pool, exclude.union(names))))
    return names


# Trees


def skeletons(*, max_leaves: int = 50, max_children: int = 4) -> st.SearchStrategy[GroupNode]:
    """Return a strategy for trees whose node names are numbers. The root has at least one child.

    Parameters
    ----------
    max_leaves, max_children
        Limits for the size of the tree.
    """

    def groups(children: st.SearchStrategy[Node]) -> st.SearchStrategy[GroupNode]:
        some = st.lists(children, min_size=1, max_size=max_children)
        return some.map(lambda nodes: GroupNode({str(i): node for i, node in enumerate(nodes)}))

    leaves: st.SearchStrategy[Node] = st.just(SMALL_ARRAY) | st.builds(GroupNode)
    return groups(st.recursive(leaves, groups, max_leaves=max_leaves))


@st.composite
def trees(
    draw: st.DrawFn,
    *,
    max_leaves: st.SearchStrategy[int] = _LEAVES,
    max_children: st.SearchStrategy[int] = _CHILDREN,
) -> GroupNode:
    """Draw a tree with at least one node, in which names are often prefixes or suffixes of other names.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    max_leaves, max_children
        Strategies for the size of the tree.
    """
    skeleton = draw(skeletons(max_leaves=draw(max_leaves), max_children=draw(max_children)))
    pool: set[str] = set()

    def named(group: GroupNode) -> GroupNode:
        names = draw(fresh_names(pool, set(), len(group.children)))
        pool.update(names)
        nodes = zip(names, group.children.values(), strict=True)
        return GroupNode({name: named(n) if isinstance(n, GroupNode) else n for name, n in nodes})

    return named(skeleton)


# Paths


def child_names_at(parent: str, all_paths: set[str]) -> set[str]:
    """Return the names of a group's direct children.

    Parameters
    ----------
    parent
        The path of the group.
    all_paths
        The paths of all nodes.

    Returns
    -------
    set of str
    """
    below = (path for path in all_paths if is_descendant(path, parent))
    return {path.removeprefix(parent).strip("/").split("/")[0] for path in below}


def is_descendant(path: str, ancestor: str) -> bool:
    """Return True if a path is anywhere below another one.

    Parameters
    ----------
    path, ancestor
        The paths.

    Returns
    -------
    bool
    """
    return path != ancestor and f"/{path}/".startswith(f"/{ancestor}/".replace("//", "/"))


def absolute(path: str) -> str:
    """Add a leading slash to a path, as sessions expect it.

    Parameters
    ----------
    path
        The path.

    Returns
    -------
    str
    """
    return f"/{path.lstrip('/')}"


def wrap_tolerant(pattern: str) -> str:
    """Return a pattern that also matches an error message that was wrapped into several lines.

    Parameters
    ----------
    pattern
        A regular expression for the message on one line.

    Returns
    -------
    str
    """
    return re.sub(" +", lambda _: r"\s+\|?\s*", pattern)


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}".lstrip("/")


# Moves


@st.composite
def invalid_move(
    draw: st.DrawFn,
    all_nodes: set[str],
    all_arrays: set[str],
    name_pool: set[str],
    *,
    eligible: list[InvalidMoveReason] | None = None,
) -> tuple[str, str, str]:
    """Draw a move that must be rejected, and a pattern for its error message.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    all_nodes
        The paths of all nodes.
    all_arrays
        The paths of arrays.
    name_pool
        Names to resemble.
    eligible
        The reasons to choose from; by default all that are possible in the tree.
    """
    reasons = _invalid_move_eligibility(all_nodes, all_arrays) if eligible is None else eligible
    reason = draw(st.sampled_from(reasons))
    names = fresh_name(name_pool, child_names_at("", all_nodes))
    if reason == "self_or_descendant":
        source = draw(st.sampled_from(sorted(all_nodes | {""})))
        below = draw(st.none() | fresh_name(name_pool, set()))
        return source, source if below is None else _join(source, below), ERR_SELF_OR_DESCENDANT
    if reason == "source_missing":
        source = _join(draw(names), "/".join(draw(st.lists(fresh_name(name_pool, set()), max_size=3))))
        return source.rstrip("/"), draw(names), ERR_SOURCE_MISSING
    if reason == "missing_parent":
        source = draw(st.sampled_from(sorted(all_nodes)))
        return source, _join(draw(names), draw(fresh_name(name_pool, set()))), ERR_MISSING_PARENT
    if reason == "overwrite":
        return *draw(st.sampled_from(sorted(_pairs(all_nodes, all_nodes)))), ERR_OVERWRITE
    source, array = draw(st.sampled_from(sorted(_pairs(all_nodes, all_arrays))))
    return source, _join(array, draw(fresh_name(name_pool, set()))), ERR_PARENT_NOT_GROUP


def _invalid_move_eligibility(all_nodes: set[str], all_arrays: set[str]) -> list[InvalidMoveReason]:
    reasons: list[InvalidMoveReason] = ["self_or_descendant", "source_missing"]
    if all_nodes:
        reasons.append("missing_parent")
    if next(_pairs(all_nodes, all_nodes), None) is not None:
        reasons.append("overwrite")
    if next(_pairs(all_nodes, all_arrays), None) is not None:
        reasons.append("parent_not_group")
    return reasons


def _pairs(sources: set[str], targets: set[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs in which the target is neither the source nor below it. Trees in tests are small."""
    for source in sources:
        for target in targets:
            if target != source and not is_descendant(target, source):
                yield source, target


@st.composite
def valid_move(
    draw: st.DrawFn, all_nodes: set[str], all_groups: set[str], name_pool: set[str]
) -> tuple[str, str]:
    """Draw a move that is allowed in a tree with at least one node.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    all_nodes
        The paths of all nodes.
    all_groups
        The paths of groups.
    name_pool
        Names to resemble.
    """
    source = draw(st.sampled_from(sorted(all_nodes)))
    groups = all_groups | {""}
    parent = draw(st.sampled_from(sorted(g for g in groups if g != source and not is_descendant(g, source))))
    return source, _join(parent, draw(fresh_name(name_pool, child_names_at(parent, all_nodes))))


@st.composite
def valid_and_invalid_moves(
    draw: st.DrawFn,
    tree: GroupNode,
    n_moves: st.SearchStrategy[int] = _MOVES,
    p_invalid: st.SearchStrategy[float] = _SHARES,
) -> list[MixedMove]:
    """Draw consecutive moves, each in the tree that results from the previous moves.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    tree
        The tree before the moves.
    n_moves
        A strategy for the number of moves.
    p_invalid
        A strategy for the share of moves that must be rejected.
    """
    arrays, groups = set(tree.arrays()), set(tree.groups())
    pool = {name for path in arrays | groups for name in path.split("/")}
    threshold = draw(p_invalid)
    moves: list[MixedMove] = []
    for _ in range(draw(n_moves)):
        if draw(st.floats(0, 1, exclude_max=True)) < threshold:
            move: MixedMove = draw(invalid_move(arrays | groups, arrays, pool))
        elif not arrays | groups:
            reject()  # nothing to move
        else:
            move = *draw(valid_move(arrays | groups, groups, pool)), None
            arrays, groups = update_paths_after_move(move[0], move[1], arrays, groups)
        moves.append((absolute(move[0]), absolute(move[1]), move[2]))
    return moves


@st.composite
def valid_moves(
    draw: st.DrawFn,
    tree: GroupNode,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> list[tuple[str, str]]:
    """Draw consecutive moves that are allowed in a tree.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    tree
        The tree before the moves.
    n_moves
        A strategy for the number of moves.
    """
    mixed = draw(valid_and_invalid_moves(tree, n_moves, st.just(0.0)))
    return [(source, dest) for source, dest, _ in mixed]


@st.composite
def invalid_moves(
    draw: st.DrawFn,
    tree: GroupNode,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> list[tuple[str, str, str]]:
    """Draw moves that must be rejected in a tree, each with a pattern for its error message.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    tree
        The tree before the moves.
    n_moves
        A strategy for the number of moves.
    """
    mixed = draw(valid_and_invalid_moves(tree, n_moves, st.just(1.0)))
    return [(source, dest, pattern) for source, dest, pattern in mixed if pattern is not None]


@st.composite
def tree_and_valid_moves(
    draw: st.DrawFn,
    max_leaves: st.SearchStrategy[int] | None = None,
    max_children: st.SearchStrategy[int] | None = None,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> tuple[GroupNode, list[tuple[str, str]]]:
    """Draw a tree and a sequence of allowed moves.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    max_leaves, max_children
        Strategies for the size of the tree.
    n_moves
        A strategy for the number of moves.
    """
    tree = draw(_trees(max_leaves, max_children))
    return tree, draw(valid_moves(tree, n_moves))


@st.composite
def tree_and_invalid_moves(
    draw: st.DrawFn,
    max_leaves: st.SearchStrategy[int] | None = None,
    max_children: st.SearchStrategy[int] | None = None,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> tuple[GroupNode, list[tuple[str, str, str]]]:
    """Draw a tree and moves that must be rejected.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    max_leaves, max_children
        Strategies for the size of the tree.
    n_moves
        A strategy for the number of moves.
    """
    tree = draw(_trees(max_leaves, max_children))
    return tree, draw(invalid_moves(tree, n_moves))


@st.composite
def tree_and_mixed_moves(
    draw: st.DrawFn,
    max_leaves: st.SearchStrategy[int] | None = None,
    max_children: st.SearchStrategy[int] | None = None,
    n_moves: st.SearchStrategy[int] = _MOVES,
    p_invalid: st.SearchStrategy[float] = _SHARES,
) -> tuple[GroupNode, list[MixedMove]]:
    """Draw a tree and a sequence of both allowed and rejected moves.

    Parameters
    ----------
    draw
        Provided by hypothesis.
    max_leaves, max_children
        Strategies for the size of the tree.
    n_moves
        A strategy for the number of moves.
    p_invalid
        A strategy for the share of moves that must be rejected.
    """
    tree = draw(_trees(max_leaves, max_children))
    return tree, draw(valid_and_invalid_moves(tree, n_moves, p_invalid))


def _trees(
    max_leaves: st.SearchStrategy[int] | None, max_children: st.SearchStrategy[int] | None
) -> st.SearchStrategy[GroupNode]:
    given = {"max_leaves": max_leaves, "max_children": max_children}
    return trees(**{name: strategy for name, strategy in given.items() if strategy is not None})
