"""Restore lost chunks from ingested files, for `Repository.repair`.

A file is considered unchanged if its size and modification time, or its size and its first and last bytes,
match the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import IcechunkError
from icefloe.ingest.bad_files import explain
from icefloe.ingest.combine.existing import describe_array
from icefloe.ingest.discover.sources import IngestSource, find_sources
from icefloe.ingest.inspect.open import decode, open_raw
from icefloe.ingest.inspect.packing import from_zarr_attributes, make_signature
from icefloe.ingest.inspect.schema import describe_variable, hash_ends
from icefloe.ingest.ledger import LedgerRow, read_ledger
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import Target
from icefloe.ingest.write.chunks import encode_for_target
from icefloe.session import Session

Span = tuple[int, int]


@dataclass(slots=True)
class LedgerChunks:
    """A recovery source for lost chunks, which reads the ingested files listed in the ledger."""

    session: Session
    """The session to read the ledger from."""
    reading: ReadOptions = field(default_factory=ReadOptions)
    """The options that the files were opened with when they were ingested."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Files that are missing or changed, with the reasons."""
    _rows: dict[str, list[LedgerRow]] = field(default_factory=dict, repr=False)
    _targets: dict[str, Target] = field(default_factory=dict, repr=False)
    _sources: dict[str, IngestSource | None] = field(default_factory=dict, repr=False)

    def __call__(self, path: str, coords: tuple[int, ...]) -> NDArray[Any] | None:
        """Return the values of a chunk. Return None if no unchanged file in the ledger contains it."""
        group, _, name = path.strip("/").rpartition("/")
        rows = self._find_rows(group, name)
        if not rows:
            return None
        target = self._get_target(group, name)
        box = [
            (at * size, min((at + 1) * size, length))
            for at, size, length in zip(coords, target.unit, target.shape, strict=True)
        ]
        found = None
        for row in rows:
            there = _find_overlap(box, target, row)
            if there is None:
                continue
            part = self._read(row, target, there)
            if part is None:
                return None
            if found is None:
                found = np.full([stop - start for start, stop in box], target.fill_value, part.dtype)
            found[
                tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(there, box, strict=True))
            ] = part
        return found

    def _find_rows(self, group: str, name: str) -> list[LedgerRow]:
        """Return the ledger rows for a variable. Coordinates may be in any row, because rows list only data
        variables.
        """
        if group not in self._rows:
            self._rows[group] = list(self._read_rows(group))
        rows = [row for row in self._rows[group] if row.mode != "virtual"]
        named = [row for row in rows if name in row.names]
        return named or rows

    def _read_rows(self, group: str) -> Iterator[LedgerRow]:
        """Yield the ledger rows of a group, which may be in the ledger of a parent group."""
        parts = group.split("/") if group else []
        for count in range(len(parts), -1, -1):
            path = "/".join(parts[count:])
            rows = read_ledger(self.session, "/".join(parts[:count]))
            yield from (row for row in rows if row.target_group == path)

    def _get_target(self, group: str, name: str) -> Target:
        path = f"{group}/{name}".strip("/")
        if path not in self._targets:
            array: Any = zarr.open_array(self.session.store, path=path, mode="r")
            self._targets[path] = _describe_array(name, array)
        return self._targets[path]

    def _read(self, row: LedgerRow, target: Target, box: Sequence[Span]) -> NDArray[Any] | None:
        source = self._get_source(row)
        if source is None:
            return None
        try:
            with open_raw(replace(source, group=row.source_group), self.reading) as raw:
                return _read_values(raw, target, row, box)
        except Exception as error:  # noqa: BLE001 - engines raise whatever they like about a damaged file
            self.unusable[row.source] = f"{target.name} cannot be read: {explain(error)}"
            return None

    def _get_source(self, row: LedgerRow) -> IngestSource | None:
        if row.source not in self._sources:
            self._sources[row.source] = self._find_source(row)
        return self._sources[row.source]

    def _find_source(self, row: LedgerRow) -> IngestSource | None:
        try:
            (source,) = find_sources(row.source, self.reading.storage_options)
            same = row.matches(source) or (
                bool(row.content_id)
                and row.size_bytes == source.size_bytes
                and row.content_id == hash_ends(source, self.reading)
            )
        except (IcechunkError, OSError, ValueError) as error:
            self.unusable[row.source] = explain(error)
            return None
        if not same:
            self.unusable[row.source] = "it has changed since it was ingested"
            return None
        return source


def _describe_array(name: str, array: Any) -> Target:
    """Describe an array by its metadata without reading chunks."""
    dims = tuple(str(dim) for dim in array.metadata.dimension_names or ())
    is_text = array.dtype.kind in "TO"
    cells = np.broadcast_to(np.zeros((), object if is_text else array.dtype), array.shape)
    attrs = dict(array.attrs)
    raw = xr.Variable(dims, cells, attrs if is_text else from_zarr_attributes(attrs, array.dtype))
    with ignore_warnings():
        shown = raw if is_text else decode(xr.Dataset({name: raw})).variables[name]
    return describe_array(array, describe_variable(name, raw, shown, is_coordinate=False))


def _find_overlap(box: Sequence[Span], target: Target, row: LedgerRow) -> list[Span] | None:
    """Return the part of a box that a file covers. Return None if they do not overlap."""
    whole = {**dict(zip(target.dims, ((0, size) for size in target.shape), strict=True)), **row.box}
    found = [
        (max(start, whole[dim][0]), min(stop, whole[dim][1]))
        for dim, (start, stop) in zip(target.dims, box, strict=True)
    ]
    return None if any(start >= stop for start, stop in found) else found


def _read_values(raw: xr.Dataset, target: Target, row: LedgerRow, box: Sequence[Span]) -> NDArray[Any]:
    """Read a box of an array from a source file, with the array's encoding."""
    stored = raw.variables[target.name]
    shown = decode(raw).variables[target.name]
    schema = describe_variable(target.name, stored, shown, is_coordinate=False)
    copied = target.signature is not None and make_signature(schema) == target.signature
    variable = stored if copied else shown
    begin = {dim: start for dim, (start, _) in row.box.items()}
    spans = dict(zip(target.dims, box, strict=True))
    key = {str(dim): slice(*(at - begin.get(str(dim), 0) for at in spans[str(dim)])) for dim in variable.dims}
    part = variable.isel(key).load()
    values = np.asarray(part.values if copied else encode_for_target(part, target))
    order = [variable.dims.index(dim) for dim in target.dims if dim in variable.dims]
    missing = tuple(slice(None) if dim in variable.dims else None for dim in target.dims)
    return values.transpose(order)[missing]
