"""Encode data types, codecs, fill values and attributes for a Zarr version 3 zarr.json."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from icefloe.cf import encode_fill_value
from icefloe.virtual.errors import RefusalReason, RefusedVariable

_FILL: Final = "_FillValue"
_MISSING: Final = "missing_value"
_KINDS: Final = "biufcSUMmTV"
_ZSTD_LEVEL_LIMIT: Final = 22
_BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
DECODING_ATTRIBUTES: Final = (
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "units",
    "calendar",
    "_Unsigned",
    "dtype",
)
"""Attributes that determine how stored values are interpreted."""
GEO_TRANSFORM: Final = "GeoTransform"
"""The grid mapping attribute with the position of a raster, which differs between adjacent rasters."""
_IRRELEVANT: Final = ("level", "clevel", "blocksize", "typesize", "nthreads", "checksum")
"""Compressor settings that do not affect decoding."""
_SELF_DESCRIBED: Final = ("blosc", "numcodecs.blosc")
"""Compressors that store their settings in each chunk."""


@functools.lru_cache(64)
def get_zarr_type(dtype: np.dtype[Any]) -> Any:
    """Return zarr's data type for a numpy data type. Raise RefusedVariable if Zarr does not support it."""
    from zarr.dtype import data_type_registry

    if dtype.kind not in _KINDS or dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"Zarr has no data type for {dtype}")
    if dtype.kind in "SUV" and not dtype.itemsize:
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "its values have length 0")
    # Matched by name, because numpy has two equivalent 64-bit integers and zarr accepts one.
    named = dtype.kind == "T" or dtype.names is not None
    native = dtype if named else np.dtype(dtype.str).newbyteorder("=")
    with warnings.catch_warnings():  # about fixed-length strings, which are not in the core specification
        warnings.simplefilter("ignore")
        return data_type_registry.match_dtype(dtype=native)


def parse_array_metadata(document: Mapping[str, Any]) -> Any:
    """Parse the zarr.json of a virtual array with zarr. Raise zarr's error if zarr cannot open the array."""
    from zarr import open_array
    from zarr.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    stored: dict[str, Any] = {"zarr.json": Buffer.from_bytes(json.dumps(document, allow_nan=False).encode())}
    with warnings.catch_warnings():  # about data types and codecs that are not in the core specification
        warnings.simplefilter("ignore")
        return open_array(MemoryStore(stored), mode="r", zarr_format=3).metadata


def encode_data_type(dtype: np.dtype[Any]) -> Any:
    """Encode the data type of a virtual variable for a zarr.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_zarr_type(dtype).to_json(zarr_format=3)


def to_json_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Encode the fill value of a virtual variable for a zarr.json. None means zero, as in HDF5."""
    kind = get_zarr_type(dtype)
    scalar = kind.default_scalar() if value is None else kind.cast_scalar(value)
    found = kind.to_json_scalar(scalar, zarr_format=3)
    return list(found) if isinstance(found, tuple) else found


