"""Look up sources that were already ingested, to find missing and changed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from icefloe._internal.concurrency import get_pool
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.ingest.discover.remote import Bucket, Server, open_server
from icefloe.ingest.discover.sources import (
    REPOSITORY_FILES,
    IngestSource,
    look_up_source,
    make_local_source,
)
from icefloe.ingest.discover.urls import get_origin, quote_key
from icefloe.ingest.discover.web_server import FileVersion
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.access import split_query

_CONCURRENT_LOOKUPS = 16
_LISTED_FROM = 50
"""The number of files in one bucket prefix above which the prefix is listed, with 1,000 files per request,
instead of sending a request for each file.
"""


def look_up_versions(
    sources: Sequence[IngestSource], options: Mapping[str, Any]
) -> dict[str, FileVersion | None]:
    """Look up the current versions of ingested sources by URL. The version of a missing source is None.

    Unreachable sources are left out. `options` are the keyword arguments of `storage_from_url`.
    """
    folders: dict[tuple[str, str], list[IngestSource]] = {}
    for each in sources:
        origin = get_origin(each.url) if each.is_remote else ""
        folder = each.url.rpartition("/")[0] if each.is_remote and not each.is_store else ""
        folders.setdefault((origin, folder), []).append(each)
    servers: dict[str, Server | None] = {"": None}
    found: dict[str, FileVersion | None] = {}
    for (origin, folder), members in folders.items():
        try:
            if origin not in servers:
                servers[origin] = open_server(members[0].url, options)
            server = servers[origin]
            if isinstance(server, Bucket) and folder and len(members) >= _LISTED_FROM:
                found |= _look_up_in_listing(server, folder, members)
                continue
        except IcechunkError:
            continue
        found |= _look_up_each(server, members)
    return found


def _look_up_in_listing(
    server: Bucket, folder: str, members: Sequence[IngestSource]
) -> dict[str, FileVersion | None]:
    wanted = dict.fromkeys(each.url for each in members)
    listed = ((f"{folder}/{quote_key(key)}", version) for key, version in server.list_below(f"{folder}/"))
    return wanted | {url: version for url, version in listed if url in wanted}


def _look_up_each(server: Server | None, members: Sequence[IngestSource]) -> dict[str, FileVersion | None]:
    def look_up(source: IngestSource, server: Server | None) -> Iterator[tuple[str, FileVersion | None]]:
        try:
            yield source.url, _look_up(source, server)
        except (ObjectNotFoundError, FileNotFoundError, NotADirectoryError):
            yield source.url, None
        except (IcechunkError, OSError):  # for example, the server is down
            return

    pool = get_pool("finding", _CONCURRENT_LOOKUPS)
    return {url: version for found in pool.map(look_up, members, repeat(server)) for url, version in found}


def _look_up(source: IngestSource, server: Server | None) -> FileVersion:
    """Return the current version of a source. A repository source never changes: its URL and etag select a
    snapshot.
    """
    if server is None:
        if not source.is_repository:
            return make_local_source(Path(source.url)).version
        if not any(Path(source.repository_address, name).exists() for name in REPOSITORY_FILES):
            raise FileNotFoundError(source.url)
        return source.version
    if source.is_repository:
        for name in REPOSITORY_FILES:
            if _exists(server, f"{source.repository_address}/{name}"):
                return source.version
        raise ObjectNotFoundError(source.url)
    if not source.is_store:
        return server.look_up(source.url)
    try:
        return look_up_source(server, *split_query(source.url)).version
    except InvalidInputError as error:
        raise ObjectNotFoundError(source.url) from error


def _exists(server: Server, url: str) -> bool:
    try:
        server.look_up(url)
    except ObjectNotFoundError:
        return False
    return True
