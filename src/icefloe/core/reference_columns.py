"""Set and list references to chunks in external files, as columns.

No Python object is created per reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import encode_column
from icefloe.core.changeset import count_dimensions
from icefloe.core.virtual_chunks.locations import NAMED, BadLocationError, Containers, check_locations
from icefloe.core.workspace import Workspace
from icefloe.encoding.columns import Blobs, make_constant
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.coordinates import Coords, list_window
from icefloe.format.locations import drop_unused
from icefloe.format.manifest import (
    INLINE,
    NATIVE,
    NO_ETAG,
    VIRTUAL,
    ArrayManifest,
    Checksum,
    ETag,
    LastModified,
    factorize,
)
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.types import VirtualChunkSpec

_U32_MAX: Final = 0xFFFFFFFF
_FIRST_OF_NAMED: Final = ord(NAMED[0])

Failed = list[tuple[int, ...]] | None
"""The coordinates of references that were skipped because no virtual chunk container matches."""

U64 = NDArray[np.uint64]
ChunkBatch = tuple[Coords, NDArray[np.uint8], list[str], U64, U64, dict[int, bytes]]


@dataclass(frozen=True, slots=True)
class VirtualColumns:
    """Virtual references as columns, one row per reference."""

    coords: Coords
    codes: NDArray[np.uint32]
    """For each reference, the row of its location in `locations`."""
    locations: Blobs
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    checksums: dict[str, Any]
    """The checksum columns of `ArrayManifest`."""
    ascending: bool = False
    """True if the coordinates are known to be sorted and unique."""

    def take(self, rows: Any) -> VirtualColumns:
        """Select rows by a mask."""
        checksums = {name: each if name == "etags" else each[rows] for name, each in self.checksums.items()}
        return VirtualColumns(
            self.coords[rows],
            *drop_unused(self.codes[rows], self.locations),
            self.offsets[rows],
            self.lengths[rows],
            checksums,
            self.ascending,
        )


def set_virtual_refs(
    workspace: Workspace, path: str, refs: VirtualColumns, containers: Containers, *, validate: bool
) -> Failed:
    """Set many virtual references of an array from columns. If any of them is invalid, none is set.

    The error names the invalid reference.

    With `validate`, references outside all containers are skipped, and their coordinates are returned.
    """
    node = workspace.array(path)
    if not count_dimensions(node) and not refs.coords.any():
        # The only chunk of a scalar has no coordinates, but VirtualiZarr, for example, passes a 0.
        refs = replace(refs, coords=refs.coords[:, :0])
    _check_grid(node, refs.coords)
    _check_ranges(node, refs)
    try:
        locations, outside = check_locations(refs.locations, containers, validate=validate)
    except BadLocationError as error:
        row = int(np.flatnonzero(refs.codes == error.row)[0])
        raise InvalidInputError(
            f"chunk {_format_coords(refs, row)} of {path}: {error.message}",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        ) from None
    refs = replace(refs, locations=locations)
    failed: Failed = None
    if validate and outside.any():
        lost = outside[refs.codes]
        failed = list(map(tuple, refs.coords[lost].tolist())) or None
        refs = refs.take(~lost)
    build = ArrayManifest.of_sorted if refs.ascending else ArrayManifest.of
    manifest = build(
        refs.coords,
        VIRTUAL,
        location_codes=refs.codes,
        locations=refs.locations,
        offsets=refs.offsets,
        lengths=refs.lengths,
        **refs.checksums,
    )
    if len(manifest):
        workspace.put_refs(node, manifest)
    return failed


def _format_coords(refs: VirtualColumns, row: int) -> tuple[int, ...]:
    return tuple(refs.coords[row].tolist())


def _check_grid(node: NodeSnapshot, coords: Coords) -> None:
    data = node.node_data
    shape = data.shape if isinstance(data, ArrayNodeData) else ()
    grid = tuple(max(dimension.num_chunks, 1) for dimension in shape)
    if coords.shape[1] != len(grid):
        raise InvalidInputError(
            f"references of {node.path} have {coords.shape[1]} coordinates, but the array has {len(grid)} "
            "dimensions",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    if not len(coords) or (coords.max(axis=0) < grid).all():
        return
    row = int((coords >= grid).any(axis=1).argmax())
    raise InvalidInputError(
        f"chunk {tuple(coords[row].tolist())} is outside the chunk grid {grid} of {node.path}; resize the "
        "array first",
        kind=ErrorKind.INVALID_CHUNK_INDEX,
    )


def _check_ranges(node: NodeSnapshot, refs: VirtualColumns) -> None:
    empty = refs.lengths == 0
    if empty.any():
        row = int(empty.argmax())
        raise InvalidInputError(
            f"zero-length chunk: the reference of chunk {_format_coords(refs, row)} of {node.path} is empty; "
            "leave it out, or delete the chunk",
            kind=ErrorKind.ZERO_LENGTH_CHUNK,
        )
    over = refs.offsets + refs.lengths < refs.offsets
    if over.any():
        row = int(over.argmax())
        raise InvalidInputError(
            f"chunk {_format_coords(refs, row)} of {node.path}: offset {refs.offsets[row]} and length "
            f"{refs.lengths[row]} exceed 2**64",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        )


def from_grid(
    grid_shape: Sequence[int],
    locations: Any,
    offsets: Any,
    lengths: Any,
    arr_offset: Sequence[int] | None,
    checksum: str | datetime | None,
) -> VirtualColumns:
    """Convert the arrays for a window of the chunk grid to columns of virtual references.

    Empty locations are missing chunks.
    """
    shape = tuple(int(size) for size in grid_shape)
    codes, texts = _encode_texts(locations)
    count = len(codes)
    starts, sizes = _to_numbers(offsets, "offset"), _to_numbers(lengths, "length")
    if len(starts) != count or len(sizes) != count:
        raise ValueError("locations, offsets, and lengths must have the same length")
    cells = math.prod(shape)
    if cells != count or min(shape, default=0) < 0:
        raise ValueError(f"product of chunk_grid_shape ({cells}) != array length ({count})")
    first = (0,) * len(shape) if arr_offset is None else tuple(int(start) for start in arr_offset)
    if len(first) != len(shape):
        raise ValueError(f"arr_offset length ({len(first)}) != chunk_grid_shape length ({len(shape)})")
    coords = _list_grid_coords(shape, first)
    checksums = repeat_checksum(checksum, count)
    refs = VirtualColumns(coords, codes, texts, starts, sizes, checksums, ascending=True)
    missing = texts.lengths == 0
    return refs.take(~missing[codes]) if missing.any() else refs


def _encode_texts(locations: Any) -> tuple[NDArray[np.uint32], Blobs]:
    """Deduplicate texts in a list, numpy array or pyarrow column. Return a code per text, and the distinct
    texts.
    """
    if hasattr(locations, "dictionary_encode"):
        coded = locations.dictionary_encode()
        coded = coded.combine_chunks() if hasattr(coded, "combine_chunks") else coded
        texts = [*coded.dictionary.to_pylist(), ""]
        codes = coded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False).astype(np.uint32)
        return codes, Blobs.from_texts(texts)
    texts = locations.tolist() if isinstance(locations, np.ndarray) else locations
    if not isinstance(texts, list):
        texts = list(texts)
    try:
        return factorize(texts)
    except (TypeError, AttributeError):
        row = next((row for row, text in enumerate(texts) if not isinstance(text, str)), 0)
        raise TypeError(
            f"location {row} must be a str, not {type(texts[row]).__name__}; use '' for a missing chunk"
        ) from None


def _to_numbers(values: Any, what: str) -> NDArray[np.uint64]:
    """Convert numbers to a column. The error mentions the first invalid number."""
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(f"{what}s must be a 1-d array of integers, not {given.dtype} {given.shape}")
    if given.dtype.kind == "i" and given.size and int(given.min()) < 0:
        row = int((given < 0).argmax())
        raise InvalidInputError(f"{what} {row} is negative: {given[row]}", kind=ErrorKind.INVALID_VIRTUAL_REF)
    return given.astype(np.uint64)


def _list_grid_coords(shape: tuple[int, ...], first: tuple[int, ...]) -> Coords:
    """Return the coordinates of all chunks in a window of the chunk grid, in C order."""
    for size, start in zip(shape, first, strict=True):
        if start < 0 or start + size > _U32_MAX + 1:
            raise InvalidInputError(
                f"chunk indices {start} to {start + size} do not fit into 32 bits",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
    return list_window([range(start, start + size) for size, start in zip(shape, first, strict=True)])


def from_specs(chunks: Sequence[VirtualChunkSpec], rank: int) -> VirtualColumns:
    """Convert single virtual references to columns. If several refer to the same chunk, the last one wins."""
    others = set(map(type, chunks)) - {VirtualChunkSpec}
    if others:
        raise TypeError(f"'{others.pop().__name__}' object is not an instance of 'VirtualChunkSpec'")
    count = len(chunks)
    indices = list(map(attrgetter("index"), chunks))
    ranks = np.fromiter(map(len, indices), np.int64, count)
    rank = int(ranks[0]) if not rank and count else rank
    if (ranks != rank).any():
        row = int((ranks != rank).argmax())
        raise InvalidInputError(
            f"chunk {tuple(indices[row])}, number {row}, has {ranks[row]} coordinates, but the array "
            f"has {rank} dimensions",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    coords = np.fromiter(chain.from_iterable(indices), np.int64, count * rank).reshape(count, rank)
    outside = ((coords < 0) | (coords > _U32_MAX)).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        raise InvalidInputError(
            f"chunk {tuple(indices[row])}, number {row}, is outside every chunk grid",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    codes, locations = _encode_texts(list(map(attrgetter("location"), chunks)))
    offsets = _to_numbers(np.array(list(map(attrgetter("offset"), chunks)), ndmin=1), "offset")
    lengths = _to_numbers(np.array(list(map(attrgetter("length"), chunks)), ndmin=1), "length")
    checksums = _spec_checksums(chunks)
    return VirtualColumns(coords.astype(np.uint32), codes, locations, offsets, lengths, checksums)


def _spec_checksums(chunks: Sequence[VirtualChunkSpec]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    tags = list(map(attrgetter("etag_checksum"), chunks))
    times = list(map(attrgetter("last_updated_at_checksum"), chunks))
    if any(tag is not None for tag in tags):
        codes, etags = factorize([_strip_quotes(tag or "") for tag in tags])
        given = np.fromiter((tag is not None for tag in tags), np.bool_, len(tags))
        columns |= {"etag_codes": np.where(given, codes, np.uint32(NO_ETAG)), "etags": etags}
    if any(time is not None for time in times):
        pairs = zip(times, tags, strict=True)
        seconds = (0 if time is None or tag is not None else _to_seconds(time) for time, tag in pairs)
        columns["last_modified"] = np.fromiter(seconds, np.uint32, len(times))
    return columns


def repeat_checksum(checksum: str | datetime | None, count: int) -> dict[str, Any]:
    """Return the checksum columns for virtual references that all have the same checksum."""
    match to_stored_checksum(checksum):
        case ETag(value):
            return {"etag_codes": np.zeros(count, np.uint32), "etags": Blobs.from_texts([value])}
        case LastModified(seconds):
            return {"last_modified": make_constant(seconds, count, np.uint32)}
    return {}


def to_stored_checksum(checksum: str | datetime | None) -> Checksum | None:
    """Convert a checksum to its stored form: an etag without quotes, or a time in seconds."""
    match checksum:
        case None:
            return None
        case str():
            return ETag(_strip_quotes(checksum))
        case datetime():
            return LastModified(_to_seconds(checksum))
    raise TypeError(
        f"a checksum must be an etag or the time of the last modification, not {type(checksum).__name__}"
    )


def _strip_quotes(etag: str) -> str:
    return etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag


def _to_seconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise TypeError(f"the time of the last modification {time} needs a time zone")
    seconds = int(time.timestamp() // 1)
    if not 0 < seconds <= _U32_MAX:
        raise InvalidInputError(
            f"the time of the last modification {time} is not between 1970 and 2106",
            kind=ErrorKind.INVALID_VIRTUAL_REF,
        )
    return seconds


def list_locations(workspace: Workspace, containers: Containers) -> list[str]:
    """Return the URLs of all virtual chunks of some arrays, ordered by path and coordinates."""
    found: list[str] = []
    for node in workspace.arrays_with_chunks(workspace.paths()):
        refs = workspace.refs(node)
        codes = refs.location_codes[refs.kind == VIRTUAL]
        if len(refs.locations) * 2 < len(codes):
            texts = to_absolute_locations(refs.locations, containers)
            found.extend(map(texts.__getitem__, codes.tolist()))
        else:
            found += to_absolute_locations(refs.locations.take(codes), containers)
    return found


def iterate_manifest_refs(workspace: Workspace) -> Iterator[ArrayManifest]:
    """Yield the reference columns of all arrays in a snapshot, manifest by manifest."""
    for node in workspace.base.nodes:
        data = node.node_data
        for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
            yield workspace.manifest_refs(node, ref)


def iterate_chunks(
    workspace: Workspace, node: NodeSnapshot, containers: Containers, batch_size: int
) -> Iterator[ChunkBatch]:
    """Yield all references of an array, of any kind, one by one (`IcechunkStore.array_chunk_iterator`)."""
    refs = workspace.refs(node)
    shared = len(refs.locations) * 2 < len(refs)
    texts = to_absolute_locations(refs.locations, containers) if shared else []
    for start in range(0, len(refs), batch_size):
        part = refs.take(slice(start, start + batch_size))
        virtual, native, inline = (part.kind == kind for kind in (VIRTUAL, NATIVE, INLINE))
        if virtual.all():
            paths = _make_paths(part, texts, containers)
        else:
            paths = [""] * len(part)
            _fill(paths, virtual, _make_paths(part.take(virtual), texts, containers))
            _fill(paths, native, encode_column(part.chunk_ids[native]))
        rows = np.flatnonzero(inline)
        inlined = dict(zip(rows.tolist(), part.inline.take(rows).tolist(), strict=True))
        lengths = np.where(inline, part.inline.lengths.astype(np.uint64), part.lengths)
        offsets = np.where(inline, np.uint64(0), part.offsets)
        yield np.array(part.coords), np.array(part.kind), paths, offsets, lengths, inlined


def _make_paths(part: ArrayManifest, texts: list[str], containers: Containers) -> list[str]:
    if texts:
        return list(map(texts.__getitem__, part.location_codes.tolist()))
    return to_absolute_locations(part.locations.take(part.location_codes), containers)


def to_absolute_locations(locations: Blobs, containers: Containers) -> list[str]:
    """Convert virtual locations to absolute URLs, including those relative to a named container."""
    texts = locations.texts("location of a virtual chunk")
    heads = locations.buffer[locations.starts[locations.lengths > 0]]
    if (heads == _FIRST_OF_NAMED).any():
        return [containers.absolute(text) for text in texts]
    return texts


def _fill(target: list[str], rows: NDArray[np.bool_], values: list[str]) -> None:
    for row, value in zip(np.flatnonzero(rows).tolist(), values, strict=True):
        target[row] = value
