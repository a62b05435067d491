"""HDF5 files as xarray shows them, from what the parser of references has read of them anyway.

Only files that are plain are looked at so: numbers of the usual kinds, dimensions with scales, attributes
that are texts or numbers. In them netCDF4, h5netcdf and the parser see the same. The files of an archive are
alike: what decoding makes of a variable is kept, and of the next file only coordinates are decoded.
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
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.schema import schema_of, variable_schema
from icefloe.ingest.records import FileSchema, Reading, VariableSchema, attribute_key
from icefloe.virtual.parsers.hdf5.dimensions import HIDDEN_ATTRIBUTES
from icefloe.virtual.parsers.hdf5.file import Member, Members

_indexing = get_xarray_indexing()
_conventions: Any = xr.conventions
_ENGINES = (None, "netcdf4", "h5netcdf")
_TYPES = frozenset(
    np.dtype(each).str for each in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
)
_SEEN_BY_SOME = ("DIMENSION_LABELS", "_NCCOPY", "least_significant_digit")
"""Attributes that not all engines hide."""
_KEPT = 64
_KEPT_BYTES = 1 << 16
"""Coordinates larger than this are decoded anew in every file."""


class _OddError(Exception):
    """Something that engines may see in different ways."""


def is_plain(reading: Reading) -> bool:
    """Return whether this module can describe files that are read with these options."""
    return reading.engine in _ENGINES and not reading.open_options


def plain_schema(
    members: Members, source: Source, reading: Reading, content_id: str, known: Known
) -> FileSchema | None:
    """What a inspect_file would find in the group of an open file; None where xarray has to look itself."""
    try:
        stored = {name: _Stored.of(name, each) for name, each in members.variables.items()}
        attrs = _attributes(members.attributes)
        if not members.is_whole or not stored:
            return None
        sizes = _sizes(stored)
    except _OddError:
        return None
    key = _key(stored, attrs, reading)
    template = known.templates.get(key)
    if template is not None:
        known.templates.move_to_end(key)
        return _filled_in(template, stored, sizes, attrs, source, content_id, known)
    raw = xr.Dataset({name: each.variable() for name, each in stored.items()}, attrs=attrs)
    found = schema_of(source, raw, content_id, reading.variables)
    if _is_like_others(found, stored):
        _keep(known.templates, key, found)
    return found


def _is_like_others(schema: FileSchema, stored: Mapping[str, _Stored]) -> bool:
    """Whether what decoding makes of variables depends on nothing that may be another in the next file."""
    apart = (each.name for each in schema.variables if _counts_apart(stored[each.name], stored))
    return all(name in schema.values for name in apart)


class Known:
    """What is known of files of an archive after some of them."""

    def __init__(self) -> None:
        self.templates: OrderedDict[Any, FileSchema] = OrderedDict()
        self.coordinates: OrderedDict[Any, tuple[VariableSchema, Any]] = OrderedDict()


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    while len(kept) >= _KEPT:
        kept.popitem(last=False)
    kept[key] = value


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A variable as it is stored."""

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
        attrs = _attributes(member.attributes)
        fill = attrs.get("_FillValue")
        if not is_plain or (fill is not None and np.asarray(fill).dtype != dtype):
            raise _OddError
        return _Stored(name, dims, shape, dtype, dataset.chunks, attrs, member)

    def values(self) -> Any:
        return np.asarray(self.member.dataset[()])

    def variable(self) -> xr.Variable:
        """The variable, of which values are read when they are wanted."""
        data = _indexing.LazilyIndexedArray(_Values(self))
        encoding = {} if self.chunks is None else {"chunksizes": self.chunks}
        return xr.Variable(self.dims, data, dict(self.attrs), encoding)


class _Values(BackendArray):
    """The values of a variable of an open file."""

    def __init__(self, stored: _Stored) -> None:
        self._dataset = stored.member.dataset
        self.shape = stored.shape
        self.dtype = stored.dtype

    def __getitem__(self, key: Any) -> Any:
        return _indexing.explicit_indexing_adapter(
            key, self.shape, _indexing.IndexingSupport.BASIC, lambda basic: np.asarray(self._dataset[basic])
        )


def _attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    if any(name in found for name in _SEEN_BY_SOME):
        raise _OddError
    return {name: _value(value) for name, value in found.items() if name not in HIDDEN_ATTRIBUTES}


