"""Convert the ops log to public values, one page at a time, from the columns of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Final

import numpy as np

from icefloe._internal.ids import encode_column
from icefloe._internal.times import from_microseconds, to_datetimes
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.encoding.flatbuffers.schema import Struct
from icefloe.encoding.flatbuffers.tables import Tables, get_values, to_rows
from icefloe.format import updates
from icefloe.format.schema import UPDATE, UPDATE_KINDS
from icefloe.history.pages import PAGE, build_all
from icefloe.history.snapshots import to_public_status
from icefloe.ops import Update, UpdateType

_STORED_OTHERWISE: Final = (UpdateType.FeatureFlagChanged, updates.RepoStatusChanged)
"""The kinds of entries whose public values differ from the stored columns."""


def iterate_ops_log(refs: RefStore) -> Iterator[Update]:
    """Iterate over a repository's ops log as public values, newest first.

    Older files are read on demand.
    """
    if not isinstance(refs, RefStoreV2):
        return map(to_public_update, refs.ops_log())
    return chain.from_iterable(map(iterate_entries, refs.ops_log_files()))


def iterate_entries(log: updates.Updates) -> Iterator[Update]:
    """Iterate over the operations in one ops log file as public values."""
    return chain.from_iterable(_log_pages(log))


def to_public_update(update: updates.Update) -> Update:
    """Convert an ops log entry to its public form."""
    kind = update.update_type
    if isinstance(kind, updates.RepoStatusChanged):
        status = kind.status or updates.RepoStatus(set_at_us=update.updated_at_us)
        kind = UpdateType.RepoStatusChanged(to_public_status(status))
    return Update(kind, from_microseconds(update.updated_at_us), update.backup_path)


def _log_pages(log: updates.Updates) -> Iterator[Sequence[Update]]:
    if not len(log):
        return
    yield (to_public_update(log[0]),)  # often only the newest entry is used
    older = log.older
    for start in range(0, len(older), PAGE):
        yield _convert_updates(older.columns.take(slice(start, start + PAGE)), older.place)


def _convert_updates(page: Tables, place: str) -> list[Update]:
    """Convert a page of ops log entries to public values."""
    what = page["update_type"]
    kinds = np.empty(len(page), object)
    for code, tables in what.tables.items():
        here = what.kinds == code
        if updates.UPDATE_TYPES[code - 1] in _STORED_OTHERWISE:
            rows = to_rows(UPDATE, page.take(here), place)
            found = [to_public_update(updates.read_update(row)).kind for row in rows]
        else:
            found = _convert_kinds(code, tables, f"{place}: {UPDATE.name}.update_type")
        kinds[here] = found
    times = to_datetimes(page["updated_at"])
    return build_all(Update, len(page), kinds.tolist(), times, _convert_backups(page, place))


def _convert_kinds(code: int, tables: Tables, place: str) -> list[Any]:
    """Convert the details of all entries of one kind."""
    table = UPDATE_KINDS[code]
    kind = updates.UPDATE_TYPES[code - 1]
    columns = []
    for each in fields(kind):
        field, column = table.fields[each.name], tables[each.name]
        is_id = isinstance(field, Struct)
        columns.append(
            encode_column(column)
            if is_id
            else get_values(field, column, f"{place}: {table.name}.{each.name}")
        )
    return build_all(kind, len(tables), *columns)


def _convert_backups(page: Tables, place: str) -> Sequence[str | None]:
    if "backup_path" not in page.columns:
        return [None] * len(page)
    texts: list[str] = page["backup_path"].texts(f"{place}: {UPDATE.name}.backup_path")
    there = page.has("backup_path").tolist()
    return [text if known else None for text, known in zip(texts, there, strict=True)]
