"""The pauses between attempts of an operation that may succeed when it is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

_MOST_STEPS = 20


def attempts(
    tries: int, first_pause_s: float, longest_pause_s: float, *, factor: int = 2, immediate: int = 0
) -> Iterator[int]:
    """Yield the number of each attempt, from 0, when it is due.

    Parameters
    ----------
    tries
        The number of attempts.
    first_pause_s, longest_pause_s
        The first pause, and the bound for all. A pause takes between half of its time and all of it, so that
        those who failed together do not come back together.
    factor
        How much longer each pause is than the one before.
    immediate
        The number of repetitions without a pause.
    """
    for attempt in range(tries):
        if attempt > immediate:
            pause_s = first_pause_s * factor ** min(attempt - immediate - 1, _MOST_STEPS)
            time.sleep(random.uniform(0.5, 1) * min(pause_s, longest_pause_s))
        yield attempt
