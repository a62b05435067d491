"""Files of web servers: these need not know ranges, may lead on to others, and break off now and then."""

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
from icefloe.ingest.discover.urls import shown, without_password
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.access import get_access

_PART_BYTES = 1 << 20
_TIMEOUT_S = 60
_TRIES = 4
_BACKOFF_S = 0.1
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_HEAD = frozenset({400, 401, 403, 405, 501})
"""What servers answer that know no HEAD, and those for whom a URL is signed for GET only."""
T = TypeVar("T")


class WebServer:
    """Web servers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        access = get_access("http://any", options)  # of no use but to know wrong options
        self._headers = dict(getattr(access.store, "headers", None) or {})

    def look(self, url: str) -> Seen:
        """A file as it is now; ObjectNotFoundError where there is none."""
        try:
            return self._tried(lambda: self._looked(url, "HEAD"))
        except _RefusedError:
            return self._tried(lambda: self._looked(url, "GET"))

    def below(self, folder: str) -> Iterator[tuple[str, Seen]]:
        """InvalidInputError: web servers have no listings."""
        raise InvalidInputError(
            f"{shown(folder)}: a web server cannot be asked which files it has: name them, or give a text "
            "file with their URLs",
            ErrorKind.INVALID_PATH,
        )

    def part(self, url: str, start: int, stop: int) -> bytes:
        """Read a byte range of a file, which may end earlier."""

        def read() -> bytes:
            with closing(self._answer(url, "GET", {"Range": f"bytes={start}-{stop - 1}"})) as answer:
                if answer.status != 206:  # all of it comes, from the beginning
                    _read(answer, start)
                return _read(answer, stop - start)

        return self._tried(read)

    def copy(self, url: str, file: IO[bytes]) -> None:
        """Write the bytes of a file into another. Where the server breaks off, the rest is asked for."""
        version: dict[str, str] = {}

        def go_on() -> None:
            at = file.tell()
            wanted = {"Range": f"bytes={at}-", "If-Range": version["is"]} if at and version else {}
            with closing(self._answer(url, "GET", wanted)) as answer:
                if answer.status != 206:
                    file.seek(0)
                    file.truncate()
                told = answer.headers.get("ETag") or ""
                found = told if told.startswith('"') else answer.headers.get("Last-Modified")
                version.update({"is": found} if found else {})
                while part := _read(answer, _PART_BYTES):
                    file.write(part)
                if answer.length:
                    raise _TransientError(f"{shown(url)}: the answer of the web server was cut short")

        self._tried(go_on)

    def _looked(self, url: str, method: str) -> Seen:
        wanted = {"Range": "bytes=0-0"} if method == "GET" else {}
        with closing(self._answer(url, method, wanted)) as answer:
            size = answer.headers.get("Content-Length")
            if answer.status == 206:
                size = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
            modified = None
            with suppress(TypeError, ValueError):
                modified = parsedate_to_datetime(answer.headers.get("Last-Modified") or "")
            etag = plain_etag(answer.headers.get("ETag"))
        return Seen(int(size) if size and size.isdigit() else -1, seconds(modified), etag)

    def _answer(self, url: str, method: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        address, login = without_password(url)
        own = {**login, **self._headers, **headers}
        request = urllib.request.Request(address, headers=own, method=method)
        try:
            answer: http.client.HTTPResponse = _opener.open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise ObjectNotFoundError(shown(url)) from None
            if error.code in _NO_HEAD and method == "HEAD":
                raise _RefusedError from None
            advice = ": give the headers it wants as an option" if error.code in (401, 403) else ""
            text = f"{shown(url)}: the web server answered {error.code} {error.reason}{advice}"
            if error.code in _TRANSIENT:
                raise _TransientError(text) from None
            raise StorageError(text, kind=ErrorKind.OBJECT_STORE) from None
        except (OSError, http.client.HTTPException) as error:
            said = getattr(error, "reason", None) or error
            raise _TransientError(f"{shown(url)}: the web server cannot be reached: {said}") from None
        return answer

    def _tried(self, ask: Callable[[], T]) -> T:
        """Retry transient errors with increasing pauses."""
        for _ in iterate_attempts(_TRIES, _BACKOFF_S, 60, factor=3):
            try:
                return ask()
            except _TransientError as error:
                last = str(error)
        raise StorageError(last, kind=ErrorKind.OBJECT_STORE)


def _read(answer: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return answer.read(count)
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(f"{shown(answer.url)}: the web server broke off: {error}") from None


def seconds(moment: datetime | None) -> int:
    """Convert a time to microseconds, rounded down to the second."""
    return to_microseconds(moment.replace(microsecond=0).astimezone(UTC)) if moment is not None else 0


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Another server gets no header of ours: they may say who we are."""

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
    """A server does not answer such requests."""


class _TransientError(Exception):
    """Worth another try."""


class Seen(NamedTuple):
    """A file as it was when somebody looked."""

    size_bytes: int
    """-1 where a web server does not tell."""
    modified_us: int = 0
    """0 where nobody tells. Of a file elsewhere to the second, since some tell no more."""
    etag: str = ""
    """What an object store or a web server calls this version of the file; nothing on this machine."""

    def is_same(self, other: Seen) -> bool:
        """Return whether both are the same version, by etag if both have one, otherwise by time."""
        if self.size_bytes != other.size_bytes:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        return self.modified_us == other.modified_us


def plain_etag(given: str | None) -> str:
    """Remove the quotes of an etag, which listings of some stores omit."""
    return (given or "").strip().removeprefix("W/").strip('"')
