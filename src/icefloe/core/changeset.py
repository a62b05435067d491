"""What a session has changed and not yet committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icefloe._internal.ids import NodeId
from icefloe.core.commit.early_manifests import EarlyManifest
from icefloe.encoding.flatbuffers.records import FEW
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest, ChunkRef
from icefloe.format.manifest_blocks import FewRefs
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

_DELETED: Final = 0
"""The kind of a reference that is none: the chunk was deleted."""
_RECENT_LIMIT: Final = 50_000
"""Single writes are kept in a dict up to this number, then become a column segment."""


@dataclass(slots=True)
class ArrayDelta:
    """Changed chunks of one array: the latest single writes, over bulk segments in the order they came."""

    path: str
    rank: int
    recent: dict[tuple[int, ...], ChunkRef | None] = field(default_factory=dict)
    """None is a deleted chunk."""
    segments: list[ArrayManifest | Coords] = field(default_factory=list)
    """Columns of writes, or coordinates of deletions."""
    early: list[EarlyManifest] = field(default_factory=list)
    """Manifests that were written already. Segments and single writes came after them."""

    def put(self, coords: tuple[int, ...], ref: ChunkRef | None) -> None:
        """One chunk written, or deleted."""
        self.recent[coords] = ref
        if len(self.recent) >= _RECENT_LIMIT:
            self._settle()

    def put_many(self, refs: ArrayManifest) -> None:
        """Many chunks written."""
        self._settle()
        self.segments.append(refs)

    def delete_many(self, coords: Coords) -> None:
        """Many chunks deleted."""
        self._settle()
        self.segments.append(coords)

    def put_early(self, manifest: EarlyManifest) -> None:
        """Many chunks written, and their manifest too. It is read where other changes came before it."""
        self._settle()
        if self.segments:
            self.segments.append(manifest.refs())
        else:
            self.early.append(manifest)

    def _settle(self) -> None:
        """Turn the single writes into segments."""
        written = {at: ref for at, ref in self.recent.items() if ref is not None}
        gone = [at for at, ref in self.recent.items() if ref is None]
        if written:
            self.segments.append(ArrayManifest.from_refs(written, self.rank))
        if gone:
            self.segments.append(np.array(gone, np.uint32).reshape(len(gone), self.rank))
        self.recent = {}

    def find(self, coords: tuple[int, ...]) -> tuple[bool, ChunkRef | None]:
        """Whether a chunk was changed, and its reference: None if it was deleted."""
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
                return True, manifest.refs().find(coords)
        return False, None

    def few(self) -> FewRefs | None:
        """All that was written, where that is all that happened and it is but a little."""
        recent = self.recent
        if self.segments or self.early or not 0 < len(recent) <= FEW:
            return None
        written = {at: ref for at, ref in recent.items() if ref is not None}
        return written if len(written) == len(recent) else None

    def resolve(self) -> tuple[ArrayManifest | None, Coords]:
        """All that was written, and the sorted coordinates of all that was deleted, each chunk once.

        What was found is kept, so that asking often costs little. Early manifests are read for it.
        """
        self._settle()
        self.segments[:0] = [manifest.refs() for manifest in self.early]
        self.early = []
        if len(self.segments) == 1 and isinstance(only := self.segments[0], ArrayManifest):
            return only, only.coords[:0]
        parts = [
            segment if isinstance(segment, ArrayManifest) else ArrayManifest.of_sorted(segment, _DELETED)
            for segment in self.segments
        ]
        if not parts:
            return None, np.zeros((0, self.rank), np.uint32)
        # Deletions take part as references of a kind of their own: however many segments there are, all rows
        # are sorted once.
        whole = ArrayManifest.concat(parts) if len(parts) > 1 else parts[0]
        deleted = whole.kind == _DELETED
        gone = coordinates.last_of_equal(whole.coords[deleted])[0] if deleted.any() else whole.coords[:0]
        written = None if len(gone) and deleted.all() else whole.take(~deleted) if len(gone) else whole
        self.segments = [] if written is None else [written]
        if len(gone):
            self.segments.append(gone)
        return written, gone

    def forget(self, coords: Coords) -> None:
        """Take back what was done to some chunks, given by sorted coordinates."""
        written, gone = self.resolve()
        kept = gone[~coordinates.contains(gone, coords)]
        self.segments = [] if written is None else [written.without(coords)]
        if len(kept):
            self.segments.append(kept)

    def coords(self) -> Coords:
        """The sorted coordinates of all changed chunks."""
        if self.early:
            rest = self.without_early().coords()
            known = [*(manifest.coords for manifest in self.early), *([rest] if len(rest) else [])]
            return coordinates.last_of_equal(np.concatenate(known) if len(known) > 1 else known[0])[0]
        if not self.segments and len(self.recent) <= FEW:
            return np.array(sorted(self.recent), np.uint32).reshape(len(self.recent), self.rank)
        written, gone = self.resolve()
        if written is None:
            return gone
        return coordinates.last_of_equal(np.concatenate([written.coords, gone]))[0]

    def most(self) -> int:
        """How many chunks changed at most: one that changed several times may be counted as often."""
        early = sum(manifest.info.num_chunk_refs for manifest in self.early)
        return early + sum(map(len, self.segments)) + len(self.recent)

    def extend(self, later: ArrayDelta) -> None:
        """The changes of another delta of the same array, made after these."""
        self._settle()
        later._settle()
        for manifest in later.early:
            self.put_early(manifest)
        self.segments += later.segments

    def copy(self) -> ArrayDelta:
        """The same changes, apart."""
        return ArrayDelta(self.path, self.rank, dict(self.recent), list(self.segments), list(self.early))

    def without_early(self) -> ArrayDelta:
        """What came after the manifests that were written already."""
        return ArrayDelta(self.path, self.rank, dict(self.recent), list(self.segments))


@dataclass(slots=True)
class ChangeSet:
    """Uncommitted changes: nodes by path, chunks by node id."""

    created: dict[str, NodeSnapshot] = field(default_factory=dict)
    updated: dict[str, NodeSnapshot] = field(default_factory=dict)
    """Nodes of the base snapshot with other metadata."""
    deleted: dict[str, NodeSnapshot] = field(default_factory=dict)
    """Nodes of the base snapshot."""
    chunks: dict[NodeId, ArrayDelta] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    """For each node that moved, its path now and its path in the base snapshot."""
    moved_back: bool = False
    """Whether nodes moved that are where they were before. That can be committed, as moves can."""

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        changed = self.created or self.updated or self.deleted or self.chunks or self.moved
        return not (changed or self.moved_back)

    def delta(self, node: NodeSnapshot) -> ArrayDelta:
        """The changed chunks of an array, to be added to."""
        if node.id not in self.chunks:
            self.chunks[node.id] = ArrayDelta(node.path, rank_of(node))
        return self.chunks[node.id]

    def copy(self) -> ChangeSet:
        """The same changes, apart."""
        chunks = {node: delta.copy() for node, delta in self.chunks.items()}
        return ChangeSet(
            dict(self.created),
            dict(self.updated),
            dict(self.deleted),
            chunks,
            dict(self.moved),
            self.moved_back,
        )


def rank_of(node: NodeSnapshot) -> int:
    """The number of dimensions of an array."""
    return len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0
