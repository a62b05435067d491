"""Describe files that differ only along one dimension as a single dataset.

xarray compares each dataset with every other dataset, variable by variable. For thousands of files, this
takes longer than ingesting them. In most archives, files differ only in their labels along one dimension, or
form a grid of such rows. The result of combining these files can be computed directly. xarray combines only
the remaining files.
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
from icefloe.ingest.records import FileSchema, VariableSchema, make_attrs_key

Digests = Mapping[tuple[int, str], str]
"""Hashes of variable values, by source number and variable name."""
JOIN = Hint("{join} keeps all labels and fills gaps with missing values", join="outer")
NAME_DIMENSION = Hint("name the dimension to concatenate along with {concat_dim}", concat_dim=None)
_OVERLAP_MESSAGES = (
    "monotonic global indexes",
    "Could not find any dimension coordinates",
    "index has duplicate values",
)
"""Substrings of xarray's error messages about files that overlap or repeat labels. The messages do not name
the files.
"""
_CAUSES = (
    ("join='exact'", "labels"),
    ("is neither monotonically increasing nor", "labels"),
    ("requires a corresponding 1D coordinate", "missing labels"),
    ("not present in all datasets", "missing labels"),
)
"""Substrings of xarray's error messages about different or missing labels, with the cause of each. The
messages do not name the files.
"""


class CannotCombineError(InvalidInputError):
    """Error raised when xarray cannot combine files.

    `cause` is the cause that was recognized in xarray's message, or an empty string.
    """

    def __init__(
        self, reason: str, *, cause: Literal["overlap", "labels", "missing labels", ""] = ""
    ) -> None:
        super().__init__(f"the files cannot be combined: {reason}", ErrorKind.INVALID_ARRAY_METADATA)
        self.cause = cause
        self.args = (reason,)


NumberedSchema = tuple[int, FileSchema]
"""A source number and the schema of that file."""


@dataclass(frozen=True, slots=True)
class FileRuns:
    """Runs of files that differ only along one dimension. Each run is sorted along it."""

    dim: str
    runs: Sequence[Sequence[NumberedSchema]]
    dims: Mapping[str, tuple[str, ...]]
    """The combined dimensions of variables that lack the concatenation dimension in the files."""

    def make_datasets(self, digests: Digests) -> list[xr.Dataset]:
        """Return one dataset without values for each run of files."""
        return [make_run_dataset(run, self.dim, self.dims, digests) for run in self.runs]


def find_runs(
    files: Sequence[FileSchema], others: Sequence[FileSchema], how: Combining, digests: Digests
) -> FileRuns | None:
    """Find runs of files that differ only along one dimension. Each run can be combined as one dataset.

    `others` are combined separately, and no run extends across one of them. Return None if xarray has to
    combine the files one by one. Raise UndigestedError if xarray would compare values that have not been
    hashed.
    """
    if len(files) < 2 or how.coords == "all":
        return None
    try:
        found = _make_rows(files) if how.concat_dim is None else _make_row(files, how.concat_dim)
        if found is None:
            return None
        dim, rows = found
        dims = _find_given_dimensions(dim, rows, others, how, digests)
        runs = None if dims is None else _split_rows(dim, rows, files, others)
        return None if runs is None or dims is None else FileRuns(dim, runs, dims)
    except TypeError:  # xarray reports times in different calendars
        return None


def _find_given_dimensions(
    dim: str,
    rows: Sequence[Sequence[NumberedSchema]],
    others: Sequence[FileSchema],
    how: Combining,
    digests: Digests,
) -> dict[str, tuple[str, ...]] | None:
    """Return the dimensions that xarray gives to variables without the concatenation dimension.

    They are determined by combining two files. Return None if values are equal in these two files but differ
    in other files. A variable that the repository stores along the concatenation dimension keeps it.
    """
    _, first = rows[0][0]
    left = [each for each in first.variables if dim not in each.dims and each.name not in first.values]
    if len(rows) > 1:
        moving = _find_moving_dimensions([file for row in rows for _, file in row])
        if any(not set(moving).issubset({*each.dims, dim}) for each in left):
            return None  # the order of several new dimensions depends on more than two files
    try:
        made = combine_datasets([make_empty_dataset(*each, digests) for each in rows[0][:2]], how)
    except InvalidInputError:
        return None
    for each in left:
        known = {digests.get((number, each.name)) for row in rows for number, _ in row}
        if dim not in made.variables[each.name].dims and len(known) > 1:
            return None
    found = {each.name: tuple(map(str, made.variables[each.name].dims)) for each in left}
    stored = [each for other in others for each in other.variables if each.name in found]
    return found | {each.name: each.dims for each in stored if dim in each.dims}


def _split_rows(
    dim: str,
    rows: Sequence[Sequence[NumberedSchema]],
    files: Sequence[FileSchema],
    others: Sequence[FileSchema],
) -> Sequence[Sequence[NumberedSchema]] | None:
    if dim not in files[0].values:
        return rows  # without labels, files are appended in the given order
    if not all(dim in each.values and each.values[dim].size for each in (*files, *others)):
        return None
    breaks = sorted(_get_first_label(each, dim) for each in others)
    runs: dict[tuple[int, int], list[NumberedSchema]] = {}
    for number, row in enumerate(rows):
        for each in row:
            runs.setdefault((number, bisect_right(breaks, _get_first_label(each[1], dim))), []).append(each)
    return list(runs.values())


def _make_row(files: Sequence[FileSchema], dim: str) -> tuple[str, list[list[NumberedSchema]]] | None:
    """Return the dimension and all files as a single row. Return None if the files differ in
    anything else.
    """
    return (dim, [list(enumerate(files))]) if _differ_only_along(files, dim) else None


def _make_rows(files: Sequence[FileSchema]) -> tuple[str, list[list[NumberedSchema]]] | None:
    """Arrange files in rows along the dimension with the most distinct labels. Return None if they do not
    form a grid.

    In a grid of files, such as tiles, all rows have the same labels.
    """
    moving = _find_moving_dimensions(files)
    if not moving:
        return None
    dim = max(moving, key=lambda each: len({id(file.values.get(each)) for file in files}))
    groups: dict[tuple[int, ...], list[NumberedSchema]] = {}
    for number, file in enumerate(files):
        place = tuple(id(file.values.get(each)) for each in moving if each != dim)
        groups.setdefault(place, []).append((number, file))
    rows = []
    for group in groups.values():
        ordered = _sort_row(group, dim) if _differ_only_along([file for _, file in group], dim) else None
        if ordered is None:
            return None
        rows.append(ordered)
    places = {tuple(id(file.values[dim]) for _, file in row) for row in rows}
    return (dim, rows) if len(places) == 1 < len(rows[0]) else None


def make_run_dataset(
    run: Sequence[NumberedSchema], dim: str, given: Mapping[str, tuple[str, ...]], digests: Digests
) -> xr.Dataset:
    """Return the dataset without values that xarray would create by combining a run of files."""
    if len(run) == 1:
        return make_empty_dataset(*run[0], digests)
    (_, first), files = run[0], [file for _, file in run]
    alone = make_empty_dataset(*run[0], digests)
    variables: dict[str, xr.Variable] = {}
    for each in first.variables:
        dims = given.get(each.name, each.dims)
        data: Any = first.values.get(each.name)
        if dim not in dims:
            variables[each.name] = alone.variables[each.name]  # attributes are equal in all files
            continue
        if data is None:
            data = _join_variable(run, each, dims, dim, digests)
        else:
            data = np.concatenate([file.values[each.name] for file in files], each.dims.index(dim))
        variables[each.name] = xr.Variable(dims, data, dict(each.attrs))
    coords = {each.name: variables.pop(each.name) for each in first.variables if each.is_coordinate}
    return xr.Dataset(variables, coords, dict(first.attrs))


def _join_variable(
    run: Sequence[NumberedSchema], variable: VariableSchema, dims: Sequence[str], dim: str, digests: Digests
) -> PieceArray:
    axis = dims.index(dim)
    lengths = np.array([file.sizes[dim] for _, file in run], np.int64)
    numbers = np.array([number for number, _ in run], np.int64)
    sizes = [run[0][1].sizes[each] for each in dims]
    shape = np.tile(np.array(sizes, np.int64), (len(run), 1))
    shape[:, axis] = lengths
    starts = np.zeros_like(shape)
    starts[:, axis] = lengths.cumsum() - lengths
    axes = np.tile(np.array(_find_axes(variable, dims), np.int64), (len(run), 1))
    pieces = Pieces(numbers, starts, shape, np.zeros_like(shape), axes)
    origins = {}
    for number, file in run:
        stored = tuple(file.sizes[each] for each in variable.own_dims)
        origins[number] = Origin(stored, digests.get((number, variable.name)))
    whole = [*sizes[:axis], int(lengths.sum()), *sizes[axis + 1 :]]
    return PieceArray(variable.name, whole, np.dtype(variable.dtype), pieces, origins)


def _find_moving_dimensions(files: Sequence[FileSchema]) -> list[str]:
    """Return the dimensions along which the labels of any file differ from the first file."""
    first = files[0]
    return [
        name
        for name, values in first.values.items()
        if name in first.sizes and any(file.values.get(name) is not values for file in files)
    ]


def _differ_only_along(files: Sequence[FileSchema], dim: str) -> bool:
    """Return True if files have equal metadata and equal coordinates, except for the labels along one
    dimension.
    """
    kind = _VariableNumbering()
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


class _VariableNumbering:
    """Assigns the same number to variables with equal metadata."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._known: dict[Any, int] = {}

    def __call__(self, variable: VariableSchema) -> int:
        found = self._numbers.get(id(variable))
        if found is None:
            shown = (variable.name, variable.dims, variable.dtype, variable.is_coordinate)
            key = (*shown, make_attrs_key(variable.attrs))
            found = self._numbers[id(variable)] = self._known.setdefault(key, len(self._known))
        return found


