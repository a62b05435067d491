"""Combine the moments that the tasks of an aggregation return, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.query.decode import Values
from icefloe.query.scan.moments import WIDE_SUM, Moment
from icefloe.query.scan.reduce import Aggregation, reduce_partition
from icefloe.session import Session

_THREADS: Final = 4


def collect_moments(session: Session, aggregation: Aggregation) -> tuple[pa.Table, dict[Moment, Values]]:
    """Collect the results of a local aggregation: a table with the keys of groups, and a value per group and
    moment.

    Without keys there is exactly one group, even if it has no cells.
    """
    tasks = range(aggregation.tasks)
    with ThreadPoolExecutor(_THREADS, "icefloe-moments") as pool:
        parts = list(pool.map(lambda number: list(reduce_partition(session, aggregation, number)), tasks))
    batches = [batch for part in parts for batch in part]
    found = pa.Table.from_batches(batches, aggregation.partial_schema).combine_chunks()
    count = len(aggregation.keys)
    keys = found.select(range(count))
    groups, numbers = _number_groups(keys)
    total = len(groups) if count else 1
    moments = {
        moment: _combine(moment, found.column(count + at), numbers, total)
        for at, moment in enumerate(aggregation.moments)
    }
    return keys.take(pa.array(groups)), moments


def _number_groups(keys: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal rows of a table. Return the first row of each group, and the group number of each row."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        mine = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * (int(mine.max(initial=0)) + 1) + mine, return_inverse=True)
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)  # groups in the order in which they appear
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return first[order], ranks[numbers.reshape(-1)]


def _combine(moment: Moment, column: pa.ChunkedArray, numbers: NDArray[np.int64], total: int) -> Values:
    valid = ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_) if len(column) else None
    if moment.arrow == WIDE_SUM:
        sums = np.zeros(total, object)
        for number, value in zip(numbers.tolist(), column.to_pylist(), strict=True):  # one per group and task
            sums[number] += 0 if value is None else int(value)
        return sums
    values = column.to_numpy() if not column.null_count else _fill(column)
    found = np.zeros(total, values.dtype)
    if valid is None:
        return found
    order = np.argsort(numbers[valid], kind="stable")
    ordered, kept = numbers[valid][order], values[valid][order]
    if not len(ordered):
        return found
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    operation: Any = {"min": np.minimum, "max": np.maximum}.get(moment.name, np.add)
    found[ordered[starts]] = operation.reduceat(kept, starts)
    return found


def _fill(column: pa.ChunkedArray) -> Values:
    """Convert a column to numpy. Nulls become zeros."""
    zero = pa.scalar(0, pa.int64()).cast(column.type) if not pa.types.is_floating(column.type) else 0.0
    return np.asarray(column.fill_null(zero).to_numpy())


def index_moments(moments: Mapping[Moment, Values]) -> dict[tuple[str, str], Values]:
    """Return the results of a local aggregation by the names of the variable and of the moment."""
    return {(moment.variable, moment.name): values for moment, values in moments.items()}
