"""Align datasets of PieceArrays, and combine them with xarray.

To align a variable, xarray creates a mask of missing cells that is as large as the variable. PieceArrays may
describe arrays that are larger than memory. This module therefore reindexes them first, which changes only
their pieces. xarray then finds equal labels and does not need to align anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from icefloe.ingest.combine.pieces import PieceArray
from icefloe.ingest.options import Combining

_REINDEXING = ("outer", "inner", "left", "right")
_GAP_MESSAGES = ("do not form a hypercube", "join='exact'")
"""Substrings of xarray's error messages about files that leave gaps in a grid."""


def combine_aligned(datasets: Sequence[xr.Dataset], how: Combining) -> Any:
    """Combine the datasets of files with exact or outer alignment, like `xarray.combine_by_coords` or
    `combine_nested`.

    Datasets with different variables are merged afterwards. Unless the user chose a join, variables may lack
    values at some labels of concatenated dimensions, because a file may not exist yet.
    """
    arguments = how.to_arguments()
    join = arguments["join"]
    if how.concat_dim is not None:
        groups = _group_by_common_variables(datasets)
        found: list[Any] = [_combine_along(how.concat_dim, group, arguments) for group in groups]
    else:
        # combine_by_coords concatenates datasets with the same variables, and then merges the results. Both
        # steps align. In the first step, tiles that begin with the same label are in one row of the grid.
        groups = _group_by_variables(datasets)
        found = [_combine_by_coords(_align(each, join, lambda i: str(i[0])), arguments) for each in groups]
    if len(found) == 1:
        return found[0]
    merging = {name: arguments[name] for name in ("compat", "join", "combine_attrs")}
    if how.join is None:
        moving = [dim for dim in _find_moving_dimensions(groups) if _may_have_holes(dim, datasets)]
        found = _align(found, "outer", lambda _: 0, only=moving)
    return xr.merge(_align(found, join, lambda _: 0), **merging)


def _combine_along(dim: str, datasets: Sequence[xr.Dataset], arguments: Mapping[str, Any]) -> xr.Dataset:
    aligned = _align(datasets, arguments["join"], lambda _: 0, exclude=dim)
    complete = _add_missing_variables(aligned, dim)
    return xr.combine_nested(complete, concat_dim=dim, **arguments)


def _combine_by_coords(datasets: Sequence[xr.Dataset], arguments: Mapping[str, Any]) -> Any:
    """Combine datasets like `xarray.combine_by_coords`, but allow gaps in the grid, such as missing steps of
    the latest forecast.
    """
    try:
        return xr.combine_by_coords(list(datasets), **arguments)
    except ValueError as error:
        moving = set(_find_moving_dimensions([datasets]))
        may_have_holes = all(_may_have_holes(dim, datasets) for dim in moving)
        if not may_have_holes or not any(text in str(error) for text in _GAP_MESSAGES):
            raise
    merging = {name: arguments[name] for name in ("compat", "join", "combine_attrs")}
    return xr.merge(_align(datasets, "outer", lambda _: 0, only=moving), **merging)


def _group_by_variables(datasets: Sequence[xr.Dataset]) -> list[list[xr.Dataset]]:
    groups: dict[tuple[str, ...], list[xr.Dataset]] = {}
    for each in sorted(datasets, key=_list_data_variables):
        groups.setdefault(_list_data_variables(each), []).append(each)
    return list(groups.values())


def _group_by_common_variables(datasets: Sequence[xr.Dataset]) -> list[list[xr.Dataset]]:
    """Split datasets into groups that share no variables. The order is preserved."""
    numbers = list(range(len(datasets)))  # for each dataset, the index of the first dataset in the same group
    first: dict[str, int] = {}
    for number, dataset in enumerate(datasets):
        met = {numbers[first[name]] for name in _list_data_variables(dataset) if name in first}
        least = min(met, default=number)
        numbers = [least if each in met else each for each in numbers]
        numbers[number] = least
        for name in _list_data_variables(dataset):
            first.setdefault(name, number)
    groups: dict[int, list[xr.Dataset]] = {}
    for number, dataset in zip(numbers, datasets, strict=True):
        groups.setdefault(number, []).append(dataset)
    return list(groups.values())


def _find_moving_dimensions(groups: Sequence[Sequence[xr.Dataset]]) -> Iterator[str]:
    """Yield the dimensions along which datasets with the same variables will be concatenated."""
    for datasets in groups:
        for dim in dict.fromkeys(str(dim) for each in datasets for dim in each.indexes if dim in each.dims):
            indexes = [each.indexes[dim] for each in datasets if dim in each.indexes]
            if any(not index.equals(indexes[0]) for index in indexes[1:]):
                yield dim


