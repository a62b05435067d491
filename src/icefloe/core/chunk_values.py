"""Decode and encode single chunks with zarr's codecs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.amounts import format_bytes
from icefloe._internal.private_imports import get_zarr_buffer_selector

Values = NDArray[Any]


def decode_chunk(
    document: Mapping[str, Any], shape: Sequence[int], data: bytes | None, *, most_bytes: int | None = None
) -> Values:
    """Decode a chunk of the given shape with the codecs from the zarr.json of its array.

    Without data, all values are the fill value. Raises ValueError if the decoded chunk would exceed
    `most_bytes`.
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
    """Encode a chunk with the codecs from the zarr.json of its array.

    Returns None if all values are the fill value.
    """
    import zarr

    contents: dict[str, Any] = {}
    array: Any = zarr.open_array(_make_store_of_one(document, values.shape, contents), mode="r+")
    array[...] = values
    found = contents.get(_make_key(values.shape))
    return None if found is None else bytes(found.to_bytes())


def have_equal_values(one: Values, other: Values) -> bool:
    """Return True if decoded chunks are equal. NaN equals NaN."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "fcmM":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))


def get_chunk_shape(document: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the chunk shape of an array with a regular chunk grid; None for other grids."""
    grid = document["chunk_grid"]
    return tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None


def are_equivalent_documents(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    """Return True if two zarr.json documents are equivalent, even if they are spelled differently, for
    example by omitting a default.
    """
    if name == "chunk_grid":
        shape = get_chunk_shape(one)
        return shape is not None and shape == get_chunk_shape(other)
    try:
        return bool(_normalize_document(one).get(name) == _normalize_document(other).get(name))
    except (ValueError, TypeError, KeyError):  # for example, a codec that zarr does not know
        return False


def _normalize_document(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an array's zarr.json as zarr would write it, without the shape and the chunk grid."""
    import zarr

    shape = (1,) * len(document["shape"])
    array: Any = zarr.open_array(_make_store_of_one(document, shape, {}), mode="r")
    found: dict[str, Any] = array.metadata.to_dict()
    return found


def _make_store_of_one(document: Mapping[str, Any], shape: Sequence[int], contents: dict[str, Any]) -> Any:
    """Return an in-memory store with an array that consists of a single chunk."""
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


_QUICK_CODECS: Final = {"zstd": "zarr.codecs.zstd", "gzip": "zarr.codecs.gzip"}
"""Compressors for which zarr calls numcodecs without any changes, with the modules of zarr's codec classes.
"""
_QUICK_DECODERS: Final = {**_QUICK_CODECS, "blosc": "zarr.codecs.blosc"}
"""Compressors whose data numcodecs decodes exactly like zarr."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkEncoder:
    """A chunk encoder for one array. It produces the same bytes as zarr's codec pipeline, without its
    overhead.

    zarr copies and compares each chunk several times and passes it between threads.
    """

    room: Values
    """A buffer for one chunk, which is reused for every chunk."""
    fill_value: Any
    compressor: Any
    """The numcodecs compressor; None if chunks are not compressed."""

    def load(self, values: Values) -> Values:
        """Copy the values of a chunk to the encoder's buffer.

        Edge chunks are padded with the fill value.
        """
        if values.shape != self.room.shape:
            self.room[...] = self.fill_value
        place: Any = (*(slice(size) for size in values.shape), ...)  # a view, even for scalars
        own: Values = self.room[place]
        own[...] = values
        return own

    def encode(self) -> bytes | None:
        """Encode the chunk in the buffer. Return None if all values are the fill value."""
        flat = self.room.reshape(-1)
        if self._is_empty(flat[:1]) and self._is_empty(flat):
            return None
        if self.compressor is None:
            return flat.tobytes()
        return bytes(self.compressor.encode(flat.view(np.uint8)))

    def _is_empty(self, values: Values) -> bool:
        if values.dtype.kind != "f":
            return bool((values == self.fill_value).all())
        if np.isnan(self.fill_value):
            return bool(np.isnan(values).all())
        if self.fill_value != 0:
            return bool((values == self.fill_value).all())
        bits = f"u{values.dtype.itemsize}"  # zarr distinguishes 0.0 and -0.0
        return bool((values.view(bits) == np.asarray(self.fill_value, values.dtype).view(bits)).all())


def find_encoder(document: Mapping[str, Any]) -> ChunkEncoder | None:
    """Create a fast chunk encoder for the array that a zarr.json describes: numeric, with regular chunks and
    at most one compressor.

    Returns None for other arrays, or if zarr is configured to use other codecs or to write empty chunks.
    """
    import zarr

    found = _find_quick_encoding(document, _QUICK_CODECS)
    if found is None or zarr.config.get("array.write_empty_chunks"):
        return None
    return ChunkEncoder(np.empty(found.shape, found.dtype), found.fill_value, found.compressor)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDecoder:
    """A chunk decoder for one array. It returns the same values as zarr's codec pipeline, without its
    overhead.

    For each chunk, zarr switches threads and copies the values into the result.
    """

    shape: tuple[int, ...]
    """The chunk shape of the array."""
    dtype: np.dtype[Any]
    fill_value: Any
    compressor: Any
    """The numcodecs compressor; None if chunks are not compressed."""

    def decode(self, data: bytes) -> Values:
        """Decode a chunk to its full size. Edge chunks are not trimmed."""
        decoded = data if self.compressor is None else self.compressor.decode(data)
        return np.frombuffer(decoded, self.dtype).reshape(self.shape)


def find_decoder(document: Mapping[str, Any]) -> ChunkDecoder | None:
    """Create a fast chunk decoder for the array that a zarr.json describes: numeric, with regular chunks and
    at most one compressor.

    Returns None for other arrays, or if zarr is configured to use other codecs.
    """
    return _find_quick_encoding(document, _QUICK_DECODERS)


def _find_quick_encoding(document: Mapping[str, Any], quick: Mapping[str, str]) -> ChunkDecoder | None:
    """Return a decoder if the array's only codecs are `bytes` and at most one of the given compressors."""
    import numcodecs
    import zarr
    from zarr.dtype import parse_dtype
    from zarr.registry import get_codec_class

    grid, (first, *others) = document["chunk_grid"], document["codecs"]
    if grid["name"] != "regular" or document.get("storage_transformers") or len(others) > 1:
        return None
    own_pipeline = str(zarr.config.get("codec_pipeline.path")).startswith("zarr.core.codec_pipeline.")
    if not own_pipeline or sys.byteorder != "little":
        return None
    if not isinstance(first, Mapping) or first["name"] != "bytes":
        return None
    if first.get("configuration", {}).get("endian", "little") != "little":
        return None
    compressor = None
    for codec in others:
        name = codec["name"] if isinstance(codec, Mapping) else ""
        if name not in quick or get_codec_class(name).__module__ != quick[name]:
            return None
        own = codec.get("configuration", {}) if name in _QUICK_CODECS else {}  # Blosc stores it in the data
        compressor = numcodecs.get_codec({"id": name, **own})
    try:
        kind = parse_dtype(document["data_type"], zarr_format=3)
    except (ValueError, TypeError):
        return None
    dtype = np.dtype(kind.to_native_dtype())
    if dtype.kind not in "biuf" or not dtype.isnative:
        return None
    fill = kind.from_json_scalar(document["fill_value"], zarr_format=3)
    return ChunkDecoder(tuple(grid["configuration"]["chunk_shape"]), dtype, fill, compressor)
