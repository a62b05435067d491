"""Combine the moments returned by aggregation tasks, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.query.decode import Values, unwrap_numbers, wrap_numbers
from icefloe.query.scan.moments import WIDE_SUM, Moment
from icefloe.query.scan.reduce import Aggregation, reduce_partition
from icefloe.session import Session

_THREADS: Final = 4


def collect_moments(session: Session, aggregation: Aggregation) -> tuple[pa.Table, dict[Moment, Values]]:
    """Run an aggregation locally. Return a table of group keys, and the values of each moment per group.

    Without keys, there is exactly one group, even if it has no cells.
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
    return keys.take(wrap_numbers(groups, pa.int64())), moments


def _number_groups(keys: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal rows of a table. Return the first row of each group in ascending order, and
    the group number of each row."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        mine = unwrap_numbers(encoded.indices)[0].astype(np.int64)
        _, codes = np.unique(codes * (int(mine.max(initial=0)) + 1) + mine, return_inverse=True)
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    # The order in which groups appear depends on which chunks are resolved from statistics.
    named = keys.take(wrap_numbers(first, pa.int64())).rename_columns(list(map(str, range(keys.num_columns))))
    by = [(name, "ascending") for name in named.column_names]
    order = unwrap_numbers(pc.sort_indices(named, by))[0] if by else np.arange(len(first))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return first[order], ranks[numbers.reshape(-1)]


def _combine(moment: Moment, column: pa.ChunkedArray, numbers: NDArray[np.int64], total: int) -> Values:
    if moment.arrow == WIDE_SUM:
        sums = np.zeros(total, object)
        for number, value in zip(numbers.tolist(), column.to_pylist(), strict=True):  # one per group and task
            sums[number] += 0 if value is None else int(value)
        return sums
    values, missing = unwrap_numbers(column.combine_chunks())
    found = np.zeros(total, values.dtype)
    if missing is not None:
        numbers, values = numbers[~missing], values[~missing]
    order = np.argsort(numbers, kind="stable")
    ordered, kept = numbers[order], values[order]
    if not len(ordered):
        return found
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    operation: Any = {"min": np.minimum, "max": np.maximum}.get(moment.name, np.add)
    found[ordered[starts]] = operation.reduceat(kept, starts)
    return found


def index_moments(moments: Mapping[Moment, Values]) -> dict[tuple[str, str], Values]:
    """Return moments keyed by variable name and moment name."""
    return {(moment.variable, moment.name): values for moment, values in moments.items()}


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert a query result to rows of Python values, for the command line.

    Times that Python cannot represent, or that have fractional seconds, become strings.
    """
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            columns.append(_format_times(column))
        else:
            columns.append(column.to_pylist())
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _format_times(column: pa.ChunkedArray) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
        if not any(each.microsecond for each in found if each is not None):
            return found
    except OverflowError:  # a year before 1 or after 9999
        pass
    texts: list[str] = np.datetime_as_string(column.to_numpy()).tolist()
    return [None if text == "NaT" else text for text in texts]
