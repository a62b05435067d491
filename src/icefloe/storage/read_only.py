"""A read-only storage wrapper. Every write raises an error, even if the wrapped storage allows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from icefloe.config import Attribution, StorageSettings
from icefloe.errors import ErrorKind, ReadOnlyError
from icefloe.storage.base import (
    ALWAYS,
    Buffer,
    DeleteReport,
    ListedObjects,
    ObjectKind,
    PutCondition,
    Storage,
    StorageObjectInfo,
    Version,
)


class ReadOnlyStorage(Storage):
    """A storage wrapper that reads from another storage and rejects writes.

    Parameters
    ----------
    inner
        The storage to read from.
    """

    _inner: Storage

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        super().__init__()

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return True

    @property
    def answers_at_once(self) -> bool:
        # docstring inherited
        return self._inner.answers_at_once

    @property
    def location(self) -> Any:
        """The location of the wrapped storage, if it is in an object store."""
        return getattr(self._inner, "location", None)

    def default_settings(self) -> StorageSettings:
        # docstring inherited
        return self._inner.default_settings()

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._inner.with_settings(settings))

    def with_attribution(self, attribution: Attribution) -> Self:
        # docstring inherited
        return type(self)(self._inner.with_attribution(attribution))

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return self._inner.describe()

    @property
    def identity(self) -> str:
        # docstring inherited
        return self._inner.identity

    @property
    def copy_id(self) -> str:
        # docstring inherited
        return self._inner.copy_id

    def get(self, path: str) -> tuple[bytes, Version]:
        # docstring inherited
        return self._inner.get(path)

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        return self._inner.get_if_changed(path, version)

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        return self._inner.get_range(path, start, stop)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        # docstring inherited
        return self._inner.get_ranges(path, ranges)

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        return self._inner.head(path)

    def size_of(self, path: str) -> int:
        # docstring inherited
        return self._inner.size_of(path)

    def exists(self, path: str) -> bool:
        # docstring inherited
        return self._inner.exists(path)

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        return self._inner.list_prefix(prefix)

    def list_columns(self, prefix: str = "") -> Iterator[ListedObjects]:
        # docstring inherited
        return self._inner.list_columns(prefix)

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
        self._refuse()

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        # docstring inherited
        self._refuse()

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        self._refuse()

    def remove_empty_folder(self, folder: str) -> None:
        # docstring inherited
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ReadOnlyError(f"{self.place} was opened read-only", kind=ErrorKind.READ_ONLY_STORAGE)
