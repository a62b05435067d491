"""Compare a writer's clock with the storage's clock before storing a time.

Times in a history must increase. A writer whose clock is ahead would store a future time, and the official
library would reject all other writers until that time is reached. Such a writer is therefore rejected. If a
future time was stored nevertheless, writers with correct clocks continue with times right after it.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from icefloe._internal.times import to_microseconds
from icefloe.errors import ErrorKind, FormatError, StorageError
from icefloe.storage.base import Storage

DRIFT_US: Final = 600_000_000
"""The tolerated clock difference. The clock is checked only if it differs from the newest stored time by more
than this.
"""


def get_time_us() -> int:
    """Return the current time of this machine, in microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1000


def check_clock(storage: Storage, written: str, newest_us: int) -> None:
    """Raise an error if this machine's clock differs too much from the storage's clock.

    Parameters
    ----------
    storage
        The storage of the repository.
    written
        An object that this writer has just written.
    newest_us
        The time of the newest change in the repository.
    """
    if abs(get_time_us() - newest_us) <= DRIFT_US:
        return
    try:
        storage_time = storage.clock(written)
    except StorageError:
        return
    if storage_time is None:
        return
    storage_us, own_us = to_microseconds(storage_time), get_time_us()
    is_usable = own_us < newest_us or storage_us > newest_us - DRIFT_US
    if own_us - storage_us > DRIFT_US and is_usable:
        raise _make_wrong_clock_error(own_us - storage_us, "ahead of", storage)
    if own_us < newest_us - DRIFT_US:
        if storage_us - own_us > DRIFT_US:
            raise _make_wrong_clock_error(storage_us - own_us, "behind", storage)
        logging.getLogger(__name__).warning(
            "the newest change of the repository is %d s in the future, because the clock of its writer was "
            "wrong; this change gets a time right after it",
            (newest_us - own_us) // 1_000_000,
        )


def _make_wrong_clock_error(difference_us: int, word: str, storage: Storage) -> FormatError:
    return FormatError(
        f"the clock of this machine is {difference_us // 1_000_000} s {word} that of {storage.place}; "
        "correct it (with NTP, for example) and try again",
        kind=ErrorKind.SNAPSHOT_TIMESTAMP,
    )
