"""Decoding and encoding of single chunks with zarr's codecs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.amounts import format_bytes
from icefloe._internal.private_imports import get_zarr_buffer_selector

Values = NDArray[Any]


def decode_chunk(
    document: Mapping[str, Any], shape: Sequence[int], data: bytes | None, *, most_bytes: int | None = None
) -> Values:
    """Decode a chunk of an array, given the zarr.json of the array and the shape of the chunk.

    A chunk without data has the fill value. ValueError is raised if the chunk has more than `most_bytes`.
    """
    import zarr

    contents = (
        {} if data is None else {_make_key(shape): get_zarr_buffer_selector()().buffer.from_bytes(data)}
    )
    array: Any = zarr.open_array(_make_store_of_one(document, shape, contents), mode="r")
    if most_bytes is not None and array.nbytes > most_bytes:
        raise ValueError(f"a chunk of {format_bytes(array.nbytes)} is too large to compare")
    return np.asarray(array[...])


def encode_chunk(document: Mapping[str, Any], values: Values) -> bytes | None:
    """Encode a chunk of an array. Return None if all values are the fill value."""
    import zarr

    contents: dict[str, Any] = {}
    array: Any = zarr.open_array(_make_store_of_one(document, values.shape, contents), mode="r+")
    array[...] = values
    found = contents.get(_make_key(values.shape))
    return None if found is None else bytes(found.to_bytes())


def _make_store_of_one(document: Mapping[str, Any], shape: Sequence[int], contents: dict[str, Any]) -> Any:
    """Return a store that presents a chunk as an array with a single chunk."""
    import zarr

    single = {
        **document,
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    contents["zarr.json"] = get_zarr_buffer_selector()().buffer.from_bytes(json.dumps(single).encode())
    return zarr.storage.MemoryStore(contents)


def _make_key(shape: Sequence[int]) -> str:
    return "/".join(["c", *("0" for _ in shape)])
