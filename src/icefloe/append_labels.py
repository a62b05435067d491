"""Check the labels of an append: their order, and that the stored coordinate can represent them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import xarray as xr

from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, InvalidInputError

_CODING: Final = ("units", "calendar", "scale_factor", "add_offset")
_FIRST_GREGORIAN_YEAR: Final = 1583
"""The first whole year in which the standard and proleptic Gregorian calendars agree."""
_STANDARD: Final = ("standard", "gregorian", "proleptic_gregorian")


def make_misfit_error(text: str) -> InvalidInputError:
    """Create the error for a dataset that cannot be appended to the stored arrays."""
    return InvalidInputError(f"cannot append: {text}", kind=ErrorKind.BAD_METADATA)


def check_order(ds: xr.Dataset, dim: str) -> None:
    """Raise an error unless a dataset's labels along a dimension are strictly ascending."""
    if dim not in ds.indexes:
        return
    labels = ds.indexes[dim]
    if labels.hasnans:
        raise make_misfit_error(f"labels along {dim} must not be missing")
    for before, after in pairwise(labels):
        if not before < after:
            raise make_misfit_error(
                f"labels along {dim} must be strictly ascending: {after} follows {before}"
            )


def to_numpy_times(ds: xr.Dataset, dim: str) -> xr.Dataset:
    """Convert cftime labels in the standard calendar to numpy times, because xarray reads them back as
    such.
    """
    labels = ds.indexes.get(dim)
    if not isinstance(labels, xr.CFTimeIndex) or not len(labels) or labels.calendar not in _STANDARD:
        return ds
    if min(labels.year) < _FIRST_GREGORIAN_YEAR:
        return ds
    return ds.assign_coords({dim: (dim, labels.to_datetimeindex(time_unit="us"), ds[dim].attrs)})


def check_coding(ds: xr.Dataset, stored: xr.Dataset, dim: str) -> None:
    """Raise an error if a dimension's stored coordinate cannot represent the labels of a dataset."""
    if dim not in ds.coords or dim not in stored.coords:
        return
    known, own = stored.variables[dim], ds.variables[dim]
    _check_calendar(own, known, dim)
    coded = xr.Variable((dim,), own.values, dict(known.attrs), dict(known.encoding))
    coded.encoding.pop("chunks", None)
    reason = ""
    try:
        with ignore_warnings():
            encoded = xr.conventions.encode_cf_variable(coded, name=dim)
        dtype = np.dtype(known.encoding.get("dtype", known.dtype))
        # xarray chooses other units for labels that the stored ones cannot represent.
        stored_as = {name: known.encoding[name] for name in _CODING if name in known.encoding}
        narrow = xr.Variable((dim,), encoded.values.astype(dtype), {**encoded.attrs, **stored_as})
        decoded = xr.conventions.decode_cf_variable(dim, narrow)
        if (np.asarray(decoded.values) == np.asarray(own.values)).all():
            return
    except TypeError:  # text, for example
        pass
    except (ValueError, OverflowError) as error:
        reason = f" ({error})"
    units = known.encoding.get("units", known.dtype)
    raise make_misfit_error(f"the labels along {dim} cannot be stored as {units}{reason}")


def _check_calendar(own: xr.Variable, known: xr.Variable, dim: str) -> None:
    """Raise an error if times use a different calendar from the stored times."""
    mine, theirs = (get_calendar(each) for each in (own, known))
    if mine is None or theirs is None or mine == theirs or {mine, theirs} <= set(_STANDARD):
        return
    raise make_misfit_error(f"{dim} has the calendar {mine}, but is stored with the calendar {theirs}")


def get_calendar(times: xr.Variable) -> str | None:
    """Return the calendar of times, or None for other values."""
    try:
        return str(xr.DataArray(times).dt.calendar)
    except (AttributeError, TypeError):
        return None
