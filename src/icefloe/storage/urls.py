"""Open a storage by URL, for Spark options, the command line and redirects."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.base import Storage
from icefloe.storage.factories import (
    azure_storage,
    gcs_storage,
    http_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from icefloe.storage.local.folder import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.redirect import RedirectStorage

_named_memories: dict[str, MemoryStorage] = {}
SECRETS = {
    "access_key",
    "access_key_id",
    "bearer_token",
    "sas_token",
    "secret_access_key",
    "service_account_key",
    "session_token",
}
_CREDENTIAL_OPTIONS = {
    **dict.fromkeys(("s3", "r2", "tigris"), "access_key_id and secret_access_key"),
    "gs": "service_account_file or bearer_token",
    "az": "access_key or sas_token",
}
"""The options that contain credentials, by URL scheme."""
_YES_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def storage_from_url(url: str | os.PathLike[str], **options: Any) -> Storage:
    """Create a storage from a URL or a path.

    | URL | storage |
    | --- | --- |
    | `/data/repo`, `~/repo`, `file:///data/repo` | a folder; `sync=False` does not wait for the disk |
    | `memory://`, `memory://name` | memory; a name always means the same storage in this process |
    | `s3://bucket/prefix` | as `s3_storage` |
    | `gs://bucket/prefix` | as `gcs_storage` |
    | `az://container/prefix` | as `azure_storage`, with the account as an option |
    | `r2://bucket/prefix`, `tigris://bucket/prefix` | as `r2_storage` and `tigris_storage` |
    | `http://host/path`, `https://host/path` | as `http_storage`, read-only |

    Parameters
    ----------
    url
        The URL or path.
    **options
        The arguments of the function that creates the storage. They may also be part of the query of the URL,
        `s3://bucket/prefix?region=eu-west-1`, except for secrets, because URLs end up in logs.

    Returns
    -------
    Storage
        The storage.

    Raises
    ------
    StorageError
        If the URL cannot be parsed.
    InvalidInputError
        If an option is invalid.
    """
    text = os.fspath(url)
    if not text:  # probably an unset variable in a script: do not use the current folder
        raise StorageError("the location is empty; use . for this folder", kind=ErrorKind.CANNOT_PARSE_URL)
    parts = urlsplit(text)
    if len(parts.scheme) < 2:  # no scheme, or the drive letter of a Windows path
        return _make(LocalStorage, {"path": os.path.expanduser(text)}, options)
    opener = _OPENERS.get(parts.scheme)
    if opener is None:
        known = ", ".join(sorted(_OPENERS))
        raise StorageError(
            f"unsupported URL scheme {parts.scheme}://; expected a path or one of {known}",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    if parts.fragment:
        raise StorageError(
            f"write # as %23 in a URL, as in {parts.path.rpartition('/')[2]}%23{parts.fragment}",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    return opener(parts, options)


def redirect_storage(base_url: str) -> Storage:
    """Create a read-only storage for the location that a URL redirects to, without credentials.

    Parameters
    ----------
    base_url
        The URL.

    Returns
    -------
    Storage
        The storage.
    """
    return RedirectStorage(base_url, open_public_url)


def open_public_url(url: str) -> Storage:
    """Open the storage at the public URL to which a redirect pointed, without credentials."""
    scheme = urlsplit(url).scheme
    anonymous = {} if scheme.startswith("http") else {"anonymous": True}
    if scheme == "tigris":
        anonymous["use_weak_consistency"] = True
    return storage_from_url(url, **anonymous)


def _open_file(parts: SplitResult, options: dict[str, Any]) -> Storage:
    if parts.netloc not in ("", "localhost"):
        raise StorageError(
            f"file://{parts.netloc}{parts.path} refers to another host; write file:///path",
            kind=ErrorKind.CANNOT_PARSE_URL,
        )
    return _make(LocalStorage, {"path": unquote(parts.path)}, {**_query(parts), **options})


def _open_memory(parts: SplitResult, options: dict[str, Any]) -> Storage:
    _check_options(MemoryStorage, {}, options)
    name = parts.netloc + parts.path
    return _named_memories.setdefault(name, MemoryStorage()) if name.strip("/") else MemoryStorage()


def _bucket(make: Callable[..., Storage]) -> Callable[[SplitResult, dict[str, Any]], Storage]:
    def opener(parts: SplitResult, options: dict[str, Any]) -> Storage:
        given = {"bucket": _require_host(parts), "prefix": unquote(parts.path).strip("/")}
        return _make(make, given, {**_query(parts), **options})

    return opener


def _azure(parts: SplitResult, options: dict[str, Any]) -> Storage:
    container, _, host = _require_host(parts).partition("@")
    given: dict[str, Any] = {"container": container, "prefix": unquote(parts.path).strip("/")}
    if host:  # abfs://container@account.dfs.core.windows.net/prefix
        given["account"] = host.partition(".")[0]
    elif "account" not in options and "account" not in _query(parts):
        raise InvalidInputError("an az:// URL needs the option account", kind=ErrorKind.STORAGE_CONFIG)
    return _make(azure_storage, given, {**_query(parts), **options})


def _http(parts: SplitResult, options: dict[str, Any]) -> Storage:
    scheme = parts.scheme.partition("+")[0]
    return _make(http_storage, {"base_url": parts._replace(scheme=scheme).geturl()}, options)


_OPENERS: dict[str, Callable[[SplitResult, dict[str, Any]], Storage]] = {
    "file": _open_file,
    "memory": _open_memory,
    "s3": _bucket(s3_storage),
    "gs": _bucket(gcs_storage),
    "gcs": _bucket(gcs_storage),
    "r2": _bucket(r2_storage),
    "tigris": _bucket(tigris_storage),
    "az": _azure,
    "azure": _azure,
    "abfs": _azure,
    **dict.fromkeys(("http", "https", "http+icechunk", "https+icechunk", "http+ic", "https+ic"), _http),
}


def _query(parts: SplitResult) -> dict[str, Any]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if secrets := SECRETS & set(options):
        raise InvalidInputError(
            f"{', '.join(sorted(secrets))} must not be part of a URL; pass it as an option",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )
    return options


def _require_host(parts: SplitResult) -> str:
    if ":" in parts.netloc.rpartition("@")[0]:
        raise InvalidInputError(
            f"{parts.geturl()}: a URL of a bucket must not contain keys, because URLs end up in logs; pass "
            f"{_CREDENTIAL_OPTIONS.get(parts.scheme, 'credentials')} as options",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )
    if not parts.netloc:
        raise StorageError(
            f"{parts.scheme}://{parts.path} has no bucket or container", kind=ErrorKind.CANNOT_PARSE_URL
        )
    return parts.netloc


def _make(make: Callable[..., Storage], given: dict[str, Any], options: dict[str, Any]) -> Storage:
    return make(**given, **_check_options(make, given, options))


def _check_options(
    make: Callable[..., Storage], given: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Convert the values of options to their types; raise InvalidInputError for unknown options."""
    parameters = inspect.signature(make).parameters
    allowed = [name for name in parameters if name not in given and not name.startswith("_")]
    for name in options:
        if name not in allowed:
            raise InvalidInputError(
                f"unknown storage option {name!r}; expected one of {', '.join(allowed)}",
                kind=ErrorKind.STORAGE_CONFIG,
            )
    return {
        name: _convert_value(name, str(parameters[name].annotation), value) for name, value in options.items()
    }


def _convert_value(name: str, annotation: str, value: Any) -> Any:
    """Convert the text of a URL query or Spark option to the type of the option."""
    if isinstance(value, str) and annotation.startswith("bool"):
        try:
            return _YES_NO[value.lower()]
        except KeyError:
            raise InvalidInputError(
                f"storage option {name}: expected true or false, not {value!r}", kind=ErrorKind.STORAGE_CONFIG
            ) from None
    if isinstance(value, str) and annotation.startswith("int"):
        try:
            return int(value)
        except ValueError:
            raise InvalidInputError(
                f"storage option {name}: expected an integer", kind=ErrorKind.STORAGE_CONFIG
            ) from None
    if isinstance(value, str) and annotation.startswith("dict"):
        try:
            return {str(key): str(each) for key, each in json.loads(value).items()}
        except (ValueError, AttributeError):
            # The value is not shown: headers may contain secrets.
            raise InvalidInputError(
                f'storage option {name}: expected a JSON object of strings, such as {{"name": "value"}}',
                kind=ErrorKind.STORAGE_CONFIG,
            ) from None
    return value


Storage.new_redirect = staticmethod(redirect_storage)
