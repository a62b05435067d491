"""Decode the stored values of an array as xarray does, and choose the type of its column.

Fill values and NaN become null. Types that Spark lacks are widened: see docs/reference/tables.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.cf import TimeCoding, get_fill_values, parse_time_coding
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
NO_TIME: Final = np.int64(np.iinfo(np.int64).min)
"""The integer that numpy and xarray store for a missing time."""
TIMESTAMP: Final = pa.timestamp("us")
INTERVAL: Final = pa.duration("us")


@dataclass(frozen=True, slots=True)
class Coding:
    """The rule that turns the stored values of an array into a column."""

    stored: np.dtype[Any]
    arrow: pa.DataType
    """Arrow type of the column."""
    view_as: np.dtype[Any] | None = None
    """Type to view the stored bits as: signed, unsigned or boolean."""
    fills: tuple[Any, ...] = ()
    scale: float | None = None
    offset: float | None = None
    floating: np.dtype[Any] | None = None
    """Type in which scaled values are computed."""
    times: TimeCoding | None = None

    def decode(self, raw: Values) -> tuple[Values, Mask | None]:
        """Decode stored values, and return a mask of the missing ones, or None if there are none."""
        if self.view_as is not None:
            raw = raw.astype(np.bool_) if self.view_as.kind == "b" else raw.view(self.view_as)
        missing = self._find_missing(raw)
        if self.times is not None:
            return self._decode_times(raw, self.times), missing
        if raw.dtype.kind in "mM":
            return raw.astype(f"{raw.dtype.kind}8[us]"), missing
        if self.floating is not None:
            raw = raw.astype(self.floating)
            if self.scale is not None:
                raw = raw * self.floating.type(self.scale)
            if self.offset is not None:
                raw = raw + self.floating.type(self.offset)
        return raw, missing

    def _decode_times(self, raw: Values, times: TimeCoding) -> Values:
        since = times.microseconds(raw)
        if self.arrow == pa.string():
            return times.texts(since)
        return since.view("m8[us]" if self.arrow == INTERVAL else "M8[us]")

    def fit_values(self, raw: Values) -> Coding:
        """Return the coding for these values. Times before 1582 become text: Spark cannot represent them."""
        if self.times is None or self.arrow != TIMESTAMP:
            return self
        missing = self._find_missing(raw if self.view_as is None else raw.view(self.view_as))
        since = self.times.microseconds(raw if missing is None else raw[~missing])
        return self if self.times.is_timestamp(since) else replace(self, arrow=pa.string())

    def _find_missing(self, raw: Values) -> Mask | None:
        missing: Mask | None = None
        if raw.dtype.kind in "fc":
            missing = np.isnan(raw)
        elif raw.dtype.kind in "mM":
            missing = np.isnat(raw)
        elif self.times is not None and raw.dtype == np.int64:
            missing = raw == NO_TIME
        for fill in self.fills:
            here = np.asarray(raw == fill, np.bool_)
            missing = here if missing is None else missing | here
        return missing if missing is not None and missing.any() else None

    def to_column(self, raw: Values) -> pa.Array:
        """Decode one-dimensional stored values into an Arrow array."""
        return to_arrow(*self.decode(raw), self.arrow)


def to_arrow(values: Values, missing: Mask | None, arrow: pa.DataType) -> pa.Array:
    """Convert one-dimensional decoded values to an Arrow array of a type."""
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
    """Find the coding of an array from its data type and attributes.

    Raises InvalidInputError for a data type that no column can represent.
    """
    view_as = _find_view(stored, attributes)
    effective = view_as or stored
    fills = tuple(get_fill_values(attributes, stored))
    if view_as is not None and view_as.kind != "b":
        fills = tuple(fill.view(view_as) for fill in fills)
    times = None
    if effective.kind in "iuf":
        times = parse_time_coding(attributes.get("units"), attributes.get("calendar"))
    if times is not None:
        arrow = TIMESTAMP if times.has_timestamps else pa.string()
        return Coding(stored, arrow, view_as, fills, times=times)
    span = attributes.get("dtype")
    if effective.kind == "i" and isinstance(span, str) and span.startswith("timedelta64"):
        elapsed = parse_time_coding(f"{attributes.get('units')} since 1970-01-01", _CALENDAR)
        if elapsed is not None:
            return Coding(stored, INTERVAL, view_as, fills, times=elapsed)
    scale, offset = (_to_number(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    if (scale is not None or offset is not None) and effective.kind in "iuf":
        floating = np.dtype(np.float64)
        return Coding(stored, pa.float64(), view_as, fills, scale, offset, floating)
    return Coding(stored, _find_arrow_type(effective, name), view_as, fills)


_CALENDAR: Final = "proleptic_gregorian"


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


def _find_view(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any] | None:
    if attributes.get("dtype") == "bool" and stored.kind in "iu":
        return np.dtype(np.bool_)
    word = str(attributes.get("_Unsigned", "")).lower()
    if stored.kind == "i" and word == "true":
        return np.dtype(f"u{stored.itemsize}")
    if stored.kind == "u" and word == "false":
        return np.dtype(f"i{stored.itemsize}")
    return None


def _to_number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
