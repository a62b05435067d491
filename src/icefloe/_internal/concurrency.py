"""Thread pools, fork-safe locks, and async counterparts of blocking methods.

Async methods run in a pool of their own, and the tasks of a `ThreadExecutor` in another, so that a method
that waits for its tasks never occupies a thread that they need. asyncio's default executor is not
used: it has six threads on two cores, too few to keep an object store busy.

A forked child gets fresh pools: threads do not survive a fork.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import _bootstrap
from types import CoroutineType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

DEFAULT_THREADS = 256
"""As many as the default of `max_concurrent_requests`."""

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")

_MOMENT_S = 0.005
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20
_MOST_IMPORTS = 1000

_fork_safe_locks: WeakSet[Any] = WeakSet()
_pools: dict[tuple[int, str, int], ThreadPoolExecutor] = {}
_this_thread = threading.local()


def fork_safe_lock(*, reentrant: bool = False) -> Any:
    """Make a lock that is free in a forked child, whichever thread of the parent held it."""
    lock = threading.RLock() if reentrant else threading.Lock()
    _fork_safe_locks.add(lock)
    return lock


_lock = fork_safe_lock()


def silence_asyncio() -> None:
    """Let it not tell of tasks that nobody waits for: the first of them to fail has ended the work."""
    told = sys.unraisablehook

    def tell(found: Any) -> None:
        if not isinstance(found.object, CoroutineType):
            told(found)

    sys.unraisablehook = tell
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    give_back_large_buffers()


@functools.cache
def give_back_large_buffers() -> None:
    """Have the C library return freed buffers of a MiB and more to the system; for processes that are ours.

    glibc raises that bound up to 32 MiB by itself, and then keeps what was freed, in pieces that the next
    buffer does not fit into: a task of 156 MiB left 48 behind, and the one after it stood on top of them.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # not in musl, which gives back anyway
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async form of a blocking method, with the same arguments.

    The blocking method runs in a thread of our own, so any running loop can await it, many times at once.
    """
    return _in_thread_form(method)


class CallableOnClass(Protocol[P, R_co]):
    """What a class method or static method is to those who use the class."""

    def __get__(self, instance: Any, owner: Any = None, /) -> Callable[P, R_co]: ...


def async_class_twin(
    method: Callable[Concatenate[Any, P], R],
) -> CallableOnClass[P, Coroutine[Any, Any, R]]:
    """The async form of a blocking class method; called in the body of the class, like `async_twin`."""
    inner: Any = method
    return classmethod(_in_thread_form(inner.__func__))


def async_static_twin(method: Callable[P, R]) -> CallableOnClass[P, Coroutine[Any, Any, R]]:
    """The async form of a blocking static method."""
    inner: Any = method
    return staticmethod(_in_thread_form(inner.__func__))


def _in_thread_form(function: Callable[..., R]) -> Callable[..., Coroutine[Any, Any, R]]:
    @functools.wraps(function)
    async def twin(*args: Any, **kwargs: Any) -> R:
        return await in_thread(functools.partial(function, *args, **kwargs))

    twin.__name__ = f"{function.__name__}_async"
    twin.__qualname__ = f"{function.__qualname__}_async"
    return twin


class AsyncCloseableIterator(Generic[T]):
    """An iterator for `for` and for `async for`. The async form takes its steps in a thread of our own."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._ahead: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        # Loops over long histories run at the speed of the iterator inside.
        return self if self._ahead else self._items

    def __next__(self) -> T:
        return self._ahead.popleft() if self._ahead else next(self._items)

    def __aiter__(self) -> AsyncCloseableIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._ahead:
            await in_thread(self._look_ahead)
        if not self._ahead:
            raise StopAsyncIteration
        return self._ahead.popleft()

    def _look_ahead(self) -> None:
        """Take what there is to be had in a moment: a thread per item would cost more than the items."""
        until = time.monotonic() + _MOMENT_S
        for item in self._items:
            self._ahead.append(item)
            if time.monotonic() > until:
                return

    async def aclose(self) -> None:
        """Let go of what was not asked for."""
        self._ahead.clear()
        self._items = iter(())


async def in_thread(function: Callable[[], R]) -> R:
    """Run a blocking function without blocking the running loop. Cancelling does not stop the function."""
    import asyncio  # who has a running loop has it already

    context = contextvars.copy_context()
    return await asyncio.wrap_future(pool("calls", DEFAULT_THREADS).submit(context.run, function))


def pool(purpose: str, threads: int) -> ThreadPoolExecutor:
    """This process's pool for a purpose, made when first asked for; its threads start as they are needed."""
    key = (os.getpid(), purpose, threads)
    found = _pools.get(key)
    if found is None:
        with _lock:
            found = _pools.get(key)
            if found is None:
                found = ThreadPoolExecutor(threads, thread_name_prefix=f"icefloe-{purpose}")
                _pools[key] = found
    return found


def _forget_threads() -> None:
    """In a forked child: the parent's threads are not here, and may have held locks."""
    for lock in _fork_safe_locks:
        lock._at_fork_reinit()
    _pools.clear()


def _wait_for_imports() -> None:
    """Before a fork: wait until no other thread is importing a module.

    Nobody would ever release the lock of that module in the child, and the child would wait for it forever.
    Python reinitializes its other locks. These have no public interface; where they look different, we go on.
    """
    for _ in range(_MOST_IMPORTS):
        references = list(getattr(_bootstrap, "_module_locks", {}).values())
        locks = [lock for reference in references if (lock := reference()) is not None]
        busy = [lock for lock in locks if getattr(lock, "owner", None) not in (None, threading.get_ident())]
        if not busy:
            return
        for lock in busy:
            with suppress(RuntimeError):  # the importing thread waits for us in turn
                lock.acquire()
                lock.release()


if hasattr(os, "register_at_fork"):  # where there is no fork, there is nothing to forget
    os.register_at_fork(before=_wait_for_imports, after_in_child=_forget_threads)
