"""Writing xarray objects to a session.

Reading needs nothing of ours: `xarray.open_zarr(session.store, consolidated=False)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias

from icefloe.extras import pip_install

try:
    from xarray import DataArray, Dataset
    from xarray.backends import common, writers
    from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE
except ImportError as cause:
    raise ImportError(f"icefloe.xarray needs xarray: {pip_install('xarray')}") from cause

import zarr

from icefloe.session import Session
from icefloe.store import IcechunkStore

__all__ = ["to_icechunk"]

_common: Any = common
_writers: Any = writers
"""What `Dataset.to_zarr` is made of; few of these have types."""

Region: TypeAlias = Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None
ZarrWriteModes: TypeAlias = Literal["w", "w-", "a", "a-", "r+", "r"]


def to_icechunk(
    obj: DataArray | Dataset,
    session: Session,
    *,
    group: str | None = None,
    mode: ZarrWriteModes | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write a dataset or an array to a group of a writable session. Nothing is committed.

    `group` is the path of the group, the root by default. `mode` is "w" (replace all), "w-" (only where there
    is nothing yet), "a" (replace variables that exist), "a-" (only append those along `append_dim`) or "r+"
    (only change values); the default is "a" with `append_dim`, "r+" with `region`, else "w-".

    `append_dim` names the dimension to append along. `region` maps dimensions to slices of the arrays there
    are, or to "auto" to find them by their indexes; every variable must have one of its dimensions.
    `encoding` has a dict for each variable, as for `Dataset.to_zarr`. `safe_chunks` refuses writes to parts
    of chunks that could collide; `align_chunks` rechunks the data to avoid that.

    Dask arrays are computed and written by a fork of the session that goes along with dask's tasks, whatever
    the scheduler. `split_every` is the number of forks that are merged in one task, and
    `chunkmanager_store_kwargs` are options of `dask.array.store`.
    """
    store: object = getattr(session, "store", None)
    if not isinstance(store, IcechunkStore):
        raise ValueError(f"Please pass in an icefloe.Session. Received {type(session)!r} instead.")
    options: dict[str, Any] = {
        "group": group,
        "mode": mode,
        "append_dim": append_dim,
        "region": region,
        "safe_chunks": safe_chunks,
        "align_chunks": align_chunks,
        "zarr_format": 3,
        "consolidated": False,
    }
    data: Any = obj
    if data.__dask_graph__() is None:
        data.to_zarr(store, encoding=encoding, **options)
        return
    writer = _common.ArrayWriter()
    _write_metadata(_as_dataset(obj), store, writer, dict(encoding or {}), options)
    if writer.sources:
        _write_chunks(session, writer, split_every, dict(chunkmanager_store_kwargs or {}))


def _as_dataset(obj: DataArray | Dataset) -> Dataset:
    """What `DataArray.to_zarr` makes of an array, so that it reads back as one."""
    if isinstance(obj, Dataset):
        return obj
    if obj.name is not None and obj.name not in obj.coords and obj.name not in obj.dims:
        return obj.to_dataset()
    dataset = obj.to_dataset(name=DATAARRAY_VARIABLE)
    if obj.name is not None:
        dataset.attrs[DATAARRAY_NAME] = obj.name
    return dataset


def _write_metadata(
    dataset: Dataset,
    store: IcechunkStore,
    writer: Any,
    encoding: dict[Any, Any],
    options: Mapping[str, Any],
) -> None:
    """The first half of what `Dataset.to_zarr` does: all that is in memory is written, the rest collected."""
    _writers._validate_dataset_names(dataset)
    dataset = dataset.copy()
    for variable in dataset.variables.values():
        if variable.size == 0:
            variable.load()  # dask has no block to write
    target = _writers.get_writable_zarr_store(store, **options)
    dataset = target._validate_and_autodetect_region(dataset)
    target._validate_encoding(encoding)
    _writers.dump_to_store(dataset, target, writer, encoding=encoding)


def _write_chunks(
    session: Session, writer: Any, split_every: int | None, store_options: dict[str, Any]
) -> None:
    """The second half: dask's blocks, through a fork that saw the metadata."""
    from icefloe.dask import store_dask  # dask is there, for there are arrays of it

    fork = session.fork()
    targets = [zarr.open_array(fork.store, path=target.path, mode="r+") for target in writer.targets]
    written = store_dask(
        sources=writer.sources,
        targets=targets,
        regions=writer.regions,
        split_every=split_every,
        **store_options,
    )
    session.merge(written)
