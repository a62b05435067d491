"""What all the files make together: xarray combines their outlines, and no value is read for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.coverage import Given, losses, overlap, place_of
from icefloe.ingest.combine.existing import Part, TargetState, overwritten, parts
from icefloe.ingest.combine.pieces import EXISTING, PieceArray, Pieces, UndigestedError
from icefloe.ingest.combine.runs import NAME_DIMENSION, Digests, combined, outline, runs_of
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.agreement import (
    DisagreementError,
    Finding,
    order_problems,
)
from icefloe.ingest.options import Options
from icefloe.ingest.records import BadFile, Combining, FileSchema, Stored, first_label

OVERLAPS = ("monotonic global indexes", "Could not find any dimension coordinates")
"""What xarray says of files that overlap or lie in the same place, without saying which."""


Box = Mapping[str, tuple[int, int]]
"""The first cell and the one after the last, by dimension."""


def boxes(dataset: xr.Dataset) -> dict[int, dict[str, tuple[int, int]]]:
    """Where each source is in the dataset."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for dims, pieces in _all_pieces(dataset):
        columns = (pieces.source.tolist(), pieces.starts.tolist(), pieces.stops.tolist())
        for source, starts, stops in zip(*columns, strict=True):
            if source == EXISTING:
                continue
            box = found.setdefault(source, {})
            for dim, start, stop in zip(dims, starts, stops, strict=True):
                known = box.get(dim, (start, stop))
                box[dim] = (min(known[0], start), max(known[1], stop))
    return found


def side_by_side(dataset: xr.Dataset) -> tuple[str, ...]:
    """The dimensions along which sources lie side by side."""
    found: set[str] = set()
    for dims, pieces in _all_pieces(dataset):
        partial = (pieces.shape != [dataset.sizes[dim] for dim in dims]).any(axis=0).tolist()
        found.update(dim for dim, is_partial in zip(dims, partial, strict=True) if is_partial)
    return tuple(str(dim) for dim in dataset.sizes if dim in found)


def moves(dataset: xr.Dataset) -> dict[str, list[tuple[int, int, int]]]:
    """Where parts of what is there go: first cell, the one after the last, and by how much they move."""
    found: dict[str, set[tuple[int, int, int]]] = {}
    for dims, pieces in _all_pieces(dataset):
        mine = pieces.taken(pieces.source == EXISTING)
        for axis, dim in enumerate(dims):
            begin, size = mine.source_starts[:, axis], mine.shape[:, axis]
            rows = np.stack([begin, begin + size, mine.starts[:, axis] - begin], axis=1)
            found.setdefault(dim, set()).update(map(tuple, rows[mine.axes[:, axis] >= 0].tolist()))
    return {dim: sorted(spans) for dim, spans in found.items()}


def _all_pieces(dataset: xr.Dataset) -> Iterator[tuple[tuple[str, ...], Pieces]]:
    for variable in dataset.variables.values():
        if isinstance(variable.data, PieceArray):
            yield tuple(map(str, variable.dims)), variable.data.pieces


