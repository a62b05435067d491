"""Groups of files: a file whose data is in several groups is ingested as one source for each of them."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import zarr

from icefloe._internal.warnings import quiet
from icefloe.ingest.discover.sources import Source, local_path
from icefloe.ingest.inspect.engines import is_zip, zipped_store
from icefloe.ingest.inspect.open import hdf5_elsewhere, virtualized
from icefloe.ingest.ledger import HIDDEN
from icefloe.ingest.records import Reading
from icefloe.virtual import VirtualDataset
from icefloe.virtual.parsers.kerchunk import is_parquet
from icefloe.virtual.parsers.tiff import OVERVIEW

ENGINES = (None, "netcdf4", "h5netcdf", "zarr")
"""Engines that take the path of a group."""
_HDF5 = b"\x89HDF\r\n\x1a\n"


def list_groups(source: Source, reading: Reading) -> list[str]:
    """List the paths of groups below the root of a source that have arrays. Data is not read.

    There are none if the reading selects a group, or names an engine that knows no groups.
    """
    if reading.group or reading.engine not in ENGINES:
        return []
    return [path for path in _list_groups(source, reading) if path.partition("/")[0] != HIDDEN]


def _list_groups(source: Source, reading: Reading) -> list[str]:
    if _is_of_references(source):
        with quiet():
            return groups_of(virtualized(source, reading))
    if source.is_remote and (file := hdf5_elsewhere(source, reading)) is not None:
        return _hdf5_groups(file)
    path = local_path(source, reading.storage_options)
    if os.path.isdir(path) or is_zip(path):
        with quiet():
            return _zarr_groups(zarr.open_group(zipped_store(path) if is_zip(path) else path, mode="r"))
    with open(path, "rb") as opened:
        is_hdf5 = opened.read(len(_HDF5)) == _HDF5
    return _hdf5_groups(path) if is_hdf5 else []


def _is_of_references(source: Source) -> bool:
    """Return whether only a parser of references can list the groups of a source."""
    if source.is_store:
        return source.is_repository or source.is_remote or is_parquet(source.url)
    return source.url.lower().endswith((".json", ".dmrpp"))


def groups_of(dataset: VirtualDataset) -> list[str]:
    """List the paths of groups of a parsed file that have variables, without smaller versions of an image."""
    return [
        path
        for path, group in dataset.walk()
        if path and not path.startswith((OVERVIEW, HIDDEN)) and (group.variables or group.refused)
    ]


def _zarr_groups(group: zarr.Group) -> list[str]:
    arrays = [name for name, each in group.members(max_depth=None) if isinstance(each, zarr.Array)]
    return sorted({name.rpartition("/")[0] for name in arrays} - {""})


def _hdf5_groups(file: Any) -> list[str]:
    if importlib.util.find_spec("h5py") is None:
        with closing(importlib.import_module("netCDF4").Dataset(file)) as opened:
            return list(_netcdf_groups(opened, ""))
    h5py = importlib.import_module("h5py")
    try:
        opened = h5py.File(file, "r", locking=False)
    except OSError:  # this process has it open with other locking flags
        opened = h5py.File(file, "r")
    with opened:
        return list(_groups_below(opened, "", frozenset(), h5py))


def _netcdf_groups(group: Any, path: str) -> Iterator[str]:
    if path and group.variables:
        yield path
    for name, each in group.groups.items():
        yield from _netcdf_groups(each, f"{path}/{name}".strip("/"))


def _groups_below(group: Any, path: str, above: frozenset[int], h5py: Any) -> Iterator[str]:
    above |= {h5py.h5o.get_info(group.id).addr}
    kinds = {name: group.get(name, getclass=True) for name in group}
    if path and h5py.Dataset in kinds.values():
        yield path
    for name in (name for name, kind in kinds.items() if kind is h5py.Group):
        each = group[name]
        if h5py.h5o.get_info(each.id).addr not in above:  # links can make circles
            yield from _groups_below(each, f"{path}/{name}".strip("/"), above, h5py)
