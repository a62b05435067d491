"""Combine virtual datasets into one, after checking that their encodings match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.sources import Source, make_access
from icefloe.virtual.variables import (
    ChunkReferences,
    VirtualVariable,
    make_document,
    make_loaded_variable,
    reencode_times,
)
from icefloe.virtual.zarr_metadata import GEO_TRANSFORM, find_differences, list_properties

_MAX_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between a virtual dataset and the first dataset that it is combined with."""

    variable: str
    """The variable that differs."""
    location: str
    """The file that differs."""
    what: str
    """The property that differs: `dtype`, `codecs`, `chunk shape`, `values`, an attribute, and so on."""
    expected: Any
    """The value in the first file."""
    found: Any
    """The value in the file that differs."""


class MismatchError(InvalidInputError):
    """Error raised when virtual datasets cannot be combined.

    Parameters
    ----------
    mismatches
        All differences, available as the attribute `mismatches`.
    """

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        self.mismatches = tuple(mismatches)
        variables = sorted({each.variable for each in mismatches})
        lines = [
            f"{each.variable} of {each.location}: {each.what} is {each.found}, expected {each.expected}"
            for each in self.mismatches[:_MAX_SHOWN]
        ]
        if len(self.mismatches) > _MAX_SHOWN:
            lines.append(f"and {len(self.mismatches) - _MAX_SHOWN} more")
        super().__init__(
            f"the files differ in {', '.join(variables)} and cannot be combined:\n" + "\n".join(lines),
            kind=ErrorKind.BAD_METADATA,
        )
        self.args = (self.mismatches,)


def combine(
    datasets: Iterable[VirtualDataset],
    concat_dim: str | None = None,
    *,
    by_coords: bool = False,
    compare_static: bool = False,
    store: AnyObjectStoreConfig | None = None,
    credential: AnyCredential | None = None,
) -> VirtualDataset:
    """Combine virtual datasets along a dimension, in the given order or ordered by their coordinates.

    Variables that have the dimension are concatenated. All other variables are taken from the first dataset;
    if their values were loaded, they must be equal in all datasets. The data type, codecs, fill value, scale
    and offset, units, chunk shape and dimensions of a variable must be the same in all datasets, and every
    dataset except the last must end at a chunk boundary. Loaded times and their bounds are converted to the
    units of the first dataset. A variable that was refused in any dataset is refused in the result.

    Parameters
    ----------
    datasets
        The datasets to combine.
    concat_dim
        The dimension to concatenate along, in the order of the datasets.
    by_coords
        Combine along the dimensions whose loaded coordinates differ, ordered by their values.
    compare_static
        Also read and compare the values of unloaded variables without the dimension.
    store
        The object store configuration for reading remote files, as in `virtualize`.
    credential
        The credential for the store, as in `virtualize`.

    Returns
    -------
    VirtualDataset
        The combined dataset, with the sources of all datasets.

    Raises
    ------
    MismatchError
        If the datasets differ. The error lists all differences.
    InvalidInputError
        If a dimension or coordinate is missing, or coordinates overlap.
    ValueError
        If there are no datasets, or not exactly one of `concat_dim` and `by_coords` is given.
    """
    given = list(datasets)
    if not given:
        raise ValueError("no datasets to combine")
    if by_coords == (concat_dim is not None):
        raise ValueError("pass either concat_dim or by_coords=True")
    given, unconverted = _convert_times(given)
    dimensions = [concat_dim] if concat_dim is not None else _find_varying_dims(given)
    if compare_static:
        unconverted += _find_static_differences(given, dimensions, store, credential)
    if concat_dim is not None:
        return _concat(given, concat_dim, unconverted)
    if unconverted:
        raise MismatchError(unconverted)
    return _combine_by_coords(given, dimensions)


def _find_static_differences(
    datasets: Sequence[VirtualDataset],
    dimensions: Sequence[str],
    store: AnyObjectStoreConfig | None,
    credential: AnyCredential | None,
) -> list[Mismatch]:
    """Find unloaded variables without the concatenation dimensions that differ from the first file."""
    from icefloe.virtual.values import open_values

    def values_of(dataset: VirtualDataset) -> dict[str, Any]:
        static = dataset.map_variables(
            lambda _, each: None if each.loaded or {*dimensions} & {*each.dimensions} else each
        )
        paths = [f"{path}/{name}".strip("/") for path, group in static.walk() for name in group.variables]
        return open_values(static, paths, make_access(store, credential)) if paths else {}

    expected = values_of(datasets[0])
    return [
        Mismatch(path, dataset.sources[0].location, "values", "those of the first file", "different")
        for dataset in datasets[1:]
        for path, values in values_of(dataset).items()
        if path in expected and not _has_same_values(expected[path], values)
    ]


