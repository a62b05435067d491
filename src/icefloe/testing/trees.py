"""Hypothesis strategies for hierarchies whose names resemble each other, and for moves in them.

The names are those of `icechunk.testing.trees`. In trees and in the sets that the functions take, paths have
no slash in front and the root is the empty one; moves have absolute paths, as in `Session.move`.
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
"""From where, to where, and the pattern of the error; None for a move that is allowed."""

InvalidMoveReason: TypeAlias = Literal[
    "self_or_descendant", "overwrite", "missing_parent", "source_missing", "parent_not_group"
]

_LEAVES: Final = st.integers(min_value=5, max_value=50)
_CHILDREN: Final = st.integers(min_value=1, max_value=4)
_MOVES: Final = st.integers(min_value=1, max_value=10)
_SHARES: Final = st.floats(min_value=0.0, max_value=1.0)


# ---------------------------------------------------------------- names


def similar_name(non_sibling_names: set[str], sibling_names: set[str]) -> st.SearchStrategy[str]:
    """A name that is easily taken for another: a sibling's with something added to it, or a cousin's own."""
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
    """A name that is not in `exclude`, often one that resembles those in it or equals one in `pool`."""
    if not pool and not exclude:
        return node_names
    return (node_names | similar_name(pool - exclude, exclude)).filter(lambda name: name not in exclude)


@st.composite
def fresh_names(draw: st.DrawFn, pool: set[str], exclude: set[str], n: int) -> list[str]:
    """Several such names; each may resemble those before it and equals none of them."""
    names: list[str] = []
    for _ in range(n):
        names.append(draw(fresh_name(pool, exclude.union(names))))
    return names


# ---------------------------------------------------------------- trees


def skeletons(*, max_leaves: int = 50, max_children: int = 4) -> st.SearchStrategy[GroupNode]:
    """Trees whose nodes are only numbered. The root has at least one child."""

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
    """Trees with at least one node, and with names of which some begin or end with others."""
    skeleton = draw(skeletons(max_leaves=draw(max_leaves), max_children=draw(max_children)))
    pool: set[str] = set()

    def named(group: GroupNode) -> GroupNode:
        names = draw(fresh_names(pool, set(), len(group.children)))
        pool.update(names)
        nodes = zip(names, group.children.values(), strict=True)
        return GroupNode({name: named(n) if isinstance(n, GroupNode) else n for name, n in nodes})

    return named(skeleton)


# ---------------------------------------------------------------- paths


def child_names_at(parent: str, all_paths: set[str]) -> set[str]:
    """The names of what lies directly in `parent`."""
    below = (path for path in all_paths if is_descendant(path, parent))
    return {path.removeprefix(parent).strip("/").split("/")[0] for path in below}


def is_descendant(path: str, ancestor: str) -> bool:
    """Whether `path` lies below `ancestor`, at any depth."""
    return path != ancestor and f"/{path}/".startswith(f"/{ancestor}/".replace("//", "/"))


def absolute(path: str) -> str:
    """The path with a slash in front, as sessions take it."""
    return f"/{path.lstrip('/')}"


def wrap_tolerant(pattern: str) -> str:
    """The pattern for a message that may be broken into lines with a bar in front of each."""
    return re.sub(" +", lambda _: r"\s+\|?\s*", pattern)


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}".lstrip("/")


# ---------------------------------------------------------------- moves


@st.composite
def invalid_move(
    draw: st.DrawFn,
    all_nodes: set[str],
    all_arrays: set[str],
    name_pool: set[str],
    *,
    eligible: list[InvalidMoveReason] | None = None,
) -> tuple[str, str, str]:
    """A move that must be refused in a tree of these nodes, and the pattern of the error.

    `eligible` are the reasons to choose from; all that the tree has an example of, unless given.
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
    """Sources and targets that are neither the same nor below the source. Trees of tests are small."""
    for source in sources:
        for target in targets:
            if target != source and not is_descendant(target, source):
                yield source, target


@st.composite
def valid_move(
    draw: st.DrawFn, all_nodes: set[str], all_groups: set[str], name_pool: set[str]
) -> tuple[str, str]:
    """A move that is allowed in a tree of these nodes, which has at least one."""
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
    """Moves one after the other, each in the tree that those before it leave; refused ones change nothing."""
    arrays, groups = set(tree.arrays()), set(tree.groups())
    pool = {name for path in arrays | groups for name in path.split("/")}
    threshold = draw(p_invalid)
    moves: list[MixedMove] = []
    for _ in range(draw(n_moves)):
        if draw(st.floats(0, 1, exclude_max=True)) < threshold:
            move: MixedMove = draw(invalid_move(arrays | groups, arrays, pool))
        elif not arrays | groups:
            reject()  # there is nothing to move
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
    """Moves that are allowed one after the other."""
    mixed = draw(valid_and_invalid_moves(tree, n_moves, st.just(0.0)))
    return [(source, dest) for source, dest, _ in mixed]


@st.composite
def invalid_moves(
    draw: st.DrawFn,
    tree: GroupNode,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> list[tuple[str, str, str]]:
    """Moves that must all be refused, each with the pattern of its error."""
    mixed = draw(valid_and_invalid_moves(tree, n_moves, st.just(1.0)))
    return [(source, dest, pattern) for source, dest, pattern in mixed if pattern is not None]


@st.composite
def tree_and_valid_moves(
    draw: st.DrawFn,
    max_leaves: st.SearchStrategy[int] | None = None,
    max_children: st.SearchStrategy[int] | None = None,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> tuple[GroupNode, list[tuple[str, str]]]:
    """A tree and moves that are allowed in it."""
    tree = draw(_trees(max_leaves, max_children))
    return tree, draw(valid_moves(tree, n_moves))


@st.composite
def tree_and_invalid_moves(
    draw: st.DrawFn,
    max_leaves: st.SearchStrategy[int] | None = None,
    max_children: st.SearchStrategy[int] | None = None,
    n_moves: st.SearchStrategy[int] = _MOVES,
) -> tuple[GroupNode, list[tuple[str, str, str]]]:
    """A tree and moves that must be refused in it."""
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
    """A tree and moves of both kinds."""
    tree = draw(_trees(max_leaves, max_children))
    return tree, draw(valid_and_invalid_moves(tree, n_moves, p_invalid))


def _trees(
    max_leaves: st.SearchStrategy[int] | None, max_children: st.SearchStrategy[int] | None
) -> st.SearchStrategy[GroupNode]:
    given = {"max_leaves": max_leaves, "max_children": max_children}
    return trees(**{name: strategy for name, strategy in given.items() if strategy is not None})
