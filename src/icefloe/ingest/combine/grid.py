"""Combine files with the existing arrays. xarray combines datasets without values, so no data is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from icefloe.errors import Hint
from icefloe.ingest.bad_files import BadFile, ProblemsError
from icefloe.ingest.combine.existing import (
    ExistingPart,
    TargetState,
    drop_variables,
    find_overwritten,
    find_remaining,
    split_existing,
)
from icefloe.ingest.combine.pieces import EXISTING, PieceArray, Pieces, UndigestedError
from icefloe.ingest.combine.runs import (
    NAME_DIMENSION,
    CannotCombineError,
    Digests,
    combine_datasets,
    find_runs,
    make_empty_dataset,
)
from icefloe.ingest.combine.static_fields import (
    ComparedSource,
    find_differing_fields,
    find_differing_labels,
    find_missing_labels,
    find_stored_only,
    find_stored_tiles,
    find_undigested,
)
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.inspect.agreement import (
    LEAVE_OUT,
    FileFinding,
    collect_bad_files,
    find_order_problems,
    format_label,
)
from icefloe.ingest.inspect.scalar_coordinates import add_dimensions
from icefloe.ingest.options import Combining, Options
from icefloe.ingest.records import FileSchema, StoredGroup, VariableSchema, make_label_key

_NO_DIMENSION = ""
"""A placeholder concatenation dimension for static groups. No real dimension has this name."""

Box = Mapping[str, tuple[int, int]]
"""The start and the stop (exclusive) along each dimension."""


def find_boxes(dataset: xr.Dataset) -> dict[int, dict[str, tuple[int, int]]]:
    """Return the region of the combined grid that each source fills, by source number."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for _, dims, pieces in _iterate_pieces(dataset):
        columns = (pieces.source.tolist(), pieces.starts.tolist(), pieces.stops.tolist())
        for source, starts, stops in zip(*columns, strict=True):
            if source == EXISTING:
                continue
            box = found.setdefault(source, {})
            for dim, start, stop in zip(dims, starts, stops, strict=True):
                known = box.get(dim, (start, stop))
                box[dim] = (min(known[0], start), max(known[1], stop))
    return found


def find_partial_dimensions(dataset: xr.Dataset) -> tuple[str, ...]:
    """Return the dimensions along which at least one source covers only a part of the combined grid."""
    found: set[str] = set()
    for _, dims, pieces in _iterate_pieces(dataset):
        partial = (pieces.shape != [dataset.sizes[dim] for dim in dims]).any(axis=0).tolist()
        found.update(dim for dim, is_partial in zip(dims, partial, strict=True) if is_partial)
    return tuple(str(dim) for dim in dataset.sizes if dim in found)


def find_moves(dataset: xr.Dataset) -> dict[str, list[tuple[int, int, int]]]:
    """Return, for each dimension, the ranges of existing cells in the combined grid and their offsets."""
    found: dict[str, set[tuple[int, int, int]]] = {}
    for _, dims, pieces in _iterate_pieces(dataset):
        mine = pieces.select(pieces.source == EXISTING)
        for axis, dim in enumerate(dims):
            begin, size = mine.source_starts[:, axis], mine.shape[:, axis]
            rows = np.stack([begin, begin + size, mine.starts[:, axis] - begin], axis=1)
            found.setdefault(dim, set()).update(map(tuple, rows[mine.axes[:, axis] >= 0].tolist()))
    return {dim: sorted(spans) for dim, spans in found.items()}


def _iterate_pieces(dataset: xr.Dataset) -> Iterator[tuple[str, tuple[str, ...], Pieces]]:
    """Yield the name, dimensions and pieces of each variable that is backed by pieces."""
    for name, variable in dataset.variables.items():
        if isinstance(variable.data, PieceArray):
            yield str(name), tuple(map(str, variable.dims)), variable.data.pieces


@dataclass(frozen=True, slots=True)
class Combined:
    """Files and existing arrays, combined into one grid: a dataset without values."""

    dataset: xr.Dataset
    files: tuple[FileSchema, ...]
    """The combined files. A piece's source number is an index into this tuple."""
    boxes: Mapping[int, Mapping[str, tuple[int, int]]]
    moves: Mapping[str, Sequence[tuple[int, int, int]]]
    """The offsets of existing cells, as returned by `find_moves`."""
    findings: tuple[FileFinding, ...]
    state: TargetState
    """The state of the target group before the files are added."""


