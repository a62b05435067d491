"""A storage that injects faults: lost or repeated requests, lost responses, and client crashes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol, TypeVar

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import ConditionNotMetError, Storage
from icefloe.testing.storages import Call, PassingStorage

R = TypeVar("R")


class Fault(Enum):
    """The fault, if any, that a flaky storage injects into a request."""

    NONE = "answered"
    LOST_REQUEST = "request lost"
    LOST_ANSWER = "answer lost"
    TWICE = "arrives twice"
    AGAIN_LATER = "arrives again later"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


class FaultSource(Protocol):
    """Decides which requests to a flaky storage fail, and how. Its methods may block."""

    def sending(self, call: Call) -> Fault:
        """Choose the fault for a request before it is sent."""

    def answered(self, call: Call, fault: Fault) -> None:
        """Called when a request has taken effect, before the client receives the response."""

    def repeat_later(self, call: Call, request: Callable[[], object]) -> None:
        """Receive a request that the flaky storage should execute a second time, later."""


class Crashed(BaseException):
    """A simulated client crash, which `except Exception` does not catch."""


class FlakyStorage(PassingStorage):
    """A storage whose requests may fail, as decided by a `FaultSource`.

    If a request or response is lost, the client gets a StorageError and cannot tell whether a write took
    effect.

    Parameters
    ----------
    inner
        The storage that holds the objects.
    weather
        Decides the fate of each request.
    """

    get_ranges = Storage.get_ranges  # one request per range

    def __init__(self, inner: Storage, weather: FaultSource) -> None:
        super().__init__(inner)
        self._weather = weather

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "flaky", **self._inner.describe()}

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
    """Return the error that the client gets for a lost request or response."""
    return StorageError(f"{call}: no response; it may or may not have happened", kind=ErrorKind.OBJECT_STORE)
