"""Refuse files without data variables, and say what they contain instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import xarray as xr

from icefloe.ingest.discover.sources import Source, local_path
from icefloe.ingest.inspect.schema import BadFile, FileSchema, Reading, VariableSchema, quiet, virtualized
from icefloe.virtual import VirtualDataset

_MOST = 8
"""Longer lists of names are cut off."""
_SELECT = "select one as source group (--source-group)"

Groups: TypeAlias = Mapping[str, Sequence[str]]
"""The paths of groups in a file, and the data variables of each."""


def refuse_without_data(found: FileSchema | BadFile, reading: Reading) -> FileSchema | BadFile:
    """Turn a file that contributes no data variable into a bad file."""
    if isinstance(found, BadFile):
        return _without_group(found, reading) if reading.group and not found.is_sound else found
    if data_variables(found, reading.variables):
        return found
    bad = BadFile(found.source, "", offered=found.offered)
    if reading.variables:
        has = f"it has {_listed(found.offered)}" if found.offered else "they are coordinates"
        named = ", ".join(reading.variables)
        return replace(bad, reason=f"no data variable was selected by {named}: {has}")
    here = f"the group {reading.group} has no data variables" if reading.group else "it has no data variables"
    groups = _groups_below(found.source, reading)
    if any(groups.values()):
        return replace(bad, reason=f"{here}; its groups do: {_shown(groups)}", remedy=_SELECT)
    names = [variable.name for variable in found.variables]
    return replace(
        bad, reason=f"{here}, only {_listed(names)}" if names else f"{here} and no groups with any"
    )


def _without_group(bad: BadFile, reading: Reading) -> BadFile:
    """Say that the file lacks the source group, if that is why it cannot be opened."""
    groups = _groups_below(bad.source, replace(reading, group=None))
    if not groups or any(f"{path}/".startswith(f"{(reading.group or '').strip('/')}/") for path in groups):
        return bad
    has = f"its groups with data are {_shown(groups)}" if any(groups.values()) else "its groups have no data"
    return replace(bad, reason=f"it has no group {reading.group!r}; {has}", remedy=_SELECT)


def data_variables(schema: FileSchema, named: Sequence[str] = ()) -> list[str]:
    """List the variables that hold data: no coordinates, and unless named no bounds and no grid mappings."""
    bounds = {each.attrs.get("bounds") for each in schema.variables if each.is_coordinate}
    return [
        each.name
        for each in schema.variables
        if not each.is_coordinate
        and (each.name in named or not (each.name in bounds or _is_grid_mapping(each)))
    ]


def _is_grid_mapping(variable: VariableSchema) -> bool:
    return not variable.dims and "grid_mapping_name" in variable.attrs


def _groups_below(source: Source, reading: Reading) -> Groups:
    """Find the groups below the source group; none if nothing can list them."""
    try:
        groups = _groups_by_parser(source, reading)
    except Exception:  # noqa: BLE001 - parsers raise whatever they like; xarray may know the file
        groups = _groups_by_xarray(source, reading)
    return {path: names for path, names in groups.items() if path}


def _groups_by_parser(source: Source, reading: Reading) -> Groups:
    above = f"{reading.group.strip('/')}/" if reading.group else ""
    with quiet():
        dataset = virtualized(source, reading)
    return {
        f"{above}{path}" if path else "": [
            *_not_coordinates(group),
            *(each.variable for each in group.refused),
        ]
        for path, group in dataset.walk()
    }


def _not_coordinates(group: VirtualDataset) -> Iterator[str]:
    """Yield the variables that are neither dimensions nor named as coordinates of the others."""
    everything = [group.attributes, *(each.attributes for each in group.variables.values())]
    named = {name for attributes in everything for name in str(attributes.get("coordinates", "")).split()}
    for name, variable in group.variables.items():
        if name not in named and variable.dimensions != (name,):
            yield name


def _groups_by_xarray(source: Source, reading: Reading) -> Groups:
    options: Any = {"engine": reading.engine, "group": reading.group}
    path = local_path(source, reading.storage_options)
    try:
        with quiet():
            groups = xr.open_groups(path, **options)
    except Exception:  # noqa: BLE001 - the file is refused with or without the names of its groups
        return {}
    here = f"/{(reading.group or '').strip('/')}"
    return {path.strip("/"): list(map(str, each.data_vars)) for path, each in groups.items() if path != here}


def _shown(groups: Groups) -> str:
    return _listed([f"{path} ({_listed(names)})" for path, names in groups.items() if names])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
