"""The encoding of HDF5 datasets: their data types as numpy's, and their filters as Zarr codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.virtual.codecs import HDF5
from icefloe.virtual.decoders.hdf5 import DECODERS, Chunk, undo
from icefloe.virtual.errors import RefusalReason, RefusedVariable
from icefloe.virtual.zarr_metadata import blosc_codec, numcodec, zstd_codec

if TYPE_CHECKING:
    import h5py

TEXTS: Final = np.dtypes.StringDType()
_FLAGS: Final = ("flag_values", "flag_meanings")
SHUFFLE: Final = 2
FLETCHER32: Final = 3
N_BIT: Final = 5
CHECKSUM_BYTES: Final = 4
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True, slots=True)
class Filter:
    """A step of HDF5's pipeline, in the words of both sides."""

    bit: int
    """Its place in the masks of chunks that it skipped."""
    number: int
    values: tuple[int, ...]
    codec: dict[str, Any]

    @property
    def encodes(self) -> bool:
        """Whether its codec can encode too, being one of zarr or numcodecs."""
        return bool(self.codec["name"] != HDF5)

    @property
    def skips(self) -> bool:
        """Whether its codec leaves chunks alone that have the size of what it decodes to."""
        return bool(self.codec["configuration"].get("skips", False))

    def skipping(self) -> Filter:
        """The same with such a codec."""
        return replace(self, codec=_own(self.number, self.values, skips=True))


def _deflate(values: Sequence[int]) -> dict[str, Any]:
    return numcodec("zlib", level=values[0] if values else 1)


def _shuffle(values: Sequence[int]) -> dict[str, Any]:
    return numcodec("shuffle", elementsize=values[0])


def _blosc(values: Sequence[int]) -> dict[str, Any]:
    # Two versions, sizes of elements and chunks, then level, shuffle and compressor, which may be left out.
    level, shuffle, compressor = values[4:7] if len(values) >= 7 else (5, 1, 0)
    return blosc_codec(_BLOSC_COMPRESSORS[compressor], level, shuffle, max(values[2], 1))


def _own(number: int, values: Sequence[int], *, skips: bool = False) -> dict[str, Any]:
    configuration = {"filter": number, "values": list(values), **({"skips": True} if skips else {})}
    return {"name": HDF5, "configuration": configuration}


_CODECS: Final[dict[int, Callable[[Sequence[int]], dict[str, Any]]]] = {
    1: _deflate,
    SHUFFLE: _shuffle,
    FLETCHER32: lambda values: numcodec("fletcher32"),
    307: lambda values: numcodec("bz2", level=values[0] if values else 9),
    32001: _blosc,
    32015: lambda values: zstd_codec(values[0] if values else 3),
}
"""Filters that codecs of zarr and numcodecs undo; others are left to the codec of ours."""
_KNOWN: Final = {32017: "SZ", 32019: "JPEG", 32024: "SZ3", 32028: "SPERR"}


def filters_of(dataset: h5py.Dataset) -> list[Filter]:
    """The filters in the order they are applied in; RefusedVariable for one that no codec undoes."""
    properties = dataset.id.get_create_plist()
    found: list[Filter] = []
    for position in range(properties.get_nfilters()):
        number, _, values, name = properties.get_filter(position)
        if number not in _CODECS and number not in DECODERS:
            known = _KNOWN.get(number) or name.decode(errors="replace").rstrip("\0") or "unknown"
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER, f"no Zarr codec undoes HDF5's filter {number} ({known})"
            )
        if number == SHUFFLE and values[0] == 1:
            continue  # nothing is moved
        # After another filter there may be any number of bytes, and not one of whole values.
        usual = number in _CODECS and not (number == SHUFFLE and found)
        codec = _CODECS[number](values) if usual else _own(number, values)
        found.append(Filter(position, number, tuple(values), codec))
    return found


def pipeline(filters: Sequence[Filter]) -> list[dict[str, Any]]:
    """The filters as the last codecs of a Zarr pipeline."""
    return [each.codec for each in filters]


def reencoded(data: bytes, mask: int, filters: Sequence[Filter], chunk: Chunk) -> bytes:
    """A chunk that some filters skipped, as if none had."""
    import numcodecs

    if not all(each.encodes or each.skips for each in filters):
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            "some chunks are stored without some of its filters, and one of these only decodes",
        )
    codecs = {each.bit: numcodecs.get_codec(_as_numcodec(each.codec)) for each in filters if not each.skips}
    value: Any = data
    for each in reversed(filters):
        if not mask >> each.bit & 1:
            by_us = each.number in DECODERS
            value = undo(each.number, each.values, value, chunk) if by_us else codecs[each.bit].decode(value)
    for codec in codecs.values():
        value = codec.encode(value)
    return bytes(value)


def _as_numcodec(codec: dict[str, Any]) -> dict[str, Any]:
    """The codec of numcodecs that encodes what a codec of a Zarr pipeline decodes."""
    match codec["name"]:
        case "zstd":
            return {"id": "zstd", "level": codec["configuration"]["level"]}
        case "blosc":
            return {"id": "blosc", "cname": codec["configuration"]["cname"]}
    return {"id": codec["name"].removeprefix("numcodecs."), **codec["configuration"]}


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
