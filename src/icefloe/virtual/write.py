"""Write virtual datasets to a store: the metadata, and the references of each array in a single call."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype

from icefloe.core.reference_columns import VirtualColumns, to_stored_checksum
from icefloe.encoding.columns import Blobs
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.coordinates import are_inside
from icefloe.format.manifest import NO_ETAG, ETag, LastModified
from icefloe.store import IcechunkStore
from icefloe.virtual import codecs
from icefloe.virtual.errors import CannotVirtualizeError, Refused
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable, make_document, reencode_times
from icefloe.virtual.zarr_metadata import find_differences, list_properties, parse_array_metadata


class WritableDataset(Protocol):
    """The protocol of virtual datasets that can be written, one group at a time."""

    @property
    def variables(self) -> Mapping[str, VirtualVariable]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> tuple[Source, ...]: ...
    def walk(self) -> Iterator[tuple[str, Self]]: ...
    def all_refused(self) -> list[Refused]: ...
    def drop_refused(self) -> Self: ...


@dataclass(frozen=True, slots=True)
class _Target:
    """The target array of a variable, and the index at which writing begins."""

    path: str
    variable: VirtualVariable
    document: Mapping[str, Any] | None
    """The new array metadata; None if the metadata does not change."""
    start: tuple[int, ...]


def write_dataset(
    dataset: WritableDataset,
    store: IcechunkStore,
    *,
    group: str | None = None,
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
    validate_containers: bool = True,
) -> None:
    """Write a virtual dataset to a store after validating all of it. See `VirtualDataset.to_icechunk`."""
    codecs.register()
    store = getattr(store, "store", store)  # accept a session as well
    if not isinstance(store, IcechunkStore):
        raise TypeError(f"expected the store of an icefloe session, not {type(store).__name__}")
    if append_dim is not None and region is not None:
        raise ValueError("pass append_dim or region, not both")
    refused = dataset.all_refused()
    if refused:
        from icefloe._internal.amounts import counted

        listed = "; ".join(each.sentence for each in refused[:10])
        raise CannotVirtualizeError(
            f"{counted(len(refused), 'variable')} cannot be written as references: {listed}. Remove them "
            "with drop_refused() or drop_variables(), and write them as native arrays",
            refused,
        )
    base = (group or "").strip("/")
    groups = [(f"{base}/{path}".strip("/"), each) for path, each in dataset.walk()]
    targets = [
        target for path, each in groups for target in _find_targets(each, store, path, append_dim, region)
    ]
    for path, each in groups:
        _write_group(store, path, each.attributes)
    for target in targets:
        _write(target, store, dataset.sources, replaces=region is not None, validate=validate_containers)


def _find_targets(
    dataset: WritableDataset,
    store: IcechunkStore,
    group: str,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
) -> Iterator[_Target]:
    documents = {name: _read_document(store, f"{group}/{name}".strip("/")) for name in dataset.variables}
    variables = dataset.variables
    if append_dim is not None or region is not None:
        variables = _convert_times(dataset, documents, group)
    for name, variable in variables.items():
        path, found = f"{group}/{name}".strip("/"), documents[name]
        if append_dim is None and region is None:
            if found is not None:
                raise AlreadyExistsError(
                    f"the array {path} already exists; append to it, write to a region of it, or delete it",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            yield _Target(path, variable, make_document(variable), (0,) * len(variable.shape))
        elif found is None:
            raise NodeNotFoundError(f"the array {path} does not exist", kind=ErrorKind.NODE_NOT_FOUND)
        else:
            target = _find_region(path, variable, found, append_dim, region or {})
            if target is not None:
                yield target


def _list_mismatches(document: Mapping[str, Any], variable: VirtualVariable) -> list[str]:
    """List the differences between a virtual variable and an existing array."""
    there = list_properties(document, loaded=variable.loaded)
    here = list_properties(make_document(variable), loaded=variable.loaded)
    return [
        f"{name} is {was} in the array and {now} in the data"
        for name, was, now in find_differences(there, here)
    ]


def _read_document(store: IcechunkStore, path: str) -> dict[str, Any] | None:
    """Read the zarr.json of an existing array. Return None if it does not exist."""
    found = store.get_sync(f"{path}/zarr.json", prototype=default_buffer_prototype())
    return None if found is None else dict(json.loads(found.to_bytes()))


def _convert_times(
    dataset: WritableDataset, documents: Mapping[str, dict[str, Any] | None], group: str
) -> dict[str, VirtualVariable]:
    """Convert the loaded times of a virtual dataset to the units of the existing arrays."""
    existing = {name: each.get("attributes", {}) for name, each in documents.items() if each is not None}
    variables, left = reencode_times(existing, dataset.variables)
    for bounds, times in left:
        raise InvalidInputError(
            f"{group}/{bounds} has the units of {times}, which are different in the existing array; load it "
            "with loadable_variables so that it can be converted",
            kind=ErrorKind.BAD_METADATA,
        )
    return variables


def _find_region(
    path: str,
    variable: VirtualVariable,
    document: dict[str, Any],
    append_dim: str | None,
    region: Mapping[str, slice],
) -> _Target | None:
    """Find the region of an existing array to write a variable to. Return None if it is not written."""
    wrong = _list_mismatches(document, variable)
    moving = [axis for axis, name in enumerate(variable.dimensions) if name == append_dim or name in region]
    if wrong and (moving or not variable.loaded):
        raise InvalidInputError(
            f"{path} does not match the existing array: {'; '.join(wrong)}", kind=ErrorKind.BAD_METADATA
        )
    if not moving:
        return None
    shape, start = list(document["shape"]), [0] * len(variable.shape)
    for axis, (name, size) in enumerate(zip(variable.dimensions, variable.shape, strict=True)):
        if name == append_dim:
            start[axis] = shape[axis]
            shape[axis] += size
        elif name in region:
            first, stop, _ = region[name].indices(shape[axis])
            if stop - first != size:
                raise ValueError(
                    f"{path}: the region has length {stop - first} along {name}, and the data {size}"
                )
            start[axis] = first
        elif size != shape[axis]:
            raise InvalidInputError(
                f"{path} has length {shape[axis]} along {name}, and the data {size}",
                kind=ErrorKind.BAD_METADATA,
            )
    if not variable.loaded:
        _check_borders(path, variable, start, shape)
    changed = None if shape == document["shape"] else {**document, "shape": shape}
    return _Target(path, variable, changed, tuple(start))


def _check_borders(path: str, variable: VirtualVariable, start: list[int], shape: list[int]) -> None:
    """Check that a variable begins and ends at chunk boundaries, because references replace whole chunks."""
    for axis, chunk in enumerate(variable.chunk_shape):
        stop = start[axis] + variable.shape[axis]
        if start[axis] % chunk or (stop % chunk and stop != shape[axis]):
            raise InvalidInputError(
                f"{path}: elements {start[axis]} to {stop} of {variable.dimensions[axis]} do not begin and "
                f"end at boundaries of chunks of length {chunk}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )


def _write_group(store: IcechunkStore, path: str, attributes: Mapping[str, Any]) -> None:
    parts = path.split("/") if path else []
    for depth in range(len(parts) + 1):
        own = depth == len(parts)
        key = "/".join([*parts[:depth], "zarr.json"])
        found = store.get_sync(key, prototype=default_buffer_prototype())
        if found is not None and not (own and attributes and _is_group_without_attributes(found.to_bytes())):
            continue
        document = {"zarr_format": 3, "node_type": "group", "attributes": attributes if own else {}}
        _set_document(store, key, document)


def _is_group_without_attributes(data: bytes) -> bool:
    document = json.loads(data)
    return document.get("node_type") == "group" and not document.get("attributes")


def _write(
    target: _Target, store: IcechunkStore, sources: tuple[Source, ...], *, replaces: bool, validate: bool
) -> None:
    variable, path = target.variable, target.path
    if target.document is not None:
        parse_array_metadata(target.document)  # raises if zarr cannot open the array
        _set_document(store, f"{path}/zarr.json", target.document)
    if isinstance(variable.chunks, np.ndarray):
        _write_values(store, target, variable.chunks)
        return
    step = tuple(at // size for at, size in zip(target.start, variable.chunk_shape, strict=True))
    part = Placed(variable.references, sources, step, variable.grid_shape)
    write_placed(store, path, [part], replaces=replaces, validate=validate)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """References of a virtual variable, and their position in the chunk grid of the target array."""

    references: ChunkReferences
    sources: tuple[Source, ...]
    step: tuple[int, ...]
    """The index of the first chunk along each dimension of the target grid."""
    grid_shape: tuple[int, ...]
    """The number of chunks along each dimension, including chunks without data."""


def write_placed(
    store: IcechunkStore, path: str, parts: Sequence[Placed], *, replaces: bool = True, validate: bool = True
) -> None:
    """Write the references of a virtual variable to one array of a store.

    With `replaces`, existing chunks that the new data lacks are deleted.
    """
    failed = store._set_virtual_columns(path, _to_columns(parts), validate_containers=validate)
    if failed is not None:
        from icefloe._internal.amounts import counted

        lost = sorted({part.sources[code].location for part in parts for code in part.references.sources})
        raise InvalidInputError(
            f"no virtual chunk container of the repository contains {', '.join(lost[:3])}, used by "
            f"{counted(len(failed), 'chunk')} of {path}, the first at {failed[0]}; add a container to the "
            "configuration, or pass validate_containers=False",
            kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )
    prefix = f"{path}/c".lstrip("/")
    for part in parts:
        places = part.references.inline_coords + np.array(part.step, np.uint32)
        for place, data in zip(places.tolist(), part.references.inline, strict=True):
            key = "/".join([prefix, *map(str, place)])
            store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))
    if replaces:
        _delete_missing(store, path, parts)


def _to_columns(parts: Sequence[Placed]) -> VirtualColumns:
    """Convert references to columns for the session, adding the checksum of each source file."""
    sources = [source for part in parts for source in part.sources]
    before = np.cumsum([0, *(len(part.sources) for part in parts)]).astype(np.uint32)
    codes = np.concatenate(
        [part.references.sources + first for part, first in zip(parts, before, strict=False)]
    )
    checksums: dict[str, Any] = {}
    found = [to_stored_checksum(source.checksum) for source in sources]
    etags = [each.value if isinstance(each, ETag) else None for each in found]
    if any(etag is not None for etag in etags):
        rows = np.array([NO_ETAG if etag is None else row for row, etag in enumerate(etags)], np.uint32)
        checksums = {
            "etag_codes": rows[codes],
            "etags": Blobs.from_texts([etag or "" for etag in etags]),
        }
    times = np.array([each.seconds if isinstance(each, LastModified) else 0 for each in found], np.uint32)
    if times.any():
        checksums["last_modified"] = times[codes]
    return VirtualColumns(
        np.concatenate([part.references.coords + np.array(part.step, np.uint32) for part in parts]),
        codes,
        Blobs.from_texts([source.location for source in sources]),
        np.concatenate([part.references.offsets for part in parts]),
        np.concatenate([part.references.lengths for part in parts]),
        checksums,
    )


def _write_values(store: IcechunkStore, target: _Target, values: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.open_array(store, path=target.path, mode="r+", zarr_format=3)
    if not values.size:
        return
    place = tuple(slice(first, first + size) for first, size in zip(target.start, values.shape, strict=True))
    array[place if place else ...] = values


def _delete_missing(store: IcechunkStore, path: str, parts: Sequence[Placed]) -> None:
    """Delete existing chunks that the new data lacks, so that they read as the fill value.

    Only existing chunks are deleted, because a sparse file may lack millions of chunks.
    """
    sparse = [part for part in parts if len(part.references) < math.prod(part.grid_shape)]
    if not sparse:
        return
    boxes = [
        [range(first, first + count) for first, count in zip(part.step, part.grid_shape, strict=True)]
        for part in sparse
    ]
    around = [
        range(min(r.start for r in each), max(r.stop for r in each)) for each in zip(*boxes, strict=True)
    ]
    node = store._workspace.array(f"/{path.strip('/')}")
    there = store._workspace.chunk_coords_inside(node, around)
    for part, box in zip(sparse, boxes, strict=True):
        found = there[are_inside(there, box)]
        if not len(found):
            continue
        have = np.zeros(part.grid_shape, np.bool_)
        for coords in (part.references.coords, part.references.inline_coords):
            have[tuple(coords.T)] = True
        kept = np.atleast_1d(have[tuple((found - np.array(part.step, np.uint32)).T)])
        store._workspace.delete_chunks(node, found[~kept])


def _set_document(store: IcechunkStore, key: str, document: Mapping[str, Any]) -> None:
    data = json.dumps(document, allow_nan=False).encode()
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))
