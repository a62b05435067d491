"""Files that are alike and follow each other, outlined as one.

xarray compares every dataset that it combines with every other, variable by variable, which for thousands of
files takes longer than all that they bring. Most archives are files that differ in nothing but their place
along one dimension, or rows of such files; of those it is plain what xarray would make. Any other file is
left to xarray.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.combine.alignment import combine_aligned
from icefloe.ingest.combine.pieces import Origin, PieceArray, Pieces
from icefloe.ingest.options import Combining
from icefloe.ingest.records import FileSchema, VariableSchema, attribute_key

Digests = Mapping[tuple[int, str], str]
"""The hash over the values of a variable, by the number of its source and its name."""
NAME_DIMENSION = Hint("name the dimension they follow each other along with {concat_dim}", concat_dim=None)
_OVERLAPS = (
    "monotonic global indexes",
    "Could not find any dimension coordinates",
    "index has duplicate values",
)
"""Parts of xarray's messages about files that overlap or have the same labels; they name no file."""
_DIFFERENT_LABELS = "join='exact'"
"""Part of xarray's messages about files with different labels; they name no file."""


class CannotCombineError(InvalidInputError):
    """xarray cannot combine the files. `cause` says why, as far as xarray's message shows it."""

    def __init__(self, reason: str, *, cause: Literal["overlap", "labels", ""] = "") -> None:
        super().__init__(f"the files cannot be combined: {reason}", ErrorKind.INVALID_ARRAY_METADATA)
        self.cause = cause
        self.args = (reason,)


Numbered = tuple[int, FileSchema]
"""A file, and the number that its pieces have."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Files that follow each other along a dimension, in that order."""

    dim: str
    runs: Sequence[Sequence[Numbered]]
    dims: Mapping[str, tuple[str, ...]]
    """The dimensions that variables have in all files together, of those that lack the dimension in each."""

    def empty_datasets(self, digests: Digests) -> list[xr.Dataset]:
        """Return one dataset without data for each run."""
        return [empty_dataset_of_run(run, self.dim, self.dims, digests) for run in self.runs]


def runs_of(
    files: Sequence[FileSchema], others: Sequence[FileSchema], how: Combining, digests: Digests
) -> Runs | None:
    """Files that can be outlined as one.

    No run reaches over one of the `others`, which are outlined for themselves. None where xarray has to see
    every file. UndigestedError where it would want to know whether values are equal.
    """
    if len(files) < 2 or how.coords == "all":
        return None
    try:
        found = _rows(files) if how.concat_dim is None else _row(files, how.concat_dim)
        if found is None:
            return None
        dim, rows = found
        dims = _given_dimensions(dim, rows, others, how, digests)
        runs = None if dims is None else _runs(dim, rows, files, others)
        return None if runs is None or dims is None else Runs(dim, runs, dims)
    except TypeError:  # times of different calendars: xarray will say so
        return None


def _given_dimensions(
    dim: str,
    rows: Sequence[Sequence[Numbered]],
    others: Sequence[FileSchema],
    how: Combining,
    digests: Digests,
) -> dict[str, tuple[str, ...]] | None:
    """Return the dimensions that xarray gives to variables without the concatenation dimension.

    Combining two files shows them; values that are equal in these two must be equal in all, otherwise None.
    A variable that the repository stores along the dimension keeps it.
    """
    _, first = rows[0][0]
    left = [each for each in first.variables if dim not in each.dims and each.name not in first.values]
    if len(rows) > 1:
        moving = _moving_dimensions([file for row in rows for _, file in row])
        if any(not set(moving).issubset({*each.dims, dim}) for each in left):
            return None  # which of its new dimensions comes first depends on more than two files
    try:
        made = combined([empty_dataset(*each, digests) for each in rows[0][:2]], how)
    except InvalidInputError:
        return None
    for each in left:
        known = {digests.get((number, each.name)) for row in rows for number, _ in row}
        if dim not in made.variables[each.name].dims and len(known) > 1:
            return None
    found = {each.name: tuple(map(str, made.variables[each.name].dims)) for each in left}
    stored = [each for other in others for each in other.variables if each.name in found]
    return found | {each.name: each.dims for each in stored if dim in each.dims}


