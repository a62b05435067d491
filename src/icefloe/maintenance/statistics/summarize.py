"""Chunk statistics in columnar form, with one row per chunk: compute, combine and select them.

Missing values (NaN, NaT and the fill values that attributes declare) are counted, and excluded from all other
statistics. Sums of integers are exact, with 128 bits in two columns. Sums of floats and of scaled integers
are doubles. A non-finite sum marks a chunk that contains infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.maintenance.statistics.meaning import Meaning

_WORD: Final = 1 << 64
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Chunk statistics as columns: minima, maxima, counts and sums, with one row per chunk."""

    minimum: NDArray[Any]
    """The smallest stored value; 0 if all values are missing, or if the data type is not ordered."""
    maximum: NDArray[Any]
    nulls: NDArray[np.int64]
    """The number of missing values."""
    total: NDArray[np.float64]
    """The sum of the values; sums of integers are rounded to doubles."""
    high: NDArray[np.int64]
    """The upper half of the exact 128-bit sum of integers; otherwise 0."""
    low: NDArray[np.uint64]
    """The lower half of the exact 128-bit sum."""
    m2: NDArray[np.float64]
    """The sum of squared deviations from the mean."""

    def __len__(self) -> int:
        return len(self.nulls)

    def take(self, rows: Any) -> Self:
        """Return the statistics of some chunks, given by a mask, a slice or indices."""
        return type(self)(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The columns of chunk statistics, in the order of the fields."""
        return (self.minimum, self.maximum, self.nulls, self.total, self.high, self.low, self.m2)

    @classmethod
    def empty(cls, meaning: Meaning, count: int) -> Self:
        """Create chunk statistics in which all columns are zero."""
        extremes = meaning.extremes_dtype
        types = (extremes, extremes, np.int64, np.float64, np.int64, np.uint64, np.float64)
        return cls(*(np.zeros(count, each) for each in types))

    @classmethod
    def concat(cls, parts: Sequence[Statistics]) -> Self:
        """Concatenate chunk statistics that have the same meaning."""
        return cls(*(np.concatenate(each) for each in zip(*(part.columns for part in parts), strict=True)))


Row = tuple[Any, Any, int, float, int, float]
"""Minimum, maximum, missing values, sum, exact sum and squared deviations of one chunk."""


def to_statistics(rows: Sequence[Row], meaning: Meaning) -> Statistics:
    """Create columns of statistics from one row per chunk."""
    found = Statistics.empty(meaning, len(rows))
    for number, (low, high, nulls, total, exact, m2) in enumerate(rows):  # one iteration per decoded chunk
        found.minimum[number], found.maximum[number] = low, high
        found.nulls[number], found.total[number], found.m2[number] = nulls, total, m2
        found.high[number], found.low[number] = exact >> 64, exact % _WORD
    return found


def summarize(raw: NDArray[Any], meaning: Meaning) -> Row:
    """Compute the statistics of one chunk from its stored values."""
    coding = meaning.coding
    values = coding.view(raw)
    zero = np.zeros((), meaning.extremes_dtype)[()]
    if not coding.fills and values.dtype.kind == "f" and meaning.has_sums and values.size:
        found = _summarize_floats(values, meaning)
        if found is not None:
            return found
    missing = coding.find_missing(values)
    nulls = 0 if missing is None else int(missing.sum())
    if not meaning.has_extremes or nulls == values.size:
        return zero, zero, nulls, 0.0, 0, 0.0
    there = values.reshape(-1) if missing is None else values[~missing]
    low, high = there.min(), there.max()
    if not meaning.has_sums:
        return low, high, nulls, 0.0, 0, 0.0
    numbers = coding.unpack(there)
    exact = sum_exactly(there, int(low), int(high)) if meaning.is_integer else 0
    with np.errstate(all="ignore"):
        total = float(exact) if meaning.is_integer else float(numbers.sum(dtype=np.float64))
        m2 = _sum_squared_deviations(numbers, total / len(there))
    return low, high, nulls, total, exact, m2


def _summarize_floats(values: NDArray[Any], meaning: Meaning) -> Row | None:
    """Compute the statistics of floats without missing values. Return None if there may be missing values."""
    with np.errstate(all="ignore"):
        numbers = meaning.coding.unpack(values)
        total = float(numbers.sum(dtype=np.float64))
        if not np.isfinite(total):
            return None
        return values.min(), values.max(), 0, total, 0, _sum_squared_deviations(numbers, total / values.size)


def _sum_squared_deviations(numbers: NDArray[Any], mean: float) -> float:
    """Sum the squared deviations from the mean."""
    # Small parts fit into the processor cache. Processing the whole chunk at once takes twice as long.
    flat = numbers.reshape(-1)
    found = 0.0
    room = np.empty(min(len(flat), _PART), np.float64)
    for start in range(0, len(flat), _PART):
        part = flat[start : start + _PART]
        deviations = np.subtract(part, mean, out=room[: len(part)], dtype=np.float64)
        found += float(np.einsum("i,i->", deviations, deviations))  # `@` would start BLAS threads
    return found


_PART: Final = 1 << 14


def sum_exactly(values: NDArray[Any], low: int, high: int) -> int:
    """Sum integers between two bounds, without overflow."""
    if max(abs(low), abs(high)) * values.size < 1 << 62:
        return int(values.sum(dtype=np.int64))
    if values.dtype.kind == "u":
        wide = values.astype(np.uint64)
        upper = int((wide >> _HALF).sum(dtype=np.uint64))
        return (upper << 32) + int((wide & _LOW).sum(dtype=np.uint64))
    signed = values.astype(np.int64)
    upper = int((signed >> np.int64(32)).sum(dtype=np.int64))
    return (upper << 32) + int((signed & np.int64(_LOW)).sum(dtype=np.int64))


def to_floats(high: NDArray[np.int64], low: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Round 128-bit integers, given as columns of their halves, to doubles."""
    narrow = low.view(np.int64)
    # A small negative number is the difference of two large ones, in which a double loses all its digits.
    return np.where(high == narrow >> np.int64(63), narrow.astype(np.float64), high * 2.0**64 + low)


def join_halves(high: NDArray[np.int64], low: NDArray[np.uint64]) -> int:
    """Sum 128-bit integers, which are given as columns of their halves."""
    upper = sum_exactly(high, int(high.min(initial=0)), int(high.max(initial=0)))
    return upper * _WORD + sum_exactly(low, 0, int(low.max(initial=0)))


def repeat_value(meaning: Meaning, cells: NDArray[np.int64]) -> Statistics:
    """Return the statistics of chunks in which every cell has the fill value."""
    found = Statistics.empty(meaning, len(cells))
    value = np.array([meaning.fill_value], meaning.coding.stored)
    viewed = meaning.coding.view(value)
    if meaning.coding.find_missing(viewed) is not None:
        found.nulls[:] = cells
    elif meaning.has_extremes:
        found.minimum[:] = found.maximum[:] = viewed[0]
        if meaning.has_sums:
            found.total[:] = float(meaning.coding.unpack(viewed)[0]) * cells
        if meaning.is_integer:
            found.high[:], found.low[:] = _multiply(int(viewed[0]), cells)
    return found


def _multiply(value: int, cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Multiply counts by an integer exactly. This is fast because there are few distinct counts."""
    distinct, where = np.unique(cells, return_inverse=True)
    products = [value * each for each in distinct.tolist()]
    high = np.array([each >> 64 for each in products], np.int64)
    low = np.array([each % _WORD for each in products], np.uint64)
    return high[where], low[where]
