"""Repair of virtual references: files that moved are followed, and those that are gone let go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import ThreadExecutor
from icefloe.core.workspace import Workspace
from icefloe.errors import IcechunkError
from icefloe.format.manifest import VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.maintenance.integrity.findings import Finding, Level, Report
from icefloe.maintenance.integrity.repair import DROPPED, LEFT, RepairReport
from icefloe.maintenance.integrity.verify_sources import check_sources, sources_of

RELOCATED = "relocated"
_LOST = ("missing", "changed", "short")
"""What is wrong with a file itself; one that cannot be reached now may be well."""


def broken_sources(findings: list[Finding]) -> dict[str, str]:
    """The files that are not what references say, and what is wrong with each."""
    return {
        found.object: found.kind
        for found in findings
        if found.where == "virtual references" and found.kind in _LOST
    }


def repair_virtual(
    workspace: Workspace,
    broken: Mapping[str, str],
    relocate: Mapping[str, str],
    report: RepairReport,
    *,
    drop: bool,
) -> None:
    """Let references into files that are gone point to where those went, by prefix; or drop them, if asked.

    The version of a file at its new place is not known, and no checksum goes along.
    """
    for node, refs in _pointing_to(workspace, set(broken)):
        for location, rows in _by_location(refs):
            moved = _moved(workspace, refs.take(rows), location, relocate)
            action = RELOCATED if moved is not None else DROPPED if drop else LEFT
            report.actions.append((location, node.path, broken[location], action))
            if report.dry_run or action == LEFT:
                continue
            array = workspace.array(node.path)
            if moved is not None:
                workspace.put_refs(array, moved)
            else:
                workspace.delete_chunks(array, refs.coords[rows])


def _pointing_to(workspace: Workspace, broken: set[str]) -> Iterator[tuple[NodeSnapshot, ArrayManifest]]:
    """The references of each array that point into some files."""
    for node in list(workspace.base.nodes):
        data = node.node_data
        for ref in data.manifests if isinstance(data, ArrayNodeData) else ():
            try:
                refs = workspace.manifest_refs(node, ref)
            except IcechunkError:  # a lost manifest is repaired as such
                continue
            codes = [code for code, text in enumerate(refs.locations) if _text(text) in broken]
            rows = (refs.kind == VIRTUAL) & np.isin(refs.location_codes, codes)
            if rows.any():
                yield node, refs.take(rows)


def _by_location(refs: ArrayManifest) -> Iterator[tuple[str, NDArray[np.intp]]]:
    for code in np.unique(refs.location_codes).tolist():
        yield _text(refs.locations[code]), np.flatnonzero(refs.location_codes == code)


def _moved(
    workspace: Workspace, refs: ArrayManifest, location: str, relocate: Mapping[str, str]
) -> ArrayManifest | None:
    """References into one file at the place where it is now; None where it is not there."""
    prefixes = [prefix for prefix in relocate if location.startswith(prefix)]
    if not prefixes:
        return None
    prefix = max(prefixes, key=len)
    place = relocate[prefix] + location.removeprefix(prefix)
    moved = ArrayManifest.virtual(refs.coords, [place] * len(refs), refs.offsets, refs.lengths)
    found = Report(Level.SOURCES)
    check_sources(sources_of(moved), workspace.assets.virtual, ThreadExecutor(1), found)
    return moved if found.ok else None


def _text(location: bytes) -> str:
    return location.decode("utf-8", "replace")
