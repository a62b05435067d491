"""Read byte ranges of files on web servers, over a pool of persistent connections.

obstore follows redirects to any server. Here a redirect must stay on the authorized server and below the
authorized URL prefix.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import threading
import urllib.request
import weakref
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote, urljoin, urlsplit

from icefloe._internal.retry import iterate_attempts
from icefloe.config import EffectiveStorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.base import ExternalSource, Fetched
from icefloe.storage.factories import check_web_url
from icefloe.storage.object_store.clients import make_user_agent

_KEPT_CONNECTIONS = 64
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_TIMEOUT_S = 60
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_TRUE = ("1", "true", "on", "yes", "y")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class WebSource(ExternalSource):
    """An external source of virtual chunks below a URL prefix on a web server."""

    def __init__(
        self,
        url_prefix: str,
        options: Mapping[str, str],
        headers: Mapping[str, str],
        settings: EffectiveStorageSettings,
    ) -> None:
        check_web_url(url_prefix)
        self._prefix = url_prefix
        self._options = {name.lower(): value for name, value in options.items()}
        self._headers = {
            "User-Agent": self._options.get("user_agent", make_user_agent(None)),
            "Accept-Encoding": "identity",
            **headers,
        }
        self._settings = settings
        self._pool = _Pool(self._options, (settings.read_timeout_ms or 1000 * _TIMEOUT_S) / 1000)

    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        # docstring inherited
        url = urljoin(self._prefix, "/" + quote(key, safe="/!$&'()*+,;=:@~"))
        settings = self._settings
        pauses_s = (settings.initial_backoff_ms / 1000, max(settings.max_backoff_ms, 1) / 1000)
        for _ in iterate_attempts(max(settings.max_tries, 1), *pauses_s):
            try:
                return self._follow(url, start, stop)
            except _TransientError as failure:
                last = failure
        raise StorageError(last.message, kind=last.kind)

    def _follow(self, url: str, start: int, stop: int) -> Fetched:
        for _ in range(_MAX_REDIRECTS + 1):
            found = self._send_request(url, start, stop)
            if isinstance(found, Fetched):
                return found
            url = self._check_redirect(url, found)
        raise StorageError(f"{url}: more than {_MAX_REDIRECTS} redirects", kind=ErrorKind.BAD_REDIRECT)

    def _check_redirect(self, url: str, location: str) -> str:
        """Return the target of a redirect; raise StorageError if it is outside the authorized prefix."""
        target = urljoin(url, location)
        here, there = urlsplit(self._prefix), urlsplit(target)
        same_server = there.netloc == here.netloc and there.scheme in (here.scheme, "https")
        path = unquote(there.path).replace("\\", "/")
        if not same_server or not path.startswith(unquote(here.path)) or ".." in path.split("/"):
            raise StorageError(
                f"{url} redirects to {there.scheme}://{there.netloc}{there.path}, outside the virtual chunk "
                f"container {self._prefix}; use that location in references, and authorize it",
                kind=ErrorKind.BAD_REDIRECT,
            )
        return target

    def _send_request(self, url: str, start: int, stop: int) -> Fetched | str:
        """Send one request. Return the bytes, or the target of a redirect."""
        headers = {**self._headers, "Range": f"bytes={start}-{stop - 1}"}
        try:
            with self._pool.response(url, headers) as response:
                return self._parse_response(url, response, start, stop)
        except (OSError, http.client.HTTPException) as cause:
            text = f"{url}: {str(cause) or type(cause).__name__}"
            raise _TransientError(text, ErrorKind.OBJECT_STORE) from None

    def _parse_response(
        self, url: str, response: http.client.HTTPResponse, start: int, stop: int
    ) -> Fetched | str:
        status = response.status
        if status in _REDIRECTS and response.getheader("Location"):
            response.read()
            return str(response.getheader("Location"))
        if status == 416:
            response.read()
            size = (response.getheader("Content-Range") or "").rpartition("/")[2]
            return self._make_fetched(response, b"", int(size) if size.isdigit() else None)
        if status == 206:
            extent = _CONTENT_RANGE.fullmatch((response.getheader("Content-Range") or "").strip())
            if extent is None or int(extent[1]) != start or int(extent[2]) >= stop:
                raise StorageError(
                    f"{url}: requested bytes {start} to {stop}, the server sent "
                    f"{response.getheader('Content-Range')!r}",
                    kind=ErrorKind.OBJECT_STORE,
                )
            data = response.read()
            if len(data) != int(extent[2]) + 1 - start:
                raise _TransientError(f"{url}: the response was truncated", ErrorKind.OBJECT_STORE)
            return self._make_fetched(response, data, None if extent[3] == "*" else int(extent[3]))
        if status in (404, 410):
            response.read()
            raise ObjectNotFoundError(url)
        if status == 200:
            response.close()
            raise StorageError(
                f"{url}: the web server does not support range requests", kind=ErrorKind.OBJECT_STORE
            )
        text = f"{url}: the web server answered {status} {response.reason}"
        if status in _TRANSIENT:
            throttled = status in (429, 503)
            raise _TransientError(text, ErrorKind.THROTTLED if throttled else ErrorKind.OBJECT_STORE)
        raise StorageError(text, kind=ErrorKind.OBJECT_STORE)

    def _make_fetched(
        self, response: http.client.HTTPResponse, data: bytes, size_bytes: int | None
    ) -> Fetched:
        modified = None
        with contextlib.suppress(TypeError, ValueError):
            modified = parsedate_to_datetime(response.getheader("Last-Modified") or "")
        return Fetched(data, size_bytes, response.getheader("ETag"), modified)


class _TransientError(StorageError):
    """An error that may disappear when the request is retried."""


class _Pool:
    """A pool of open connections to one server, or to its proxy."""

    def __init__(self, options: Mapping[str, str], timeout_s: float) -> None:
        self._options = options
        self._timeout_s = timeout_s
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        weakref.finalize(self, _close, self._idle)

    @contextlib.contextmanager
    def response(self, url: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Yield the response to a GET request. The connection is reused if the response is read to its
        end.
        """
        parts = urlsplit(url)
        server = f"{parts.scheme}://{parts.netloc}"
        target = parts.path or "/"
        proxy = self._proxy(parts.scheme, parts.hostname or "")
        if proxy and parts.scheme == "http":
            target = server + target
        connection, reused = self._take_connection(server)
        response = None
        try:
            if connection is None:
                connection = self._connect(parts.scheme, parts.hostname or "", parts.port, proxy)
            try:
                connection.request("GET", target, headers=dict(headers))
                response = connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest):
                if not reused:
                    raise
                # The server closed an idle connection.
                connection.close()
                connection = self._connect(parts.scheme, parts.hostname or "", parts.port, proxy)
                connection.request("GET", target, headers=dict(headers))
                response = connection.getresponse()
            yield response
            if response.isclosed() and not response.will_close:
                self._keep_connection(server, connection)
                connection = None
        finally:
            if connection is not None:
                if response is not None:
                    response.close()  # otherwise an exception that refers to it keeps the socket open
                connection.close()

    def _take_connection(self, server: str) -> tuple[http.client.HTTPConnection | None, bool]:
        if (
            self._pid != os.getpid()
        ):  # after a fork, two processes on one connection would read each other's responses
            self._pid, self._lock = os.getpid(), threading.Lock()
            _close(self._idle)
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == server:
                    return self._idle.pop(at)[1], True
        return None, False

    def _keep_connection(self, server: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._idle.append((server, connection))
            surplus = self._idle[:-_KEPT_CONNECTIONS]
            del self._idle[:-_KEPT_CONNECTIONS]
        for _, old in surplus:
            old.close()

    def _connect(
        self, scheme: str, host: str, port: int | None, proxy: str | None
    ) -> http.client.HTTPConnection:
        via = urlsplit(proxy) if proxy else None
        at, at_port = (via.hostname or "", via.port) if via else (host, port)
        if scheme == "http":
            return http.client.HTTPConnection(at, at_port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        if self._options.get("allow_invalid_certificates", "").lower() in _TRUE:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(at, at_port, timeout=self._timeout_s, context=context)
        if via:
            connection.set_tunnel(host, port or 443)
        return connection

    def _proxy(self, scheme: str, host: str) -> str | None:
        if "proxy_url" in self._options:
            return self._options["proxy_url"]
        if urllib.request.proxy_bypass(host):
            return None
        return urllib.request.getproxies().get(scheme)


def _close(idle: list[tuple[str, http.client.HTTPConnection]]) -> None:
    for _, connection in idle:
        connection.close()
    idle.clear()
