"""Choose the target groups of GRIB files from all files of a run and the existing arrays.

The variables of a GRIB file may not fit into one dataset. The file is then split into parts, and each part is
stored in the group of its variables. No groups are needed if every file fits into one dataset and all these
datasets fit together. Otherwise, groups are named after the properties that distinguish parts in any of the
files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from icefloe.ingest.records import FileSchema, VariableSchema
from icefloe.virtual.parsers.grib.groups import Kind, format_level, name_groups

_UNKNOWN = ("unknown", "~", "")


@dataclass(frozen=True, slots=True)
class _Field:
    """A GRIB variable in a file or in the repository, with its level type, step type and levels."""

    name: str
    level_type: str
    step_type: str
    levels: frozenset[float]
    path: str | None = None
    """The repository group that contains the variable; None for a variable in a file."""

    @property
    def types(self) -> tuple[str, str]:
        return self.level_type, self.step_type


def choose_groups(files: Sequence[FileSchema], stored: Mapping[str, FileSchema]) -> list[FileSchema]:
    """Decide for each GRIB file whether it is ingested whole or in parts, and choose the target group of each
    part.

    The schemas of files in other formats are returned unchanged.
    """
    by_url: dict[str, list[FileSchema]] = {}
    for file in files:
        if file.part is not None:
            by_url.setdefault(file.source.url, []).append(file)
    if not by_url:
        return list(files)
    wholes = {url: each for url, some in by_url.items() for each in some if not each.source.group}
    parts = {url: [each for each in some if each.part] for url, some in by_url.items()}
    known = [each for path, schema in stored.items() for each in _list_fields(schema, path)]
    fields = [*known, *(each for some in parts.values() for part in some for each in _list_fields(part))]
    if len(wholes) == len(by_url) and not any(each.path for each in known) and _fit_together(fields):
        chosen = list(wholes.values())
    else:
        chosen = list(_name_parts(parts.values(), fields))
    return [*(file for file in files if file.part is None), *chosen]


def _list_fields(schema: FileSchema, path: str | None = None) -> Iterator[_Field]:
    for each in schema.variables:
        level_type = each.attrs.get("GRIB_typeOfLevel")
        if level_type is None or each.is_coordinate:
            continue
        level_type = "level" if level_type in _UNKNOWN else str(level_type)
        levels = _get_levels(schema, each, level_type)
        yield _Field(each.name, level_type, str(each.attrs.get("GRIB_stepType")), levels, path)


def _get_levels(schema: FileSchema, variable: VariableSchema, level_type: str) -> frozenset[float]:
    values: Any = schema.values.get(level_type)
    if values is None or not _get_dimensions(schema, level_type) <= set(variable.dims):
        return frozenset()
    return frozenset(np.asarray(values, "f8").reshape(-1).tolist())


def _get_dimensions(schema: FileSchema, name: str) -> set[str]:
    found = schema.variable(name)
    return set() if found is None else set(found.dims)


def _fit_together(fields: Sequence[_Field]) -> bool:
    """Return True if all GRIB variables can share one dataset.

    They cannot if a variable name has several level types or step types, or if variables with the same level
    type have different levels.
    """
    types: dict[str, set[tuple[str, str]]] = {}
    for each in fields:
        types.setdefault(each.name, set()).add(each.types)
    return all(len(each) == 1 for each in types.values()) and not _find_separate_levels(
        fields, lambda each: each.level_type
    )


def _find_separate_levels(fields: Iterable[_Field], key: Callable[[_Field], Hashable]) -> set[Hashable]:
    """Return the level types (or other keys) whose variables have different levels, if any has a single
    level.
    """
    found: dict[Hashable, dict[str, frozenset[float]]] = {}
    for each in fields:
        levels = found.setdefault(key(each), {})
        levels[each.name] = levels.get(each.name, frozenset()) | each.levels
    return {
        name
        for name, levels in found.items()
        if len(set(levels.values())) > 1 and any(len(each) == 1 for each in levels.values())
    }


def _name_parts(files: Iterable[Sequence[FileSchema]], fields: Sequence[_Field]) -> Iterator[FileSchema]:
    """Yield the schemas of all parts of GRIB files, each with its target group."""
    numbers = _GroupNames(fields)
    kinds: list[tuple[FileSchema, Kind]] = []
    for parts in files:
        kinds += numbers.assign_kinds(parts)
    left_out = {text for part, _ in kinds for text in part.kinds} - {part.part for part, _ in kinds}
    others = [
        numbers.reduce_kind(kind) for text in sorted(left_out) if (kind := Kind.parse(text)) is not None
    ]
    names = name_groups([*(kind for _, kind in kinds), *others], numbers.named)
    for part, kind in kinds:
        yield replace(part, group=names[kind])


class _GroupNames:
    """Assigns names to GRIB groups. Groups that do not differ in any property are numbered.

    A variable that is already stored keeps its group.
    """

    def __init__(self, fields: Sequence[_Field]) -> None:
        self._apart = _find_separate_levels(fields, lambda each: each.types)
        self._levels: dict[tuple[str, str, str], frozenset[float]] = {}
        for each in fields:
            levels = self._levels.get((each.name, *each.types), frozenset())
            self._levels[(each.name, *each.types)] = levels | each.levels
        self._numbers: dict[Kind, dict[str, int]] = {}
        self.named: dict[Kind, str] = {}
        """The existing groups of the repository, by kind."""
        for each in sorted(
            (each for each in fields if each.path is not None), key=lambda each: each.path or ""
        ):
            self._record_group(each)

    def _record_group(self, field: _Field) -> None:
        kind = self._make_kind(field.types, [field.name])
        numbers = self._numbers.setdefault(kind, {})
        known = [
            number
            for number in range(1, len(numbers) + 1)
            if self.named.get(replace(kind, number=number)) == field.path
        ]
        number = known[0] if known else 1 + max(numbers.values(), default=0)
        numbers[field.name] = number
        self.named[replace(kind, number=number)] = field.path or ""

    def _make_kind(self, types: tuple[str, str], names: Sequence[str]) -> Kind:
        if types not in self._apart:
            return Kind(*types)
        levels: frozenset[float] = frozenset().union(
            *(self._levels.get((name, *types), ()) for name in names)
        )
        return Kind(*types, format_level(levels))

    def reduce_kind(self, kind: Kind) -> Kind:
        """Remove the level from the kind of a group, unless the level is needed to distinguish groups."""
        is_apart = (kind.level_type, kind.step_type) in self._apart
        return Kind(kind.level_type, kind.step_type, kind.level if is_apart else "")

    def assign_kinds(self, parts: Sequence[FileSchema]) -> Iterator[tuple[FileSchema, Kind]]:
        """Yield each part of a file with its kind."""
        used: dict[Kind, set[int]] = {}
        for part in parts:
            fields = list(_list_fields(part))
            kind = self._make_kind(fields[0].types, [each.name for each in fields])
            numbers, taken = self._numbers.setdefault(kind, {}), used.setdefault(kind, set())
            known = {numbers[each.name] for each in fields if each.name in numbers} - taken
            number = min(known) if known else next(n for n in range(1, len(taken) + 2) if n not in taken)
            taken.add(number)
            numbers.update({each.name: number for each in fields})
            yield part, replace(kind, number=number)
