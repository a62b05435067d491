"""Choose the dtype, attributes, chunks and codecs of new arrays in the target group."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.buffer import cpu

from icefloe._internal.private_imports import run_zarr_coroutine
from icefloe._internal.warnings import ignore_warnings
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.ingest.combine.pieces import PieceArray
from icefloe.ingest.inspect.packing import (
    encode_variable,
    is_preserved_by_json,
    make_signature,
    to_zarr_attributes,
)
from icefloe.ingest.options import ArrayLayout, make_compressors
from icefloe.ingest.records import Target, VariableSchema

_MIB = 1 << 20
_CHUNK_BYTES = 16 * _MIB
"""The default target size of chunks in bytes. Larger chunks of files are split."""
_SMALL_CHUNK_BYTES = 2 * _MIB
_MAX_CHUNK_BYTES = (1 << 31) - 1
"""The largest chunk size in bytes that codecs accept."""
_LONGEST_COORDINATE_CHUNK = 1 << 16
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def design_array(
    name: str,
    variable: xr.Variable,
    schemas: Sequence[VariableSchema],
    layout: ArrayLayout,
    attrs: Mapping[str, Any],
) -> Target:
    """Design the encoding of a new array for a variable that does not exist in the repository yet.

    `schemas` are the variable's schemas in all files that contain it. If all files use the same encoding, the
    array uses it as well. Otherwise, or if Zarr attributes cannot describe the encoding, the array stores
    decoded values.
    """
    dims, shape = tuple(map(str, variable.dims)), variable.shape
    common = {make_signature(schema) for schema in schemas}
    first = schemas[0]
    holes = isinstance(variable.data, PieceArray) and not variable.data.is_complete
    if holes and variable.dtype == object and np.dtype(first.dtype).kind == "b":
        raise InvalidInputError(
            f"{name} is boolean and some files lack it, but booleans have no missing value",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    alike = len(common) == 1 and None not in common and np.dtype(first.dtype) == variable.dtype
    if alike and is_preserved_by_json(first) and (not holes or can_be_missing(first)):
        dtype, packing = np.dtype(first.raw_dtype).newbyteorder("="), dict(first.packing)
        target = Target(name, dims, shape, dtype.str, {}, packing, common.pop(), ())
    else:
        dtype, packing = _choose_storage(variable, schemas)
        if holes and dtype.kind == "i" and "units" in packing:
            packing["_FillValue"] = np.iinfo(dtype).min
        text = "string" if dtype.kind == "O" else dtype.str
        target = Target(name, dims, shape, text, {}, packing, None, ())
    chunks, shards = choose_chunks(variable, target.itemsize, schemas, layout, name)
    return replace(
        target,
        attrs=to_zarr_attributes({**attrs, **target.packing}, dtype),
        chunks=chunks,
        shards=shards,
        fill_value=choose_fill_value(dtype, target.packing),
    )


def can_be_missing(schema: VariableSchema) -> bool:
    """Return True if the stored dtype and the encoding of an array can represent missing values."""
    dtype = np.dtype(schema.raw_dtype)
    missing = schema.packing.get("_FillValue", schema.packing.get("missing_value"))
    return dtype.kind == "f" or np.asarray(missing).dtype.kind in "iuf"


def get_missing_value(target: Target) -> Any:
    """Return the encoded fill value for cells of a new array that no file provides. For text, it is ""."""
    if target.dtype == "string":
        return ""
    dtype = np.dtype(target.dtype)
    if dtype.kind == "S":
        return b""
    missing = target.packing.get("_FillValue", target.packing.get("missing_value"))
    if missing is None:
        missing = target.attrs.get("_FillValue", target.attrs.get("missing_value"))
    if isinstance(missing, str) or missing is None:
        missing = math.nan if dtype.kind in "fc" else None
    if missing is None:
        raise InvalidInputError(
            f"{target.name} has a type without missing values ({dtype}), and some files lack it",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return np.asarray(missing).reshape(-1)[0].astype(dtype)


def _choose_storage(
    variable: xr.Variable, schemas: Sequence[VariableSchema]
) -> tuple[np.dtype[Any], dict[str, Any]]:
    """Choose the stored dtype and the encoding attributes for decoded values. Text and times are special
    cases in Zarr.
    """
    times = [schema.packing for schema in schemas if "units" in schema.packing]
    if variable.dtype.kind == "M" or (variable.dtype == object and times):
        calendar = str(times[0].get("calendar", "standard")) if times else "standard"
        return np.dtype("i8"), {
            "units": f"{_choose_unit(variable.dtype)} since 1970-01-01",
            "calendar": calendar,
        }
    if variable.dtype.kind == "m":
        return np.dtype("i8"), {"units": _choose_unit(variable.dtype), "dtype": str(variable.dtype)}
    if variable.dtype.kind in "U":
        return np.dtype(object), {}
    own = [np.dtype(schema.dtype) for schema in schemas]
    if variable.dtype == object and all(dtype.kind == "S" for dtype in own):
        return np.result_type(*own), {}  # xarray converts bytes to objects if some files lack the variable
    return variable.dtype, {"_FillValue": np.nan} if variable.dtype.kind == "f" else {}


def _choose_unit(dtype: np.dtype[Any]) -> str:
    """Return the time unit that represents a dtype without loss. For cftime objects, it is microseconds."""
    return _UNITS.get(np.datetime_data(dtype)[0], "microseconds") if dtype.kind in "mM" else "microseconds"


def choose_fill_value(dtype: np.dtype[Any], packing: Mapping[str, Any]) -> Any:
    """Choose the fill value of a new array: the value for missing data, if the dtype has one."""
    missing = packing.get("_FillValue", packing.get("missing_value"))
    if np.asarray(missing).dtype.kind in "iuf" and dtype.kind in "iuf":
        return np.asarray(missing).reshape(-1)[0].astype(dtype).item()
    if dtype.kind == "f":
        return math.nan
    return complex(math.nan, math.nan) if dtype.kind == "c" else None


def choose_chunks(
    variable: xr.Variable, itemsize: int, schemas: Sequence[VariableSchema], layout: ArrayLayout, name: str
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Choose the chunk shape and the shard shape of a new array."""
    dims, shape = tuple(map(str, variable.dims)), variable.shape
    if layout.chunks is None:
        chunks = _fit_chunks(variable, itemsize, schemas)
    else:
        chunks = _resolve_sizes(layout.chunks, dims, shape, shape)
    check_chunk_bytes(name, dims, chunks, itemsize)
    return chunks, choose_shards(name, dims, shape, chunks, layout.shards)


