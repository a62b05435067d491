"""Who reads an HDF5 file where nobody says: netCDF4 knows few filters, and crashes on floats of 16 bits."""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

Reader = Literal["any", "h5netcdf", "references"]
"""Whatever xarray takes first, h5netcdf, or references to chunks, whose codecs know filters of their own."""
_OF_HDF5 = range(7)
"""The numbers of the filters that HDF5 has itself."""
_OF_NETCDF = frozenset({307, 32001, 32015})
"""bzip2, Blosc and Zstandard: netCDF has them too, where it was built so."""
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def reader_of(path: str, group: str | None) -> Reader:
    """Who can read all datasets of a group of a file of this machine; "any" for what is no HDF5 file."""
    try:
        status = os.stat(path)
        return _reader_of(path, group or "/", status.st_mtime_ns, status.st_size)
    except (OSError, ImportError, KeyError, RuntimeError, ValueError):
        return "any"  # who opens it will say what is wrong


@lru_cache(maxsize=256)
def _reader_of(path: str, group: str, modified_ns: int, size: int) -> Reader:
    with open(path, "rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return "any"
    if importlib.util.find_spec("h5netcdf") is None:
        return "any"
    h5py = importlib.import_module("h5py")
    with suppress(ImportError):
        importlib.import_module("hdf5plugin")  # whose filters h5py has then
    needed: Reader = "any"
    with h5py.File(path, "r") as opened:
        for dataset in _datasets(opened[group], h5py):
            filters = _filters(dataset)
            if not all(number in _OF_NETCDF or h5py.h5z.filter_avail(number) for number in filters):
                return "references"
            if filters - _OF_NETCDF or dataset.dtype == "f2" or dataset.dtype.kind == "c":
                needed = "h5netcdf"
    return needed


def _datasets(group: Any, h5py: Any) -> Any:
    for name in group:
        with suppress(KeyError):  # a link to what is not there
            found = group[name]
            if isinstance(found, h5py.Dataset):
                yield found


def _filters(dataset: Any) -> set[int]:
    """The numbers of filters that HDF5 does not have itself."""
    plist = dataset.id.get_create_plist()
    numbers = {plist.get_filter(place)[0] for place in range(plist.get_nfilters())}
    return {number for number in numbers if number not in _OF_HDF5}
