"""Compare static fields between files, and the labels of dimensions that are not concatenated.

Static fields, such as an orography, are variables without the concatenation dimension. They are stored once,
so their values must be equal in all files. xarray would either silently use the values of the first file
(`compat="override"`) or name only the variable in its error. This module reports every file that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe.errors import Hint
from icefloe.ingest.combine.pieces import EXISTING
from icefloe.ingest.combine.runs import JOIN, NAME_DIMENSION
from icefloe.ingest.inspect.agreement import FileFinding
from icefloe.ingest.options import Combining
from icefloe.ingest.records import FileSchema, VariableSchema

_HERE = "the repository"


@dataclass(frozen=True, slots=True)
class ComparedSource:
    """A file or a part of the existing arrays whose static fields are compared."""

    number: int
    """The index of the file; negative for a part of the existing arrays."""
    schema: FileSchema
    box: Mapping[str, tuple[int, int]]
    """The region of the part in the existing arrays; empty for a file."""

    @property
    def name(self) -> str:
        """The name of the compared file or repository, for messages."""
        return _HERE if self.is_stored else self.schema.source.url

    @property
    def is_stored(self) -> bool:
        """True if the static fields are from the existing arrays, False if they are from a file."""
        return self.number <= EXISTING

    @property
    def names(self) -> frozenset[str]:
        """The data variables that are searched for static fields."""
        return frozenset(each.name for each in self.schema.variables if not each.is_coordinate)


def find_static_groups(groups: Mapping[str, Sequence[FileSchema]], how: Combining) -> set[str]:
    """Find static groups, in which all files have the same labels, so that each variable is stored once.

    `groups` maps group paths to the schemas of the files and of the existing arrays.
    """
    dim = how.concat_dim
    if how.data_vars == "all":
        return set()
    moving = {
        path
        for path, schemas in groups.items()
        if (_has_dimension(schemas, dim) if dim is not None else _has_different_labels(schemas))
    }
    return groups.keys() - moving if moving else set()


def _has_dimension(schemas: Sequence[FileSchema], dim: str) -> bool:
    return any(dim in schema.sizes or schema.variable(dim) is not None for schema in schemas)


def _has_different_labels(schemas: Sequence[FileSchema]) -> bool:
    """Return True if the labels or the size of any dimension differ between schemas."""
    for dim in {dim for schema in schemas for dim in schema.sizes}:
        mine = [schema for schema in schemas if dim in schema.sizes]
        if len({schema.sizes[dim] for schema in mine}) > 1:
            return True
        # An array with a single label may be stored as a scalar coordinate, without the dimension.
        labels = [np.atleast_1d(schema.values[dim]) for schema in schemas if dim in schema.values]
        if any(each is not labels[0] and not np.array_equal(each, labels[0]) for each in labels):
            return True
    return False


def find_stored_only(given: Sequence[ComparedSource], how: Combining) -> set[str]:
    """Return the names of existing static fields that no new file contains. They remain unchanged."""
    moving = find_moving_dimensions(given, how.concat_dim)
    files = {variable.name for each in given if each.number != EXISTING for variable in each.schema.variables}
    return {
        variable.name
        for each in given
        for variable in each.schema.variables
        if each.number == EXISTING
        and not variable.is_coordinate
        and variable.name not in files
        and moving.isdisjoint(variable.dims)
    }


Region = tuple[tuple[str, tuple[int, int]], ...]
"""The start and the stop (exclusive) along the dimensions that bound a region."""


@dataclass(frozen=True, slots=True)
class StoredTiles:
    """Static fields of a tiled grid for which the repository already contains the tiles of all new files."""

    names: frozenset[str]
    tiles: Mapping[Region, ComparedSource]
    """The existing tiles by region, for comparison with files."""


def find_stored_tiles(given: Sequence[ComparedSource], how: Combining) -> StoredTiles:
    """Find static fields for which the repository already contains the tiles of all new files."""
    moving = find_moving_dimensions(given, how.concat_dim)
    stored, files = ([each for each in given if each.is_stored is wanted] for wanted in (True, False))
    here = {variable.name for each in stored for variable in each.schema.variables}
    regions: dict[str, list[tuple[Region | None, ComparedSource]]] = {}
    for each in files if how.data_vars in (None, "minimal") else ():
        for variable in each.schema.variables:
            dims = set(variable.dims)
            if variable.name in here and not variable.is_coordinate and dims & moving and not moving <= dims:
                place = _find_region_in(stored, each.schema, variable.dims)
                regions.setdefault(variable.name, []).append((place, each))
    known = {name: found for name, found in regions.items() if all(place for place, _ in found)}
    tiles: dict[Region, ComparedSource] = {}
    for place, each in (each for found in known.values() for each in found):
        if place is not None and place not in tiles:
            tiles[place] = ComparedSource(EXISTING - 1 - len(tiles), each.schema, {})
    return StoredTiles(frozenset(known), tiles)


def _find_region_in(
    stored: Sequence[ComparedSource], schema: FileSchema, dims: Sequence[str]
) -> Region | None:
    """Return the region of the existing arrays with the same labels as a file. Return None if no part
    contains all of these labels consecutively.
    """
    for part in stored:
        spans = [_find_span_in(part, schema, dim) for dim in dims]
        if None not in spans:
            return tuple((dim, span) for dim, span in zip(dims, spans, strict=True) if span is not None)
    return None


def _find_span_in(part: ComparedSource, schema: FileSchema, dim: str) -> tuple[int, int] | None:
    here, mine = part.schema.values.get(dim), schema.values.get(dim)
    if here is None or mine is None or not mine.size or here.ndim != 1:
        return None
    (at,) = np.nonzero(here == mine[0])
    if len(at) != 1 or not np.array_equal(here[at[0] : at[0] + len(mine)], mine):
        return None
    start = int(at[0]) + part.box.get(dim, (0, 0))[0]
    return start, start + len(mine)


def find_undigested(
    given: Sequence[ComparedSource], how: Combining, digests: Mapping[Any, str]
) -> tuple[str, ...]:
    """Return the names of static fields whose values must be hashed before they can be compared."""
    unknown = {
        name: None
        for name, members in _find_static_fields(given, how)
        for each in members
        if name not in each.schema.values and (each.number, name) not in digests
    }
    return tuple(unknown)


def find_differing_fields(
    given: Sequence[ComparedSource], how: Combining, digests: Mapping[tuple[int, str], str]
) -> Iterator[FileFinding]:
    """Yield a finding for each file with a static field that differs from the existing array, or else from
    most files.
    """
    for name, members in _find_static_fields(given, how):
        values = [each.schema.values.get(name) for each in members]
        if values[0] is not None and all(value is values[0] for value in values):
            continue  # the usual case
        for each, usual in _find_unusual(members, name, digests):
            yield _describe_difference(each, usual, name)


def find_differing_labels(given: Sequence[ComparedSource], concat_dim: str | None) -> Iterator[FileFinding]:
    """Yield the reasons why `join="exact"` fails: different labels, or static fields without values at some
    labels.

    Without `concat_dim`, files are compared along all dimensions except the one with the most distinct
    labels.
    """
    dims = list({dim: None for each in given for dim in each.schema.sizes if dim in each.schema.values})
    hint: Hint | None = JOIN
    if concat_dim is None:
        uncovered = [finding for dim in dims for finding in _find_uncovered(given, dim)]
        yield from uncovered
        if uncovered or not dims:
            return
        concat_dim = max(dims, key=lambda dim: _rank_dimension(given, dim))
        hint = Hint.any_of(NAME_DIMENSION, JOIN)
    for dim in dims:
        if concat_dim == dim:
            continue
        members = [each for each in given if dim in each.schema.values]
        for each, usual in _find_unusual(members, dim, {}):
            yield FileFinding(each.name, dim, f"has different labels than {usual.name}", "error", hint)


def find_missing_labels(given: Sequence[ComparedSource]) -> Iterator[FileFinding]:
    """Yield a finding for each file that has no labels along a dimension for which other sources
    have labels.
    """
    for dim in {dim: None for each in given for dim in each.schema.sizes if dim in each.schema.values}:
        for each in given:
            if dim in each.schema.sizes and dim not in each.schema.values and not each.is_stored:
                text = "has no labels, but other files have them"
                yield FileFinding(each.name, dim, text, "error", NAME_DIMENSION)


def _rank_dimension(given: Sequence[ComparedSource], dim: str) -> tuple[int, bool]:
    """Return a sort key that is largest for the most likely concatenation dimension."""
    labels = [each.schema.values[dim] for each in given if dim in each.schema.values]
    distinct = len({(values.shape, values.tobytes()) for values in labels if values.dtype != object})
    return distinct, any(values.dtype.kind == "M" for values in labels)


def _find_unusual(
    members: Sequence[ComparedSource], name: str, digests: Mapping[tuple[int, str], str]
) -> Iterator[tuple[ComparedSource, ComparedSource]]:
    """Yield each file whose values differ from the existing arrays, or else from most files, with a source
    that has the usual values.
    """
    keys = [_make_value_key(each, name, digests) for each in members]
    known = [key for key, each in zip(keys, members, strict=True) if each.is_stored]
    usual = known[0] if known else Counter(keys).most_common(1)[0][0]
    first = members[keys.index(usual)]
    for key, each in zip(keys, members, strict=True):
        if key != usual and not each.is_stored:
            yield each, first


def _find_uncovered(given: Sequence[ComparedSource], dim: str) -> Iterator[FileFinding]:
    """Yield a finding for each variable that has no values at some labels of a dimension."""
    labels: dict[str, set[Any]] = {}
    for each in given:
        for variable in each.schema.variables:
            if dim in variable.dims and dim in each.schema.values and variable.name != dim:
                labels.setdefault(variable.name, set()).update(each.schema.values[dim].tolist())
    for each in given:
        mine = each.schema.values.get(dim, np.array([]))
        for name, known in labels.items():
            rows = [row for row, at in enumerate(mine.tolist()) if at not in known]
            if not rows:
                continue
            text = f"is missing for {dim} {mine[rows[0]]}"
            if each.number != EXISTING:
                yield FileFinding(each.name, name, text, "error", JOIN)
            for other in given if each.number == EXISTING else ():
                if other.number != EXISTING and other.schema.variable(name) is not None:
                    yield FileFinding(other.name, name, f"{text}, which the repository has", "error", JOIN)


def _describe_difference(one: ComparedSource, other: ComparedSource, name: str) -> FileFinding:
    variable = one.schema.variable(name)
    is_coordinate = variable is not None and variable.is_coordinate
    option = {"coords": "different"} if is_coordinate else {"data_vars": "all"}
    hint = Hint(
        f"use the first file with {{compat}}, or store the values of each file with {{{next(iter(option))}}}",
        compat="override",
        **option,
    )
    mine, theirs = (each.schema.values.get(name) for each in (one, other))
    if mine is not None and theirs is not None and mine.size == theirs.size == 1:
        text = f"is {mine.reshape(-1)[0]}, but {theirs.reshape(-1)[0]} in {other.name}"
    else:
        text = f"differs from that of {other.name}"
    return FileFinding(one.name, name, text, "error", hint)


def _find_static_fields(
    given: Sequence[ComparedSource], how: Combining
) -> Iterator[tuple[str, list[ComparedSource]]]:
    """Yield the name of each static field, with the sources whose values must be equal.

    In a tiled grid, these are the sources with the same labels along the dimensions of the field.
    """
    if how.compat == "override" or len(given) < 2:
        return
    moving = find_moving_dimensions(given, how.concat_dim)
    is_new = how.concat_dim is not None and not any(how.concat_dim in each.schema.sizes for each in given)
    members: dict[str, list[tuple[ComparedSource, VariableSchema]]] = {}
    for each in given:
        for variable in each.schema.variables:
            members.setdefault(variable.name, []).append((each, variable))
    for name, found in members.items():
        wanted = how.coords if found[0][1].is_coordinate else how.data_vars or ("all" if is_new else None)
        dims = {dim for _, variable in found for dim in variable.dims}
        if wanted in ("all", "different") or name in dims or name == how.concat_dim or moving <= dims:
            continue
        rows: dict[Any, list[ComparedSource]] = {}
        for each, variable in found:
            if dims.isdisjoint(each.box):  # only whole variables have digests
                place = tuple(_make_label_key(each.schema, dim) for dim in variable.dims if dim in moving)
                rows.setdefault((variable.dims, place), []).append(each)
        for row in rows.values():
            if len({each.number for each in row}) > 1:
                yield name, row


def find_moving_dimensions(given: Sequence[ComparedSource], concat_dim: str | None) -> set[str]:
    """Return the dimensions that static fields lack: `concat_dim`, or dimensions whose labels differ between
    sources.
    """
    if concat_dim is not None:
        return {concat_dim}
    found = set()
    for dim in {dim for each in given for dim in each.schema.values if dim in each.schema.sizes}:
        labels = [each.schema.values[dim] for each in given if dim in each.schema.values]
        if any(each is not labels[0] and not np.array_equal(each, labels[0]) for each in labels):
            found.add(dim)
    return found


def _make_label_key(schema: FileSchema, dim: str) -> Any:
    labels = schema.values.get(dim)
    return schema.sizes[dim] if labels is None else (labels.shape, repr(labels.reshape(-1)[:1]))


def _make_value_key(given: ComparedSource, name: str, digests: Mapping[tuple[int, str], str]) -> Any:
    """Return a key that is equal for equal values of a field. Missing values count as equal."""
    value = given.schema.values.get(name)
    if value is None:
        return digests.get((given.number, name))
    return value.shape, tuple("missing" if each != each else str(each) for each in value.reshape(-1))
