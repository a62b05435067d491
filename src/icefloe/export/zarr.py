"""Export to plain Zarr. Whole chunks are copied byte for byte, and partial chunks are re-encoded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe._internal.report import Report
from icefloe.errors import ErrorKind, Hint, InvalidInputError, StorageError
from icefloe.export.selection import ExportSelection, Indexers, Labels, Selected, make_too_long_error, select
from icefloe.format.manifest import INLINE, ArrayManifest
from icefloe.format.snapshot import NodeSnapshot
from icefloe.maintenance.copy_objects import CopyLimits
from icefloe.session import Session
from icefloe.storage.base import ObjectKind, Storage
from icefloe.storage.local.folder import LocalStorage, PlainFolder

_BATCH_BYTES: Final = 8 << 20
_BATCH_CHUNKS: Final = 100
_METADATA: Final = "zarr.json"

Coords = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExportReport(Report):
    """The report of an export to Zarr or NetCDF, or of a dry run."""

    dry_run: bool
    """True for a dry run, which writes nothing."""
    arrays: list[str] = field(default_factory=list)
    """The paths of the exported arrays, relative to the exported group."""
    groups: int = 0
    """The number of exported groups."""
    chunks_copied: int = 0
    """The number of chunks that were copied unchanged."""
    chunks_encoded: int = 0
    """The number of chunks that were only partly selected, and were therefore decoded and re-encoded."""
    bytes_written: int = 0
    """The total size of the written objects in bytes."""


def export_zarr(
    session: Session,
    target: Storage,
    *,
    group: str = "/",
    variables: Iterable[str] | None = None,
    isel: Indexers | None = None,
    sel: Labels | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    max_concurrent_requests: int = 64,
    max_memory_bytes: int = 512 << 20,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ExportReport:
    """Export a group of a session as plain Zarr version 3, which any Zarr reader can open.

    Chunks that are selected as a whole are copied byte for byte. The root metadata is written last, so an
    interrupted export is not a valid Zarr hierarchy. The ingest ledger is not exported.

    Parameters
    ----------
    session
        The session to read.
    target
        The location to write to. It must be empty unless `overwrite` is set.
    group
        The group that becomes the root.
    variables
        Names of arrays below the group, by default all. Their coordinates are included.
    isel
        A selection by index for each dimension. Selecting a single element keeps the dimension.
    sel
        A selection by label for each dimension, including both ends of a slice. Requires xarray.
    overwrite
        Overwrite existing objects in the target.
    dry_run
        Only report what would be written.
    max_concurrent_requests
        The number of chunks to copy concurrently.
    max_memory_bytes
        The memory limit for chunks that are processed concurrently.
    progress
        A callback that receives the array name, the number of finished chunks, and the total.
    executor
        The executor that copies chunks. By default, a thread pool in this process.

    Returns
    -------
    ExportReport
        The number of arrays, groups, chunks and bytes written.

    Raises
    ------
    NodeNotFoundError
        The group or a variable does not exist.
    InvalidInputError
        The target is not empty, a name is too long for it, or a selection is invalid.
    """
    chosen = select(session, group, variables, isel, sel)
    place = _use_zarr_names(target)
    _check_names(place, chosen)
    if not dry_run:
        place.check_writable()
        _check_empty(place, overwrite=overwrite)
        place.prepare_for_creation()
    limits = CopyLimits(max_concurrent_requests, max_memory_bytes)
    copied = encoded = written = 0
    for array in chosen.arrays:
        parts = _ChunksToWrite.of(session, array)
        copied, encoded = copied + len(parts.copied), encoded + len(parts.encoded)
        if dry_run:
            written += int(parts.lengths.sum())
        else:
            written += _export_array(session, place, chosen, array, parts, limits, progress, executor)
    if not dry_run:
        for array in chosen.arrays:
            written += _put_metadata(place, chosen, array.node, _array_document(array))
        for node in reversed(chosen.groups):
            written += _put_metadata(place, chosen, node, _group_document(node))
        place.sync()
    names = [chosen.name(each.node.path) for each in chosen.arrays]
    return ExportReport(dry_run, names, len(chosen.groups), copied, encoded, written)


def _use_zarr_names(target: Storage) -> Storage:
    """Return a storage that uses Zarr's file names in a local directory."""
    if type(target) is LocalStorage:
        return PlainFolder(target.describe()["path"], sync=False)
    return target


