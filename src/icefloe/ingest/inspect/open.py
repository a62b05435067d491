"""Open sources with xarray, or as references to their chunks, without decoding values."""

from __future__ import annotations

import importlib
import importlib.util
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import xarray as xr

from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import Hint, IcechunkError
from icefloe.ingest.discover.remote import make_index_path, open_server
from icefloe.ingest.discover.sources import IngestSource, get_local_path
from icefloe.ingest.discover.urls import make_reference_url
from icefloe.ingest.inspect.engines import (
    MissingEngineError,
    choose_reader,
    collect_skipped_variables,
    is_no_engine_error,
    is_zip,
    open_zip,
    refuse_missing,
)
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import StoredGroup
from icefloe.session import Session
from icefloe.virtual import VirtualDataset
from icefloe.virtual.errors import CannotVirtualizeError
from icefloe.virtual.parsers.grib.groups import Kind
from icefloe.virtual.parsers.kerchunk import is_parquet

if TYPE_CHECKING:
    from icefloe.store import IcechunkStore
    from icefloe.virtual.parsers.hdf5.file import Members

_CHUNK_CACHE_BYTES = 1 << 20
_GRIB = (".grib", ".grib2", ".grb", ".grb2")
"""The suffixes of files that xarray opens with cfgrib."""
_HEAD_BYTES = 4096
_NOT_GRIB = (b"\x89HDF", b"CDF\x01", b"CDF\x02", b"CDF\x05", b"II*\0", b"MM\0*")
"""The first bytes of other formats, whose files may contain the bytes `GRIB`."""
_RAW_OPTIONS: Mapping[str, Any] = {"decode_cf": False, "chunks": None, "create_default_indexes": False}
"""Keyword arguments that prevent xarray from loading labels for indexes, because values are read
by position.
"""
_UNNAMED_OPTIONS = {"phony_dims": "sort"}
"""Keyword arguments with which h5netcdf names unnamed dimensions as netCDF4 does."""


@contextmanager
def open_raw(
    source: IngestSource | StoredGroup, reading: ReadOptions, *, avoid_copy: bool = False, whole: bool = False
) -> Iterator[xr.Dataset]:
    """Open the selected variables of a source and their coordinates, without decoding or loading values.

    With `avoid_copy`, a remote file is read in byte ranges if possible, instead of being downloaded first.
    With `whole`, all variables are included.
    """
    if isinstance(source, StoredGroup):
        with ignore_warnings():
            stored = open_stored(source.session, source.group)
            yield stored.isel({dim: slice(*span) for dim, span in source.region})
        return
    options: dict[str, Any] = {**_RAW_OPTIONS, **reading.open_options}
    reading = reading.for_source(source)
    if reading.group:
        options["group"] = reading.group
    with ignore_warnings():
        with collect_skipped_variables():  # delete the copy only after the file is closed
            dataset = _open(source, reading, options, avoid_copy=avoid_copy)
        with dataset as raw:
            raw = _restore_booleans(raw)
            raw = _add_inherited_coordinates(raw, source, reading, options, avoid_copy=avoid_copy)
            yield raw if whole else select_variables(raw, reading.variables)


def _restore_booleans(raw: xr.Dataset) -> xr.Dataset:
    """Convert integers that represent HDF5 booleans back to booleans, without loading them."""
    found = [name for name, each in raw.variables.items() if _is_boolean(each.encoding.get("dtype"))]
    if not found:
        return raw
    marked = xr.Dataset({name: raw.variables[name].copy(deep=False) for name in found})
    for each in marked.variables.values():
        each.attrs["dtype"] = "bool"  # xarray itself stores booleans in NetCDF in the same way
    decoded = xr.decode_cf(
        marked, concat_characters=False, mask_and_scale=False, decode_times=False, decode_coords=False
    )
    return raw.assign({name: decoded.variables[name] for name in found})


def _is_boolean(dtype: Any) -> bool:
    enumeration = (getattr(dtype, "metadata", None) or {}).get("enum")
    return enumeration == {"FALSE": 0, "TRUE": 1}


def _add_inherited_coordinates(
    raw: xr.Dataset,
    source: IngestSource,
    reading: ReadOptions,
    options: Mapping[str, Any],
    *,
    avoid_copy: bool,
) -> xr.Dataset:
    """Add the coordinates that a group inherits from its parents."""
    path = (reading.group or "").strip("/")
    if Kind.parse(path) is not None:
        return raw
    while path and (lacking := [dim for dim in raw.sizes if dim not in raw.variables]):
        path = path.rpartition("/")[0]
        above = {name: value for name, value in options.items() if name != "group"}
        if path:
            above["group"] = path
        try:
            opened = _open(source, replace(reading, group=path or None), above, avoid_copy=avoid_copy)
        except (OSError, KeyError, ValueError, CannotVirtualizeError):
            break  # the group does not exist
        with opened as parent:
            for dim in lacking:
                found = parent.variables.get(dim)
                if found is not None and found.dims == (dim,) and found.size == raw.sizes[dim]:
                    raw = raw.assign({dim: found.compute()})
    return raw


