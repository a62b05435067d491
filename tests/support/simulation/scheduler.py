"""Threads that take turns, as a seed says: exactly one runs at a time, so a run can be had again.

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
    """The run has ended before this thread did."""


class Baton:
    """Hands the right to run from one thread to another, at the points where they ask for it."""

    def __init__(self, choices: random.Random) -> None:
        self._choices = choices
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._failure: BaseException | None = None
        self._done = threading.Semaphore(0)
        self.holder = -1
        """The number of the thread that runs."""

    def run(self, lives: Sequence[Callable[[], None]]) -> None:
        """Run functions in threads of their own until all have ended; raises what one of them raised."""
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
        """A point at which another thread may go on."""
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
    """Let all ids, times and random waits of this package come from one source. Sleep takes no time."""
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
    """Load all modules that tell time or roll dice: some are loaded when they are needed, too late for us."""
    for package in ("core", "format", "maintenance", "storage"):
        folder = importlib.import_module(f"icefloe.{package}")
        for module in pkgutil.walk_packages(folder.__path__, f"icefloe.{package}."):
            importlib.import_module(module.name)
    for name in ("session", "repository", "conflicts"):
        importlib.import_module(f"icefloe.{name}")


class _Clock:
    """A clock that moves when it is looked at."""

    def __init__(self, while_asleep: Callable[[], None]) -> None:
        self._now_ns = _START_NS
        self._while_asleep = while_asleep

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        self._now_ns += _TICK_NS
        return self._now_ns

    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Let that time pass, and others go on."""
        self._now_ns += int(seconds * 1e9)
        self._while_asleep()


class _Module:
    """A module, some of whose functions are others."""

    def __init__(self, real: types.ModuleType, **others: Callable[..., Any]) -> None:
        self._real = real
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
