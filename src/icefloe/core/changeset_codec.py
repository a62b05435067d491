"""Encode change sets as bytes, to send the changes of a fork back from another process.

References are encoded as columns (`encoding.packed_columns`), nodes as short lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from icefloe._internal.ids import ManifestId, NodeId
from icefloe._internal.paths import validate
from icefloe.core.changeset import ArrayDelta, ChangeSet
from icefloe.core.early_manifests import EarlyManifest, JoinedManifests, ReadManifest
from icefloe.encoding.columns import is_constant, make_constant
from icefloe.encoding.packed_columns import ColumnPacker, ColumnUnpacker
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.locations import drop_unused
from icefloe.format.manifest import NATIVE, NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.manifest_codec import check_columns
from icefloe.format.snapshot import (
    ArrayNodeData,
    DimensionShape,
    GroupNodeData,
    ManifestFileInfo,
    ManifestRef,
    NodeData,
    NodeSnapshot,
)

MAGIC: Final = b"ICEFLOE\x03"
"""The magic bytes. The last byte is the version. Other versions are rejected, because encoded change sets are
short-lived.
"""
_NODE_LISTS: Final = ("created", "updated", "deleted")
_MAX_DIMENSIONS: Final = 64
"""The maximum number of dimensions, which is numpy's limit."""
_MAX_CHUNKS: Final = 1 << 32
"""The maximum number of chunks in one manifest, so that a few damaged bytes cannot cause a huge allocation.
"""


def encode_changes(changes: ChangeSet) -> bytes:
    """Encode a change set as bytes, for the receipt of a fork.

    Only the last change of each chunk is encoded.
    """
    packer = ColumnPacker()
    head = {
        "nodes": [[_encode_node(node) for node in getattr(changes, name).values()] for name in _NODE_LISTS],
        "moved": list(changes.moved.items()),
        "chunks": [_encode_delta(packer, node, delta) for node, delta in changes.chunks.items()],
    }
    return packer.pack(MAGIC, head)


