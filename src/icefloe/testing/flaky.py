"""A storage over any other whose requests and answers get lost, come twice, or end the one who sent them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self, TypeVar

from icefloe.config import StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import (
    ALWAYS,
    Buffer,
    ConditionNotMetError,
    DeleteReport,
    ObjectKind,
    PutCondition,
    Storage,
    StorageObjectInfo,
    Unchanged,
    Version,
)

R = TypeVar("R")


class Fault(Enum):
    """What becomes of one request."""

    NONE = "answered"
    LOST_REQUEST = "request lost"
    LOST_ANSWER = "answer lost"
    TWICE = "arrives twice"
    AGAIN_LATER = "arrives again later"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


@dataclass(frozen=True, slots=True)
class Call:
    """One request: what is done, to which object, and whether it can change anything."""

    verb: str
    path: str
    writes: bool
    repeatable: bool
    """Whether the same request changes nothing when it arrives again at any later time."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class Weather(Protocol):
    """Decides what becomes of requests. Both methods may take their time: others go on meanwhile."""

    def sending(self, call: Call) -> Fault:
        """A request is on its way."""

    def answered(self, call: Call, fault: Fault) -> None:
        """A request has had its effect, if any; its answer is on its way."""

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        """Take a request that arrives a second time, whenever that may be."""


class Crashed(BaseException):
    """The process that sent a request is no more. No `except Exception` may take it."""


class FlakyStorage(Storage):
    """The objects of another storage, reached through some weather.

    A lost request or answer is a StorageError like any other: who wrote cannot know whether it happened.
    """

    def __init__(self, inner: Storage, weather: Weather) -> None:
        self._inner = inner
        self._weather = weather
        super().__init__()

    @property
    def answers_at_once(self) -> bool:
        # docstring inherited
        return self._inner.answers_at_once

    def default_settings(self) -> StorageSettings:
        # docstring inherited
        return self._inner.default_settings()

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._inner.with_settings(settings), self._weather)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "flaky", **self._inner.describe()}

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
        return self._read("get", path, lambda: self._inner.get(path))

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        return self._read("get if changed", path, lambda: self._inner.get_if_changed(path, version))

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        return self._read("get range of", path, lambda: self._inner.get_range(path, start, stop))

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        return self._read("head", path, lambda: self._inner.head(path))

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        return iter(self._read("list", prefix, lambda: list(self._inner.list_prefix(prefix))))

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
        # Write-once objects get the same content again, and no version comes back; a path that was deleted
        # in between is another matter.
        repeatable = condition == ALWAYS or isinstance(condition, Unchanged)
        call = Call(f"put if {type(condition).__name__.lower()}", path, True, repeatable)
        return self._send(
            call, lambda: self._inner.put(path, content, condition, kind=kind, metadata=metadata)
        )

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        # docstring inherited
        self._send(
            Call(f"copy {source} to", target, True, False), lambda: self._inner.copy(source, target, version)
        )

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        keys = list(paths)
        return self._send(Call("delete", " ".join(keys), True, False), lambda: self._inner.delete(keys))

    def _read(self, verb: str, path: str, request: Callable[[], R]) -> R:
        return self._send(Call(verb, path, False, False), request)

    def _send(self, call: Call, request: Callable[[], R]) -> R:
        fault = self._weather.sending(call)
        if fault is Fault.CRASH_BEFORE:
            raise Crashed
        if fault is Fault.LOST_REQUEST:
            raise no_answer(call)
        try:
            answer = request()
            if fault is Fault.TWICE:
                with contextlib.suppress(ConditionNotMetError):
                    request()
            if fault is Fault.AGAIN_LATER:
                self._weather.repeat_later(call, request)
        finally:
            self._weather.answered(call, fault)
        if fault is Fault.CRASH_AFTER:
            raise Crashed
        if fault is Fault.LOST_ANSWER:
            raise no_answer(call)
        return answer


def no_answer(call: Call) -> StorageError:
    """What a client sees of a lost request, and of a lost answer."""
    return StorageError(f"{call}: no answer; it may or may not have happened", kind=ErrorKind.OBJECT_STORE)
