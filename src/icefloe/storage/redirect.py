"""A read-only storage whose location is found by following HTTP redirects, without credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.redaction import has_valid_port, redact
from icefloe.config import StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import Storage
from icefloe.storage.read_only import ReadOnlyStorage

MAX_REDIRECTS = 10
SCHEMES = ("s3", "gs", "gcs", "r2", "tigris", "http+icechunk", "https+icechunk", "http+ic", "https+ic")
"""The URL schemes at which redirects may end. Redirects to http and https are followed further."""

_TIMEOUT_S = 30
_REDIRECTS = (301, 302, 303, 307, 308)


class RedirectStorage(ReadOnlyStorage):
    """A read-only storage whose URL redirects to its location. The HTTP redirects are followed on first use.

    Parameters
    ----------
    base_url
        The URL.
    open_url
        The function that opens the storage at the final URL.
    settings
        Settings that override the defaults.
    """

    def __init__(
        self, base_url: str, open_url: Callable[[str], Storage], settings: StorageSettings | None = None
    ) -> None:
        self._base_url = base_url
        self._open_url = open_url
        self._given = settings
        self._target: Storage | None = None
        self._lock = fork_safe_lock()
        Storage.__init__(self, settings)

    @property
    def _inner(self) -> Storage:  # type: ignore[override]  # nothing assigns it
        with self._lock:
            if self._target is None:
                target = self._open_url(resolve(self._base_url))
                self._target = target if self._given is None else target.with_settings(self._given)
            return self._target

    # Nothing below may trigger following the redirects.

    answers_at_once = Storage.answers_at_once
    identity = Storage.identity
    copy_id = Storage.copy_id
    default_settings = Storage.default_settings
    with_attribution = Storage.with_attribution

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._base_url, self._open_url, settings)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "redirect", "url": redact(self._base_url)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._base_url, self._open_url, self._given))


def resolve(url: str) -> str:
    """Follow the HTTP redirects from a URL, and return the final URL."""
    for _ in range(MAX_REDIRECTS):
        location = _location(url)
        if urlsplit(location).scheme in SCHEMES:
            return location
        url = urljoin(url, location)
    raise _make_error(f"no storage after {MAX_REDIRECTS} redirects; the last one leads to {url}")


def _location(url: str) -> str:
    import http.client  # slow to import, and rarely needed

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _make_error(f"cannot follow {url}; expected an http URL or one of {', '.join(SCHEMES)}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    if not has_valid_port(url):
        raise _make_error(f"{url}: the port is not a number")
    connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts._replace(scheme="", netloc="", fragment="").geturl() or "/")
        response = connection.getresponse()
        location = response.getheader("Location")
        response.close()
    except (OSError, http.client.HTTPException) as cause:
        raise _make_error(f"{url}: {cause}") from None
    finally:
        connection.close()
    if response.status not in _REDIRECTS or not location:
        raise _make_error(f"{url} does not redirect; the server answered {response.status}")
    return location


def _make_error(text: str) -> StorageError:
    return StorageError(f"bad redirect: {text}", kind=ErrorKind.BAD_REDIRECT)
