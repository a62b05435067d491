"""Find lost fields: static fields of the existing arrays that refer to missing or changed files.

A lost field cannot be compared with new files, and would stay unreadable. It is taken from the new files
instead, after a comparison with an ingested file that is unchanged.
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
"""The kinds of findings that mean that a file is not the one that was ingested."""
_CANDIDATES: Final = 20
"""The number of ingested files that are looked up to find an unchanged one."""


def mark_lost_fields(state: TargetState, files: Sequence[FileSchema], options: Options) -> TargetState:
    """Return a state in which new files replace the lost fields, each with an unchanged ingested file to
    compare with.

    A lost field without such a file is replaced only if changed files are ingested, or if static fields are
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
