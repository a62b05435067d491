"""Retry an operation with exponential backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

_MAX_STEPS = 20


def iterate_attempts(
    tries: int, first_pause_s: float, longest_pause_s: float, *, factor: int = 2, immediate: int = 0
) -> Iterator[int]:
    """Yield the number of each attempt to retry an operation, starting at 0, after its backoff pause.

    Parameters
    ----------
    tries
        The number of attempts.
    first_pause_s, longest_pause_s
        The first and the longest pause. Each pause is shortened by a random factor between 0.5 and 1, so that
        processes that failed together do not retry together.
    factor
        The ratio of consecutive pauses.
    immediate
        The number of retries without a pause.
    """
    for attempt in range(tries):
        if attempt > immediate:
            pause_s = first_pause_s * factor ** min(attempt - immediate - 1, _MAX_STEPS)
            time.sleep(random.uniform(0.5, 1) * min(pause_s, longest_pause_s))
        yield attempt
