"""Files elsewhere: what a bucket or a web server has, and copies of it for readers that want a path."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from icefloe.config import StorageRetriesSettings, StorageSettings, VirtualChunkContainer
from icefloe.config.display import may_be_secret
from icefloe.core.virtual_locations import key_of
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.access import access_of, without_query
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external_sources import ObjectSource, open_source
from icefloe.times import to_microseconds

Seen = tuple[int, int]
"""The size of a file, and when it was changed, in microseconds: to the second, since some tell no more."""
_RANGE_BYTES = 16 << 20
_TIMEOUT_S = 60
_RETRIES = StorageSettings(retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=100))
_SIGNED = re.compile(r"sig$|signature|^x-amz-|^x-goog-", re.IGNORECASE)
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
    """What has the file with a URL. Options are those of `storage_from_url`."""
    if urlsplit(url).scheme in ("http", "https"):
        return WebServer(options)
    return Bucket(url, options)


def origin_of(url: str) -> str:
    """What URLs of one server have in common."""
    whole, query = without_query(url)
    parts = urlsplit(whole)
    return f"{parts.scheme}://{parts.netloc}" + (f"?{query}" if not parts.scheme.startswith("http") else "")


def reference_location(url: str) -> str:
    """The location that references into a file have: without options, and of a kind that containers know."""
    whole, query = without_query(url)
    parts = urlsplit(whole)
    if query and parts.scheme.startswith("http"):
        raise InvalidInputError(
            f"{shown(url)}: references cannot have the query of a web address: copy the data instead",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    container, at, _ = parts.netloc.partition("@")
    if at:
        return f"az://{container}{parts.path}"
    return f"s3://{parts.netloc}{parts.path}" if parts.scheme == "r2" else whole


def shown(url: str) -> str:
    """A URL without signatures and tokens: as it may be printed and kept."""
    whole, query = without_query(url)
    if not query or not urlsplit(whole).scheme.startswith("http"):
        return url
    pairs = parse_qsl(query, keep_blank_values=True)
    kept = [(name, value) for name, value in pairs if not (may_be_secret(name) or _SIGNED.search(name))]
    return f"{whole}?{urlencode(kept)}" if kept else whole


class Bucket:
    """A bucket or container of an object store."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        access = access_of(url, options)
        origin = reference_location(origin_of(url))
        container = VirtualChunkContainer(f"{origin}/", access.store)
        source = open_source(container, access.credential, _RETRIES)
        if not isinstance(source, ObjectSource):
            raise StorageError(f"{origin} is no bucket", kind=ErrorKind.CANNOT_PARSE_URL)
        self._source = source

    def look(self, url: str) -> Seen:
        # docstring inherited
        found = self._source.fetch(_key(url), 0, 1)
        return found.size_bytes or 0, _seconds(found.last_modified)

    def below(self, folder: str) -> Iterator[tuple[str, Seen]]:
        # docstring inherited
        prefix = _key(folder)
        for info in self._source.list_files(prefix):
            yield info.key.removeprefix(prefix), (info.size_bytes, _seconds(info.created_at))

    def part(self, url: str, start: int, stop: int) -> bytes:
        # docstring inherited
        return self._source.fetch(_key(url), start, stop).data

    def copy(self, url: str, file: IO[bytes]) -> None:
        # docstring inherited
        size, _ = self.look(url)
        for start in range(0, size, _RANGE_BYTES):
            file.write(self.part(url, start, min(start + _RANGE_BYTES, size)))


class WebServer:
    """Web servers. They need not know ranges, and may lead on to others."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        access = access_of("http://any", options)  # of no use but to know wrong options
        self._headers = dict(getattr(access.store, "headers", None) or {})

    def look(self, url: str) -> Seen:
        # docstring inherited
        try:
            with self._answer(url, "HEAD") as answer:
                size = answer.headers.get("Content-Length")
                modified = None
                with suppress(TypeError, ValueError):
                    modified = parsedate_to_datetime(answer.headers.get("Last-Modified") or "")
        except _NotAllowedError:
            size, modified = None, None
        return int(size) if size else -1, _seconds(modified)

    def below(self, folder: str) -> Iterator[tuple[str, Seen]]:
        # docstring inherited
        raise InvalidInputError(
            f"{shown(folder)}: a web server cannot be asked which files it has: name them, or give a text "
            "file with their URLs",
            ErrorKind.INVALID_PATH,
        )

    def part(self, url: str, start: int, stop: int) -> bytes:
        # docstring inherited
        with self._answer(url, "GET", {"Range": f"bytes={start}-{stop - 1}"}) as answer:
            if answer.status != 206:  # all of it comes, from the beginning
                answer.read(start)
            found: bytes = answer.read(stop - start)
            return found

    def copy(self, url: str, file: IO[bytes]) -> None:
        # docstring inherited
        with self._answer(url, "GET") as answer:
            shutil.copyfileobj(answer, file, _RANGE_BYTES)

    def _answer(self, url: str, method: str, headers: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(url, headers={**self._headers, **(headers or {})}, method=method)
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise ObjectNotFoundError(shown(url)) from None
            if error.code in (405, 501) and method == "HEAD":
                raise _NotAllowedError from None
            advice = ": give the headers it wants as an option" if error.code in (401, 403) else ""
            text = f"{shown(url)}: the web server answered {error.code} {error.reason}{advice}"
            raise StorageError(text, kind=ErrorKind.OBJECT_STORE) from None
        except OSError as error:
            said = getattr(error, "reason", None) or error
            text = f"{shown(url)}: the web server cannot be reached: {said}"
            raise StorageError(text, kind=ErrorKind.OBJECT_STORE) from None


class _NotAllowedError(Exception):
    """A server does not answer such requests."""


def _key(url: str) -> str:
    return key_of(reference_location(url))


def _seconds(moment: datetime | None) -> int:
    return to_microseconds(moment.replace(microsecond=0).astimezone(UTC)) if moment is not None else 0


def quoted(key: str) -> str:
    """A key as the path of a URL."""
    return quote(key, safe="/!$&'()*+,;=:@~")


# Copies


def copied(url: str, expected: Seen, open_server: Callable[[], Server]) -> str:
    """A copy of a file in this process's folder for them; StorageError if it is not what it was."""
    server = open_server()
    name = without_query(url)[0].rpartition("/")[2] or "file"
    target = Path(tempfile.mkdtemp(dir=_folder())) / name
    try:
        with open(target, "wb") as file:
            server.copy(url, file)
        size, modified = target.stat().st_size, server.look(url)[1]
        if (expected[0] >= 0 and size != expected[0]) or modified != expected[1]:
            raise StorageError(
                f"{shown(url)} changed while it was read, or was cut short: it had {expected[0]} bytes, "
                f"{size} came",
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
    """A folder that goes with its process, also if the process is killed: the next one clears it away."""
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


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
