"""Groups of files: a file whose data is in several groups is ingested as one source for each of them."""

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
from icefloe.ingest.discover.sources import Source, local_path
from icefloe.ingest.inspect.engines import is_zip, zipped_store
from icefloe.ingest.inspect.open import hdf5_elsewhere, virtualized
from icefloe.ingest.ledger import HIDDEN
from icefloe.ingest.records import Reading
from icefloe.virtual import VirtualDataset
from icefloe.virtual.parsers.hdf5.file import group_attributes
from icefloe.virtual.parsers.kerchunk import is_parquet
from icefloe.virtual.parsers.tiff import OVERVIEW

ENGINES = (None, "netcdf4", "h5netcdf", "zarr")
"""Engines that take the path of a group."""
_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a file below its root."""

    with_arrays: tuple[str, ...] = ()
    """Their paths."""
    without_arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The attributes of the others, by path."""


_Found = Iterator[tuple[str, Mapping[str, Any] | None]]
"""Paths of groups, and the attributes of those that have no arrays."""


def find_groups(source: Source, reading: Reading) -> Groups:
    """Find the groups below the root of a source. Data is not read.

    There are none if the reading selects a group, or names an engine that knows no groups.
    """
    if reading.group or reading.engine not in ENGINES:
        return Groups()
    if _is_of_references(source):
        with ignore_warnings():
            return groups_of(virtualized(source, reading))
    if source.is_remote and (file := hdf5_elsewhere(source, reading)) is not None:
        return _without_hidden(_hdf5_groups(file))
    path = local_path(source, reading.storage_options)
    if os.path.isdir(path) or is_zip(path):
        with ignore_warnings():
            opened = zarr.open_group(zipped_store(path) if is_zip(path) else path, mode="r")
            return _without_hidden(_zarr_groups(opened))
    with open(path, "rb") as head:
        is_hdf5 = head.read(len(_HDF5)) == _HDF5
    return _without_hidden(_hdf5_groups(path)) if is_hdf5 else Groups()


def _without_hidden(found: Iterable[tuple[str, Mapping[str, Any] | None]]) -> Groups:
    shown = {path: attrs for path, attrs in found if path and path.partition("/")[0] != HIDDEN}
    with_arrays = tuple(path for path, attrs in shown.items() if attrs is None)
    return Groups(with_arrays, {path: attrs for path, attrs in shown.items() if attrs is not None})


def _is_of_references(source: Source) -> bool:
    """Return whether only a parser of references can list the groups of a source."""
    if source.is_store:
        return source.is_repository or source.is_remote or is_parquet(source.url)
    return source.url.lower().endswith((".json", ".dmrpp"))


def groups_of(dataset: VirtualDataset) -> Groups:
    """Return the groups of a parsed file, without smaller versions of an image."""
    return _without_hidden(
        (path, None if group.variables or group.refused else group.attributes)
        for path, group in dataset.walk()
        if not path.startswith(OVERVIEW)
    )


def _zarr_groups(group: zarr.Group) -> _Found:
    members = dict(group.members(max_depth=None))
    above = {name.rpartition("/")[0] for name, each in members.items() if isinstance(each, zarr.Array)}
    for path, each in sorted(members.items()):
        if isinstance(each, zarr.Group):
            yield path, None if path in above else dict(each.attrs)


def _hdf5_groups(file: Any) -> _Found:
    if importlib.util.find_spec("h5py") is None:
        with closing(importlib.import_module("netCDF4").Dataset(file)) as opened:
            yield from _netcdf_groups(opened, "")
        return
    h5py = importlib.import_module("h5py")
    try:
        opened = h5py.File(file, "r", locking=False)
    except OSError:  # this process has it open with other locking flags
        opened = h5py.File(file, "r")
    with opened:
        yield from _groups_below(opened, "", frozenset(), h5py)


def _netcdf_groups(group: Any, path: str) -> _Found:
    yield path, None if group.variables else {name: group.getncattr(name) for name in group.ncattrs()}
    for name, each in group.groups.items():
        yield from _netcdf_groups(each, f"{path}/{name}".strip("/"))


def _groups_below(group: Any, path: str, above: frozenset[int], h5py: Any) -> _Found:
    above |= {h5py.h5o.get_info(group.id).addr}
    kinds = {name: group.get(name, getclass=True) for name in group}
    yield path, None if h5py.Dataset in kinds.values() else group_attributes(group)
    for name in (name for name, kind in kinds.items() if kind is h5py.Group):
        each = group[name]
        if h5py.h5o.get_info(each.id).addr not in above:  # links can make circles
            yield from _groups_below(each, f"{path}/{name}".strip("/"), above, h5py)
