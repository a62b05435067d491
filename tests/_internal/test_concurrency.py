"""Executors on threads and processes, and async counterparts of blocking methods."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import multiprocessing
import pickle
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from icefloe._internal.concurrency import async_twin, computed_once, get_pool, run_in_thread
from icefloe._internal.executor import ProcessExecutor, Task, ThreadExecutor
from icefloe.errors import InvalidInputError


def same(number: int) -> int:
    return number


def test_results_are_in_the_order_of_the_items() -> None:
    gates = [threading.Event() for _ in range(8)]
    gates[7].set()

    def reverse(i: int) -> int:
        assert gates[i].wait(10)
        if i:
            gates[i - 1].set()
        return i * i

    assert list(ThreadExecutor(8).map(Task(reverse, "items"), range(8))) == [i * i for i in range(8)]


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_executor_maps_any_number_of_items(count: int) -> None:
    assert list(ThreadExecutor(4).map(Task(str, "items"), range(count))) == [str(i) for i in range(count)]


def test_items_are_read_ahead_within_a_limit() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            read.append(i)
            yield i

    results = ThreadExecutor(4).map(Task(same, "numbers"), items())

    assert next(results) == 0
    assert len(read) <= 6
    assert next(results) == 1
    assert len(read) <= 7


def test_concurrency_limit_is_reached_and_not_exceeded() -> None:
    lock, arrived = threading.Lock(), threading.Barrier(5)
    running, most = 0, 0

    def work(i: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        arrived.wait(10)
        with lock:
            running -= 1

    list(ThreadExecutor(5).map(Task(work, "items"), range(20)))

    assert most == 5


def test_tasks_that_are_not_thread_safe_run_one_after_the_other() -> None:
    running = threading.Lock()

    def work(i: int) -> int:
        assert running.acquire(blocking=False)
        try:
            return i
        finally:
            running.release()

    task = Task(work, "items", thread_safe=False)

    def work_again(_: int) -> list[int]:
        return list(ThreadExecutor(4, "inner").map(task, range(50)))

    assert list(ThreadExecutor(8).map(Task(work_again, "lists"), range(8))) == [list(range(50))] * 8


def test_failure_is_raised_before_slower_items_finish() -> None:
    release = threading.Event()

    def work(i: int) -> int:
        if i == 3:
            raise KeyError(i)
        assert release.wait(10)
        return i

    with pytest.raises(KeyError):
        list(ThreadExecutor(4).map(Task(work, "items"), range(100)))
    release.set()


def test_items_after_a_failure_are_not_started() -> None:
    begun: list[int] = []

    def work(i: int) -> int:
        begun.append(i)
        if i == 0:
            raise ValueError(i)
        return i

    with pytest.raises(ValueError, match="0"):
        list(ThreadExecutor(2).map(Task(work, "items"), range(1000)))

    assert len(begun) < 10


def test_exception_of_the_item_iterator_is_raised() -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        list(ThreadExecutor(4).map(Task(str, "items"), items()))


def test_nested_executor_runs_in_the_calling_thread() -> None:
    inner = ThreadExecutor(2)

    nested = ThreadExecutor(2).map(
        Task(lambda i: sum(inner.map(Task(lambda j: i * j, "numbers"), range(10))), "sums"), range(20)
    )

    assert list(nested) == [45 * i for i in range(20)]


def test_executors_share_a_pool_without_deadlock() -> None:
    executor = ThreadExecutor(2)
    with ThreadPoolExecutor(16) as callers:
        sums = list(callers.map(lambda _: sum(executor.map(Task(same, "numbers"), range(50))), range(32)))

    assert sums == [1225] * 32


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


def test_context_variables_reach_the_workers() -> None:
    variable.set("here")

    assert set(ThreadExecutor(4).map(Task(lambda _: variable.get(), "items"), range(8))) == {"here"}
    assert asyncio.run(run_in_thread(variable.get)) == "here"


def test_executor_pickles() -> None:
    copy = pickle.loads(pickle.dumps(ThreadExecutor(7)))

    assert copy.max_concurrent_requests == 7


class Greeter:
    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self, greeting: str = "hello") -> str:
        """Greet by name."""
        return f"{greeting}, {self.name}"

    greet_async = async_twin(greet)

    @classmethod
    def make(cls, name: str) -> Greeter:
        return cls(name)

    @classmethod
    async def make_async(cls, name: str) -> Greeter:
        return await run_in_thread(functools.partial(cls.make, name))

    def fail(self) -> None:
        raise KeyError(self.name)

    fail_async = async_twin(fail)


def test_async_methods_match_blocking_methods() -> None:
    async def main() -> None:
        greeter = await Greeter.make_async("Ann")
        assert await greeter.greet_async(greeting="hi") == "hi, Ann"
        with pytest.raises(KeyError):
            await greeter.fail_async()

    asyncio.run(main())
    assert Greeter.greet_async.__doc__ == "Greet by name."
    assert Greeter.greet_async.__name__ == "greet_async"


def test_more_async_calls_run_concurrently_than_asyncio_has_threads() -> None:
    barrier = threading.Barrier(64)

    class Waiter:
        def wait(self) -> int:
            return barrier.wait(10)

        wait_async = async_twin(wait)

    async def main() -> list[int]:
        return await asyncio.gather(*(Waiter().wait_async() for _ in range(64)))

    assert sorted(asyncio.run(main())) == list(range(64))


def test_async_methods_use_executors_even_if_all_threads_are_busy() -> None:
    class Summing:
        def total(self) -> int:
            return sum(ThreadExecutor(4).map(Task(same, "numbers"), range(20)))

        total_async = async_twin(total)

    async def main() -> list[int]:
        return await asyncio.gather(*(Summing().total_async() for _ in range(300)))

    assert set(asyncio.run(main())) == {190}


def test_blocking_calls_work_in_a_thread_with_a_running_loop() -> None:
    async def main() -> int:
        return sum(ThreadExecutor(4).map(Task(same, "numbers"), range(10)))

    assert asyncio.run(main()) == 45


def _executor_in_child(results: multiprocessing.SimpleQueue[int]) -> None:
    results.put(sum(ThreadExecutor(4).map(Task(same, "numbers"), range(10))))


def test_executor_works_in_a_forked_child() -> None:
    sum(ThreadExecutor(4).map(Task(same, "numbers"), range(10)))
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    child = context.Process(target=_executor_in_child, args=(results,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child.start()
    child.join(300)

    assert child.exitcode == 0
    assert results.get() == 45


def test_pool_is_created_once() -> None:
    assert get_pool("work", 3) is get_pool("work", 3)
    assert get_pool("work", 3) is not get_pool("calls", 3)


def _held_after_large_buffers(_: int) -> int:
    """Return the growth of the memory of a process after it freed buffers of growing sizes."""
    before = _resident_bytes()
    kept = []
    for size in range(2, 31, 2):
        buffers = [bytearray(size << 20) for _ in range(3)]
        kept.append(bytearray(100_000))  # on top of them, where the heap could not shrink
        del buffers
    assert len(kept) == 15
    return _resident_bytes() - before


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS:"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what a process holds")
def test_worker_processes_return_large_buffers() -> None:
    with ProcessExecutor(1) as executor:
        assert max(executor.map(Task(_held_after_large_buffers, "items"), range(2))) < 8 << 20


def test_executors_without_sql_reject_queries() -> None:
    executor = ThreadExecutor(1)

    assert not executor.has_sql
    with pytest.raises(InvalidInputError, match="ThreadExecutor has no SQL engine"):
        executor.query("SELECT 1", {})


def test_cached_properties_of_different_instances_are_computed_concurrently() -> None:
    both = threading.Barrier(2, timeout=60)

    class Reader:
        @computed_once
        def number(self) -> int:
            both.wait()
            return id(self)

    readers = [Reader(), Reader()]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda reader: reader.number, readers))

    assert found == [reader.number for reader in readers] == [id(reader) for reader in readers]