@dataclass(frozen=True, slots=True)
class DigestRequest:
    """A request to hash the values of some variables. Files can be combined only after comparing these
    values.
    """

    names: tuple[str, ...]
    sources: Mapping[int, IngestSource | StoredGroup]
    """The sources to hash, by number."""

    def merge_digests(self, known: Digests, more: Digests) -> dict[tuple[int, str], str]:
        """Return the known and the newly computed digests together.

        Raise CannotCombineError if there are no new digests.
        """
        if more.keys() - known.keys():
            return {**known, **more}
        hint = Hint.any_of(Hint("leave out files that repeat others"), NAME_DIMENSION)
        raise CannotCombineError(f"several files have {self.names[0]} at the same position").with_hint(hint)


@dataclass(frozen=True, slots=True)
class Misfits:
    """Files that cannot be combined with the other files."""

    bad: tuple[BadFile, ...]


def combine_files(
    files: Sequence[FileSchema],
    state: TargetState,
    options: Options,
    digests: Digests,
    *,
    is_static: bool = False,
) -> Combined | DigestRequest | Misfits:
    """Combine files with the existing arrays of a group in one grid, without reading data.

    Existing regions of files that are ingested again are left out. If values must be compared, return a
    DigestRequest; the caller then hashes the values, and calls the function again with the `digests`. In a
    static group, files are not concatenated: all files must agree, and each variable is taken from the first
    source that contains it. Raise ProblemsError if the files cannot be combined and no single file is the
    cause.
    """
    combine = _merge if is_static else _combine
    try:
        return combine(files, state, options, digests)
    except _MisfitError as error:
        bad = collect_bad_files(error.findings, files)
        if named := [each for each in bad if each.source.url]:
            return Misfits(tuple(named))
        raise ProblemsError(bad) from error


class _MisfitError(Exception):
    """Error raised for files that cannot be combined with each other."""

    def __init__(self, findings: Sequence[FileFinding]) -> None:
        super().__init__(findings)
        self.findings = findings


def _combine(
    files: Sequence[FileSchema], state: TargetState, options: Options, digests: Digests
) -> Combined | DigestRequest:
    how, replacing = options.combining, options.on_change == "ingest"
    existing, rows = state.existing, state.rows
    new = list(files)
    old = split_existing(existing, rows, new, replacing=replacing) if existing is not None else []
    old = [replace(part, schema=_add_dimensions_of(part.schema, new)) for part in old]
    new, old = _unify_coordinates(new, old)
    given = [ComparedSource(EXISTING, part.schema, part.box) for part in old]
    given += [ComparedSource(number, file, {}) for number, file in enumerate(new)]
    if left_alone := find_stored_only(given, how):
        old = [replace(part, schema=drop_variables(part.schema, left_alone)) for part in old]
        given[: len(old)] = [ComparedSource(EXISTING, part.schema, part.box) for part in old]
    twice = find_overwritten(existing, rows, new) if existing is not None else []
    sources: dict[int, IngestSource | StoredGroup] = {number: file.source for number, file in enumerate(new)}
    if existing is not None:
        sources[EXISTING] = existing.stored
    stored = find_stored_tiles(given, how)
    tiles = list(stored.tiles.values())
    if existing is not None:
        here = existing.stored
        sources |= {tile.number: replace(here, region=region) for region, tile in stored.tiles.items()}
    if unknown := find_undigested([*given, *tiles], how, digests):
        return DigestRequest(unknown, sources)
    if differing := list(find_differing_fields([*given, *tiles], how, digests)):
        raise _MisfitError(differing)
    old = [replace(part, schema=drop_variables(part.schema, stored.names)) for part in old]
    added = [drop_variables(file, stored.names) for file in new] if stored.names else new
    try:
        dataset = combine_datasets(_make_empty_datasets(added, old, how, digests), how)
    except UndigestedError as error:
        return DigestRequest((error.name,), sources)
    except CannotCombineError as error:
        if error.cause == "labels" and (wrong := list(find_differing_labels(given, how.concat_dim))):
            raise _MisfitError(wrong) from error
        if error.cause == "missing labels" and (wrong := list(find_missing_labels(given))):
            raise _MisfitError(wrong) from error
        found = find_overlaps(given) if error.cause == "overlap" else []
        if not found:
            raise
        raise _MisfitError([_offer_to_replace(each, twice) for each in found]) from error
    if how.compat != "override" and how.join in (None, "outer", "exact"):
        lost = [_offer_to_replace(each, twice) for each in find_losses(dataset, given, digests)]
        if lost:
            raise _MisfitError(lost)
    dataset = _replace_lost_fields(dataset, new, state, digests)
    where = find_boxes(dataset)
    where |= {n: locate_file(file, dataset) for n, file in enumerate(new) if n not in where}
    names = {number: file.source.url for number, file in enumerate(new)}
    findings = tuple(find_order_problems(dataset, find_partial_dimensions(dataset), where, names))
    if any(finding.severity == "error" for finding in findings):
        raise _MisfitError([_offer_to_replace(each, twice) for each in findings])
    if replacing:
        findings += tuple(FileFinding("", "", f"existing data is replaced: {each}", "note") for each in twice)
    return Combined(dataset, tuple(new), where, find_moves(dataset), findings, state)


