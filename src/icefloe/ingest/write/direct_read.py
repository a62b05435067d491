"""Read HDF5 variables directly into the block of a task, bypassing xarray.

xarray and netCDF4 return each part of a variable in a new buffer, which must then be copied into the block.
h5py decodes a chunk directly into place. This works for numbers whose stored form does not change. In all
other cases, and if h5py fails, the caller reads through xarray.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeGuard

import xarray as xr

from icefloe.ingest.combine.pieces import Pieces
from icefloe.ingest.discover.sources import IngestSource, get_local_path
from icefloe.ingest.inspect.plain_hdf5 import is_plain
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import StoredGroup

_NUMBERS: Final = frozenset("iuf")


@contextmanager
def open_hdf5_group(source: IngestSource | StoredGroup, reading: ReadOptions) -> Iterator[Any]:
    """Open the selected group of an HDF5 file with h5py. Yield None for other sources, or if engine options
    are set.
    """
    with ExitStack() as stack:
        yield _open_group(source, reading, stack) if _is_file(source) and is_plain(reading) else None


def _is_file(source: IngestSource | StoredGroup) -> TypeGuard[IngestSource]:
    return isinstance(source, IngestSource) and not (source.is_store or source.is_repository)


def _open_group(source: IngestSource, reading: ReadOptions, stack: ExitStack) -> Any:
    if importlib.util.find_spec("h5py") is None:
        return None
    h5py = importlib.import_module("h5py")
    path = get_local_path(source, reading.storage_options)
    try:
        file = stack.enter_context(h5py.File(path, "r"))
        return file[reading.for_source(source).group or "/"]
    except (OSError, KeyError):
        return None  # the engine reads the file, or reports the error


def read_into(data: Any, piece: Pieces, group: Any, name: str, variable: xr.Variable) -> bool:
    """Read one piece of a variable into a block. Return False if the variable must be read through xarray.

    `variable` describes the stored values as the xarray engine presents them.
    """
    axes, order = piece.axes[0].tolist(), range(data.ndim)
    if group is None or not data.ndim or axes != list(order) or data.dtype.kind not in _NUMBERS:
        return False
    try:
        dataset = group[name]
        is_equal = dataset.shape == variable.shape and dataset.dtype == variable.dtype == data.dtype
        if not is_equal or dataset.dtype.metadata is not None:
            return False
        dataset.read_direct(data, _make_key(piece.source_starts, piece), _make_key(piece.starts, piece))
    except Exception:  # noqa: BLE001 - whatever h5py cannot read, the engine reads or explains
        return False
    return True


def _make_key(starts: Any, piece: Pieces) -> tuple[slice, ...]:
    spans = zip(starts[0].tolist(), piece.shape[0].tolist(), strict=True)
    return tuple(slice(start, start + size) for start, size in spans)
