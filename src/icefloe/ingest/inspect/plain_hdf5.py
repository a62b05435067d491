"""Describe plain HDF5 files as xarray would, from the result of the virtual parser.

A file is plain if it contains only numbers of common dtypes, dimensions with scales, and attributes that are
text or numbers. netCDF4, h5netcdf and the parser interpret such files identically. The files of an archive
are similar, so the decoded schema is cached, and only the coordinates of each further file are decoded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray

from icefloe._internal.private_imports import get_xarray_indexing
from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.schema import describe_dataset, describe_variable
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import FileSchema, VariableSchema, make_attrs_key
from icefloe.virtual.parsers.hdf5.dimensions import HIDDEN_ATTRIBUTES
from icefloe.virtual.parsers.hdf5.file import Member, Members

_indexing = get_xarray_indexing()
_conventions: Any = xr.conventions
_ENGINES = (None, "netcdf4", "h5netcdf")
_TYPES = frozenset(
    np.dtype(each).str for each in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
)
_HIDDEN_BY_SOME_ENGINES = ("DIMENSION_LABELS", "_NCCOPY", "least_significant_digit")
"""Attributes that some xarray engines hide and others return."""
_KEPT = 64
_KEPT_BYTES = 1 << 16
"""The maximum size in bytes of cached coordinates. Larger coordinates are decoded for every file."""


class _AmbiguousError(Exception):
    """Error raised for HDF5 features that engines may interpret differently."""


def is_plain(reading: ReadOptions) -> bool:
    """Return True if the read options allow inspecting plain HDF5 files without xarray."""
    return reading.engine in _ENGINES and not reading.open_options


def describe_plain_file(
    members: Members, source: IngestSource, reading: ReadOptions, content_id: str, known: ReusedDescriptions
) -> FileSchema | None:
    """Return the schema of an open HDF5 file, as `inspect_file` would. Return None if the file is
    not plain.
    """
    try:
        stored = {name: _Stored.of(name, each) for name, each in members.variables.items()}
        attrs = _convert_attributes(members.attributes)
        if not members.is_whole or not stored:
            return None
        sizes = _collect_sizes(stored)
    except _AmbiguousError:
        return None
    key = _make_key(stored, attrs, reading)
    template = known.templates.get(key)
    if template is not None:
        known.templates.move_to_end(key)
        return _fill_template(template, stored, sizes, attrs, source, content_id, known)
    raw = xr.Dataset({name: each.to_variable() for name, each in stored.items()}, attrs=attrs)
    found = describe_dataset(source, raw, content_id, reading.variables)
    if _is_like_others(found, stored):
        _keep(known.templates, key, found)
    return found


def _is_like_others(schema: FileSchema, stored: Mapping[str, _Stored]) -> bool:
    """Return True if a schema can be reused for similar files."""
    apart = (each.name for each in schema.variables if _has_own_epoch(stored[each.name], stored))
    return all(name in schema.values for name in apart)


class ReusedDescriptions:
    """A cache of schemas and decoded coordinates, which speeds up inspecting similar plain HDF5 files."""

    def __init__(self) -> None:
        self.templates: OrderedDict[Any, FileSchema] = OrderedDict()
        self.coordinates: OrderedDict[Any, tuple[VariableSchema, Any]] = OrderedDict()


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    while len(kept) >= _KEPT:
        kept.popitem(last=False)
    kept[key] = value


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A variable in an open HDF5 file."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    attrs: dict[str, Any]
    member: Member

    @staticmethod
    def of(name: str, member: Member) -> _Stored:
        dataset = member.dataset
        dtype, shape, dims = dataset.dtype, tuple(dataset.shape), member.dimensions
        is_plain = (
            dtype.str in _TYPES
            and dtype.metadata is None
            and member.shape == shape
            and len(set(dims)) == len(dims)
            and ("DIMENSION_LIST" in member.attributes or dims in ((name,), ()))
            and (len(dims) == 1 or name not in dims)
            and ("CLASS" not in member.attributes or len(dims) == 1)
        )
        attrs = _convert_attributes(member.attributes)
        fill = attrs.get("_FillValue")
        if not is_plain or (fill is not None and np.asarray(fill).dtype != dtype):
            raise _AmbiguousError
        return _Stored(name, dims, shape, dtype, dataset.chunks, attrs, member)

    def read(self) -> Any:
        return np.asarray(self.member.dataset[()])

    def to_variable(self) -> xr.Variable:
        """Return the variable as an xarray variable that reads its values on access."""
        data = _indexing.LazilyIndexedArray(_Values(self))
        encoding = {} if self.chunks is None else {"chunksizes": self.chunks}
        return xr.Variable(self.dims, data, dict(self.attrs), encoding)


class _Values(BackendArray):
    """The values of a variable in an open HDF5 file, read on access."""

    def __init__(self, stored: _Stored) -> None:
        self._dataset = stored.member.dataset
        self.shape = stored.shape
        self.dtype = stored.dtype

    def __getitem__(self, key: Any) -> Any:
        return _indexing.explicit_indexing_adapter(
            key, self.shape, _indexing.IndexingSupport.BASIC, lambda basic: np.asarray(self._dataset[basic])
        )


def _convert_attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    if any(name in found for name in _HIDDEN_BY_SOME_ENGINES):
        raise _AmbiguousError
    return {name: _convert_value(value) for name, value in found.items() if name not in HIDDEN_ATTRIBUTES}


def _convert_value(value: Any) -> Any:
    """Convert an HDF5 attribute to text, a number, or an array of numbers."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.str not in _TYPES or not value.size:
            raise _AmbiguousError
        return value[0] if value.size == 1 else value
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise _AmbiguousError from None
    if isinstance(value, str):
        if not value or "\0" in value:
            raise _AmbiguousError
        return value
    if isinstance(value, np.generic) and value.dtype.str in _TYPES:
        return value
    raise _AmbiguousError


