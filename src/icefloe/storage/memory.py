"""An in-memory storage, for tests and experiments."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Self

from icefloe.config import StorageConcurrencySettings, StorageRetriesSettings, StorageSettings
from icefloe.storage.base import (
    ALWAYS,
    Absent,
    Always,
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
)


@dataclass(frozen=True, slots=True)
class _Object:
    """A stored object and its version."""

    data: bytes
    version: Version
    created_at_s: float

    @property
    def created_at(self) -> datetime:
        """The time of the last write."""
        return datetime.fromtimestamp(self.created_at_s, UTC)


class _SharedObjects:
    """The objects of a memory storage, which can be shared by several storages."""

    def __init__(
        self, objects: dict[str, _Object] | None = None, first_number: int = 1, identity: str | None = None
    ) -> None:
        self.objects = objects or {}
        self.identity = identity or uuid.uuid4().hex
        """An identifier that pickled and forked copies keep."""
        self._copy_id = uuid.uuid4().hex
        self.numbers = count(first_number)
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def lock(self) -> threading.Lock:
        """A lock that belongs to this process. In a forked child, an inherited lock could be held forever."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle contains the objects at the time of pickling. A copy in another process is independent.
        with self.lock:
            return (type(self), (dict(self.objects), next(self.numbers), self.identity))

    @property
    def copy_id(self) -> str:
        """An id of this set of objects. It differs in a forked child."""
        return f"{self._copy_id}-{os.getpid()}"


class MemoryStorage(Storage):
    """An in-memory storage, which belongs to this process.

    Two separately created storages share nothing. A pickle contains a copy of all objects, and a forked child
    sees the objects at the time of the fork. Changes to either are not written back to the original.

    Parameters
    ----------
    settings
        Settings that override the defaults.
    shelf
        The objects of another memory storage, in order to share them.
    """

    def __init__(self, settings: StorageSettings | None = None, shelf: _SharedObjects | None = None) -> None:
        self._shelf = shelf or _SharedObjects()
        super().__init__(settings)

    @property
    def identity(self) -> str:
        # docstring inherited
        return f"in-memory storage {self._shelf.identity}"

    @property
    def copy_id(self) -> str:
        # docstring inherited
        return self._shelf.copy_id

    @property
    def answers_at_once(self) -> bool:
        # docstring inherited
        return True

    def default_settings(self) -> StorageSettings:
        # docstring inherited
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 1), retries=StorageRetriesSettings(1, 0, 0)
        )

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(settings, self._shelf)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "in-memory"}

    def get(self, path: str) -> tuple[bytes, Version]:
        # docstring inherited
        found = self._find(path)
        return found.data, found.version

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        check_range(path, start, stop)
        data = self._find(path).data
        if stop is not None and len(data) < stop:
            raise make_too_short_error(path, start, stop, max(0, len(data) - start))
        return data[start:stop]

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        found = self._find(path)
        return StorageObjectInfo(path, len(found.data), found.created_at), found.version

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        with self._shelf.lock:
            found = [item for item in self._shelf.objects.items() if item[0].startswith(folder)]
        return (StorageObjectInfo(key, len(item.data), item.created_at) for key, item in found)

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
        check_path(path)
        content = bytes(data)
        with self._shelf.lock:
            current = self._shelf.objects.get(path)
            if not _is_met(condition, current):
                raise ConditionNotMetError(path, condition)
            version = Version(str(next(self._shelf.numbers)))
            self._shelf.objects[path] = _Object(content, version, time.time())
        return version

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        keys = [check_path(path) for path in paths]
        with self._shelf.lock:
            for key in keys:
                self._shelf.objects.pop(key, None)
        return DeleteReport(len(keys))

    def _find(self, path: str) -> _Object:
        found = self._shelf.objects.get(check_path(path))
        if found is None:
            raise ObjectNotFoundError(path)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._settings, self._shelf))


def _is_met(condition: PutCondition, current: _Object | None) -> bool:
    match condition:
        case Always():
            return True
        case Absent():
            return current is None
        case Unchanged(version):
            return current is not None and current.version == version
