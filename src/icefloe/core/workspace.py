"""A base snapshot with changes over it, seen as one hierarchy of groups, arrays and chunks."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from icefloe.core.assets import AssetStore
from icefloe.core.changes import ChangeSet, rank_of
from icefloe.core.zarr_metadata import parse_zarr_metadata
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    StorageError,
)
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef, InlineRef, NativeRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ArrayNodeData, GroupNodeData, ManifestRef, NodeSnapshot, Snapshot
from icefloe.ids import NodeId
from icefloe.paths import ROOT, ancestors


class Workspace:
    """One hierarchy out of a snapshot and uncommitted changes. Safe for many threads."""

    def __init__(self, base: Snapshot, assets: AssetStore, changes: ChangeSet | None = None) -> None:
        self.base = base
        self.assets = assets
        self.changes = changes or ChangeSet()
        self._lock = threading.RLock()
        self._found: dict[str, NodeSnapshot] = {}

    # Nodes

    def node(self, path: str) -> NodeSnapshot | None:
        """The group or array at a path."""
        changes = self.changes
        for changed in (changes.created, changes.updated):
            if path in changed:
                return changed[path]
        if path in changes.moved:
            source = self._base_node(changes.moved[path])
            return None if source is None else replace(source, path=path)
        if path in changes.deleted or (changes.moved and path in self._vanished()):
            return None
        return self._base_node(path)

    def _base_node(self, path: str) -> NodeSnapshot | None:
        found = self._found.get(path)
        if found is None:
            found = self.base.nodes.find(path)
            if found is not None:
                self._found[path] = found
        return found

    def _vanished(self) -> set[str]:
        """Base paths that moved away."""
        return set(self.changes.moved.values()) - set(self.changes.moved)

    def array(self, path: str) -> NodeSnapshot:
        """The array at a path; an error where there is none."""
        node = self.node(path)
        if node is None:
            raise NodeNotFoundError(f"node not found at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
        if not isinstance(node.node_data, ArrayNodeData):
            raise InvalidInputError(f"not an array: {path}", kind=ErrorKind.NOT_AN_ARRAY)
        return node

    def paths(self) -> list[str]:
        """The paths of all nodes, sorted."""
        changes = self.changes
        if changes.is_empty():
            return self.base.nodes.paths()
        hidden = self._vanished() | set(changes.deleted) if changes.moved else changes.deleted.keys()
        kept = [path for path in self.base.nodes.paths() if path not in hidden]
        return sorted({*kept, *changes.created, *changes.moved})

    def below(self, group: str) -> list[str]:
        """The paths of a node and of all below it."""
        paths = self.paths()
        if group == ROOT:
            return paths
        inside = paths[bisect_left(paths, group + "/") : bisect_left(paths, group + "0")]  # "0" follows "/"
        return ([group] if self.node(group) is not None else []) + inside

    def children(self, group: str) -> list[str]:
        """The names of the nodes directly below a group."""
        prefix = ROOT if group == ROOT else group + "/"
        names = (
            path[len(prefix) :] for path in self.below(group) if path.startswith(prefix) and path != ROOT
        )
        return sorted({name.split("/", 1)[0] for name in names if name})

    def set_metadata(self, path: str, user_data: bytes) -> None:
        """Create the node at a path, or give it another zarr.json."""
        node_data = parse_zarr_metadata(user_data, path, rectilinear=self.assets.spec.counts_chunks)
        with self._lock:
            existing = self.node(path)
            if existing is None:
                self._check_parents(path)
                self.changes.created[path] = NodeSnapshot(NodeId.random(), path, user_data, node_data)
                return
            if type(existing.node_data) is not type(node_data):
                raise AlreadyExistsError(
                    f"there is a node of another type at {path}; delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            if existing.user_data == user_data:
                return
            if isinstance(node_data, ArrayNodeData) and isinstance(existing.node_data, ArrayNodeData):
                node_data = replace(node_data, manifests=existing.node_data.manifests)
            changed = replace(existing, user_data=user_data, node_data=node_data)
            kept = self.changes.created if path in self.changes.created else self.changes.updated
            kept[path] = changed

    def _check_parents(self, path: str) -> None:
        for above in ancestors(path):
            parent = self.node(above)
            if parent is not None and not isinstance(parent.node_data, GroupNodeData):
                raise InvalidInputError(
                    f"{path} cannot be created inside the array {above}", kind=ErrorKind.NOT_A_GROUP
                )

    def delete_node(self, path: str) -> None:
        """Delete a node with all below it; nothing happens where there is none."""
        with self._lock:
            for each in self.below(path):
                node = self.node(each)
                if node is None:
                    continue
                self.changes.chunks.pop(node.id, None)
                self.changes.updated.pop(each, None)
                if self.changes.created.pop(each, None) is None:
                    self.changes.deleted[each] = node

    # Chunks

    def check_coords(self, node: NodeSnapshot, coords: Sequence[int]) -> None:
        """Refuse coordinates that are not in an array's chunk grid."""
        shape = node.node_data.shape if isinstance(node.node_data, ArrayNodeData) else ()
        if len(coords) != len(shape) or any(
            c >= max(d.num_chunks, 1) for c, d in zip(coords, shape, strict=False)
        ):
            grid = tuple(d.num_chunks for d in shape)
            raise InvalidInputError(
                f"chunk {tuple(coords)} is outside the chunk grid {grid} of {node.path}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )

    def ref(self, node: NodeSnapshot, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of a chunk; None where it was never written."""
        delta = self.changes.chunks.get(node.id)
        if delta is not None:
            with self._lock:
                changed, ref = delta.find(coords)
            if changed:
                return ref
        if not isinstance(node.node_data, ArrayNodeData):
            return None
        for manifest in node.node_data.manifests:
            if covers(manifest, coords):
                found = self._manifest(manifest).find(node.id, coords)
                if found is not None:
                    return found
        return None

    def _manifest(self, ref: ManifestRef) -> PackedManifest:
        info = self.base.manifest_files.find(ref.id)
        return self.assets.manifest(ref.id, info.size_bytes if info else 0)

    def read(self, ref: ChunkRef, start: int, stop: int) -> bytes:
        """Bytes of a chunk."""
        match ref:
            case InlineRef(data):
                return data[start:stop]
            case NativeRef():
                return self.assets.chunk(ref, start, stop)
        raise StorageError(
            f"{ref.location}: virtual chunks cannot be read yet", kind=ErrorKind.VIRTUAL_CHUNK_FETCH
        )

    def write(self, path: str, coords: tuple[int, ...], data: bytes | bytearray | memoryview) -> None:
        """Write a chunk: small ones into the manifest to be, others as an object at once."""
        node = self.array(path)
        self.check_coords(node, coords)
        if not len(data):
            raise InvalidInputError(
                f"chunk {coords} of {path} has no bytes; delete it instead", kind=ErrorKind.ZERO_LENGTH_CHUNK
            )
        if len(data) <= self.assets.config.inline_chunk_threshold_bytes:
            ref: ChunkRef = InlineRef(bytes(data))
        else:
            ref = self.assets.write_chunk(data)
        with self._lock:
            self.changes.delta(node).put(coords, ref)

    def delete_chunk(self, node: NodeSnapshot, coords: tuple[int, ...]) -> None:
        """Delete a chunk. One outside the grid cannot exist: nothing happens."""
        try:
            self.check_coords(node, coords)
        except InvalidInputError:
            return
        with self._lock:
            self.changes.delta(node).put(coords, None)

    def refs(self, node: NodeSnapshot) -> ArrayManifest:
        """All references of an array, the changes included."""
        if not isinstance(node.node_data, ArrayNodeData):
            return ArrayManifest.of(np.zeros((0, 0), np.uint32), 1)
        empty = ArrayManifest.of(np.zeros((0, rank_of(node)), np.uint32), 1)
        parts = [self.manifest_refs(node, ref) for ref in node.node_data.manifests]
        refs = ArrayManifest.concat(parts) if parts else empty
        delta = self.changes.chunks.get(node.id)
        if delta is not None:
            with self._lock:
                written, gone = delta.resolve()
            refs = refs.without(gone) if len(gone) else refs
            refs = refs if written is None else refs.merge(written)
        return refs

    def manifest_refs(self, node: NodeSnapshot, ref: ManifestRef) -> ArrayManifest:
        """The references of an array in one of its manifests."""
        rank = rank_of(node)
        manifest = self._manifest(ref)
        if node.id not in manifest.nodes:
            return ArrayManifest.of(np.zeros((0, rank), np.uint32), 1)
        return manifest.array(node.id, rank)

    def chunk_coords(self, node: NodeSnapshot) -> Coords:
        """The coordinates of all chunks of an array that exist."""
        return self.refs(node).coords


def covers(ref: ManifestRef, coords: Sequence[int]) -> bool:
    """Whether a manifest may hold the reference of a chunk."""
    return not ref.extents or all(c in extent for c, extent in zip(coords, ref.extents, strict=True))
