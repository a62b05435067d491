"""Compare sources with the ledger: which are new, changed, known, or lie elsewhere now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from icefloe._internal.amounts import counted
from icefloe.ingest.discover.sources import Discovered, Source
from icefloe.ingest.ledger.table import Ledger, LedgerRow
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema
from icefloe.repository import Repository


@dataclass(frozen=True, slots=True)
class Sorted:
    """Sources by what the ledger knows of them."""

    new: tuple[Source, ...]
    changed: tuple[Source, ...]
    known: tuple[Source, ...]


def sort_sources(sources: Iterable[Source], rows: Sequence[LedgerRow]) -> Sorted:
    """Sort sources into new, changed and known ones."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which sources there were, and which of them the job ingests."""

    sources: Sorted
    wanted: tuple[Source, ...]
    renamed: tuple[Renamed, ...] = ()
    """Sources that are in the repository already, under other names."""
    changed_references: tuple[Source, ...] = ()
    """Changed sources that arrays refer to."""

    def __str__(self) -> str:
        found = self.sources
        count = len(found.new) + len(found.changed) + len(found.known)
        return f"{counted(count, 'source')}: {len(found.new)} new, {len(found.changed)} changed"


@dataclass(frozen=True, slots=True)
class Selection:
    """Sources compared with the ledger of one snapshot."""

    found: Discovered
    ledger: Ledger
    outcome: Outcome

    @property
    def urls(self) -> set[str]:
        """The names of all sources of the run."""
        return {source.url for source in self.found.sources}


def compare_with_ledger(repo: Repository, found: Discovered, options: Options) -> Selection:
    """Compare sources with the ledger of the target branch. No file is opened."""
    ledger = Ledger.read(repo.readonly_session(branch=options.branch), options.group)
    return select_sources(found, ledger, replace_changed=options.on_change == "ingest")


def select_sources(
    found: Discovered, ledger: Ledger, *, replace_changed: bool, stale: Collection[str] = ()
) -> Selection:
    """Compare sources with a ledger and choose those to ingest.

    Changed sources are ingested again with `replace_changed`, or if they are `stale`: staged by an
    interrupted run, and never published.
    """
    by_ledger = sort_sources(found.sources, ledger.rows)
    changed = [each for each in by_ledger.changed if replace_changed or each.url in stale]
    referred = {row.source for row in ledger.rows if row.mode != "native"}
    references = tuple(each for each in by_ledger.changed if each.url in referred)
    outcome = Outcome(by_ledger, (*by_ledger.new, *changed), changed_references=references)
    return Selection(found, ledger, outcome)


def find_renamed(
    files: Iterable[FileSchema],
    stored: Mapping[str, FileSchema],
    rows: Sequence[LedgerRow],
    given: Collection[str],
) -> list[Renamed]:
    """Find new files that the ledger has under other names, with all their groups.

    `stored` are the schemas of the target group and of those below it, and `given` are the names of all
    sources of the run.
    """
    if not rows:
        return []
    names = {row.source for row in rows}
    by_content = {(row.content_id, row.size_bytes, row.target_group): row for row in rows if row.content_id}
    found: dict[str, Renamed] = {}
    new: set[str] = set()
    for file in files:
        row = by_content.get((file.content_id, file.source.size_bytes, file.group))
        if row is None or file.source.url in names or not _is_same(file, row, stored.get(file.group)):
            new.add(file.source.url)
            continue
        before = found.get(file.source.url)
        is_referred_to = row.mode != "native" and row.source not in given
        is_referred_to |= before is not None and before.is_referred_to
        found[file.source.url] = Renamed(file.source, row.source, is_referred_to)
    return [each for url, each in found.items() if url not in new]


def _is_same(file: FileSchema, row: LedgerRow, stored: FileSchema | None) -> bool:
    if stored is None:
        return False
    if not (row.is_of(file.source) and (row.etag or row.modified_us)):
        return False
    if {each.name for each in file.variables if not each.is_coordinate} != set(row.names()):
        return False
    box = row.box()
    for name, labels in file.values.items():
        there = stored.values.get(name)
        if name in box and (there is None or not np.array_equal(there[slice(*box[name])], labels)):
            return False
    return True
