"""The ledger: a table of the sources that were already ingested, with which new sources are compared.

The ledger is stored in the repository group `_icefloe/ledger` (for another target group, at the path of that
group below it), and is committed together with the data. It has one array per column and one row per source.
The commit that added a row has the row's batch id in its metadata.
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
from icefloe.ingest.discover.sources import Discovered, IngestSource
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema
from icefloe.repository import Repository
from icefloe.session import Session

HIDDEN = "_icefloe"
"""The group of the ledger, which is hidden in listings."""
_GROUP = f"{HIDDEN}/ledger"
_CHUNK = 4096
_FOR_GROUPS = ("target_group", "source_group")
"""Columns that exist only if some sources have groups."""
_DESCRIPTION = (
    "which sources were ingested into this repository, where to, and by which batch (see docs/ingest.md)"
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A ledger row: an ingested source, and the region of the arrays that it fills."""

    source: str
    size_bytes: int
    """The file size; 0 for a Zarr store."""
    modified_us: int
    content_id: str
    region: str
    """The region that the source fills, as JSON: the start and the stop by dimension."""
    variables: str
    """The names of the data variables, as JSON."""
    batch: str
    mode: str
    """`native`, `virtual`, or `hybrid` if only some variables of the file were copied."""
    etag: str = ""
    """The etag that the server reported."""
    target_group: str = ""
    """The path of the target group relative to the target group of the ingest. A source has one row per
    group.
    """
    source_group: str = ""
    """The group of the source that was read."""

    @property
    def box(self) -> Mapping[str, tuple[int, int]]:
        """The start and the stop, by dimension, of the region that the source fills."""
        return _parse_region(self.region)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the source's data variables."""
        return _parse_names(self.variables)

    def to_source(self) -> IngestSource:
        """Return the source as it was when it was ingested."""
        return IngestSource(
            self.source,
            self.size_bytes,
            self.modified_us,
            self.etag,
            is_store=not self.size_bytes,
            group=self.source_group,
        )

    def matches(self, source: IngestSource) -> bool:
        """Return True if a source still has the version that the ledger row recorded."""
        return self.to_source().version.is_same(source.version)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of a target group at one snapshot."""

    snapshot_id: str
    rows: Sequence[LedgerRow]

    @staticmethod
    def read(session: Session, group: str) -> Ledger:
        """Read the ledger of a target group."""
        return Ledger(session.snapshot_id, read_ledger(session, group))

    def find_rows_since(self, before: Ledger) -> list[LedgerRow]:
        """Return the rows that an earlier version of the ledger does not contain."""
        known = {(row.source, row.batch) for row in before.rows}
        return [row for row in self.rows if (row.source, row.batch) not in known]

    def rename_sources(self, names: Mapping[str, str]) -> Ledger:
        """Return a copy of the ledger with some sources renamed."""
        if not names:
            return self
        rows = [replace(row, source=names.get(row.source, row.source)) for row in self.rows]
        return replace(self, rows=rows)


# Cached, because each batch of an ingest reads the region of every row several times.


@lru_cache(1 << 16)
def _parse_region(region: str) -> Mapping[str, tuple[int, int]]:
    return MappingProxyType(
        {dim: (int(start), int(stop)) for dim, (start, stop) in json.loads(region).items()}
    )


@lru_cache(1 << 10)
def _parse_names(variables: str) -> tuple[str, ...]:
    return tuple(json.loads(variables))


def encode_region(box: Mapping[str, Sequence[int]]) -> str:
    """Encode the region of a source as JSON, for its ledger row."""
    return json.dumps({dim: list(span) for dim, span in box.items()}, sort_keys=True)


def read_ledger(session: Session, group: str) -> list[LedgerRow]:
    """Read the ledger rows of a target group, in the order in which they were written."""
    with ignore_warnings():
        try:
            table = zarr.open_group(session.store, path=_make_path(group), mode="r")
        except (GroupNotFoundError, FileNotFoundError):
            return []
        arrays = dict(table.arrays())
        if LedgerRow.__slots__[0] not in arrays:
            return []
        # Older ledgers lack the columns for etags and groups.
        named = [arrays[field.name] for field in fields(LedgerRow) if field.name in arrays]
        columns = [np.asarray(array[...]).tolist() for array in named]
    return [LedgerRow(*row) for row in zip(*columns, strict=True)]


def split_rows_by_group(rows: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Group ledger rows by their target group, sorted by path."""
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.target_group, []).append(row)
    return dict(sorted(found.items()))


