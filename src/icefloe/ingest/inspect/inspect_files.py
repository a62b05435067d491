"""Looking into files, some at a time: what they have in common is sent home once.

Those that may be referred to are opened once, for their schema and their references.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import xarray as xr

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.discover.sources import Source, local_path
from icefloe.ingest.discover.urls import reference_location
from icefloe.ingest.inspect.agreement import (
    Finding,
    bad_files,
    compare,
    label_problems,
)
from icefloe.ingest.inspect.grib_groups import choose_groups
from icefloe.ingest.inspect.groups import ENGINES, Groups, find_groups, groups_of
from icefloe.ingest.inspect.inspection_cache import InspectionCache
from icefloe.ingest.inspect.open import grib_parts, is_grib, open_virtualized, virtualized
from icefloe.ingest.inspect.plain_hdf5 import Known, is_plain, plain_schema
from icefloe.ingest.inspect.reference_spill import Parsed, Spill, SpillWriter
from icefloe.ingest.inspect.scalar_coordinates import expand_scalars
from icefloe.ingest.inspect.schema import DigestTask, InspectFileTask, content_id, digest, inspect_file
from icefloe.ingest.ledger import LedgerRow, Renamed, Selection, find_renamed
from icefloe.ingest.options import Options
from icefloe.ingest.records import (
    LOGGER,
    BadFile,
    FileSchema,
    Reading,
    Stored,
    VariableSchema,
    Ways,
    left_over,
    reason,
    shared,
    sorted_along,
    split_by_group,
    ways_of,
)
from icefloe.storage.base import Storage
from icefloe.virtual import VirtualDataset
from icefloe.virtual.sources import get_container_prefix, to_location
from icefloe.virtual.variables import VirtualVariable, make_document

_LEFT_OUT = "is left out: it does not fit beside the others in one dataset"
_TAKE_ALONE = Hint(
    "take it by itself with {source_group} or with {engine} {open_options}",
    source_group=None,
    engine="cfgrib",
    open_options={"filter_by_keys": "{...}"},
)
_FILES_TOGETHER = 64
"""So many files are parsed for one answer, at most: what they have in common is sent once."""
_LOOKS_PER_CORE = 4

_MOST = 8
"""Longer lists of names are cut off."""
_SELECT = Hint("select one as source group ({source_group})", source_group=None)
_NO_GROUPS = Groups()
_Offered: TypeAlias = Mapping[str, Sequence[str]]
"""The paths of groups in a file, and the data variables of each."""

_NOT_IN_CHUNKS = "its values are not in chunks that can be referred to"
_MADE_UP = "phony_dim_"
_TEXT = "it is text of any length, which is not in its chunks"


@dataclass(frozen=True, slots=True)
class InspectTask:
    """Files to look at."""

    sources: tuple[Source, ...]
    reading: Reading
    storage: Storage | None = None
    """Where references are put aside; None where nobody will want them."""


def inspect_files(task: InspectTask) -> list[FileSchema | BadFile]:
    """Look into some files. Whatever goes wrong with one is an answer, not an exception."""
    found = [each for source in task.sources for each in _inspect_groups(source, task.reading)]
    files = iter(shared([each for each in found if isinstance(each, FileSchema)]))
    return [each if isinstance(each, BadFile) else next(files) for each in found]


def _inspect_groups(source: Source, reading: Reading) -> list[FileSchema | BadFile]:
    """Look into all groups of a file: a schema for each that has data, or a single bad file."""
    try:
        parts = grib_parts(source, reading) if not reading.group and is_grib(source, reading) else None
    except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
        return [BadFile(source, reason(error))]
    if parts is not None:
        return _inspect_parts(source, parts, reading)
    root = inspect_file(InspectFileTask(source, reading))
    try:
        groups = find_groups(source, reading)
    except Exception:  # noqa: BLE001 - whoever opened it has said what is wrong
        groups = Groups()
    return _with_data(root, _inspect_each(source, groups, reading), reading, groups)


def _inspect_each(source: Source, groups: Groups, reading: Reading) -> list[FileSchema | BadFile]:
    return [_inspect_group(source, path, reading) for path in groups.with_arrays]


def _inspect_group(source: Source, path: str, reading: Reading) -> FileSchema | BadFile:
    found = inspect_file(InspectFileTask(replace(source, group=path), reading))
    if isinstance(found, BadFile):
        return replace(found, reason=f"group {path}: {found.reason}")
    return replace(found, group=path)


def _inspect_parts(source: Source, parsed: VirtualDataset, reading: Reading) -> list[FileSchema | BadFile]:
    """Look into a GRIB file: a schema for all of it if it fits into one dataset, and one for each part.

    A single part is that of all.
    """
    found: list[FileSchema | BadFile] = []
    kinds = list(parsed.groups)
    if parsed.variables or not kinds:
        whole = inspect_file(InspectFileTask(source, reading))
        part = kinds[0] if len(kinds) == 1 else ""
        found.append(whole if isinstance(whole, BadFile) else replace(whole, part=part, kinds=tuple(kinds)))
    if len(kinds) > 1:
        for kind in kinds:
            each = inspect_file(InspectFileTask(replace(source, group=kind), reading))
            found.append(each if isinstance(each, BadFile) else replace(each, part=kind, kinds=tuple(kinds)))
    return _with_data(found[0], found[1:], reading)


def _with_data(
    root: FileSchema | BadFile,
    members: Sequence[FileSchema | BadFile],
    reading: Reading,
    groups: Groups = _NO_GROUPS,
) -> list[FileSchema | BadFile]:
    """Select the groups of a file that have variables; a bad file if one cannot be read, or none has data.

    If variables were named, these are the groups that have one of them.
    """
    if bad := [each for each in (root, *members) if isinstance(each, BadFile)]:
        return [refuse_without_data(bad[0], reading)]
    files = [each for each in (root, *members) if isinstance(each, FileSchema)]
    if found := [each for each in files if data_variables(each, reading.variables)]:
        others = {**groups.without_arrays, **{each.group: each.attrs for each in files if not each.variables}}
        if reading.variables:
            others = {path: attrs for path, attrs in others.items() if _is_above(path, found)}
        else:
            found = [each for each in files if each.variables]
        return [replace(found[0], groups_without_data=dict(sorted(others.items()))), *found[1:]]
    offered = tuple(name for each in files for name in each.offered)
    return [refuse_without_data(replace(files[0], offered=offered), reading)]


def _is_above(path: str, files: Sequence[FileSchema]) -> bool:
    return any(f"{each.group}/".startswith(f"{path}/" if path else "") for each in files)


def inspect_for_references(task: InspectTask) -> list[FileSchema | BadFile]:
    """Look into some files, and at what of them can be referred to; each is parsed once."""
    writer = SpillWriter(task.storage)
    known, shared = Known(), _Shared()
    found: list[FileSchema | BadFile] = []
    for source in task.sources:
        schemas, dataset, why = _inspect_with_references(source, task.reading, known)
        by_path = {} if dataset is None else dict(dataset.walk())
        for schema in schemas:
            if isinstance(schema, BadFile):
                found.append(schema)
                continue
            mine = by_path.get(schema.source.group)
            if mine is not None:
                writer.put(len(found), Parsed.of(mine))
                schema = replace(schema, places=_places(source, mine))
            found.append(shared.with_documents(schema, mine, why))
    writer.flush()
    return [
        replace(each, spilled=writer.ranges.get(number)) if isinstance(each, FileSchema) else each
        for number, each in enumerate(found)
    ]


def _inspect_with_references(
    source: Source, reading: Reading, known: Known
) -> tuple[list[FileSchema | BadFile], VirtualDataset | None, str]:
    """Look into all groups of a file, and parse it: the schemas, its references, and why it has none."""
    with suppress(Exception):  # whoever opens it will say what is wrong
        if not reading.group and is_grib(source, reading):
            parsed = grib_parts(source, reading)
            return _inspect_parts(source, parsed, reading), parsed, ""
    root, dataset, why = _looked(source, reading, known)
    groups = _find_parsed_groups(source, reading, dataset)
    return _with_data(root, _inspect_each(source, groups, reading), reading, groups), dataset, why


def _find_parsed_groups(source: Source, reading: Reading, dataset: VirtualDataset | None) -> Groups:
    """Find the groups below the root of a file, which a parser may have found already."""
    if reading.group or reading.engine not in ENGINES:
        return Groups()
    try:
        return groups_of(dataset) if dataset is not None else find_groups(source, reading)
    except Exception:  # noqa: BLE001 - whoever opened it has said what is wrong
        return Groups()


def _places(source: Source, dataset: VirtualDataset) -> tuple[str, ...]:
    """A location in each place that references lead to, other than the file or the store itself."""
    own = to_location(reference_location(source.address) if source.is_remote else source.url)
    found: dict[str, str] = {}
    for each in dataset.sources:  # of Zarr stores each is a chunk, and begins as the store does
        if not each.location.startswith(own):
            found.setdefault(get_container_prefix(each.location), each.location)
    return tuple(found.values())


def _looked(
    source: Source, reading: Reading, known: Known
) -> tuple[FileSchema | BadFile, VirtualDataset | None, str]:
    """Return the schema of a source, its references, and the reason if it has none."""
    schema: FileSchema | None = None
    try:
        with ignore_warnings(), open_virtualized(source, reading) as (dataset, members):
            if members is not None and is_plain(reading):
                # If this fails, xarray reads the schema instead and reports what is wrong.
                with suppress(Exception):
                    schema = plain_schema(members, source, reading, content_id(source, reading), known)
    except Exception as error:  # noqa: BLE001 - what cannot be parsed can still be copied
        return inspect_file(InspectFileTask(source, reading)), None, reason(error)
    return schema or inspect_file(InspectFileTask(source, reading)), dataset, ""


def _named_alike(
    virtual: VirtualVariable, variable: VariableSchema, sizes: Mapping[str, int]
) -> VirtualVariable:
    """With the engine's names for dimensions that have none in the file: each counts in its own way."""
    names = variable.raw_dims
    if len(names) != len(virtual.dimensions):
        return virtual
    pairs = zip(virtual.dimensions, names, strict=True)
    is_made_up = all(
        one == other or one.startswith(_MADE_UP) or other.startswith(_MADE_UP) for one, other in pairs
    )
    if is_made_up and virtual.shape == tuple(sizes.get(dim, -1) for dim in names):
        return replace(virtual, dimensions=names)
    return virtual


