"""A thread-safe cache that is limited by the total weight of its values."""

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
    """An LRU cache whose values have a total weight of at most `capacity`. A capacity of 0 disables it.

    Parameters
    ----------
    capacity
        The maximum total weight.
    weight
        Returns the weight of a value.
    too_heavy
        Returns the warning for a value whose weight exceeds the capacity. It is logged once.
    """

    def __init__(
        self, capacity: int, weight: Callable[[Value], int], too_heavy: Callable[[int], str] | None = None
    ) -> None:
        self.capacity = capacity
        self._too_heavy = too_heavy
        self._weight = weight
        self._held = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._loading: dict[Key, Future[Value]] = {}
        self._lock = fork_safe_lock()
        self._pid = os.getpid()

    def get(self, key: Key, load: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or load it. Threads that need the same key wait for one load."""
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
        except CancelledError:  # loading failed in the other thread, so try it here
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
        """Forget pending loads of other threads, because those threads do not exist in a forked child."""
        self._loading = {}
        self._pid = os.getpid()

    def put(self, key: Key, value: Value) -> None:
        """Add a value, and evict the least recently used values if necessary. Values heavier than the
        capacity are not cached.
        """
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
        """Remove all values from the cache."""
        with self._lock:
            self._values.clear()
            self._held = 0

    def _warn(self, weight: int) -> None:
        if self._too_heavy is not None and weight > 1:
            import logging  # slow to import, and rarely needed

            logging.getLogger(__name__).warning(self._too_heavy(weight))
            self._too_heavy = None