def write_ledger(
    session: Session, group: str, rows: Sequence[LedgerRow], before: Sequence[LedgerRow]
) -> None:
    """Write the ledger rows. Only chunks whose rows differ from the existing rows in `before` are written."""
    pairs = enumerate(zip(rows, before, strict=False))
    same = next((i for i, (new, old) in pairs if new is not old and new != old), len(before))
    first = min(same, len(rows)) // _CHUNK * _CHUNK
    with ignore_warnings():
        table = zarr.open_group(session.store, path=_make_path(group), mode="a")
        if not before:
            table.attrs.update({"about": _DESCRIPTION, "version": 1})
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
    """Replace the values of a ledger column, starting at row `first`."""
    shape = (first + len(values),)
    if array.shape != shape:
        array.resize(shape)
    if values:
        array[first:] = np.array(values, np.int64 if is_number else object)


def _make_path(group: str) -> str:
    return f"{_GROUP}/{group.strip('/')}" if group.strip("/") else _GROUP


@dataclass(frozen=True, slots=True)
class SortedSources:
    """The sources of a run, classified by the ledger as new, changed or already ingested."""

    new: tuple[IngestSource, ...]
    changed: tuple[IngestSource, ...]
    known: tuple[IngestSource, ...]


def sort_sources(sources: Iterable[IngestSource], rows: Sequence[LedgerRow]) -> SortedSources:
    """Classify sources as new, changed or already ingested, by comparing them with ledger rows."""
    ledger = {row.source: row for row in rows}
    new: list[IngestSource] = []
    changed: list[IngestSource] = []
    known: list[IngestSource] = []
    for source in sources:
        row = ledger.get(source.url)
        (new if row is None else known if row.matches(source) else changed).append(source)
    return SortedSources(tuple(new), tuple(changed), tuple(known))


@dataclass(frozen=True, slots=True)
class Renamed:
    """A renamed file: the ledger lists the same content under another name."""

    source: IngestSource
    was: str
    is_referenced: bool
    """True if references point to the old name, and no file of the current run has that name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of comparing sources with the ledger, including which sources will be ingested."""

    sources: SortedSources
    wanted: tuple[IngestSource, ...]
    renamed: tuple[Renamed, ...] = ()
    """Files that the ledger lists under another name."""

    def __str__(self) -> str:
        found = self.sources
        count = len(found.new) + len(found.changed) + len(found.known)
        return f"{counted(count, 'source')}: {len(found.new)} new, {len(found.changed)} changed"


@dataclass(frozen=True, slots=True)
class RunSources:
    """The sources of a run, and the ledger that they were compared with."""

    found: Discovered
    ledger: Ledger
    outcome: Outcome

    @property
    def urls(self) -> set[str]:
        """The URLs of all sources of a run."""
        return {source.url for source in self.found.sources}


def compare_with_ledger(repo: Repository, found: Discovered, options: Options) -> RunSources:
    """Compare sources with the ledger of the target branch, without opening any files."""
    ledger = Ledger.read(repo.readonly_session(branch=options.branch), options.group)
    return select_sources(found, ledger, replace_changed=options.on_change == "ingest")


def select_sources(
    found: Discovered, ledger: Ledger, *, replace_changed: bool, stale: Collection[str] = ()
) -> RunSources:
    """Select the sources to ingest by comparing them with a ledger.

    Changed sources are ingested again if `replace_changed` is set. They are also ingested again if they are
    `stale`: an interrupted run staged an earlier version of them, but never published it.
    """
    by_ledger = sort_sources(found.sources, ledger.rows)
    changed = [each for each in by_ledger.changed if replace_changed or each.url in stale]
    outcome = Outcome(by_ledger, (*by_ledger.new, *changed))
    return RunSources(found, ledger, outcome)


def find_renamed(
    files: Iterable[FileSchema],
    stored: Mapping[str, FileSchema],
    rows: Sequence[LedgerRow],
    given: Collection[str],
) -> list[Renamed]:
    """Find new files whose content the ledger already lists under another name, in all of their groups.

    `stored` contains the schemas of the target group and all groups below it. `given` contains the names of
    all sources of the run.
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