def _has_same_values(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc")


def _convert_times(datasets: Sequence[VirtualDataset]) -> tuple[list[VirtualDataset], list[Mismatch]]:
    """Convert loaded times to the units of the first dataset, and list bounds that cannot be converted."""
    unconverted: list[Mismatch] = []
    first = datasets[0]
    return [
        first,
        *(_convert_group_times(first, other, "", other.sources, unconverted) for other in datasets[1:]),
    ], unconverted


def _convert_group_times(
    first: VirtualDataset,
    other: VirtualDataset,
    path: str,
    sources: Sequence[Source],
    unconverted: list[Mismatch],
) -> VirtualDataset:
    existing = {name: each.attributes for name, each in first.variables.items()}
    variables, unmoved = reencode_times(existing, other.variables)
    for bounds, name in unmoved:
        was, now = existing[name]["units"], other.variables[name].attributes["units"]
        unconverted.append(Mismatch(f"{path}{bounds}", sources[0].location, f"units of {name}", was, now))
    groups = {
        name: _convert_group_times(first.groups[name], group, f"{path}{name}/", sources, unconverted)
        if name in first.groups
        else group
        for name, group in other.groups.items()
    }
    return replace(other, variables=variables, groups=groups)


def _combine_by_coords(datasets: list[VirtualDataset], dimensions: Sequence[str]) -> VirtualDataset:
    if not dimensions:
        if len(datasets) == 1:
            return datasets[0]
        raise InvalidInputError(
            f"{datasets[1].sources[0].location} and {datasets[0].sources[0].location} have the same "
            "coordinates, so there is no dimension to combine along",
            kind=ErrorKind.BAD_METADATA,
        ).with_hint(Hint("pass a dimension with {concat_dim}", concat_dim=None))
    *outer, inner = dimensions
    rows: dict[bytes, list[VirtualDataset]] = {}
    for dataset in datasets:
        key = b"".join(_get_coordinate(dataset, name).tobytes() for name in outer)
        rows.setdefault(key, []).append(dataset)
    joined = [_concat(_sort_by(row, inner), inner) for row in rows.values()]
    return _combine_by_coords(joined, outer)


def _find_varying_dims(datasets: Sequence[VirtualDataset]) -> list[str]:
    """Find the dimensions whose loaded coordinates differ between virtual datasets."""
    first = datasets[0]
    names = [name for name, each in first.variables.items() if each.loaded and each.dimensions == (name,)]
    return [
        name
        for name in names
        if any(
            not np.array_equal(_get_coordinate(dataset, name), _get_coordinate(first, name))
            for dataset in datasets[1:]
        )
    ]


def _get_coordinate(dataset: VirtualDataset, name: str) -> Any:
    variable = dataset.variables.get(name)
    if variable is None or not isinstance(variable.chunks, np.ndarray):
        raise InvalidInputError(
            f"{dataset.sources[0].location} has no loaded coordinate {name}, which determines the order",
            kind=ErrorKind.BAD_METADATA,
        ).with_hint(
            Hint(
                "load it with {loadable_variables}, or pass a dimension with {concat_dim}",
                loadable_variables=None,
                concat_dim=None,
            )
        )
    return variable.chunks


def _sort_by(datasets: Sequence[VirtualDataset], dimension: str) -> list[VirtualDataset]:
    """Sort virtual datasets by a coordinate, ascending or descending. Raise InvalidInputError if they
    overlap.
    """
    values = [_get_coordinate(dataset, dimension) for dataset in datasets]
    full = [row for row in range(len(values)) if values[row].size]
    falling = any(values[row][0] > values[row][-1] for row in full)
    full.sort(key=lambda row: values[row][0], reverse=falling)
    for before, after in pairwise(full):
        end, start = values[before][-1], values[after][0]
        if end == start or (end > start) != falling:
            raise InvalidInputError(
                f"{datasets[before].sources[0].location} and {datasets[after].sources[0].location} overlap "
                f"along {dimension}: one ends at {end}, the other begins at {start}",
                kind=ErrorKind.BAD_METADATA,
            )
    return [datasets[row] for row in full]


def _concat(
    datasets: Sequence[VirtualDataset], dimension: str, known: Sequence[Mismatch] = ()
) -> VirtualDataset:
    first = datasets[0]
    if not any(dimension in group.sizes for _, group in first.walk()):
        raise InvalidInputError(
            f"{first.sources[0].location} has no dimension {dimension!r}; add it with expand_dims",
            kind=ErrorKind.BAD_METADATA,
        )
    mismatches = list(known)
    joined = _concat_groups(datasets, dimension, "", mismatches)
    if mismatches:
        raise MismatchError(mismatches)
    return joined


def _concat_groups(
    datasets: Sequence[VirtualDataset], dimension: str, path: str, mismatches: list[Mismatch]
) -> VirtualDataset:
    first = datasets[0]
    names = {name: None for dataset in datasets for name in dataset.variables}
    variables: dict[str, VirtualVariable] = {}
    for name in names:
        found = [dataset.variables.get(name) for dataset in datasets]
        wrong = _compare(found, datasets, dimension, f"{path}{name}")
        mismatches += wrong
        if not wrong:
            variables[name] = _concat_variable([each for each in found if each], datasets, dimension)
    groups = {name: None for dataset in datasets for name in dataset.groups}
    empty = VirtualDataset({}, ())
    return replace(
        first,
        variables=variables,
        sources=tuple(source for dataset in datasets for source in dataset.sources),
        groups={
            name: _concat_groups(
                [replace(dataset.groups.get(name, empty), sources=dataset.sources) for dataset in datasets],
                dimension,
                f"{path}{name}/",
                mismatches,
            )
            for name in groups
        },
        refused=tuple({each.variable: each for dataset in datasets for each in dataset.refused}.values()),
    )


def _compare(
    found: Sequence[VirtualVariable | None],
    datasets: Sequence[VirtualDataset],
    dimension: str,
    path: str,
) -> list[Mismatch]:
    """List how a variable differs from the first dataset, and which files end inside a chunk."""
    wrong: list[Mismatch] = []
    first = found[0]
    expected = {} if first is None else list_properties(make_document(first), loaded=first.loaded)
    for row, (variable, dataset) in enumerate(zip(found, datasets, strict=True)):
        differ = partial(Mismatch, path, dataset.sources[0].location)
        if first is None or variable is None:
            if first is not variable:
                words = ("missing" if each is None else "present" for each in (first, variable))
                wrong.append(differ("variable", *words))
            continue
        if first.loaded != variable.loaded:
            kinds = ("loaded" if each.loaded else "virtual" for each in (first, variable))
            wrong.append(differ("kind", *kinds))
            continue
        if row:
            there = list_properties(make_document(variable), loaded=variable.loaded)
            wrong += [differ(*each) for each in find_differences(expected, there)]
            wrong += [differ(*each) for each in _compare_values(first, variable, dimension)]
        if row < len(found) - 1 and dimension in variable.dimensions and not variable.loaded:
            axis = variable.dimensions.index(dimension)
            size, chunk = variable.shape[axis], variable.chunk_shape[axis]
            if size % chunk:
                wrong.append(
                    differ(f"length of {dimension}", f"a multiple of the chunk length {chunk}", size)
                )
    return wrong


def _compare_values(
    first: VirtualVariable, variable: VirtualVariable, dimension: str
) -> list[tuple[str, Any, Any]]:
    """Compare a variable's shape, except along the concatenation dimension, and its loaded values."""
    if first.dimensions != variable.dimensions:
        return []
    shapes = [
        [size for name, size in zip(each.dimensions, each.shape, strict=True) if name != dimension]
        for each in (first, variable)
    ]
    if shapes[0] != shapes[1]:
        return [("shape", first.shape, variable.shape)]
    is_static = dimension not in first.dimensions and first.loaded
    if is_static and not _has_same_values(first.values, variable.values):
        return [("values", "those of the first file", "different")]
    return []


def _concat_variable(
    variables: Sequence[VirtualVariable], datasets: Sequence[VirtualDataset], dimension: str
) -> VirtualVariable:
    first = variables[0]
    if dimension not in first.dimensions:
        if len({str(each.attributes.get(GEO_TRANSFORM)) for each in variables}) == 1:
            return first
        kept = {name: value for name, value in first.attributes.items() if name != GEO_TRANSFORM}
        return replace(first, attributes=kept)
    axis = first.dimensions.index(dimension)
    if first.loaded:
        values = np.concatenate([np.asarray(each.chunks) for each in variables], axis=axis)
        return make_loaded_variable(first.dimensions, values, first.attributes)
    parts: list[ChunkReferences] = []
    chunks = sources = 0
    for variable, dataset in zip(variables, datasets, strict=True):
        parts.append(variable.references.shift(axis, chunks, sources))
        chunks += variable.grid_shape[axis]
        sources += len(dataset.sources)
    size = sum(each.shape[axis] for each in variables)
    shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    return replace(first, shape=shape, chunks=ChunkReferences.concat(parts))
