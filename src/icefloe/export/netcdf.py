"""Export a repository to a NetCDF-4 file, writing one block at a time."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr

from icefloe._internal.executor import Progress, Task, ThreadExecutor
from icefloe._internal.extras import format_install_command
from icefloe._internal.paths import get_name as last_name
from icefloe.cf import decode_fill_value
from icefloe.errors import AlreadyExistsError, ErrorKind, Hint, InvalidInputError
from icefloe.export.selection import ExportSelection, Indexers, Labels, Selected, make_too_long_error, select
from icefloe.export.zarr import ExportReport
from icefloe.format.snapshot import NodeSnapshot
from icefloe.session import Session

try:
    import h5netcdf
    import h5py
except ImportError as cause:
    raise ImportError(
        f"export to NetCDF requires h5netcdf: {format_install_command('h5netcdf', 'h5py')}"
    ) from cause

_BLOCK_BYTES: Final = 16 << 20
_LONGEST_NAME_BYTES: Final = 256
"""The maximum length of a name, NC_MAX_NAME in the netCDF library."""
_KINDS: Final = "iufSU"
_RESERVED: Final = {"_NCProperties", "_Netcdf4Coordinates", "_Netcdf4Dimid", "_nc3_strict"}


def export_netcdf(
    session: Session,
    target: str | os.PathLike[str],
    *,
    group: str = "/",
    variables: Iterable[str] | None = None,
    isel: Indexers | None = None,
    sel: Labels | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    compression_level: int = 4,
    max_concurrent_requests: int = 16,
    progress: Progress | None = None,
) -> ExportReport:
    """Export a group of a session to a NetCDF-4 file.

    Values and attributes are written as they are stored, so packed values stay packed. The group hierarchy is
    preserved, and unnamed dimensions get generated names. The file appears under its final name only when it
    is complete.

    Parameters
    ----------
    session
        The session to read.
    target
        Path of the file.
    group, variables, isel, sel
        The part of the hierarchy to export, as in `export_zarr`.
    overwrite
        Replace an existing file.
    dry_run
        Only report what would be written.
    compression_level
        The gzip compression level, from 0 (none) to 9.
    max_concurrent_requests
        The number of blocks, of about 16 MiB each, to read and hold in memory at once.
    progress
        A callback that receives the array path, the number of finished blocks, and the total.

    Returns
    -------
    ExportReport
        The number of arrays, groups, blocks and bytes written.

    Raises
    ------
    NodeNotFoundError
        The group or a variable does not exist.
    AlreadyExistsError
        The target file already exists, and `overwrite` is not set.
    InvalidInputError
        NetCDF does not support a data type or name, or a selection is invalid.
    """
    chosen = select(session, group, variables, isel, sel)
    path = Path(target)
    report = ExportReport(
        dry_run, [chosen.name(each.node.path) for each in chosen.arrays], len(chosen.groups)
    )
    types = {array.node.path: _get_stored_type(session, array.node) for array in chosen.arrays}
    _check_names(chosen)
    if path.exists() and not overwrite:
        raise AlreadyExistsError(
            f"file {path} already exists; choose another name",
            kind=ErrorKind.NOT_ALLOWED,
        ).with_hint(Hint("or replace it with {overwrite}", overwrite=True))
    if dry_run:
        return report
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with h5netcdf.File(aside, "w") as file:
            blocks = _write(
                file, session, chosen, types, compression_level, max_concurrent_requests, progress
            )
        size = aside.stat().st_size
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return replace(report, chunks_encoded=blocks, bytes_written=size)


def _check_names(chosen: ExportSelection) -> None:
    """Raise an error for names that the netCDF library cannot read, before anything is written."""
    for node in (*chosen.groups, *(array.node for array in chosen.arrays)):
        document = json.loads(node.user_data)
        names = [*document.get("attributes", {}), *(document.get("dimension_names") or ())]
        for name in (last_name(node.path), *names):
            if name is not None and len(name.encode()) > _LONGEST_NAME_BYTES:
                raise make_too_long_error(name, "NetCDF", f"at most {_LONGEST_NAME_BYTES} bytes")


def _write(
    file: Any,
    session: Session,
    chosen: ExportSelection,
    types: Mapping[str, Any],
    level: int,
    threads: int,
    progress: Progress | None,
) -> int:
    """Write all groups and arrays to a NetCDF file, and return the number of blocks written."""
    blocks = 0
    places = {chosen.top: file}
    for node in chosen.groups:
        if node.path != chosen.top:
            places[node.path] = file.create_group(chosen.name(node.path))
        attributes = json.loads(node.user_data).get("attributes", {})
        places[node.path].attrs.update(_attributes(attributes))
    for array in chosen.arrays:
        above = array.node.path.rpartition("/")[0] or "/"
        variable = _create_variable(places[above], array, types[array.node.path], level)
        blocks += _write_values(variable, session, array, types[array.node.path], threads, progress)
    return blocks


def _get_stored_type(session: Session, node: NodeSnapshot) -> np.dtype[Any]:
    """Return the data type with which an array is stored in the NetCDF file."""
    dtype: np.dtype[Any] = _open(session, node.path).dtype
    if dtype.kind == "b":
        return np.dtype("i1")
    if dtype.kind in ("T", "O", "U"):
        text: np.dtype[Any] = h5py.string_dtype()
        return text
    if dtype.kind not in _KINDS or dtype.str[1:] == "f2":
        raise InvalidInputError(
            f"{node.path} has the data type {dtype}, which NetCDF does not support; export it to Zarr",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    return dtype


def _open(session: Session, path: str) -> Any:
    return zarr.open_array(session.store, path=path.strip("/"), mode="r")


def _create_variable(place: Any, array: Selected, dtype: np.dtype[Any], level: int) -> Any:
    document = json.loads(array.node.user_data)
    shape = [len(span) for span in array.spans]
    own = last_name(array.node.path)
    names = [name or f"{own}_{at}" for at, name in enumerate(array.node.array.names)]
    for name, size in zip(names, shape, strict=True):
        known = place.dimensions[name].size if name in place.dimensions else None
        if known is None:
            place.dimensions[name] = size
        elif known != size:
            raise InvalidInputError(
                f"{array.node.path} has {size} elements along {name}, but other arrays have {known}; a"
                " NetCDF group has one length per dimension, so export fewer variables",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
    grid = document["chunk_grid"]["configuration"].get("chunk_shape")
    chunks = grid and tuple(min(size, length) for size, length in zip(grid, shape, strict=True))
    attributes = dict(document.get("attributes", {}))
    if document["data_type"] == "bool":
        attributes["dtype"] = "bool"
    options: dict[str, Any] = {}
    if shape and 0 not in shape:
        options["chunks"] = chunks or None
        if dtype.kind != "O" and level:
            options |= {"compression": "gzip", "compression_opts": level, "shuffle": True}
    fill = attributes.pop("_FillValue", None)
    if fill is not None and dtype.kind == "f":
        fill = decode_fill_value(fill, dtype)
    if fill is not None and dtype.kind != "O":
        options["fillvalue"] = np.asarray(fill).astype(dtype)[()]
    variable = place.create_variable(own, tuple(names), dtype, **options)
    variable.attrs.update(_attributes(attributes))
    return variable


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _attribute(value) for name, value in attributes.items() if name not in _RESERVED}


def _attribute(value: Any) -> Any:
    """Convert a Zarr attribute to text, a number or a list of these. Other values are encoded as JSON."""
    if isinstance(value, bool):
        return np.int8(value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return value
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            return np.array(value)
    return json.dumps(value)


# Values


def _write_values(
    variable: Any,
    session: Session,
    array: Selected,
    dtype: np.dtype[Any],
    threads: int,
    progress: Progress | None,
) -> int:
    source = _open(session, array.node.path)
    if any(not len(span) for span in array.spans):
        return 0
    blocks = list(_split_blocks(array, source, dtype))
    found = ThreadExecutor(threads, "export").map(Task(partial(_read, source), "blocks"), blocks)
    for done, (block, values) in enumerate(zip(blocks, found, strict=True), 1):
        at = tuple(
            slice(b.start - s.start, b.stop - s.start) for b, s in zip(block, array.spans, strict=True)
        )
        variable[at if at else ...] = values if dtype.kind == "O" else values.astype(dtype, copy=False)
        if progress is not None:
            progress(array.node.path, done, len(blocks))
    return len(blocks)


def _read(source: Any, block: Sequence[range]) -> Any:
    return np.asarray(source[tuple(slice(part.start, part.stop) for part in block)])


def _split_blocks(array: Selected, source: Any, dtype: np.dtype[Any]) -> Iterator[tuple[range, ...]]:
    """Split a selection into blocks of whole chunks, each small enough to read at once."""
    sizes = list(getattr(source, "shards", None) or source.chunks)
    room = _BLOCK_BYTES // max(dtype.itemsize, 1)
    for axis in reversed(range(len(sizes))):
        others = math.prod(sizes) // max(sizes[axis], 1)
        times = max(1, room // max(others * sizes[axis], 1))
        sizes[axis] = min(sizes[axis] * times, -(-array.spans[axis].stop // sizes[axis]) * sizes[axis])
    parts = [
        [range(max(at, span.start), min(at + size, span.stop)) for at in _list_starts(span, size)]
        for span, size in zip(array.spans, sizes, strict=True)
    ]
    return product(*parts)


def _list_starts(span: range, size: int) -> range:
    return range(span.start // size * size, span.stop, size)
