"""HDF5's data types as numpy's, where the bytes of a file are what the type of numpy has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.virtual.errors import RefusalReason, RefusedVariable
from icefloe.virtual.parsers.hdf5.filters import N_BIT

if TYPE_CHECKING:
    import h5py

TEXTS: Final = np.dtypes.StringDType()
_FLAGS: Final = ("flag_values", "flag_meanings")


def stored_type(dataset: h5py.Dataset) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The data type as it is stored, its order of bytes included, and the shape that each value has.

    Texts of variable length are `TEXTS`. RefusedVariable where no type of numpy is the same in bytes.
    """
    import h5py

    try:
        found = dataset.dtype
    except (TypeError, ValueError) as error:
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"numpy has no type for it: {error}") from None
    if h5py.check_string_dtype(found) is not None and found.kind == "O":
        return TEXTS, ()
    if found.kind == "O":
        if h5py.check_ref_dtype(found) is not None:
            raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "its values are references within the file")
        raise RefusedVariable(RefusalReason.VARIABLE_LENGTH, "its values are lists of different lengths")
    shape: tuple[int, ...] = ()
    stored = dataset.id.get_type()
    if found.subdtype is not None:
        found, shape = found.subdtype
        stored = stored.get_super()
    if found.names is not None:
        return _compound(found), shape
    _check_width(found, stored, dataset)
    return _plain(found), shape


def flags_of(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the values of an enumeration, as the CF conventions have them."""
    import h5py

    names = h5py.check_enum_dtype(dtype)
    if not names or any(name in attributes for name in _FLAGS):
        return {}
    ordered = sorted(names, key=names.__getitem__)
    meanings = " ".join(name.replace(" ", "_") for name in ordered)
    return dict(zip(_FLAGS, ([names[name] for name in ordered], meanings), strict=True))


def _plain(found: np.dtype[Any]) -> np.dtype[Any]:
    """The type without h5py's notes on it."""
    return np.dtype(found.str) if found.kind != "b" else np.dtype(bool)


def _compound(found: np.dtype[Any]) -> np.dtype[Any]:
    """A compound type, if Zarr can have one: fields one after the other, little-endian all."""
    fields: list[Any] = []
    end = 0
    for name, (part, start, *_) in (found.fields or {}).items():
        if start != end:
            raise _refused(found, "has gaps between its fields")
        end = start + part.itemsize
        if part.kind == "O" or part.subdtype is not None or part.str.startswith(">"):
            raise _refused(found, "has fields of variable length, of arrays, or that are big-endian")
        fields.append((name, _compound(part) if part.names else _plain(part)))
    if end != found.itemsize:
        raise _refused(found, "has gaps between its fields")
    return np.dtype(fields)


def _refused(found: np.dtype[Any], what: str) -> RefusedVariable:
    return RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"its compound type {what} ({found})")


def _check_width(found: np.dtype[Any], stored: Any, dataset: h5py.Dataset) -> None:
    """Numbers must fill their bytes as those of numpy do, unless a filter sees to that."""
    import h5py

    if isinstance(stored, h5py.h5t.TypeEnumID):
        stored = stored.get_super()
    if isinstance(stored, h5py.h5t.TypeFloatID | h5py.h5t.TypeIntegerID) and found.kind in "iuf":
        if h5py.h5t.py_create(_plain(found)).equal(stored):
            return
        properties = dataset.id.get_create_plist()
        filters = {properties.get_filter(place)[0] for place in range(properties.get_nfilters())}
        whole = stored.get_size() == found.itemsize and stored.get_offset() == 0
        if found.kind in "iu" and whole and N_BIT in filters:
            return
    elif stored.get_size() == found.itemsize:
        return
    raise RefusedVariable(
        RefusalReason.UNSUPPORTED_TYPE, f"its values are stored in other widths than those of {found}"
    )
