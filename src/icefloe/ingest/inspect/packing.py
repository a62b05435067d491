"""Compare the encodings of variables, and encode values losslessly for reading from Zarr with xarray."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from icefloe._internal.private_imports import get_xarray_fill_value_coder
from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.records import VariableSchema

_FILL = "_FillValue"
_UNITS_SINCE = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_COPIED_KINDS = "iuf"

_fill_values = get_xarray_fill_value_coder()


def make_signature(schema: VariableSchema) -> str | None:
    """Return a key that is equal for variables with the same packing (scale, offset, units). Return None if
    values must be decoded.

    If the keys are equal, stored values can be copied between files and arrays without decoding.
    """
    dtype = np.dtype(schema.raw_dtype)
    if dtype.kind not in _COPIED_KINDS or schema.raw_dims != schema.dims or "dtype" in schema.packing:
        return None
    parts = {name: _normalize(name, value) for name, value in sorted(schema.packing.items())}
    return json.dumps([dtype.newbyteorder("=").str, parts])


def _normalize(name: str, value: Any) -> str:
    if name in ("scale_factor", "add_offset"):  # these determine the dtype of the decoded values
        return f"{np.asarray(value).dtype.str} {np.asarray(value).tolist()!r}"
    return repr(np.asarray(value).tolist())


def is_preserved_by_json(schema: VariableSchema) -> bool:
    """Return True if a variable's packing attributes keep their meaning when Zarr stores them as JSON."""
    raw = np.dtype(schema.raw_dtype).newbyteorder("=")
    before = xr.Variable(("x",), _make_sample(raw, schema.packing), dict(schema.packing))
    after = xr.Variable(
        ("x",), before.values, from_zarr_attributes(to_zarr_attributes(schema.packing, raw), raw)
    )
    return has_same_meaning(before, after)


def has_same_meaning(one: xr.Variable, other: xr.Variable) -> bool:
    """Return True if two packed variables decode to equal values of the same dtype."""
    try:
        first, second = (decode_variable(variable) for variable in (one, other))
    except (ValueError, OverflowError, TypeError):
        return False
    return first.dtype == second.dtype and _equal(first, second)


def _equal(one: Any, other: Any) -> bool:
    return bool(one.equals(other))


def decode_variable(variable: xr.Variable) -> xr.Variable:
    """Decode a packed variable of a file and load its values."""
    with ignore_warnings():
        found = xr.decode_cf(xr.Dataset({"v": (tuple(variable.dims), variable.values, dict(variable.attrs))}))
        return found.variables["v"].load()


def _make_sample(dtype: np.dtype[Any], packing: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Create sample values of a stored dtype, including the values that mean missing data."""
    if "units" in packing:
        values = np.arange(64).astype(dtype)
    elif dtype.kind == "f":
        values = np.linspace(-1e3, 1e3, 64).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        span = limits.max - limits.min  # Python integers: floats would round beyond the limits of int64
        values = np.array([limits.min + span * step // 63 for step in range(64)], dtype)
    missing = [np.atleast_1d(packing[name]) for name in (_FILL, "missing_value") if name in packing]
    numbers = [each for each in missing if each.dtype.kind in "iuf"]
    return np.concatenate([values, *numbers]).astype(dtype)


def to_zarr_attributes(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Convert packing attributes to the JSON values that xarray expects in a Zarr array."""
    found = {}
    for name, value in attrs.items():
        if name == _FILL:
            if dtype.kind in "biufcSU":
                found[name] = _fill_values.encode(_to_scalar(value, dtype), dtype)
        elif (plain := _to_json(value)) is not None:
            found[name] = plain
    return found


def _to_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    scalar = np.asarray(value).reshape(-1)[0]
    return bytes(scalar) if dtype.kind == "S" else scalar.item()


def _to_json(value: Any) -> Any:
    """Convert a value to JSON, which supports neither bytes nor infinite numbers."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool | dict):
        return value
    return str(value)


def from_zarr_attributes(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Convert the packing attributes of a Zarr array to the values that xarray uses in memory."""
    found = dict(attrs)
    if _FILL in found:
        found[_FILL] = _fill_values.decode(found[_FILL], dtype.str)
    return found


def encode_variable(
    variable: xr.Variable, packing: Mapping[str, Any], raw_dtype: str, name: str = "a variable"
) -> xr.Variable:
    """Encode a variable as specified if this is lossless. Otherwise use finer time units, or store unpacked
    values.
    """
    wanted = {name: value for name, value in packing.items() if name not in ("dtype", "_Unsigned")}
    dtype = np.dtype(raw_dtype)
    if dtype.kind in _COPIED_KINDS:
        wanted["dtype"] = dtype.newbyteorder("=")
    for encoding in (wanted, *_list_finer_time_encodings(variable, packing), {}):
        found = _try_encoding(variable, encoding)
        if found is not None:
            return found
    raise InvalidInputError(
        f"{name} cannot be stored: Zarr attributes cannot describe its values ({variable.dtype}) or which of "
        "them are missing; leave it out, or complete the files",
        ErrorKind.INVALID_ARRAY_METADATA,
    )


def _list_finer_time_encodings(variable: xr.Variable, packing: Mapping[str, Any]) -> list[dict[str, Any]]:
    units = packing.get("units", "")
    if " since " not in units:
        return []
    since = units.partition(" since ")[2]
    calendar = {"calendar": packing["calendar"]} if "calendar" in packing else {}
    return [{"units": f"{unit} since {since}", "dtype": "int64", **calendar} for unit in _UNITS_SINCE]


def _try_encoding(variable: xr.Variable, encoding: Mapping[str, Any]) -> xr.Variable | None:
    """Encode a variable. Return None if decoding would not restore the same values."""
    whole = xr.Variable(variable.dims, variable.values, dict(variable.attrs), encoding=dict(encoding))
    if is_text(whole):
        return whole if not encoding else None
    try:
        with ignore_warnings():
            found = xr.conventions.encode_cf_variable(whole).load()
    except (ValueError, OverflowError, TypeError):
        return None
    if found.dtype == object:
        return None  # times of a non-standard calendar, some of them missing
    if found.dtype.kind == "b" or ("dtype" in found.attrs and variable.dtype.kind != "m"):
        return whole if variable.dtype.kind == "b" else None
    attrs = from_zarr_attributes(to_zarr_attributes(found.attrs, found.dtype), found.dtype)
    back = xr.Variable(found.dims, found.values, attrs)
    try:
        shown = decode_variable(back)
    except (ValueError, OverflowError, TypeError):
        return None
    same = _equal(shown, variable) and (shown.dtype == variable.dtype or variable.dtype == object)
    return found if same else None


def is_text(variable: xr.Variable) -> bool:
    """Return True if all values of a variable, except missing ones, are text."""
    if variable.dtype.kind in "SUT":
        return True
    if variable.dtype != object:
        return False
    there = (value for value in variable.values.ravel() if value is not None and value == value)
    return isinstance(next(there, ""), str | bytes)
