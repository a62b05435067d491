"""Thread pools, fork-safe locks, and async counterparts of blocking methods.

Async methods and the tasks of a `ThreadExecutor` run in different pools, so that a method that waits for
tasks never occupies a thread that they need. asyncio's default executor is not used, because it has only six
threads on two cores, which is too few to keep an object store busy.

Threads do not survive a fork, so a forked child creates new pools.
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
"""The default of `max_concurrent_requests`."""

MAY_WAIT = "changes"
"""The name of the pool for calls that may wait for a commit. Reads use another pool, because the commit may
depend on them.
"""

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")

_MOMENT_S = 0.005
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_LARGE_BYTES = 8 << 20
_MAX_IMPORTS = 1000

_fork_safe_locks: WeakSet[Any] = WeakSet()
_pools: dict[tuple[int, str, int], ThreadPoolExecutor] = {}
_this_thread = threading.local()


def fork_safe_lock(*, reentrant: bool = False) -> Any:
    """Return a lock that is unlocked in a forked child, even if a thread of the parent held it."""
    lock = threading.RLock() if reentrant else threading.Lock()
    _fork_safe_locks.add(lock)
    return lock


_lock = fork_safe_lock()


def silence_asyncio() -> None:
    """Suppress asyncio's messages about unfinished tasks, which appear after the first failure has ended
    concurrent work.
    """
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if not isinstance(found.object, CoroutineType):
            before(found)

    sys.unraisablehook = hook
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    give_back_large_buffers()


@functools.cache
def give_back_large_buffers() -> None:
    """Make the C library return freed buffers of 8 MiB and more to the operating system. Only for processes
    that we started.

    By default glibc raises this threshold up to 32 MiB and then keeps freed memory, in fragments that the
    next buffer does not fit into. Without this, a task of 156 MiB left 48 MiB behind. Smaller buffers, such
    as those of HDF5 chunks and codecs, are reused: page faults took a third of the time to read a file.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # musl always returns memory
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def release_freed_memory() -> None:
    """Make the C library return freed memory to the operating system. Takes about a millisecond.

    For the user's process, whose allocator settings must not be changed. The threads that compress a
    transaction log of five million chunks leave 44 MB in their arenas.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


class computed_once(Generic[R]):  # noqa: N801 - a decorator, such as property
    """A property that is computed on first use and then cached.

    In Python 3.11, `functools.cached_property` has a lock that all instances of a class share, so threads
    whose properties read from storage would wait for each other.
    """

    def __init__(self, compute: Callable[[Any], R]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> R:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # from now on, lookups find the instance attribute first
        return value


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Create the async counterpart of a blocking method. It takes the same arguments and runs the method in a
    thread.

    The thread belongs to our own pool, so that any event loop can await many calls at once.
    """
    return _to_async(method)


class CallableOnClass(Protocol[P, R_co]):
    """The type of an async class method or static method, as seen by users of the class."""

    def __get__(self, instance: Any, owner: Any = None, /) -> Callable[P, R_co]: ...


def async_class_twin(
    method: Callable[Concatenate[Any, P], R],
) -> CallableOnClass[P, Coroutine[Any, Any, R]]:
    """Create the async counterpart of a blocking class method, for use inside the class body."""
    inner: Any = method
    return classmethod(_to_async(inner.__func__))


def async_static_twin(method: Callable[P, R]) -> CallableOnClass[P, Coroutine[Any, Any, R]]:
    """Create the async counterpart of a blocking static method, for use inside the class body."""
    inner: Any = method
    return staticmethod(_to_async(inner.__func__))


def _to_async(function: Callable[..., R]) -> Callable[..., Coroutine[Any, Any, R]]:
    @functools.wraps(function)
    async def twin(*args: Any, **kwargs: Any) -> R:
        return await run_in_thread(functools.partial(function, *args, **kwargs), MAY_WAIT)

    twin.__name__ = f"{function.__name__}_async"
    twin.__qualname__ = f"{function.__qualname__}_async"
    return twin


class AsyncCloseableIterator(Generic[T]):
    """An iterator for both `for` and `async for` loops.

    An `async for` loop advances it in a thread.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._ahead: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        # Return the inner iterator, so that loops over long histories are fast.
        return self if self._ahead else self._items

    def __next__(self) -> T:
        return self._ahead.popleft() if self._ahead else next(self._items)

    def __aiter__(self) -> AsyncCloseableIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._ahead:
            await run_in_thread(self._read_ahead)
        if not self._ahead:
            raise StopAsyncIteration
        return self._ahead.popleft()

    def _read_ahead(self) -> None:
        """Read items for a few milliseconds, because a thread switch costs more than an item."""
        until = time.monotonic() + _MOMENT_S
        for item in self._items:
            self._ahead.append(item)
            if time.monotonic() > until:
                return

    async def aclose(self) -> None:
        """Stop an `async for` iteration, and drop the remaining items."""
        self._ahead.clear()
        self._items = iter(())


async def run_in_thread(function: Callable[[], R], purpose: str = "reads") -> R:
    """Run a blocking function in a thread of the pool for the given purpose.

    Cancelling the coroutine does not stop the function.
    """
    import asyncio  # already imported if a loop is running

    context = contextvars.copy_context()
    return await asyncio.wrap_future(get_pool(purpose, DEFAULT_THREADS).submit(context.run, function))


def get_pool(purpose: str, threads: int) -> ThreadPoolExecutor:
    """Return this process's shared thread pool for one purpose, such as executor tasks."""
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
    """Reset locks and pools in a forked child, where the parent's threads do not exist."""
    for lock in _fork_safe_locks:
        lock._at_fork_reinit()
    _pools.clear()


def _wait_for_imports() -> None:
    """Wait until no other thread is importing a module. Called before a fork.

    The child would otherwise wait forever for the module's import lock, which no thread releases there.
    Python reinitializes its other locks. Module locks have no public interface. If they look different, do
    not wait.
    """
    for _ in range(_MAX_IMPORTS):
        references = list(getattr(_bootstrap, "_module_locks", {}).values())
        locks = [lock for reference in references if (lock := reference()) is not None]
        busy = [lock for lock in locks if getattr(lock, "owner", None) not in (None, threading.get_ident())]
        if not busy:
            return
        for lock in busy:
            with suppress(RuntimeError):  # the importing thread is waiting for this one
                lock.acquire()
                lock.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_wait_for_imports, after_in_child=_forget_threads)
