"""Reconstruct the zarr.json of a node from the fields of old formats."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.snapshot import ArrayNodeData, DimensionShape
from icefloe.legacy.codec.structures import (
    LegacyFindings,
    Structure,
    describe_type,
    make_damage_error,
    show_value,
    to_bytes,
    to_items,
    to_number,
    to_pairs,
    to_text,
    to_variant,
)

ARRAY_METADATA: Final = Structure(
    "Zarr metadata",
    (
        (
            "shape",
            "data_type",
            "chunk_shape",
            "chunk_key_encoding",
            "fill_value",
            "codecs",
            "storage_transformers",
            "dimension_names",
        ),
    ),
    frozenset({"chunk_key_encoding", "storage_transformers", "dimension_names"}),
)
_NAMED: Final = Structure("a codec", (("name", "configuration"), ("name",)), frozenset({"configuration"}))
_SEPARATORS: Final = {"slash": "/", "default": "/", "dot": "."}
_INTEGERS: Final = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS: Final = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
_COMPLEX: Final = {"complex64": np.float32, "complex128": np.float64}
_BYTES: Final = ("bytes", "raw_bytes")
_NAMES: Final = {
    "nan": math.nan,
    "infinity": math.inf,
    "inf": math.inf,
    "-infinity": -math.inf,
    "-inf": -math.inf,
}
_U32_MAX: Final = 0xFFFFFFFF


def make_group_document(attributes: Mapping[str, Any], place: str) -> bytes:
    """Reconstruct the zarr.json of a group from a legacy snapshot."""
    return _encode({"zarr_format": 3, "node_type": "group", "attributes": attributes}, place)


def make_array_document(
    stored: Any, attributes: Mapping[str, Any], place: str, findings: LegacyFindings
) -> tuple[bytes, ArrayNodeData]:
    """Reconstruct the zarr.json and the node data of an array from a legacy snapshot, without manifests."""
    fields = ARRAY_METADATA.read(stored, place, findings)
    shape = [to_number(n, f"{place}: shape") for n in to_items(fields["shape"], f"{place}: shape")]
    chunks = [
        to_number(n, f"{place}: chunk_shape")
        for n in to_items(fields["chunk_shape"], f"{place}: chunk_shape")
    ]
    if len(chunks) != len(shape):
        raise make_damage_error(f"{place}: chunk_shape has {len(chunks)} dimensions, shape has {len(shape)}")
    data_type, type_name = _parse_data_type(fields["data_type"], place)
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_value(fields["fill_value"], type_name, place, findings),
        "codecs": [
            _named(codec, place, findings) for codec in to_items(fields["codecs"], f"{place}: codecs")
        ],
        "attributes": attributes,
    }
    _check_separator(fields.get("chunk_key_encoding", "Slash"), place)
    transformers = to_items(fields.get("storage_transformers"), f"{place}: storage_transformers")
    if transformers:
        document["storage_transformers"] = [_named(entry, place, findings) for entry in transformers]
    names = _parse_dimension_names(fields.get("dimension_names"), len(shape), place)
    if names is not None:
        document["dimension_names"] = list(names)
    data = ArrayNodeData(_dimensions(shape, chunks, place), (), names and tuple(n or None for n in names))
    return _encode(document, place), data


def get_attributes(stored: Any, place: str) -> Mapping[str, Any]:
    """Return the user attributes of a node in a legacy snapshot, for its zarr.json."""
    if stored is None:
        return {}
    name, content = to_variant(stored, f"{place}: user_attributes")
    if name == "Ref":
        raise make_damage_error(f"{place}: attributes in a separate file are not supported")
    if name != "Inline":
        raise make_damage_error(f"{place}: unknown kind of attributes {name!r}")
    found = to_pairs(content, f"{place}: attributes")
    if not all(isinstance(key, str) for key in found):
        raise make_damage_error(f"{place}: names of attributes must be strings")
    return found


def _encode(document: Mapping[str, Any], place: str) -> bytes:
    try:
        # Attributes may be NaN: zarr itself writes and reads them like this.
        whole = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_to_plain)
        return whole.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{place}: the metadata cannot be converted to JSON: {error}", kind=ErrorKind.DESERIALIZATION
        ) from None


def _to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return list(value)
    raise TypeError(f"{describe_type(value)} in it")


def _dimensions(shape: Sequence[int], chunks: Sequence[int], place: str) -> tuple[DimensionShape, ...]:
    if any(length and not chunk for length, chunk in zip(shape, chunks, strict=True)):
        raise make_damage_error(f"{place}: chunk_shape is 0 in a dimension that has elements")
    counts = [-(-length // max(chunk, 1)) for length, chunk in zip(shape, chunks, strict=True)]
    if any(count > _U32_MAX for count in counts):
        raise make_damage_error(f"{place}: more than 2**32 - 1 chunks along one dimension")
    return tuple(map(DimensionShape, shape, counts))


def _parse_dimension_names(stored: Any, rank: int, place: str) -> tuple[str | None, ...] | None:
    if stored is None:
        return None
    names = to_items(stored, f"{place}: dimension_names")
    if len(names) != rank:
        raise make_damage_error(f"{place}: {len(names)} dimension_names for {rank} dimensions")
    return tuple(None if name is None else to_text(name, f"{place}: dimension_names") for name in names)


def _check_separator(stored: Any, place: str) -> None:
    """Raise an error for unknown chunk key encodings. The encoding itself is not needed, because chunks are
    stored by coordinates.
    """
    name, _ = to_variant(stored, f"{place}: chunk_key_encoding")
    if name.lower() not in _SEPARATORS and name not in _SEPARATORS.values():
        raise make_damage_error(f"{place}: unknown chunk_key_encoding {name!r}")


def _named(stored: Any, place: str, findings: LegacyFindings) -> dict[str, Any]:
    if isinstance(stored, str):
        return {"name": stored}
    fields = _NAMED.read(stored, place, findings)
    found: dict[str, Any] = {"name": to_text(fields["name"], f"{place}: name of a codec")}
    configuration = fields.get("configuration")
    if configuration is not None:
        found["configuration"] = to_pairs(configuration, f"{place}: configuration of {found['name']}")
    return found


def _parse_data_type(stored: Any, place: str) -> tuple[Any, str]:
    """Return the data type as written in zarr.json, and its name."""
    name, bits = to_variant(stored, f"{place}: data_type")
    low = name.lower()
    if low == "rawbits" or (low[:1] == "r" and low[1:].isdecimal()):
        size = to_number(bits if bits is not None else int(low[1:] or 0), f"{place}: data_type", 32)
        if size % 8 or not size:
            raise make_damage_error(f"{place}: raw data of {size} bits is not a whole number of bytes")
        return {"name": "raw_bytes", "configuration": {"length_bytes": size // 8}}, "raw_bytes"
    if low in ("bool", "string", "bytes") or low in _INTEGERS or low in _FLOATS or low in _COMPLEX:
        return low, low
    raise make_damage_error(f"{place}: unknown data_type {name!r}")


def _fill_value(stored: Any, data_type: str, place: str, findings: LegacyFindings) -> Any:
    """Return the fill value as written in zarr.json."""
    value = stored
    if isinstance(stored, Mapping):
        _, value = to_variant(stored, f"{place}: fill_value")
    where = f"{place}: fill_value of {data_type}"
    if data_type in _BYTES:
        return base64.standard_b64encode(to_bytes(value, where)).decode("ascii")
    if data_type == "string":
        return to_text(value, where)
    if data_type == "bool":
        if isinstance(value, bool):
            return value
        raise make_damage_error(f"{where}: {show_value(value)} is neither true nor false")
    if data_type in _INTEGERS:
        return _check_integer(value, *_INTEGERS[data_type], where)
    if data_type in _FLOATS:
        return _float(value, _FLOATS[data_type], where, findings)
    parts = to_items(value, where)
    if len(parts) != 2:
        raise make_damage_error(f"{where}: {show_value(value)} has no real and imaginary part")
    return [_float(part, _COMPLEX[data_type], where, findings) for part in parts]


def _check_integer(value: Any, sign: str, bits: int, where: str) -> int:
    low, high = (0, 1 << bits) if sign == "u" else (-(1 << bits - 1), 1 << bits - 1)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise make_damage_error(f"{where}: {show_value(value)} does not fit")
    return value


def _float(value: Any, kind: Any, where: str, findings: LegacyFindings) -> float | str:
    if value is None:
        findings.note(f"{where}: null instead of a number, read as NaN")
        value = math.nan
    if isinstance(value, str):
        value = _NAMES.get(value.lower().removeprefix("+"), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise make_damage_error(f"{where}: {show_value(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise make_damage_error(f"{where}: {show_value(value)} does not fit") from None
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    with np.errstate(over="ignore"):
        fits = np.isfinite(kind(number))
    if not fits:
        raise make_damage_error(f"{where}: {show_value(value)} does not fit")
    return number
