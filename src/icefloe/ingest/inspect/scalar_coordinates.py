"""Expand scalar coordinates to dimensions, for files that contain a single time, step or level.

xarray cannot order such files by their coordinates. This module adds the dimensions that the data would have
if it were in a single file: for GRIB files, the dimensions that cfgrib uses, and otherwise a time dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from icefloe.ingest.records import FileSchema, VariableSchema

_GRIB_AXES = ("number", "time", "step")


def expand_scalars(
    files: Sequence[FileSchema], stored: FileSchema | None, concat_dim: str | None
) -> list[FileSchema]:
    """Expand scalar coordinates to dimensions if they differ between the files of a group.

    Scalar coordinates that are dimensions in other files or in the repository are also expanded. With
    `concat_dim`, only this coordinate is expanded.
    """
    schemas = [*files, *([stored] if stored is not None else [])]
    if concat_dim is not None:
        dims = [concat_dim] if concat_dim in _list_scalars(files) else []
    else:
        dims = _find_new_dimensions(schemas)
    if not dims:
        return list(files)
    return [add_dimensions(file, dims, set(_find_moving_coordinates(schemas, dims))) for file in files]


def _find_moving_coordinates(schemas: Sequence[FileSchema], dims: Sequence[str]) -> Iterator[str]:
    """Yield the names of coordinates that vary along the new dimensions."""
    names = dict.fromkeys(
        each.name
        for schema in schemas
        for each in schema.variables
        if each.is_coordinate and each.name not in each.dims
    )
    for name in names:
        found = [each for schema in schemas if (each := schema.variable(name)) is not None]
        if name in dims or _is_varying(name, schemas) or any(set(dims) & set(each.dims) for each in found):
            yield name


def add_dimensions(schema: FileSchema, dims: Sequence[str], coordinates: Collection[str]) -> FileSchema:
    """Expand scalar coordinates to dimensions of all data variables and of some coordinates of a file."""
    new = [dim for dim in dims if dim not in schema.sizes and dim in schema.values]
    if not new:
        return schema
    variables, values = [], dict(schema.values)
    for each in schema.variables:
        own = [each.name] if each.name in new else new
        if each.is_coordinate:
            if each.name in each.dims or each.name not in coordinates:
                variables.append(each)
                continue
            if each.name in values:
                values[each.name] = np.asarray(values[each.name])[(None,) * len(own)]
        elif "grid_mapping_name" in each.attrs:
            variables.append(each)
            continue
        elif each.name in values:  # bounds
            values[each.name] = np.asarray(values[each.name])[(None,) * len(own)]
        variables.append(replace(each, dims=(*own, *each.dims)))
    sizes = {**dict.fromkeys(new, 1), **schema.sizes}
    return replace(schema, variables=tuple(variables), sizes=sizes, values=values)


def _find_new_dimensions(schemas: Sequence[FileSchema]) -> list[str]:
    """List the scalar coordinates to expand to dimensions, in cfgrib's order or in the order of the files."""
    scalars = list(_list_scalars(schemas))
    elsewhere = {dim for schema in schemas for dim in schema.sizes}
    levels = [str(level) for level in dict.fromkeys(_list_level_types(schemas))]
    if levels:
        axes = [name for name in (*_GRIB_AXES, *levels) if name in scalars]
        return [name for name in axes if name in elsewhere or _is_varying(name, schemas)]
    found = [name for name in scalars if name in elsewhere]
    if found or not _has_repeated_labels(schemas):
        return found
    varying = [name for name in scalars if _is_varying(name, schemas)]
    times = [name for name in varying if _is_time(name, schemas)]
    return times[:1] or (varying if len(varying) == 1 else [])


def _list_scalars(schemas: Iterable[FileSchema]) -> Iterator[str]:
    seen: dict[str, None] = {}
    for schema in schemas:
        for each in schema.variables:
            if each.is_coordinate and not each.dims and each.name in schema.values:
                seen.setdefault(each.name)
    yield from seen


def _list_level_types(schemas: Iterable[FileSchema]) -> Iterator[Any]:
    for schema in schemas:
        for each in schema.variables:
            if not each.is_coordinate and "GRIB_typeOfLevel" in each.attrs:
                yield each.attrs["GRIB_typeOfLevel"]


def _is_varying(name: str, schemas: Sequence[FileSchema]) -> bool:
    """Return True if a scalar coordinate differs between files that share a data variable."""
    found: dict[str, Any] = {}
    for schema in schemas:
        value = schema.values.get(name)
        if value is None or name in schema.sizes:
            continue
        for each in _list_data_variables(schema):
            first = found.setdefault(each.name, value)
            if first is not value and not np.array_equal(first, value):
                return True
    return False


def _has_repeated_labels(schemas: Sequence[FileSchema]) -> bool:
    """Return True if files that share a data variable have the same labels along all dimensions."""
    found: dict[str, list[FileSchema]] = {}
    for schema in schemas:
        for each in _list_data_variables(schema):
            found.setdefault(each.name, []).append(schema)
    alike = [same for same in found.values() if len(same) > 1]
    return any(all(_has_same_labels(same[0], other) for other in same[1:]) for same in alike)


def _has_same_labels(one: FileSchema, other: FileSchema) -> bool:
    return one.sizes == other.sizes and all(
        one.values.get(dim) is other.values.get(dim)
        or np.array_equal(one.values.get(dim, ()), other.values.get(dim, ()))
        for dim in one.sizes
    )


def _list_data_variables(schema: FileSchema) -> Iterator[VariableSchema]:
    return (each for each in schema.variables if not each.is_coordinate)


def _is_time(name: str, schemas: Sequence[FileSchema]) -> bool:
    found = (schema.variable(name) for schema in schemas)
    return any(each is not None and ("M" in each.dtype or "calendar" in each.packing) for each in found)
