"""The uncommitted changes of a session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import NodeId
from icefloe.core.early_manifests import EarlyManifest
from icefloe.encoding.flatbuffers.records import FEW
from icefloe.format import coordinates
from icefloe.format.chunk_regions import ChunkRegions
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef
from icefloe.format.manifest_blocks import FewRefs
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

_DELETED: Final = 0
"""The reference kind that marks a deleted chunk."""
_RECENT_LIMIT: Final = 50_000
"""The number of single writes that are collected in a dictionary before they are converted to columns."""


@dataclass(slots=True)
class ArrayDelta:
    """The changed chunks of one array in a change set, in order of the changes: segments, then recent single
    writes.
    """

    path: str
    rank: int
    recent: dict[tuple[int, ...], ChunkRef | None] = field(default_factory=dict)
    """The most recent single writes, by coordinates; None for a deleted chunk."""
    segments: list[ArrayManifest | Coords] = field(default_factory=list)
    """Earlier changes as columns: references that were written, or coordinates of deleted chunks."""
    early: list[EarlyManifest] = field(default_factory=list)
    """Manifests that were written before the commit. All segments and single writes are newer."""

    def put(self, coords: tuple[int, ...], ref: ChunkRef | None) -> None:
        """Record that a chunk was written or deleted."""
        self.recent[coords] = ref
        if len(self.recent) >= _RECENT_LIMIT:
            self._settle()

    def put_many(self, refs: ArrayManifest) -> None:
        """Record many written chunks."""
        self._settle()
        self.segments.append(refs)

    def delete_many(self, coords: Coords) -> None:
        """Record many deleted chunks."""
        self._settle()
        self.segments.append(coords)

    def put_early(self, manifest: EarlyManifest) -> None:
        """Record many chunks whose manifest has already been written.

        The manifest is read only if there are older changes.
        """
        self._settle()
        if self.segments:
            self.segments.append(manifest.refs(self.path))
        else:
            self.early.append(manifest)

    def _settle(self) -> None:
        """Move the buffered writes of single chunks to new segments."""
        written = {at: ref for at, ref in self.recent.items() if ref is not None}
        gone = [at for at, ref in self.recent.items() if ref is None]
        if written:
            self.segments.append(ArrayManifest.from_refs(written, self.rank))
        if gone:
            self.segments.append(np.array(gone, np.uint32).reshape(len(gone), self.rank))
        self.recent = {}

    def find(self, coords: tuple[int, ...]) -> tuple[bool, ChunkRef | None]:
        """Return a flag and a reference: whether the chunk was changed, and its new reference, which is None
        if it was deleted.
        """
        if coords in self.recent:
            return True, self.recent[coords]
        for segment in reversed(self.segments):
            if isinstance(segment, ArrayManifest):
                row = coordinates.find(segment.coords, coords)
                if row is not None:
                    return True, segment.ref(row)
            elif (segment == np.array(coords, np.uint32)).all(axis=1).any():
                return True, None
        for manifest in reversed(self.early):
            if manifest.has(coords):
                return True, manifest.refs(self.path).find(coords)
        return False, None

    def to_single_refs(self) -> FewRefs | None:
        """Return all written references of the array as a dict; None if there are many references, or any
        deletions.
        """
        recent = self.recent
        if self.segments or self.early or not 0 < len(recent) <= FEW:
            return None
        written = {at: ref for at, ref in recent.items() if ref is not None}
        return written if len(written) == len(recent) else None

    def resolve(self) -> tuple[ArrayManifest | None, Coords]:
        """Return all written references, and the sorted coordinates of all deleted chunks. Only the last
        change of each chunk counts.

        Early manifests are read. The result is cached, so that further calls are cheap.
        """
        self._settle()
        self.segments[:0] = [manifest.refs(self.path) for manifest in self.early]
        self.early = []
        if len(self.segments) == 1 and isinstance(only := self.segments[0], ArrayManifest):
            return only, only.coords[:0]
        parts = [
            segment if isinstance(segment, ArrayManifest) else ArrayManifest.of_sorted(segment, _DELETED)
            for segment in self.segments
        ]
        if not parts:
            return None, np.zeros((0, self.rank), np.uint32)
        # Deletions are rows of a special kind, so that all rows of all segments are sorted once.
        whole = ArrayManifest.concat(parts) if len(parts) > 1 else parts[0]
        deleted = whole.kind == _DELETED
        gone = coordinates.keep_last_of_equal(whole.coords[deleted])[0] if deleted.any() else whole.coords[:0]
        written = None if len(gone) and deleted.all() else whole.take(~deleted) if len(gone) else whole
        self.segments = [] if written is None else [written]
        if len(gone):
            self.segments.append(gone)
        return written, gone

    def forget(self, coords: Coords) -> None:
        """Remove the changes of the chunks at the given sorted coordinates."""
        written, gone = self.resolve()
        kept = gone[~coordinates.contains(gone, coords)]
        self.segments = [] if written is None else [written.without(coords)]
        if len(kept):
            self.segments.append(kept)

    def coords(self) -> Coords:
        """Return the sorted coordinates of all changed chunks of an array."""
        if self.early:
            return self.regions().coords()
        if not self.segments and len(self.recent) <= FEW:
            return np.array(sorted(self.recent), np.uint32).reshape(len(self.recent), self.rank)
        written, gone = self.resolve()
        if written is None:
            return gone
        return coordinates.keep_last_of_equal(np.concatenate([written.coords, gone]))[0]

    def regions(self) -> ChunkRegions:
        """Return all changed chunks of the array as regions, except for chunks in early manifests."""
        windows = [each.extents if each.sparse is None else each.sparse for each in self.early]
        rest = self.without_early().coords()
        return ChunkRegions(self.rank, (*windows, *([rest] if len(rest) else [])))

    def find_changed(self, coords: Coords) -> NDArray[np.bool_]:
        """Return a mask of the chunks, given by sorted coordinates, that were changed."""
        if coords.shape[1] != self.rank:
            return np.zeros(len(coords), np.bool_)
        if self.early:
            found = np.zeros(len(coords), np.bool_)
            for region in self.regions().regions:
                found |= (
                    coordinates.are_inside(coords, region)
                    if isinstance(region, tuple)
                    else coordinates.contains(coords, region)
                )
            return found
        return coordinates.contains(coords, self.coords())

    def has_changes(self) -> bool:
        """Return True if any chunk of the array was changed."""
        return bool(self.early) or len(self.coords()) > 0

    def count_at_most(self) -> int:
        """Return an upper bound on the number of changed chunks.

        Chunks that were changed repeatedly may be counted repeatedly.
        """
        early = sum(manifest.info.num_chunk_refs for manifest in self.early)
        return early + sum(map(len, self.segments)) + len(self.recent)

    def extend(self, later: ArrayDelta) -> None:
        """Append the newer changes of the same array from another change set."""
        self._settle()
        later._settle()
        for manifest in later.early:
            self.put_early(manifest)
        self.segments += later.segments

    def copy(self) -> ArrayDelta:
        """Return an independent copy of the array's changes."""
        return ArrayDelta(self.path, self.rank, dict(self.recent), list(self.segments), list(self.early))

    def without_early(self) -> ArrayDelta:
        """Return only the changes that are newer than the early manifests."""
        return ArrayDelta(self.path, self.rank, dict(self.recent), list(self.segments))


