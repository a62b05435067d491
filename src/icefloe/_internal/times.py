"""Convert between stored times, in microseconds since 1970-01-01 UTC, and datetimes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from numpy.typing import NDArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def from_microseconds(since_1970: int) -> datetime:
    """Convert a stored time, in microseconds since 1970-01-01 UTC, to a datetime."""
    return _EPOCH + timedelta(microseconds=since_1970)


def to_datetimes(since_1970: NDArray[Any]) -> Iterator[datetime]:
    """Convert a column of times in microseconds since 1970-01-01 UTC to datetimes."""
    return map(_EPOCH.__add__, since_1970.astype("m8[us]").tolist())


def to_microseconds(time: datetime) -> int:
    """Convert a datetime to microseconds since 1970-01-01 UTC; raise TypeError if it has no time zone."""
    return (require_time_zone(time) - _EPOCH) // timedelta(microseconds=1)


def require_time_zone(time: datetime) -> datetime:
    """Return a datetime unchanged if it has a time zone; raise TypeError otherwise."""
    if not isinstance(time, datetime):
        raise TypeError(f"expected a datetime, not {type(time).__name__}")
    if time.tzinfo is None:
        raise TypeError("expected a datetime with non-None tzinfo")
    return time
