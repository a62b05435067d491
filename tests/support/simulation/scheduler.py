"""A deterministic scheduler: exactly one thread runs at a time, in an order that a seed determines.

With `determined` ids, clocks and random waits come from the seed too.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from icefloe._internal.ids import ObjectId

_START_NS = 1_700_000_000_000_000_000
_TICK_NS = 1_000_000


class Stopped(BaseException):
    """Raised in a thread when the run has ended."""


class Baton:
    """A token that lets one thread run, and that passes to another thread at defined points."""

    def __init__(self, choices: random.Random) -> None:
        self._choices = choices
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._failure: BaseException | None = None
        self._done = threading.Semaphore(0)
        self.holder = -1
        """The number of the thread that runs."""

    def run(self, lives: Sequence[Callable[[], None]]) -> None:
        """Run functions in threads until all have ended; raise the first exception."""
        self._turns = [threading.Semaphore(0) for _ in lives]
        self._alive = list(range(len(lives)))
        threads = [
            threading.Thread(target=self._live, args=(number, life), name=f"writer-{number}", daemon=True)
            for number, life in enumerate(lives)
        ]
        for thread in threads:
            thread.start()
        self._hand_over()
        self._done.acquire()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """Let another thread run."""
        me = self.holder
        self._hand_over(me)
        if self._failure is not None:
            raise Stopped

    def _hand_over(self, me: int = -1) -> None:
        chosen = self._choices.choice(self._alive)
        if chosen == me:
            return
        self.holder = chosen
        self._turns[chosen].release()
        if me >= 0:
            self._turns[me].acquire()

    def _live(self, number: int, life: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            if self._failure is None:
                life()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - it goes to the one who called run
            self._failure = self._failure or error
        self._alive.remove(number)
        if self._alive:
            self._hand_over()
        else:
            self._done.release()


@contextmanager
def determined(source: random.Random, while_asleep: Callable[[], None]) -> Iterator[None]:
    """Derive all ids, times and random pauses from one seed. Sleeping takes no time."""
    _load_the_engine()
    clock = _Clock(while_asleep)
    standing_in: dict[types.ModuleType, Any] = {
        time: _Module(time, time_ns=clock.time_ns, time=clock.time, monotonic=clock.time, sleep=clock.sleep),
        random: source,
        uuid: _Module(uuid, uuid4=lambda: uuid.UUID(bytes=source.randbytes(16), version=4)),
    }
    places = [
        (module, name, real)
        for path, module in list(sys.modules.items())
        if path.startswith("icefloe.") and not path.startswith("icefloe.testing")
        for name in ("time", "random", "uuid")
        for real in standing_in
        if vars(module).get(name) is real
    ]
    own_random = ObjectId.__dict__["random"]
    for module, name, real in places:
        setattr(module, name, standing_in[real])
    ObjectId.random = classmethod(lambda cls: cls(source.randbytes(cls.SIZE)))  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ObjectId.random = own_random  # type: ignore[method-assign]
        for module, name, real in places:
            setattr(module, name, real)


def _load_the_engine() -> None:
    """Import all modules that use clocks or random numbers before they are patched."""
    for package in ("core", "format", "maintenance", "storage"):
        folder = importlib.import_module(f"icefloe.{package}")
        for module in pkgutil.walk_packages(folder.__path__, f"icefloe.{package}."):
            importlib.import_module(module.name)
    for name in ("session", "repository", "conflicts"):
        importlib.import_module(f"icefloe.{name}")


class _Clock:
    """A clock that advances whenever it is read."""

    def __init__(self, while_asleep: Callable[[], None]) -> None:
        self._now_ns = _START_NS
        self._while_asleep = while_asleep

    def time_ns(self) -> int:
        """Return nanoseconds since 1970."""
        self._now_ns += _TICK_NS
        return self._now_ns

    def time(self) -> float:
        """Return seconds since 1970."""
        return self.time_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Advance the clock, and let other threads run."""
        self._now_ns += int(seconds * 1e9)
        self._while_asleep()


class _Module:
    """A module with some functions replaced."""

    def __init__(self, real: types.ModuleType, **others: Callable[..., Any]) -> None:
        self._real = real
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
