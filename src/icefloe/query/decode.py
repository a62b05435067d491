"""Decode stored array values as xarray does, and choose an Arrow type for the column.

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
_COARSE: Final = frozenset(("Y", "M", "W", "D", "h", "m", "s", "ms"))
"""The numpy time units coarser than a microsecond."""
_MAX_MICROSECONDS: Final = np.iinfo(np.int64).max - 400 * 86_400_000_000
"""The largest number of microseconds for which numpy's conversions to coarser units do not overflow."""


@dataclass(frozen=True, slots=True)
class Coding(ValueCoding):
    """How a query decodes the stored values of an array into a table column."""

    arrow: pa.DataType = field(kw_only=True)
    """The Arrow type of the column."""
    name: str = field(kw_only=True)
    """The array path, for use in error messages."""

    def decode(self, raw: Values) -> tuple[Values, Mask | None]:
        """Decode stored values. Return the decoded values and a mask of missing values, or None if nothing is
        missing.
        """
        viewed = self.view(raw)
        missing = self.find_missing(viewed)
        self._check_times(viewed, missing)
        return self.decode_viewed(viewed), missing

    def can_decode(self, viewed: Values) -> Mask:
        """Return a mask of the stored values that can be decoded. Times before the year -290000 or after
        294000 cannot, because they overflow 64-bit microseconds.
        """
        if self.times is not None:
            return self.times.can_decode(viewed)
        if viewed.dtype.kind not in "mM" or np.datetime_data(viewed.dtype)[0] not in _COARSE:
            return np.ones(viewed.shape, np.bool_)
        kind = f"{viewed.dtype.kind}8[us]"
        first, last = (
            np.array(end, kind).astype(viewed.dtype) for end in (-_MAX_MICROSECONDS, _MAX_MICROSECONDS)
        )
        return np.asarray(np.isnat(viewed) | ((viewed > first) & (viewed < last)))

    def _check_times(self, viewed: Values, missing: Mask | None) -> None:
        if self.times is None and viewed.dtype.kind not in "mM":
            return
        usable, years = self.can_decode(viewed), "-290000 to 294000"
        if self.times is not None and self.arrow == pa.string():
            since, years = self.times.microseconds(viewed), "0 to 9999"
            first, end = (self.times.start_of_day(year, 1, 1) for year in (0, 10000))
            usable &= (since >= first) & (since < end)
        if not (usable if missing is None else usable | missing).all():
            raise InvalidInputError(
                f"{self.name} contains a time that is infinite or outside the years {years}, which no column"
                " can represent; exclude it with the option variables",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )

    def decode_viewed(self, viewed: Values) -> Values:
        """Decode stored values whose dtype already has the signedness declared in the attributes."""
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
        """Return a `Coding` that can represent all of the given values.

        Times before 1582 become text, because Spark cannot represent them.
        """
        if self.times is None or self.arrow != TIMESTAMP:
            return self
        missing = self.find_missing(self.view(raw))
        self._check_times(self.view(raw), missing)
        since = self.times.microseconds(raw if missing is None else raw[~missing])
        return self if self.times.is_timestamp(since) else replace(self, arrow=pa.string())

    def to_column(self, raw: Values) -> pa.Array:
        """Decode one-dimensional stored values to an Arrow array that becomes a table column."""
        return to_arrow(*self.decode(raw), self.arrow)


def is_number(arrow: pa.DataType) -> bool:
    """Return True if an Arrow type is an integer or floating-point type."""
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
        return wrap_numbers(values, pa.uint64(), missing).cast(arrow)
    return wrap_numbers(values, arrow, missing)


def wrap_numbers(values: Values, arrow: pa.DataType, missing: Mask | None = None) -> pa.Array:
    """Wrap decoded numbers, times or booleans as an Arrow array of the given type.

    pyarrow's own conversions import pandas, which accounts for a third of the runtime of a small query.
    """
    dtype = _find_dtype(arrow)
    data = np.ascontiguousarray(values, dtype).reshape(-1)
    if dtype.kind in "mM" and (absent := np.isnat(data)).any():
        missing = absent if missing is None else absent | missing
    valid = None if missing is None else _pack_bits(~missing.reshape(-1))
    stored = pa.py_buffer(data) if dtype != np.bool_ else _pack_bits(data)
    return pa.Array.from_buffers(arrow, len(data), [valid, stored])


def _pack_bits(values: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def unwrap_numbers(column: pa.Array) -> tuple[Values, Mask | None]:
    """Return the numbers or times of an Arrow array as decoded values, together with a null mask.

    The reverse of `wrap_numbers`. Values under the mask are undefined.
    """
    rows = slice(column.offset, column.offset + len(column))
    valid, data = column.buffers()
    values = np.frombuffer(data, _find_dtype(column.type))[rows]
    if not column.null_count:
        return values, None
    return values, np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[rows] == 0


def _find_dtype(arrow: pa.DataType) -> np.dtype[Any]:
    known = {TIMESTAMP: "M8[us]", INTERVAL: "m8[us]"}
    return np.dtype(known.get(arrow) or arrow.to_pandas_dtype())


def find_coding(stored: np.dtype[Any], attributes: Mapping[str, Any], name: str) -> Coding:
    """Return the `Coding` for an array, chosen from its stored dtype and attributes."""
    values = find_value_coding(stored, attributes)
    if values.times is not None:
        arrow = TIMESTAMP if values.times.has_timestamps else pa.string()
        if is_elapsed(values.effective, attributes):
            arrow = INTERVAL
    elif values.is_scaled:
        arrow = pa.float64()
    else:
        arrow = _find_arrow_type(values.effective, name)
    known = {each.name: getattr(values, each.name) for each in fields(values)}
    return Coding(**known, arrow=arrow, name=name)


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