def check_chunk_bytes(name: str, dims: Sequence[str], chunks: tuple[int, ...], itemsize: int) -> None:
    """Raise an error if the chunks of a new array are larger than codecs accept."""
    if math.prod(chunks) * itemsize > _MAX_CHUNK_BYTES:
        raise InvalidInputError(
            f"a chunk of {name} ({_format(dims, chunks)}) would take {math.prod(chunks) * itemsize}"
            " bytes, more than codecs accept; choose smaller chunks",
            ErrorKind.INVALID_ARRAY_METADATA,
        )


def choose_shards(
    name: str,
    dims: Sequence[str],
    shape: Sequence[int],
    chunks: tuple[int, ...],
    given: Mapping[str, int] | None,
) -> tuple[int, ...] | None:
    """Return the shard shape of a new array, or None if it has no shards."""
    if given is None or not dims:
        return None
    whole = tuple(-(-size // chunk) * chunk for size, chunk in zip(shape, chunks, strict=True))
    shards = _resolve_sizes(given, dims, whole, chunks)
    if any(shard % chunk for shard, chunk in zip(shards, chunks, strict=True)):
        raise InvalidInputError(
            f"shards of {name} ({_format(dims, shards)}) must consist of whole chunks "
            f"({_format(dims, chunks)})",
            ErrorKind.INVALID_ARRAY_METADATA,
        )
    return shards


def check_layout(layout: ArrayLayout, dims: Collection[str]) -> None:
    """Raise InvalidInputError if the options specify chunks or shards for a dimension that no new
    array has.
    """
    for what, given in (("chunks", layout.chunks), ("shards", layout.shards)):
        for dim in given or {}:
            if dim not in dims:
                raise _make_error(
                    f"{what} are given for {dim!r}, which is not a dimension; "
                    f"dimensions are {', '.join(dims)}"
                )


def _resolve_sizes(
    given: Mapping[str, int], dims: Sequence[str], whole: Sequence[int], default: Sequence[int]
) -> tuple[int, ...]:
    sizes = []
    for dim, size, usual in zip(dims, whole, default, strict=True):
        wanted = given.get(dim, usual)
        sizes.append(max(1, size if wanted == -1 else wanted))
    return tuple(sizes)


def _fit_chunks(variable: xr.Variable, itemsize: int, schemas: Sequence[VariableSchema]) -> tuple[int, ...]:
    """Return the chunk shape of the files (or the shape of one file), split or doubled to reach the target
    size.
    """
    data, shape = variable.data, variable.shape
    own = schemas[0].chunks
    if own is not None and len(own) == len(shape) and math.prod(own) * itemsize <= 4 * _CHUNK_BYTES:
        chunks = [min(size, whole) for size, whole in zip(own, shape, strict=True)]
    elif isinstance(data, PieceArray):
        chunks = [int(size) for size in data.pieces.shape.max(axis=0, initial=1)]
    else:
        chunks = list(shape)
    while math.prod(chunks) * itemsize > _CHUNK_BYTES and max(chunks) > 1:
        longest = chunks.index(max(chunks))
        chunks[longest] = -(-chunks[longest] // 2)
    axis = next((axis for axis, size in enumerate(chunks) if size < shape[axis]), None)
    while (
        axis is not None
        and chunks[axis] < shape[axis]
        and math.prod(chunks) * itemsize * 2 <= _SMALL_CHUNK_BYTES
    ):
        chunks[axis] *= 2
    return tuple(max(1, size) for size in chunks)


def design_coordinate(
    name: str, variable: xr.Variable, schema: VariableSchema, attrs: Mapping[str, Any]
) -> tuple[Target, xr.Variable]:
    """Design the array of a new coordinate, and encode its values."""
    plain = xr.Variable(variable.dims, variable.values, dict(attrs))
    values = encode_variable(plain, schema.packing, schema.raw_dtype, name)
    text = values.dtype.kind in "OUT"
    dtype = np.dtype(object) if text else values.dtype
    chunks = tuple(
        min(max(1024, 1 << max(0, size - 1).bit_length()), _LONGEST_COORDINATE_CHUNK) for size in values.shape
    )
    if values.ndim > 1:
        chunks = (chunks[0], *(max(1, size) for size in values.shape[1:]))
    return (
        Target(
            name,
            tuple(map(str, variable.dims)),
            variable.shape,
            "string" if text else dtype.str,
            to_zarr_attributes(values.attrs, dtype),
            {},
            None,
            chunks,
            None,
            choose_fill_value(dtype, values.attrs),
        ),
        values,
    )


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_ARRAY_METADATA)


def create_array(group: zarr.Group, target: Target, codec: str) -> zarr.Array[Any]:
    """Create an array without chunks in the target group, with the designed encoding."""
    if target.document is not None:
        return _create_by_document(group, target)
    dtype: Any = str if target.dtype == "string" else np.dtype(target.dtype)
    with ignore_warnings():
        return group.create_array(
            target.name,
            shape=target.shape,
            dtype=dtype,
            chunks=target.chunks,
            shards=target.shards,
            compressors=make_compressors(codec),
            fill_value=target.fill_value,
            attributes=dict(target.attrs),
            dimension_names=target.dims,
        )


def _create_by_document(group: zarr.Group, target: Target) -> zarr.Array[Any]:
    document = {**json.loads(target.document or ""), "shape": target.shape, "attributes": dict(target.attrs)}
    path = f"{group.path}/{target.name}".strip("/")
    data = cpu.Buffer.from_bytes(json.dumps(document).encode())
    run_zarr_coroutine(group.store.set(f"{path}/zarr.json", data))
    array: Any = group[target.name]
    return array  # type: ignore[no-any-return]


def _format(dims: Sequence[str], sizes: Sequence[int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in zip(dims, sizes, strict=True))
