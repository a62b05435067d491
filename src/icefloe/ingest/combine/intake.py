"""Which of the sources are new, and what they make together with what the repository has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr

from icefloe._internal.amounts import counted
from icefloe._internal.executor import Executor, Task
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.coverage import Given, losses, overlap, place_of
from icefloe.ingest.combine.existing import Existing, overwritten, parts
from icefloe.ingest.combine.grid import OVERLAPS, Digests, boxes, combine, moves, outline, side_by_side
from icefloe.ingest.combine.pieces import EXISTING
from icefloe.ingest.combine.runs import runs_of
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.inspect.agreement import (
    DisagreementError,
    Finding,
    compare,
    label_problems,
    order_problems,
)
from icefloe.ingest.inspect.reference_spill import Shelf
from icefloe.ingest.inspect.schema import BadFile, DigestOrder, FileSchema, digest, shared
from icefloe.ingest.inspect.tasks import LookOrder, survey_for_references, survey_some
from icefloe.ingest.ledger.table import LedgerRow
from icefloe.ingest.options import Options

_LEFT_OUT = (
    "is left out: it does not fit beside the others in one dataset; take it by itself with --source-group or "
    "with --engine cfgrib --open-option 'filter_by_keys={...}'"
)
_FILES_TOGETHER = 64
"""So many files are parsed for one answer, at most: what they have in common is sent once."""
_LOOKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class Sorted:
    """Sources by what the ledger knows of them."""

    new: tuple[Source, ...]
    changed: tuple[Source, ...]
    known: tuple[Source, ...]


def sort_sources(sources: Iterable[Source], rows: Sequence[LedgerRow]) -> Sorted:
    """Which sources are in the repository, which are there as they were before, and which are not there."""
    ledger = {row.source: row for row in rows}
    new: list[Source] = []
    changed: list[Source] = []
    known: list[Source] = []
    for source in sources:
        row = ledger.get(source.url)
        (new if row is None else known if row.is_of(source) else changed).append(source)
    return Sorted(tuple(new), tuple(changed), tuple(known))


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Files that can be read, those that cannot, and what was noticed."""

    files: tuple[FileSchema, ...]
    bad: tuple[BadFile, ...]
    findings: tuple[Finding, ...]


