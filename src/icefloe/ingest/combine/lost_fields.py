"""Find lost fields: existing static fields that reference missing or changed files.

A lost field cannot be compared with new files, and would remain unreadable. Its values are taken from a new
file instead, after comparing that file with an unchanged ingested file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from icefloe._internal.executor import ThreadExecutor
from icefloe.ingest.combine.existing import TargetState
from icefloe.ingest.combine.static_fields import ComparedSource, find_moving_dimensions
from icefloe.ingest.discover.known_sources import look_up_versions
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.options import Options
from icefloe.ingest.records import FileSchema, join_path
from icefloe.maintenance.integrity.findings import Findings, Level
from icefloe.maintenance.integrity.verify_sources import check_sources, find_sources

_LOST: Final = ("missing", "changed", "short")
"""The kinds of findings that show that a referenced file has changed since it was ingested."""
_CANDIDATES: Final = 20
"""The maximum number of ingested files to look up when searching for an unchanged one."""


def mark_lost_fields(state: TargetState, files: Sequence[FileSchema], options: Options) -> TargetState:
    """Mark lost static fields for replacement by new files, each with an unchanged ingested file to compare
    with.

    If there is no such file, a lost field is replaced only if changed files are ingested or static fields are
    not compared.
    """
    existing = state.existing
    if existing is None or all(row.mode == "native" for row in state.rows):
        return state
    given = [ComparedSource(number, file, {}) for number, file in enumerate([*files, existing.schema])]
    moving = find_moving_dimensions(given, options.combining.concat_dim)
    new = {each.name for file in files for each in file.variables if not each.is_coordinate}
    static = [
        each.name for each in existing.schema.variables if each.name in new and moving.isdisjoint(each.dims)
    ]
    lost = [name for name in static if _is_lost(state, name)]
    again = {file.source.url for file in files}
    witnesses = {name: _find_witness(state, name, again, options) for name in lost}
    if options.on_change != "ingest" and options.combining.compat != "override":
        witnesses = {name: witness for name, witness in witnesses.items() if witness is not None}
    return replace(state, lost=witnesses) if witnesses else state


def _is_lost(state: TargetState, name: str) -> bool:
    workspace = state.session._workspace
    refs = workspace.refs(workspace.array(f"/{join_path(state.group, name)}"))
    found = Findings(Level.SOURCES)
    check_sources(find_sources(refs), state.session._assets.virtual, ThreadExecutor(8), found)
    return any(each.kind in _LOST for each in found.findings)


def _find_witness(
    state: TargetState, name: str, again: Collection[str], options: Options
) -> IngestSource | None:
    rows = [row for row in state.rows if row.source not in again and name in row.names][-_CANDIDATES:]
    sources = [row.to_source() for row in rows]
    now = look_up_versions(sources, options.reading.storage_options)
    for source in sources:
        version = now.get(source.url)
        if version is not None and version.is_same(source.version):
            return source
    return None
