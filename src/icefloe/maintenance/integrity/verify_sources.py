"""Verify the source files of virtual references, with one request per file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

import numpy as np

from icefloe._internal.executor import Executor, Task
from icefloe.core.virtual_chunks.authorized_reads import VirtualReader, check_version
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.format.manifest import NO_ETAG, VIRTUAL, ArrayManifest, Checksum, ETag, LastModified
from icefloe.maintenance.integrity.findings import Finding, Findings
from icefloe.storage.base import ObjectNotFoundError

Sources: TypeAlias = dict[tuple[bytes, Checksum | None], int]
"""The end of the last referenced byte range in each file, by location and recorded version."""


def find_sources(refs: ArrayManifest) -> Sources:
    """Find the source files that the virtual references of an array point to."""
    rows = np.flatnonzero(refs.kind == VIRTUAL)
    found: Sources = {}
    if not len(rows):
        return found
    keys = np.stack([refs.location_codes[rows], refs.etag_codes[rows], refs.last_modified[rows]], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    reach = np.zeros(len(distinct), np.uint64)
    np.maximum.at(reach, group.reshape(-1), refs.offsets[rows] + refs.lengths[rows])
    for (location, etag, seconds), end in zip(distinct.tolist(), reach.tolist(), strict=True):
        checksum: Checksum | None = LastModified(seconds) if seconds else None
        if etag != NO_ETAG:
            checksum = ETag(refs.etags[etag].decode("utf-8", "replace"))
        found[refs.locations[location], checksum] = end
    return found


def merge_sources(parts: Iterable[Sources]) -> Sources:
    """Merge the source files referenced by several manifests."""
    found: Sources = {}
    for part in parts:
        for key, end in part.items():
            found[key] = max(end, found.get(key, 0))
    return found


def check_sources(sources: Sources, reader: VirtualReader, executor: Executor, report: Findings) -> None:
    """Verify the source files of virtual references by requesting the last referenced byte of each."""
    for finding in executor.map(Task(partial(_check, reader), "sources"), sources.items()):
        report.counts["sources"] += 1
        if finding is not None:
            report.findings.append(finding)


def _check(reader: VirtualReader, item: tuple[tuple[bytes, Checksum | None], int]) -> Finding | None:
    (raw, checksum), end = item
    location, first = raw.decode("utf-8", "replace"), max(end - 1, 0)

    def wrong(kind: str, message: str) -> Finding:
        return Finding(kind, location, "virtual references", message)

    try:
        source, key = reader.place(location)
    except InvalidInputError as error:
        return wrong("unauthorised", str(error))
    try:
        fetched = source.fetch(key, first, end)
        check_version(fetched, checksum, location, "the last of several")
    except ObjectNotFoundError:
        return wrong("missing", "the file does not exist")
    except StorageError as error:
        changed = error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
        return wrong("changed" if changed else "unreachable", str(error))
    if len(fetched.data) < end - first:
        return wrong("short", f"a reference ends at byte {end}, but the file has {fetched.size_bytes} bytes")
    return None
