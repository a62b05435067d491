"""Writing dask arrays: each task writes into its own copy of a fork, and the copies are merged in a tree."""

from __future__ import annotations

from typing import Any

from icefloe._internal.extras import pip_install

try:
    import dask
    import dask.array
except ImportError as cause:
    raise ImportError(f"icefloe.dask needs dask: {pip_install('dask')}") from cause

import numpy as np
import zarr

from icefloe.distributed import extract_session, merge_sessions
from icefloe.session import ForkSession

_dask: Any = dask
_dask_array: Any = dask.array
"""Most of dask's functions have no types."""

__all__ = ["session_merge_reduction", "store_dask"]


def store_dask(
    *,
    sources: list[dask.array.Array],
    targets: list[zarr.Array[Any]],
    regions: list[tuple[slice, ...]] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays into Zarr arrays of a fork; a fork with all that was written, to be merged.

    With a scheduler of threads that is the targets' own fork, with processes or a cluster another one.
    `regions` says where in its target each source goes. `split_every` is the number of forks that are merged
    in one task; `store_kwargs` are options of `dask.array.store`. The borders of dask's chunks must be
    borders of Zarr's: two tasks that write the same chunk overwrite each other.
    """
    for target in targets:
        if not isinstance(extract_session(target), ForkSession):
            raise TypeError(
                f"the target {target.path} is not in a fork: open it in the store of Session.fork() instead,"
                " and merge the result into the session"
            )
    stored = _dask_array.store(
        sources=sources,
        targets=targets,
        regions=regions,
        compute=False,
        return_stored=True,
        load_stored=False,
        **{"lock": False, **store_kwargs},
    )
    return session_merge_reduction(
        list(stored) if isinstance(stored, tuple) else stored, split_every=split_every
    )


def session_merge_reduction(
    arrays: dask.array.Array | list[dask.array.Array], *, split_every: int | None, **store_kwargs: Any
) -> ForkSession:
    """Compute dask arrays whose blocks are Zarr arrays of forks, and merge these forks into one.

    `store_kwargs` are options of `dask.compute`.
    """
    wanted = arrays if isinstance(arrays, list) else [arrays]
    for array in wanted:
        if not isinstance(array, dask.array.Array):
            raise TypeError(f"Expected a dask array, or a list of them. Received {type(array)!r} instead.")
    merged = _dask.compute(*(_merged(array, split_every) for array in wanted), **store_kwargs)
    return merge_sessions(*merged)


def _merged(array: dask.array.Array, split_every: int | None) -> Any:
    """A dask array of one element, the fork with the changes of all blocks."""
    return _dask_array.reduction(
        array,
        chunk=extract_session,
        aggregate=_merge_block,
        combine=_merge_block,
        split_every=split_every,
        concatenate=False,
        dtype=np.dtype(object),
        meta=np.empty((), object),
    )


def _merge_block(forks: Any, axis: Any = None, keepdims: Any = None) -> ForkSession:
    return merge_sessions(forks)
