"""Private names of other packages that have no public replacement, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from zarr.abc.buffer import BufferPrototype

T = TypeVar("T")


def get_manifest_columns(manifest: Any) -> tuple[Any, Any, Any, Mapping[tuple[int, ...], bytes]]:
    """Return the private columns of a VirtualiZarr `ChunkManifest`: paths, offsets, lengths and inlined
    chunks.

    Its public `iter_refs` and `dict` create a Python object for every chunk and leave out inlined bytes.
    """
    columns = (manifest._paths, manifest._offsets, manifest._lengths)
    paths, offsets, lengths = (np.asarray(each).reshape(-1) for each in columns)
    return paths, offsets, lengths, getattr(manifest, "_inlined", {})


def get_manifest_group(store: Any) -> Any:
    """Return the private root group of a VirtualiZarr `ManifestStore`.

    Its public methods convert it to xarray objects, in which fill values are separated from the attributes.
    """
    return store._group


def run_zarr_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a zarr store on zarr's private event loop, and return its result.

    Stores bind locks to that loop, and zarr exports neither the loop nor the function.
    """
    from zarr.core.sync import sync

    return sync(coroutine)


def get_zarr_buffer_selector() -> Callable[[], BufferPrototype]:
    """Return zarr's private function that selects buffer classes by configuration, in memory or on a GPU.

    zarr exports the buffer classes, but not the function that selects one.
    """
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype


def get_xarray_fill_value_coder() -> Any:
    """Return xarray's private coder for `_FillValue` attributes of Zarr arrays.

    The attribute must be exactly what xarray reads, and xarray exports no function that writes it.
    """
    from xarray.backends.zarr import FillValueCoder

    return FillValueCoder


def get_xarray_indexing() -> Any:
    """Return xarray's private module with the lazy array classes that backend engines use.

    xarray's guide for backend engines imports this module, but no public module exports its names.
    """
    from xarray.core import indexing

    return indexing


def get_xarray_writers() -> Any:
    """Return xarray's private module with the functions behind `Dataset.to_zarr`.

    With `compute=False`, the public method returns a dask graph that writes to the session's store. Forks
    need the encoded arrays themselves, which only these functions collect.
    """
    from xarray.backends import writers

    return writers


def make_xarray_array_writer() -> Any:
    """Create xarray's private array writer, which collects the encoded arrays for `get_xarray_writers`."""
    from xarray.backends import common

    untyped: Any = common
    return untyped.ArrayWriter()


def get_xarray_array_names() -> tuple[str, str]:
    """Return the private names under which xarray stores an unnamed DataArray and records the name of a named
    DataArray.

    `xarray.open_dataarray` recognizes them, but no public module exports them.
    """
    from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

    return DATAARRAY_VARIABLE, DATAARRAY_NAME