def survey_all(
    sources: Sequence[Source],
    existing: Existing | None,
    rows: Sequence[LedgerRow],
    options: Options,
    executor: Executor,
    shelf: Shelf | None = None,
) -> Surveyed:
    """Have all files looked at, and compare them with each other and with what is there.

    Where files are referred to, what was parsed of them is put on the `shelf`.
    """
    native = options.mode == "native"
    share = min(_FILES_TOGETHER, -(-len(sources) // (_LOOKS_PER_CORE * options.parallelism)))
    storage = None if shelf is None or native else shelf.storage
    orders = [
        LookOrder(tuple(sources[at : at + share]), options.reading, storage)
        for at in range(0, len(sources), share)
    ]
    look = survey_some if native else survey_for_references
    found = [
        each
        for some in executor.map(Task(look, "groups of files", per_core=4, items_per_task=8), orders)
        for each in some
    ]
    if shelf is not None:
        shelf.note(each.aside for each in found if isinstance(each, FileSchema))
    bad = [each for each in found if isinstance(each, BadFile)]
    _refuse_unknown_variables(options.reading.variables, found, existing)
    files = shared([each for each in found if isinstance(each, FileSchema)])
    if bad and options.on_bad_file == "stop":
        raise unreadable(bad)
    findings = [Finding(file.source.url, name, _LEFT_OUT, "note") for file in files for name in file.left_out]
    if files:
        schemas = [*files, *([existing.schema] if existing is not None else [])]
        findings += _new_dimension(schemas, options.combining.concat_dim)
        known = existing.schema if existing is not None else None
        findings += compare(files, known, options.combining.concat_dim)
        is_replaced = bool(rows) and {row.source for row in rows} <= {each.url for each in sources}
        beside = None if is_replaced else known
        findings += label_problems(files, beside, options.combining.concat_dim)
    wrong = {finding.source for finding in findings if finding.severity == "error"}
    if wrong and options.on_bad_file == "stop":
        raise DisagreementError(findings)
    reasons = {finding.source: str(finding) for finding in reversed(findings) if finding.severity == "error"}
    bad += [BadFile(file.source, reasons[file.source.url]) for file in files if file.source.url in wrong]
    kept = tuple(file for file in files if file.source.url not in wrong)
    return Surveyed(kept, tuple(bad), tuple(findings))


def _refuse_unknown_variables(
    names: Sequence[str], found: Sequence[FileSchema | BadFile], existing: Existing | None
) -> None:
    """Raise InvalidInputError for a name that is a variable of no file, nor of the repository."""
    files = [each for each in found if isinstance(each, FileSchema)]
    schemas = [*files, *([existing.schema] if existing is not None else [])]
    known = {variable.name for schema in schemas for variable in schema.variables}
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


def unreadable(bad: Sequence[BadFile]) -> InvalidInputError:
    """The error about files that cannot be ingested."""
    reasons: dict[str, list[str]] = {}
    for each in bad:
        reasons.setdefault(each.sentence, []).append(each.source.url)
    texts = [
        f"{urls[0]}{f' and {len(urls) - 1} more' if len(urls) > 1 else ''}: {reason}"
        for reason, urls in reasons.items()
    ]
    more = f"; and {len(texts) - 5} other reasons" if len(texts) > 5 else ""
    if all(each.is_sound for each in bad):
        advice = ""
    elif all(each.remedy for each in bad):
        advice = ", or skip bad files"
    else:
        advice = "; repair or remove them, or skip bad files"
    return InvalidInputError(
        f"{counted(len(bad), 'file')} cannot be ingested: {'; '.join(texts[:5])}{more}{advice}",
        ErrorKind.INVALID_FILE_FORMAT,
    )


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


def combine_all(
    files: Sequence[FileSchema],
    existing: Existing | None,
    rows: Sequence[LedgerRow],
    options: Options,
    executor: Executor,
) -> Combined:
    """Put outlines together; what the repository has of a file that comes again is left out."""
    new = sorted_along(files, options.combining.concat_dim)
    replacing = options.on_change == "ingest"
    old = parts(existing, rows, new, replacing=replacing) if existing is not None else []
    given = [Given(EXISTING, part.schema, part.box) for part in old]
    given += [Given(number, file, {}) for number, file in enumerate(new)]
    twice = overwritten(existing, rows, new) if existing is not None else []

    def outlines(digests: Digests) -> list[xr.Dataset]:
        datasets = [outline(EXISTING, part.schema, digests, part.begin) for part in old]
        runs = runs_of(new, [part.schema for part in old], options.combining, digests)
        if runs is None:
            datasets += [outline(number, file, digests) for number, file in enumerate(new)]
        else:
            datasets += runs.outlines(digests)
        return _in_order(datasets, options.combining.concat_dim)

    def digested(name: str) -> dict[tuple[int, str], str]:
        orders = [DigestOrder(file.source, options.reading, (name,)) for file in new]
        numbers = list(range(len(new)))
        if existing is not None:
            orders.append(DigestOrder(existing.stored, options.reading, (name,)))
            numbers.append(EXISTING)
        results = executor.map(Task(digest, "files compared", per_core=4, items_per_task=256), orders)
        return {
            (number, name): found[name]
            for number, found in zip(numbers, results, strict=True)
            if name in found
        }

    how = options.combining
    try:
        dataset, digests = combine(outlines, how, digested)
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


def _with_way_out(finding: Finding, twice: Sequence[str]) -> Finding:
    """What the ledger does not know may be replaced, if somebody says so."""
    if not twice:
        return finding
    return replace(
        finding,
        text=f"{finding.text}; the repository has that from elsewhere ({twice[0]}): leave those files out, "
        "or have them take its place with --on-change ingest",
    )


def sorted_along(files: Sequence[FileSchema], dim: str | None) -> list[FileSchema]:
    """Files by where they begin along a dimension, as far as they say so; else as they are."""
    if dim is None or any(dim not in file.values for file in files):
        return list(files)
    return sorted(files, key=lambda file: _begin(file.values[dim]))


def _in_order(datasets: list[xr.Dataset], dim: str | None) -> list[xr.Dataset]:
    if dim is None or any(dim not in each.coords for each in datasets):
        return datasets
    return sorted(datasets, key=lambda each: _begin(each[dim].values))


def _begin(labels: Any) -> tuple[bool, Any]:
    """For sorting: the first label; what has none comes last."""
    return (False, labels.reshape(-1)[0]) if labels.size else (True, 0)
