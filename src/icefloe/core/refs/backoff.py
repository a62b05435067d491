"""Exponential backoff for changes that lost a race against another writer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from icefloe._internal import retry
from icefloe.config import EffectiveConfig
from icefloe.errors import ConflictError, ErrorKind

_IMMEDIATE_TRIES: Final = 5
_MAX_DOUBLINGS: Final = 7
_LONGEST_PAUSE_S: Final = 15.0
"""The maximum backoff in seconds. With a hundred writers and 60 ms per request, most attempts fail if it is
shorter, and the storage is idle if it is longer.
"""


def give_way(losses: int, took_s: float) -> None:
    """Back off for a random time after losing a race against another writer, and longer after repeated
    losses.

    Without backoff, all losers would try again at the same time, and all but one would lose again. The
    backoff grows with the duration of an attempt, so that another writer can finish in the meantime.
    """
    time.sleep(random.uniform(0, min(took_s * 2 ** min(losses, _MAX_DOUBLINGS), _LONGEST_PAUSE_S)))


def retry_conflicts(config: EffectiveConfig) -> Iterator[int]:
    """Iterate over the attempts to change a ref, with backoff between them; raise ConflictError after the
    last attempt.

    The first retries follow immediately, later ones after increasing backoff, as configured by
    `repo_update_retries`.
    """
    yield from retry.iterate_attempts(
        config.update_max_tries,
        2 * config.update_initial_backoff_ms / 1000,
        config.update_max_backoff_ms / 1000,
        immediate=_IMMEDIATE_TRIES,
    )
    raise ConflictError(
        message=f"other writers changed the repository in all {config.update_max_tries} attempts; try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )
