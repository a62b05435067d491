"""Inspect files: each task returns the schemas of a few files, which the driver compares and sorts.

In virtual and hybrid mode, a task parses each file once, for both its schema and the references to its
chunks.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, Hint, InvalidInputError
from icefloe.ingest.bad_files import BadFile, explain
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.discover.urls import make_reference_url
from icefloe.ingest.inspect.agreement import (
    FileFinding,
    collect_bad_files,
    compare_variables,
    find_label_problems,
)
from icefloe.ingest.inspect.grib_groups import choose_groups
from icefloe.ingest.inspect.groups import ENGINES, Groups, find_groups, list_parsed_groups
from icefloe.ingest.inspect.inspection_cache import InspectionCache
from icefloe.ingest.inspect.open import is_grib, open_virtualized, parse_grib_parts, virtualize_source
from icefloe.ingest.inspect.plain_hdf5 import ReusedDescriptions, describe_plain_file, is_plain
from icefloe.ingest.inspect.reference_spill import ParsedReferences, Spill, SpillWriter
from icefloe.ingest.inspect.scalar_coordinates import expand_scalars
from icefloe.ingest.inspect.schema import (
    DigestTask,
    digest_variables,
    hash_ends,
    inspect_file,
    make_bad_file,
)
from icefloe.ingest.ledger import LedgerRow, Renamed, RunSources, find_renamed
from icefloe.ingest.options import Options
from icefloe.ingest.read_options import ReadOptions
from icefloe.ingest.records import (
    LOGGER,
    RESERVED_NAMES,
    FileSchema,
    SchemaVariants,
    StoredGroup,
    VariableSchema,
    collect_variants,
    drop_bad_files,
    share_equal_parts,
    sort_along,
    split_by_group,
)
from icefloe.storage.base import Storage
from icefloe.virtual import VirtualDataset
from icefloe.virtual.sources import get_container_prefix, to_location
from icefloe.virtual.variables import VirtualVariable, make_document

_LEFT_OUT = "is left out: it does not fit into one dataset with the other variables"
_TAKE_ALONE = Hint(
    "ingest it separately with {source_group} or with {engine} {open_options}",
    source_group=None,
    engine="cfgrib",
    open_options={"filter_by_keys": "{...}"},
)
_FILES_TOGETHER = 64
"""The maximum number of files per task. Schema parts that these files share are sent only once."""
_LOOKS_PER_CORE = 4

_MAX_NAMES = 8
"""The maximum number of names to list in a message."""
_SELECT = Hint("select one as source group ({source_group})", source_group=None)
_SELECT_VARIABLES = Hint("select the other variables ({variables})", variables=None)
_NO_GROUPS = Groups()
_Offered: TypeAlias = Mapping[str, Sequence[str]]
"""The names of the data variables in each group of a file, by group path."""

_NOT_IN_CHUNKS = "its values are not stored in chunks that references can point to"
_MADE_UP = "phony_dim_"
_TEXT = "it is variable-length text, whose values are stored outside of its chunks"


@dataclass(frozen=True, slots=True)
class InspectTask:
    """An executor task that inspects some files."""

    sources: tuple[IngestSource, ...]
    reading: ReadOptions
    with_references: bool
    """True to also parse the files and describe how their chunks could be referenced."""
    storage: Storage | None = None
    """The storage to spill references to; None if references are not needed."""


def inspect_files(task: InspectTask) -> list[FileSchema | BadFile]:
    """Inspect the files of a task. Return a schema for each group with data, or a BadFile for unreadable
    files.
    """
    writer = SpillWriter(task.storage)
    known = ReusedDescriptions() if task.with_references else None
    described: dict[Any, tuple[VariableSchema, VariableSchema]] = {}
    found: list[FileSchema | BadFile] = []
    for source in task.sources:
        schemas, dataset, why = _inspect_source(source, task.reading, known)
        by_path = {} if dataset is None else dict(dataset.walk())
        for schema in schemas:
            if isinstance(schema, FileSchema) and known is not None:
                mine = by_path.get(schema.source.group)
                if mine is not None:
                    writer.put(len(found), ParsedReferences.of(mine))
                    schema = replace(schema, places=_find_locations(source, mine))
                schema = _add_documents(schema, mine, why, described)
            found.append(schema)
    writer.flush()
    spilled = [
        replace(each, spilled=writer.ranges.get(number))
        for number, each in enumerate(found)
        if isinstance(each, FileSchema)
    ]
    files = iter(share_equal_parts(spilled))
    return [each if isinstance(each, BadFile) else next(files) for each in found]


def _inspect_source(
    source: IngestSource, reading: ReadOptions, known: ReusedDescriptions | None
) -> tuple[list[FileSchema | BadFile], VirtualDataset | None, str]:
    """Inspect all groups of a file. Return a schema for each group with data, or a single BadFile.

    With `known`, also return the parsed file with its chunk references, or the reason why it cannot be
    parsed.
    """
    try:
        parts = parse_grib_parts(source, reading) if not reading.group and is_grib(source, reading) else None
    except Exception as error:  # noqa: BLE001 - parsers raise whatever they like about a damaged file
        if known is None:
            return [make_bad_file(source, error)], None, ""
        parts = None
    if parts is not None:
        return _inspect_parts(source, parts, reading), parts, ""
    root, dataset, why = (
        (inspect_file(source, reading), None, "") if known is None else _parse(source, reading, known)
    )
    groups = _find_groups_below(source, reading, dataset)
    members = [_inspect_group(source, path, reading) for path in groups.with_arrays]
    return _select_with_data(root, members, reading, groups), dataset, why


def _find_groups_below(source: IngestSource, reading: ReadOptions, dataset: VirtualDataset | None) -> Groups:
    """Return the groups of a file below its root, using the parsed file if available."""
    if reading.group or reading.engine not in ENGINES:
        return Groups()
    try:
        return list_parsed_groups(dataset) if dataset is not None else find_groups(source, reading)
    except Exception:  # noqa: BLE001 - the error was reported when the file was opened
        return Groups()


def _inspect_group(source: IngestSource, path: str, reading: ReadOptions) -> FileSchema | BadFile:
    found = inspect_file(replace(source, group=path), reading)
    if isinstance(found, BadFile):
        return replace(found, reason=f"group {path}: {found.reason}")
    return replace(found, group=path)


def _inspect_parts(
    source: IngestSource, parsed: VirtualDataset, reading: ReadOptions
) -> list[FileSchema | BadFile]:
    """Inspect a GRIB file. If it fits into one dataset, return a schema of the whole file. Also return one
    for each part.

    A file with a single part is returned only as a whole.
    """
    found: list[FileSchema | BadFile] = []
    kinds = list(parsed.groups)
    if parsed.variables or not kinds:
        whole = inspect_file(source, reading)
        part = kinds[0] if len(kinds) == 1 else ""
        found.append(whole if isinstance(whole, BadFile) else replace(whole, part=part, kinds=tuple(kinds)))
    if len(kinds) > 1:
        for kind in kinds:
            each = inspect_file(replace(source, group=kind), reading)
            found.append(each if isinstance(each, BadFile) else replace(each, part=kind, kinds=tuple(kinds)))
    return _select_with_data(found[0], found[1:], reading)


def _select_with_data(
    root: FileSchema | BadFile,
    members: Sequence[FileSchema | BadFile],
    reading: ReadOptions,
    groups: Groups = _NO_GROUPS,
) -> list[FileSchema | BadFile]:
    """Select the groups of a file that have data variables. Return a BadFile if a group is unreadable or none
    has data.

    If variables are selected by name, only groups that contain at least one of them are selected.
    """
    if bad := [each for each in (root, *members) if isinstance(each, BadFile)]:
        return [refuse_without_data(bad[0], reading)]
    files = [each for each in (root, *members) if isinstance(each, FileSchema)]
    if found := [each for each in files if list_data_variables(each, reading.variables)]:
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


def _find_locations(source: IngestSource, dataset: VirtualDataset) -> tuple[str, ...]:
    """Return one referenced location per virtual chunk container, excluding the inspected file or store
    itself.
    """
    own = to_location(make_reference_url(source.address) if source.is_remote else source.url)
    found: dict[str, str] = {}
    for each in (
        dataset.sources
    ):  # the sources of a Zarr store are its chunks, whose locations begin with the store's location
        if not each.location.startswith(own):
            found.setdefault(get_container_prefix(each.location), each.location)
    return tuple(found.values())


def _parse(
    source: IngestSource, reading: ReadOptions, known: ReusedDescriptions
) -> tuple[FileSchema | BadFile, VirtualDataset | None, str]:
    """Return the schema of a source, its parsed dataset, and the reason if parsing failed."""
    schema: FileSchema | None = None
    try:
        with ignore_warnings(), open_virtualized(source, reading) as (dataset, members):
            if members is not None and is_plain(reading):
                # If this fails, xarray reads the schema instead and reports the error.
                with suppress(Exception):
                    schema = describe_plain_file(members, source, reading, hash_ends(source, reading), known)
    except Exception as error:  # noqa: BLE001 - what cannot be parsed can still be copied
        return inspect_file(source, reading), None, explain(error)
    return schema or inspect_file(source, reading), dataset, ""


def _adopt_names(
    virtual: VirtualVariable, variable: VariableSchema, sizes: Mapping[str, int]
) -> VirtualVariable:
    """Rename the unnamed dimensions of a parsed variable as the xarray engine does. Every engine numbers them
    differently.
    """
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


def _add_documents(
    schema: FileSchema, dataset: VirtualDataset | None, why: str, described: dict[Any, Any]
) -> FileSchema:
    """Add to each variable of a schema the zarr.json for its chunks, or the reason why they cannot be
    referenced.

    `described` caches earlier results, so that equal variables of many files are the same object, which is
    sent once.
    """
    refused = {} if dataset is None else {each.variable: each.sentence for each in dataset.refused}
    found = []
    for variable in schema.variables:
        virtual = None if dataset is None else dataset.variables.get(variable.name)
        document, refusal = None, ""
        if virtual is None or virtual.loaded:
            default = _TEXT if variable.dtype == "O" and virtual is not None else _NOT_IN_CHUNKS
            refusal = why or refused.get(variable.name, default)
        else:
            document = json.dumps(make_document(_adopt_names(virtual, variable, schema.sizes)))
        key = (id(variable), document, refusal)
        if key not in described:  # the value keeps the variable alive, so its id is not reused
            described[key] = variable, replace(variable, document=document, refusal=refusal)
        found.append(described[key][1])
    return replace(schema, variables=tuple(found))


def refuse_without_data(found: FileSchema | BadFile, reading: ReadOptions) -> FileSchema | BadFile:
    """Return a BadFile instead of the schema if a file has no data variables to ingest."""
    if isinstance(found, BadFile):
        return _explain_missing_group(found, reading) if reading.group and not found.is_sound else found
    if list_data_variables(found, reading.variables):
        return found
    bad = BadFile(found.source, "", offered=found.offered)
    if reading.variables:
        has = f"it has {_format_names(found.offered)}" if found.offered else "they are coordinates"
        named = ", ".join(reading.variables)
        return replace(bad, reason=f"no data variable was selected by {named}: {has}")
    here = f"the group {reading.group} has no data variables" if reading.group else "it has no data variables"
    groups = _find_groups(found.source, reading)
    if reading.group:
        groups = {path: each for path, each in groups.items() if _is_below(path, reading.group)}
    if any(groups.values()):
        return replace(bad, reason=f"{here}; its groups do: {_format_groups(groups)}", remedy=_SELECT)
    names = [variable.name for variable in found.variables]
    return replace(
        bad, reason=f"{here}, only {_format_names(names)}" if names else f"{here} and no groups with any"
    )


def _explain_missing_group(bad: BadFile, reading: ReadOptions) -> BadFile:
    """Improve the reason of a BadFile if the selected group does not exist in the file."""
    groups = _find_groups(bad.source, reading)
    if not groups or any(_is_below(path, reading.group or "") for path in groups):
        return bad
    has = (
        f"its groups with data are {_format_groups(groups)}"
        if any(groups.values())
        else "its groups have no data"
    )
    return replace(bad, reason=f"it has no group {reading.group!r}; {has}", remedy=_SELECT)


def list_data_variables(schema: FileSchema, named: Sequence[str] = ()) -> list[str]:
    """List the data variables of a file, without coordinates. Bounds and grid mappings are excluded unless
    named.
    """
    bounds = {each.attrs.get("bounds") for each in schema.variables if each.is_coordinate}
    return [
        each.name
        for each in schema.variables
        if not each.is_coordinate
        and (each.name in named or not (each.name in bounds or _is_grid_mapping(each)))
    ]


def _is_grid_mapping(variable: VariableSchema) -> bool:
    return not variable.dims and "grid_mapping_name" in variable.attrs


def _find_groups(source: IngestSource, reading: ReadOptions) -> _Offered:
    """Return the data variables of all groups of a source. Return an empty mapping if they cannot
    be listed.
    """
    everything = replace(reading, group=None, variables=())
    try:
        parsed = virtualize_source(source, everything) if is_grib(source, everything) else None
    except Exception:  # noqa: BLE001 - the file is refused with or without the names of its groups
        return {}
    paths = _find_groups_below(source, everything, parsed).with_arrays
    found = [_inspect_group(source, path, everything) for path in paths]
    return {each.group: list_data_variables(each) for each in found if isinstance(each, FileSchema)}


def _is_below(path: str, group: str) -> bool:
    return f"{path}/".startswith(f"{group.strip('/')}/")


def _format_groups(groups: _Offered) -> str:
    return _format_names([f"{path} ({_format_names(names)})" for path, names in groups.items() if names])


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


@dataclass(frozen=True, slots=True)
class Inspected:
    """The result of inspecting all files: sorted schemas, bad files, and findings."""

    files: tuple[FileSchema, ...]
    bad: tuple[BadFile, ...]
    findings: tuple[FileFinding, ...]
    renamed: tuple[Renamed, ...] = ()
    """Files that were already ingested under other names. If references point to a renamed file, `files`
    contains it as well.
    """
    variables: frozenset[str] = frozenset()
    """The names of all variables in the files and the target group."""
    variants: Mapping[str, SchemaVariants] = field(default_factory=dict)
    """The distinct schemas of each variable, by target group."""
    dims: frozenset[str] = frozenset()
    """The dimensions of all files."""

    @property
    def new_names(self) -> dict[str, str]:
        """The new names of renamed files that references point to, by old name."""
        return {each.was: each.source.url for each in self.renamed if each.is_referenced}


def split_batches(files: Sequence[FileSchema], size: int | None) -> Iterator[Sequence[FileSchema]]:
    """Split inspected files into batches, one per commit. All groups of a file are in the same batch."""
    by_url: dict[str, list[FileSchema]] = {}
    for file in files:
        by_url.setdefault(file.source.url, []).append(file)
    whole = list(by_url.values())
    size = size or max(1, len(whole))
    for start in range(0, len(whole), size):
        yield [group for file in whole[start : start + size] for group in file]


def inspect_sources(
    stored: Mapping[str, FileSchema],
    selection: RunSources,
    options: Options,
    executor: Executor,
    spill: Spill | None = None,
    cache: InspectionCache | None = None,
) -> Inspected:
    """Inspect the selected sources, and compare them with each other and with the target group.

    `stored` contains the schemas of the target group and the groups below it. Chunk references that parsers
    find are spilled. Files whose schemas are in the `cache` are not opened.
    """
    LOGGER.info("%s", selection.outcome)
    sources, rows = selection.outcome.wanted, selection.ledger.rows
    if not sources:
        return Inspected((), (), ())
    with_references = options.mode != "native"
    known = cache.find(sources) if cache is not None else {}
    left = [source for source in sources if source.url not in known]
    share = max(1, min(_FILES_TOGETHER, -(-len(left) // (_LOOKS_PER_CORE * executor.parallelism))))
    storage = spill.storage if spill is not None and with_references else None
    tasks = [
        InspectTask(tuple(left[at : at + share]), options.reading, with_references, storage)
        for at in range(0, len(left), share)
    ]
    inspected = executor.map(
        Task(inspect_files, "groups of files", per_core=4, items_per_task=8, thread_safe=False), tasks
    )
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
    bad += [*_find_lost_groups(files, rows), *_find_reserved_names(files)]
    lost = {each.source.url for each in bad}
    files = [each for each in files if each.source.url not in lost]
    concat_dim = options.combining.concat_dim
    files = share_equal_parts(
        [
            each
            for group, mine in split_by_group(files).items()
            for each in expand_scalars(mine, stored.get(group), concat_dim)
        ]
    )
    findings = [
        FileFinding(file.source.url, name, _LEFT_OUT, "note", _TAKE_ALONE)
        for file in files
        for name in file.left_out
    ]
    if files:
        findings += _note_new_dimension([*files, *stored.values()], concat_dim)
    is_replaced = bool(rows) and {row.source for row in rows} <= {each.url for each in sources}
    for group, mine in split_by_group(files).items():
        findings += compare_variables(mine, stored.get(group), concat_dim)
        findings += find_label_problems(mine, None if is_replaced else stored.get(group), concat_dim)
    bad += collect_bad_files(findings, files)
    kept = drop_bad_files(files, bad)
    names = {variable.name for schema in (*kept, *stored.values()) for variable in schema.variables}
    renamed = find_renamed(kept, stored, rows, selection.urls)
    there = {each.source.url for each in renamed if not each.is_referenced}
    new = sort_along([file for file in kept if file.source.url not in there], concat_dim)
    count = len({file.source.url for file in kept})
    LOGGER.info("%s inspected, %d left out", counted(count, "file"), len(bad))
    return Inspected(
        tuple(new),
        tuple(bad),
        tuple(findings),
        tuple(renamed),
        frozenset(names),
        {group: collect_variants(mine) for group, mine in split_by_group(new).items()},
        frozenset(dim for file in new for dim in file.sizes),
    )


def _find_lost_groups(found: Sequence[FileSchema], rows: Sequence[LedgerRow]) -> Iterator[BadFile]:
    """Yield a BadFile for each changed file that no longer contains one of its groups. Otherwise the old data
    of that group would remain in the repository.
    """
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
            has, had = (
                _format_names([group or "the root" for group in each]) for each in (sorted(now[url]), gone)
            )
            yield BadFile(file.source, f"its data was in {had} when it was ingested, but is in {has} now")


def _find_reserved_names(files: Sequence[FileSchema]) -> Iterator[BadFile]:
    """Yield a BadFile for each variable or group whose name is reserved."""
    for file in files:
        for name, reason in RESERVED_NAMES.items():
            if name in file.group.split("/"):
                text = f"the group {name} cannot be stored: its name is reserved for {reason}"
                yield BadFile(file.source, text, _SELECT)
            if any(variable.name == name for variable in file.variables):
                text = f"cannot be stored: its name is reserved for {reason}"
                yield BadFile(file.source, text, _SELECT_VARIABLES, variable=name)


def _refuse_unknown_variables(
    names: Sequence[str], found: Sequence[FileSchema | BadFile], stored: Sequence[FileSchema]
) -> None:
    """Raise InvalidInputError if a selected variable exists neither in the files nor in the repository."""
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


def _note_new_dimension(schemas: Sequence[FileSchema], dim: str | None) -> list[FileFinding]:
    """Return a note if no file has the concatenation dimension. Raise an error if an existing dimension has a
    similar name.
    """
    if dim is None or any(dim in schema.sizes or schema.variable(dim) is not None for schema in schemas):
        return []
    dims = sorted({each for schema in schemas for each in schema.sizes})
    near = difflib.get_close_matches(dim, dims, n=1, cutoff=0.7)
    if near:
        raise InvalidInputError(
            f"no file has the dimension {dim!r}; did you mean {near[0]}?", ErrorKind.INVALID_ARRAY_METADATA
        )
    note = f"is not in any file (they have {', '.join(dims)}): it is created, with one step per file"
    return [FileFinding("", dim, note, "note")]


def digest_values(
    names: tuple[str, ...],
    sources: Mapping[int, IngestSource | StoredGroup],
    reading: ReadOptions,
    executor: Executor,
) -> dict[tuple[int, str], str]:
    """Hash the values of some variables in all sources that contain them, in executor tasks."""
    tasks = [DigestTask(source, reading, names) for source in sources.values()]
    results = executor.map(
        Task(digest_variables, "files compared", per_core=4, items_per_task=256, thread_safe=False), tasks
    )
    return {
        (number, name): value
        for number, found in zip(sources, results, strict=True)
        for name, value in found.items()
    }
