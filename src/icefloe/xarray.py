"""Writing xarray objects to a session.

Reading needs nothing of ours: `xarray.open_zarr(session.store, consolidated=False)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias

try:
    from xarray import DataArray, Dataset
except ImportError as cause:
    raise ImportError("icefloe.xarray needs xarray: pip install 'icefloe[xarray]'") from cause

from icefloe.errors import ErrorKind, SessionStateError
from icefloe.session import Session
from icefloe.store import IcechunkStore

__all__ = ["to_icechunk"]

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

    `chunkmanager_store_kwargs` and `split_every` are for dask arrays. Those are written by forks of the
    session, which are not here yet: SessionStateError.
    """
    store: object = getattr(session, "store", None)
    if not isinstance(store, IcechunkStore):
        raise ValueError(f"Please pass in an icefloe.Session. Received {type(session)!r} instead.")
    data: Any = obj
    if data.__dask_graph__() is not None:
        raise SessionStateError(
            "to_icechunk cannot write dask arrays yet; load them first (obj.load()), or write them from"
            " threads of this process with obj.to_zarr(session.store, consolidated=False)",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    options: dict[str, Any] = {
        "group": group,
        "mode": mode,
        "encoding": encoding,
        "append_dim": append_dim,
        "region": region,
        "safe_chunks": safe_chunks,
        "zarr_format": 3,
        "consolidated": False,
    }
    if align_chunks:  # older releases of xarray do not know it
        options["align_chunks"] = True
    data.to_zarr(store, **options)
