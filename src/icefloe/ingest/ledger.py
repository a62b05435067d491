"""The ledger: the table of sources that were already ingested, and the comparison of sources with it.

The ledger is stored in the group `_icefloe/ledger` of the repository (for another target group, below it, at
the path of that group) and committed together with the data. It has one array per column and one row per
source. The batch of a row is also in the metadata of the commit that added the row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import zarr
from zarr.errors import GroupNotFoundError

from icefloe._internal.amounts import counted
from icefloe._internal.warnings import ignore_warnings
from icefloe.ingest.discover.sources import Discovered, Source
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema
from icefloe.repository import Repository
from icefloe.session import Session

HIDDEN = "_icefloe"
"""The group that listings hide."""
_GROUP = f"{HIDDEN}/ledger"
_CHUNK = 4096
_FOR_GROUPS = ("target_group", "source_group")
"""Columns that exist only if sources have groups."""
_ABOUT = "which sources were ingested into this repository, where to, and by which batch (see docs/ingest.md)"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A source that was ingested, with its region."""

    source: str
    size_bytes: int
    """0 for a Zarr store."""
    modified_us: int
    content_id: str
    region: str
    """The region of the source as JSON: start and stop, by dimension."""
    variables: str
    """The names of the data variables, as JSON."""
    batch: str
    mode: str
    """`native`, `virtual`, or `hybrid` for a file that was copied in part."""
    etag: str = ""
    """The entity tag that the server reported."""
    target_group: str = ""
    """The group of the data, relative to the target group. A source has one row for each group."""
    source_group: str = ""
    """The group of the source that was read."""

    @property
    def box(self) -> Mapping[str, tuple[int, int]]:
        """Return the region by dimension."""
        return _parse_region(self.region)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the variables."""
        return _parse_names(self.variables)

    def to_source(self) -> Source:
        """Return the source as it was when it was ingested."""
        return Source(
            self.source,
            self.size_bytes,
            self.modified_us,
            self.etag,
            is_store=not self.size_bytes,
            group=self.source_group,
        )

    def matches(self, source: Source) -> bool:
        """Return whether a source is unchanged since it was ingested."""
        return self.to_source().version.is_same(source.version)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of a group in one snapshot."""

    snapshot_id: str
    rows: Sequence[LedgerRow]

    @staticmethod
    def read(session: Session, group: str) -> Ledger:
        """Read the ledger of a group."""
        return Ledger(session.snapshot_id, read_ledger(session, group))

    def find_rows_since(self, before: Ledger) -> list[LedgerRow]:
        """Return the rows that an earlier ledger does not have."""
        known = {(row.source, row.batch) for row in before.rows}
        return [row for row in self.rows if (row.source, row.batch) not in known]

    def rename_sources(self, names: Mapping[str, str]) -> Ledger:
        """Return the ledger with new names for some sources."""
        if not names:
            return self
        rows = [replace(row, source=names.get(row.source, row.source)) for row in self.rows]
        return replace(self, rows=rows)


# Each batch of an ingest reads the region of every row several times.


@lru_cache(1 << 16)
def _parse_region(region: str) -> Mapping[str, tuple[int, int]]:
    return MappingProxyType(
        {dim: (int(start), int(stop)) for dim, (start, stop) in json.loads(region).items()}
    )


@lru_cache(1 << 10)
def _parse_names(variables: str) -> tuple[str, ...]:
    return tuple(json.loads(variables))


def encode_region(box: Mapping[str, Sequence[int]]) -> str:
    """Encode a region for the ledger."""
    return json.dumps({dim: list(span) for dim, span in box.items()}, sort_keys=True)


def read_ledger(session: Session, group: str) -> list[LedgerRow]:
    """Read the rows of a target group, in the order in which they were written."""
    with ignore_warnings():
        try:
            table = zarr.open_group(session.store, path=_make_path(group), mode="r")
        except (GroupNotFoundError, FileNotFoundError):
            return []
        arrays = dict(table.arrays())
        if LedgerRow.__slots__[0] not in arrays:
            return []
        # Older ledgers have no etags and no groups.
        named = [arrays[field.name] for field in fields(LedgerRow) if field.name in arrays]
        columns = [np.asarray(array[...]).tolist() for array in named]
    return [LedgerRow(*row) for row in zip(*columns, strict=True)]


