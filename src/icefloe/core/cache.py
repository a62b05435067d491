"""A cache bounded by the weight of what it holds, shared by the threads of a repository."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from icefloe._internal.concurrency import fork_safe_lock

Key = TypeVar("Key")
Value = TypeVar("Value")


class WeightedCache(Generic[Key, Value]):
    """Keeps the latest used values whose weights sum up to at most `capacity`; 0 keeps none."""

    def __init__(
        self, capacity: int, weight: Callable[[Value], int], too_heavy: Callable[[int], str] | None = None
    ) -> None:
        """With `too_heavy` the first value that does not fit is warned of, in its words for that weight."""
        self.capacity = capacity
        self._too_heavy = too_heavy
        self._weight = weight
        self._held = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._loading: dict[Key, Future[Value]] = {}
        self._lock = fork_safe_lock()
        self._pid = os.getpid()

    def get(self, key: Key, load: Callable[[], Value]) -> Value:
        """The value of a key, loaded if it is not here; threads that ask for it meanwhile wait for that."""
        if self.capacity == 0:
            return load()
        if self._pid != os.getpid():
            self._forget_threads()
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found[0]
            running = self._loading.get(key)
            if running is None:
                mine = self._loading[key] = Future()
        if running is None:
            return self._load(key, load, mine)
        try:
            return running.result()
        except CancelledError:  # it failed there: see for ourselves
            return load()

    def _load(self, key: Key, load: Callable[[], Value], future: Future[Value]) -> Value:
        try:
            value = load()
            self.put(key, value)
        except BaseException:
            future.cancel()
            raise
        else:
            future.set_result(value)
            return value
        finally:
            with self._lock:
                self._loading.pop(key, None)

    def _forget_threads(self) -> None:
        """In a forked child: the threads that were loading are not here."""
        self._loading = {}
        self._pid = os.getpid()

    def put(self, key: Key, value: Value) -> None:
        """Hold a value, letting go of those not used for longest. One heavier than all is not held."""
        weight = self._weight(value)
        if weight > self.capacity:
            self._warn(weight)
            return
        with self._lock:
            _, old = self._values.pop(key, (value, 0))
            self._values[key] = (value, weight)
            self._held += weight - old
            while self._held > self.capacity:
                _, (_, gone) = self._values.popitem(last=False)
                self._held -= gone

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._values.clear()
            self._held = 0

    def _warn(self, weight: int) -> None:
        if self._too_heavy is not None and weight > 1:
            import logging  # takes longer to import than all the rest of `import icefloe`

            logging.getLogger(__name__).warning(self._too_heavy(weight))
            self._too_heavy = None
