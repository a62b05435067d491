"""Describe the values of arrays: cells, missing values, min, max, mean and standard deviation.

Only chunks without statistics are read, on an executor. Nothing is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor
from icefloe._internal.report import Report
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.maintenance.statistics.collect import read_statistics
from icefloe.maintenance.statistics.lookup import ChunkStatistics, find_statistics, list_chunks
from icefloe.maintenance.statistics.meaning import Meaning
from icefloe.maintenance.statistics.summarize import Statistics, join_halves
from icefloe.session import Session

_OUTLYING: Final = 5.0
"""How many standard deviations from the earlier mean a new minimum or maximum must be to be flagged."""


@dataclass(frozen=True, slots=True)
class Description(Report):
    """Summary statistics of an array. Missing values are skipped, as in xarray."""

    path: str
    """Path of the array."""
    dtype: str
    """Data type of the stored values."""
    cells: int
    """Number of cells."""
    missing: int
    """The number of missing values."""
    minimum: Any
    """Smallest value; None if all values are missing. Times are formatted as text."""
    mean: float | None
    """Mean; None for non-numeric arrays."""
    maximum: Any
    """Largest value; None if all values are missing."""
    std: float | None
    """Population standard deviation, as in numpy and xarray."""
    chunks: int
    """Number of chunks in the grid."""
    chunks_read: int
    """Number of chunks that were read because they had no statistics."""


def describe_array(
    session: Session, path: str, executor: Executor, *, statistics: bool = True
) -> Description:
    """Compute summary statistics of an array. Without `statistics`, read all of its chunks."""
    found = complete_statistics(session, path, executor, use_files=statistics)
    if found is None:
        return _describe_without_chunks(session, path)
    chunks, read = found
    meaning, cells = chunks.meaning, int(chunks.cells.sum())
    missing = int(chunks.rows.nulls.sum())
    low, high = find_extremes(chunks)
    mean, std = compute_moments(chunks)
    dtype = str(meaning.coding.stored)
    return Description(path, dtype, cells, missing, low, mean, high, std, len(chunks.cells), read)


def complete_statistics(
    session: Session, path: str, executor: Executor, *, use_files: bool = True
) -> tuple[ChunkStatistics, int] | None:
    """Load the statistics of an array, read the chunks that have none, and return how many were read.

    Return None if the array has no chunks, or if its data type has no statistics.
    """
    chunks = list_chunks(session, path)
    if chunks is None:
        return None
    found = find_statistics(session, chunks, use_files=use_files)
    lacking = np.flatnonzero(~found.known)
    for rows, numbers in read_statistics(session, chunks, lacking, executor):
        for column, other in zip(found.rows.columns, rows.statistics.columns, strict=True):
            column[numbers] = other
        found.known[numbers] = True
    return found, len(lacking)


def find_extremes(found: ChunkStatistics) -> tuple[Any, Any]:
    """Return the decoded minimum and maximum of an array from its chunk statistics, or None if none are
    known.
    """
    meaning, rows = found.meaning, found.rows
    there = found.known & (rows.nulls < found.cells)
    if not meaning.has_extremes or not there.any():
        return None, None
    pair = np.array([rows.minimum[there].min(), rows.maximum[there].max()], meaning.coding.effective)
    low, high = decode_extremes(meaning, pair)
    return low, high


def decode_extremes(meaning: Meaning, pair: NDArray[Any]) -> tuple[Any, Any]:
    """Decode a stored minimum and maximum. A negative scale factor swaps them."""
    if meaning.coding.times is not None:
        first, last = meaning.coding.times.texts(meaning.coding.times.microseconds(pair)).tolist()
        return first, last
    if pair.dtype.kind in "mM":
        first, last = map(str, pair)
        return first, last
    low, high = sorted(meaning.coding.unpack(pair).tolist())
    return low, high


def compute_moments(found: ChunkStatistics) -> tuple[float | None, float | None]:
    """Compute mean and standard deviation from chunk statistics; None for non-numeric types."""
    if not found.meaning.has_sums:
        return None, None
    counts = np.where(found.known, found.cells - found.rows.nulls, 0)
    count = int(counts.sum())
    if not count:
        return None, None
    mean = sum_values(found.rows.take(found.known), found.meaning) / count
    with np.errstate(all="ignore"):
        rows, there = found.rows, counts > 0
        m2 = combine_deviations(rows.total[there], rows.m2[there], counts[there], mean)
    return float(mean), math.sqrt(m2 / count) if m2 >= 0 else math.nan


def sum_values(rows: Statistics, meaning: Meaning) -> float | int:
    """Sum the values of an array from its chunk statistics. Sums of integers are exact."""
    if meaning.is_integer:
        return join_halves(rows.high, rows.low)
    return math.fsum(rows.total.tolist()) if bool(np.isfinite(rows.total).all()) else float(rows.total.sum())


def combine_deviations(
    totals: NDArray[np.float64], m2: NDArray[np.float64], counts: NDArray[np.int64], mean: float
) -> float:
    """Combine the chunks' squared deviations from their own means into deviations from the overall mean."""
    between = totals / counts - mean
    return float(m2.sum() + (counts * between * between).sum())