def _sort_row(files: Sequence[NumberedSchema], dim: str) -> list[NumberedSchema] | None:
    """Sort files by their labels along a dimension. Return None if the labels are not strictly monotonic
    across all files.
    """
    if not all(file.values[dim].size for _, file in files):
        return None
    ordered = sorted(files, key=lambda each: _get_first_label(each[1], dim))
    for order, ahead in ((ordered, np.greater), (ordered[::-1], np.less)):
        values = np.concatenate([file.values[dim] for _, file in order])
        if bool(np.all(ahead(values[1:], values[:-1]))):
            return order
    return None


def _get_first_label(file: FileSchema, dim: str) -> Any:
    return file.values[dim].reshape(-1)[0]


def make_empty_dataset(
    number: int, schema: FileSchema, digests: Digests, begin: Mapping[str, int] | None = None
) -> xr.Dataset:
    """Create a dataset for one file: its coordinates, and data variables without values.

    `begin` contains the first cell along each dimension, for parts of the existing arrays.
    """
    variables = {
        each.name: _make_variable(number, schema, each, digests, begin or {}) for each in schema.variables
    }
    coords = {each.name: variables.pop(each.name) for each in schema.variables if each.is_coordinate}
    return xr.Dataset(variables, coords, dict(schema.attrs))


