"""Storage in S3-compatible stores, Google Cloud Storage, Azure and, read-only, on web servers, through
obstore.

Only this package translates obstore exceptions.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Self

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.executor import Task, ThreadExecutor
from icefloe._internal.redaction import redact
from icefloe.config import Attribution, StorageSettings
from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError, StorageError
from icefloe.storage.base import (
    ALWAYS,
    Absent,
    Always,
    BucketNotFoundError,
    Buffer,
    ConditionNotMetError,
    DeleteReport,
    ObjectKind,
    ObjectNotFoundError,
    PutCondition,
    Storage,
    StorageObjectInfo,
    Unchanged,
    Version,
    check_path,
    check_range,
    make_too_short_error,
    split_range,
)
from icefloe.storage.local.keys import decode_key, encode_key
from icefloe.storage.object_store.clients import (
    Client,
    ClientRole,
    HttpPlace,
    Place,
    S3Place,
    check_process,
    make_user_agent,
)
from icefloe.storage.object_store.conditional_writes import (
    RefusedError,
    Swap,
    UncertainError,
    UnchangedError,
    get_version,
)
from icefloe.storage.object_store.conditional_writes_check import require_conditions
from icefloe.storage.object_store.errors import BUCKET_CODES, explain_failure, find_server_code

_LIST_PAGE = 1000
_MAX_KEY_BYTES = 1024  # in S3, GCS and Azure
_DELETE_BATCH = 1000
_MIN_PART_BYTES = 8 * 1024 * 1024
_MAX_PARTS = 10_000
_BEYOND_THE_END = "status code: 416"
_CLIENT_ERROR = re.compile(r"status code: 4(?!08|29)\d\d")


class ObjectStorage(Storage):
    """A storage in an object store. obstore clients are created on first use.

    Parameters
    ----------
    place
        The location and the credentials.
    settings
        Settings that override the defaults.
    read_only
        Reject writes.
    attribution
        The software, workload and principal to name in the User-Agent of requests.
    """

    def __init__(
        self,
        place: Place,
        settings: StorageSettings | None = None,
        *,
        read_only: bool = False,
        attribution: Attribution | None = None,
    ) -> None:
        self._place = place
        self._read_only = read_only or isinstance(place, HttpPlace)
        self._attribution = attribution
        self._source = place.source()
        self._clients: dict[ClientRole, Client] = {}
        self._lock = fork_safe_lock()
        self._unquoted_etags = False
        super().__init__(settings)

    # Properties

    @property
    def location(self) -> Place:
        """The location of the storage with all options. May contain secrets."""
        return self._place

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return self._read_only

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._place, settings, read_only=self._read_only, attribution=self._attribution)

    def with_attribution(self, attribution: Attribution) -> Self:
        # docstring inherited
        return type(self)(self._place, self._settings, read_only=self._read_only, attribution=attribution)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return self._place.describe()

    def prepare_for_creation(self) -> None:
        # docstring inherited
        self.check_writable()
        if not isinstance(self._place, HttpPlace) and not self._place.prefix:
            raise InvalidInputError(
                "a repository cannot be created at an empty prefix, the root of a bucket; pass a prefix",
                kind=ErrorKind.EMPTY_PREFIX_CREATION,
            )

    def fits(self, path: str) -> bool:
        # docstring inherited
        if isinstance(self._place, HttpPlace):
            return True
        return len(f"{self._place.prefix}/{self._make_key(path)}".encode()) <= _MAX_KEY_BYTES

    def require_conditional_writes(self) -> None:
        # docstring inherited
        if isinstance(self._place, S3Place) and not self._place.is_amazon:
            require_conditions(self, self.place)

    # Reading

    def get(self, path: str) -> tuple[bytes, Version]:
        # docstring inherited
        return self._get(path, {})

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        if version.e_tag is None:
            return self.get(path)
        try:
            return self._get(path, {"if_none_match": version.e_tag})
        except UnchangedError:
            return None

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        check_range(path, start, stop)
        if stop is None:
            stop = self.head(path)[0].size_bytes
        if stop <= start:
            return b""
        return self._get_parts(path, start, stop, None)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        # docstring inherited
        return list(self._executor.map(Task(lambda r: self.get_range(path, *r), "byte ranges"), ranges))

    def get_foreign(self, key: str, start: int, stop: int) -> tuple[bytes, Mapping[str, Any]]:
        """Read bytes of an external file in the same bucket, with its size and version.

        `key` is relative to the root of the object store. Fewer bytes are returned if the file ends earlier.
        """
        with self._translate_errors(key):
            client = self._client(ClientRole.READ)
            try:
                found = obstore.get(client, key, options={"range": (start, stop)})
                return found.bytes().to_bytes(), found.meta
            except BaseError as cause:
                if _BEYOND_THE_END not in str(cause):
                    raise
                return b"", obstore.head(client, key)

    def list_foreign(self, folder: str) -> Iterator[Mapping[str, Any]]:
        """Yield the key, size and version of each external file below a folder."""
        with self._translate_errors(folder):
            client = self._client(ClientRole.READ)
            for page in obstore.list(client, folder.strip("/") or None, chunk_size=_LIST_PAGE):
                yield from page

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        with self._translate_errors(path):
            meta = obstore.head(self._client(ClientRole.READ), self._make_key(path))
        return StorageObjectInfo(path, meta["size"], meta["last_modified"]), get_version(meta)

    def clock(self, written: str) -> datetime | None:
        # docstring inherited
        return self.head(written)[0].created_at

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        folder = prefix.strip("/")
        decode = decode_key if self._place.encodes_keys else str
        with self._translate_errors(folder):
            pages = obstore.list(
                self._client(ClientRole.READ),
                self._make_key(folder) if folder else None,
                chunk_size=_LIST_PAGE,
            )
            for page in pages:
                for meta in page:
                    yield StorageObjectInfo(decode(meta["path"]), meta["size"], meta["last_modified"])

    # Writing

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
        self.check_writable()
        attributes = self._attributes(kind, metadata)
        if isinstance(condition, Absent) and not self.settings.use_conditional_create:
            condition = ALWAYS
        if isinstance(condition, Unchanged) and not self.settings.use_conditional_update:
            condition = ALWAYS
        if isinstance(condition, Always):
            return self._put_unconditionally(path, data, attributes)
        return Swap(self, path, data, condition, attributes).run()

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        # docstring inherited
        self.check_writable()
        if version is None:
            with self._translate_errors(source):
                obstore.copy(self._client(ClientRole.WRITE), self._make_key(source), self._make_key(target))
            return
        # obstore has no conditional copy; If-Match ensures that the bytes belong to the version.
        try:
            with self._translate_errors(source):
                options = {"if_match": self._etag(version)}
                found = obstore.get(self._client(ClientRole.READ), self._make_key(source), options=options)  # type: ignore[arg-type]
                data = found.bytes().to_bytes()
        except RefusedError:
            raise ConditionNotMetError(source, Unchanged(version)) from None
        self.put(target, data)

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        self.check_writable()
        deleted = 0
        failed: list[tuple[str, StorageError]] = []
        remaining = iter(paths)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            keys = [self._make_key(path) for path in batch]
            try:
                with self._translate_errors(batch[0]):
                    obstore.delete(self._client(ClientRole.WRITE), keys)
                deleted += len(batch)
            except StorageError:
                # obstore stops at the first failure and does not report what was deleted: delete one by one.
                outcomes = list(self._executor.map(Task(self._delete_one, "objects"), batch))
                failed += [(path, error) for path, error in zip(batch, outcomes, strict=True) if error]
                deleted += outcomes.count(None)
        return DeleteReport(deleted, tuple(failed))

    # Helpers

    def _get(self, path: str, options: dict[str, Any]) -> tuple[bytes, Version]:
        with self._translate_errors(path):
            found = obstore.get(self._client(ClientRole.READ), self._make_key(path), options=options)  # type: ignore[arg-type]
            size_bytes = found.meta["size"]
            version = get_version(found.meta)
            if size_bytes <= 2 * self.settings.ideal_concurrent_request_size:
                return found.bytes().to_bytes(), version
        del found  # close the connection: the parts are read over other connections
        try:
            return self._get_parts(path, 0, size_bytes, version), version
        except RefusedError:
            return self._get(path, options)  # replaced between two parts: start again

    def _get_parts(self, path: str, start: int, stop: int, version: Version | None) -> bytes:
        parts = split_range(start, stop, self.settings)
        if len(parts) == 1:  # the case for nearly all chunks
            return self._get_part(path, parts[0], version)
        return b"".join(
            self._executor.map(Task(lambda part: self._get_part(path, part, version), "byte ranges"), parts)
        )

    def _get_part(self, path: str, part: tuple[int, int], version: Version | None = None) -> bytes:
        client, key = self._client(ClientRole.READ), self._make_key(path)
        with self._translate_errors(path):
            if version is None or version.e_tag is None:
                data = obstore.get_range(client, key, start=part[0], end=part[1]).to_bytes()
            else:
                options: Any = {"range": part, "if_match": self._etag(version)}
                data = obstore.get(client, key, options=options).bytes().to_bytes()
        if len(data) != part[1] - part[0]:
            raise make_too_short_error(path, *part, len(data))
        return data

    @property
    def _executor(self) -> ThreadExecutor:
        return ThreadExecutor(self.settings.max_concurrent_requests_for_object, "parts")

    def _put_unconditionally(self, path: str, data: Buffer, attributes: dict[str, str]) -> Version:
        view = memoryview(data).cast("B")
        multipart = len(view) >= max(self.settings.minimum_size_for_multipart_upload, 1)
        with self._translate_errors(path):
            result = obstore.put(
                self._client(ClientRole.WRITE),
                self._make_key(path),
                view,
                attributes=attributes or None,
                use_multipart=multipart,
                chunk_size=max(_MIN_PART_BYTES, -(-len(view) // _MAX_PARTS)),
                max_concurrency=self.settings.max_concurrent_requests_for_object,
            )
        return get_version(result)

    def _delete_one(self, path: str) -> StorageError | None:
        try:
            with self._translate_errors(path):
                obstore.delete(self._client(ClientRole.WRITE), [self._make_key(path)])
        except ObjectNotFoundError:
            return None
        except StorageError as error:
            return error
        return None

    def _attributes(self, kind: ObjectKind, metadata: Mapping[str, str] | None) -> dict[str, str]:
        attributes = dict(metadata or {}) if self.settings.use_metadata else {}
        storage_class = (
            self.settings.chunks_storage_class
            if kind is ObjectKind.CHUNK
            else self.settings.metadata_storage_class
        )
        if storage_class:
            attributes["Storage-Class"] = storage_class
        return attributes

    def _make_key(self, path: str) -> str:
        return encode_key(check_path(path)) if self._place.encodes_keys else check_path(path)

    def _etag(self, version: Version) -> str | None:
        # Ceph compares If-Match with the tag without quotes.
        return version.e_tag.strip('"') if version.e_tag and self._unquoted_etags else version.e_tag

    def _client(self, role: ClientRole) -> Client:
        check_process()
        with self._lock:
            client = self._clients.get(role)
            if client is None:
                agent = make_user_agent(self._attribution)
                client = self._place.client(self.settings, role, agent, self._source)
                self._clients[role] = client
        return client

    @contextlib.contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Convert obstore errors to icefloe errors."""
        try:
            try:
                yield
            except Exception as foreign:
                _hide_secrets(foreign)
                raise
        except IcechunkError:
            raise
        except NotModifiedError:
            raise UnchangedError(path) from None
        except (AlreadyExistsError, PreconditionError):
            raise RefusedError(path) from None
        except FileNotFoundError as cause:
            if find_server_code(str(cause)) not in BUCKET_CODES:
                raise ObjectNotFoundError(path) from None
            raise self._error(path, cause) from None
        except UnauthenticatedError as cause:
            raise (self._source.failure or self._error(path, cause)) from None
        except (PermissionDeniedError, NotSupportedError) as cause:
            raise self._error(path, cause) from None
        except (BaseError, OSError, ValueError) as cause:
            error = self._error(path, cause)
            known = isinstance(cause, ValueError) or isinstance(error, BucketNotFoundError)
            if known or _CLIENT_ERROR.search(str(cause)):
                raise error from None
            raise UncertainError(error.message, error.kind) from None

    def _error(self, path: str, cause: Exception) -> StorageError:
        text = str(cause)
        message = explain_failure(path, self.place, text)
        if find_server_code(text) in BUCKET_CODES:
            return BucketNotFoundError(message, ErrorKind.OBJECT_STORE)
        throttled = any(word in text for word in ("SlowDown", "503 ", "429 "))
        return StorageError(message, kind=ErrorKind.THROTTLED if throttled else ErrorKind.OBJECT_STORE)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (type(self), self._place, self._settings, self._read_only, self._attribution))


def _hide_secrets(error: Exception) -> None:
    """Redact secrets in an obstore error, which stays attached to the new error as its context."""
    if not isinstance(error, IcechunkError):
        error.args = tuple(redact(each) if isinstance(each, str) else each for each in error.args)


def _unpickle(
    cls: type[ObjectStorage],
    place: Place,
    settings: StorageSettings,
    read_only: bool,
    attribution: Attribution | None,
) -> ObjectStorage:
    return cls(place, settings, read_only=read_only, attribution=attribution)
