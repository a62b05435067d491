"""Variables whose values are at hand, and references to values that are stored in one piece."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from icefloe.virtual.variables import ChunkReferences, Values, VirtualVariable
from icefloe.virtual.zarr_metadata import bytes_codec, fill_value_json


def loaded_variable(
    dimensions: tuple[str, ...], values: Values, attributes: Mapping[str, Any]
) -> VirtualVariable:
    """A variable of the given values, of which the whole is one chunk."""
    texts = values.dtype.kind == "T"
    dtype = values.dtype if texts else values.dtype.newbyteorder("=")
    compressor = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    return VirtualVariable(
        dimensions,
        values.shape,
        dtype,
        tuple(max(size, 1) for size in values.shape),
        ({"name": "vlen-utf8"} if texts else bytes_codec(dtype), compressor),
        "" if texts else fill_value_json(None, dtype),
        attributes,
        values.astype(dtype),
    )


def with_dimension(variable: VirtualVariable, dimension: str) -> VirtualVariable:
    """The variable with a dimension of size 1 in front: chunks keep their bytes."""
    if dimension in variable.dimensions:
        raise ValueError(f"there is a dimension {dimension} already")
    chunks = variable.chunks
    codecs = variable.codecs
    if isinstance(chunks, np.ndarray):
        return loaded_variable((dimension, *variable.dimensions), chunks[np.newaxis], variable.attributes)
    if codecs and codecs[0]["name"] == "transpose":
        order = [0, *(axis + 1 for axis in codecs[0]["configuration"]["order"])]
        codecs = ({"name": "transpose", "configuration": {"order": order}}, *codecs[1:])
    return replace(
        variable,
        dimensions=(dimension, *variable.dimensions),
        shape=(1, *variable.shape),
        chunk_shape=(1, *variable.chunk_shape),
        codecs=codecs,
        chunks=replace(
            chunks,
            coords=np.insert(chunks.coords, 0, 0, axis=1),
            inline_coords=np.insert(chunks.inline_coords, 0, 0, axis=1),
        ),
    )


def run_of_chunks(
    start: int, shape: tuple[int, ...], chunk_shape: tuple[int, ...], itemsize: int
) -> ChunkReferences:
    """References to one run of bytes, divided as `Wanted.chunks_of_contiguous` says."""
    grid = tuple(size // chunk for size, chunk in zip(shape, chunk_shape, strict=True))
    count, length = math.prod(grid), math.prod(chunk_shape) * itemsize
    coords = np.indices(grid, np.uint32).reshape(len(grid), count).T
    offsets = start + length * np.arange(count, dtype=np.uint64)
    return ChunkReferences.of(coords, offsets, np.full(count, length, np.uint64))
