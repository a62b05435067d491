"""Run blocking work for requests in a few threads, with a short queue, a timeout and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from icefloe.serve.asgi import Receive, RequestError
from icefloe.serve.settings import RequestLimits

R = TypeVar("R")

_RETRY_AFTER: Final = (b"retry-after", b"2")
_current: ContextVar[RequestJob | None] = ContextVar("job", default=None)


class CancelledError(Exception):
    """Raised to cancel work whose result no client is waiting for any more."""


class RequestJob:
    """Work for a request, which regularly checks if it was cancelled."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Cancel the job, so that the next `check` raises an error."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise an error if the client has disconnected or the time limit is exceeded."""
        if self._cancelled.is_set():
            raise CancelledError
        if time.monotonic() > self._until:
            raise TimeoutError


def check_job() -> None:
    """Raise an error if the request job in this thread was cancelled. Call it between chunks."""
    job = _current.get()
    if job is not None:
        job.check()


class Decoders:
    """A small thread pool for requests that decode chunks, with a bounded queue.

    Parameters
    ----------
    limits
        The number of threads, the length of the queue and the time per request.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.decoders, thread_name_prefix="icefloe-decode")
        self._waiting = 0

    async def run(self, work: Callable[[], R], receive: Receive) -> R:
        """Run the work for a request in a thread of the pool.

        Parameters
        ----------
        work
            The function to run. It calls `check_job` regularly.
        receive
            The ASGI receive function of the request. If the client disconnects, the work is cancelled.

        Raises
        ------
        RequestError
            The queue is full.
        TimeoutError
            The work took too long.
        CancelledError
            The client disconnected.
        """
        if self._waiting >= self._limits.queued + self._limits.decoders:
            raise RequestError(503, "too many requests are waiting; try again", [_RETRY_AFTER])
        job = RequestJob(self._limits.seconds)

        def run() -> R:
            token = _current.set(job)
            try:
                job.check()
                return work()
            finally:
                _current.reset(token)

        self._waiting += 1
        watch = asyncio.ensure_future(disconnected(receive))
        future = asyncio.wrap_future(self._threads.submit(run))
        future.add_done_callback(self._leave_queue)
        try:
            events: set[asyncio.Future[Any]] = {future, watch}
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(events, timeout=self._limits.seconds, return_when=first)
            if future.done():
                return future.result()
            if watch.done():
                raise CancelledError
            raise TimeoutError
        finally:
            job.cancel()
            watch.cancel()
            future.cancel()

    def _leave_queue(self, future: asyncio.Future[R]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieve the exception, because nobody may be waiting for it

    def close(self) -> None:
        """Stop the threads of the pool."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects, so that its work can be cancelled."""
    while (await receive())["type"] != "http.disconnect":
        pass
