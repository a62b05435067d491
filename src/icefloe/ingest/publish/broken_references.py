"""Find virtual references of a published branch to sources that are missing or have changed.

The sources of a run are compared with the ledger. Other referenced sources in the ledger are looked up,
because a file that was deleted is no longer among the sources of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icefloe.core.reference_columns import iterate_referenced_files
from icefloe.errors import InvalidInputError
from icefloe.ingest.discover.known_sources import look_up_versions
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.discover.urls import make_reference_url
from icefloe.ingest.ledger import Ledger, LedgerRow
from icefloe.ingest.options import Options
from icefloe.ingest.report import IngestReport
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.virtual.sources import to_location


def report_broken_references(
    report: IngestReport, repo: Repository, sources: Sequence[IngestSource], options: Options, known: Ledger
) -> IngestReport:
    """Return a report with the sources that broken virtual references of the target branch point to.

    `known` is a ledger of the target branch, which is read again if the branch has moved.
    """
    if options.mode == "native" and all(row.mode == "native" for row in known.rows):
        return report
    session = repo.readonly_session(branch=options.branch)
    if session.snapshot_id != known.snapshot_id:
        known = Ledger.read(session, options.group)
    planned = {each.url for each in report.outcome.wanted} if report.published is None and report.plan else {}
    rows = {row.source: row for row in known.rows if row.mode != "native" and row.source not in planned}
    missing, changed = _find_suspects(rows, sources, options.reading.storage_options)
    if not (missing or changed):
        return report
    referenced = _find_referenced(session, {**missing, **changed})
    return replace(
        report,
        broken=tuple(each for url, each in {**changed, **missing}.items() if url in referenced),
        missing=tuple(each for url, each in missing.items() if url in referenced),
    )


_Named = dict[str, IngestSource]


def _find_suspects(
    rows: Mapping[str, LedgerRow], sources: Sequence[IngestSource], options: Mapping[str, Any]
) -> tuple[_Named, _Named]:
    """Return the missing and the changed sources of ledger rows, by URL. A repository does not change,
    because its chunks are never overwritten."""
    versions = {each.url: each.version for each in sources if each.url in rows}
    others = [row.to_source() for url, row in rows.items() if url not in versions]
    now = {**versions, **look_up_versions(others, options)}
    recorded = {url: rows[url].to_source() for url in now}
    missing = {url: recorded[url] for url, version in now.items() if version is None}
    changed = {
        url: recorded[url]
        for url, version in now.items()
        if version is not None
        and not recorded[url].is_repository
        and not recorded[url].version.is_same(version)
    }
    return missing, changed


def _find_referenced(session: Session, suspects: Mapping[str, IngestSource]) -> Collection[str]:
    """Return the URLs of the sources that virtual chunks of the session refer to."""
    files: dict[str, str] = {}
    stores: dict[str, str] = {}
    for url, source in suspects.items():
        try:
            location = to_location(
                make_reference_url(source.repository_address if source.is_repository else url)
            )
        except InvalidInputError:  # a signed URL is never referenced
            continue
        (stores if source.is_store else files)[location] = url
    found: set[str] = set()
    workspace, containers = session._workspace, session._assets.virtual.containers
    for locations in iterate_referenced_files(workspace, containers):
        found |= {files[each] for each in locations & files.keys()}
        found |= {
            url
            for store, url in stores.items()
            if url not in found and any(each.startswith(f"{store}/") for each in locations)
        }
        if len(found) == len(suspects):
            break
    return found
