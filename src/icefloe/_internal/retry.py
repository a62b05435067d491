"""Retry an operation with exponential backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

_MAX_STEPS = 20


def iterate_attempts(
    tries: int, first_pause_s: float, longest_pause_s: float, *, factor: int = 2, immediate: int = 0
) -> Iterator[int]:
    """Yield attempt numbers for retrying an operation, starting at 0, with exponential backoff in between.

    Parameters
    ----------
    tries
        The number of attempts.
    first_pause_s, longest_pause_s
        The first and the longest backoff. Each is multiplied by a random factor between 0.5 and 1, so that
        processes that failed together do not retry together.
    factor
        The factor by which the backoff grows.
    immediate
        The number of retries without backoff.
    """
    for attempt in range(tries):
        if attempt > immediate:
            pause_s = first_pause_s * factor ** min(attempt - immediate - 1, _MAX_STEPS)
            time.sleep(random.uniform(0.5, 1) * min(pause_s, longest_pause_s))
        yield attempt
