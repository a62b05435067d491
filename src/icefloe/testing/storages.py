"""Storages that wrap another one, for tests that observe or delay requests."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from icefloe.config import Attribution, StorageSettings
from icefloe.storage.base import (
    ALWAYS,
    Buffer,
    DeleteReport,
    ObjectKind,
    PutCondition,
    Storage,
    StorageObjectInfo,
    Unchanged,
    Version,
)

__all__ = ["LatencyStorage", "PassingStorage"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that a wrapping test storage forwards to the inner storage."""

    verb: str
    path: str
    writes: bool = False
    repeatable: bool = False
    """True if the request has no effect when it is repeated later."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class PassingStorage(Storage):
    """A test storage that forwards requests to another one, with hooks before and after them.

    Copies made by `with_settings` share the mutable attributes of subclasses.

    Parameters
    ----------
    inner
        The storage that holds the objects.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__()
        self._wrap(inner)

    def reading(self) -> None:
        """Hook that runs before each read or listing is forwarded."""

    def writing(self) -> None:
        """Hook that runs before each write, copy or delete is forwarded."""

    def done(self) -> None:
        """Hook that runs after each successful request."""

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return self._inner.read_only

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return self._around(self._inner.with_settings(settings))

    def with_attribution(self, attribution: Attribution) -> Self:
        # docstring inherited
        return self._around(self._inner.with_attribution(attribution))

    def prepare_for_creation(self) -> None:
        # docstring inherited
        self._inner.prepare_for_creation()

    def fits(self, path: str) -> bool:
        # docstring inherited
        return self._inner.fits(path)

    def require_conditional_writes(self) -> None:
        # docstring inherited
        self._inner.require_conditional_writes()

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
        return self._send(Call("get", path), lambda: self._inner.get(path))

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        call = Call("get if changed", path)
        return self._send(call, lambda: self._inner.get_if_changed(path, version))

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        return self._send(Call("get range of", path), lambda: self._inner.get_range(path, start, stop))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        # docstring inherited
        return self._send(Call("get ranges of", path), lambda: self._inner.get_ranges(path, ranges))

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        return self._send(Call("head", path), lambda: self._inner.head(path))

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        return iter(self._send(Call("list", prefix), lambda: list(self._inner.list_prefix(prefix))))

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
        content = bytes(data)
        # Write-once objects always get the same content, and versions are never reused.
        repeatable = condition == ALWAYS or isinstance(condition, Unchanged)
        call = Call(f"put if {type(condition).__name__.lower()}", path, True, repeatable)
        return self._send(
            call, lambda: self._inner.put(path, content, condition, kind=kind, metadata=metadata)
        )

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        # docstring inherited
        call = Call(f"copy {source} to", target, True)
        self._send(call, lambda: self._inner.copy(source, target, version))

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        keys = list(paths)
        return self._send(Call("delete", " ".join(keys), True), lambda: self._inner.delete(keys))

    def remove_empty_folder(self, folder: str) -> None:
        # docstring inherited
        self._inner.remove_empty_folder(folder)

    def sync(self) -> None:
        # docstring inherited
        self._inner.sync()

    def _send(self, call: Call, request: Callable[[], R]) -> R:
        """Forward a request between the hooks. All object requests go through this method."""
        (self.writing if call.writes else self.reading)()
        result = request()
        self.done()
        return result

    def _around(self, inner: Storage) -> Self:
        other = copy.copy(self)
        other._wrap(inner)
        return other

    def _wrap(self, inner: Storage) -> None:
        self._inner = inner
        self._settings, self._effective = inner._settings, inner._effective


class LatencyStorage(PassingStorage):
    """A test storage that delays each read and write, like a remote one.

    Parameters
    ----------
    inner
        The storage that holds the objects.
    write_latency_ms, read_latency_ms
        The delays. They may be changed at any time.
    """

    def __init__(self, inner: Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0) -> None:
        super().__init__(inner)
        self._latency_ms = {"read": read_latency_ms, "write": write_latency_ms}

    @property
    def read_latency_ms(self) -> int:
        """The delay of each read in milliseconds."""
        return self._latency_ms["read"]

    @read_latency_ms.setter
    def read_latency_ms(self, ms: int) -> None:
        self._latency_ms["read"] = ms

    @property
    def write_latency_ms(self) -> int:
        """The delay of each write in milliseconds."""
        return self._latency_ms["write"]

    @write_latency_ms.setter
    def write_latency_ms(self, ms: int) -> None:
        self._latency_ms["write"] = ms

    def reading(self) -> None:
        # docstring inherited
        time.sleep(self.read_latency_ms / 1000)

    def writing(self) -> None:
        # docstring inherited
        time.sleep(self.write_latency_ms / 1000)
