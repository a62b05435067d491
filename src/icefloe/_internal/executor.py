"""Executors: apply a task to many items on threads, in processes or, in `icefloe.spark`, on Spark."""

from __future__ import annotations

import contextvars
import functools
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from icefloe._internal.concurrency import DEFAULT_THREADS, get_pool, silence_asyncio
from icefloe._internal.streams import make_streams_safe
from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")

_this_thread = threading.local()
_one_at_a_time = threading.RLock()


class Progress(Protocol):
    """A callback that receives the progress of a running operation."""

    def __call__(self, label: str, done: int, total: int, /) -> None:
        """Report the label of the items, the number of finished items and the total number."""


@dataclass(frozen=True, slots=True)
class Task(Generic[T, R]):
    """A function to run on an executor, with the information needed to schedule it and report its
    progress.
    """

    run: Callable[[T], R]
    """The function. It does not use an executor itself, and may run more than once per item."""
    label: str
    """A plural noun for the items, shown with the progress: `manifests`."""
    per_core: int | None = None
    """The minimum number of Spark tasks per core, each with several items; None for one Spark task per
    item.
    """
    items_per_task: int | None = None
    """With `per_core`, the maximum number of items per Spark task. Beyond that, more tasks are created."""
    thread_safe: bool = True
    """False if the function uses a library that is not thread-safe, such as netCDF4. Each process then runs
    one item at a time.
    """


class Executor(ABC):
    """The base class of executors, which run a task on many items in parallel."""

    progress: Progress | None = None
    parallelism: int = 1
    """The number of items that run at the same time."""
    has_sql: bool = False
    """True if the executor can run SQL queries."""

    @abstractmethod
    def map(self, task: Task[T, R], items: Iterable[T], /) -> Iterator[R]:
        """Apply a task to items in parallel, and yield the results in the order of the items.

        The first failure is raised as soon as it is known, and items that have not started are dropped.

        Parameters
        ----------
        task
            The function to apply, with its label.
        items
            The items. Each is passed to the function as its argument.

        Returns
        -------
        Iterator
            One result per item.
        """

    def query(self, sql: str, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a SQL query on the executor, and return the first rows.

        Parameters
        ----------
        sql
            The query.
        tables
            Sessions, by the table name under which the query uses them.

        Returns
        -------
        list of tuple
            The rows.

        Raises
        ------
        InvalidInputError
            If the executor has no SQL engine.
        """
        raise InvalidInputError(
            f"{type(self).__name__} has no SQL engine; use a SparkExecutor", ErrorKind.NOT_ALLOWED
        )

    def with_progress(self, progress: Progress | None) -> Self:
        """Return a copy of the executor with another progress callback.

        Parameters
        ----------
        progress
            Receives a label, the number of items done and their total; None for no reports.

        Returns
        -------
        Executor
            A copy that shares threads or processes with this one.
        """
        other = copy(self)
        other.progress = progress
        return other


class ThreadExecutor(Executor):
    """An executor that runs tasks on threads of this process.

    At most `max_concurrent_requests` items run at the same time, and `items` is read ahead no further than
    that. Work starts when the first result is requested. Executors with the same `purpose` share threads. An
    executor that is used inside a task with the same purpose runs its items in the current thread. Tasks that
    use libraries that are not thread-safe, such as ingest tasks, run one after the other: use processes or
    Spark for them.

    Parameters
    ----------
    max_concurrent_requests
        The maximum number of items that run at the same time.
    purpose
        The name of the thread pool.
    progress
        Receives a label, the number of items done and their total.
    """

    def __init__(
        self,
        max_concurrent_requests: int = DEFAULT_THREADS,
        purpose: str = "work",
        progress: Progress | None = None,
    ) -> None:
        self.max_concurrent_requests = self.parallelism = max(1, max_concurrent_requests)
        self.purpose = purpose
        self.progress = progress

    def map(self, task: Task[T, R], items: Iterable[T], /) -> Iterator[R]:
        # docstring inherited
        if self.progress is not None:
            todo = list(items)
            return _report_each(self._run(task, todo), task.label, len(todo), self.progress)
        return self._run(task, items)

    def _run(self, task: Task[T, R], items: Iterable[T]) -> Iterator[R]:
        return self._map(task.run, items) if task.thread_safe else _run_alone(task.run, items)

    def _map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        iterator = iter(items)
        head = list(islice(iterator, 2))
        # A single item needs no thread, and a worker that waits for other workers could deadlock.
        nested = self.purpose in getattr(_this_thread, "purposes", ())
        if len(head) < 2 or self.max_concurrent_requests == 1 or nested:
            yield from map(function, head)
            yield from map(function, iterator)
            return
        yield from self._spread(function, head, iterator)

    def _spread(self, function: Callable[[T], R], head: list[T], rest: Iterator[T]) -> Iterator[R]:
        workers = get_pool(self.purpose, self.max_concurrent_requests)
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


class ProcessExecutor(Executor):
    """An executor that runs tasks in local processes, for libraries that are not thread-safe.

    The function, the items and the results are pickled. Processes are started when the first items arrive,
    which takes about a second for imports. Use the executor as a context manager to stop the processes.

    Parameters
    ----------
    processes
        The number of processes. Default: one per core.
    progress
        Receives a label, the number of items done and their total.
    """

    def __init__(self, processes: int | None = None, progress: Progress | None = None) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self.parallelism = processes or os.cpu_count() or 1
        self.progress = progress
        context = multiprocessing.get_context("spawn")
        self._workers = ProcessPoolExecutor(self.parallelism, context, _begin_worker)

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.shutdown(cancel_futures=True)

    def map(self, task: Task[T, R], items: Iterable[T], /) -> Iterator[R]:
        # docstring inherited
        todo = list(items)
        # A single item is not worth a process.
        results = map(task.run, todo) if len(todo) < 2 else self._workers.map(task.run, todo)
        if self.progress is None:
            return results
        return _report_each(results, task.label, len(todo), self.progress)


def _run_alone(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    for item in items:
        with _one_at_a_time:
            result = function(item)
        yield result


def _report_each(results: Iterable[R], label: str, total: int, progress: Progress) -> Iterator[R]:
    for done, result in enumerate(results, 1):
        progress(label, done, total)
        yield result


def _report(finished: SimpleQueue[tuple[int, Future[R]]], index: int, future: Future[R]) -> None:
    finished.put((index, future))


def _as_worker(purposes: tuple[str, ...], function: Callable[[T], R], item: T) -> R:
    _this_thread.purposes = purposes
    try:
        return function(item)
    finally:
        _this_thread.purposes = ()


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # workers end without a traceback on Ctrl-C
    make_streams_safe()
    silence_asyncio()
