"""A base snapshot with changes over it, seen as one hierarchy of groups, arrays and chunks."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.ids import NodeId, SnapshotId
from icefloe._internal.paths import ROOT, ancestors, is_within, parent
from icefloe.core.assets import AssetStore
from icefloe.core.cache import WeightedCache
from icefloe.core.changeset import ChangeSet, rank_of
from icefloe.core.lookup import ArrayLookup, LookupCache
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

if TYPE_CHECKING:
    from icefloe.core.commit.manifests import Place, Rewritten


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """A write through a read-only store. Zarr expects a ValueError."""


def read_only_store() -> ReadOnlyStoreError:
    """Describe a write to a session that is read-only, from the beginning or since its commit."""
    return ReadOnlyStoreError(
        "store was opened in read-only mode and does not support writing; a committed session has a"
        " read-only store too: open another with Repository.writable_session",
        kind=ErrorKind.READ_ONLY_STORE,
    )


class Workspace:
    """One hierarchy out of a snapshot and uncommitted changes. Safe for many threads.

    While a commit is under way, changes by other threads wait for its end: they go on if it failed, and raise
    ReadOnlyStoreError if it succeeded. No change that returns is lost.

    A node needs no parents: Zarr writes a node and its implicit groups side by side, in no order, so a group
    may come after its members. What lies inside an array is refused.
    """

    def __init__(
        self,
        base: Snapshot | SnapshotId,
        assets: AssetStore,
        changes: ChangeSet | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Read the base snapshot on first use, if only its id is given."""
        self._base = base
        self.assets = assets
        self.changes = changes or ChangeSet()
        self.rewritten: dict[Place, Rewritten] = {}
        """Manifests that the latest attempt to commit wrote."""
        self.all_anew = False
        """Whether a commit writes all manifests anew, by the rules for splitting as they are now."""
        self._lock: threading.RLock = fork_safe_lock(reentrant=True)
        self._commit_ended = threading.Condition(self._lock)
        self._committer: tuple[int, int] | None = None
        """The process and the thread that commit. A forked child does not wait for a thread of its parent."""
        self._read_only = read_only
        self._found: dict[str, NodeSnapshot] = {}
        self._paths: _SortedPaths | None = None
        self._lookups: dict[NodeId, ArrayLookup] = {}
        self._manifest_lookups: LookupCache = WeightedCache(
            assets.config.num_chunk_refs, lambda lookup: max(lookup.count, 1)
        )

    @property
    def base(self) -> Snapshot:
        """The snapshot below the changes."""
        base = self._base
        if isinstance(base, SnapshotId):
            loaded = self.assets.snapshot(base)
            with self._lock:
                if self._base is base:  # not rebased meanwhile
                    self._base = loaded
            return loaded
        return base

    @property
    def base_id(self) -> SnapshotId:
        """The id of the base snapshot, which is not read for it."""
        base = self._base
        return base if isinstance(base, SnapshotId) else base.id

    @property
    def unread_base(self) -> Snapshot | SnapshotId:
        """The base snapshot if it was read, otherwise its id."""
        return self._base

    def exclusive(self) -> AbstractContextManager[object]:
        """Keeps all other threads from changing anything for the length of a block."""
        return self._lock

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Make several changes at once. Waits for the end of a commit by another thread."""
        with self._lock:
            self._admit_change()
            yield

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Hold back changes by other threads while this one commits. Reading goes on."""
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
        """Whether a change would have to wait now."""
        return self._committer is not None

    def close(self) -> None:
        """Refuse all further changes: these were committed."""
        with self._lock:
            self._read_only = True

    def _admit_change(self) -> None:
        """Let the holder of the lock make a change, as soon as no other thread commits."""
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
        """Lay changes over another snapshot."""
        with self.editing():
            self._base, self.changes = base, changes
            self._found, self._paths, self._lookups = {}, None, {}
            self.__dict__.pop("_written_in_base", None)

    def discard_changes(self) -> None:
        """Forget all changes."""
        self.rebase(self._base, ChangeSet())

    # Nodes

    def node(self, path: str) -> NodeSnapshot | None:
        """The group or array at a path."""
        changes = self.changes
        changed = changes.created.get(path) or changes.updated.get(path)
        if changed is not None:
            return changed
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
        """The paths of all nodes, sorted."""
        with self._lock:
            known = self._paths
            if known is None or not known.still_fits(self.changes):
                known = self._paths = _SortedPaths(self.changes, self._all_paths())
            return known.paths

    def _all_paths(self) -> list[str]:
        changes = self.changes
        base = self.base.nodes.paths()
        if changes.is_empty():
            return base
        hidden = self._vanished() | set(changes.deleted) if changes.moved else changes.deleted.keys()
        kept = [path for path in base if path not in hidden] if hidden else base
        added = {*changes.created, *changes.moved}.difference(kept)
        return sorted([*kept, *added]) if added else kept

    def below(self, group: str) -> list[str]:
        """The paths of a node and of all below it, sorted."""
        with self._lock:
            paths = self.paths()
            if group == ROOT:
                return list(paths)
            first, end = _bounds(paths, group)
            own = [group] if self.node(group) is not None else []
            return own + list(paths[first:end])

    def has_nodes_below(self, group: str) -> bool:
        """Whether there are nodes inside the one at a path, which need not exist itself."""
        with self._lock:
            paths = self.paths()
            if group == ROOT:
                return len(paths) > (paths[:1] == [ROOT])
            first, end = _bounds(paths, group)
            return end > first

    def children(self, group: str) -> list[str]:
        """The names of the nodes directly below a group, and of the groups that only their members imply."""
        prefix = ROOT if group == ROOT else group + "/"
        names: list[str] = []
        with self._lock:
            paths = self.paths()
            at, end = (0, len(paths)) if group == ROOT else _bounds(paths, group)
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
        """The arrays of the base snapshot that have manifests."""
        return frozenset(_paths_with_manifests(self.base.nodes))

    def arrays_with_chunks(self, paths: Sequence[str]) -> list[NodeSnapshot]:
        """Those of some nodes that are arrays and may have chunks."""
        changes = self.changes
        changed = {delta.path for delta in tuple(changes.chunks.values())}
        candidates = self._written_in_base | changed | changes.moved.keys()
        if not candidates:
            return []
        found = [self.node(path) for path in paths if path in candidates]
        return [node for node in found if node is not None and isinstance(node.node_data, ArrayNodeData)]

    def metadata_bytes(self, paths: Sequence[str]) -> int:
        """The number of bytes of the zarr.json documents of some nodes."""
        changes, base = self.changes, self.base.nodes
        apart = {*changes.created, *changes.updated, *changes.moved}
        total = sum(len(node.user_data) for path in paths if path in apart and (node := self.node(path)))
        if not len(base):
            return total
        rows = {path: row for row, path in enumerate(base.paths())}
        same = [row for path in paths if path not in apart and (row := rows.get(path)) is not None]
        return total + int(base.columns["user_data"].lengths[same].sum())

    def set_metadata(self, path: str, user_data: bytes) -> None:
        """Create the node at a path, or give it another zarr.json."""
        node_data = parse_zarr_metadata(user_data, path, rectilinear=self.assets.spec.counts_chunks)
        with self._lock:
            self._admit_change()
            existing = self.node(path)
            if existing is None:
                self._check_place(path, node_data)
                self._create(NodeSnapshot(NodeId.random(), path, user_data, node_data))
                return
            if type(existing.node_data) is not type(node_data):
                raise AlreadyExistsError(
                    f"there is a node of another type at {path}; delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            if existing.user_data == user_data:
                return
            if isinstance(node_data, ArrayNodeData) and isinstance(existing.node_data, ArrayNodeData):
                if len(node_data.shape) == rank_of(existing):
                    node_data = replace(node_data, manifests=existing.node_data.manifests)
                else:
                    self._forget_chunks(existing, len(node_data.shape))
            changed = replace(existing, user_data=user_data, node_data=node_data)
            kept = self.changes.created if path in self.changes.created else self.changes.updated
            kept[path] = changed

    def _create(self, node: NodeSnapshot) -> None:
        known = self._paths
        fits = known is not None and known.still_fits(self.changes)
        self.changes.created[node.path] = node
        if known is not None and fits:
            known.insert(node.path, self.changes)

    def _check_place(self, path: str, node_data: ArrayNodeData | GroupNodeData) -> None:
        for above in ancestors(path):
            holder = self.node(above)
            if holder is not None and not isinstance(holder.node_data, GroupNodeData):
                raise InvalidInputError(
                    f"{path} cannot be created inside the array {above}; an array holds chunks, no nodes",
                    kind=ErrorKind.NOT_A_GROUP,
                )
        if isinstance(node_data, ArrayNodeData) and self.has_nodes_below(path):
            raise AlreadyExistsError(
                f"{path} cannot become an array: there are nodes below it; delete them first",
                kind=ErrorKind.NODE_ALREADY_EXISTS,
            )

    def _forget_chunks(self, array: NodeSnapshot, rank: int) -> None:
        """Prepare an array for another number of dimensions; its chunks, if any, would be found by nobody."""
        if len(self.refs(array)):
            raise InvalidInputError(
                f"{array.path} has {rank_of(array)} dimensions and chunks; delete it before it is created"
                f" with {rank}",
                kind=ErrorKind.BAD_METADATA,
            )
        self.changes.chunks.pop(array.id, None)

    def delete_node(self, path: str) -> None:
        """Delete a node with all below it; nothing happens where there is none."""
        with self._lock:
            self._admit_change()
            changes, known = self.changes, self._paths
            fits = known is not None and known.still_fits(changes)
            for each in self.below(path):
                node = self.node(each)
                if node is None:
                    continue
                changes.chunks.pop(node.id, None)
                changes.updated.pop(each, None)
                if changes.created.pop(each, None) is None:
                    changes.deleted[each] = node
            if known is not None and fits:
                known.remove(path, changes)

    def move(self, source: str, target: str) -> None:
        """Move or rename a node with all below it. Nothing else may have changed."""
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
        group = self.node(parent(target) or ROOT)
        if group is None:
            raise SessionStateError(
                f"the destination's parent group {parent(target)} does not exist; create it first",
                kind=ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
            )
        if not isinstance(group.node_data, GroupNodeData):
            raise SessionStateError(
                f"the destination's parent {group.path} is an array, not a group",
                kind=ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
            )

    # Chunks

    def check_coords(self, node: NodeSnapshot, coords: Sequence[int]) -> None:
        """Refuse coordinates that are not in an array's chunk grid."""
        if in_grid(node, coords):
            return
        data = node.node_data
        grid = tuple(d.num_chunks for d in data.shape) if isinstance(data, ArrayNodeData) else ()
        raise InvalidInputError(
            f"chunk {tuple(coords)} is outside the chunk grid {grid} of {node.path}; resize the array first",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )

    def ref(self, node: NodeSnapshot, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of a chunk; None where it was never written, or lies outside the chunk grid."""
        data = node.node_data
        if not isinstance(data, ArrayNodeData) or not in_grid(node, coords):
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
        """A manifest of the base snapshot."""
        info = self.base.manifest_files.find(ref.id)
        return self.assets.manifest(ref.id, info.size_bytes if info else 0)

    def read(self, ref: ChunkRef, start: int, stop: int, chunk: str = "") -> bytes:
        """Bytes of a chunk; errors name it as given."""
        match ref:
            case InlineRef(data):
                return data[start:stop]
            case NativeRef():
                return self.assets.chunk(ref, start, stop)
        return self.assets.virtual.read(ref, start, stop, chunk)

    def is_inline(self, size_bytes: int) -> bool:
        """Whether a chunk of this size goes into the manifest."""
        return size_bytes <= self.assets.config.inline_chunk_threshold_bytes

    def write(self, path: str, coords: tuple[int, ...], data: bytes | bytearray | memoryview) -> None:
        """Write a chunk: small ones into the manifest to be, others as an object at once."""
        node = self.array(path)
        self.check_coords(node, coords)
        if not len(data):
            raise InvalidInputError(
                f"chunk {coords} of {path} has no bytes; delete it instead", kind=ErrorKind.ZERO_LENGTH_CHUNK
            )
        ref = InlineRef(bytes(data)) if self.is_inline(len(data)) else self.assets.write_chunk(data)
        with self._lock:
            self._admit_change()
            current = self.node(path)
            if current is not node:  # another thread changed the array while the chunk was written
                if current is None or current.id != node.id:
                    raise NodeNotFoundError(
                        f"{path} was deleted while chunk {coords} was written", kind=ErrorKind.NODE_NOT_FOUND
                    )
                self.check_coords(current, coords)
            self.changes.delta(node).put(coords, ref)

    def put_refs(self, node: NodeSnapshot, refs: ArrayManifest) -> None:
        """Set many references of an array that lie in its chunk grid."""
        with self._lock:
            self._admit_change()
            current = self.node(node.path)
            if current is None or current.id != node.id:
                raise NodeNotFoundError(
                    f"{node.path} was deleted while references were set", kind=ErrorKind.NODE_NOT_FOUND
                )
            self.changes.delta(current).put_many(refs)

    def delete_chunk(self, node: NodeSnapshot, coords: tuple[int, ...]) -> None:
        """Delete a chunk. One outside the grid cannot exist: nothing happens."""
        if in_grid(node, coords):
            with self._lock:
                self._admit_change()
                if self._is_current(node):
                    self.changes.delta(node).put(coords, None)

    def delete_chunks(self, node: NodeSnapshot, coords: Coords) -> None:
        """Delete many chunks that exist."""
        if len(coords):
            with self._lock:
                self._admit_change()
                if self._is_current(node):
                    self.changes.delta(node).delete_many(coords)

    def _is_current(self, node: NodeSnapshot) -> bool:
        """Whether another thread has not deleted a node since it was looked up."""
        current = self.node(node.path)
        return current is not None and current.id == node.id

    def replace_chunks(self, node: NodeSnapshot, written: ArrayManifest, gone: Coords) -> None:
        """Write many references and delete many others."""
        with self._lock:
            self._admit_change()
            delta = self.changes.delta(node)
            if len(gone):
                delta.delete_many(gone)
            if len(written):
                delta.put_many(written)

    def refs(self, node: NodeSnapshot, first: Sequence[int] = ()) -> ArrayManifest:
        """All references of an array, the changes included, or those with given first coordinates."""
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            return ArrayManifest.of(np.zeros((0, 0), np.uint32), 1)
        empty = ArrayManifest.of(np.zeros((0, rank_of(node)), np.uint32), 1)
        parts = [self.manifest_refs(node, ref) for ref in data.manifests]
        refs = ArrayManifest.concat(parts) if parts else empty
        delta = self.changes.chunks.get(node.id)
        if delta is not None:
            with self._lock:
                written, gone = delta.resolve()
            refs = refs.without(gone) if len(gone) else refs
            refs = refs if written is None else refs.merge(written)
        # What a smaller shape leaves outside is dropped by the commit; until then it is not seen.
        window = [range(max(d.num_chunks, 1)) for d in data.shape]
        window[: len(first)] = [range(number, number + 1) for number in first]
        inside = coordinates.inside(refs.coords, window)
        return refs if inside.all() else refs.take(inside)

    def manifest_refs(self, node: NodeSnapshot, ref: ManifestRef) -> ArrayManifest:
        """The references of an array in one of its manifests."""
        rank = rank_of(node)
        manifest = self.manifest(ref)
        if node.id not in manifest.nodes:
            return ArrayManifest.of(np.zeros((0, rank), np.uint32), 1)
        return manifest.array(node.id, rank)

    def chunk_coords(self, node: NodeSnapshot, first: Sequence[int] = ()) -> Coords:
        """The coordinates of all chunks of an array that exist, or of those with given first coordinates."""
        return self.refs(node, first).coords


class _SortedPaths:
    """The paths of all nodes in order, as long as the changes are those they were collected from."""

    __slots__ = ("_changes", "_counts", "_moved", "paths")

    def __init__(self, changes: ChangeSet, paths: list[str]) -> None:
        self.paths = paths
        self.note(changes)

    def note(self, changes: ChangeSet) -> None:
        """Remember which changes the paths are those of."""
        self._changes, self._moved = changes, changes.moved
        self._counts = (len(changes.created), len(changes.deleted), len(changes.moved))

    def still_fits(self, changes: ChangeSet) -> bool:
        """Whether nothing was created, deleted or moved since."""
        counts = (len(changes.created), len(changes.deleted), len(changes.moved))
        return self._changes is changes and self._moved is changes.moved and self._counts == counts

    def insert(self, path: str, changes: ChangeSet) -> None:
        """Take up a node that was created."""
        insort(self.paths, path)
        self.note(changes)

    def remove(self, path: str, changes: ChangeSet) -> None:
        """Drop a node that was deleted, and all below it."""
        first, end = (0, len(self.paths)) if path == ROOT else _bounds(self.paths, path)
        del self.paths[first:end]
        own = bisect_left(self.paths, path)
        if self.paths[own : own + 1] == [path]:
            del self.paths[own]
        self.note(changes)


def in_grid(node: NodeSnapshot, coords: Sequence[int]) -> bool:
    """Whether an array's chunk grid has a place. A dimension without elements still has one."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData) or len(coords) != len(data.shape):
        return False
    for number, dimension in zip(coords, data.shape, strict=True):
        if not 0 <= number < (dimension.num_chunks or 1):
            return False
    return True


def _bounds(paths: Sequence[str], group: str) -> tuple[int, int]:
    """Where the paths below a group begin and end."""
    return bisect_left(paths, group + "/"), bisect_left(paths, group + "0")  # "0" follows "/"


def _paths_with_manifests(nodes: Nodes) -> list[str]:
    union = nodes.columns["node_data"] if len(nodes) else None
    arrays = None if union is None else union.tables.get(ARRAY_NODE)
    if union is None or arrays is None:
        return []
    rows = np.flatnonzero(union.kinds == ARRAY_NODE)[arrays["manifests"].lengths > 0]
    paths = nodes.paths()
    return [paths[row] for row in rows.tolist()]