class _Shared:
    """Says of variables how they would be referred to; what files have alike is one object, sent as one."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str | None, str], VariableSchema] = {}
        self._alive: list[VariableSchema] = []

    def with_documents(self, schema: FileSchema, dataset: VirtualDataset | None, why: str) -> FileSchema:
        """What a inspect_file found, and how each variable would be referred to, or why it cannot be."""
        refused = {} if dataset is None else {each.variable: each.sentence for each in dataset.refused}
        found = []
        for variable in schema.variables:
            virtual = None if dataset is None else dataset.variables.get(variable.name)
            if virtual is None or virtual.loaded:
                told = _TEXT if variable.dtype == "O" and virtual is not None else _NOT_IN_CHUNKS
                text = why or refused.get(variable.name, told)
                found.append(self._one(variable, None, text))
            else:
                named = _named_alike(virtual, variable, schema.sizes)
                found.append(self._one(variable, json.dumps(make_document(named)), ""))
        return replace(schema, variables=tuple(found))

    def _one(self, variable: VariableSchema, document: str | None, refusal: str) -> VariableSchema:
        key = (id(variable), document, refusal)
        if key not in self._known:
            self._alive.append(variable)  # so that nothing else gets its number
            self._known[key] = replace(variable, document=document, refusal=refusal)
        return self._known[key]


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


def _groups_below(source: Source, reading: Reading) -> _Offered:
    """Find the groups below the source group; none if nothing can list them."""
    try:
        groups = _groups_by_parser(source, reading)
    except Exception:  # noqa: BLE001 - parsers raise whatever they like; xarray may know the file
        groups = _groups_by_xarray(source, reading)
    return {path: names for path, names in groups.items() if path}


def _groups_by_parser(source: Source, reading: Reading) -> _Offered:
    above = f"{reading.group.strip('/')}/" if reading.group else ""
    with ignore_warnings():
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


def _groups_by_xarray(source: Source, reading: Reading) -> _Offered:
    options: Any = {"engine": reading.engine, "group": reading.group}
    path = local_path(source, reading.storage_options)
    try:
        with ignore_warnings():
            groups = xr.open_groups(path, **options)
    except Exception:  # noqa: BLE001 - the file is refused with or without the names of its groups
        return {}
    here = f"/{(reading.group or '').strip('/')}"
    return {path.strip("/"): list(map(str, each.data_vars)) for path, each in groups.items() if path != here}


def _shown(groups: _Offered) -> str:
    return _listed([f"{path} ({_listed(names)})" for path, names in groups.items() if names])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


@dataclass(frozen=True, slots=True)
class Inspected:
    """Files that can be read, in order, those that cannot, and what was noticed."""

    files: tuple[FileSchema, ...]
    bad: tuple[BadFile, ...]
    findings: tuple[Finding, ...]
    renamed: tuple[Renamed, ...] = ()
    """Files that the repository has under other names. Those that references lead to are among `files`."""
    variables: frozenset[str] = frozenset()
    """The names of all variables, of the files and of the target group."""
    ways: Mapping[str, Ways] = field(default_factory=dict)
    """The ways in which the files have each variable, by the group that they go to."""
    dims: frozenset[str] = frozenset()
    """All dimensions of the files."""

    def batches(self, size: int | None) -> Iterator[Sequence[FileSchema]]:
        """Yield the files of each commit: so many, or all. The groups of a file stay together."""
        by_url: dict[str, list[FileSchema]] = {}
        for file in self.files:
            by_url.setdefault(file.source.url, []).append(file)
        files = list(by_url.values())
        size = size or max(1, len(files))
        for start in range(0, len(files), size):
            yield [group for file in files[start : start + size] for group in file]

    @property
    def new_names(self) -> dict[str, str]:
        """The new names of files that references lead to, by their old names."""
        return {each.was: each.source.url for each in self.renamed if each.is_referred_to}


def inspect_sources(
    stored: Mapping[str, FileSchema],
    selection: Selection,
    options: Options,
    executor: Executor,
    spill: Spill | None = None,
    cache: InspectionCache | None = None,
) -> Inspected:
    """Inspect the selected files, and compare them with each other and with the target group.

    `stored` are the schemas of the target group and of groups below it. References that parsers find are
    spilled. Files that the `cache` knows are not opened.
    """
    sources, rows = selection.outcome.wanted, selection.ledger.rows
    if not sources:
        return Inspected((), (), ())
    native = options.mode == "native"
    known = cache.find(sources) if cache is not None else {}
    left = [source for source in sources if source.url not in known]
    share = max(1, min(_FILES_TOGETHER, -(-len(left) // (_LOOKS_PER_CORE * executor.parallelism))))
    storage = None if spill is None or native else spill.storage
    tasks = [
        InspectTask(tuple(left[at : at + share]), options.reading, storage)
        for at in range(0, len(left), share)
    ]
    look = inspect_files if native else inspect_for_references
    inspected = executor.map(Task(look, "groups of files", per_core=4, items_per_task=8), tasks)
    by_url = {**dict.fromkeys(source.url for source in sources), **known}
    for each in chain.from_iterable(inspected):
        by_url[each.source.url] = [*(by_url[each.source.url] or []), each]
    found = [each for members in by_url.values() for each in members or ()]
    if spill is not None:
        spill.track(each.spilled for each in found if isinstance(each, FileSchema))
    if cache is not None:
        cache.add(each for each in found if isinstance(each, FileSchema))
    bad = [each for each in found if isinstance(each, BadFile)]
    _refuse_unknown_variables(options.reading.variables, found, list(stored.values()))
    files = choose_groups([each for each in found if isinstance(each, FileSchema)], stored)
    bad += _without_former_groups(files, rows)
    lost = {each.source.url for each in bad}
    files = [each for each in files if each.source.url not in lost]
    concat_dim = options.combining.concat_dim
    files = shared(
        [
            each
            for group, mine in split_by_group(files).items()
            for each in expand_scalars(mine, stored.get(group), concat_dim)
        ]
    )
    findings = [
        Finding(file.source.url, name, _LEFT_OUT, "note", _TAKE_ALONE)
        for file in files
        for name in file.left_out
    ]
    if files:
        findings += _new_dimension([*files, *stored.values()], concat_dim)
    is_replaced = bool(rows) and {row.source for row in rows} <= {each.url for each in sources}
    for group, mine in split_by_group(files).items():
        findings += compare(mine, stored.get(group), concat_dim)
        findings += label_problems(mine, None if is_replaced else stored.get(group), concat_dim)
    bad += bad_files(findings, files)
    kept = left_over(files, bad)
    names = {variable.name for schema in (*kept, *stored.values()) for variable in schema.variables}
    renamed = find_renamed(kept, stored, rows, selection.urls)
    there = {each.source.url for each in renamed if not each.is_referred_to}
    new = sorted_along([file for file in kept if file.source.url not in there], concat_dim)
    count = len({file.source.url for file in kept})
    LOGGER.info("%s inspected, %d left out", counted(count, "file"), len(bad))
    return Inspected(
        tuple(new),
        tuple(bad),
        tuple(findings),
        tuple(renamed),
        frozenset(names),
        {group: ways_of(mine) for group, mine in split_by_group(new).items()},
        frozenset(dim for file in new for dim in file.sizes),
    )


def _without_former_groups(found: Sequence[FileSchema], rows: Sequence[LedgerRow]) -> Iterator[BadFile]:
    """Find changed files that lack a group that they had: what the repository has of it would stay."""
    before: dict[str, set[str]] = {}
    for row in rows:
        before.setdefault(row.source, set()).add(row.target_group)
    now: dict[str, set[str]] = {}
    files = [each for each in found if each.source.url in before]
    for file in files:
        now.setdefault(file.source.url, set()).add(file.group)
    for file in {each.source.url: each for each in files}.values():
        url = file.source.url
        if gone := sorted(before[url] - now[url]):
            has, had = (_listed([group or "the root" for group in each]) for each in (sorted(now[url]), gone))
            yield BadFile(file.source, f"its data was in {had} when it was ingested, and now is in {has}")


def _refuse_unknown_variables(
    names: Sequence[str], found: Sequence[FileSchema | BadFile], stored: Sequence[FileSchema]
) -> None:
    """Raise InvalidInputError for a name that is a variable of no file, nor of the repository."""
    files = [each for each in found if isinstance(each, FileSchema)]
    known = {variable.name for schema in (*files, *stored) for variable in schema.variables}
    offered = sorted({name for each in found for name in each.offered})
    for name in names:
        if name not in known and offered:
            near = difflib.get_close_matches(name, offered, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the files have {', '.join(offered)}"
            raise InvalidInputError(
                f"no file has the variable {name!r}; {hint}", ErrorKind.INVALID_ARRAY_METADATA
            )


def _new_dimension(schemas: Sequence[FileSchema], dim: str | None) -> list[Finding]:
    """A dimension to put files together along that none of them has: wanted, or mistyped."""
    if dim is None or any(dim in schema.sizes or schema.variable(dim) is not None for schema in schemas):
        return []
    dims = sorted({each for schema in schemas for each in schema.sizes})
    near = difflib.get_close_matches(dim, dims, n=1, cutoff=0.7)
    if near:
        raise InvalidInputError(
            f"no file has the dimension {dim!r}; did you mean {near[0]}?", ErrorKind.INVALID_ARRAY_METADATA
        )
    told = f"is in no file, which have {', '.join(dims)}: it is made, and each file is one step along it"
    return [Finding("", dim, told, "note")]


def digest_values(
    names: tuple[str, ...], sources: Mapping[int, Source | Stored], reading: Reading, executor: Executor
) -> dict[tuple[int, str], str]:
    """Hash the values of variables in all sources that have them, by the number of the source."""
    tasks = [DigestTask(source, reading, names) for source in sources.values()]
    results = executor.map(Task(digest, "files compared", per_core=4, items_per_task=256), tasks)
    return {
        (number, name): value
        for number, found in zip(sources, results, strict=True)
        for name, value in found.items()
    }
