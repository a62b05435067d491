"""Contents for repositories that we write and the official package reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.compat import official
from tests.support.compat.repository_writer import ArrayInput, Coords, GroupInput, Kind, NodeInput

KINDS: tuple[Kind, ...] = ("native", "inline", "virtual", "absent")

METADATA: dict[str, Any] = {
    "null": None,
    "bools": [True, False],
    "ints": [0, -1, 255, 256, -(2**31), 2**40, 2**63 - 1, -(2**63)],
    "floats": [0.5, -1e300, 1.1],
    "text": "línea 日本 🧊",
    "nested": {"a": [{"b": {}}, [], [[1], "x", None]], "": 1},
    "é": {"ß": 1},
}

SORT_SENSITIVE = ["/a", "/a-b", "/a/b", "/a.b", "/a/b-c", "/a/b/c", "/ab", "/é", "/é/日本", "/é-x", "/Z"]


def mixed(coords: Coords) -> Kind:
    """Return chunks of every kind, and some missing ones."""
    return KINDS[sum(coords) % len(KINDS)]


def numbers(*shape: int, dtype: str = "int32", start: int = 1) -> Any:
    """Return an array without zeros, which could be mistaken for missing chunks."""
    return np.arange(start, start + int(np.prod(shape)), dtype=dtype).reshape(shape)


def tree() -> list[NodeInput]:
    """Return nodes of many shapes."""
    return [
        GroupInput("/", {"title": "root", "n": None}),
        GroupInput("/g", {"é": [1, 2.5, "x", {"y": True}]}),
        ArrayInput("/g/native", numbers(5, 7), (2, 3), "native", {"units": "K"}, ("x", "y")),
        ArrayInput("/g/inline", numbers(9, dtype="uint8"), (4,), "inline"),
        ArrayInput("/g/virtual", numbers(6, 2, dtype="float64"), (3, 1), "virtual", {}, ("t", None)),
        ArrayInput("/g/mixed", numbers(4, 4, 4, dtype="int16"), (2, 1, 2), mixed),
        ArrayInput("/scalar", np.array(42, "int64"), (), "native"),
        ArrayInput("/inline-scalar", np.array(2.5, "float32"), (), "inline"),
        ArrayInput("/empty", np.zeros((0, 3), "int32"), (2, 2)),
        ArrayInput("/no-chunks", np.zeros((4, 4), "int32"), (2, 2), "absent"),
        ArrayInput("/rank-6", numbers(2, 1, 2, 1, 3, 2), (1, 1, 2, 1, 2, 1), mixed),
    ]


def sort_sensitive() -> list[NodeInput]:
    """Return paths whose order depends on the sort order; some of them are arrays."""
    nodes: list[NodeInput] = [GroupInput("/")]
    groups = {"/a", "/a/b", "/é"}
    for i, path in enumerate(SORT_SENSITIVE):
        nodes.append(GroupInput(path) if path in groups else ArrayInput(path, numbers(3, start=i + 1), (2,)))
    return nodes


def expected_tree(nodes: Sequence[NodeInput]) -> dict[str, Any]:
    """Return the expected result of `official.tree`."""
    found: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, GroupInput):
            found[node.path] = dict(node.attributes)
            continue
        found[node.path] = {
            "attributes": dict(node.attributes),
            "shape": node.data.shape,
            "dtype": node.data.dtype.name,
            "names": node.dimension_names,
            "data": official.digest(_readable(node)),
        }
    return found


def _readable(array: ArrayInput) -> Any:
    """Return the contents with zeros where a chunk is absent."""
    data = np.zeros_like(array.data)
    for coords, _, chunk in array.chunk_bytes():
        window = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, array.chunks, strict=True))
        part = data[window]
        whole = np.frombuffer(chunk, data.dtype).reshape(array.chunks)
        data[window] = whole[tuple(slice(0, n) for n in part.shape)]
    return data
