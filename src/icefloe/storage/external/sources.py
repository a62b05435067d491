"""External sources of virtual chunks: local files, object stores and web servers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from icefloe._internal.executor import Task, ThreadExecutor
from icefloe.config import ObjectStoreConfig, StorageSettings, VirtualChunkContainer
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    azure_from_env_credentials,
    gcs_from_env_credentials,
    s3_anonymous_credentials,
    s3_from_env_credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.base import ObjectNotFoundError, split_range
from icefloe.storage.external.base import ExternalSource, Fetched
from icefloe.storage.local.folder import read_range

if TYPE_CHECKING:
    from icefloe.storage.base import Storage
    from icefloe.storage.object_store.clients import Place

_TIGRIS_ENDPOINT = "https://t3.storage.dev"
_OPENED = "/proc/self/fd"
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def check_credential(container: VirtualChunkContainer, credential: AnyCredential | None) -> None:
    """Raise StorageError if a credential does not match the type of a store."""
    expected: tuple[type[Any], ...]
    match container.store:
        case ObjectStoreConfig.LocalFileSystem():
            expected, what = (Credentials.LocalFileSystemAccess,), "local file storage"
        case ObjectStoreConfig.Http():
            expected, what = (Credentials.HttpAccess,), "HTTP storage"
        case ObjectStoreConfig.Gcs():
            expected, what = (Credentials.Gcs,), "Google Cloud storage"
        case ObjectStoreConfig.Azure():
            expected, what = (Credentials.Azure,), "Azure storage"
        case _:
            expected, what = (Credentials.S3,), "S3 storage"
    if credential is not None and not isinstance(credential, expected):
        raise StorageError(
            f"{what} does not accept the credentials for {container.url_prefix}; pass "
            f"Credentials.{expected[0].__name__}",
            kind=ErrorKind.STORAGE_OTHER,
        )


def open_source(
    container: VirtualChunkContainer, credential: AnyCredential | None, settings: StorageSettings
) -> ExternalSource:
    """Create the external source for a virtual chunk container. No request is sent yet."""
    url = urlsplit(container.url_prefix)
    store = container.store
    match store:
        case ObjectStoreConfig.LocalFileSystem():
            return FolderSource(unquote(url.path))
        case ObjectStoreConfig.Http():
            from icefloe.storage.external.web import WebSource  # importing ssl is slow

            options, headers = store.opts or {}, store.headers or {}
            return WebSource(container.url_prefix, options, headers, settings.effective())
        case ObjectStoreConfig.InMemory():
            raise StorageError(
                f"{container.url_prefix}: virtual chunks cannot be in memory", kind=ErrorKind.STORAGE_OTHER
            )
    return ObjectSource(_make_place(container, url.netloc, credential), settings)


def _make_place(container: VirtualChunkContainer, bucket: str, credential: AnyCredential | None) -> Place:
    from icefloe.storage.object_store.clients import (  # importing obstore is slow
        AzurePlace,
        GcsPlace,
        Headers,
        S3Place,
    )

    match container.store:
        case ObjectStoreConfig.Gcs(opts):
            gcs = credential.credentials if isinstance(credential, Credentials.Gcs) else None
            return GcsPlace(bucket, "", dict(opts or {}), gcs or gcs_from_env_credentials(), Headers())
        case ObjectStoreConfig.Azure(opts):
            azure = credential.credentials if isinstance(credential, Credentials.Azure) else None
            options = dict(opts or {})
            account = options.pop("account", "")
            return AzurePlace(account, bucket, "", options, azure or azure_from_env_credentials())
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            s3_options, headers = options, Headers()
        case ObjectStoreConfig.Tigris(options):
            s3_options = replace(options, endpoint_url=options.endpoint_url or _TIGRIS_ENDPOINT)
            headers = Headers({"X-Tigris-Consistent": "true"})
        case _:
            raise StorageError(f"{container.url_prefix}: unknown store", kind=ErrorKind.STORAGE_OTHER)
    if isinstance(credential, Credentials.S3):
        return S3Place(bucket, "", s3_options, credential.credentials, headers)
    chosen = s3_anonymous_credentials() if s3_options.anonymous else s3_from_env_credentials()
    return S3Place(bucket, "", s3_options, chosen, headers)


class ObjectSource(ExternalSource):
    """An external source of virtual chunks in a bucket."""

    def __init__(self, place: Place, settings: StorageSettings) -> None:
        from icefloe.storage.object_store.storage import ObjectStorage  # importing obstore is slow

        self._storage = ObjectStorage(place, settings, read_only=True)

    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        # docstring inherited
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise InvalidInputError(
                f"the object store client does not support the key {key!r}, which has empty path segments",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        settings = self._storage.settings
        executor = ThreadExecutor(settings.max_concurrent_requests_for_object, "parts")
        ranges = split_range(start, stop, settings)
        parts = list(executor.map(Task(lambda part: self._fetch(key, *part), "byte ranges"), ranges))
        first = parts[0]
        if any(part.e_tag != first.e_tag or part.last_modified != first.last_modified for part in parts):
            raise StorageError(f"{key} changed while it was read", kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED)
        return first if len(parts) == 1 else replace(first, data=b"".join(part.data for part in parts))

    def list_files(self, prefix: str) -> Iterator[tuple[str, Fetched]]:
        """Yield the key, size and version of every file below a prefix of the bucket."""
        for meta in self._storage.list_foreign(prefix):
            yield meta["path"], Fetched(b"", meta["size"], meta["e_tag"], meta["last_modified"])

    def _fetch(self, key: str, start: int, stop: int) -> Fetched:
        data, meta = self._storage.get_foreign(key, start, stop)
        return Fetched(data, meta["size"], meta["e_tag"], meta["last_modified"])


class FolderSource(ExternalSource):
    """An external source of virtual chunks in local files. Links that point outside its folder are
    rejected.
    """

    answers_at_once = True

    def __init__(self, folder: str) -> None:
        self._root = os.path.join(os.path.realpath(folder), "")

    def fetch(self, key: str, start: int, stop: int) -> Fetched:
        # docstring inherited
        path = f"/{key}"
        try:
            descriptor = os.open(path, _READING)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectNotFoundError(path) from None
        except OSError as cause:
            raise StorageError(f"{path}: {cause.strerror}", kind=ErrorKind.IO) from None
        try:
            return self._read(descriptor, path, start, stop)
        except OSError as cause:
            raise StorageError(f"{path}: {cause.strerror}", kind=ErrorKind.IO) from None
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, path: str, start: int, stop: int) -> Fetched:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectNotFoundError(path)
        real = _get_real_path(descriptor, path)
        if not real.startswith(self._root):
            raise InvalidInputError(
                f"{path} is a link to {real}, outside the virtual chunk container at {self._root}; "
                "add a container for the folder of its target",
                kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            )
        data = read_range(descriptor, start, stop)
        after = os.fstat(descriptor)
        if (after.st_mtime_ns, after.st_size) != (status.st_mtime_ns, status.st_size):
            raise StorageError(f"{path} changed while it was read", kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED)
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return Fetched(data, status.st_size, _make_file_tag(status), modified)


def _get_real_path(descriptor: int, path: str) -> str:
    """Return the path of an open file, after following all links."""
    try:
        return os.readlink(f"{_OPENED}/{descriptor}")
    except OSError:  # only on Linux; elsewhere, follow the links again
        return os.path.realpath(path)


def _make_file_tag(status: os.stat_result) -> str:
    """Return the etag that object_store (and therefore the official package and obstore) computes for a local
    file.
    """
    return f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"


def open_repository_storage(
    location: str, container: VirtualChunkContainer, credential: AnyCredential | None
) -> Storage:
    """Open the storage of a repository whose chunk objects are used as external files, for reading only."""
    from icefloe.storage.urls import storage_from_url

    if isinstance(container.store, ObjectStoreConfig.LocalFileSystem | ObjectStoreConfig.Http):
        return storage_from_url(location)
    from icefloe.storage.object_store.storage import ObjectStorage  # importing obstore is slow

    url = urlsplit(location)
    place: Any = _make_place(container, url.netloc, credential)
    return ObjectStorage(replace(place, prefix=unquote(url.path).strip("/")), read_only=True)