def _runs(
    dim: str,
    rows: Sequence[Sequence[Numbered]],
    files: Sequence[FileSchema],
    others: Sequence[FileSchema],
) -> Sequence[Sequence[Numbered]] | None:
    if dim not in files[0].values:
        return rows  # nobody says where files belong: they come as they are given, behind what is there
    if not all(dim in each.values and each.values[dim].size for each in (*files, *others)):
        return None
    breaks = sorted(_first(each, dim) for each in others)
    runs: dict[tuple[int, int], list[Numbered]] = {}
    for number, row in enumerate(rows):
        for each in row:
            runs.setdefault((number, bisect_right(breaks, _first(each[1], dim))), []).append(each)
    return list(runs.values())


def _row(files: Sequence[FileSchema], dim: str) -> tuple[str, list[list[Numbered]]] | None:
    """Return all files as one row if they differ only along a dimension."""
    return (dim, [list(enumerate(files))]) if _alike(files, dim) else None


def _rows(files: Sequence[FileSchema]) -> tuple[str, list[list[Numbered]]] | None:
    """Files in order along the dimension in which they are in most places.

    Those of a grid, such as tiles, make several rows, which all have the same places.
    """
    moving = _moving_dimensions(files)
    if not moving:
        return None
    dim = max(moving, key=lambda each: len({id(file.values.get(each)) for file in files}))
    groups: dict[tuple[int, ...], list[Numbered]] = {}
    for number, file in enumerate(files):
        place = tuple(id(file.values.get(each)) for each in moving if each != dim)
        groups.setdefault(place, []).append((number, file))
    rows = []
    for group in groups.values():
        ordered = _in_a_row(group, dim) if _alike([file for _, file in group], dim) else None
        if ordered is None:
            return None
        rows.append(ordered)
    places = {tuple(id(file.values[dim]) for _, file in row) for row in rows}
    return (dim, rows) if len(places) == 1 < len(rows[0]) else None


def empty_dataset_of_run(
    run: Sequence[Numbered], dim: str, given: Mapping[str, tuple[str, ...]], digests: Digests
) -> xr.Dataset:
    """Describe the files of a run as the dataset that xarray would combine from them."""
    if len(run) == 1:
        return empty_dataset(*run[0], digests)
    (_, first), files = run[0], [file for _, file in run]
    alone = empty_dataset(*run[0], digests)
    variables: dict[str, xr.Variable] = {}
    for each in first.variables:
        dims = given.get(each.name, each.dims)
        data: Any = first.values.get(each.name)
        if dim not in dims:
            variables[each.name] = alone.variables[each.name]  # the same in all of them
            continue
        if data is None:
            data = _joined(run, each, dims, dim, digests)
        else:
            data = np.concatenate([file.values[each.name] for file in files], each.dims.index(dim))
        variables[each.name] = xr.Variable(dims, data, dict(each.attrs))
    coords = {each.name: variables.pop(each.name) for each in first.variables if each.is_coordinate}
    return xr.Dataset(variables, coords, dict(first.attrs))


def _joined(
    run: Sequence[Numbered], variable: VariableSchema, dims: Sequence[str], dim: str, digests: Digests
) -> PieceArray:
    axis = dims.index(dim)
    lengths = np.array([file.sizes[dim] for _, file in run], np.int64)
    numbers = np.array([number for number, _ in run], np.int64)
    sizes = [run[0][1].sizes[each] for each in dims]
    shape = np.tile(np.array(sizes, np.int64), (len(run), 1))
    shape[:, axis] = lengths
    starts = np.zeros_like(shape)
    starts[:, axis] = lengths.cumsum() - lengths
    axes = np.tile(np.array(_axes(variable, dims), np.int64), (len(run), 1))
    pieces = Pieces(numbers, starts, shape, np.zeros_like(shape), axes)
    origins = {}
    for number, file in run:
        stored = tuple(file.sizes[each] for each in variable.own_dims)
        origins[number] = Origin(stored, digests.get((number, variable.name)))
    whole = [*sizes[:axis], int(lengths.sum()), *sizes[axis + 1 :]]
    return PieceArray(variable.name, whole, np.dtype(variable.dtype), pieces, origins)


def _moving_dimensions(files: Sequence[FileSchema]) -> list[str]:
    """Return the dimensions along which some file has other labels than the first."""
    first = files[0]
    return [
        name
        for name, values in first.values.items()
        if name in first.sizes and any(file.values.get(name) is not values for file in files)
    ]


