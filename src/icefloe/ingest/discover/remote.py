"""Access remote files: list buckets, read byte ranges, and make local copies for libraries that
need a path.
"""

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
    get_bucket_key,
    get_origin,
    is_web,
    make_reference_url,
    redact,
    refuse_password,
)
from icefloe.ingest.discover.web_server import FileVersion, WebServer, strip_etag, to_whole_seconds
from icefloe.storage.external.access import get_access, split_query
from icefloe.storage.external.base import Fetched
from icefloe.storage.external.sources import ObjectSource, open_source
from icefloe.storage.factories import check_web_url

_RANGE_BYTES = 16 << 20
_RETRIES = StorageSettings(retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=100))
_FOLDERS = "icefloe-sources"


class Server(Protocol):
    """The interface to a remote server with source files: a bucket or a web server.

    Files are identified by URL.
    """

    def look_up(self, url: str) -> FileVersion:
        """Return the current version of a remote source file.

        Raise ObjectNotFoundError if the file does not exist.
        """

    def list_below(self, folder: str) -> Iterator[tuple[str, FileVersion]]:
        """Yield the relative path and version of each remote source file below a URL that ends
        with a slash.
        """

    def read_range(self, url: str, start: int, stop: int) -> bytes:
        """Return a byte range of a remote source file."""

    def copy(self, url: str, file: IO[bytes]) -> None:
        """Download a remote source file into an open local file."""


def open_server(url: str, options: Mapping[str, Any]) -> Server:
    """Connect to the bucket or web server of a source URL.

    `options` are the keyword arguments of `storage_from_url`.
    """
    if is_web(url):
        check_web_url(url)
        return WebServer(options)
    refuse_password(url)
    return Bucket(url, options)


class Bucket:
    """A bucket or container in an object store, as a server of source files."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        access = get_access(url, options)
        origin = make_reference_url(get_origin(url))
        container = VirtualChunkContainer(f"{origin}/", access.store)
        source = open_source(container, access.credential, _RETRIES)
        if not isinstance(source, ObjectSource):
            raise StorageError(f"{origin} is not a bucket", kind=ErrorKind.CANNOT_PARSE_URL)
        self._source = source

    def look_up(self, url: str) -> FileVersion:
        # docstring inherited
        return _to_version(self._source.fetch(get_bucket_key(url), 0, 1))

    def list_below(self, folder: str) -> Iterator[tuple[str, FileVersion]]:
        # docstring inherited
        prefix = get_bucket_key(folder)
        for key, found in self._source.list_files(prefix):
            yield key.removeprefix(prefix), _to_version(found)

    def read_range(self, url: str, start: int, stop: int) -> bytes:
        # docstring inherited
        return self._source.fetch(get_bucket_key(url), start, stop).data

    def copy(self, url: str, file: IO[bytes]) -> None:
        # docstring inherited
        size = self.look_up(url).size_bytes
        for start in range(0, size, _RANGE_BYTES):
            file.write(self.read_range(url, start, min(start + _RANGE_BYTES, size)))


def _to_version(found: Fetched) -> FileVersion:
    return FileVersion(found.size_bytes or 0, to_whole_seconds(found.last_modified), strip_etag(found.e_tag))


# Copies


def make_copy(url: str, expected: FileVersion, open_server: Callable[[], Server]) -> str:
    """Download a remote source file to the temporary directory of this process.

    Raise StorageError if the file has changed.
    """
    server = open_server()
    name = unquote(split_query(url)[0].rpartition("/")[2]).replace("/", "_") or "file"
    target = Path(tempfile.mkdtemp(dir=_get_folder())) / name
    try:
        with open(target, "wb") as file:
            server.copy(url, file)
        size = target.stat().st_size
        cut_short = 0 <= expected.size_bytes != size
        if cut_short or not server.look_up(url).is_same(expected):
            raise StorageError(
                f"{redact(url)} changed while it was read, or the transfer was incomplete: expected "
                f"{expected.size_bytes} bytes, received {size}",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
    except (StorageError, OSError):
        shutil.rmtree(target.parent, ignore_errors=True)
        raise
    return str(target)


def drop_copy(path: str) -> None:
    """Delete the local copy of a remote source file."""
    shutil.rmtree(Path(path).parent, ignore_errors=True)


@cache
def _make_folder(process: int) -> str:
    """Create a temporary directory for this process, and delete those of killed processes."""
    mine = f"{_FOLDERS}-{socket.gethostname()}."  # several machines may share a temporary directory
    for old in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        number = old.name.removeprefix(mine).partition(".")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(old, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=f"{mine}{process}.")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _get_folder() -> str:
    return _make_folder(os.getpid())


def make_index_path(path: str) -> str:
    """Return the path of the cfgrib index for a source, in the temporary directory."""
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    return f"{_get_folder()}/{name}.{{short_hash}}.idx"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
