"""Encode table columns as array values, and convert coordinates to lookup keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from icefloe.cf import NO_TIME
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import INTERVAL, Coding, Values


def make_invalid_rows_error(sentence: str) -> InvalidInputError:
    """Create the error for rows that cannot be encoded as array values."""
    return InvalidInputError(sentence, kind=ErrorKind.INVALID_ARRAY_METADATA)


def to_keys(column: pa.Array, name: str) -> Values:
    """Convert a coordinate column to lookup keys: integers, floats or strings.

    Times become microseconds since 1970.
    """
    if column.null_count:
        raise make_invalid_rows_error(
            f"{column.null_count} rows have no {name}; drop rows without coordinates"
        )
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return np.asarray(_to_microseconds(column))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), object)
    if pa.types.is_decimal(kind):  # Spark parses 45.5 as a decimal
        number = pa.float64() if kind.scale > 0 else pa.int64()
        return np.asarray(column.cast(number).to_numpy(zero_copy_only=False))
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            raise make_invalid_rows_error(f"a row has NaN for {name}; drop rows without coordinates")
        return values
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    raise make_invalid_rows_error(f"column {name} has type {kind}, which cannot be a coordinate")


def _to_microseconds(column: pa.Array) -> Values:
    """Convert a date or timestamp column to microseconds since 1970, in UTC."""
    if pa.types.is_date(column.type):
        return np.asarray(column.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False), np.int64) * (
            86400 * 10**6
        )
    plain = column.cast(pa.timestamp("us", tz=column.type.tz)) if column.type.unit != "us" else column
    return np.asarray(plain.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def encode_values(column: pa.Array, coding: Coding, name: str) -> Values:
    """Encode a table column the way the array stores its values. Nulls become the fill value."""
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    stored = coding.stored
    try:
        values = _encode(column, coding, name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError) as error:
        raise make_invalid_rows_error(
            f"{name} cannot hold the values of a column of type {column.type}: {error}"
        ) from None
    if missing.any():
        values = values.copy()
        values[missing] = _find_fill(coding, name)
    if stored.kind in "iu" and values.dtype != stored:
        low, high = np.iinfo(stored).min, np.iinfo(stored).max
        if ((values < low) | (values > high)).any():
            raise make_invalid_rows_error(
                f"a value of {name} is outside the range of its type {stored}: {low} to {high}"
            )
    return values.astype(stored)


def _encode(column: pa.Array, coding: Coding, name: str) -> Values:
    kind = coding.stored.kind
    if coding.times is not None and coding.arrow != INTERVAL:
        if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
            raise ValueError("it stores times")
        return coding.times.numbers(_to_microseconds(column), coding.stored)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        raise ValueError("it does not store times")
    if kind in "UT":
        return np.array(column.cast(pa.string()).fill_null("").to_pylist(), object)
    if kind == "S":
        return np.array(column.cast(pa.binary()).fill_null(b"").to_pylist(), object)
    if kind not in "iufb":
        raise ValueError(f"rows cannot be written to arrays of type {coding.stored}")
    if coding.is_scaled:
        return _pack(column, coding)
    if kind == "f":
        return np.asarray(column.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False))
    if kind == "b" or (coding.view_as is not None and coding.view_as.kind == "b"):
        return np.asarray(column.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False))
    whole = column.cast(pa.uint64() if coding.stored == np.uint64 else pa.int64())  # raises for fractions
    values = np.asarray(whole.fill_null(0).to_numpy(zero_copy_only=False))
    if coding.view_as is not None:
        return values.astype(coding.view_as).view(coding.stored)
    return values


def _pack(column: pa.Array, coding: Coding) -> Values:
    values = np.asarray(column.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False))
    values = (values - (coding.offset or 0.0)) / (1.0 if coding.scale is None else coding.scale)
    if coding.stored.kind == "f":
        return values
    if not np.isfinite(values).all():
        raise ValueError("NaN and infinity cannot be packed; use null")
    return np.rint(values).astype(np.int64)


def _find_fill(coding: Coding, name: str) -> Any:
    if coding.fills:
        return coding.fills[0]
    if coding.stored.kind == "f":
        return np.nan
    if coding.times is not None and coding.stored == np.int64:
        return NO_TIME
    raise make_invalid_rows_error(
        f"{name} has no fill value for null; drop rows with null, or create it with the option fillValue"
    )


def merge_keys(parts: list[Values]) -> Values:
    """Merge lists of encoded coordinate keys into one sorted list without duplicates."""
    full = [part for part in parts if len(part)] or parts  # an empty part may have a different dtype
    whole = np.concatenate(full) if full else np.zeros(0)
    return np.array(sorted(set(whole.tolist())), object) if whole.dtype == object else np.unique(whole)