def _open(
    source: IngestSource, reading: ReadOptions, options: Mapping[str, Any], *, avoid_copy: bool
) -> xr.Dataset:
    """Open a file with an xarray engine, or as references if no engine reads it."""
    engine: Any = reading.engine
    if engine is not None:
        refuse_missing(engine)
    if source.is_repository:
        if engine is not None:
            reason = f"the engine {engine} cannot read an Icechunk repository"
            raise MissingEngineError(reason, Hint("omit {engine}", engine=None))
        return _open_references(source, reading, options)
    if source.is_store and (source.is_remote or (engine is None and is_parquet(source.url))):
        return _open_references(source, reading, options)
    in_parts = source.is_remote and avoid_copy and engine in (None, "h5netcdf")
    if in_parts and (file := open_remote_hdf5(source, reading)) is not None:
        return xr.open_dataset(file, engine="h5netcdf", **{**_UNNAMED_OPTIONS, **options})
    path: Any = get_local_path(source, reading.storage_options)
    if source.is_store and engine is None:
        engine = "zarr"
    if engine in (None, "zarr") and is_zip(path):
        path, engine = open_zip(path), "zarr"
    if "group" in options and is_grib(source, reading):  # cfgrib does not support groups
        return _open_references(source, reading, options)
    if engine is None and path.lower().endswith(_GRIB) and importlib.util.find_spec("cfgrib") is not None:
        engine = "cfgrib"
    if engine == "cfgrib":
        options = {"indexpath": make_index_path(path), **options}
    if engine is None and path.lower().endswith(".json"):
        return _open_references(
            source, reading, options
        )  # kerchunk's engine, if installed, ignores the credentials
    if engine is None:
        reader = choose_reader(path, options.get("group"))
        if reader == "references":
            return _open_references(source, reading, options)
        if reader == "h5netcdf":
            engine, options = reader, {**_UNNAMED_OPTIONS, **options}
    try:
        with _shrink_chunk_caches():
            return xr.open_dataset(path, engine=engine, **options)
    except (ValueError, AttributeError) as error:
        # Neither netCDF4 nor h5netcdf reads all files in which only some dimensions have names.
        is_unread = engine == "h5netcdf" or isinstance(error, AttributeError) or is_no_engine_error(error)
        if reading.engine is not None or not is_unread:
            raise
        options = {name: value for name, value in options.items() if name not in _UNNAMED_OPTIONS}
        return _open_references(source, reading, options)


def is_grib(source: IngestSource, reading: ReadOptions) -> bool:
    """Return True if a source is a GRIB file and the user chose neither an engine nor engine options."""
    if source.is_store or reading.engine not in (None, "cfgrib") or reading.open_options:
        return False
    if source.is_remote and source.size_bytes > 0:
        server = open_server(source.address, reading.storage_options)
        head = server.read_range(source.address, 0, min(_HEAD_BYTES, source.size_bytes))
    else:
        with open(get_local_path(source, reading.storage_options), "rb") as file:
            head = file.read(_HEAD_BYTES)
    return b"GRIB" in head and head[:4] not in _NOT_GRIB


@contextmanager
def _shrink_chunk_caches() -> Iterator[None]:
    """Shrink netCDF4's chunk cache (by default 64 MiB per variable), because each chunk is read only once."""
    try:
        library: Any = importlib.import_module("netCDF4")
    except ImportError:
        yield
        return
    before = library.get_chunk_cache()
    library.set_chunk_cache(_CHUNK_CACHE_BYTES, *before[1:])
    try:
        yield
    finally:
        library.set_chunk_cache(*before)


def _open_references(source: IngestSource, reading: ReadOptions, options: Mapping[str, Any]) -> xr.Dataset:
    """Open a source as a dataset of references to its chunks."""
    from icefloe.virtual.values import open_dataset, open_store

    dataset = virtualize_source(source, reading)
    refused = [each.sentence for each in dataset.refused if each.variable in reading.variables]
    if refused or (dataset.refused and not reading.variables):
        reasons = "; ".join(refused or [each.sentence for each in dataset.refused])
        raise ValueError(f"{reasons}; select other variables, or another engine")
    rest = {name: value for name, value in options.items() if name != "group"}
    access = reading.make_access_finder(source)
    group = reading.for_source(source).group or ""
    grib = _grib_files.get(replace(source, group="")) if Kind.parse(group) is not None else None
    store = grib.stores.get(group) if grib is not None else None
    if grib is not None and store is None:
        store = grib.stores[group] = open_store(dataset, access)
    found: xr.Dataset = open_dataset(dataset, access, store=store, **rest)
    return found


