"""Summarize groups and arrays, for `icefloe tree` and the HTML reprs of sessions and repositories."""

from __future__ import annotations

import json
from typing import Any, Final

from icefloe._internal import html
from icefloe._internal.paths import LEDGERS, ROOT, is_within
from icefloe.core.workspace import Workspace
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

_SHARDING: Final = "sharding_indexed"
_MAX_SIZES: Final = 6
"""The maximum number of chunk sizes that are shown for a dimension with irregular chunks."""
_DESCRIPTIONS: Final = ("long_name", "standard_name")
_MAX_NODES: Final = 100


def summarize_node(node: NodeSnapshot) -> dict[str, Any]:
    """Summarize a group or array from its zarr.json."""
    document = json.loads(node.user_data)
    found: dict[str, Any] = {"path": node.path, "kind": document["node_type"]}
    if isinstance(node.node_data, ArrayNodeData):
        found["shape"] = document["shape"]
        found["chunks"], found["shards"] = _find_chunk_shapes(document)
        found["dtype"] = document["data_type"]
        found["dimensions"] = document.get("dimension_names")
        found["codecs"] = [codec if isinstance(codec, str) else codec["name"] for codec in document["codecs"]]
    found["attributes"] = document.get("attributes", {})
    return found


def _find_chunk_shapes(document: dict[str, Any]) -> tuple[Any, Any]:
    """Return the chunk shape and the shard shape. With sharding, the cells of the chunk grid are shards."""
    grid = document["chunk_grid"]["configuration"]
    shape = grid.get("chunk_shape", grid.get("chunk_shapes"))
    for codec in document["codecs"]:
        if isinstance(codec, dict) and codec["name"] == _SHARDING:
            return codec["configuration"]["chunk_shape"], shape
    return shape, None


def format_shape(summary: dict[str, Any]) -> str:
    """Format an array shape with dimension names: `time: 24, lat: 90`."""
    names = summary["dimensions"] or [None] * len(summary["shape"])
    pairs = zip(names, summary["shape"], strict=False)
    return ", ".join(f"{name}: {size}" if name else str(size) for name, size in pairs)


def format_dtype(summary: dict[str, Any]) -> str:
    """Format the data type of an array."""
    dtype = summary["dtype"]
    return str(dtype if isinstance(dtype, str) else dtype.get("name", "?"))


def format_chunks(shape: list[Any]) -> str:
    """Format a chunk shape, which may contain lists of sizes and `[size, count]` runs: `(24, 30+31+2x28)`."""
    return f"({', '.join(_format_sizes(each) if isinstance(each, list) else str(each) for each in shape)})"


def _format_sizes(sizes: list[Any]) -> str:
    runs = [f"{each[1]}x{each[0]}" if isinstance(each, list) else str(each) for each in sizes]
    return "+".join(runs[:_MAX_SIZES]) + ("+..." if len(runs) > _MAX_SIZES else "")


def render_nodes(workspace: Workspace) -> str:
    """Return an HTML section with the summaries of all arrays in a workspace."""
    paths = [path for path in workspace.paths() if not is_within(path, LEDGERS) and path != ROOT]
    nodes = (node for path in paths if (node := workspace.node(path)) is not None)
    summaries = [summarize_node(node) for node, _ in zip(nodes, range(_MAX_NODES), strict=False)]
    names = ("path", "shape", "dtype", "chunks", "units", "description")
    table = html.render_table(names, map(_render_row, summaries), len(paths))
    return html.render_section("Groups and arrays", len(paths), table)


def _render_row(summary: dict[str, Any]) -> tuple[str, ...]:
    path, attributes = summary["path"].removeprefix(ROOT), summary["attributes"]
    if summary["kind"] == "group":
        return f"{path}/", "", "", "", "", ""
    described = next((str(attributes[name]) for name in _DESCRIPTIONS if name in attributes), "")
    units = str(attributes.get("units", ""))
    chunks = format_chunks(summary["chunks"])
    return path, format_shape(summary), format_dtype(summary), chunks, units, described