def configure_bytes(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the zarr.json entry of the `bytes` codec for the byte order of a data type."""
    if dtype.itemsize == 1 or dtype.kind == "S" or (dtype.kind == "V" and not _has_order(dtype)):
        return {"name": "bytes"}
    big = dtype.str.startswith(">")
    return {"name": "bytes", "configuration": {"endian": "big" if big else "little"}}


def _has_order(dtype: np.dtype[Any]) -> bool:
    """Return True if any field of a compound data type has a byte order."""
    parts = [dtype[name] for name in dtype.names or ()]
    return any(_has_order(part) if part.names else part.byteorder != "|" for part in parts)


def configure_numcodec(name: str, **configuration: Any) -> dict[str, Any]:
    """Return the zarr.json entry of a numcodecs codec."""
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def zstd_codec(level: int) -> dict[str, Any]:
    """Return the zarr.json entry of the Zstandard codec. A level that zarr rejects is replaced, because
    decoding ignores it.
    """
    known = level if 0 <= level <= _ZSTD_LEVEL_LIMIT else 3
    return {"name": "zstd", "configuration": {"level": known, "checksum": False}}


def blosc_codec(compressor: str, level: int, shuffle: int, itemsize: int, block: int = 0) -> dict[str, Any]:
    """Return the zarr.json entry of the Blosc codec. `shuffle` is the number that Blosc uses."""
    configuration = {
        "typesize": itemsize,
        "cname": compressor,
        "clevel": level,
        "shuffle": _BLOSC_SHUFFLES[shuffle],
        "blocksize": block,
    }
    return {"name": "blosc", "configuration": configuration}


def encode_attributes(found: Mapping[str, Any], dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
    """Encode attributes for a zarr.json. `_FillValue` gets the form that xarray expects in Zarr version 3.

    JSON does not support NaN. A `missing_value` of NaN is dropped, because NaN is always treated as missing.
    Any other NaN becomes the string "NaN", as in Zarr fill values.
    """
    plain: dict[str, Any] = {}
    for name, value in found.items():
        if name == _FILL and dtype is not None:
            encoded = _encode_fill_attribute(value, dtype)
            if encoded is not None:
                plain[name] = encoded
        elif name == _MISSING and _is_nan(value):
            continue
        else:
            plain[name] = encode_attribute(value)
    return plain


def encode_attribute(value: Any) -> Any:
    """Encode an attribute for a zarr.json: numpy scalars and arrays become numbers and lists, and
    bytes text.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "S":
            value = np.char.rstrip(value, b"\0")
        listed = value.tolist()
        if isinstance(listed, list) and len(listed) == 1:
            return encode_attribute(listed[0])  # netCDF has no scalar attributes, only lists with one value
        return encode_attribute(listed)
    if isinstance(value, np.generic):
        return encode_attribute(value.item())
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [encode_attribute(value.real), encode_attribute(value.imag)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode_attribute(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _is_nan(value: Any) -> bool:
    flat = np.asarray(value).reshape(-1)
    return flat.dtype.kind == "f" and bool(flat.size) and bool(np.isnan(flat).all())


def _encode_fill_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Encode a `_FillValue` attribute as xarray does. Return None if it does not match the data type.

    The fill value of character arrays is dropped, because xarray writes it but then cannot open the array.
    """
    flat = np.asarray(value).reshape(-1)
    if not flat.size:
        return None
    first = flat[0]
    match dtype.kind:
        case "f" if flat.dtype.kind in "fiu":
            return encode_fill_value(first)
        case "c" if flat.dtype.kind in "fiuc":
            return [encode_fill_value(first.real), encode_fill_value(first.imag)]
        case "i" | "u" if flat.dtype.kind in "fiu" and math.isfinite(first):
            return int(first)
        case "b" if flat.dtype.kind in "biu":
            return bool(first)
        case "T" | "O":
            return encode_attribute(first)
    return None


def list_properties(document: Mapping[str, Any], *, loaded: bool) -> dict[str, Any]:
    """List the zarr.json properties that arrays must share to be combined. For loaded variables, chunks may
    differ.
    """
    attributes = document.get("attributes", {})
    found: dict[str, Any] = {
        "dimensions": document.get("dimension_names"),
        "dtype": document["data_type"],
    }
    if not loaded:
        found["chunk shape"] = document["chunk_grid"]["configuration"].get("chunk_shape")
        found["codecs"] = [_select_essential(codec) for codec in document["codecs"]]
        found["fill value"] = document["fill_value"]
    return found | {name: attributes[name] for name in DECODING_ATTRIBUTES if name in attributes}


def find_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the properties that differ between two zarr.json documents, with both values. Missing ones are
    None.
    """
    names = [*one, *(name for name in other if name not in one)]
    return [
        (name, one.get(name), other.get(name))
        for name in names
        if json.dumps(one.get(name)) != json.dumps(other.get(name))
    ]


def _select_essential(codec: Mapping[str, Any]) -> dict[str, Any]:
    configuration = codec.get("configuration") or {}
    if codec["name"] in _SELF_DESCRIBED:
        configuration = {}
    kept = {name: value for name, value in configuration.items() if name not in _IRRELEVANT}
    return {"name": codec["name"], "configuration": kept}
