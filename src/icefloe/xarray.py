"""Write xarray objects to a session.

To read, use xarray itself: `xarray.open_zarr(session.store, consolidated=False)`, or for all groups
`xarray.open_datatree(session.store, engine="zarr", consolidated=False)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias

from icefloe._internal.extras import format_install_command
from icefloe._internal.private_imports import (
    get_xarray_array_names,
    get_xarray_writers,
    make_xarray_array_writer,
)

try:
    from xarray import DataArray, Dataset, DataTree, open_zarr
except ImportError as cause:
    raise ImportError(f"icefloe.xarray needs xarray: {format_install_command('xarray')}") from cause

import zarr

from icefloe.append_labels import check_coding, check_order
from icefloe.conflicts import ConflictSolver
from icefloe.core.merge.append_inputs import get_append_rules
from icefloe.core.merge.rebase import arrange_appends
from icefloe.errors import NodeNotFoundError
from icefloe.session import Session
from icefloe.store import IcechunkStore

__all__ = ["to_icechunk"]

Region: TypeAlias = Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None
ZarrWriteModes: TypeAlias = Literal["w", "w-", "a", "a-", "r+", "r"]


def to_icechunk(
    obj: DataArray | Dataset | DataTree,
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
    collect_statistics: bool = False,
    solver: ConflictSolver | None = None,
) -> None:
    """Write a dataset, data array or tree of datasets to a writable session, without committing.

    Dask arrays are computed in parallel with any scheduler. Each task writes to its own copy of a fork of the
    session, and the copies are merged.

    Parameters
    ----------
    obj
        The object to write. The nodes of a `DataTree` become groups below `group`. Inherited coordinates are
        stored once, in the group that defines them.
    session
        A writable session.
    group
        The path of the group; the root by default.
    mode
        "w" replaces everything, "w-" fails if the group is not empty, "a" replaces existing variables, "a-"
        only appends along `append_dim`, and "r+" only modifies values. The default is "a" with `append_dim`,
        "r+" with `region`, and otherwise "w-".
    safe_chunks
        Raise an error if concurrent tasks would write to the same chunk.
    align_chunks
        Rechunk dask arrays so that tasks write whole chunks.
    append_dim
        The dimension to append along. Tree nodes without this dimension are written according to `mode`, or
        skipped with "a-".
    region
        Slices of existing arrays by dimension, or "auto" to find them by index. Every variable must have at
        least one of these dimensions. Trees require slices.
    encoding
        The encoding of each variable, as in `Dataset.to_zarr`. For a tree, one such mapping per path, such as
        `/` and `/coarse`.
    chunkmanager_store_kwargs
        Keyword arguments passed to `dask.array.store`.
    split_every
        The number of forks that one task merges.
    collect_statistics
        If True, read the changed chunks after the session is committed, and record their statistics.
    solver
        An `AppendSolver` for `append_dim`. Labels that are already stored keep their row, and committing the
        session keeps the rows that other writers appended in the meantime.

    Raises
    ------
    ValueError
        If `session` is not a session, or the arguments do not match the object.
    InvalidInputError
        If the labels along `append_dim` are not strictly ascending, or the stored coordinate cannot represent
        them. Only checked if a `solver` is passed.

    Examples
    --------
    >>> import icefloe, xarray
    >>> from icefloe.xarray import to_icechunk
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> to_icechunk(xarray.Dataset({"t2m": ("time", [280.5, 281.0])}), session)
    >>> snapshot_id = session.commit("write t2m")
    """
    store: object = getattr(session, "store", None)
    if not isinstance(store, IcechunkStore):
        raise ValueError(f"Please pass in an icefloe.Session. Received {type(session)!r} instead.")
    session._collects_statistics |= collect_statistics
    rules = get_append_rules(solver)
    if solver is not None and (rules is None or rules.dim != append_dim):
        raise ValueError(f"solver must be an AppendSolver for the append_dim {append_dim!r}, not {solver!r}")
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
    if rules is not None:
        for dataset, _, its_options in _list_datasets(obj, encoding, options):
            _check_labels(dataset, store, its_options["group"], rules.dim)
    _write(obj, session, store, encoding, options, split_every, dict(chunkmanager_store_kwargs or {}))
    if rules is not None:
        arrange_appends(session.workspace, rules)
        session.rebase_by_default(solver)


def _list_datasets(
    obj: DataArray | Dataset | DataTree, encoding: Mapping[Any, Any] | None, options: Mapping[str, Any]
) -> Iterator[tuple[Dataset, dict[Any, Any], Mapping[str, Any]]]:
    """Yield each dataset of an object to write, with its encoding and options."""
    if isinstance(obj, DataTree):
        yield from _list_nodes(obj, encoding or {}, options)
    else:
        yield _as_dataset(obj), dict(encoding or {}), options


def _check_labels(dataset: Dataset, store: IcechunkStore, group: str | None, dim: str) -> None:
    """Raise an error for labels that the stored coordinate cannot represent, because xarray would encode them
    with different units.
    """
    check_order(dataset, dim)
    try:
        stored = open_zarr(store, group=group, consolidated=False, chunks=None)
    except (FileNotFoundError, NodeNotFoundError):
        return
    check_coding(dataset, stored, dim)


def _write(
    obj: DataArray | Dataset | DataTree,
    session: Session,
    store: IcechunkStore,
    encoding: Mapping[Any, Any] | None,
    options: Mapping[str, Any],
    split_every: int | None,
    store_options: dict[str, Any],
) -> None:
    if isinstance(obj, DataTree):
        writer = make_xarray_array_writer()
        for dataset, its_encoding, its_options in list(_list_datasets(obj, encoding, options)):
            _write_metadata(dataset, store, writer, its_encoding, its_options)
        if writer.sources:
            _write_chunks(session, writer, split_every, store_options)
        return
    data: Any = obj
    if data.__dask_graph__() is None:
        data.to_zarr(store, encoding=encoding, **options)
        return
    writer = make_xarray_array_writer()
    _write_metadata(_as_dataset(obj), store, writer, dict(encoding or {}), options)
    if writer.sources:
        _write_chunks(session, writer, split_every, store_options)


def _list_nodes(
    tree: DataTree, encoding: Mapping[Any, Any], options: Mapping[str, Any]
) -> Iterator[tuple[Dataset, dict[Any, Any], dict[str, Any]]]:
    """Yield the dataset of each tree node to write, with its encoding and options."""
    append_dim, region, base = options["append_dim"], options["region"], (options["group"] or "").strip("/")
    by_path = {f"/{str(path).strip('/')}": dict(found or {}) for path, found in encoding.items()}
    if unknown := sorted(set(by_path) - set(tree.groups)):
        raise ValueError(f"encoding contains groups that are not in the tree: {', '.join(unknown)}")
    if isinstance(region, str) or "auto" in (region or {}).values():
        raise ValueError('region="auto" is not supported for a DataTree: pass slices')
    for dim in (region or {}) if append_dim is None else (append_dim,):
        if not any(dim in node.dims for node in tree.subtree):
            raise ValueError(f"no node of the tree has the dimension {dim!r}")
    for path, node in tree.subtree_with_keys:
        dataset = node.to_dataset(inherit=node is tree)
        mine = {**options, "group": f"{base}/{path}".strip("/.") or None}
        if region is not None:
            mine["region"] = {dim: region[dim] for dim in region if dim in dataset.dims}
            if not dataset.variables:
                continue
            if not mine["region"]:
                raise ValueError(
                    f"the node {node.path} has none of the dimensions {list(region)} of the region"
                )
        if append_dim is not None and append_dim not in dataset.dims:
            if options["mode"] == "a-":
                continue
            mine |= {"append_dim": None, "mode": options["mode"] or "a"}
        yield dataset, by_path.get(node.path, {}), mine


def _as_dataset(obj: DataArray | Dataset) -> Dataset:
    """Convert a data array to a dataset that can be read back as a data array, as `DataArray.to_zarr`
    does.
    """
    if isinstance(obj, Dataset):
        return obj
    if obj.name is not None and obj.name not in obj.coords and obj.name not in obj.dims:
        return obj.to_dataset()
    variable, name = get_xarray_array_names()
    dataset = obj.to_dataset(name=variable)
    if obj.name is not None:
        dataset.attrs[name] = obj.name
    return dataset


def _write_metadata(
    dataset: Dataset,
    store: IcechunkStore,
    writer: Any,
    encoding: dict[Any, Any],
    options: Mapping[str, Any],
) -> None:
    """Write metadata and in-memory data, and collect dask arrays: the first half of `Dataset.to_zarr`."""
    writers = get_xarray_writers()
    writers._validate_dataset_names(dataset)
    dataset = dataset.copy()
    for variable in dataset.variables.values():
        if variable.size == 0:
            variable.load()  # there is no block to write
    target = writers.get_writable_zarr_store(store, **options)
    dataset = target._validate_and_autodetect_region(dataset)
    target._validate_encoding(encoding)
    writers.dump_to_store(dataset, target, writer, encoding=encoding)


def _write_chunks(
    session: Session, writer: Any, split_every: int | None, store_options: dict[str, Any]
) -> None:
    """Write dask arrays through a fork of the session, which already contains the metadata."""
    from icefloe.dask import store_dask  # dask is installed if there are dask arrays

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