def _may_have_holes(dim: str, datasets: Sequence[xr.Dataset]) -> bool:
    """Return True if files may be missing along a dimension: a time, step, ensemble member or level."""
    index = next(each.indexes[dim] for each in datasets if dim in each.indexes)
    if index.dtype.kind in "mM" or isinstance(index, xr.CFTimeIndex):
        return True
    levels = {each.attrs.get("GRIB_typeOfLevel") for data in datasets for each in data.data_vars.values()}
    return dim in levels or (dim == "number" and levels != {None})


def _list_data_variables(dataset: xr.Dataset) -> tuple[str, ...]:
    return tuple(sorted(map(str, dataset.data_vars)))


def _align(
    datasets: Sequence[xr.Dataset],
    join: str,
    row: Callable[[Any], Hashable],
    exclude: str | None = None,
    only: Collection[str] | None = None,
) -> list[xr.Dataset]:
    """Align datasets along each dimension. Datasets are aligned only with those that have the same row key,
    which `row` computes from their labels.
    """
    found = list(datasets)
    if join not in _REINDEXING or len(found) < 2:
        return found
    for dim in dict.fromkeys(str(dim) for each in found for dim in each.indexes if dim in each.dims):
        rows: dict[Hashable, list[int]] = {}
        for number, each in enumerate(found):
            if dim == exclude or (only is not None and dim not in only):
                continue
            if dim in each.indexes and each.sizes[dim]:
                rows.setdefault(row(each.indexes[dim]), []).append(number)
        for members in rows.values():
            indexes = [found[number].indexes[dim] for number in members]
            if all(index.equals(indexes[0]) for index in indexes) or not all(i.is_unique for i in indexes):
                continue  # there is nothing to do, or xarray reports repeated labels
            labels: Any = [xr.Dataset(coords={dim: found[number].coords[dim]}) for number in members]
            joined = xr.align(*labels, join=join)[0].coords[dim]  # type: ignore[call-overload]
            for number in members:
                found[number] = _reindex(found[number], dim, joined)
    return found


def _reindex(dataset: xr.Dataset, dim: str, labels: xr.DataArray) -> xr.Dataset:
    """Reindex a dataset along a dimension. Labels that do not exist in the dataset become missing cells."""
    cells = dataset.indexes[dim].get_indexer(labels.to_index())
    pieces = [name for name, each in dataset.variables.items() if isinstance(each.data, PieceArray)]
    small = dataset.drop_vars(pieces).reindex({dim: labels})
    variables: dict[Hashable, xr.Variable] = {}
    for name, each in dataset.variables.items():
        if name not in pieces:
            variables[name] = small.variables[name]
        elif dim in each.dims:
            data: Any = each.data.pick(each.dims.index(dim), cells)
            if (cells < 0).any():
                data = data.astype(_promote_dtype(each.dtype))
            variables[name] = xr.Variable(each.dims, data, each.attrs)
        else:
            variables[name] = each
    return _make_dataset(variables, dataset)


def _make_dataset(variables: Mapping[Hashable, xr.Variable], like: xr.Dataset) -> xr.Dataset:
    coords = {name: each for name, each in variables.items() if name in like.coords}
    data = {name: each for name, each in variables.items() if name not in coords}
    return xr.Dataset(data, coords, like.attrs)


def _add_missing_variables(datasets: Sequence[xr.Dataset], dim: str) -> list[xr.Dataset]:
    """Add variables that exist only in other datasets, without any pieces. xarray would create masks for
    them.
    """
    known = {
        name: each
        for dataset in reversed(datasets)
        for name, each in dataset.data_vars.variables.items()
        if dim in each.dims and isinstance(each.data, PieceArray)
    }
    return [_add_variables(dataset, known) for dataset in datasets]


def _add_variables(dataset: xr.Dataset, known: Mapping[Hashable, xr.Variable]) -> xr.Dataset:
    new = {}
    for name, each in known.items():
        if name not in dataset and set(each.dims) <= set(dataset.dims):
            shape = [dataset.sizes[dim] for dim in each.dims]
            pieces = each.data.pieces.select(slice(0, 0))
            data: Any = PieceArray(str(name), shape, _promote_dtype(each.dtype), pieces, {})
            new[name] = xr.Variable(each.dims, data, each.attrs)
    return dataset.assign(new) if new else dataset


@cache
def _promote_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that results when xarray adds missing values to a dtype."""
    one = xr.DataArray(np.zeros(1, dtype), {"x": [0]}, ("x",))
    return one.reindex(x=[1]).dtype
