"""Combine many small reads of one file into fewer requests.

Zarr requests a few chunks at a time and does not announce the next ones. So each reader remembers where
recent reads of its file ended. A read that continues there also reads ahead, by at most as many bytes as the
preceding reads used, and the following reads find their bytes in memory or in flight. No read waits for other
reads: an isolated read is sent immediately, for exactly its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from icefloe._internal.concurrency import fork_safe_lock
from icefloe.storage.external.base import Fetched

_KEPT_S: Final = 2.0
"""The time in seconds after which unused bytes and the ends of reads are forgotten."""
_MAX_RUNS: Final = 16
"""The number of read positions to remember per file, so that several variables or readers can read it
concurrently.
"""

Fetch = Callable[[int, int], Fetched]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits for combining range reads of one file into one request."""

    max_gap_bytes: int = 64 * 1024
    """The maximum gap in bytes between reads that may be combined into one request."""
    max_waste: float = 0.5
    """The maximum share of unrequested bytes in combined requests. With 0, only adjacent reads are combined,
    and nothing is read ahead.
    """
    max_request_bytes: int = 2 * 1024 * 1024
    """The maximum length of a combined request in bytes. A single read may be longer."""
    max_kept_bytes: int = 64 * 1024 * 1024
    """The maximum number of bytes to read ahead, over all files."""

    def spare(self, used_bytes: int) -> int:
        """Return the number of unrequested bytes that a combined range read may add to `used_bytes`.

        Parameters
        ----------
        used_bytes
            The number of requested bytes.

        Returns
        -------
        int
            The number of additional bytes.
        """
        share = min(max(self.max_waste, 0.0), 0.99)
        return int(used_bytes * share / (1 - share))


class KeptBytes:
    """A thread-safe budget for bytes that are read ahead, over all files."""

    def __init__(self) -> None:
        self._held = 0
        self._lock = fork_safe_lock()

    def take(self, count: int, limit: int) -> bool:
        """Reserve memory for bytes to read ahead. Return False, and reserve nothing, if the limit would be
        exceeded.
        """
        with self._lock:
            if self._held + count > limit:
                return False
            self._held += count
            return True

    def free(self, count: int) -> None:
        """Release the memory that was reserved for bytes that were read ahead."""
        with self._lock:
            self._held -= count


@dataclass(eq=False, slots=True)
class _Span:
    """The byte range of a pending or completed request."""

    start: int
    stop: int
    kept: int
    """The number of bytes reserved in the read-ahead budget."""
    answer: Future[Fetched] = field(default_factory=Future)
    used: int = 0
    used_at: float = 0.0


@dataclass(eq=False, slots=True)
class _Run:
    """A run of consecutive reads, each starting where the previous one ended."""

    stop: int
    used: int
    at: float


class RangeReader:
    """A thread-safe reader that combines small range reads of one version of a file."""

    def __init__(self, fetch: Fetch, limits: ReadLimits, kept: KeptBytes) -> None:
        self._fetch = fetch
        self._limits = limits
        self._kept = kept
        self._lock = fork_safe_lock()
        self._spans: list[_Span] = []
        self._runs: list[_Run] = []

    def read(self, start: int, stop: int) -> Fetched:
        """Read bytes `start` to `stop`, or fewer if the file ends earlier. Also return the version of the
        file.
        """
        with self._lock:
            now = time.monotonic()
            self._forget_old(now)
            span = self._find_covering(start, stop)
            mine = span is None
            if span is None:
                span = self._plan_request(start, stop, now)
                self._spans.append(span)
            span.used += stop - start
            span.used_at = now
        if mine:
            found = self._await_span(span)
        else:
            if span.answer.exception() is not None:
                return self._fetch(start, stop)  # the request of another reader failed, but ours may succeed
            found = span.answer.result()
        self._drop_if_used(span)
        first = start - span.start
        return Fetched(
            found.data[first : first + stop - start], found.size_bytes, found.e_tag, found.last_modified
        )

    def _await_span(self, span: _Span) -> Fetched:
        try:
            found = self._fetch(span.start, span.stop)
        except BaseException as failure:
            with self._lock:
                self._drop(span)
            # An interrupt concerns only the thread that received it.
            span.answer.set_exception(
                failure if isinstance(failure, Exception) else RuntimeError("interrupted")
            )
            raise
        span.answer.set_result(found)
        return found

    def _drop_if_used(self, span: _Span) -> None:
        """Release a span once all of its bytes have been requested."""
        with self._lock:
            if span.used >= span.stop - span.start:
                self._drop(span)

    def _find_covering(self, start: int, stop: int) -> _Span | None:
        for span in self._spans:
            if span.start <= start and stop <= span.stop:
                self._note_use(span.stop, stop - start)
                return span
        return None

    def _note_use(self, run_stop: int, used: int) -> None:
        for run in self._runs:
            if run.stop == run_stop:
                run.used += used

    def _plan_request(self, start: int, stop: int, now: float) -> _Span:
        """Plan a request for a range, extended by the bytes that will probably be requested next."""
        limits, wanted = self._limits, stop - start
        run = min(
            (run for run in self._runs if 0 <= start - run.stop <= limits.max_gap_bytes),
            key=lambda run: start - run.stop,
            default=None,
        )
        if run is None:
            self._runs = [*self._runs[-_MAX_RUNS + 1 :], _Run(stop, wanted, now)]
            return _Span(start, stop, 0)
        gap = start - run.stop
        run.used += wanted
        spare = min(limits.spare(run.used), max(limits.max_request_bytes - wanted, 0))
        if spare < gap or not spare or not self._kept.take(spare, limits.max_kept_bytes):
            run.stop, run.at = stop, now
            return _Span(start, stop, 0)
        span = _Span(run.stop, stop + spare - gap, spare)
        run.stop, run.at = span.stop, now
        return span

    def _forget_old(self, now: float) -> None:
        for span in [s for s in self._spans if s.answer.done() and now - s.used_at > _KEPT_S]:
            self._drop(span)
        self._runs = [run for run in self._runs if now - run.at <= _KEPT_S or self._is_live(run)]

    def _is_live(self, run: _Run) -> bool:
        return any(span.stop == run.stop for span in self._spans)

    def _drop(self, span: _Span) -> None:
        if span in self._spans:
            self._spans.remove(span)
            self._kept.free(span.kept)

    def close(self) -> None:
        """Release all bytes that were read ahead."""
        with self._lock:
            for span in list(self._spans):
                self._drop(span)

    def forget_old(self) -> None:
        """Release bytes that were read ahead but not requested in time."""
        with self._lock:
            self._forget_old(time.monotonic())
