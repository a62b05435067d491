"""Conditional writes to object stores, and how one of ours is known when its answer was lost.

The answer to a write may be lost on its way back: the client then knows neither success nor failure, and its
next try fails against its own write. So every such write carries an id in the object's metadata; when a write
is refused or its answer lost, the object is read back and the id tells whether it was ours. Where objects
have no metadata the content is compared, but only after an answer was lost: a plain refusal is a refusal.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import obstore

from icefloe._internal.retry import attempts
from icefloe.errors import StorageError
from icefloe.storage.base import (
    Absent,
    Buffer,
    ConditionNotMetError,
    ObjectNotFoundError,
    Unchanged,
    Version,
)
from icefloe.storage.object_store.clients import Role

if TYPE_CHECKING:
    from icefloe.storage.object_store.storage import ObjectStorage

WRITE_ID = "icechunkwriteid"
"""The metadata key under which the official library, too, keeps the id of a conditional write."""


class RefusedError(StorageError):
    """The store answered that a condition does not hold."""


class UnchangedError(StorageError):
    """The store answered that the version asked about is the current one."""


class UncertainError(StorageError):
    """Something failed on the way: a write may have happened, and trying again may help."""


class Swap:
    """One conditional write, with its retries."""

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
        """Write, and give the version written; raises ConditionNotMetError if the condition does not hold."""
        settings = self._storage.settings
        pauses_s = (settings.initial_backoff_ms / 1000, settings.max_backoff_ms / 1000)
        for attempt in attempts(settings.max_tries, *pauses_s):
            try:
                return self._put()
            except RefusedError:
                return self._after_refusal()
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
        with storage._translated(self._path):
            result = obstore.put(
                storage._client(Role.SWAP),
                storage._key(self._path),
                self._data,
                attributes=self._attributes or None,
                mode=mode,
                use_multipart=False,
            )
        return version_of(result)

    def _after_refusal(self) -> Version:
        if (written := self._read_back()) is not None:
            return written
        if isinstance(self._condition, Unchanged) and not self._storage._unquoted_etags:
            current = self._current_version()
            if current is not None and current == self._condition.version:
                return self._put_with_bare_etag()
        raise ConditionNotMetError(self._path, self._condition)

    def _put_with_bare_etag(self) -> Version:
        """The store refuses although nothing changed: it may want the tag without quotes, like Ceph."""
        self._storage._unquoted_etags = True
        try:
            return self._put()
        except RefusedError:
            self._storage._unquoted_etags = False
            raise ConditionNotMetError(self._path, self._condition) from None

    def _read_back(self) -> Version | None:
        """The version of the object if it is the one we wrote."""
        storage = self._storage
        try:
            with storage._translated(self._path):
                found = obstore.get(
                    storage._client(Role.READ),
                    storage._key(self._path),
                    options={"head": storage.settings.use_metadata},
                )
                written_by = found.attributes.get(WRITE_ID)
                version = version_of(found.meta)
                if written_by is not None:
                    return version if written_by == self._write_id else None
                if not self._answer_lost:
                    return None
                data, version = storage.get(self._path)
        except ObjectNotFoundError:
            return None
        return version if data == self._data else None

    def _current_version(self) -> Version | None:
        try:
            return self._storage.head(self._path)[1]
        except ObjectNotFoundError:
            return None


def version_of(meta: Mapping[str, Any]) -> Version:
    """The version that an answer of obstore tells."""
    return Version(meta.get("e_tag"), meta.get("version"))
