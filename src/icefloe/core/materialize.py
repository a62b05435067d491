"""Convert virtual chunks to native chunks by copying their bytes without decoding.

References into the same file are sorted, and nearby ranges are fetched in one request. An archive is
therefore read about once, from start to end, whatever the order of the chunks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe.core.virtual_chunks.authorized_reads import (
    check_version,
    make_too_short_error,
    translate_source_errors,
)
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.core.workspace import Workspace
from icefloe.encoding.columns import Blobs
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError, StorageError
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest, VirtualRef
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

Region = Sequence[slice | int] | Mapping[str, slice | int]
"""A selection of elements: a slice or an index per dimension, or a mapping from dimension names to slices or
indices.
"""


@dataclass(frozen=True, slots=True)
class _Copied:
    """The result of one copy request."""

    rows: NDArray[np.int64]
    chunk_ids: list[bytes]
    inline: list[bytes]
    location: str
    version: tuple[Any, Any]
    """The etag and the last-modified time of the file."""


def materialize(workspace: Workspace, node: NodeSnapshot, region: Region | None, executor: Executor) -> int:
    """Copy the virtual chunks of an array, or of a region of it, into the repository. Return the number of
    copied chunks.

    References change only after all bytes have been copied. Raises StorageError if a file has changed since
    its references were recorded, or changes during the copy.
    """
    refs = workspace.refs(node)
    if region is not None:
        refs = refs.within(find_chunk_window(node, region))
    refs = refs.take(refs.kind == VIRTUAL)
    if not len(refs):
        return 0
    kinds = np.full(len(refs), NATIVE, np.uint8)
    chunk_ids = np.zeros((len(refs), 12), np.uint8)
    inline: list[bytes] = [b""] * len(refs)
    versions: dict[str, tuple[Any, Any]] = {}
    groups = group_requests(refs, workspace.assets.virtual.limits)
    for copied in executor.map(Task(partial(_copy, workspace, node, refs), "chunks"), groups):
        if versions.setdefault(copied.location, copied.version) != copied.version:
            raise StorageError(
                f"{copied.location} changed while its chunks were copied to {node.path}",
                kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
            )
        for row, id, data in zip(copied.rows.tolist(), copied.chunk_ids, copied.inline, strict=True):
            if id:
                chunk_ids[row] = np.frombuffer(id, np.uint8)
            else:
                kinds[row], inline[row] = INLINE, data
    native = ArrayManifest.of_sorted(
        refs.coords, kinds, chunk_ids=chunk_ids, lengths=refs.lengths, inline=Blobs.from_list(inline)
    )
    workspace.put_refs(node, native)
    return len(refs)


def _copy(workspace: Workspace, node: NodeSnapshot, refs: ArrayManifest, rows: NDArray[np.int64]) -> _Copied:
    """Fetch the chunks that several references point to in one source file, and write each as a chunk
    object.
    """
    first, last = int(refs.offsets[rows].min()), int((refs.offsets[rows] + refs.lengths[rows]).max())
    one = refs.ref(int(rows[0]))
    if not isinstance(one, VirtualRef):
        raise TypeError(f"{one!r} is not a virtual reference")
    source, key = workspace.assets.virtual.place(one.location)
    names = [f"{tuple(refs.coords[row].tolist())} of {node.path}" for row in rows]
    with translate_source_errors(one.location, names[0]):
        found = source.fetch(key, first, last)
    check_version(found, one.checksum, one.location, names[0])
    ids, inline = [], []
    for row, name in zip(rows.tolist(), names, strict=True):  # each chunk becomes an object
        start, length = int(refs.offsets[row]), int(refs.lengths[row])
        data = memoryview(found.data)[start - first : start - first + length]
        if len(data) < length:
            raise make_too_short_error(found, start, start + length, one.location, name)
        small = workspace.is_inline(length)
        ids.append(b"" if small else bytes(workspace.assets.write_chunk(data).chunk_id))
        inline.append(bytes(data) if small else b"")
    return _Copied(rows, ids, inline, one.location, (found.e_tag, found.last_modified))


def group_requests(refs: ArrayManifest, limits: ReadLimits) -> list[NDArray[np.int64]]:
    """Group virtual chunks that lie close together in one version of a file, so that each group takes one
    request.
    """
    order = np.lexsort((refs.offsets, refs.last_modified, refs.etag_codes, refs.location_codes))
    starts, ends = refs.offsets[order].astype(np.int64), (refs.offsets + refs.lengths)[order].astype(np.int64)
    lengths = ends - starts
    apart = np.ones(len(order), np.bool_)
    apart[1:] = starts[1:] - ends[:-1] > limits.max_gap_bytes
    share = min(max(limits.max_waste, 0.0), 0.99)
    apart[1:] |= starts[1:] - ends[:-1] > (lengths[1:] + lengths[:-1]) * (share / (1 - share))
    for column in (refs.location_codes, refs.etag_codes, refs.last_modified):
        apart[1:] |= column[order][1:] != column[order][:-1]
    run = np.cumsum(apart) - 1
    part = (starts - starts[apart][run]) // max(limits.max_request_bytes, 1)
    apart[1:] |= part[1:] != part[:-1]
    return np.split(order, np.flatnonzero(apart)[1:])


def find_chunk_window(node: NodeSnapshot, region: Region) -> list[range]:
    """Return the smallest window of the chunk grid that covers a region of elements."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        raise InvalidInputError(f"not an array: {node.path}", kind=ErrorKind.NOT_AN_ARRAY)
    grid = json.loads(node.user_data)["chunk_grid"]
    if grid["name"] != "regular":
        raise SessionStateError(
            f"{node.path} has a {grid['name']} chunk grid; regions are only supported for regular grids",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    chunks = grid["configuration"]["chunk_shape"]
    wanted = _order_by_dimension(data, region, node.path)
    spans = [_resolve_span(each, d.array_length) for each, d in zip(wanted, data.shape, strict=True)]
    return [
        range(span.start // chunk, -(-span.stop // chunk)) if len(span) else range(0)
        for span, chunk in zip(spans, chunks, strict=True)
    ]


def _order_by_dimension(data: ArrayNodeData, region: Region, path: str) -> list[slice | int]:
    rank = len(data.shape)
    if not isinstance(region, Mapping):
        if len(region) > rank:
            raise InvalidInputError(
                f"the region has {len(region)} dimensions, but {path} has {rank}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        return [*region, *[slice(None)] * (rank - len(region))]
    names = data.names
    unknown = set(region) - set(names)
    if unknown:
        raise InvalidInputError(
            f"{path} has no dimension {sorted(unknown)[0]!r}; it has {list(names)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return [slice(None) if name is None else region.get(name, slice(None)) for name in names]


def _resolve_span(wanted: slice | int, length: int) -> range:
    if isinstance(wanted, slice):
        if wanted.step not in (None, 1):
            raise InvalidInputError(
                f"a region must not have steps: {wanted}", kind=ErrorKind.INVALID_CHUNK_INDEX
            )
        return range(*wanted.indices(length))
    if not -length <= wanted < length:
        raise InvalidInputError(
            f"index {wanted} is outside a dimension of size {length}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return range(wanted % length, wanted % length + 1)
