"""Write dask arrays: each task writes to its own copy of a fork, and a tree of tasks merges the copies."""

from __future__ import annotations

from typing import Any

from icefloe._internal.extras import format_install_command

try:
    import dask
    import dask.array
except ImportError as cause:
    raise ImportError(f"icefloe.dask needs dask: {format_install_command('dask')}") from cause

import numpy as np
import zarr

from icefloe.distributed import extract_session, merge_sessions
from icefloe.session import ForkSession

_dask: Any = dask
_dask_array: Any = dask.array
"""Most dask functions are untyped."""

__all__ = ["session_merge_reduction", "store_dask"]


def store_dask(
    *,
    sources: list[dask.array.Array],
    targets: list[zarr.Array[Any]],
    regions: list[tuple[slice, ...]] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays to Zarr arrays in a fork of a session.

    Parameters
    ----------
    sources
        The arrays to write. Their chunk boundaries must also be Zarr chunk boundaries, because two tasks that
        write to the same Zarr chunk overwrite each other's data.
    targets
        The Zarr arrays, opened in the store of a fork.
    regions
        The slices of each target to write to; whole arrays by default.
    split_every
        The number of forks that one task merges.
    **store_kwargs
        Keyword arguments passed to `dask.array.store`.

    Returns
    -------
    ForkSession
        A fork with all changes, to be merged into the session. With threads, it is the targets' own fork.

    Raises
    ------
    TypeError
        If a target does not belong to a fork.
    """
    for target in targets:
        if not isinstance(extract_session(target), ForkSession):
            raise TypeError(
                f"the target {target.path} does not belong to a fork: open it in the store of Session.fork(),"
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
    """Compute dask arrays whose blocks are Zarr arrays in forks, and merge these forks.

    Parameters
    ----------
    arrays
        One or more dask arrays, as returned by `dask.array.store(..., return_stored=True)`.
    split_every
        The number of forks that one task merges.
    **store_kwargs
        Keyword arguments passed to `dask.compute`.

    Returns
    -------
    ForkSession
        A fork with all changes.
    """
    wanted = arrays if isinstance(arrays, list) else [arrays]
    for array in wanted:
        if not isinstance(array, dask.array.Array):
            raise TypeError(f"Expected a dask array, or a list of them. Received {type(array)!r} instead.")
    merged = _dask.compute(*(_merge_blocks(array, split_every) for array in wanted), **store_kwargs)
    return merge_sessions(*merged)


def _merge_blocks(array: dask.array.Array, split_every: int | None) -> Any:
    """Return a dask array whose single element is a fork with the changes of all blocks."""
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
