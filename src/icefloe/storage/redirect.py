"""A read-only storage whose location is found by following HTTP redirects, without credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.redaction import has_valid_port, redact
from icefloe.config import StorageSettings
from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.storage.base import (
    ALWAYS,
    Buffer,
    DeleteReport,
    ObjectKind,
    PutCondition,
    Storage,
    StorageObjectInfo,
    Version,
)

MAX_REDIRECTS = 10
SCHEMES = ("s3", "gs", "gcs", "r2", "tigris", "http+icechunk", "https+icechunk", "http+ic", "https+ic")
"""The URL schemes at which redirects may end. Redirects to http and https are followed."""

_TIMEOUT_S = 30
_REDIRECTS = (301, 302, 303, 307, 308)


class RedirectStorage(Storage):
    """The storage that a URL redirects to, resolved on first use.

    Parameters
    ----------
    base_url
        The URL.
    open_url
        Opens the storage at the end of the redirects.
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
        super().__init__(settings)

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return True

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._base_url, self._open_url, settings)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "redirect", "url": redact(self._base_url)}

    def get(self, path: str) -> tuple[bytes, Version]:
        # docstring inherited
        return self._get_target().get(path)

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        return self._get_target().get_if_changed(path, version)

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        return self._get_target().get_range(path, start, stop)

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        return self._get_target().head(path)

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        return self._get_target().list_prefix(prefix)

    def put(
        self,
        path: str,
        data: Buffer,
        condition: PutCondition = ALWAYS,
        *,
        kind: ObjectKind = ObjectKind.METADATA,
        metadata: Mapping[str, str] | None = None,
    ) -> Version:
        # docstring inherited
        raise self._refused()

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        # docstring inherited
        raise self._refused()

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        raise self._refused()

    def _refused(self) -> ReadOnlyError:
        return ReadOnlyError("redirect storage is read-only", kind=ErrorKind.READ_ONLY_STORAGE)

    def _get_target(self) -> Storage:
        with self._lock:
            if self._target is None:
                target = self._open_url(resolve(self._base_url))
                self._target = target if self._given is None else target.with_settings(self._given)
            return self._target

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._base_url, self._open_url, self._given))


def resolve(url: str) -> str:
    """Return the URL at the end of the redirects that start at a URL."""
    for _ in range(MAX_REDIRECTS):
        location = _location(url)
        if urlsplit(location).scheme in SCHEMES:
            return location
        url = urljoin(url, location)
    raise _bad(f"no storage after {MAX_REDIRECTS} redirects; the last one leads to {url}")


def _location(url: str) -> str:
    import http.client  # slow to import, and rarely needed

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _bad(f"cannot follow {url}; expected an http URL or one of {', '.join(SCHEMES)}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    if not has_valid_port(url):
        raise _bad(f"{url}: the port is not a number")
    connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts._replace(scheme="", netloc="", fragment="").geturl() or "/")
        response = connection.getresponse()
        location = response.getheader("Location")
        response.close()
    except (OSError, http.client.HTTPException) as cause:
        raise _bad(f"{url}: {cause}") from None
    finally:
        connection.close()
    if response.status not in _REDIRECTS or not location:
        raise _bad(f"{url} does not redirect; the server answered {response.status}")
    return location


def _bad(text: str) -> StorageError:
    return StorageError(f"bad redirect: {text}", kind=ErrorKind.BAD_REDIRECT)