def _check_empty(target: Storage, *, overwrite: bool) -> None:
    stray = None if overwrite else next(target.list_prefix(""), None)
    if stray is not None:
        raise InvalidInputError(
            f"{target.place} already contains {stray.key}; choose an empty location",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        ).with_hint(Hint("or replace the existing data with {overwrite}", overwrite=True))


def _check_names(target: Storage, chosen: ExportSelection) -> None:
    """Raise an error for names that are too long for the export target, before anything is written."""
    if not target.fits(_METADATA):
        raise InvalidInputError(
            f"the path of the target is too long: {target.place}; choose a shorter one",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    longest = {group.path: _METADATA for group in chosen.groups}
    for array in chosen.arrays:
        longest[array.node.path] = "/".join(["c", *(str(len(span)) for span in array.spans)])
    for path, key in longest.items():
        name = chosen.name(path)
        if not all(target.fits(f"{name}/{last}".strip("/")) for last in (_METADATA, key)):
            raise make_too_long_error(
                name, target.place, "255 bytes per name in a folder, 1024 per key elsewhere"
            )


# Metadata


def _array_document(array: Selected) -> bytes:
    if array.is_whole:
        return array.node.user_data
    document = json.loads(array.node.user_data)
    document["shape"] = [len(span) for span in array.spans]
    return json.dumps(document).encode()


def _group_document(node: NodeSnapshot) -> bytes:
    document = json.loads(node.user_data)
    # Consolidated metadata may describe arrays that are not exported, or are only partly exported.
    return json.dumps(document).encode() if document.pop("consolidated_metadata", None) else node.user_data


def _put_metadata(target: Storage, chosen: ExportSelection, node: NodeSnapshot, document: bytes) -> int:
    name = chosen.name(node.path)
    target.put(f"{name}/{_METADATA}" if name else _METADATA, document)
    return len(document)


# Chunks


@dataclass(frozen=True, slots=True, eq=False)
class _ExportTask:
    """An executor task that exports some chunks of one array."""

    path: str
    name: str
    spans: tuple[range, ...]
    sizes: tuple[int, ...]
    """The chunk shape."""
    copied: Coords
    """The grid indices of target chunks that are copied byte for byte."""
    encoded: Coords
    """The grid indices of target chunks that are assembled from parts of source chunks."""

    def shift(self) -> Coords:
        """Return the offset from target chunk indices to source chunk indices."""
        return np.array([span.start // size for span, size in zip(self.spans, self.sizes, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class _ChunksToWrite:
    """The chunks of one array that an export writes."""

    sizes: tuple[int, ...]
    """The chunk shape."""
    copied: Coords
    """The grid indices of target chunks that are copied byte for byte."""
    lengths: NDArray[np.int64]
    """The encoded size of each copied chunk, in bytes."""
    encoded: Coords
    """The grid indices of target chunks that are assembled from parts of source chunks."""

    @staticmethod
    def of(session: Session, array: Selected) -> _ChunksToWrite:
        sizes = _get_chunk_sizes(array)
        return _ChunksToWrite(sizes, *_separate_copies(array, session._workspace.refs(array.node), sizes))


def _export_array(
    session: Session,
    target: Storage,
    chosen: ExportSelection,
    array: Selected,
    parts: _ChunksToWrite,
    limits: CopyLimits,
    progress: Progress | None,
    executor: Executor | None,
) -> int:
    """Export the chunks of one array, and return the number of bytes written."""
    sizes, copied, lengths, encoded = parts.sizes, parts.copied, parts.lengths, parts.encoded
    name = chosen.name(array.node.path)
    orders = [
        _ExportTask(array.node.path, name, array.spans, sizes, copied[some], encoded[:0])
        for some in _batches(lengths)
    ] + [
        _ExportTask(array.node.path, name, array.spans, sizes, copied[:0], encoded[at : at + 1])
        for at in range(len(encoded))
    ]
    largest = max(int(lengths.max(initial=1)), _count_decoded_bytes(array, sizes) if len(encoded) else 1)
    threads = max(1, min(limits.max_concurrent_requests, limits.max_memory_bytes // (2 * largest)))
    spread = executor or ThreadExecutor(threads, "export")
    written, done, total = 0, 0, len(copied) + len(encoded)
    for order, size in zip(
        orders, spread.map(Task(partial(_export, session, target), "chunks"), orders), strict=True
    ):
        written += size
        done += len(order.copied) + len(order.encoded)
        if progress is not None:
            progress(name, done, total)
    return written


def _get_chunk_sizes(array: Selected) -> tuple[int, ...]:
    grid = json.loads(array.node.user_data)["chunk_grid"]
    if grid["name"] == "regular":
        return tuple(max(size, 1) for size in grid["configuration"]["chunk_shape"])
    return (1,) * len(array.spans)  # the whole array is exported, so chunk coordinates do not change


def _count_decoded_bytes(array: Selected, sizes: Sequence[int]) -> int:
    document = json.loads(array.node.user_data)
    kind = document["data_type"]
    bits = "".join(filter(str.isdigit, kind)) if isinstance(kind, str) else ""
    return int(np.prod(sizes, dtype=np.int64)) * max(int(bits or 128) // 8, 1)


def _separate_copies(
    array: Selected, refs: ArrayManifest, sizes: Sequence[int]
) -> tuple[Coords, NDArray[np.int64], Coords]:
    """Separate the chunks that can be copied byte for byte, with their sizes, from chunks that must be
    re-encoded.
    """
    coords = refs.coords.astype(np.int64)
    lengths = np.where(refs.kind == INLINE, refs.inline.lengths, refs.lengths).astype(np.int64)
    if array.is_whole:
        return coords, lengths, coords[:0]
    starts = np.array([span.start for span in array.spans])
    stops = np.array([span.stop for span in array.spans])
    edges = np.array(array.node.array.lengths)
    steps = np.array(sizes)
    touching = ((coords + 1) * steps > starts).all(axis=1) & (coords * steps < stops).all(axis=1)
    coords, lengths = coords[touching], lengths[touching]
    aligned = starts % steps == 0
    whole = aligned & (((coords + 1) * steps <= stops) | (stops == edges))
    same = whole.all(axis=1)
    first = np.maximum((coords * steps - starts) // steps, 0)
    last = ((np.minimum((coords + 1) * steps, stops)) - 1 - starts) // steps
    parts = [
        np.where(np.array(side), last[~same], first[~same])
        for side in product((False, True), repeat=len(steps))
    ]
    encoded = np.unique(np.concatenate(parts), axis=0) if parts and len(coords) else coords[:0]
    return coords[same] - starts // steps, lengths[same], encoded


def _batches(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    number = np.maximum(np.cumsum(lengths) // _BATCH_BYTES, np.arange(len(lengths)) // _BATCH_CHUNKS)
    for rows in np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(number)) + 1):
        if len(rows):
            yield rows


def _export(session: Session, target: Storage, order: _ExportTask) -> int:
    """Export the chunks of one task, and return the number of bytes written."""
    written = 0
    workspace = session._workspace
    node = workspace.array(order.path)
    for at, source in zip(order.copied.tolist(), (order.copied + order.shift()).tolist(), strict=True):
        ref = workspace.ref(node, tuple(source))
        if ref is None:
            raise StorageError(
                f"chunk {source} of {order.path} disappeared during the export; export another snapshot",
                kind=ErrorKind.OBJECT_NOT_FOUND,
            )
        data = workspace.read(ref, 0, ref.length, f"{source} of {order.path}")
        written += _put(target, order.name, at, data)
    for at in order.encoded.tolist():
        cut = _assemble_chunk(session, order, at)
        if cut is not None:
            written += _put(target, order.name, at, cut)
    target.sync()
    return written


def _put(target: Storage, name: str, coords: Sequence[int], data: Any) -> int:
    key = "/".join(["c", *map(str, coords)])
    target.put(f"{name}/{key}" if name else key, data, kind=ObjectKind.CHUNK)
    return len(data)


def _assemble_chunk(session: Session, order: _ExportTask, at: Sequence[int]) -> bytes | None:
    """Assemble a target chunk from source chunks. Return None if it contains only the fill value."""
    import zarr
    from zarr.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    source = zarr.open_array(session.store, path=order.path.strip("/"), mode="r")
    region = tuple(
        slice(span.start + number * size, min(span.start + (number + 1) * size, span.stop))
        for span, number, size in zip(order.spans, at, order.sizes, strict=True)
    )
    document = json.loads(session._workspace.array(order.path).user_data)
    document["shape"] = list(order.sizes)
    kept: dict[str, Any] = {_METADATA: Buffer.from_bytes(json.dumps(document).encode())}
    alone = zarr.open_array(MemoryStore(kept), mode="r+")
    alone[tuple(slice(0, part.stop - part.start) for part in region)] = source[region]
    found = [data for key, data in kept.items() if key != _METADATA]
    return found[0].to_bytes() if found else None
