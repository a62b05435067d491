"""Decode the stored values of an array like xarray, and choose the type of its column.

Fill values and NaN become null. Types that Spark lacks are widened: see docs/reference/tables.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.cf import TimeCoding, ValueCoding, find_value_coding, is_elapsed
from icefloe.errors import ErrorKind, InvalidInputError

Values = NDArray[Any]
Mask = NDArray[np.bool_]

WIDENED: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "float16": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "complex64": pa.struct([("real", pa.float32()), ("imag", pa.float32())]),
    "complex128": pa.struct([("real", pa.float64()), ("imag", pa.float64())]),
}
_BY_KIND: Final = {"U": pa.string(), "T": pa.string(), "S": pa.binary(), "V": pa.binary()}
TIMESTAMP: Final = pa.timestamp("us")
INTERVAL: Final = pa.duration("us")


@dataclass(frozen=True, slots=True)
class Coding(ValueCoding):
    """The decoding of an array in a query: how its stored values become a column of a table."""

    arrow: pa.DataType = field(kw_only=True)
    """The Arrow type of the column."""

    def decode(self, raw: Values) -> tuple[Values, Mask | None]:
        """Decode stored values. Also return a mask of missing values, or None if no value is missing."""
        viewed = self.view(raw)
        return self.decode_viewed(viewed), self.find_missing(viewed)

    def decode_viewed(self, viewed: Values) -> Values:
        """Decode stored values of an array whose dtype already has the signedness that the attributes
        declare.
        """
        if self.times is not None:
            return self._decode_times(viewed, self.times)
        if viewed.dtype.kind in "mM":
            return viewed.astype(f"{viewed.dtype.kind}8[us]")
        return self.unpack(viewed)

    def _decode_times(self, raw: Values, times: TimeCoding) -> Values:
        since = times.microseconds(raw)
        if self.arrow == pa.string():
            return times.texts(since)
        return since.view("m8[us]" if self.arrow == INTERVAL else "M8[us]")

    def fit_values(self, raw: Values) -> Coding:
        """Return a decoding that can represent the given values.

        Times before 1582 become text, because Spark cannot represent them.
        """
        if self.times is None or self.arrow != TIMESTAMP:
            return self
        missing = self.find_missing(self.view(raw))
        since = self.times.microseconds(raw if missing is None else raw[~missing])
        return self if self.times.is_timestamp(since) else replace(self, arrow=pa.string())

    def to_column(self, raw: Values) -> pa.Array:
        """Decode one-dimensional stored values to an Arrow array, the column of a table."""
        return to_arrow(*self.decode(raw), self.arrow)


def is_number(arrow: pa.DataType) -> bool:
    """Return whether the Arrow type of a decoded column is an integer or a float."""
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow))


def to_arrow(values: Values, missing: Mask | None, arrow: pa.DataType) -> pa.Array:
    """Convert one-dimensional decoded values to an Arrow array of the given type."""
    kind = values.dtype.kind
    if kind == "c":
        parts = [pa.array(np.ascontiguousarray(part)) for part in (values.real, values.imag)]
        mask = None if missing is None else pa.array(missing)
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=mask)
    if kind in "UTSVO":
        return pa.array(values.astype(object), type=arrow, mask=missing)
    if values.dtype == np.uint64:
        return pa.array(values, mask=missing).cast(arrow)
    if kind in "fiu":
        values = values.astype(arrow.to_pandas_dtype(), copy=False)
    return pa.array(values, type=arrow, mask=missing)


def find_coding(stored: np.dtype[Any], attributes: Mapping[str, Any], name: str) -> Coding:
    """Choose how to decode an array for queries, from its dtype and attributes."""
    values = find_value_coding(stored, attributes)
    if values.times is not None:
        arrow = TIMESTAMP if values.times.has_timestamps else pa.string()
        if is_elapsed(values.effective, attributes):
            arrow = INTERVAL
    elif values.is_scaled:
        arrow = pa.float64()
    else:
        arrow = _find_arrow_type(values.effective, name)
    return Coding(**{each.name: getattr(values, each.name) for each in fields(values)}, arrow=arrow)


def _find_arrow_type(dtype: np.dtype[Any], name: str) -> pa.DataType:
    found = WIDENED.get(dtype.name) or _BY_KIND.get(dtype.kind)
    if dtype.kind == "M":
        found = TIMESTAMP
    if dtype.kind == "m":
        found = INTERVAL
    if found is None or dtype.fields:
        raise InvalidInputError(
            f"{name} has the data type {dtype}, which no column can represent; exclude it with the option"
            " variables",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    return found
