"""A storage that injects faults: lost or repeated requests, lost responses, and crashes of the client."""

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
    """The fate of a request."""

    NONE = "answered"
    LOST_REQUEST = "request lost"
    LOST_ANSWER = "answer lost"
    TWICE = "arrives twice"
    AGAIN_LATER = "arrives again later"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a storage."""

    verb: str
    path: str
    writes: bool
    repeatable: bool
    """True if the request has no effect when it arrives again later."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class Weather(Protocol):
    """The source of faults, which decides the fate of requests. Its methods may block."""

    def sending(self, call: Call) -> Fault:
        """Return the fate of a request that is sent."""

    def answered(self, call: Call, fault: Fault) -> None:
        """Called when a request has had its effect, before the client receives the response."""

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        """Receive a request that will arrive a second time."""


class Crashed(BaseException):
    """The simulated crash of a client, which `except Exception` does not catch."""


class FlakyStorage(Storage):
    """A storage whose requests may fail, as a `Weather` object decides.

    After a lost request or response the client gets a StorageError and cannot know whether a write happened.

    Parameters
    ----------
    inner
        The storage that holds the objects.
    weather
        Decides the fate of each request.
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
        # Objects that are written once get the same content again, and versions are never reused.
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
    """Return the error that a client gets for a lost request or response."""
    return StorageError(f"{call}: no answer; it may or may not have happened", kind=ErrorKind.OBJECT_STORE)
