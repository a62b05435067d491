"""Columns of virtual locations: deduplication, and compression with a zstd dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.encoding.columns import BLOCK, I64, Blobs, view_windows
from icefloe.errors import ErrorKind, FormatError

MAX_LOCATION_BYTES: Final = 1024
"""The maximum size that official readers accept for a decompressed location. Longer locations are stored
uncompressed.
"""
_SHORTEST_SAMPLE: Final = 8
_MIN_LEVEL: Final = -(1 << 17)
_DEFAULT_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class LocationCompression:
    """The settings for compressing virtual chunk locations in manifest files.

    The defaults match the official library.
    """

    min_num_chunks: int = 1000
    dictionary_max_training_samples: int = 100
    dictionary_max_size_bytes: int = 2048
    compression_level: int = 3

    def train(self, locations: Blobs, num_virtual: int) -> Dictionary | None:
        """Train a zstd dictionary for virtual chunk locations; None if it would not pay off."""
        if num_virtual < self.min_num_chunks or not len(locations):
            return None
        wanted = min(self.dictionary_max_training_samples, len(locations))
        spread = np.linspace(0, len(locations) - 1, wanted).astype(np.int64)
        samples = locations.take(spread).tolist()
        if sum(len(sample) < _SHORTEST_SAMPLE for sample in samples) * 2 >= len(samples):
            return None
        total = sum(map(len, samples))
        samples *= max(-(-self.dictionary_max_size_bytes // total), 1)
        try:
            trained = zstandard.train_dictionary(self.dictionary_max_size_bytes, list(samples))
        except zstandard.ZstdError:
            return None  # too few samples, or too similar ones
        return Dictionary(trained.as_bytes(), self._get_level())

    def _get_level(self) -> int:
        """Return the zstd compression level. 0 selects the zstd default, and levels out of range are
        clipped.
        """
        return max(_MIN_LEVEL, min(self.compression_level, zstandard.MAX_COMPRESSION_LEVEL)) or _DEFAULT_LEVEL


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A trained zstd dictionary for virtual chunk locations, as stored in a manifest."""

    data: bytes
    level: int = 3

    def compress(self, locations: Blobs) -> Blobs:
        """Compress each virtual chunk location into its own zstd frame."""
        dictionary = zstandard.ZstdCompressionDict(self.data)
        dictionary.precompute_compress(level=self.level)
        compressor = zstandard.ZstdCompressor(level=self.level, dict_data=dictionary)
        return Blobs.from_list([compressor.compress(location) for location in locations.tolist()])

    def decompress(self, frames: Blobs, place: str) -> Blobs:
        """Decompress virtual chunk locations, each stored as one zstd frame."""
        frames = frames.compact()
        try:
            sizes = read_frame_sizes(frames)
            if sizes is not None and not (sizes > MAX_LOCATION_BYTES).any():
                return self._decompress_stream(frames, sizes, place)
            one = self._decompressor()
            packed = Blobs.from_list([_decompress_one(one, frame, place) for frame in frames.tolist()])
            return Blobs(packed.buffer, packed.starts, packed.lengths, place)
        except zstandard.ZstdError as error:
            raise FormatError(f"{place}: damaged compressed location: {error}", kind=_KIND) from None

    def _decompress_stream(self, frames: Blobs, sizes: I64, place: str) -> Blobs:
        """Decompress all frames as one stream, with one call instead of a million."""
        ends = sizes.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        with self._decompressor().stream_reader(frames.buffer.data, read_across_frames=True) as reader:
            data = reader.read(total + 1)
        if len(data) != total:
            raise FormatError(f"{place}: compressed locations do not have the declared size", kind=_KIND)
        return Blobs(np.frombuffer(data, np.uint8), ends - sizes, sizes, place)

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        if not self.data:
            return zstandard.ZstdDecompressor()
        return zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(self.data))


_KIND: Final = ErrorKind.INVALID_FILE_FORMAT


def _decompress_one(decompressor: zstandard.ZstdDecompressor, frame: bytes, place: str) -> bytes:
    # The library allocates the size that a frame declares, even if it exceeds the limit.
    size, limit = zstandard.frame_content_size(frame), 64 * MAX_LOCATION_BYTES
    if size > limit:
        raise FormatError(
            f"{place}: a compressed location declares {size} bytes, which is too large", kind=_KIND
        )
    return decompressor.decompress(frame, max_output_size=limit, allow_extra_data=False)


