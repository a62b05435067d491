"""Choose an xarray engine for a file, and explain how to install a missing one."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import logging
import os
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

import xarray as xr
from zarr.storage import StorePath, ZipStore

from icefloe._internal.extras import format_install_command
from icefloe._internal.private_imports import run_zarr_coroutine
from icefloe.errors import Hint
from icefloe.virtual.parsers import ZIP_MAGIC
from icefloe.virtual.parsers.zarr.stores import find_root

_LOGS = ("cfgrib.dataset", "cfgrib.messages")
_SKIPPED = re.compile(r"skipping variable: .*shortName='([^']*)'")
_heard = threading.local()

Reader = Literal["any", "h5netcdf", "references"]
"""How a file is opened. "any" leaves the choice to xarray, and "references" is for filters that only
icefloe's codecs can decode.
"""
_BUILT_INTO_HDF5 = range(7)
"""The ids of filters that are built into HDF5."""
_BUILT_INTO_NETCDF = frozenset({307, 32001, 32015})
"""The ids of bzip2, Blosc and Zstandard. netCDF-C supports these filters only if it was built with them."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cfgrib": ("cfgrib", "eccodes"),
        "h5netcdf": ("h5netcdf", "h5py"),
        "netcdf4": ("netCDF4",),
        "pydap": ("pydap",),
        "rasterio": ("rioxarray",),
        "scipy": ("scipy",),
    }
)
_NO_ENGINE_MESSAGES: Final = (
    "did not find a match in any of xarray's currently installed IO backends",
    # engines whose packages are not installed
    "found the following matches with the input file in xarray's IO backends",
    "it has no currently installed IO backends",
)
"""Substrings of xarray's error messages if no installed engine can read a file."""


class MissingEngineError(Exception):
    """Error raised when an xarray engine is unknown or not installed."""

    def __init__(self, reason: str, remedy: str | Hint) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


def refuse_missing(engine: str) -> None:
    """Raise MissingEngineError if an xarray engine is not installed."""
    installed = sorted(xr.backends.list_engines())
    if engine in installed:
        return
    if engine in _PACKAGES:
        reason = f"the engine {engine} is not installed"
        raise MissingEngineError(reason, format_install_command(*_PACKAGES[engine]))
    near = difflib.get_close_matches(engine.lower(), [*installed, *_PACKAGES], n=1)
    hint = f"did you mean {near[0]}?" if near else f"installed engines are {', '.join(installed)}"
    raise MissingEngineError(f"xarray has no engine {engine!r}", hint)


def is_no_engine_error(error: Exception) -> bool:
    """Return True if xarray could not open a file because no installed engine supports its format."""
    return any(text in str(error) for text in _NO_ENGINE_MESSAGES)


def choose_reader(path: str, group: str | None) -> Reader:
    """Choose an engine that can open all groups of a local HDF5 file. Return "any" for other formats."""
    try:
        status = os.stat(path)
        return _choose_reader(path, group or "/", status.st_mtime_ns, status.st_size)
    except (OSError, ImportError, KeyError, RuntimeError, ValueError):
        return "any"  # the error is reported when the file is opened


@lru_cache(maxsize=256)
def _choose_reader(path: str, group: str, modified_ns: int, size: int) -> Reader:
    with open(path, "rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return "any"
    if importlib.util.find_spec("h5netcdf") is None:
        return "any"
    h5py = importlib.import_module("h5py")
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")  # importing hdf5plugin registers its filters with h5py
    needed: Reader = "any"
    with h5py.File(path, "r") as opened:
        for dataset in _iterate_datasets(opened[group], h5py):
            if _mixes_dimensions(dataset):
                return "references"
            filters = _list_filters(dataset)
            if not all(number in _BUILT_INTO_NETCDF or h5py.h5z.filter_avail(number) for number in filters):
                return "references"
            if filters - _BUILT_INTO_NETCDF or dataset.dtype == "f2" or dataset.dtype.kind == "c":
                needed = "h5netcdf"
    return needed


def _iterate_datasets(group: Any, h5py: Any) -> Any:
    for name in group:
        with suppress(KeyError):  # a dangling link
            found = group[name]
            if isinstance(found, h5py.Dataset):
                yield found


def _mixes_dimensions(dataset: Any) -> bool:
    """Return True if only some dimensions of an HDF5 dataset are named. netCDF4 misreads such files, and
    h5netcdf fails.
    """
    scales = dataset.attrs.get("DIMENSION_LIST", ())
    return any(len(each) for each in scales) and not all(len(each) for each in scales)


def _list_filters(dataset: Any) -> set[int]:
    """Return the ids of a dataset's filters that are not built into HDF5."""
    plist = dataset.id.get_create_plist()
    numbers = {plist.get_filter(place)[0] for place in range(plist.get_nfilters())}
    return {number for number in numbers if number not in _BUILT_INTO_HDF5}


class _RecordCollector(logging.Filter):
    """A logging filter that collects the log records of one thread instead of printing them."""

    def filter(self, record: logging.LogRecord) -> bool:
        # docstring inherited
        heard: list[str] | None = getattr(_heard, "names", None)
        if heard is None:
            return True
        heard += _SKIPPED.findall(record.getMessage())
        return False


_ear = _RecordCollector()


@contextmanager
def collect_skipped_variables() -> Iterator[list[str]]:
    """Collect the names of variables that the cfgrib engine skips in this thread."""
    for name in _LOGS:
        logging.getLogger(name).addFilter(_ear)  # adding a filter again has no effect
    before: list[str] | None = getattr(_heard, "names", None)
    _heard.names = names = list[str]() if before is None else before
    try:
        yield names
    finally:
        _heard.names = before


def is_zip(path: str) -> bool:
    """Return True if a local file is a zip file, which can be opened without an xarray engine."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) in ZIP_MAGIC


def open_zip(path: str) -> StorePath:
    """Open a Zarr store in a zip file without an xarray engine.

    The store may be at the root of the zip file or in a directory.
    """
    with zipfile.ZipFile(path) as opened:
        root = find_root(opened.namelist(), path)
    # zarr 3.1 does not open a ZipStore on first use.
    store = run_zarr_coroutine(ZipStore.open(path, mode="r"))
    return StorePath(store, root.strip("/"))
