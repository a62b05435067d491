"""Faults in the connection to an object store, below the retries of `ObjectStorage`.

A lost answer is an error of obstore here, and a request that came twice is answered the second time: a
conditional write is refused because of itself. obstore's own store in memory takes the place of a server.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import obstore
import pytest
from obstore.exceptions import BaseError, GenericError
from obstore.store import MemoryStore

from icefloe.storage import Storage
from icefloe.storage.object_store.clients import CredentialSource
from icefloe.storage.object_store.storage import ObjectStorage
from icefloe.testing.flaky import Crashed, Fault, FaultSource
from icefloe.testing.storages import Call

R = TypeVar("R")


class Wire:
    """A store, and the faults of the connection to it."""

    def __init__(self, store: MemoryStore, weather: FaultSource) -> None:
        self.store = store
        self.weather = weather

    def send(self, call: Call, request: Callable[[], R]) -> R:
        """Send one request and return its response."""
        fault = self.weather.sending(call)
        if fault is Fault.CRASH_BEFORE:
            raise Crashed
        if fault is Fault.LOST_REQUEST:
            raise GenericError(f"{call}: connection refused")
        try:
            if fault is Fault.TWICE:
                with contextlib.suppress(BaseError):
                    request()
            answer = request()
            if fault is Fault.AGAIN_LATER:
                self.weather.repeat_later(call, request)
        finally:
            self.weather.answered(call, fault)
        if fault is Fault.CRASH_AFTER:
            raise Crashed
        if fault is Fault.LOST_ANSWER:
            raise GenericError(f"{call}: connection reset")
        return answer


class _Place:
    """A store in memory, with and without faults."""

    encodes_keys = False
    prefix = "simulated"

    def __init__(self, store: MemoryStore, weather: FaultSource | None = None) -> None:
        self.store = store
        self._client: Any = store if weather is None else Wire(store, weather)

    def client(self, *_: object) -> Any:
        return self._client

    def describe(self) -> Mapping[str, str]:
        return {"type": "simulated"}

    def source(self) -> CredentialSource:
        return CredentialSource(None)


def make_storage() -> Storage:
    """Return a new store without faults."""
    place: Any = _Place(MemoryStore())
    return ObjectStorage(place)


def connect(storage: Storage, weather: FaultSource) -> Storage:
    """Return the same store with faults."""
    assert isinstance(storage, ObjectStorage)
    calm: Any = storage._place
    place: Any = _Place(calm.store, weather)
    return ObjectStorage(place)


@contextlib.contextmanager
def wired() -> Iterator[None]:
    """Send the requests of `ObjectStorage` through the faulty connection within the block."""

    class Obstore:
        def __getattr__(self, verb: str) -> Any:
            return functools.partial(_ask, verb)

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("icefloe.storage.") and hasattr(module, "obstore"):
                patch.setattr(module, "obstore", Obstore())
        yield


def _ask(verb: str, client: Any, *args: Any, **options: Any) -> Any:
    function = getattr(obstore, verb)
    if not isinstance(client, Wire):
        return function(client, *args, **options)
    call = _call(verb, args, options)
    return client.send(call, lambda: function(client.store, *args, **options))


def _call(verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    path = " ".join(args[0]) if isinstance(args[0], list) else str(args[-1] if verb == "copy" else args[0])
    mode = options.get("mode")
    # The same content at the same path once more, or a version that is gone for good.
    repeatable = verb == "put" and mode != "create"
    words = {"put": f"put {'if unchanged' if isinstance(mode, dict) else mode or 'always'}"}
    return Call(words.get(verb, verb), path, verb in ("put", "copy", "delete"), repeatable)
