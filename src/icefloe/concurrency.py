"""Threads for blocking work: async twins of blocking methods, and fan-out over many items.

There are two pools. Async twins run in one, fanned-out work in the other, so that a twin waiting for its
fan-out never takes the thread that work needs. asyncio's default executor is not used: it has six threads on
two cores, too few to keep an object store busy.

A forked child gets fresh pools: threads do not survive a fork.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

DEFAULT_THREADS = 256
"""As many as the default of `max_concurrent_requests`."""

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_lock = threading.Lock()
_pools: dict[tuple[int, str, int], ThreadPoolExecutor] = {}
_this_thread = threading.local()


class FanOut(Protocol):
    """Applies a function to many items side by side: threads locally, Spark on a cluster.

    Results come in the order of the items. The first failure is raised as soon as it is known, and items not
    yet begun are dropped. The function must be a leaf: it fans out nothing itself.
    """

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]: ...


class ThreadFanOut:
    """A `FanOut` over this process's threads.

    At most `max_concurrent_requests` items are under way; `items` is read no further ahead than that beyond
    the result last taken. Work begins when the first result is asked for. Fan-outs of one `purpose` share
    threads; one that is nested in another of the same purpose runs in place.
    """

    __slots__ = ("max_concurrent_requests", "purpose")

    def __init__(self, max_concurrent_requests: int = DEFAULT_THREADS, purpose: str = "work") -> None:
        self.max_concurrent_requests = max(1, max_concurrent_requests)
        self.purpose = purpose

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        iterator = iter(items)
        head = list(islice(iterator, 2))
        # One item needs no thread, and a worker that waited for other workers could wait for ever.
        nested = self.purpose in getattr(_this_thread, "purposes", ())
        if len(head) < 2 or self.max_concurrent_requests == 1 or nested:
            yield from map(function, head)
            yield from map(function, iterator)
            return
        yield from self._spread(function, head, iterator)

    def _spread(self, function: Callable[[T], R], head: list[T], rest: Iterator[T]) -> Iterator[R]:
        workers = pool(self.purpose, self.max_concurrent_requests)
        finished: SimpleQueue[tuple[int, Future[R]]] = SimpleQueue()
        running: set[Future[R]] = set()
        results: dict[int, R] = {}
        purposes = (*getattr(_this_thread, "purposes", ()), self.purpose)
        submitted = taken = 0

        def submit(item: T) -> None:
            nonlocal submitted
            context = contextvars.copy_context()
            future = workers.submit(context.run, _as_worker, purposes, function, item)
            running.add(future)
            future.add_done_callback(functools.partial(_report, finished, submitted))
            submitted += 1

        try:
            for item in head:
                submit(item)
            for item in islice(rest, self.max_concurrent_requests - len(head)):
                submit(item)
            while taken < submitted:
                while taken not in results:
                    index, future = finished.get()
                    running.discard(future)
                    results[index] = future.result()
                for item in islice(rest, 1):
                    submit(item)
                yield results.pop(taken)
                taken += 1
        finally:
            for future in running:
                future.cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.max_concurrent_requests, self.purpose))


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async form of a blocking method, with the same arguments.

    The blocking method runs in a thread of our own, so any running loop can await it, many times at once.
    The twin of a class method is written out with `in_thread`.
    """

    @functools.wraps(method)
    async def twin(*args: Any, **kwargs: Any) -> Any:
        return await in_thread(functools.partial(method, *args, **kwargs))

    twin.__name__ = f"{method.__name__}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    return twin


def async_iterator_twin(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[S, P], AsyncIterator[R]]:
    """The async form of a blocking method that gives an iterator; every step runs in a thread of our own."""

    @functools.wraps(method)
    async def twin(*args: Any, **kwargs: Any) -> AsyncIterator[R]:
        end = object()
        iterator = await in_thread(functools.partial(method, *args, **kwargs))
        while (item := await in_thread(functools.partial(next, iterator, end))) is not end:
            yield cast(R, item)

    twin.__name__ = f"{method.__name__}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    return twin


async def in_thread(function: Callable[[], R]) -> R:
    """Run a blocking function without blocking the running loop. Cancelling does not stop the function."""
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


def _report(finished: SimpleQueue[tuple[int, Future[R]]], index: int, future: Future[R]) -> None:
    finished.put((index, future))


def _as_worker(purposes: tuple[str, ...], function: Callable[[T], R], item: T) -> R:
    _this_thread.purposes = purposes
    try:
        return function(item)
    finally:
        _this_thread.purposes = ()


def _forget_pools() -> None:
    """In a forked child: the parent's threads are not here, and its lock may have been held."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)