def _merge(
    files: Sequence[FileSchema], state: TargetState, options: Options, digests: Digests
) -> Combined | DigestRequest:
    """Combine the sources of a static group, in which each variable is stored once."""
    existing = find_remaining(state, files)
    old = [] if existing is None else [ExistingPart(existing.schema, {})]
    new, old = _unify_coordinates(files, old)
    given = [ComparedSource(EXISTING, part.schema, {}) for part in old]
    given += [ComparedSource(number, file, {}) for number, file in enumerate(new)]
    how = replace(options.combining, concat_dim=_NO_DIMENSION, data_vars="minimal")
    if unknown := find_undigested(given, how, digests):
        sources: dict[int, IngestSource | StoredGroup] = {
            number: file.source for number, file in enumerate(new)
        }
        return DigestRequest(unknown, sources | ({EXISTING: existing.stored} if existing is not None else {}))
    differing = [*find_differing_labels(given, _NO_DIMENSION), *find_differing_fields(given, how, digests)]
    if differing:
        raise _MisfitError(differing)
    dataset, *others = (make_empty_dataset(each.number, each.schema, digests) for each in given)
    try:
        for each in others:
            dataset = dataset.merge(each.drop_vars(dataset.variables.keys(), errors="ignore"))
    except ValueError as error:
        raise CannotCombineError(" ".join(str(error).split())) from error
    dataset = _replace_lost_fields(dataset, new, state, digests)
    where = {number: locate_file(file, dataset) for number, file in enumerate(new)}
    return Combined(dataset, tuple(new), where, find_moves(dataset), (), state)


def _replace_lost_fields(
    dataset: xr.Dataset, new: Sequence[FileSchema], state: TargetState, digests: Digests
) -> xr.Dataset:
    """Replace lost static fields in the combined dataset with those of the first new file that has them."""
    found = {}
    for name in state.lost:
        number, file = next(each for each in enumerate(new) if each[1].variable(name) is not None)
        field = make_empty_dataset(number, file, digests).variables[name]
        if field.dims == dataset.variables[name].dims:
            found[name] = field
    return dataset.assign(found)


def _make_empty_datasets(
    new: Sequence[FileSchema], old: Sequence[ExistingPart], how: Combining, digests: Digests
) -> list[xr.Dataset]:
    """Return datasets without values for all files and all parts of the existing arrays, sorted by label."""
    datasets = [make_empty_dataset(EXISTING, part.schema, digests, part.begin) for part in old]
    runs = find_runs(new, [part.schema for part in old], how, digests)
    if runs is None:
        datasets += [make_empty_dataset(number, file, digests) for number, file in enumerate(new)]
    else:
        datasets += runs.make_datasets(digests)
    return _sort_datasets(datasets, how.concat_dim)


