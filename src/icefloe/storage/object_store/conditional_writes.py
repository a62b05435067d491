"""Conditional writes to object stores, and detection of our own write after a lost response.

The response to a write may be lost. The client then does not know if the write succeeded, and its next
attempt may fail because of its own write. So every conditional write stores an id in the object metadata.
When a write is rejected or its response is lost, the object is read back, and the id shows if the write was
ours. Where objects have no metadata, the content is compared, but only after a lost response: if no response
was lost, a rejected write was certainly not ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import obstore

from icefloe._internal.retry import iterate_attempts
from icefloe.errors import StorageError
from icefloe.storage.base import (
    Absent,
    Buffer,
    ConditionNotMetError,
    ObjectNotFoundError,
    Unchanged,
    Version,
)
from icefloe.storage.object_store.clients import ClientRole

if TYPE_CHECKING:
    from icefloe.storage.object_store.storage import ObjectStorage

WRITE_ID = "icechunkwriteid"
"""The object metadata key for the id of a conditional write, as in the official library."""


class RefusedError(StorageError):
    """Error raised when the object store rejects a conditional write, because its condition does not hold."""


class UnchangedError(StorageError):
    """Error raised when a conditional request finds that the object still has the given version."""


class UncertainError(StorageError):
    """Error raised when a response was lost. The conditional write may have succeeded, and can be retried."""


class Swap:
    """A conditional write to an object store, including retries."""

    def __init__(
        self,
        storage: ObjectStorage,
        path: str,
        data: Buffer,
        condition: Absent | Unchanged,
        attributes: dict[str, str],
    ) -> None:
        self._storage = storage
        self._path = path
        self._data = bytes(data)
        self._condition = condition
        self._write_id = uuid.uuid4().hex
        self._attributes = attributes
        if storage.settings.use_metadata:
            self._attributes = {**attributes, WRITE_ID: self._write_id}
        self._answer_lost = False

    def run(self) -> Version:
        """Write an object conditionally and return its version; raise ConditionNotMetError if the condition
        does not hold."""
        settings = self._storage.settings
        pauses_s = (settings.initial_backoff_ms / 1000, settings.max_backoff_ms / 1000)
        for attempt in iterate_attempts(settings.max_tries, *pauses_s):
            try:
                return self._put()
            except RefusedError:
                return self._check_after_refusal()
            except ObjectNotFoundError:
                raise ConditionNotMetError(self._path, self._condition) from None
            except UncertainError as error:
                self._answer_lost = True
                try:
                    written = self._read_back()
                except UncertainError:
                    written = None
                if written is not None:
                    return written
                if attempt + 1 == settings.max_tries:
                    raise StorageError(
                        f"{error.message} (the write may or may not have happened)", kind=error.kind
                    ) from None
        raise AssertionError("max_tries is at least 1")

    def _put(self) -> Version:
        storage = self._storage
        mode: Any = "create"
        if isinstance(self._condition, Unchanged):
            version = self._condition.version
            entries = {"e_tag": storage._etag(version), "version": version.generation}
            mode = {key: value for key, value in entries.items() if value is not None}
        with storage._translate_errors(self._path):
            result = obstore.put(
                storage._client(ClientRole.SWAP),
                storage._make_key(self._path),
                self._data,
                attributes=self._attributes or None,
                mode=mode,
                use_multipart=False,
            )
        return get_version(result)

    def _check_after_refusal(self) -> Version:
        if (written := self._read_back()) is not None:
            return written
        if isinstance(self._condition, Unchanged) and not self._storage._unquoted_etags:
            current = self._read_current_version()
            if current is not None and current == self._condition.version:
                return self._put_with_bare_etag()
        raise ConditionNotMetError(self._path, self._condition)

    def _put_with_bare_etag(self) -> Version:
        """Retry with an unquoted etag, which Ceph expects. The object itself has not changed."""
        self._storage._unquoted_etags = True
        try:
            return self._put()
        except RefusedError:
            self._storage._unquoted_etags = False
            raise ConditionNotMetError(self._path, self._condition) from None

    def _read_back(self) -> Version | None:
        """Read the object back, and return its version if this writer wrote it; None otherwise."""
        storage = self._storage
        try:
            with storage._translate_errors(self._path):
                found = obstore.get(
                    storage._client(ClientRole.READ),
                    storage._make_key(self._path),
                    options={"head": storage.settings.use_metadata},
                )
                written_by = found.attributes.get(WRITE_ID)
                version = get_version(found.meta)
                if written_by is not None:
                    return version if written_by == self._write_id else None
                if not self._answer_lost:
                    return None
                data, version = storage.get(self._path)
        except ObjectNotFoundError:
            return None
        return version if data == self._data else None

    def _read_current_version(self) -> Version | None:
        try:
            return self._storage.head(self._path)[1]
        except ObjectNotFoundError:
            return None


def get_version(meta: Mapping[str, Any]) -> Version:
    """Extract the version of an object from obstore's response to a read or write."""
    return Version(meta.get("e_tag"), meta.get("version"))