def _make_variable(
    number: int, schema: FileSchema, variable: VariableSchema, digests: Digests, begin: Mapping[str, int]
) -> xr.Variable:
    data: Any = schema.values.get(variable.name)
    if data is None:
        shape = [schema.sizes[dim] for dim in variable.dims]
        pieces = Pieces.whole(number, shape, [begin.get(dim, 0) for dim in variable.dims])
        pieces = replace(
            pieces, axes=np.array([_find_axes(variable, variable.dims)], np.int64).reshape(1, -1)
        )
        dtype = np.dtype(variable.dtype)
        origin = Origin(_get_stored_shape(schema, variable, begin), digests.get((number, variable.name)))
        data = PieceArray(variable.name, shape, dtype, pieces, {number: origin})
    return xr.Variable(variable.dims, data, dict(variable.attrs))


def _get_stored_shape(
    schema: FileSchema, variable: VariableSchema, begin: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the shape of a variable in its source. Dimensions that an existing part covers only partly are
    -1.
    """
    return tuple(-1 if dim in begin else schema.sizes[dim] for dim in variable.own_dims)


def _find_axes(variable: VariableSchema, dims: Sequence[str]) -> list[int]:
    """Return the source axis of each dimension; -1 if the source lacks the dimension."""
    own = variable.own_dims
    return [own.index(dim) if dim in own else -1 for dim in dims]


def combine_datasets(datasets: Sequence[xr.Dataset], how: Combining) -> xr.Dataset:
    """Combine datasets with xarray, and convert xarray's errors to CannotCombineError."""
    try:
        with ignore_warnings():
            found = combine_aligned(datasets, how)
    except (ValueError, NotImplementedError, TypeError, KeyError) as error:
        reason, hint = " ".join(str(error).split()), None
        if how.concat_dim is None and "dimension coordinates" in reason:
            dims = dict.fromkeys(str(dim) for dataset in datasets for dim in dataset.dims)
            reason, hint = f"{reason}; dimensions are {', '.join(dims)}", NAME_DIMENSION
        overlaps = any(text in reason for text in _OVERLAP_MESSAGES)
        cause: Any = "overlap" if overlaps else next((of for text, of in _CAUSES if text in reason), "")
        if how.concat_dim is None and cause == "labels":
            hint = Hint.any_of(NAME_DIMENSION, JOIN)
        raise CannotCombineError(reason, cause=cause).with_hint(hint) from error
    if not isinstance(found, xr.Dataset):
        raise InvalidInputError(
            "the files cannot be combined into one dataset", ErrorKind.INVALID_ARRAY_METADATA
        )
    return found
