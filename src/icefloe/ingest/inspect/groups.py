"""List the groups of a file. If several groups contain data, each is ingested as a separate source."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import zarr

from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.discover.sources import IngestSource, get_local_path
from icefloe.ingest.inspect.engines import is_zip, open_zip
from icefloe.ingest.inspect.open import open_remote_hdf5, virtualize_source
from icefloe.ingest.ledger import HIDDEN
from icefloe.ingest.read_options import ReadOptions
from icefloe.virtual import VirtualDataset
from icefloe.virtual.parsers.hdf5.file import group_attributes
from icefloe.virtual.parsers.kerchunk import is_parquet
from icefloe.virtual.parsers.tiff import OVERVIEW

ENGINES = (None, "netcdf4", "h5netcdf", "zarr")
"""The engines that accept a group path."""
_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a file below its root, with and without arrays."""

    with_arrays: tuple[str, ...] = ()
    """The paths of groups that contain arrays."""
    without_arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The attributes of groups that contain no arrays, by path."""


_Found = Iterator[tuple[str, Mapping[str, Any] | None]]
"""Pairs of a group path and the group's attributes. The attributes are None for a group with arrays."""


def find_groups(source: IngestSource, reading: ReadOptions) -> Groups:
    """Find the groups of a file below its root, without reading data.

    Return no groups if the options already select a group, or select an engine without support for groups.
    """
    if reading.group or reading.engine not in ENGINES:
        return Groups()
    if _needs_parser(source):
        with ignore_warnings():
            return list_parsed_groups(virtualize_source(source, reading))
    if source.is_remote and (file := open_remote_hdf5(source, reading)) is not None:
        return _drop_hidden(_list_hdf5_groups(file))
    path = get_local_path(source, reading.storage_options)
    if os.path.isdir(path) or is_zip(path):
        with ignore_warnings():
            opened = zarr.open_group(open_zip(path) if is_zip(path) else path, mode="r")
            return _drop_hidden(_list_zarr_groups(opened))
    with open(path, "rb") as head:
        is_hdf5 = head.read(len(_HDF5)) == _HDF5
    return _drop_hidden(_list_hdf5_groups(path)) if is_hdf5 else Groups()


def _drop_hidden(found: Iterable[tuple[str, Mapping[str, Any] | None]]) -> Groups:
    shown = {path: attrs for path, attrs in found if path and path.partition("/")[0] != HIDDEN}
    with_arrays = tuple(path for path, attrs in shown.items() if attrs is None)
    return Groups(with_arrays, {path: attrs for path, attrs in shown.items() if attrs is not None})


def _needs_parser(source: IngestSource) -> bool:
    """Return True if only a virtual parser can list the groups of a source."""
    if source.is_store:
        return source.is_repository or source.is_remote or is_parquet(source.url)
    return source.url.lower().endswith((".json", ".dmrpp"))


def list_parsed_groups(dataset: VirtualDataset) -> Groups:
    """List the groups of a parsed file, except overviews (reduced-resolution copies of an image)."""
    return _drop_hidden(
        (path, None if group.variables or group.refused else group.attributes)
        for path, group in dataset.walk()
        if not path.startswith(OVERVIEW)
    )


def _list_zarr_groups(group: zarr.Group) -> _Found:
    members = dict(group.members(max_depth=None))
    above = {name.rpartition("/")[0] for name, each in members.items() if isinstance(each, zarr.Array)}
    for path, each in sorted(members.items()):
        if isinstance(each, zarr.Group):
            yield path, None if path in above else dict(each.attrs)


def _list_hdf5_groups(file: Any) -> _Found:
    if importlib.util.find_spec("h5py") is None:
        with closing(importlib.import_module("netCDF4").Dataset(file)) as opened:
            yield from _list_netcdf_groups(opened, "")
        return
    h5py = importlib.import_module("h5py")
    try:
        opened = h5py.File(file, "r", locking=False)
    except OSError:  # this process already has the file open with other locking flags
        opened = h5py.File(file, "r")
    with opened:
        yield from _list_h5py_groups(opened, "", frozenset(), h5py)


def _list_netcdf_groups(group: Any, path: str) -> _Found:
    yield path, None if group.variables else {name: group.getncattr(name) for name in group.ncattrs()}
    for name, each in group.groups.items():
        yield from _list_netcdf_groups(each, f"{path}/{name}".strip("/"))


def _list_h5py_groups(group: Any, path: str, above: frozenset[int], h5py: Any) -> _Found:
    above |= {h5py.h5o.get_info(group.id).addr}
    kinds = {name: group.get(name, getclass=True) for name in group}
    yield path, None if h5py.Dataset in kinds.values() else group_attributes(group)
    for name in (name for name, kind in kinds.items() if kind is h5py.Group):
        each = group[name]
        if h5py.h5o.get_info(each.id).addr not in above:  # links can form cycles
            yield from _list_h5py_groups(each, f"{path}/{name}".strip("/"), above, h5py)
