"""Named dimensions of arrays, and the groups that contain their coordinate arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icefloe._internal.paths import join, list_ancestors
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

SMALL_ARRAY_BYTES: Final = 16 << 20
"""Arrays smaller than this, usually coordinates, are rewritten instead of being moved chunk by chunk."""


def find_axis(node: NodeSnapshot | None, dim: str) -> int | None:
    """Return the axis of a named dimension; None if the node is not an array or has no such dimension."""
    data = None if node is None else node.node_data
    names = data.dimension_names if isinstance(data, ArrayNodeData) else None
    return names.index(dim) if names and dim in names else None


def find_coordinate_group(find_node: Callable[[str], NodeSnapshot | None], path: str, dim: str) -> str | None:
    """Find the closest enclosing group that contains a coordinate array for one of the array's dimensions."""
    for group in list_ancestors(path):
        node = find_node(join(group, dim))
        if node is not None and find_axis(node, dim) == 0 and _get_rank(node) == 1:
            return group
    return None


def _get_rank(node: NodeSnapshot) -> int:
    return len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0