def _alike(files: Sequence[FileSchema], dim: str) -> bool:
    """Return whether files differ only in their labels along a dimension and in data that is not read."""
    kind = _Kinds()
    first = files[0]
    by_value = first.values.keys()
    fixed = [each.name for each in first.variables if dim not in each.dims and each.name in by_value]
    if dim not in first.sizes:
        return False
    kinds = [kind(each) for each in first.variables]
    others = {name: size for name, size in first.sizes.items() if name != dim}
    return all(
        [kind(each) for each in file.variables] == kinds
        and file.values.keys() == by_value
        and file.sizes.keys() == first.sizes.keys()
        and all(file.sizes[name] == size for name, size in others.items())
        and all(file.values[name] is first.values[name] for name in fixed)
        for file in files[1:]
    )


class _Kinds:
    """A numbering of variables: equal numbers for variables with equal metadata."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._known: dict[Any, int] = {}

    def __call__(self, variable: VariableSchema) -> int:
        found = self._numbers.get(id(variable))
        if found is None:
            shown = (variable.name, variable.dims, variable.dtype, variable.is_coordinate)
            key = (*shown, attribute_key(variable.attrs))
            found = self._numbers[id(variable)] = self._known.setdefault(key, len(self._known))
        return found


def _in_a_row(files: Sequence[Numbered], dim: str) -> list[Numbered] | None:
    """Sort files by their labels, if these are strictly monotonic across all files."""
    if not all(file.values[dim].size for _, file in files):
        return None
    ordered = sorted(files, key=lambda each: _first(each[1], dim))
    for order, ahead in ((ordered, np.greater), (ordered[::-1], np.less)):
        values = np.concatenate([file.values[dim] for _, file in order])
        if bool(np.all(ahead(values[1:], values[:-1]))):
            return order
    return None


def _first(file: FileSchema, dim: str) -> Any:
    return file.values[dim].reshape(-1)[0]


def empty_dataset(
    number: int, schema: FileSchema, digests: Digests, begin: Mapping[str, int] | None = None
) -> xr.Dataset:
    """A file as a dataset whose coordinates are there and whose data is not.

    `begin` says where it begins in its source, by dimension: for parts of what the repository has.
    """
    variables = {
        each.name: _empty_variable(number, schema, each, digests, begin or {}) for each in schema.variables
    }
    coords = {each.name: variables.pop(each.name) for each in schema.variables if each.is_coordinate}
    return xr.Dataset(variables, coords, dict(schema.attrs))


def _empty_variable(
    number: int, schema: FileSchema, variable: VariableSchema, digests: Digests, begin: Mapping[str, int]
) -> xr.Variable:
    data: Any = schema.values.get(variable.name)
    if data is None:
        shape = [schema.sizes[dim] for dim in variable.dims]
        pieces = Pieces.whole(number, shape, [begin.get(dim, 0) for dim in variable.dims])
        pieces = replace(pieces, axes=np.array([_axes(variable, variable.dims)], np.int64).reshape(1, -1))
        dtype = np.dtype(variable.dtype)
        origin = Origin(_stored_shape(schema, variable, begin), digests.get((number, variable.name)))
        data = PieceArray(variable.name, shape, dtype, pieces, {number: origin})
    return xr.Variable(variable.dims, data, dict(variable.attrs))


def _stored_shape(schema: FileSchema, variable: VariableSchema, begin: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a stored variable; -1 along dimensions of which the source is a part."""
    return tuple(-1 if dim in begin else schema.sizes[dim] for dim in variable.own_dims)


def _axes(variable: VariableSchema, dims: Sequence[str]) -> list[int]:
    """Return which dimension of the source each of these is; -1 for one that it lacks."""
    own = variable.own_dims
    return [own.index(dim) if dim in own else -1 for dim in dims]


def combined(datasets: Sequence[xr.Dataset], how: Combining) -> xr.Dataset:
    """Combine datasets without data as xarray does, and translate its errors."""
    try:
        with ignore_warnings():
            found = combine_aligned(datasets, how)
    except (ValueError, NotImplementedError, TypeError, KeyError) as error:
        reason, hint = " ".join(str(error).split()), None
        if how.concat_dim is None and "dimension coordinates" in reason:
            dims = dict.fromkeys(str(dim) for dataset in datasets for dim in dataset.dims)
            reason, hint = f"{reason}; there are {', '.join(dims)}", NAME_DIMENSION
        overlaps = any(text in reason for text in _OVERLAPS)
        cause: Any = "overlap" if overlaps else "labels" if _DIFFERENT_LABELS in reason else ""
        raise CannotCombineError(reason, cause=cause).with_hint(hint) from error
    if not isinstance(found, xr.Dataset):
        raise InvalidInputError("the files do not make a dataset", ErrorKind.INVALID_ARRAY_METADATA)
    return found