def _add_dimensions_of(schema: FileSchema, new: Sequence[FileSchema]) -> FileSchema:
    """Return the schema of existing arrays with scalar coordinates expanded to the dimensions of
    new files.
    """
    dims = dict.fromkeys(dim for file in new for dim in file.sizes)
    added = {each.name for file in new for each in file.variables if each.dims != each.own_dims}
    return add_dimensions(schema, list(dims), added)


def _unify_coordinates(
    new: Sequence[FileSchema], old: Sequence[ExistingPart]
) -> tuple[list[FileSchema], list[ExistingPart]]:
    """Drop a coordinate's values from all schemas if they are unknown in some file. Tasks then write the
    coordinate like data.
    """
    schemas = [*new, *(part.schema for part in old)]
    unknown = {
        each.name
        for schema in schemas
        for each in schema.variables
        if each.is_coordinate and each.name not in schema.values
    }

    def without(schema: FileSchema) -> FileSchema:
        if unknown.isdisjoint(schema.values):
            return schema
        values = {name: value for name, value in schema.values.items() if name not in unknown}
        return replace(schema, values=values)

    return list(map(without, new)), [replace(part, schema=without(part.schema)) for part in old]


def _offer_to_replace(finding: FileFinding, twice: Sequence[str]) -> FileFinding:
    """Extend a finding with the suggestion to use `on_change="ingest"`, which replaces data that the ledger
    does not list.
    """
    if not twice:
        return finding
    return replace(
        finding,
        text=f"{finding.text}; the ledger does not list the existing data at {twice[0]}",
        hint=Hint("omit these files, or replace the existing data with {on_change}", on_change="ingest"),
    )


def _sort_datasets(datasets: list[xr.Dataset], dim: str | None) -> list[xr.Dataset]:
    if dim is None or any(dim not in each.coords for each in datasets):
        return datasets
    return sorted(datasets, key=lambda each: make_label_key(each[dim].values))


def find_losses(
    dataset: xr.Dataset, given: Sequence[ComparedSource], digests: Mapping[tuple[int, str], str]
) -> Iterator[FileFinding]:
    """Yield a finding for each source whose values are lost in the combined grid. Sources that equal another
    source are not lost.
    """
    along = set(_find_dimensions_of_parts(dataset, given))
    by_name = {name: _CombinedPieces(name, pieces, digests) for name, _, pieces in _iterate_pieces(dataset)}
    for each in given:
        for variable in each.schema.variables:
            if not _has_position(each.schema, variable, along) or variable.name not in by_name:
                continue
            found = by_name[variable.name]
            if not found.has(each, variable) and not found.has_equal(each.number):
                yield _describe_loss(each, given, along)
                break


class _CombinedPieces:
    """The pieces of one combined variable, used to check that no source is lost."""

    def __init__(self, name: str, pieces: Pieces, digests: Mapping[tuple[int, str], str]) -> None:
        self._name, self._pieces, self._digests = name, pieces, digests
        self._numbers = set(np.unique(pieces.source).tolist())
        self._here = pieces.select(pieces.source == EXISTING)

    def has(self, given: ComparedSource, variable: VariableSchema) -> bool:
        if given.number != EXISTING:
            return given.number in self._numbers
        met = np.ones(len(self._here), bool)
        for axis, dim in enumerate(variable.dims):
            if dim in given.box:
                start, stop = given.box[dim]
                begin = self._here.source_starts[:, axis]
                met &= (begin < stop) & (begin + self._here.shape[:, axis] > start)
        return bool(met.any())

    def has_equal(self, number: int) -> bool:
        """Return True if the combined variable contains a source with the same digest as the given source."""
        digest = self._digests.get((number, self._name))
        return digest is not None and any(
            self._digests.get((other, self._name)) == digest for other in self._numbers
        )