def read_frame_sizes(frames: Blobs) -> I64 | None:
    """Read the decompressed sizes from the zstd frame headers of virtual chunk locations; None if a frame
    lacks its size.

    Reads the frame headers (RFC 8878, 3.1.1.1) of all rows at once. Only one- and two-byte sizes are
    supported.
    """
    if not len(frames) or int(frames.lengths.min()) < 9:
        return None
    data, at = frames.buffer, frames.starts
    if (view_windows(data, 4)[at].view("<u4") != zstandard.MAGIC_NUMBER).any():
        return None
    descriptor = data[at + 4]
    size_code, single, id_code = descriptor >> 6, (descriptor >> 5) & 1, descriptor & 3
    if (size_code > 1).any() or ((size_code == 0) & (single == 0)).any():
        return None
    field = at + 5 + np.array([0, 1, 2, 4])[id_code] + (1 - single.astype(np.int64))
    if int((field + 2 - at - frames.lengths).max()) > 0:
        return None
    low = data[field].astype(np.int64)
    sizes: I64 = np.where(size_code == 0, low, low + (data[field + 1].astype(np.int64) << 8) + 256)
    return sizes


def encode_runs(blobs: Blobs) -> tuple[NDArray[np.uint32], Blobs]:
    """Deduplicate neighbouring virtual chunk locations. Return a code per row, and the distinct strings.

    Chunks of the same file are usually neighbours, so it suffices to find runs; nothing is sorted or hashed.
    """
    count = len(blobs)
    if count < 2:
        return np.arange(count, dtype=np.uint32), blobs
    same = blobs.starts[1:] == blobs.starts[:-1]
    same &= blobs.lengths[1:] == blobs.lengths[:-1]
    if np.count_nonzero(same) * 8 < count and _has_repeated_neighbours(blobs):
        same = _equal_neighbours(blobs)
    heads = np.flatnonzero(np.concatenate(([True], ~same)))
    if len(heads) == count:
        return np.arange(count, dtype=np.uint32), blobs
    codes = np.cumsum(np.concatenate(([True], ~same)), dtype=np.uint32) - np.uint32(1)
    runs = blobs.take(heads)
    places, first, group = np.unique(runs.starts, return_index=True, return_inverse=True)
    if len(places) < len(runs) and np.array_equal(runs.lengths, runs.lengths[first][group]):
        return group.astype(np.uint32)[codes], runs.take(first)
    return codes, runs


def _has_repeated_neighbours(blobs: Blobs) -> bool:
    """Return True if many neighbouring rows are equal, judging from a sample."""
    sample = np.unique(np.linspace(0, len(blobs) - 2, 256).astype(np.int64))
    pairs = zip(blobs.take(sample).tolist(), blobs.take(sample + 1).tolist(), strict=True)
    return sum(one == other for one, other in pairs) * 4 > len(sample)


def _equal_neighbours(blobs: Blobs) -> NDArray[np.bool_]:
    """Return a mask, starting with the second row, of the rows that equal the previous row."""
    same = np.zeros(len(blobs) - 1, np.bool_)
    for start in range(0, len(same), BLOCK):
        part = blobs.take(slice(start, start + BLOCK + 1))
        same[start + _equal_to_next(part)] = True
    return same


def _equal_to_next(blobs: Blobs) -> I64:
    """Return a mask of the rows that equal the next row, comparing eight bytes of every row at a time."""
    starts, lengths = blobs.starts, blobs.lengths
    alike = np.flatnonzero(lengths[1:] == lengths[:-1])
    length = lengths[alike]
    found = [alike[length == 0]]
    for size, rows in ((8, alike[length >= 8]), (1, alike[(length > 0) & (length < 8)])):
        words = view_windows(blobs.buffer, size).view(f"<u{size}")
        for at in range(0, int(lengths[rows].max(initial=0)), size):
            back = np.minimum(at, lengths[rows] - size)  # the last word overlaps the previous one
            rows = rows[words[starts[rows] + back] == words[starts[rows + 1] + back]]
        found.append(rows)
    return np.concatenate(found)


def drop_unused(codes: NDArray[np.uint32], blobs: Blobs) -> tuple[NDArray[np.uint32], Blobs]:
    """Remove unused virtual chunk locations, and deduplicate the remaining ones if there are few."""
    used = np.zeros(len(blobs), np.bool_)
    used[codes] = True
    if not used.all():
        codes = (np.cumsum(used, dtype=np.uint32) - np.uint32(1))[codes]
        blobs = blobs.take(used)
    if len(blobs) * 4 > len(codes):
        return codes, blobs
    values = blobs.tolist()
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    if len(places) == len(values):
        return codes, blobs
    lookup = np.fromiter(map(places.__getitem__, values), np.uint32, len(values))
    return lookup[codes], Blobs.from_list(list(places))


def join(parts: Sequence[Blobs]) -> Blobs:
    """Concatenate columns of virtual chunk locations."""
    return Blobs.concat(list(parts)) if parts else Blobs.empty(0)