def _collect_sizes(stored: Mapping[str, _Stored]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in stored.values():
        for dim, size in zip(each.dims, each.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise _AmbiguousError
    return sizes


def _make_key(stored: Mapping[str, _Stored], attrs: Mapping[str, Any], reading: ReadOptions) -> Any:
    """Return a key that is equal for files that are decoded in the same way, apart from their coordinates."""
    variables = []
    for each in stored.values():
        own = each.attrs
        if _has_own_epoch(each, stored):
            own = {name: value for name, value in own.items() if name != "units"}
        variables.append((each.name, each.dims, each.dtype.str, each.chunks, make_attrs_key(own)))
    return tuple(variables), attrs.get("coordinates"), reading.variables


def _has_own_epoch(each: _Stored, stored: Mapping[str, _Stored]) -> bool:
    """Return True if a variable contains times whose units may differ between files. Times with large bounds
    are excluded.
    """
    if len(each.dims) > 1 or " since " not in str(each.attrs.get("units", "")):
        return False
    bounds = stored.get(str(each.attrs.get("bounds", "")))
    return bounds is None or len(bounds.dims) <= 2


def _fill_template(
    template: FileSchema,
    stored: Mapping[str, _Stored],
    sizes: Mapping[str, int],
    attrs: Mapping[str, Any],
    source: IngestSource,
    content_id: str,
    known: ReusedDescriptions,
) -> FileSchema:
    """Build the schema of a file from the schema of a similar file. Only coordinates are decoded."""
    coordinates = dict(_decode_coordinates(template, stored, known))
    variables = tuple(
        coordinates[each.name][0] if each.name in coordinates else each for each in template.variables
    )
    values = {name: coordinates[name][1] for name in template.values}
    mine = {dim: sizes[dim] for dim in template.sizes}
    shown = {name: value for name, value in attrs.items() if name != "coordinates"}
    return FileSchema(source, variables, mine, values, shown, content_id, offered=template.offered)


def _decode_coordinates(
    template: FileSchema, stored: Mapping[str, _Stored], known: ReusedDescriptions
) -> Iterator[tuple[str, tuple[VariableSchema, Any]]]:
    """Yield the schema and the values of each coordinate. Times are decoded together with their bounds."""
    together: dict[str, _Stored] = {}
    like = {each.name: each for each in template.variables}
    for name in template.values:
        each = stored[name]
        if _is_time_or_bounds(each, stored) or each.member.dataset.size * each.dtype.itemsize > _KEPT_BYTES:
            together[name] = each
            continue
        values = each.read()
        key = (name, each.dims, each.chunks, values.dtype.str, values.tobytes(), make_attrs_key(each.attrs))
        if key not in known.coordinates:
            _keep(known.coordinates, key, _decode_variables([(each, values)], like)[name])
        yield name, known.coordinates[key]
    yield from _decode_variables([(each, each.read()) for each in together.values()], like).items()


def _is_time_or_bounds(each: _Stored, stored: Mapping[str, _Stored]) -> bool:
    """Return True if a variable contains times or the bounds of a coordinate, which share its units."""
    is_time = " since " in str(each.attrs.get("units", ""))
    return is_time or any(each.name == other.attrs.get("bounds") for other in stored.values())


def _decode_variables(
    variables: Iterable[tuple[_Stored, Any]], like: Mapping[str, VariableSchema]
) -> dict[str, tuple[VariableSchema, Any]]:
    raw = {}
    for each, values in variables:
        # The schema of the similar file already shows which of the listed coordinates exist.
        attrs = {name: value for name, value in each.attrs.items() if name not in _list_hidden(each, like)}
        encoding = {} if each.chunks is None else {"chunksizes": each.chunks}
        raw[each.name] = xr.Variable(each.dims, values, attrs, encoding)
    with ignore_warnings():
        decoded, _, _ = _conventions.decode_cf_variables(dict(raw), {}, decode_coords=False)
        return {
            name: (
                describe_variable(name, raw[name], variable, like[name].is_coordinate),
                np.asarray(variable.values),
            )
            for name, variable in decoded.items()
        }


def _list_hidden(each: _Stored, like: Mapping[str, VariableSchema]) -> tuple[str, ...]:
    return () if "coordinates" in like[each.name].attrs else ("coordinates",)