def _value(value: Any) -> Any:
    """A text, a number, or several numbers."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.str not in _TYPES or not value.size:
            raise _OddError
        return value[0] if value.size == 1 else value
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise _OddError from None
    if isinstance(value, str):
        if not value or "\0" in value:
            raise _OddError
        return value
    if isinstance(value, np.generic) and value.dtype.str in _TYPES:
        return value
    raise _OddError


def _sizes(stored: Mapping[str, _Stored]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in stored.values():
        for dim, size in zip(each.dims, each.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise _OddError
    return sizes


def _key(stored: Mapping[str, _Stored], attrs: Mapping[str, Any], reading: Reading) -> Any:
    """The same for files in which the same variables are decoded in the same way, but for coordinates."""
    variables = []
    for each in stored.values():
        told = each.attrs
        if _counts_apart(each, stored):
            told = {name: value for name, value in told.items() if name != "units"}
        variables.append((each.name, each.dims, each.dtype.str, each.chunks, attribute_key(told)))
    return tuple(variables), attrs.get("coordinates"), reading.variables


def _counts_apart(each: _Stored, stored: Mapping[str, _Stored]) -> bool:
    """Whether times are counted from a date that may be another one in every file, and nobody else's."""
    if len(each.dims) > 1 or " since " not in str(each.attrs.get("units", "")):
        return False
    bounds = stored.get(str(each.attrs.get("bounds", "")))
    return bounds is None or len(bounds.dims) <= 2


def _filled_in(
    template: FileSchema,
    stored: Mapping[str, _Stored],
    sizes: Mapping[str, int],
    attrs: Mapping[str, Any],
    source: Source,
    content_id: str,
    known: Known,
) -> FileSchema:
    """A file like another one, with its own coordinates."""
    coordinates = dict(_coordinates(template, stored, known))
    variables = tuple(
        coordinates[each.name][0] if each.name in coordinates else each for each in template.variables
    )
    values = {name: coordinates[name][1] for name in template.values}
    mine = {dim: sizes[dim] for dim in template.sizes}
    shown = {name: value for name, value in attrs.items() if name != "coordinates"}
    return FileSchema(source, variables, mine, values, shown, content_id, offered=template.offered)


def _coordinates(
    template: FileSchema, stored: Mapping[str, _Stored], known: Known
) -> Iterator[tuple[str, tuple[VariableSchema, Any]]]:
    """What goes home with values, decoded: times and their bounds together, all else one by one."""
    together: dict[str, _Stored] = {}
    like = {each.name: each for each in template.variables}
    for name in template.values:
        each = stored[name]
        if _is_of_times(each, stored) or each.member.dataset.size * each.dtype.itemsize > _KEPT_BYTES:
            together[name] = each
            continue
        values = each.values()
        key = (name, each.dims, each.chunks, values.dtype.str, values.tobytes(), attribute_key(each.attrs))
        if key not in known.coordinates:
            _keep(known.coordinates, key, _decoded([(each, values)], like)[name])
        yield name, known.coordinates[key]
    yield from _decoded([(each, each.values()) for each in together.values()], like).items()


def _is_of_times(each: _Stored, stored: Mapping[str, _Stored]) -> bool:
    """Whether values are times, or the bounds of something, which are counted as that is."""
    is_time = " since " in str(each.attrs.get("units", ""))
    return is_time or any(each.name == other.attrs.get("bounds") for other in stored.values())


def _decoded(
    variables: Iterable[tuple[_Stored, Any]], like: Mapping[str, VariableSchema]
) -> dict[str, tuple[VariableSchema, Any]]:
    raw = {}
    for each, values in variables:
        # Whether it names coordinates that there are was seen in the file that this one is like.
        told = {name: value for name, value in each.attrs.items() if name not in _named_elsewhere(each, like)}
        encoding = {} if each.chunks is None else {"chunksizes": each.chunks}
        raw[each.name] = xr.Variable(each.dims, values, told, encoding)
    with ignore_warnings():
        decoded, _, _ = _conventions.decode_cf_variables(dict(raw), {}, decode_coords=False)
        return {
            name: (
                variable_schema(name, raw[name], variable, like[name].is_coordinate),
                np.asarray(variable.values),
            )
            for name, variable in decoded.items()
        }


def _named_elsewhere(each: _Stored, like: Mapping[str, VariableSchema]) -> tuple[str, ...]:
    return () if "coordinates" in like[each.name].attrs else ("coordinates",)
