"""Plain Zarr: chunks that are exported whole keep their bytes, the others are cut and encoded again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.export.reports import ExportReport
from icefloe.export.selection import Indexers, Labels, Selected, Selection, select, shape_of, too_long
from icefloe.format.manifest import INLINE, ArrayManifest
from icefloe.format.snapshot import NodeSnapshot
from icefloe.maintenance.copy_objects import Limits
from icefloe.session import Session
from icefloe.storage.base import ObjectKind, Storage
from icefloe.storage.local.folder import LocalStorage
from icefloe.storage.local.plain_folder import PlainFolder

_BATCH_BYTES: Final = 8 << 20
_BATCH_CHUNKS: Final = 100
_METADATA: Final = "zarr.json"

Coords = NDArray[np.int64]


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
    """Write a group of a session to another place as Zarr version 3, which any reader of Zarr opens.

    Without more it is the whole hierarchy, except for the ledgers of ingests. `variables` are names of arrays
    below the group; the arrays that hold their coordinates come along. `isel` chooses elements of named
    dimensions by index, `sel` by label, ends included, for which xarray is needed; a dimension of which one
    element is chosen stays. Chunks keep their bytes wherever all of a chunk is exported.

    The target must be empty unless `overwrite` lets objects there be replaced. The root's metadata is written
    last: what was broken off is no Zarr hierarchy yet.
    """
    chosen = select(session, group, variables, isel, sel)
    place = _plain(target)
    report = ExportReport(
        dry_run, [chosen.name(each.node.path) for each in chosen.arrays], len(chosen.groups)
    )
    _check_names(place, chosen)
    if not dry_run:
        place.check_writable()
        _check_empty(place, overwrite=overwrite)
        place.prepare_for_creation()
    limits = Limits(max_concurrent_requests, max_memory_bytes)
    for array in chosen.arrays:
        _export_array(session, place, chosen, array, report, limits, progress, executor)
    if not dry_run:
        for array in chosen.arrays:
            _put_metadata(place, chosen, array.node, _array_document(array), report)
        for node in reversed(chosen.groups):
            _put_metadata(place, chosen, node, _group_document(node), report)
        place.sync()
    return report


def _plain(target: Storage) -> Storage:
    """A folder gets files that are named as Zarr names them."""
    if type(target) is LocalStorage:
        return PlainFolder(target.describe()["path"], sync=False)
    return target


def _check_empty(target: Storage, *, overwrite: bool) -> None:
    stray = None if overwrite else next(target.list_prefix(""), None)
    if stray is not None:
        raise InvalidInputError(
            f"there is {stray.key} in {target.place}; choose an empty place, or say to overwrite it",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )


def _check_names(target: Storage, chosen: Selection) -> None:
    """Refuse names that do not fit before anything is written."""
    longest = {group.path: _METADATA for group in chosen.groups}
    for array in chosen.arrays:
        longest[array.node.path] = "/".join(["c", *(str(len(span)) for span in array.spans)])
    for path, key in longest.items():
        name = chosen.name(path)
        if not all(target.fits(f"{name}/{last}".strip("/")) for last in (_METADATA, key)):
            raise too_long(name, target.place, "255 bytes per name in a folder, 1024 per key elsewhere")


# Metadata


def _array_document(array: Selected) -> bytes:
    if array.whole:
        return array.node.user_data
    document = json.loads(array.node.user_data)
    document["shape"] = [len(span) for span in array.spans]
    return json.dumps(document).encode()


def _group_document(node: NodeSnapshot) -> bytes:
    document = json.loads(node.user_data)
    # It may tell of arrays that are not exported, or are larger.
    return json.dumps(document).encode() if document.pop("consolidated_metadata", None) else node.user_data


def _put_metadata(
    target: Storage, chosen: Selection, node: NodeSnapshot, document: bytes, report: ExportReport
) -> None:
    name = chosen.name(node.path)
    target.put(f"{name}/{_METADATA}" if name else _METADATA, document)
    report.bytes_written += len(document)


# Chunks


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """Some chunks of one array."""

    path: str
    name: str
    spans: tuple[range, ...]
    sizes: tuple[int, ...]
    """Elements per chunk."""
    copied: Coords
    """Chunks of the target whose bytes are copied."""
    encoded: Coords
    """Chunks of the target that are made of parts."""

    def shift(self) -> Coords:
        """How many chunks the target begins after the source."""
        return np.array([span.start // size for span, size in zip(self.spans, self.sizes, strict=True)])


def _export_array(
    session: Session,
    target: Storage,
    chosen: Selection,
    array: Selected,
    report: ExportReport,
    limits: Limits,
    progress: Progress | None,
    executor: Executor | None,
) -> None:
    refs = session.workspace.refs(array.node)
    sizes = _chunk_sizes(array)
    copied, lengths, encoded = _parted(array, refs, sizes)
    report.chunks_copied += len(copied)
    report.chunks_encoded += len(encoded)
    if report.dry_run:
        report.bytes_written += int(lengths.sum())
        return
    name = chosen.name(array.node.path)
    orders = [
        _Order(array.node.path, name, array.spans, sizes, copied[some], encoded[:0])
        for some in _batches(lengths)
    ] + [
        _Order(array.node.path, name, array.spans, sizes, copied[:0], encoded[at : at + 1])
        for at in range(len(encoded))
    ]
    largest = max(int(lengths.max(initial=1)), _decoded_bytes(array, sizes) if len(encoded) else 1)
    threads = max(1, min(limits.max_concurrent_requests, limits.max_memory_bytes // (2 * largest)))
    spread = executor or ThreadExecutor(threads, "export")
    done, total = 0, len(copied) + len(encoded)
    for order, written in zip(
        orders, spread.map(Task(partial(_export, session, target), "chunks"), orders), strict=True
    ):
        report.bytes_written += written
        done += len(order.copied) + len(order.encoded)
        if progress is not None:
            progress(name, done, total)


def _chunk_sizes(array: Selected) -> tuple[int, ...]:
    grid = json.loads(array.node.user_data)["chunk_grid"]
    if grid["name"] == "regular":
        return tuple(max(size, 1) for size in grid["configuration"]["chunk_shape"])
    return (1,) * len(array.spans)  # exported whole: the numbers of chunks stay


def _decoded_bytes(array: Selected, sizes: Sequence[int]) -> int:
    document = json.loads(array.node.user_data)
    kind = document["data_type"]
    bits = "".join(filter(str.isdigit, kind)) if isinstance(kind, str) else ""
    return int(np.prod(sizes, dtype=np.int64)) * max(int(bits or 128) // 8, 1)


def _parted(
    array: Selected, refs: ArrayManifest, sizes: Sequence[int]
) -> tuple[Coords, NDArray[np.int64], Coords]:
    """The chunks of the target that have the bytes of one of the source, their lengths, and the others."""
    coords = refs.coords.astype(np.int64)
    lengths = np.where(refs.kind == INLINE, refs.inline.lengths, refs.lengths).astype(np.int64)
    if array.whole:
        return coords, lengths, coords[:0]
    starts = np.array([span.start for span in array.spans])
    stops = np.array([span.stop for span in array.spans])
    edges = np.array(shape_of(array.node))
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


def _export(session: Session, target: Storage, order: _Order) -> int:
    """Write some chunks; how many bytes."""
    written = 0
    workspace = session.workspace
    node = workspace.array(order.path)
    for at, source in zip(order.copied.tolist(), (order.copied + order.shift()).tolist(), strict=True):
        ref = workspace.ref(node, tuple(source))
        if ref is None:
            raise StorageError(
                f"chunk {source} of {order.path} is gone while it is exported",
                kind=ErrorKind.OBJECT_NOT_FOUND,
            )
        data = workspace.read(ref, 0, ref.length, f"{source} of {order.path}")
        written += _put(target, order.name, at, data)
    for at in order.encoded.tolist():
        cut = _cut(session, order, at)
        if cut is not None:
            written += _put(target, order.name, at, cut)
    target.sync()
    return written


def _put(target: Storage, name: str, coords: Sequence[int], data: Any) -> int:
    key = "/".join(["c", *map(str, coords)])
    target.put(f"{name}/{key}" if name else key, data, kind=ObjectKind.CHUNK)
    return len(data)


def _cut(session: Session, order: _Order, at: Sequence[int]) -> bytes | None:
    """One chunk of the target, made of the parts of chunks that it covers; None where all is fill value."""
    import zarr
    from zarr.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    source = zarr.open_array(session.store, path=order.path.strip("/"), mode="r")
    region = tuple(
        slice(span.start + number * size, min(span.start + (number + 1) * size, span.stop))
        for span, number, size in zip(order.spans, at, order.sizes, strict=True)
    )
    document = json.loads(session.workspace.array(order.path).user_data)
    document["shape"] = list(order.sizes)
    kept: dict[str, Any] = {_METADATA: Buffer.from_bytes(json.dumps(document).encode())}
    alone = zarr.open_array(MemoryStore(kept), mode="r+")
    alone[tuple(slice(0, part.stop - part.start) for part in region)] = source[region]
    found = [data for key, data in kept.items() if key != _METADATA]
    return found[0].to_bytes() if found else None