def _describe_without_chunks(session: Session, path: str) -> Description:
    """Describe an array that is empty or whose data type has no statistics."""
    import zarr

    array: Any = zarr.open_array(session.store, path=path, mode="r")
    if array.size and array.dtype.kind not in "V":
        raise InvalidInputError(
            f"{path} has too many chunks for a description", kind=ErrorKind.INVALID_ARRAY_METADATA
        )
    return Description(path, str(array.dtype), int(array.size), 0, None, None, None, None, 0, 0)


@dataclass(frozen=True, slots=True)
class Shift(Report):
    """How the distribution of an array's values shifted between two versions."""

    path: str
    """Path of the array."""
    before: Description | None
    """The array in the first version; None if it does not exist there."""
    after: Description | None
    """The array in the second version; None if it does not exist there."""

    @property
    def shift(self) -> float | None:
        """The difference of the means of the two versions, in standard deviations of the first version."""
        if self.before is None or self.after is None or self.before.mean is None or self.after.mean is None:
            return None
        moved = self.after.mean - self.before.mean
        if not self.before.std:
            return 0.0 if moved == 0 else math.copysign(math.inf, moved)
        return moved / self.before.std

    @property
    def outliers(self) -> tuple[str, ...]:
        """Describe a minimum or maximum of the second version that lies far outside the first, as short
        texts.
        """
        before, after = self.before, self.after
        if before is None or after is None or before.mean is None or before.std is None or after.mean is None:
            return ()
        found = []
        for name, value, is_new in (
            ("minimum", after.minimum, after.minimum < before.minimum),
            ("maximum", after.maximum, after.maximum > before.maximum),
        ):
            distance = abs(value - before.mean)
            if is_new and distance > _OUTLYING * before.std:
                times = f"{distance / before.std:.1f}" if before.std else "many"
                found.append(f"{name} {value:g} is {times} standard deviations from the earlier mean")
        return tuple(found)


def compare_arrays(before: Session, after: Session, path: str, executor: Executor) -> Shift | None:
    """Compare the distribution of an array's values in two versions. Return None if all chunks are the
    same.
    """
    sides = [_has_array(session, path) for session in (before, after)]
    if all(sides):
        one, two = (list_chunks(session, path) for session in (before, after))
        if (
            one is not None
            and two is not None
            and one.meaning.digest == two.meaning.digest
            and one.grid.shape == two.grid.shape
            and np.array_equal(one.numbers, two.numbers)
            and np.array_equal(one.keys, two.keys)
        ):
            return None
    found = [
        describe_array(session, path, executor) if there else None
        for session, there in zip((before, after), sides, strict=True)
    ]
    return Shift(path, *found)


def _has_array(session: Session, path: str) -> bool:
    return session._workspace.node(path) is not None
