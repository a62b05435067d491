"""Long histories as users see them: the values of a page are made at once, of the columns of their file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import numpy as np

from icefloe.core.refs import RefStore
from icefloe.core.refs_v2 import RefStoreV2
from icefloe.encoding.flatbuffers.schema import Struct
from icefloe.encoding.flatbuffers.tables import Tables, to_rows, values_of
from icefloe.format import updates
from icefloe.format.files import REPO_PATH
from icefloe.format.metadata import read_metadata
from icefloe.format.repo_changes import listed
from icefloe.format.repo_info import SnapshotInfos
from icefloe.format.schema import SNAPSHOT_INFO, UPDATE, UPDATE_KINDS
from icefloe.format.spec import V2
from icefloe.history import public_snapshot, public_update
from icefloe.ids import SnapshotId, encode_column
from icefloe.ops import Update, UpdateType
from icefloe.snapshots import SnapshotInfo
from icefloe.times import column_from_microseconds

_FIRST_PAGE: Final = 50
_PAGE: Final = 2000
_STORED_OTHERWISE: Final = (updates.FeatureFlagChanged, updates.RepoStatusChanged)
"""Kinds of which users see other values than those in the columns."""

_METADATA: Final = f"{REPO_PATH}: {SNAPSHOT_INFO.name}.metadata"

T = TypeVar("T")


def ancestry(refs: RefStore, tip: SnapshotId) -> Iterator[SnapshotInfo]:
    """A snapshot and its ancestors, newest first. From a repo info file they are read a page at a time."""
    if not isinstance(refs, RefStoreV2):
        return map(public_snapshot, refs.ancestry(tip))
    info = refs.load()
    listed(info, tip)
    return chain.from_iterable(_ancestry_pages(info.snapshots, info.snapshots.ancestry(tip)))


def ops_log(refs: RefStore) -> Iterator[Update]:
    """What was done to a repository, newest first. The older parts are read when they are asked for."""
    if not isinstance(refs, RefStoreV2):
        return map(public_update, refs.ops_log())
    return chain.from_iterable(map(entries, refs.ops_log_files()))


def entries(log: updates.Updates) -> Iterator[Update]:
    """The part of an ops log that one file holds."""
    return chain.from_iterable(_log_pages(log))


def _ancestry_pages(infos: SnapshotInfos, rows: list[int]) -> Iterator[list[SnapshotInfo]]:
    size = _FIRST_PAGE
    start = 0
    while start < len(rows):
        yield _snapshots(infos, rows[start : start + size], rows[start + size : start + size + 1])
        start, size = start + size, _PAGE


def _snapshots(infos: SnapshotInfos, rows: list[int], after: list[int]) -> list[SnapshotInfo]:
    """Snapshots that follow each other; `after` is the row of the last one's parent, if it has one."""
    columns = infos.columns
    line = np.array(rows + after, np.int64)
    which = line[: len(rows)]
    ids = encode_column(infos.ids[line])
    parents = [*ids[1:], *([] if after else [None])]
    times = column_from_microseconds(columns["flushed_at"][which])
    messages = columns["message"].take(which).texts(f"{REPO_PATH}: messages of snapshots")
    metadata: list[dict[str, Any]] = [{} for _ in rows]
    if "metadata" in columns.columns and (counts := columns["metadata"].lengths[which]).any():
        some = np.flatnonzero(counts)
        items = values_of(SNAPSHOT_INFO.fields["metadata"], columns["metadata"].take(which[some]), _METADATA)
        for at, each in zip(some.tolist(), items, strict=True):
            metadata[at] = dict(read_metadata(each, V2, f"{REPO_PATH}: snapshot {ids[at]}"))
    return _made(SnapshotInfo, len(rows), ids, parents, times, messages, metadata)


def _log_pages(log: updates.Updates) -> Iterator[Sequence[Update]]:
    if not len(log):
        return
    yield (public_update(log[0]),)  # most who ask want no more
    older = log.older
    for start in range(0, len(older), _PAGE):
        yield _updates(older.columns.take(slice(start, start + _PAGE)), older.place)


def _updates(page: Tables, place: str) -> list[Update]:
    """Entries of the ops log."""
    what = page["update_type"]
    kinds: list[Any] = [None] * len(page)
    for code, tables in what.tables.items():
        here = what.kinds == code
        if updates.UPDATE_TYPES[code - 1] in _STORED_OTHERWISE:
            rows = to_rows(UPDATE, page.take(here), place)
            made = [public_update(updates.read_update(row)).kind for row in rows]
        else:
            made = _kinds(code, tables, f"{place}: {UPDATE.name}.update_type")
        for row, kind in zip(np.flatnonzero(here).tolist(), made, strict=True):
            kinds[row] = kind
    times = column_from_microseconds(page["updated_at"])
    return _made(Update, len(page), kinds, times, _backups(page, place))


def _kinds(code: int, tables: Tables, place: str) -> list[Any]:
    """What entries of one kind say."""
    table = UPDATE_KINDS[code]
    kind = getattr(UpdateType, updates.UPDATE_TYPES[code - 1].__name__)
    columns = []
    for each in fields(kind):
        field, column = table.fields[each.name], tables[each.name]
        is_id = isinstance(field, Struct)
        columns.append(
            encode_column(column) if is_id else values_of(field, column, f"{place}: {table.name}.{each.name}")
        )
    return _made(kind, len(tables), *columns)


def _backups(page: Tables, place: str) -> Sequence[str | None]:
    if "backup_path" not in page.columns:
        return [None] * len(page)
    texts: list[str] = page["backup_path"].texts(f"{place}: {UPDATE.name}.backup_path")
    there = page.has("backup_path").tolist()
    return [text if known else None for text, known in zip(texts, there, strict=True)]


def _made(kind: type[T], count: int, *columns: Iterable[Any]) -> list[T]:
    """Frozen values with slots, of a column per field: their constructors take far longer."""
    made = list(map(object.__new__, repeat(kind, count)))
    slots = vars(kind)
    for field, column in zip(fields(kind), columns, strict=True):  # type: ignore[arg-type]  # T is a dataclass
        deque(map(slots[field.name].__set__, made, column), maxlen=0)
    return made
