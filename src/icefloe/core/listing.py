"""List a workspace as the folders and keys of a Zarr store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from icefloe._internal.executor import Executor, Task
from icefloe._internal.paths import list_ancestors
from icefloe.core.workspace import Workspace
from icefloe.core.zarr_keys import (
    CHUNK_NAME,
    METADATA_NAME,
    list_metadata_keys,
    make_chunk_prefix,
    parse_leading_coords,
)
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import INLINE, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot


class KeyListing:
    """The keys in one folder of a Zarr store. A folder is a node, an implicit group, or part of a chunk grid.

    Folders are given as paths. `/a/b` is the folder of the keys that start with `a/b/`, not with `a/bc`. A
    folder that does not exist is empty.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def is_empty(self, path: str) -> bool:
        """Return True if the folder contains no keys."""
        if self._has_nodes(path):
            return False
        inside = self.inside_array(path)
        return inside is None or not len(self._workspace.refs(*inside))

    def _has_nodes(self, path: str) -> bool:
        return self._workspace.node(path) is not None or self._workspace.has_nodes_below(path)

    def inside_array(self, path: str) -> tuple[NodeSnapshot, tuple[int, ...]] | None:
        """Return the array that contains the folder, and the leading chunk coordinates of the folder; None
        outside arrays.
        """
        if self._has_nodes(path):
            return None
        for above in list_ancestors(path):
            node = self._workspace.node(above)
            if node is None:
                continue
            first = parse_leading_coords(path, above)
            data = node.node_data
            # A full set of coordinates is a chunk, which is a key and not a folder.
            if not isinstance(data, ArrayNodeData) or first is None or len(first) >= len(data.shape):
                return None
            return node, first
        return None

    def keys(self, path: str) -> Iterator[str]:
        """Yield all keys in the folder and below: metadata documents first, then chunks."""
        inside = self.inside_array(path)
        if inside is not None:
            return _make_chunk_keys(inside[0].path, self._workspace.chunk_coords(*inside))
        nodes = self._workspace.below(path)
        arrays = self._workspace.arrays_with_chunks(nodes)
        chunks = (_make_chunk_keys(array.path, self._workspace.chunk_coords(array)) for array in arrays)
        return chain(list_metadata_keys(nodes), chain.from_iterable(chunks))

    def names(self, path: str) -> list[str]:
        """Return the names directly inside the folder (zarr's `list_dir`)."""
        inside = self.inside_array(path)
        if inside is not None:
            array, first = inside
            coords = self._workspace.chunk_coords(array, first)
            return [str(number) for number in np.unique(coords[:, len(first)]).tolist()]
        node = self._workspace.node(path)
        own = [] if node is None else [METADATA_NAME]
        if node is not None and isinstance(node.node_data, ArrayNodeData):
            written = any(len(self._workspace.refs(a)) for a in self._workspace.arrays_with_chunks([path]))
            own += [CHUNK_NAME] if written else []
        return own + [name for name in self._workspace.children(path) if name not in own]

    def size_bytes(self, path: str, executor: Executor) -> int:
        """Return the total size of all keys in the folder and below, in bytes."""
        inside = self.inside_array(path)
        if inside is not None:
            return _count_chunk_bytes(self._workspace.refs(*inside))
        nodes = self._workspace.below(path)
        arrays = self._workspace.arrays_with_chunks(nodes)
        chunks = sum(
            executor.map(
                Task(lambda array: _count_chunk_bytes(self._workspace.refs(array)), "arrays"), arrays
            )
        )
        return self._workspace.metadata_bytes(nodes) + chunks


def _make_chunk_keys(path: str, coords: Coords) -> Iterator[str]:
    prefix = make_chunk_prefix(path)
    if not coords.shape[1]:
        return iter([prefix] * min(len(coords), 1))
    prefix += "/"
    return (prefix + "/".join(map(str, row)) for row in coords.tolist())


def _count_chunk_bytes(refs: ArrayManifest) -> int:
    return int(np.where(refs.kind == INLINE, refs.inline.lengths, refs.lengths).sum())
