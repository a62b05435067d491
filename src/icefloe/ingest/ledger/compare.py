"""Compare sources with the ledger: which are new, changed, known, or lie elsewhere now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.ingest.combine.existing import Existing
from icefloe.ingest.discover.sources import Source
from icefloe.ingest.ledger.table import LedgerRow
from icefloe.ingest.records import FileSchema


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
class Renamed:
    """A file that the ledger has under another name."""

    source: Source
    was: str
    is_referred_to: bool
    """Whether references lead to where it was, and nobody says that it is still there."""


def find_renamed(
    files: Iterable[FileSchema],
    existing: Existing | None,
    rows: Sequence[LedgerRow],
    given: Collection[str],
) -> list[Renamed]:
    """Which of new files are in the ledger already. `given` are the names of all sources of the run."""
    if existing is None:
        return []
    names = {row.source for row in rows}
    by_content = {(row.content_id, row.size_bytes): row for row in rows if row.content_id}
    found = []
    for file in files:
        row = by_content.get((file.content_id, file.source.size_bytes))
        if row is None or file.source.url in names or not _is_same(file, row, existing):
            continue
        is_referred_to = row.mode != "native" and row.source not in given
        found.append(Renamed(file.source, row.source, is_referred_to))
    return found


def _is_same(file: FileSchema, row: LedgerRow, existing: Existing) -> bool:
    if not (row.is_of(file.source) and (row.etag or row.modified_us)):
        return False
    if {each.name for each in file.variables if not each.is_coordinate} != set(row.names()):
        return False
    box = row.box()
    for name, labels in file.values.items():
        there = existing.schema.values.get(name)
        if name in box and (there is None or not np.array_equal(there[slice(*box[name])], labels)):
            return False
    return True


def with_new_names(rows: Iterable[LedgerRow], renamed: Mapping[str, str]) -> list[LedgerRow]:
    """Rows by the names that their files have now."""
    return [replace(row, source=renamed.get(row.source, row.source)) for row in rows]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which sources there were, and which of them the job took up."""

    sources: Sorted
    wanted: tuple[Source, ...]
    renamed: tuple[Renamed, ...] = ()
    """Those that are in the repository already, under other names."""
    changed_references: tuple[Source, ...] = ()
    """Changed sources that arrays refer to."""
