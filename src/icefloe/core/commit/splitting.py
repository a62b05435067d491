"""How many chunks of each dimension share a manifest, by the rules of the configuration."""

from __future__ import annotations

from typing import Final

from icefloe.config.repository import SplitSizes
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

UNSPLIT: Final = 0xFFFFFFFF


def split_sizes(rules: SplitSizes, node: NodeSnapshot) -> list[int]:
    """Per dimension the number of chunks a manifest covers: the first matching rule that decides it."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return []
    names = data.dimension_names or (None,) * len(data.shape)
    sizes: list[int | None] = [None] * len(data.shape)
    for condition, dimensions in rules:
        if not condition.matches(node.path):
            continue
        # A file may hold another number of names than of dimensions; those beyond mean nothing.
        for axis, name in enumerate(names[: len(sizes)]):
            if sizes[axis] is None:
                sizes[axis] = next((size for dim, size in dimensions if dim.matches(axis, name)), None)
    return [UNSPLIT if size is None else size for size in sizes]