def split_rows_by_group(rows: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Split rows by their group, sorted by path."""
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.target_group, []).append(row)
    return dict(sorted(found.items()))


def write_ledger(
    session: Session, group: str, rows: Sequence[LedgerRow], before: Sequence[LedgerRow]
) -> None:
    """Write the rows. Only chunks with rows that differ from `before` are written."""
    pairs = enumerate(zip(rows, before, strict=False))
    same = next((i for i, (new, old) in pairs if new is not old and new != old), len(before))
    first = min(same, len(rows)) // _CHUNK * _CHUNK
    with ignore_warnings():
        table = zarr.open_group(session.store, path=_make_path(group), mode="a")
        if not before:
            table.attrs.update({"about": _ABOUT, "version": 1})
        arrays = dict(table.arrays())
        for field in fields(LedgerRow):
            values = [getattr(row, field.name) for row in rows[first:]]
            is_number = field.type == "int"
            if field.name in arrays:
                _replace_column(arrays[field.name], is_number, values, first)
            elif field.name not in _FOR_GROUPS or any(values):
                shape, dtype = (first + len(values),), "int64" if is_number else str
                options: Any = {"dtype": dtype, "chunks": (_CHUNK,), "dimension_names": ("row",)}
                _replace_column(
                    table.create_array(field.name, shape=shape, **options), is_number, values, first
                )


def _replace_column(array: Any, is_number: bool, values: Sequence[Any], first: int) -> None:
    """Replace the values of a column from its `first` row on."""
    shape = (first + len(values),)
    if array.shape != shape:
        array.resize(shape)
    if values:
        array[first:] = np.array(values, np.int64 if is_number else object)


def _make_path(group: str) -> str:
    return f"{_GROUP}/{group.strip('/')}" if group.strip("/") else _GROUP


@dataclass(frozen=True, slots=True)
class SortedSources:
    """Sources, sorted by comparison with the ledger."""

    new: tuple[Source, ...]
    changed: tuple[Source, ...]
    known: tuple[Source, ...]


def sort_sources(sources: Iterable[Source], rows: Sequence[LedgerRow]) -> SortedSources:
    """Sort sources into new, changed and known ones."""
    ledger = {row.source: row for row in rows}
    new: list[Source] = []
    changed: list[Source] = []
    known: list[Source] = []
    for source in sources:
        row = ledger.get(source.url)
        (new if row is None else known if row.matches(source) else changed).append(source)
    return SortedSources(tuple(new), tuple(changed), tuple(known))


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file that was ingested under another name."""

    source: Source
    was: str
    is_referenced: bool
    """True if references point to the old name, and the current run has no file with that name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The sources of a run, and those that it ingests."""

    sources: SortedSources
    wanted: tuple[Source, ...]
    renamed: tuple[Renamed, ...] = ()
    """Sources that were ingested under other names."""
    changed_references: tuple[Source, ...] = ()
    """Changed sources that arrays reference."""

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
    """Find new files whose content was ingested under other names, with all their groups.

    `stored` are the schemas of the target group and of all groups below it, and `given` are the names of all
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
        is_referenced = row.mode != "native" and row.source not in given
        is_referenced |= before is not None and before.is_referenced
        found[file.source.url] = Renamed(file.source, row.source, is_referenced)
    return [each for url, each in found.items() if url not in new]


def _is_same(file: FileSchema, row: LedgerRow, stored: FileSchema | None) -> bool:
    if stored is None:
        return False
    if not (row.matches(file.source) and (row.etag or row.modified_us)):
        return False
    if {each.name for each in file.variables if not each.is_coordinate} != set(row.names):
        return False
    box = row.box
    for name, labels in file.values.items():
        there = stored.values.get(name)
        if name in box and (there is None or not np.array_equal(there[slice(*box[name])], labels)):
            return False
    return True
