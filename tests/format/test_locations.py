"""Virtual locations as columns, compared with a loop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding.columns import Blobs
from icefloe.errors import FormatError
from icefloe.format import locations
from icefloe.format.locations import (
    Dictionary,
    LocationCompression,
    drop_unused,
    encode_runs,
    read_frame_sizes,
)
from icefloe.format.manifest import factorize

WORDS = st.sampled_from([b"", b"a", b"ab", b"1234567", b"12345678", b"123456789", b"12345678" * 2 + b"x"])


@st.composite
def runs(draw: st.DrawFn) -> list[bytes]:
    """Strings that repeat next to each other, often of less than eight bytes."""
    parts = draw(st.lists(st.tuples(WORDS | st.binary(max_size=9), st.integers(1, 4)), max_size=8))
    return [word for word, count in parts for _ in range(count)]


def decoded(codes: np.ndarray[tuple[int], np.dtype[np.uint32]], blobs: Blobs) -> list[bytes]:
    distinct = blobs.tolist()
    return [distinct[code] for code in codes.tolist()]


@given(runs())
def test_runs_of_equal_strings_share_a_code(items: list[bytes]) -> None:
    codes, blobs = encode_runs(Blobs.from_list(items))

    assert decoded(codes, blobs) == items


@given(runs())
def test_neighbouring_locations_are_compared_byte_by_byte(items: list[bytes]) -> None:
    blobs = Blobs.from_list(items)
    if len(items) < 2:
        return

    same = locations._equal_neighbours(blobs)

    assert same.tolist() == [one == other for one, other in pairwise(items)]


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_shared_strings_are_distinguished_by_position(words: list[bytes], rows: list[int]) -> None:
    rows = [row % len(words) for row in rows]
    blobs = Blobs.from_list(words).take(np.array(rows, np.int64))

    codes, distinct = encode_runs(blobs)

    assert decoded(codes, distinct) == [words[row] for row in rows]


@pytest.mark.parametrize("length", range(1, 20))
def test_strings_at_the_very_end_of_the_buffer_are_compared(length: int) -> None:
    items = [b"x" * length] * 3 + [b"x" * (length - 1) + b"y"] * 3

    codes, blobs = encode_runs(Blobs.from_list(items))

    assert decoded(codes, blobs) == items
    assert len(blobs) == 2


@given(st.lists(WORDS, max_size=6), st.data())
def test_unused_and_duplicate_strings_are_removed(words: list[bytes], data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=40)) if words else []

    found, blobs = drop_unused(np.array(codes, np.uint32), Blobs.from_list(words))

    assert decoded(found, blobs) == [words[code] for code in codes]
    assert set(blobs.tolist()) == {words[code] for code in codes}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=20))
def test_equal_locations_get_the_same_code(texts: list[str]) -> None:
    codes, blobs = factorize(texts)

    assert [text.decode() for text in decoded(codes, blobs)] == texts
    assert len(blobs) == len(set(texts))


@pytest.mark.parametrize("repeats", [1, 2, 100])
def test_equal_locations_get_the_same_code_in_large_columns(repeats: int) -> None:
    texts = [f"s3://bucket/{row // repeats}" for row in range(10_000)]

    codes, blobs = factorize(texts)

    assert [text.decode() for text in decoded(codes, blobs)] == texts


FRAME_OPTIONS = [
    {"write_content_size": size, "write_checksum": check, "write_dict_id": True}
    for size in (True, False)
    for check in (True, False)
]


@pytest.mark.parametrize("options", FRAME_OPTIONS)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=5))
def test_frame_sizes_match_zstd(options: dict[str, bool], lengths: list[int]) -> None:
    compressor = zstandard.ZstdCompressor(**options)  # type: ignore[arg-type]
    frames = [compressor.compress(bytes(length)) for length in lengths]

    sizes = read_frame_sizes(Blobs.from_list(frames))

    expected = [zstandard.get_frame_parameters(frame).content_size for frame in frames]
    if not options["write_content_size"]:
        assert sizes is None
    elif sizes is not None:
        assert sizes.tolist() == expected == lengths


def test_sizes_of_dictionary_frames_are_read_in_bulk() -> None:
    urls = Blobs.from_texts([f"s3://bucket/some/prefix/{i % 97}/file-{i:05}.nc" for i in range(500)])
    dictionary = LocationCompression(min_num_chunks=1).train(urls, 500)
    assert dictionary is not None

    frames = dictionary.compress(urls)

    sizes = read_frame_sizes(frames)
    assert sizes is not None
    assert sizes.tolist() == urls.lengths.tolist()
    assert dictionary.decompress(frames, "here") == urls


@given(st.lists(st.binary(max_size=12), max_size=4))
def test_frame_size_function_accepts_any_bytes(items: list[bytes]) -> None:
    magic = (zstandard.MAGIC_NUMBER).to_bytes(4, "little")

    for frames in (items, [magic + item for item in items]):
        read_frame_sizes(Blobs.from_list(frames))


@pytest.mark.parametrize("length", [0, 1, 255, 256, 1024, 1025, 60_000])
def test_locations_of_any_length_are_decompressed(length: int) -> None:
    location = Blobs.from_list([b"x" * length, b"s3://bucket/a"])
    dictionary = Dictionary(b"s3://bucket/" * 20)

    assert dictionary.decompress(dictionary.compress(location), "here") == location


@pytest.mark.parametrize("level", [-(2**31), -5, 0, 3, 22, 23, 2**31 - 1])
def test_compression_levels_are_clipped(level: int) -> None:
    blobs = Blobs.from_list([f"s3://bucket/some/folder/name-{i}.nc".encode() for i in range(200)])

    dictionary = LocationCompression(min_num_chunks=1, compression_level=level).train(blobs, len(blobs))

    assert dictionary is not None
    assert dictionary.decompress(dictionary.compress(blobs), "here") == blobs


@pytest.mark.parametrize("lacking", ["dictionary_max_training_samples", "dictionary_max_size_bytes"])
def test_locations_are_stored_plain_without_samples_or_a_dictionary_size(lacking: str) -> None:
    blobs = Blobs.from_list([f"s3://bucket/some/folder/name-{i}.nc".encode() for i in range(200)])
    compression = LocationCompression(min_num_chunks=1, **{lacking: 0})

    assert compression.train(blobs, len(blobs)) is None


@given(st.binary(max_size=40))
def test_damaged_locations_are_rejected(data: bytes) -> None:
    dictionary = Dictionary(b"s3://bucket/" * 20)
    frame = dictionary.compress(Blobs.from_list([b"s3://bucket/name.nc"]))[0]
    for frames in ([data], [frame, data], [frame[:-1]]):
        with pytest.raises(FormatError, match=r"^here: "):
            dictionary.decompress(Blobs.from_list(frames), "here")
