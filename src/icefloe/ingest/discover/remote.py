"""Files elsewhere: what a bucket or a web server has, and copies of it for readers that want a path."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote

from icefloe.config import StorageRetriesSettings, StorageSettings, VirtualChunkContainer
from icefloe.errors import ErrorKind, StorageError
from icefloe.ingest.discover.urls import (
    is_web,
    key_in_bucket,
    origin_of,
    reference_location,
    refuse_password,
    shown,
)
from icefloe.ingest.discover.web_server import Seen, WebServer, plain_etag, seconds
from icefloe.storage.external.access import get_access, split_query
from icefloe.storage.external.base import Fetched
from icefloe.storage.external.sources import ObjectSource, open_source
from icefloe.storage.factories import check_web_url

_RANGE_BYTES = 16 << 20
_RETRIES = StorageSettings(retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=100))
_FOLDERS = "icefloe-sources"


class Server(Protocol):
    """A bucket or a web server, with the files in it by their URLs."""

    def look(self, url: str) -> Seen:
        """A file as it is now; ObjectNotFoundError where there is none."""

    def below(self, folder: str) -> Iterator[tuple[str, Seen]]:
        """All files below a URL that ends in a slash, by their paths from there."""

    def part(self, url: str, start: int, stop: int) -> bytes:
        """Some bytes of a file."""

    def copy(self, url: str, file: IO[bytes]) -> None:
        """Write the bytes of a file into another."""


def server_of(url: str, options: Mapping[str, Any]) -> Server:
    """Return the server of a URL. Options are those of `storage_from_url`."""
    if is_web(url):
        check_web_url(url)
        return WebServer(options)
    refuse_password(url)
    return Bucket(url, options)


class Bucket:
    """A bucket or container of an object store."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        access = get_access(url, options)
        origin = reference_location(origin_of(url))
        container = VirtualChunkContainer(f"{origin}/", access.store)
        source = open_source(container, access.credential, _RETRIES)
        if not isinstance(source, ObjectSource):
            raise StorageError(f"{origin} is no bucket", kind=ErrorKind.CANNOT_PARSE_URL)
        self._source = source

    def look(self, url: str) -> Seen:
        # docstring inherited
        return _seen(self._source.fetch(key_in_bucket(url), 0, 1))

    def below(self, folder: str) -> Iterator[tuple[str, Seen]]:
        # docstring inherited
        prefix = key_in_bucket(folder)
        for key, found in self._source.list_files(prefix):
            yield key.removeprefix(prefix), _seen(found)

    def part(self, url: str, start: int, stop: int) -> bytes:
        # docstring inherited
        return self._source.fetch(key_in_bucket(url), start, stop).data

    def copy(self, url: str, file: IO[bytes]) -> None:
        # docstring inherited
        size = self.look(url).size_bytes
        for start in range(0, size, _RANGE_BYTES):
            file.write(self.part(url, start, min(start + _RANGE_BYTES, size)))


def _seen(found: Fetched) -> Seen:
    return Seen(found.size_bytes or 0, seconds(found.last_modified), plain_etag(found.e_tag))


# Copies


def copied(url: str, expected: Seen, open_server: Callable[[], Server]) -> str:
    """Copy a remote file to this process's temporary folder. StorageError if the file changed."""
    server = open_server()
    name = unquote(split_query(url)[0].rpartition("/")[2]).replace("/", "_") or "file"
    target = Path(tempfile.mkdtemp(dir=_folder())) / name
    try:
        with open(target, "wb") as file:
            server.copy(url, file)
        size = target.stat().st_size
        cut_short = 0 <= expected.size_bytes != size
        if cut_short or not server.look(url).is_same(expected):
            raise StorageError(
                f"{shown(url)} changed while it was read, or was cut short: it had {expected.size_bytes} "
                f"bytes, {size} came",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
    except (StorageError, OSError):
        shutil.rmtree(target.parent, ignore_errors=True)
        raise
    return str(target)


def drop_copy(path: str) -> None:
    """Delete a copy."""
    shutil.rmtree(Path(path).parent, ignore_errors=True)


@cache
def _folder_of(process: int) -> str:
    """Create a folder for this process, and remove the folders of processes that were killed."""
    mine = f"{_FOLDERS}-{socket.gethostname()}."  # a temporary folder may be shared by machines
    for old in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        number = old.name.removeprefix(mine).partition(".")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(old, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=f"{mine}{process}.")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _folder() -> str:
    return _folder_of(os.getpid())


def index_of(path: str) -> str:
    """Return the path of cfgrib's index of a file, in the temporary folder."""
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    return f"{_folder()}/{name}.{{short_hash}}.idx"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
