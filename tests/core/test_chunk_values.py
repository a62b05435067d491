"""Encoding and decoding of chunks without zarr's pipeline: the same bytes, and the same chunks left out."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

from icefloe.core.chunk_grid import get_stored_grid
from icefloe.core.chunk_values import ChunkEncoder, find_decoder, find_encoder

SHAPE, CHUNKS = (5, 7), (2, 3)


def create_array(**options: Any) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    contents: dict[str, Any] = {}
    given = {"shape": SHAPE, "chunks": CHUNKS, **options}
    array: Any = zarr.create_array(zarr.storage.MemoryStore(contents), **given)
    return contents, array, json.loads(contents["zarr.json"].to_bytes())


def encode_chunks(encoder: ChunkEncoder, document: dict[str, Any], values: Any) -> dict[str, bytes]:
    grid = get_stored_grid(document)
    found = {}
    for coords in product(*map(range, grid.counts)):
        encoder.load(values[grid.inside(coords)])
        encoded = encoder.encode()
        if encoded is not None:
            found["/".join(["c", *map(str, coords)])] = encoded
    return found


def without_time(data: bytes) -> bytes:
    """Remove the time from the header of a gzip file."""
    return data[:4] + data[8:] if data.startswith(b"\x1f\x8b") else data


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i2", "u1", "i8", "bool"])
@pytest.mark.parametrize(
    "compressors", [None, ZstdCodec(level=3), ZstdCodec(level=1, checksum=True), GzipCodec()]
)
@pytest.mark.parametrize("fill", [0, 1, "nan", -0.0])
def test_encoded_chunks_match_zarr(dtype: str, compressors: Any, fill: Any) -> None:
    if np.dtype(dtype).kind != "f" and fill not in (0, 1):
        fill = 1
    fill = float("nan") if fill == "nan" else fill
    contents, array, document = create_array(dtype=dtype, compressors=compressors, fill_value=fill)
    values = np.arange(35).reshape(SHAPE).astype(dtype)
    values[:2, :3], values[2:4, :3], values[2:4, 3:6] = fill, 0, -0.0 if dtype == "f4" else 1
    array[...] = values

    encoder = find_encoder(document)

    assert encoder is not None
    expected = {key: each.to_bytes() for key, each in contents.items() if key != "zarr.json"}
    found = encode_chunks(encoder, document, values)
    assert {key: without_time(each) for key, each in found.items()} == {
        key: without_time(each) for key, each in expected.items()
    }
    assert len(expected) < 9


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "i8", "bool"])
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), GzipCodec(), BloscCodec()])
def test_decoded_chunks_match_zarr(dtype: str, compressors: Any) -> None:
    contents, array, document = create_array(dtype=dtype, compressors=compressors)
    array[...] = np.arange(35).reshape(SHAPE) % 5 + 1

    decoder = find_decoder(document)

    assert decoder is not None
    grid = get_stored_grid(document)
    for coords in product(*map(range, grid.counts)):
        inside = grid.inside(coords)
        own = tuple(slice(part.stop - part.start) for part in inside)
        decoded = decoder.decode(contents["/".join(["c", *map(str, coords)])].to_bytes())
        np.testing.assert_array_equal(decoded[own], array[inside])


def test_a_damaged_chunk_is_an_error() -> None:
    _, _, document = create_array(dtype="f4", compressors=None)
    decoder = find_decoder(document)
    assert decoder is not None

    with pytest.raises(ValueError, match="cannot reshape"):
        decoder.decode(bytes(4))


def test_a_later_chunk_does_not_see_values_of_an_earlier_one() -> None:
    contents, array, document = create_array(dtype="i4", fill_value=9)
    array[...] = 5
    encoder = find_encoder(document)
    assert encoder is not None

    found = encode_chunks(encoder, document, np.full(SHAPE, 5, "i4"))

    assert found["c/2/2"] == contents["c/2/2"].to_bytes()


def test_an_array_without_dimensions_has_one_chunk() -> None:
    contents, array, document = create_array(shape=(), chunks=(), dtype="f8")
    array[...] = 2.5
    encoder = find_encoder(document)
    assert encoder is not None

    assert encode_chunks(encoder, document, np.array(2.5)) == {"c": contents["c"].to_bytes()}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f4", "compressors": BloscCodec()},
        {"dtype": "f4", "compressors": [ZstdCodec(), GzipCodec()]},
        {"dtype": "f4", "serializer": BytesCodec(endian="big")},
        {"dtype": "f4", "shards": (4, 6)},
        {"dtype": "str"},
        {"dtype": "c8"},
        {"dtype": "M8[ns]"},
    ],
)
def test_arrays_with_unsupported_codecs_are_encoded_by_zarr(options: dict[str, Any]) -> None:
    _, _, document = create_array(**options)

    assert find_encoder(document) is None
    is_blosc = "compressors" in options and isinstance(options["compressors"], BloscCodec)
    assert (find_decoder(document) is None) is not is_blosc


@pytest.mark.parametrize(
    "setting",
    [
        {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"},
        {"array.write_empty_chunks": True},
    ],
)
def test_chunk_encoding_respects_zarr_settings(setting: dict[str, Any]) -> None:
    _, _, document = create_array(dtype="f4", compressors=ZstdCodec())

    with zarr.config.set(setting):
        assert find_encoder(document) is None
