"""How long to wait before a change that lost to another writer is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from icefloe._internal import retry
from icefloe.config import EffectiveConfig
from icefloe.errors import ConflictError, ErrorKind

_IMMEDIATE_TRIES: Final = 5
_MOST_DOUBLINGS: Final = 4
_LONGEST_PAUSE_S: Final = 1.0


def give_way(losses: int, took_s: float) -> None:
    """Wait a random while after a commit lost to others, longer the more often it did.

    Many who lost together would else come back together, and all but one of them in vain. What an attempt
    takes is the measure: whoever waits about as long as others need lets one of them through.
    """
    time.sleep(random.uniform(0, min(took_s * 2 ** min(losses, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)))


def attempts(config: EffectiveConfig) -> Iterator[int]:
    """The numbers of the attempts, each given when it is due; ConflictError when there are no more.

    A few follow at once, the others after growing pauses, by `repo_update_retries` of the configuration.
    """
    yield from retry.attempts(
        config.update_max_tries,
        2 * config.update_initial_backoff_ms / 1000,
        config.update_max_backoff_ms / 1000,
        immediate=_IMMEDIATE_TRIES,
    )
    raise ConflictError(
        message=f"others changed the repository {config.update_max_tries} times over; try again",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )
