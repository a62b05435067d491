"""The encoded chunk references of one array, in a form that allows a few changes without a full rewrite.

A small commit changes a few of hundreds of references. The tables of all unchanged references are copied as
bytes, without converting them to columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.encoding.columns import put_rows
from icefloe.encoding.flatbuffers.row_builder import Blocks, Row, build_row
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ChunkRef, ETag, InlineRef, LastModified, NativeRef
from icefloe.format.schema import CHUNK_REF, MANIFEST

FewRefs: TypeAlias = Mapping[tuple[int, ...], ChunkRef]
"""A few chunk references, by coordinates."""

_NO_TABLES: Final = Blocks(b"", np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RefBlocks:
    """The chunk references of one array as encoded manifest tables, with their coordinates."""

    coords: Coords
    """The chunk coordinates, of shape (n, dimensions), sorted and unique."""
    extents: tuple[range, ...]
    """The smallest window of the chunk grid that contains all coordinates."""
    blocks: Blocks

    @staticmethod
    def none(rank: int) -> RefBlocks:
        """Return empty manifest blocks, for an array without chunks."""
        return RefBlocks(np.zeros((0, rank), np.uint32), (range(0),) * rank, _NO_TABLES)

    def __len__(self) -> int:
        return len(self.coords)

    @property
    def needs_rebuild(self) -> bool:
        """True if most of the buffer consists of dropped tables, so that encoding the manifest again pays
        off.
        """
        return self.blocks.dropped > len(self)

    def upsert(self, refs: FewRefs, place: str) -> RefBlocks:
        """Return a copy of the manifest blocks with a few references added or replaced."""
        ordered = sorted(refs)
        rows, over = [], []
        for target in ordered:
            row, found = self._search(target)
            rows.append(row)
            over.append(found)
        tables = [_make_ref_row(target, refs[target]) for target in ordered]
        new = np.array(ordered, np.uint32).reshape(len(ordered), self.coords.shape[1])
        return RefBlocks(
            put_rows(self.coords, rows, over, new),
            _extend_window(self.extents, ordered) if len(self) else _find_box(ordered),
            self.blocks.upsert(rows, over, CHUNK_REF, tables, place),
        )

    def _search(self, target: tuple[int, ...]) -> tuple[int, bool]:
        """Return the row of a chunk, or the row before which it would be inserted."""
        coords = self.coords
        row = bisect_left(range(len(coords)), target, key=lambda at: tuple(coords[at].tolist()))
        return row, row < len(coords) and tuple(coords[row].tolist()) == target

    def payload(self, id: ManifestId, node: NodeId, place: str) -> bytes:
        """Encode these blocks as the payload of a manifest file."""
        root = {"id": id, "arrays": [{"node_id": node, "refs": self.blocks}], "compression_algorithm": 0}
        return build_row(MANIFEST, root, place)


def _make_ref_row(coords: tuple[int, ...], ref: ChunkRef) -> Row:
    """Encode a reference as a row of a `ChunkRef` table."""
    if isinstance(ref, InlineRef):
        return {"index": coords, "inline": ref.data}
    row: dict[str, Any] = {"index": coords, "offset": ref.offset, "length": ref.length}
    if isinstance(ref, NativeRef):
        return row | {"chunk_id": ref.chunk_id}
    row["location"] = ref.location
    match ref.checksum:
        case ETag(value):
            row["checksum_etag"] = value
        case LastModified(seconds):
            row["checksum_last_modified"] = seconds
    return row


def _find_box(places: list[tuple[int, ...]]) -> tuple[range, ...]:
    return tuple(range(min(numbers), max(numbers) + 1) for numbers in zip(*places, strict=True))


def _extend_window(extents: tuple[range, ...], places: list[tuple[int, ...]]) -> tuple[range, ...]:
    """Return the smallest window of the chunk grid that contains a given window and some more chunks."""
    pairs = zip(extents, _find_box(places), strict=True)
    return tuple(range(min(a.start, b.start), max(a.stop, b.stop)) for a, b in pairs)
