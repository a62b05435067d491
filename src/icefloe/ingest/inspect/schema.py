"""Describe files without reading their data: names, shapes, dtypes and coordinates. Runs in
executor tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from icefloe._internal.extras import find_missing_package
from icefloe.ingest.bad_files import BadFile, explain
from icefloe.ingest.discover.remote import open_server
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.engines import (
    MissingEngineError,
    collect_skipped_variables,
)
from icefloe.ingest.inspect.open import decode, open_raw, select_variables
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import PACKING, FileSchema, StoredGroup, VariableSchema

_TIMES = ("units", "calendar")
_SAMPLE_BYTES = 1 << 16
_TABLE_CELLS = 1 << 20
"""The maximum number of cells in a two-dimensional time coordinate, such as forecast valid times, whose
values are sent to the driver.
"""


@dataclass(frozen=True, slots=True)
class DigestTask:
    """An executor task that hashes the values of some variables in a source, for comparing files."""

    source: IngestSource | StoredGroup
    reading: ReadOptions
    names: tuple[str, ...]


def inspect_file(source: IngestSource, reading: ReadOptions) -> FileSchema | BadFile:
    """Return the schema of a file, or a BadFile if the file cannot be read."""
    try:
        with (
            collect_skipped_variables() as names,
            open_raw(source, reading, avoid_copy=True, whole=True) as raw,
        ):
            found = describe_dataset(source, raw, hash_ends(source, reading), reading.variables)
            return replace(found, left_out=tuple(dict.fromkeys(names)))
    except Exception as error:  # noqa: BLE001 - engines raise whatever they like about a damaged file
        return make_bad_file(source, error)


def make_bad_file(source: IngestSource, error: Exception) -> BadFile:
    """Create a BadFile that explains why a file cannot be opened.

    If the only problem is a missing package, the file itself is marked as readable.
    """
    if isinstance(error, MissingEngineError):
        return BadFile(source, error.reason, error.remedy, is_sound=True)
    missing = find_missing_package(error) if isinstance(error, ImportError) else None
    if missing is None:
        return BadFile(source, explain(error))
    return BadFile(source, f"this needs {missing.module}", missing.command, is_sound=True)


def digest_variables(task: DigestTask) -> dict[str, str]:
    """Hash the values of some variables in a source."""
    with open_raw(task.source, task.reading, avoid_copy=True) as raw:
        decoded = decode(raw)
        return {name: _digest(decoded[name].values) for name in task.names if name in decoded.variables}


def describe_dataset(
    source: IngestSource, raw: xr.Dataset, content_id: str, names: tuple[str, ...] = ()
) -> FileSchema:
    """Return the schema of an undecoded dataset, with the named variables or all variables."""
    lacks = any(name not in raw.variables for name in names)
    offered = tuple(str(name) for name in decode(raw).data_vars) if lacks else ()
    raw = select_variables(raw, names)
    decoded = decode(raw)
    small = set(list_small(decoded))
    variables = tuple(
        describe_variable(str(name), raw.variables[name], decoded.variables[name], name in decoded.coords)
        for name in decoded.variables
    )
    values = {name: np.asarray(decoded.variables[name].values) for name in sorted(small)}
    sizes = {str(dim): size for dim, size in decoded.sizes.items()}
    return FileSchema(source, variables, sizes, values, dict(decoded.attrs), content_id, offered=offered)


def list_small(dataset: xr.Dataset) -> Iterator[str]:
    """Yield the variables whose values are part of a schema: 1-D coordinates, and small tables and bounds of
    times.

    Bounds of times inherit their units, which may differ between files.
    """
    for name, variable in dataset.coords.items():
        is_table = variable.ndim == 2 and variable.size <= _TABLE_CELLS and is_time(variable.variable)
        if variable.ndim <= 1 or is_table:
            yield str(name)
            bounds = dataset.variables.get(variable.attrs.get("bounds", variable.encoding.get("bounds")))
            if bounds is not None and bounds.ndim <= 2 and is_time(variable.variable):
                yield str(variable.attrs.get("bounds", variable.encoding.get("bounds")))


def describe_variable(
    name: str, raw: xr.Variable, decoded: xr.Variable, is_coordinate: bool
) -> VariableSchema:
    """Return the schema of a variable, given its encoded and decoded forms."""
    names: tuple[Hashable, ...] = (*PACKING, *(_TIMES if is_time(decoded) else ()))
    chunks = raw.encoding.get("chunksizes") or raw.encoding.get("chunks")
    whole = chunks is None or raw.encoding.get("contiguous", False)
    return VariableSchema(
        name,
        tuple(str(dim) for dim in decoded.dims),
        raw.dtype.str,
        "O" if decoded.dtype == object else decoded.dtype.str,
        {str(key): value for key, value in decoded.attrs.items()},
        {str(key): raw.attrs[key] for key in names if key in raw.attrs},
        is_coordinate,
        None if whole or chunks is None else tuple(int(size) for size in chunks),
        tuple(str(dim) for dim in raw.dims),
    )


def is_time(decoded: xr.Variable) -> bool:
    """Return True if the decoded values of a variable are times or durations."""
    return decoded.dtype.kind in "mM" or "calendar" in decoded.encoding


def hash_ends(source: IngestSource, reading: ReadOptions) -> str:
    """Hash the size and the first and last bytes of a file. Return "" for a Zarr store."""
    if source.size_bytes <= 0:
        return ""
    found = hashlib.sha256(str(source.size_bytes).encode())
    for part in _read_ends(source, reading):
        found.update(part)
    return found.hexdigest()[:32]


def _read_ends(source: IngestSource, reading: ReadOptions) -> Iterator[bytes]:
    last = max(0, source.size_bytes - _SAMPLE_BYTES)
    if source.is_remote:
        server = open_server(source.address, reading.storage_options)
        for start in (0, last):
            yield server.read_range(source.address, start, min(start + _SAMPLE_BYTES, source.size_bytes))
        return
    with open(source.url, "rb") as file:
        yield file.read(_SAMPLE_BYTES)
        file.seek(last)
        yield file.read(_SAMPLE_BYTES)


def _digest(values: Any) -> str:
    array = np.asarray(values)
    data = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + data).hexdigest()