def decode_changes(
    data: bytes | memoryview, place: str = "a change set", read: ReadManifest | None = None
) -> ChangeSet:
    """Decode a change set; raise FormatError if the bytes are damaged or have another version.

    `read` is the function that reads early manifests. Without it, change sets with early manifests are
    rejected.
    """
    unpacker = ColumnUnpacker(data, MAGIC, place)
    head = unpacker.head
    if not isinstance(head, dict) or head.keys() != {"nodes", "moved", "chunks"}:
        unpacker.fail("contains no list of nodes and chunks")
    try:
        created, updated, deleted = (
            {node.path: node for node in (_read_node(unpacker, row) for row in unpacker.items(rows))}
            for rows in unpacker.items(head["nodes"], len(_NODE_LISTS))
        )
        moved = {
            validate(target): validate(source)
            for target, source in (unpacker.items(pair, 2) for pair in unpacker.items(head["moved"]))
        }
        deltas = [_read_delta(unpacker, row, read) for row in unpacker.items(head["chunks"])]
    except (InvalidInputError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(f"{place}: {error}", kind=ErrorKind.DESERIALIZATION) from None
    return ChangeSet(created, updated, deleted, dict(deltas), moved)


def _encode_node(node: NodeSnapshot) -> list[Any]:
    data = node.node_data
    described = None
    if isinstance(data, ArrayNodeData):
        described = [
            [[dimension.array_length, dimension.num_chunks] for dimension in data.shape],
            [[bytes(ref.id), [[e.start, e.stop] for e in ref.extents]] for ref in data.manifests],
            data.dimension_names,
        ]
    return [bytes(node.id), node.path, node.user_data, described, node.extra]


def _read_node(unpacker: ColumnUnpacker, row: object) -> NodeSnapshot:
    id, path, user_data, described, extra = unpacker.items(row, 5)
    if not isinstance(user_data, bytes) or not isinstance(extra, bytes | None):
        unpacker.fail(f"contains a node at {path!r:.60} without metadata")
    data: NodeData = GroupNodeData()
    if described is not None:
        shape, manifests, names = unpacker.items(described, 3)
        if names is not None and not all(isinstance(name, str | None) for name in unpacker.items(names)):
            unpacker.fail(f"contains dimension names at {path!r:.60} that are not strings")
        data = ArrayNodeData(
            shape=tuple(DimensionShape(*unpacker.integers(pair, 2)) for pair in unpacker.items(shape)),
            manifests=tuple(_read_manifest_ref(unpacker, pair) for pair in unpacker.items(manifests)),
            dimension_names=None if names is None else tuple(names),
        )
    return NodeSnapshot(NodeId(id), validate(path), user_data, data, extra)


def _read_manifest_ref(unpacker: ColumnUnpacker, pair: object) -> ManifestRef:
    id, extents = unpacker.items(pair, 2)
    return ManifestRef(
        ManifestId(id), tuple(range(*unpacker.integers(e, 2)) for e in unpacker.items(extents))
    )


def _encode_delta(packer: ColumnPacker, node: NodeId, delta: ArrayDelta) -> list[Any]:
    early = [_encode_early(packer, each) for each in delta.early]
    written, gone = (delta.without_early() if early else delta).resolve()
    refs = None if written is None else _encode_refs(packer, written)
    return [bytes(node), delta.path, delta.rank, refs, [len(gone), _encode_coords(packer, gone)], early]


def _read_delta(
    unpacker: ColumnUnpacker, row: object, read: ReadManifest | None
) -> tuple[NodeId, ArrayDelta]:
    node, path, rank, refs, gone, early = unpacker.items(row, 6)
    place = f"{unpacker.place}: array {path!r:.60}"
    if type(rank) is not int or not 0 <= rank <= _MAX_DIMENSIONS:
        unpacker.fail(f"contains an array with {rank!r:.20} dimensions")
    delta = ArrayDelta(validate(path), rank)
    if refs is not None:
        delta.segments.append(_read_refs(unpacker, refs, rank, place))
    count, notes = unpacker.items(gone, 2)
    coords = _read_coords(unpacker, notes, count, rank)
    if count:
        delta.segments.append(coords)
    delta.early = [
        _read_early(unpacker, each, NodeId(node), delta.rank, read) for each in unpacker.items(early)
    ]
    return NodeId(node), delta


def _encode_early(packer: ColumnPacker, manifest: EarlyManifest) -> list[Any]:
    info, sparse, joined = manifest.info, manifest.sparse, manifest.joined
    listed = None if sparse is None else [len(sparse), _encode_coords(packer, sparse)]
    replaced = [sorted(map(bytes, joined.ids)), _encode_extents(joined.extents)] if joined else None
    extents = _encode_extents(manifest.extents)
    return [bytes(info.id), info.size_bytes, info.num_chunk_refs, extents, listed, replaced]


def _encode_extents(extents: Sequence[range]) -> list[list[int]]:
    return [[extent.start, extent.stop] for extent in extents]


def _read_early(
    unpacker: ColumnUnpacker, row: object, node: NodeId, rank: int, read: ReadManifest | None
) -> EarlyManifest:
    id, size, count, extents, listed, replaced = unpacker.items(row, 6)
    if read is None:
        unpacker.fail("contains a manifest, but there is no storage to read it from")
    (size, count) = unpacker.integers([size, count], 2)
    ranges = tuple(range(*unpacker.integers(pair, 2)) for pair in unpacker.items(extents, rank))
    sparse = None
    if listed is not None:
        rows, notes = unpacker.items(listed, 2)
        sparse = _read_coords(unpacker, notes, rows, rank)
    covered = len(sparse) if sparse is not None else math.prod(map(len, ranges))
    joined = None
    if replaced is not None:
        ids, whole = unpacker.items(replaced, 2)
        joined = JoinedManifests(
            frozenset(map(ManifestId, unpacker.items(ids))),
            tuple(range(*unpacker.integers(pair, 2)) for pair in unpacker.items(whole, rank)),
        )
    if (
        (covered > count if joined else covered != count)
        or count > _MAX_CHUNKS
        or (sparse is not None and not coordinates.are_inside(sparse, ranges).all())
    ):
        unpacker.fail(f"contains a manifest with {count} references for {covered} chunks")
    return EarlyManifest(node, ManifestFileInfo(ManifestId(id), size, count), ranges, sparse, read, joined)


def _encode_coords(packer: ColumnPacker, coords: Coords) -> list[list[int]]:
    return [packer.numbers(column, ascending=True) for column in coords.T]


def _read_coords(unpacker: ColumnUnpacker, notes: object, count: object, rank: int) -> Coords:
    (rows,) = unpacker.integers([count])
    columns = [unpacker.numbers(note, np.uint32, rows) for note in unpacker.items(notes, rank)]
    if rows > 1 and all(not any(column.strides) for column in columns):
        unpacker.fail(f"contains {rows} chunks with the same coordinates")  # before allocating memory
    coords = np.empty((rows, rank), np.uint32)
    for axis, column in enumerate(columns):
        coords[:, axis] = column
    if not coordinates.is_strictly_sorted(coords):
        unpacker.fail("contains chunks that are not in ascending order")
    return coords


def _encode_refs(packer: ColumnPacker, refs: ArrayManifest) -> list[Any]:
    locations, codes = refs.locations, refs.location_codes
    if len(locations) > len(refs):
        virtual = refs.kind == VIRTUAL
        codes, locations = drop_unused(np.where(virtual, codes, 0), locations)
    etags, etag_codes = refs.etags, refs.etag_codes
    if len(etags) > len(refs):
        tagged = etag_codes != NO_ETAG
        found, etags = drop_unused(np.where(tagged, etag_codes, 0), etags)
        etag_codes = np.where(tagged, found, np.uint32(NO_ETAG))
    return [
        len(refs),
        _encode_coords(packer, refs.coords),
        packer.numbers(refs.kind),
        packer.raw(refs.chunk_ids) if _has_chunk_ids(refs) else None,
        packer.numbers(refs.offsets, ascending=True),
        packer.numbers(refs.lengths),
        packer.numbers(codes, ascending=True),
        packer.blobs(locations),
        packer.blobs(refs.inline),
        packer.numbers(etag_codes),
        packer.blobs(etags),
        packer.numbers(refs.last_modified),
        packer.blobs(refs.extras),
    ]


def _has_chunk_ids(refs: ArrayManifest) -> bool:
    if is_constant(refs.chunk_ids) and not refs.chunk_ids[0].any():
        return False  # zeros are the default when decoding
    return bool((refs.kind == NATIVE).any())


def _read_refs(unpacker: ColumnUnpacker, row: object, rank: int, place: str) -> ArrayManifest:
    (
        count,
        coords_notes,
        kind,
        ids,
        offsets,
        lengths,
        codes,
        locations,
        inline,
        etag_codes,
        etags,
        times,
        extras,
    ) = unpacker.items(row, 13)
    coords = _read_coords(unpacker, coords_notes, count, rank)
    chunk_ids = make_constant(0, count, np.uint8, 12) if ids is None else unpacker.raw(ids).reshape(-1, 12)
    refs = ArrayManifest(
        coords=coords,
        kind=unpacker.numbers(kind, np.uint8, count),
        chunk_ids=chunk_ids,
        offsets=unpacker.numbers(offsets, np.uint64, count),
        lengths=unpacker.numbers(lengths, np.uint64, count),
        location_codes=unpacker.numbers(codes, np.uint32, count),
        locations=unpacker.blobs(locations, count),
        inline=unpacker.blobs(inline, count),
        etag_codes=unpacker.numbers(etag_codes, np.uint32, count),
        etags=unpacker.blobs(etags, count),
        last_modified=unpacker.numbers(times, np.uint32, count),
        extras=unpacker.blobs(extras, count),
    )
    check_columns(refs, place)  # the order was checked with the coordinates
    return refs