@dataclass(frozen=True, slots=True)
class Combined:
    """What some files make together with what the repository has."""

    dataset: xr.Dataset
    files: tuple[FileSchema, ...]
    """A piece's source is a number in this."""
    boxes: Mapping[int, Mapping[str, tuple[int, int]]]
    moves: Mapping[str, Sequence[tuple[int, int, int]]]
    """Where what is in the repository goes, by dimension; see `combining.moves`."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class DigestRequest:
    """A variable whose values must be compared before the files can be combined."""

    name: str
    sources: Mapping[int, Source | Stored]
    """All sources by their numbers."""

    def answered(self, known: Digests, more: Digests) -> dict[tuple[int, str], str]:
        """Return all digests together. InvalidInputError if there are no new ones, which could not help."""
        if more.keys() - known.keys():
            return {**known, **more}
        raise InvalidInputError(
            f"the files cannot be combined: several have {self.name} for the same place; leave "
            f"out those that others repeat, or {NAME_DIMENSION}",
            ErrorKind.INVALID_ARRAY_METADATA,
        )


@dataclass(frozen=True, slots=True)
class Misfits:
    """Files that cannot be combined with the others."""

    bad: tuple[BadFile, ...]
    others: tuple[FileSchema, ...]
    """The files to combine instead."""


def combine_files(
    files: Sequence[FileSchema], state: TargetState, options: Options, digests: Digests
) -> Combined | DigestRequest | Misfits:
    """Combine files with the arrays that exist, without reading data.

    Parts of the repository that came from files that are ingested again are left out. Where xarray has to
    know whether values are equal, hashes of them are requested: call again with those `digests`.
    DisagreementError if files do not fit together; if bad files are skipped, the misfits are returned.
    """
    try:
        return _combine(files, state, options, digests)
    except DisagreementError as error:
        wrong = {each.source: str(each) for each in error.findings if each.severity == "error"}
        bad = [BadFile(each.source, wrong[each.source.url]) for each in files if each.source.url in wrong]
        if options.on_bad_file == "stop" or not bad:
            raise
        return Misfits(tuple(bad), tuple(each for each in files if each.source.url not in wrong))


def _combine(
    files: Sequence[FileSchema], state: TargetState, options: Options, digests: Digests
) -> Combined | DigestRequest:
    how, replacing = options.combining, options.on_change == "ingest"
    existing, rows = state.existing, state.ledger.rows
    new = list(files)
    old = parts(existing, rows, new, replacing=replacing) if existing is not None else []
    given = [Given(EXISTING, part.schema, part.box) for part in old]
    given += [Given(number, file, {}) for number, file in enumerate(new)]
    twice = overwritten(existing, rows, new) if existing is not None else []
    try:
        dataset = combined(_outlines(new, old, how, digests), how)
    except UndigestedError as unknown:
        sources: dict[int, Source | Stored] = {number: file.source for number, file in enumerate(new)}
        if existing is not None:
            sources[EXISTING] = existing.stored
        return DigestRequest(unknown.name, sources)
    except InvalidInputError as error:
        wrong = overlap(given) if any(said in str(error) for said in OVERLAPS) else None
        if wrong is None:
            raise
        raise DisagreementError([_with_way_out(wrong, twice)]) from error
    if how.compat != "override" and how.join in (None, "outer", "exact"):
        lost = [_with_way_out(each, twice) for each in losses(dataset, given, digests)]
        if lost:
            raise DisagreementError(lost)
    where = boxes(dataset)
    where |= {n: place_of(file, dataset) for n, file in enumerate(new) if n not in where}
    names = {number: file.source.url for number, file in enumerate(new)}
    findings = tuple(order_problems(dataset, side_by_side(dataset), where, names))
    if any(finding.severity == "error" for finding in findings):
        raise DisagreementError([_with_way_out(each, twice) for each in findings])
    if replacing:
        findings += tuple(
            Finding("", "", f"what was in the repository before is replaced: {each}", "note")
            for each in twice
        )
    return Combined(dataset, tuple(new), where, moves(dataset), findings)


def _outlines(
    new: Sequence[FileSchema], old: Sequence[Part], how: Combining, digests: Digests
) -> list[xr.Dataset]:
    """Describe files and parts of the repository as datasets without data, in their order."""
    datasets = [outline(EXISTING, part.schema, digests, part.begin) for part in old]
    runs = runs_of(new, [part.schema for part in old], how, digests)
    if runs is None:
        datasets += [outline(number, file, digests) for number, file in enumerate(new)]
    else:
        datasets += runs.outlines(digests)
    return _in_order(datasets, how.concat_dim)


def _with_way_out(finding: Finding, twice: Sequence[str]) -> Finding:
    """What the ledger does not know may be replaced, if somebody says so."""
    if not twice:
        return finding
    return replace(
        finding,
        text=f"{finding.text}; the repository has that from elsewhere ({twice[0]}): leave those files out, "
        "or have them take its place with --on-change ingest",
    )


def _in_order(datasets: list[xr.Dataset], dim: str | None) -> list[xr.Dataset]:
    if dim is None or any(dim not in each.coords for each in datasets):
        return datasets
    return sorted(datasets, key=lambda each: first_label(each[dim].values))
