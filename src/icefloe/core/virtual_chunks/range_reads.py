"""Many small reads of one file, as few requests.

Zarr asks for chunks one by one, a few at a time, and nobody tells what it will ask for next. So each file
remembers where reads ended lately. A read that goes on there fetches more than was asked for, at most as much
as the reads before it used, and those that follow find their bytes here or on their way. Nothing waits for
others to come: a read that is alone goes out at once and for just its bytes.
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
"""Bytes that nobody asked for are forgotten after this time, and so is where reads ended."""
_RUNS: Final = 16
"""So many places where reads ended are remembered per file: of several variables, or several readers."""

Fetch = Callable[[int, int], Fetched]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How far reads of one file are joined."""

    max_gap_bytes: int = 64 * 1024
    """Reads with no more than this between them may become one request."""
    max_waste: float = 0.5
    """At most this share of the bytes of joined requests may be such that nobody asked for. 0 joins nothing
    but what is adjacent, and reads nothing ahead."""
    max_request_bytes: int = 2 * 1024 * 1024
    """Requests are not made longer than this by joining reads; a single read may well be."""
    max_kept_bytes: int = 64 * 1024 * 1024
    """So much is kept that was read ahead, of all files together."""

    def spare(self, used_bytes: int) -> int:
        """How many bytes nobody asked for may come with so many that somebody did."""
        share = min(max(self.max_waste, 0.0), 0.99)
        return int(used_bytes * share / (1 - share))


class KeptBytes:
    """How much was read ahead, of all files of a reader. Safe for many threads."""

    def __init__(self) -> None:
        self._held = 0
        self._lock = fork_safe_lock()

    def take(self, count: int, limit: int) -> bool:
        """Set room aside, if there is some within a limit."""
        with self._lock:
            if self._held + count > limit:
                return False
            self._held += count
            return True

    def free(self, count: int) -> None:
        """Give room back."""
        with self._lock:
            self._held -= count


@dataclass(eq=False, slots=True)
class _Span:
    """A request, under way or answered."""

    start: int
    stop: int
    kept: int
    """Room set aside for it."""
    answer: Future[Fetched] = field(default_factory=Future)
    used: int = 0
    used_at: float = 0.0


@dataclass(eq=False, slots=True)
class _Run:
    """Reads that follow each other."""

    stop: int
    used: int
    at: float


class RangeReader:
    """Ranges of one file in one version. Safe for many threads."""

    def __init__(self, fetch: Fetch, limits: ReadLimits, kept: KeptBytes) -> None:
        self._fetch = fetch
        self._limits = limits
        self._kept = kept
        self._lock = fork_safe_lock()
        self._spans: list[_Span] = []
        self._runs: list[_Run] = []

    def read(self, start: int, stop: int) -> Fetched:
        """Bytes `start` to `stop`, or fewer where the file ends, with what was told of the file."""
        with self._lock:
            now = time.monotonic()
            self._forget_old(now)
            span = self._covering(start, stop)
            mine = span is None
            if span is None:
                span = self._planned(start, stop, now)
                self._spans.append(span)
            span.used += stop - start
            span.used_at = now
        if mine:
            found = self._answered(span)
        else:
            if span.answer.exception() is not None:
                return self._fetch(start, stop)  # another reader's request failed; ours may not
            found = span.answer.result()
        self._settle(span)
        first = start - span.start
        return Fetched(
            found.data[first : first + stop - start], found.size_bytes, found.e_tag, found.last_modified
        )

    def _answered(self, span: _Span) -> Fetched:
        try:
            found = self._fetch(span.start, span.stop)
        except BaseException as failure:
            with self._lock:
                self._drop(span)
            # An interrupt is meant for the thread that got it alone.
            span.answer.set_exception(failure if isinstance(failure, Exception) else RuntimeError("given up"))
            raise
        span.answer.set_result(found)
        return found

    def _settle(self, span: _Span) -> None:
        """Let go of a span whose bytes were all asked for."""
        with self._lock:
            if span.used >= span.stop - span.start:
                self._drop(span)

    def _covering(self, start: int, stop: int) -> _Span | None:
        for span in self._spans:
            if span.start <= start and stop <= span.stop:
                self._note_use(span.stop, stop - start)
                return span
        return None

    def _note_use(self, run_stop: int, used: int) -> None:
        for run in self._runs:
            if run.stop == run_stop:
                run.used += used

    def _planned(self, start: int, stop: int, now: float) -> _Span:
        """A request for a range, and for what will likely be asked for next."""
        limits, wanted = self._limits, stop - start
        run = min(
            (run for run in self._runs if 0 <= start - run.stop <= limits.max_gap_bytes),
            key=lambda run: start - run.stop,
            default=None,
        )
        if run is None:
            self._runs = [*self._runs[-_RUNS + 1 :], _Run(stop, wanted, now)]
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
        self._runs = [run for run in self._runs if now - run.at <= _KEPT_S or self._live(run)]

    def _live(self, run: _Run) -> bool:
        return any(span.stop == run.stop for span in self._spans)

    def _drop(self, span: _Span) -> None:
        if span in self._spans:
            self._spans.remove(span)
            self._kept.free(span.kept)

    def close(self) -> None:
        """Let go of all that was read ahead."""
        with self._lock:
            for span in list(self._spans):
                self._drop(span)

    def forget_old(self) -> None:
        """Let go of what was read ahead and not asked for in time."""
        with self._lock:
            self._forget_old(time.monotonic())