@dataclass(frozen=True, slots=True)
class _GribFile:
    """A parsed GRIB file. It is cached because each of its parts is opened several times: to inspect, write
    and check it.
    """

    dataset: VirtualDataset
    stores: dict[str, IcechunkStore] = field(default_factory=dict)
    """The stores to read values from, by the group of each part."""


_grib_files: OrderedDict[IngestSource, _GribFile] = OrderedDict()
_KEPT_FILES = 4


def parse_grib_parts(source: IngestSource, reading: ReadOptions) -> VirtualDataset:
    """Parse a GRIB file into references, with one group per part.

    The results for the last few files are cached.
    """
    whole = replace(source, group="")
    found = _grib_files.get(whole)
    if found is None:
        everything = replace(reading, group=None)  # `reading` may select one part
        with open_virtualized(whole, everything, grib_parts=True) as (dataset, _):
            found = _grib_files[whole] = _GribFile(dataset)
    _grib_files.move_to_end(whole)
    while len(_grib_files) > _KEPT_FILES:
        _grib_files.popitem(last=False)
    return found.dataset


def virtualize_source(source: IngestSource, reading: ReadOptions) -> VirtualDataset:
    """Parse a source into references to its chunks."""
    group = reading.for_source(source).group or ""
    if Kind.parse(group) is not None:
        return parse_grib_parts(source, reading).groups[group]
    with open_virtualized(source, reading) as (dataset, _):
        return dataset


def open_virtualized(
    source: IngestSource, reading: ReadOptions, *, grib_parts: bool = False
) -> AbstractContextManager[tuple[VirtualDataset, Members | None]]:
    """Parse a source into references, as a context manager. An HDF5 file stays open until the
    context ends.
    """
    from icefloe.virtual.open import parse_and_keep_open
    from icefloe.virtual.parsers import ParseOptions

    group = (reading.for_source(source).group or "").strip("/")
    wanted = ParseOptions(group or None, grib_parts=grib_parts)
    reach = reading.make_access_finder(source)
    if source.is_repository:
        # The branch may have moved since the source was found.
        address = source.repository_address
        location = make_reference_url(address) if source.is_remote else address
        pinned = replace(wanted, version=f"snapshot:{source.etag}")
        return parse_and_keep_open(location, pinned, "icechunk", reach)
    if not source.is_remote:
        return parse_and_keep_open(source.url, wanted, access=reach)
    location = make_reference_url(source.address)
    return parse_and_keep_open(location, wanted, "zarr" if source.is_store else None, reach)


def open_remote_hdf5(source: IngestSource, reading: ReadOptions) -> Any:
    """Open a remote HDF5 file for reading in byte ranges.

    Return None for other formats, or if the server does not support range requests.
    """
    from icefloe.virtual.parsers import recognize
    from icefloe.virtual.sources import open_file, to_location

    access = reading.find_access(source)
    if access is None or importlib.util.find_spec("h5netcdf") is None:
        return None
    try:
        file = open_file(to_location(make_reference_url(source.address)), access.store, access.credential)
        return file.as_binary() if recognize(file) == "hdf5" else None
    except (IcechunkError, CannotVirtualizeError):
        return None  # the error is reported when the copy is opened


def open_stored(session: Session, group: str) -> xr.Dataset:
    """Open a group of a repository as a dataset, without decoding or loading values."""
    options: Any = {"group": group or None, "consolidated": False, **_RAW_OPTIONS}
    found: xr.Dataset = xr.open_zarr(session.store, **options)
    return found


def decode(raw: xr.Dataset) -> xr.Dataset:
    """Decode a dataset lazily, like `xarray.open_dataset`."""
    with ignore_warnings():
        return xr.decode_cf(raw)


def select_variables(raw: xr.Dataset, names: tuple[str, ...]) -> xr.Dataset:
    """Select variables by name, with their coordinates and the bounds of these coordinates.

    Without names, all variables are selected.
    """
    if not names:
        return raw
    present = [name for name in names if name in raw.variables]
    decoded = decode(raw)
    coords = {str(name) for name in decoded[present].coords} if present else set()
    bounds = {raw[name].attrs["bounds"] for name in coords if "bounds" in raw[name].attrs}
    return raw[[name for name in raw.variables if name in {*present, *coords, *bounds}]]