@dataclass(slots=True)
class ChangeSet:
    """The uncommitted changes of a session: nodes by path, and chunks by node id."""

    created: dict[str, NodeSnapshot] = field(default_factory=dict)
    updated: dict[str, NodeSnapshot] = field(default_factory=dict)
    """The nodes of the base snapshot whose metadata changed."""
    deleted: dict[str, NodeSnapshot] = field(default_factory=dict)
    """The nodes of the base snapshot that were deleted."""
    chunks: dict[NodeId, ArrayDelta] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    """The path in the base snapshot of each moved node, by its current path."""
    moved_back: bool = False
    """True if nodes were moved back to their original paths. Such a session can be committed although nothing
    differs.
    """

    def is_empty(self) -> bool:
        """Return True if the change set contains no changes."""
        changed = self.created or self.updated or self.deleted or self.chunks or self.moved
        return not (changed or self.moved_back)

    def delta(self, node: NodeSnapshot) -> ArrayDelta:
        """Return the mutable chunk changes of an array, created on first use."""
        if node.id not in self.chunks:
            self.chunks[node.id] = ArrayDelta(node.path, count_dimensions(node))
        return self.chunks[node.id]

    def nodes_by_type(self) -> dict[str, list[NodeSnapshot]]:
        """Return the changed nodes by kind of change and type of node. See `split_by_type`."""
        return split_by_type(
            new=self.created.values(), deleted=self.deleted.values(), updated=self.updated.values()
        )

    def copy(self) -> ChangeSet:
        """Return an independent copy of the change set."""
        chunks = {node: delta.copy() for node, delta in self.chunks.items()}
        return ChangeSet(
            dict(self.created),
            dict(self.updated),
            dict(self.deleted),
            chunks,
            dict(self.moved),
            self.moved_back,
        )


def split_by_type(**nodes: Iterable[NodeSnapshot]) -> dict[str, list[NodeSnapshot]]:
    """Split changed nodes into groups and arrays, with the field names of transaction logs and diffs as
    keys.
    """
    return {
        f"{name}_{kind}": [node for node in each if isinstance(node.node_data, ArrayNodeData) is is_array]
        for name, each in nodes.items()
        for kind, is_array in (("groups", False), ("arrays", True))
    }


def count_dimensions(node: NodeSnapshot) -> int:
    """Return the number of dimensions of an array with changed chunks."""
    return len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0
