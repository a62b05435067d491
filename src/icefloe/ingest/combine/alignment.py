"""Combine datasets of PieceArrays with xarray, and align them beforehand.

When xarray aligns a variable, it creates a mask as large as the variable for the cells that are missing
afterwards. PieceArrays describe arrays that may be larger than memory, so they are reindexed here, which only
changes their pieces. xarray then finds equal labels and aligns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from icefloe.ingest.combine.pieces import PieceArray
from icefloe.ingest.options import Combining

_REINDEXING = ("outer", "inner", "left", "right")


def combine_aligned(datasets: Sequence[xr.Dataset], how: Combining) -> Any:
    """Combine datasets as `xarray.combine_by_coords` or `combine_nested` does."""
    arguments = how.arguments()
    join = arguments["join"]
    if how.concat_dim is not None:
        aligned = _align(datasets, join, lambda _: 0, exclude=how.concat_dim)
        complete = _with_missing_variables(aligned, how.concat_dim)
        return xr.combine_nested(complete, concat_dim=how.concat_dim, **arguments)
    if join not in _REINDEXING:
        return xr.combine_by_coords(list(datasets), **arguments)
    # combine_by_coords concatenates datasets with the same variables, and then merges the results. Both steps
    # align. In the first one, tiles that begin with the same label lie in one row of the grid.
    groups: dict[tuple[str, ...], list[xr.Dataset]] = {}
    for each in sorted(datasets, key=_names):
        groups.setdefault(_names(each), []).append(each)
    found: list[Any] = [
        xr.combine_by_coords(_align(group, join, lambda labels: str(labels[0])), **arguments)
        for group in groups.values()
    ]
    merging = {name: arguments[name] for name in ("compat", "join", "combine_attrs")}
    return found[0] if len(found) == 1 else xr.merge(_align(found, join, lambda _: 0), **merging)


def _names(dataset: xr.Dataset) -> tuple[str, ...]:
    return tuple(sorted(map(str, dataset.data_vars)))


def _align(
    datasets: Sequence[xr.Dataset],
    join: str,
    row: Callable[[Any], Hashable],
    exclude: str | None = None,
) -> list[xr.Dataset]:
    """Align datasets along each dimension with those for whose labels `row` returns the same value."""
    found = list(datasets)
    if join not in _REINDEXING or len(found) < 2:
        return found
    for dim in dict.fromkeys(str(dim) for each in found for dim in each.indexes if dim in each.dims):
        rows: dict[Hashable, list[int]] = {}
        for number, each in enumerate(found):
            if dim != exclude and dim in each.indexes and each.sizes[dim]:
                rows.setdefault(row(each.indexes[dim]), []).append(number)
        for members in rows.values():
            indexes = [found[number].indexes[dim] for number in members]
            if all(index.equals(indexes[0]) for index in indexes) or not all(i.is_unique for i in indexes):
                continue  # nothing to do, or xarray reports the repeated labels
            labels: Any = [xr.Dataset(coords={dim: found[number].coords[dim]}) for number in members]
            joined = xr.align(*labels, join=join)[0].coords[dim]  # type: ignore[call-overload]
            for number in members:
                found[number] = _reindex(found[number], dim, joined)
    return found


def _reindex(dataset: xr.Dataset, dim: str, labels: xr.DataArray) -> xr.Dataset:
    """Select the cells with these labels along a dimension; cells without a label become missing."""
    cells = dataset.indexes[dim].get_indexer(labels.to_index())
    pieces = [name for name, each in dataset.variables.items() if isinstance(each.data, PieceArray)]
    small = dataset.drop_vars(pieces).reindex({dim: labels})
    variables: dict[Hashable, xr.Variable] = {}
    for name, each in dataset.variables.items():
        if name not in pieces:
            variables[name] = small.variables[name]
        elif dim in each.dims:
            data: Any = each.data.picked(each.dims.index(dim), cells)
            if (cells < 0).any():
                data = data.astype(_with_missing(each.dtype))
            variables[name] = xr.Variable(each.dims, data, each.attrs)
        else:
            variables[name] = each
    return _dataset(variables, dataset)


def _dataset(variables: Mapping[Hashable, xr.Variable], like: xr.Dataset) -> xr.Dataset:
    coords = {name: each for name, each in variables.items() if name in like.coords}
    data = {name: each for name, each in variables.items() if name not in coords}
    return xr.Dataset(data, coords, like.attrs)


def _with_missing_variables(datasets: Sequence[xr.Dataset], dim: str) -> list[xr.Dataset]:
    """Add variables that only other datasets have, without any cells: xarray would create masks for them."""
    known = {
        name: each
        for dataset in reversed(datasets)
        for name, each in dataset.data_vars.variables.items()
        if dim in each.dims and isinstance(each.data, PieceArray)
    }
    return [_with_variables(dataset, known) for dataset in datasets]


def _with_variables(dataset: xr.Dataset, known: Mapping[Hashable, xr.Variable]) -> xr.Dataset:
    new = {}
    for name, each in known.items():
        if name not in dataset and set(each.dims) <= set(dataset.dims):
            shape = [dataset.sizes[dim] for dim in each.dims]
            pieces = each.data.pieces.taken(slice(0, 0))
            data: Any = PieceArray(str(name), shape, _with_missing(each.dtype), pieces, {})
            new[name] = xr.Variable(each.dims, data, each.attrs)
    return dataset.assign(new) if new else dataset


@cache
def _with_missing(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that xarray gives values of a type if some of them are missing."""
    one = xr.DataArray(np.zeros(1, dtype), {"x": [0]}, ("x",))
    return one.reindex(x=[1]).dtype