def _find_dimensions_of_parts(dataset: xr.Dataset, given: Sequence[ComparedSource]) -> Iterator[str]:
    """Yield the dimensions along which at least one source covers only a part of the dataset."""
    for dim, size in ((str(dim), size) for dim, size in dataset.sizes.items()):
        index = dataset.indexes.get(dim)
        labels = None if index is None else index.to_numpy()
        there = [each.schema for each in given if dim in each.schema.sizes]
        mine = {id(schema.values[dim]): schema.values[dim] for schema in there if dim in schema.values}
        if any(schema.sizes[dim] != size for schema in there) or (
            labels is not None and any(not np.array_equal(labels, each) for each in mine.values())
        ):
            yield dim


def _has_position(schema: FileSchema, variable: VariableSchema, along: set[str]) -> bool:
    """Return True if a variable is stored in pieces, is not empty, and has one of the given dimensions."""
    sizes = [schema.sizes[dim] for dim in variable.dims]
    return variable.name not in schema.values and bool(along & set(variable.dims)) and 0 not in sizes


def _describe_loss(lost: ComparedSource, given: Sequence[ComparedSource], along: set[str]) -> FileFinding:
    for dim in sorted(along):
        mine = lost.schema.values.get(dim)
        if mine is None or not mine.size:
            continue
        for other in given:
            theirs = other.schema.values.get(dim)
            if other is not lost and theirs is not None and theirs.size and theirs[0] == mine[0]:
                one, two = (other, lost) if lost.number == EXISTING else (lost, other)
                text = f"begins at {format_label(mine[0])}, the same as {two.name}: the files overlap"
                return FileFinding(one.name, dim, text, "error", LEAVE_OUT)
    return FileFinding(
        lost.name,
        "",
        "is missing from the combined dataset; leave out files that repeat data of other files",
        "error",
    )


def locate_file(schema: FileSchema, dataset: xr.Dataset) -> dict[str, tuple[int, int]]:
    """Find the region of a file in the combined grid by its labels.

    This is needed for files without pieces in the grid, because an equal file provides their values.
    """
    found = {}
    for dim, size in ((str(dim), size) for dim, size in dataset.sizes.items() if dim in schema.sizes):
        index, mine = dataset.indexes.get(dim), schema.values.get(dim)
        at = index.get_indexer(mine) if index is not None and mine is not None and index.is_unique else ()
        found[dim] = (int(min(at)), int(max(at)) + 1) if len(at) else (0, size)
    return found


def find_overlaps(given: Sequence[ComparedSource]) -> list[FileFinding]:
    """Return findings for files that overlap along a dimension of the combined grid, or repeat labels."""
    labelled: list[str] = []
    places: list[list[Any]] = [[] for _ in given]
    for dim in sorted({dim for each in given for dim in each.schema.sizes}):
        labels = [each.schema.values[dim] for each in given if dim in each.schema.values]
        if len(labels) < len(given) or any(mine.ndim != 1 or not mine.size for mine in labels):
            continue
        spans = [(min(mine[0], mine[-1]), max(mine[0], mine[-1])) for mine in labels]
        if found := list(_find_overlaps_along(dim, given, spans)):
            return found
        labelled.append(dim)
        for place, span in zip(places, spans, strict=True):
            place.append(span)
    known: dict[Any, ComparedSource] = {}
    twins = []
    for each, place in zip(given, places, strict=True):
        if place and (twin := known.setdefault((each.names, *place), each)) is not each:
            text = f"has the same labels as {twin.name} along {', '.join(labelled)}"
            twins.append(FileFinding(each.name, "", text, "error", LEAVE_OUT))
    return twins


def _find_overlaps_along(
    dim: str, given: Sequence[ComparedSource], spans: Sequence[Any]
) -> Iterator[FileFinding]:
    """Yield a finding for each file that begins before the previous file ends. Later files are not compared
    with such a file.
    """
    before: int | None = None
    for number in sorted(range(len(given)), key=lambda number: spans[number]):
        begin, last = spans[number][0], None if before is None else spans[before][1]
        if before is None or begin > last or spans[number] == spans[before]:
            before = number
            continue
        late, other = (before, number) if given[number].number == EXISTING else (number, before)
        begins, ends = format_label(spans[late][0]), format_label(spans[other][1])
        text = f"begins at {begins}, but {given[other].name} extends to {ends}: the files overlap"
        yield FileFinding(given[late].name, dim, text, "error", LEAVE_OUT)
        before = other
