"""The workspace of a session: a base snapshot and uncommitted changes, as one hierarchy."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import ROOT, get_parent, is_within, list_ancestors
from icefloe.core.assets import AssetStore
from icefloe.core.cache import WeightedCache
from icefloe.core.changeset import ChangeSet, count_dimensions
from icefloe.core.lookup import ArrayLookup, LookupCache
from icefloe.core.path_index import PathIndex, find_bounds
from icefloe.core.zarr_metadata import parse_zarr_metadata
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef, InlineRef, NativeRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.schema import ARRAY_NODE
from icefloe.format.snapshot import (
    ArrayNodeData,
    GroupNodeData,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """Error raised for writes to a read-only store. It is a ValueError, as zarr expects."""


def read_only_store() -> ReadOnlyStoreError:
    """Return the error for a write to a session that is read-only, either from the start or since its
    commit.
    """
    return ReadOnlyStoreError(
        "store was opened in read-only mode and does not support writing; the store of a committed session"
        " is also a read-only store: open a new one with Repository.writable_session",
        kind=ErrorKind.READ_ONLY_STORE,
    )


class Workspace:
    """The workspace of a session: the hierarchy of its base snapshot with uncommitted changes. Thread-safe.

    While one thread commits, changes by other threads wait. They continue if the commit fails, and raise
    ReadOnlyStoreError if it succeeds. A change whose call has returned is never lost.

    A node does not require parents: Zarr writes a node and its implicit groups concurrently, in any order, so
    a group may be created after its members. Nodes inside an array are rejected.

    Parameters
    ----------
    base
        The base snapshot, or its id. With an id, the snapshot is read on first use.
    assets
        The asset store of the repository.
    changes
        Uncommitted changes.
    read_only
        Reject changes.
    """

    def __init__(
        self,
        base: Snapshot | SnapshotId,
        assets: AssetStore,
        changes: ChangeSet | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._base = base
        self.assets = assets
        self.changes = changes or ChangeSet()
        self.rewritten: dict[Any, Any] = {}
        """The manifests that the latest commit attempt wrote. See `core.commit.flush`."""
        self.rewrites_all = False
        """True if the commit rewrites all manifests with the current splitting rules."""
        self._lock: threading.RLock = fork_safe_lock(reentrant=True)
        self._commit_ended = threading.Condition(self._lock)
        self._committer: tuple[int, int] | None = None
        """The process id and thread id of the committing thread. A forked child does not wait for a thread of
        its parent.
        """
        self._read_only = read_only
        self._found: dict[str, NodeSnapshot] = {}
        self._paths: PathIndex | None = None
        self._lookups: dict[NodeId, ArrayLookup] = {}
        self._manifest_lookups: LookupCache = WeightedCache(
            assets.config.num_chunk_refs, lambda lookup: max(lookup.count, 1)
        )

    @property
    def base(self) -> Snapshot:
        """The base snapshot, which is read on first use."""
        base = self._base
        if isinstance(base, SnapshotId):
            loaded = self.assets.snapshot(base)
            with self._lock:
                if self._base is base:  # the workspace was not rebased meanwhile
                    self._base = loaded
            return loaded
        return base

    @property
    def base_id(self) -> SnapshotId:
        """The id of the base snapshot. The snapshot is not read."""
        base = self._base
        return base if isinstance(base, SnapshotId) else base.id

    @property
    def unread_base(self) -> Snapshot | SnapshotId:
        """The base snapshot if it has already been read, otherwise its id."""
        return self._base

    def exclusive(self) -> AbstractContextManager[object]:
        """Return a context manager during which no other thread can change the workspace."""
        return self._lock

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Lock the workspace for several changes, after waiting for the commit of another thread."""
        with self._lock:
            self._admit_change()
            yield

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Block changes by other threads while this thread commits. Reads continue."""
        with self._lock:
            self._wait_for_commit()
            outer, self._committer = self._committer, (os.getpid(), threading.get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._committer = outer
                self._commit_ended.notify_all()

    @property
    def is_committing(self) -> bool:
        """True while another thread commits, so that changes would have to wait."""
        return self._committer is not None

    def close(self) -> None:
        """Make the workspace read-only after its changes were committed."""
        with self._lock:
            self._read_only = True

    def _admit_change(self) -> None:
        """Wait until no other thread is committing; raise an error if the workspace has become read-only."""
        self._wait_for_commit()
        if self._read_only:
            raise read_only_store()

    def _wait_for_commit(self) -> None:
        while (busy := self._committer) is not None:
            process, thread = busy
            if thread == threading.get_ident() or process != os.getpid():
                return
            self._commit_ended.wait()

    def rebase(self, base: Snapshot | SnapshotId, changes: ChangeSet) -> None:
        """Replace the base snapshot and the changes of the workspace."""
        with self.editing():
            self._base, self.changes = base, changes
            self._found, self._paths, self._lookups = {}, None, {}
            self.__dict__.pop("_written_in_base", None)

    def discard_changes(self) -> None:
        """Discard all uncommitted changes in the workspace."""
        self.rebase(self._base, ChangeSet())

    # Nodes

    def node(self, path: str) -> NodeSnapshot | None:
        """Return the group or array at a path; None if there is none."""
        changes = self.changes
        changed = changes.created.get(path) or changes.updated.get(path)
        if changed is not None:
            return changed
        if path in changes.moved:
            source = self._get_base_node(changes.moved[path])
            return None if source is None else replace(source, path=path)
        if path in changes.deleted or (changes.moved and path in self._list_vacated_paths()):
            return None
        return self._get_base_node(path)

    def _get_base_node(self, path: str) -> NodeSnapshot | None:
        found = self._found.get(path)
        if found is None:
            found = self.base.nodes.find(path)
            if found is not None:
                self._found[path] = found
        return found

    def _list_vacated_paths(self) -> set[str]:
        """Return the paths in the base snapshot from which nodes were moved away."""
        return set(self.changes.moved.values()) - set(self.changes.moved)

    def array(self, path: str) -> NodeSnapshot:
        """Return the array at a path; raise an error if there is none."""
        node = self.node(path)
        if node is None:
            raise NodeNotFoundError(
                f"node not found at `{path}`; create the array before its chunks",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        if not isinstance(node.node_data, ArrayNodeData):
            raise InvalidInputError(
                f"not an array: {path} is a group and has no chunks", kind=ErrorKind.NOT_AN_ARRAY
            )
        return node

    def paths(self) -> Sequence[str]:
        """Return the sorted paths of all nodes."""
        with self._lock:
            return self._path_index().paths()

    def _path_index(self) -> PathIndex:
        known = self._paths
        if known is None or not known.fits(self.changes):
            known = self._paths = PathIndex(self.changes, self.base.nodes.paths())
        return known

    def below(self, group: str) -> list[str]:
        """Return the sorted paths of a node and of all nodes below it."""
        with self._lock:
            if group == ROOT:
                return list(self.paths())
            own = [group] if self.node(group) is not None else []
            if not self._path_index().has_below(group):
                return own
            paths = self.paths()
            first, end = find_bounds(paths, group)
            return own + list(paths[first:end])

    def has_nodes_below(self, group: str) -> bool:
        """Return True if there are nodes below a path. The path itself does not have to exist."""
        with self._lock:
            return self._path_index().has_below(group)

    def children(self, group: str) -> list[str]:
        """Return the names of the nodes directly inside a group, including implicit groups."""
        prefix = ROOT if group == ROOT else group + "/"
        names: list[str] = []
        with self._lock:
            paths = self.paths()
            at, end = find_bounds(paths, group)
            while at < end:
                if paths[at] == ROOT:
                    at += 1
                    continue
                name = paths[at][len(prefix) :].split("/", 1)[0]
                names.append(name)
                inside = len(paths[at]) > len(prefix) + len(name)
                at = bisect_left(paths, f"{prefix}{name}0", at + 1) if inside else at + 1
        return sorted(set(names))

    @cached_property
    def _written_in_base(self) -> frozenset[str]:
        """The paths of arrays in the base snapshot that have manifests."""
        return frozenset(_list_paths_with_manifests(self.base.nodes))

    def arrays_with_chunks(self, paths: Sequence[str]) -> list[NodeSnapshot]:
        """Return the arrays at the given paths that may have chunks."""
        changes = self.changes
        changed = {delta.path for delta in tuple(changes.chunks.values())}
        candidates = self._written_in_base | changed | changes.moved.keys()
        if not candidates:
            return []
        found = [self.node(path) for path in paths if path in candidates]
        return [node for node in found if node is not None and isinstance(node.node_data, ArrayNodeData)]

    def metadata_bytes(self, paths: Sequence[str]) -> int:
        """Return the total size of the zarr.json documents of some nodes, in bytes."""
        changes, base = self.changes, self.base.nodes
        apart = {*changes.created, *changes.updated, *changes.moved}
        total = sum(len(node.user_data) for path in paths if path in apart and (node := self.node(path)))
        if not len(base):
            return total
        rows = {path: row for row, path in enumerate(base.paths())}
        same = [row for path in paths if path not in apart and (row := rows.get(path)) is not None]
        return total + int(base.columns["user_data"].lengths[same].sum())

    def set_metadata(self, path: str, user_data: bytes) -> None:
        """Set the zarr.json of the node at a path. The node is created if it does not exist."""
        node_data = parse_zarr_metadata(user_data, path, rectilinear=self.assets.spec.counts_chunks)
        with self._lock:
            self._admit_change()
            existing = self.node(path)
            if existing is None:
                self._check_place(path, node_data)
                self.create_node(NodeSnapshot(NodeId.random(), path, user_data, node_data))
                return
            if type(existing.node_data) is not type(node_data):
                raise AlreadyExistsError(
                    f"{path} already exists as a node of another type; delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            if existing.user_data == user_data:
                return
            if isinstance(node_data, ArrayNodeData) and isinstance(existing.node_data, ArrayNodeData):
                if len(node_data.shape) == count_dimensions(existing):
                    node_data = replace(node_data, manifests=existing.node_data.manifests)
                else:
                    self._forget_chunks(existing, len(node_data.shape))
            changed = replace(existing, user_data=user_data, node_data=node_data)
            kept = self.changes.created if path in self.changes.created else self.changes.updated
            kept[path] = changed

    def create_node(self, node: NodeSnapshot) -> None:
        """Create a node at a path where there is none. The caller must have checked the path."""
        with self._lock:
            known = self._path_index()
            self.changes.created[node.path] = node
            known.insert(node.path, self.changes)

    def _check_place(self, path: str, node_data: ArrayNodeData | GroupNodeData) -> None:
        for above in list_ancestors(path):
            holder = self.node(above)
            if holder is not None and not isinstance(holder.node_data, GroupNodeData):
                raise InvalidInputError(
                    f"{path} cannot be created inside the array {above}; an array cannot contain nodes",
                    kind=ErrorKind.NOT_A_GROUP,
                )
        if isinstance(node_data, ArrayNodeData) and self.has_nodes_below(path):
            raise AlreadyExistsError(
                f"{path} cannot become an array: it contains nodes; delete them first",
                kind=ErrorKind.NODE_ALREADY_EXISTS,
            )

    def _forget_chunks(self, array: NodeSnapshot, rank: int) -> None:
        """Drop the chunk changes of an array whose number of dimensions changes; raise an error if it has
        chunks.
        """
        if len(self.refs(array)):
            raise InvalidInputError(
                f"{array.path} has chunks with {count_dimensions(array)} dimensions; delete it before"
                f" creating it with {rank} dimensions",
                kind=ErrorKind.BAD_METADATA,
            )
        self.changes.chunks.pop(array.id, None)

    def delete_node(self, path: str) -> None:
        """Delete a node and all nodes below it, if it exists."""
        with self._lock:
            self._admit_change()
            changes, known = self.changes, self._path_index()
            gone = self.below(path)
            for each in gone:
                node = self.node(each)
                if node is None:
                    continue
                changes.chunks.pop(node.id, None)
                changes.updated.pop(each, None)
                if changes.created.pop(each, None) is None:
                    changes.deleted[each] = node
            known.remove(path, gone, changes)

    def move(self, source: str, target: str) -> None:
        """Move or rename a node and all nodes below it. There must be no changes other than moves."""
        with self._lock:
            self._admit_change()
            self._check_move(source, target)
            moved = dict(self.changes.moved)
            for path in self.below(source):
                origin = moved.pop(path, path)
                moved[target + path[len(source) :]] = origin
            away = {path: origin for path, origin in moved.items() if path != origin}
            self.changes.moved_back = self.changes.moved_back or len(away) < len(moved)
            self.changes.moved = away

    def _check_move(self, source: str, target: str) -> None:
        if self.node(source) is None:
            raise NodeNotFoundError(f"node not found at `{source}`", kind=ErrorKind.NODE_NOT_FOUND)
        if source == target or is_within(target, source):
            raise SessionStateError(
                f"cannot move {source} into itself or its own descendant {target}",
                kind=ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
            )
        if self.node(target) is not None:
            raise AlreadyExistsError(
                f"move cannot overwrite existing node at {target}; delete it first",
                kind=ErrorKind.MOVE_WONT_OVERWRITE,
            )
        group = self.node(get_parent(target) or ROOT)
        if group is None:
            raise SessionStateError(
                f"the destination's parent group {get_parent(target)} does not exist; create it first",
                kind=ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
            )
        if not isinstance(group.node_data, GroupNodeData):
            raise SessionStateError(
                f"the destination's parent {group.path} is an array, not a group",
                kind=ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
            )

    # Chunks

    def check_coords(self, node: NodeSnapshot, coords: Sequence[int]) -> None:
        """Raise an error if chunk coordinates are outside the chunk grid of an array."""
        if is_in_grid(node, coords):
            return
        data = node.node_data
        grid = tuple(d.num_chunks for d in data.shape) if isinstance(data, ArrayNodeData) else ()
        raise InvalidInputError(
            f"chunk {tuple(coords)} is outside the chunk grid {grid} of {node.path}; resize the array first",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )

    def ref(self, node: NodeSnapshot, coords: tuple[int, ...]) -> ChunkRef | None:
        """Return the reference of a chunk; None if it was never written or is outside the chunk grid."""
        data = node.node_data
        if not isinstance(data, ArrayNodeData) or not is_in_grid(node, coords):
            return None
        delta = self.changes.chunks.get(node.id)
        if delta is not None:
            with self._lock:
                changed, ref = delta.find(coords)
            if changed:
                return ref
        if not data.manifests:
            return None
        lookup = self._lookups.get(node.id)
        if lookup is None or lookup.data.manifests is not data.manifests:
            lookup = ArrayLookup(node.id, data, self.manifest, self._manifest_lookups)
            self._lookups[node.id] = lookup
        return lookup.find(coords)

    def manifest(self, ref: ManifestRef) -> PackedManifest:
        """Read a manifest of the base snapshot."""
        info = self.base.manifest_files.find(ref.id)
        return self.assets.manifest(ref.id, info.size_bytes if info else 0)

    def read(self, ref: ChunkRef, start: int, stop: int, chunk: str = "") -> bytes:
        """Read bytes of a chunk, given its reference. Error messages mention the given name."""
        match ref:
            case InlineRef(data):
                return data[start:stop]
            case NativeRef():
                return self.assets.chunk(ref, start, stop)
        return self.assets.virtual.read(ref, start, stop, chunk)

    def is_inline(self, size_bytes: int) -> bool:
        """Return True if a chunk of this size is stored inline, in the manifest."""
        return size_bytes <= self.assets.config.inline_chunk_threshold_bytes

    def write(self, path: str, coords: tuple[int, ...], data: bytes | bytearray | memoryview) -> None:
        """Write a chunk. Small chunks are kept inline for the next manifest, larger ones are written as
        objects immediately.
        """
        node = self.array(path)
        self.check_coords(node, coords)
        if not len(data):
            raise InvalidInputError(
                f"chunk {coords} of {path} is empty; delete it instead", kind=ErrorKind.ZERO_LENGTH_CHUNK
            )
        ref = InlineRef(bytes(data)) if self.is_inline(len(data)) else self.assets.write_chunk(data)
        with self._lock:
            self._admit_change()
            current = self.node(path)
            if current is not node:  # another thread changed the array meanwhile
                if current is None or current.id != node.id:
                    raise NodeNotFoundError(
                        f"{path} was deleted while chunk {coords} was written", kind=ErrorKind.NODE_NOT_FOUND
                    )
                self.check_coords(current, coords)
            self.changes.delta(node).put(coords, ref)

    def put_refs(self, node: NodeSnapshot, refs: ArrayManifest) -> None:
        """Set many references of an array. They must be inside its chunk grid."""
        with self._lock:
            self._admit_change()
            current = self.node(node.path)
            if current is None or current.id != node.id:
                raise NodeNotFoundError(
                    f"{node.path} was deleted while references were set", kind=ErrorKind.NODE_NOT_FOUND
                )
            self.changes.delta(current).put_many(refs)

    def delete_chunk(self, node: NodeSnapshot, coords: tuple[int, ...]) -> None:
        """Delete a chunk, if it is inside the chunk grid."""
        if is_in_grid(node, coords):
            with self._lock:
                self._admit_change()
                if self._is_current(node):
                    self.changes.delta(node).put(coords, None)

    def delete_chunks(self, node: NodeSnapshot, coords: Coords) -> None:
        """Delete many existing chunks of an array."""
        if len(coords):
            with self._lock:
                self._admit_change()
                if self._is_current(node):
                    self.changes.delta(node).delete_many(coords)

    def _is_current(self, node: NodeSnapshot) -> bool:
        """Return True if a node still exists. Another thread may have deleted it."""
        current = self.node(node.path)
        return current is not None and current.id == node.id

    def replace_chunks(self, node: NodeSnapshot, written: ArrayManifest, gone: Coords) -> None:
        """Set many references of an array, and delete many other chunks."""
        with self._lock:
            self._admit_change()
            delta = self.changes.delta(node)
            if len(gone):
                delta.delete_many(gone)
            if len(written):
                delta.put_many(written)

    def refs(self, node: NodeSnapshot, first: Sequence[int] = ()) -> ArrayManifest:
        """Return all references of an array, or only those with the given leading coordinates."""
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            return ArrayManifest.of(np.zeros((0, 0), np.uint32), 1)
        refs = self._merge_refs(node, data.manifests)
        # After a resize, the commit drops chunks outside the shape. Hide them until then.
        window = [range(max(d.num_chunks, 1)) for d in data.shape]
        window[: len(first)] = [range(number, number + 1) for number in first]
        inside = coordinates.are_inside(refs.coords, window)
        return refs if inside.all() else refs.take(inside)

    def _merge_refs(self, node: NodeSnapshot, manifests: Sequence[ManifestRef]) -> ArrayManifest:
        """Return the references of an array from some of its manifests, merged with all uncommitted
        changes.
        """
        parts = [self.manifest_refs(node, ref) for ref in manifests]
        empty = ArrayManifest.of(np.zeros((0, count_dimensions(node)), np.uint32), 1)
        refs = ArrayManifest.concat(parts) if parts else empty
        delta = self.changes.chunks.get(node.id)
        if delta is not None:
            with self._lock:
                written, gone = delta.resolve()
            refs = refs.without(gone) if len(gone) else refs
            refs = refs if written is None else refs.merge(written)
        return refs

    def manifest_refs(self, node: NodeSnapshot, ref: ManifestRef) -> ArrayManifest:
        """Return the references of an array that are stored in one of its manifests."""
        rank = count_dimensions(node)
        manifest = self.manifest(ref)
        if node.id not in manifest.nodes:
            return ArrayManifest.of(np.zeros((0, rank), np.uint32), 1)
        return manifest.array(node.id, rank)

    def chunk_coords(self, node: NodeSnapshot, first: Sequence[int] = ()) -> Coords:
        """Return the coordinates of all existing chunks of an array, or only those with the given leading
        coordinates.
        """
        return self.refs(node, first).coords

    def chunk_coords_inside(self, node: NodeSnapshot, box: Sequence[range]) -> Coords:
        """Return the coordinates of an array's existing chunks inside a box of the chunk grid. Only manifests
        that overlap the box are read.
        """
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            return np.zeros((0, len(box)), np.uint32)
        near = [
            ref
            for ref in data.manifests
            if not ref.extents
            or all(
                one.start < other.stop and other.start < one.stop
                for one, other in zip(ref.extents, box, strict=True)
            )
        ]
        found = self._merge_refs(node, near).coords
        return found[coordinates.are_inside(found, box)]


def is_in_grid(node: NodeSnapshot, coords: Sequence[int]) -> bool:
    """Return True if coordinates are inside the chunk grid of an array."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData) or len(coords) != len(data.shape):
        return False
    for number, dimension in zip(coords, data.shape, strict=True):
        if not 0 <= number < (dimension.num_chunks or 1):
            return False
    return True


def _list_paths_with_manifests(nodes: Nodes) -> list[str]:
    union = nodes.columns["node_data"] if len(nodes) else None
    arrays = None if union is None else union.tables.get(ARRAY_NODE)
    if union is None or arrays is None:
        return []
    rows = np.flatnonzero(union.kinds == ARRAY_NODE)[arrays["manifests"].lengths > 0]
    paths = nodes.paths()
    return [paths[row] for row in rows.tolist()]
