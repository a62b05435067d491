"""Convert Zarr array metadata, version 2 or 3, to virtual variables without chunks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from icefloe.virtual.errors import RefusalReason, RefusedVariable
from icefloe.virtual.variables import ChunkReferences, VirtualVariable
from icefloe.virtual.zarr_metadata import (
    blosc_codec,
    configure_bytes,
    configure_numcodec,
    encode_attributes,
    get_zarr_type,
    to_json_fill_value,
    zstd_codec,
)

_TEXTS: Final = np.dtypes.StringDType()
_ARRAY_CODECS: Final = ("delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits")
_BLOSC_AUTOMATIC, _BLOSC_ITEM_LIMIT = -1, 256
_BYTES_CODECS: Final = (
    "adler32",
    "blosc",
    "bz2",
    "crc32",
    "crc32c",
    "fletcher32",
    "gzip",
    "jenkins_lookup3",
    "lz4",
    "lzma",
    "shuffle",
    "zlib",
    "zstd",
)


def convert_v3_array(document: Mapping[str, Any]) -> VirtualVariable:
    """Convert a Zarr version 3 zarr.json to a virtual variable without chunks."""
    from zarr.dtype import data_type_registry

    grid = document.get("chunk_grid") or {}
    if grid.get("name") != "regular":
        raise RefusedVariable(
            RefusalReason.UNEVEN_CHUNKS, f"its chunk grid {grid.get('name')!r} is not regular"
        )
    if document.get("storage_transformers"):
        raise RefusedVariable(RefusalReason.UNSUPPORTED_LAYOUT, "it has storage transformers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind = data_type_registry.match_json(document["data_type"], zarr_format=3)
            dtype: Any = kind.to_native_dtype()
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, f"its data type is unknown: {error}") from None
    if document["data_type"] == "string":
        dtype = _TEXTS
    get_zarr_type(dtype)
    shape = tuple(document["shape"])
    names = document.get("dimension_names") or [None] * len(shape)
    return _make_variable_without_chunks(
        tuple(name or f"dim_{axis}" for axis, name in enumerate(names)),
        shape,
        dtype,
        tuple(grid["configuration"]["chunk_shape"]),
        tuple(_to_named_codec(codec) for codec in document["codecs"]),
        document["fill_value"],
        dict(document.get("attributes") or {}),
    )


def _to_named_codec(codec: Any) -> dict[str, Any]:
    return {"name": codec} if isinstance(codec, str) else dict(codec)


def convert_v2_array(document: Mapping[str, Any], attributes: Mapping[str, Any]) -> VirtualVariable:
    """Convert a Zarr version 2 .zarray and .zattrs to a virtual variable with version 3 codecs."""
    shape, chunks = tuple(document["shape"]), tuple(document["chunks"])
    dtype, filters = _parse_v2_dtype(document)
    codecs = _convert_v2_codecs(document, dtype, filters, len(shape))
    rest = dict(attributes)
    names = rest.pop("_ARRAY_DIMENSIONS", None) or [f"dim_{axis}" for axis in range(len(shape))]
    given = document.get("fill_value")
    fill = _convert_v2_fill_value(given, dtype)
    if given is not None and dtype.kind not in "TMm":
        # In version 2, xarray treats the fill value as missing.
        value = get_zarr_type(dtype).from_json_scalar(given, zarr_format=2)
        rest |= encode_attributes({"_FillValue": value}, dtype)
    elif "_FillValue" in rest:
        rest |= encode_attributes({"_FillValue": rest["_FillValue"]}, dtype)
    native = dtype if dtype.kind == "T" else dtype.newbyteorder("=")
    return _make_variable_without_chunks(
        tuple(names), shape, native, tuple(max(size, 1) for size in chunks), codecs, fill, rest
    )


def _parse_v2_dtype(document: Mapping[str, Any]) -> tuple[np.dtype[Any], list[Mapping[str, Any]]]:
    filters = list(document.get("filters") or [])
    given = document["dtype"]
    if isinstance(given, list):
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "it has a compound data type")
    if given == "|O":
        if filters and filters[0].get("id") == "vlen-utf8":
            return _TEXTS, filters[1:]
        raise RefusedVariable(RefusalReason.UNSUPPORTED_TYPE, "its values are Python objects")
    dtype = np.dtype(given)
    get_zarr_type(dtype)
    return dtype, filters


def _convert_v2_codecs(
    document: Mapping[str, Any], dtype: np.dtype[Any], filters: list[Mapping[str, Any]], rank: int
) -> tuple[dict[str, Any], ...]:
    codecs: list[dict[str, Any]] = []
    if document.get("order", "C") == "F" and rank > 1:
        codecs.append({"name": "transpose", "configuration": {"order": list(reversed(range(rank)))}})
    compressor = document.get("compressor")
    steps = [dict(step) for step in (*filters, *([compressor] if compressor else []))]
    serializer = {"name": "vlen-utf8"} if dtype.kind == "T" else configure_bytes(dtype)
    in_bytes = False
    for step in steps:
        name = str(step.pop("id"))
        if name in _ARRAY_CODECS and not in_bytes and not dtype.str.startswith(">"):
            codecs.append(configure_numcodec(name, **step))
            continue
        if name not in _BYTES_CODECS:
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER,
                f"Zarr version 3 has no equivalent of the codec {name!r}",
            )
        if not in_bytes:
            codecs.append(serializer)
            in_bytes = True
        codecs.append(_convert_compressor(name, step, dtype))
    return tuple(codecs if in_bytes else [*codecs, serializer])


def _convert_compressor(name: str, step: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Convert a Zarr version 2 compressor. Codec names of Zarr version 3 are preferred: more readers know
    them.
    """
    match name:
        case "zstd":
            return zstd_codec(step.get("level", 1))
        case "gzip":
            return {"name": "gzip", "configuration": {"level": step.get("level", 1)}}
        case "blosc":
            itemsize = dtype.itemsize if 0 < dtype.itemsize < _BLOSC_ITEM_LIMIT else 1
            shuffle = step.get("shuffle", 1)
            if shuffle == _BLOSC_AUTOMATIC:
                shuffle = 2 if itemsize == 1 else 1
            return blosc_codec(
                step.get("cname", "lz4"), step.get("clevel", 5), shuffle, itemsize, step.get("blocksize", 0)
            )
    return configure_numcodec(name, **step)


def _convert_v2_fill_value(given: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "T":
        return given if isinstance(given, str) else ""
    if given is None:
        return to_json_fill_value(None, dtype)
    return to_json_fill_value(get_zarr_type(dtype).from_json_scalar(given, zarr_format=2), dtype)


def _make_variable_without_chunks(
    names: tuple[str, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk_shape: tuple[int, ...],
    codecs: tuple[dict[str, Any], ...],
    fill_value: Any,
    attributes: dict[str, Any],
) -> VirtualVariable:
    nothing = ChunkReferences.of(np.empty((0, len(shape))), [], [])
    return VirtualVariable(names, shape, dtype, chunk_shape, codecs, fill_value, attributes, nothing)
