"""Read files from web servers, which may not support range requests, may redirect, or may drop
connections.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from icefloe._internal.retry import iterate_attempts
from icefloe._internal.times import to_microseconds
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.ingest.discover.urls import redact, split_password
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.access import get_access

_PART_BYTES = 1 << 20
_TIMEOUT_S = 60
_TRIES = 4
_BACKOFF_S = 0.1
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_HEAD = frozenset({400, 401, 403, 405, 501})
"""The status codes with which servers reject HEAD requests, because they do not support HEAD or the URL is
signed for GET only.
"""
T = TypeVar("T")


class WebServer:
    """A web server with source files. It may not support range requests, may redirect, or may drop
    connections.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        access = get_access("http://any", options)  # opened only to check the options
        self._headers = dict(getattr(access.store, "headers", None) or {})

    def look_up(self, url: str) -> FileVersion:
        """Return the current version of a source file on a web server.

        Raise ObjectNotFoundError if the file does not exist.
        """
        try:
            return self._retry(lambda: self._request_version(url, "HEAD"))
        except _RefusedError:
            return self._retry(lambda: self._request_version(url, "GET"))

    def list_below(self, folder: str) -> Iterator[tuple[str, FileVersion]]:
        """Raise InvalidInputError, because files on web servers cannot be listed."""
        raise InvalidInputError(
            f"{redact(folder)}: files on a web server cannot be listed; pass their URLs, or a text file"
            " with the URLs",
            ErrorKind.INVALID_PATH,
        )

    def read_range(self, url: str, start: int, stop: int) -> bytes:
        """Read a byte range of a file on a web server. The result is shorter if the file ends earlier."""

        def read() -> bytes:
            with closing(self._request(url, "GET", {"Range": f"bytes={start}-{stop - 1}"})) as answer:
                if answer.status != 206:  # the server ignored the range and sent the whole file
                    _read(answer, start)
                return _read(answer, stop - start)

        return self._retry(read)

    def copy(self, url: str, file: IO[bytes]) -> None:
        """Download a file from a web server. Resume if the server closes the connection."""
        version: dict[str, str] = {}

        def resume() -> None:
            at = file.tell()
            wanted = {"Range": f"bytes={at}-", "If-Range": version["is"]} if at and version else {}
            with closing(self._request(url, "GET", wanted)) as answer:
                if answer.status != 206:
                    file.seek(0)
                    file.truncate()
                etag = answer.headers.get("ETag") or ""
                found = etag if etag.startswith('"') else answer.headers.get("Last-Modified")
                version.update({"is": found} if found else {})
                while part := _read(answer, _PART_BYTES):
                    file.write(part)
                if answer.length:
                    raise _TransientError(f"{redact(url)}: incomplete response from the web server")

        self._retry(resume)

    def _request_version(self, url: str, method: str) -> FileVersion:
        wanted = {"Range": "bytes=0-0"} if method == "GET" else {}
        with closing(self._request(url, method, wanted)) as answer:
            size = answer.headers.get("Content-Length")
            if answer.status == 206:
                size = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
            modified = None
            with suppress(TypeError, ValueError):
                modified = parsedate_to_datetime(answer.headers.get("Last-Modified") or "")
            etag = strip_etag(answer.headers.get("ETag"))
        return FileVersion(int(size) if size and size.isdigit() else -1, to_whole_seconds(modified), etag)

    def _request(self, url: str, method: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        address, login = split_password(url)
        own = {**login, **self._headers, **headers}
        request = urllib.request.Request(address, headers=own, method=method)
        try:
            answer: http.client.HTTPResponse = _opener.open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            problem = _describe_refusal(url, method, error)
        except (OSError, http.client.HTTPException) as error:
            said = getattr(error, "reason", None) or error
            problem = _TransientError(f"{redact(url)}: the web server cannot be reached: {said}")
        else:
            return answer
        # Raised outside of the handlers. Otherwise the other error would be its context, and would be pickled
        # with the whole URL.
        raise problem

    def _retry(self, ask: Callable[[], T]) -> T:
        """Retry a function after transient errors, with exponential backoff."""
        for _ in iterate_attempts(_TRIES, _BACKOFF_S, 60, factor=3):
            try:
                return ask()
            except _TransientError as error:
                last = str(error)
        raise StorageError(last, kind=ErrorKind.OBJECT_STORE)


def _describe_refusal(url: str, method: str, error: urllib.error.HTTPError) -> Exception:
    """Convert an HTTP error status to an exception."""
    if error.code in (404, 410):
        return ObjectNotFoundError(redact(url))
    if error.code in _NO_HEAD and method == "HEAD":
        return _RefusedError()
    advice = ": pass the required headers as an option" if error.code in (401, 403) else ""
    text = f"{redact(url)}: the web server answered {error.code} {error.reason}{advice}"
    return (
        _TransientError(text) if error.code in _TRANSIENT else StorageError(text, kind=ErrorKind.OBJECT_STORE)
    )


def _read(answer: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return answer.read(count)
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(
            f"{redact(answer.url)}: the web server closed the connection: {error}"
        ) from None


def to_whole_seconds(moment: datetime | None) -> int:
    """Convert a modification time to microseconds, rounded down to the whole seconds that web
    servers report.
    """
    return to_microseconds(moment.replace(microsecond=0).astimezone(UTC)) if moment is not None else 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A redirect handler that sends the caller's headers, which may contain secrets, only to the original
    server.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        # docstring inherited
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None:
            here, there = urlsplit(req.full_url), urlsplit(newurl)
            if (here.scheme, here.netloc) != (there.scheme, there.netloc):
                kept = {name: value for name, value in found.header_items() if name in ("Range", "If-range")}
                found.headers = kept
            found.method = req.get_method()
        return found


_opener = urllib.request.build_opener(_Redirects)


class _RefusedError(Exception):
    """Error raised when a web server rejects a request method."""


class _TransientError(Exception):
    """Error raised for a transient failure of a web server. The request is retried."""


class FileVersion(NamedTuple):
    """The version of a file on a web server or in a bucket: its etag, size and modification time."""

    size_bytes: int
    """The file size; -1 if the web server does not report it."""
    modified_us: int = 0
    """The modification time; 0 if it is unknown. For remote files it is rounded to whole seconds, because
    some servers report only seconds.
    """
    etag: str = ""
    """The etag from the object store or web server; empty for a local file."""

    def is_same(self, other: FileVersion) -> bool:
        """Return True if two versions of a file are the same.

        The sizes must be equal, and also the etags if both versions have one, or else the modification times.
        """
        if self.size_bytes != other.size_bytes:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        return self.modified_us == other.modified_us


def strip_etag(given: str | None) -> str:
    """Strip the quotes and the prefix `W/` from an etag. Some object stores list etags without quotes."""
    return (given or "").strip().removeprefix("W/").strip('"')
