"""Find virtual references on a published branch to sources that are missing or have changed.

The sources of a run are compared with the ledger. All other referenced sources in the ledger are looked up,
because a deleted file is no longer among the sources of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np

from icefloe.core.reference_columns import iterate_manifest_refs, to_absolute_locations
from icefloe.encoding.columns import Blobs
from icefloe.errors import InvalidInputError
from icefloe.format.manifest import VIRTUAL, Checksum, ETag, LastModified
from icefloe.ingest.discover.known_sources import look_up_versions
from icefloe.ingest.discover.sources import IngestSource
from icefloe.ingest.discover.urls import make_reference_url
from icefloe.ingest.discover.web_server import FileVersion, strip_etag
from icefloe.ingest.ledger import Ledger, LedgerRow, RunSources
from icefloe.ingest.options import Options
from icefloe.ingest.report import IngestReport
from icefloe.maintenance.integrity.verify_sources import find_sources, merge_sources
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.virtual.sources import to_location


def complete_report(
    report: IngestReport, repo: Repository, selection: RunSources, options: Options
) -> IngestReport:
    """Complete the report of an ingest with the missing and changed sources that the target branch
    references.

    The ledger is read again if the branch has moved.
    """
    report, known, sources = report.complete(selection.found), selection.ledger, selection.found.sources
    if options.mode == "native" and all(row.mode == "native" for row in known.rows):
        return report
    session = repo.readonly_session(branch=options.branch)
    if session.snapshot_id != known.snapshot_id:
        known = Ledger.read(session, options.group)
    planned = {each.url for each in report.outcome.wanted} if report.published is None and report.plan else {}
    rows = {row.source: row for row in known.rows if row.mode != "native" and row.source not in planned}
    missing, changed = _find_suspects(rows, sources, options.reading.storage_options)
    if any(_is_indirect(row.to_source()) for row in rows.values()):
        gone, other = _find_broken_files(session, rows.values(), options.reading.storage_options)
        missing, changed = {**missing, **gone}, {**changed, **other}
    if not (missing or changed):
        return report
    referenced = _find_referenced(session, {**missing, **changed})
    return replace(
        report,
        broken=tuple(each for url, each in {**changed, **missing}.items() if url in referenced),
        missing=tuple(each for url, each in missing.items() if url in referenced),
    )


_Named = dict[str, IngestSource]
_INDIRECT: Final = (".json", ".parq", ".parquet", ".dmrpp")
"""The suffixes of kerchunk and DMR++ files."""


def _find_suspects(
    rows: Mapping[str, LedgerRow], sources: Sequence[IngestSource], options: Mapping[str, Any]
) -> tuple[_Named, _Named]:
    """Return the missing and the changed sources in the ledger, by URL. A repository never counts as changed,
    because its chunks are never overwritten.
    """
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


def _is_indirect(source: IngestSource) -> bool:
    """Return True if a source consists of references to other files, which the ledger does not list."""
    return source.is_repository or source.url.rstrip("/").lower().endswith(_INDIRECT)


def _find_broken_files(
    session: Session, rows: Iterable[LedgerRow], options: Mapping[str, Any]
) -> tuple[_Named, _Named]:
    """Return the missing and the changed files that are referenced but not in the ledger, by URL. If a file
    belongs to a store, the store is returned instead.
    """
    listed = {
        location: row.to_source() for row in rows if (location := _find_location(row.to_source())) is not None
    }
    stores = {f"{location}/": source for location, source in listed.items() if source.is_store}
    owners: dict[str, IngestSource] = {}
    found = merge_sources(map(find_sources, iterate_manifest_refs(session._workspace)))
    others: dict[str, tuple[Checksum | None, int]] = {}
    for (raw, checksum), end in found.items():
        [location] = to_absolute_locations(Blobs.from_list([raw]), session._assets.virtual.containers)
        if location not in listed:
            url = unquote(urlsplit(location).path) if location.startswith("file:") else location
            others[url] = checksum, end
            owner = next((store for start, store in stores.items() if location.startswith(start)), None)
            owners[url] = owner or IngestSource(url, -1, 0)
    now = look_up_versions([IngestSource(url, -1, 0) for url in others], options)
    missing = [owners[url] for url, version in now.items() if version is None]
    changed = [
        owners[url]
        for url, version in now.items()
        if version is not None and not _is_recorded(version, *others[url])
    ]
    return {each.url: each for each in missing}, {each.url: each for each in changed}


def _is_recorded(version: FileVersion, checksum: Checksum | None, end: int) -> bool:
    if isinstance(checksum, ETag) and version.etag and strip_etag(checksum.value) != version.etag:
        return False
    if isinstance(checksum, LastModified) and version.modified_us > checksum.seconds * 1_000_000:
        return False
    return version.size_bytes < 0 or version.size_bytes >= end


def _find_location(source: IngestSource) -> str | None:
    """Return the location of a source as it appears in references. Return None if it cannot be referenced."""
    try:
        return to_location(
            make_reference_url(source.repository_address if source.is_repository else source.url)
        )
    except InvalidInputError:  # a signed URL
        return None


def _find_referenced(session: Session, suspects: Mapping[str, IngestSource]) -> Collection[str]:
    """Return the URLs of the sources that virtual chunks of the session reference."""
    files: dict[str, str] = {}
    stores: dict[str, str] = {}
    for url, source in suspects.items():
        if (location := _find_location(source)) is not None:
            (stores if source.is_store else files)[location] = url
    found: set[str] = set()
    containers = session._assets.virtual.containers
    for refs in iterate_manifest_refs(session._workspace):
        codes = np.unique(refs.location_codes[refs.kind == VIRTUAL])
        locations = set(to_absolute_locations(refs.locations.take(codes), containers))
        found |= {files[each] for each in locations & files.keys()}
        found |= {
            url
            for store, url in stores.items()
            if url not in found and any(each.startswith(f"{store}/") for each in locations)
        }
        if len(found) == len(suspects):
            break
    return found
