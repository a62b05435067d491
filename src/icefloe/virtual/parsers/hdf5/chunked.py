"""Chunked HDF5 datasets: their filters as Zarr codecs, and their chunks as references."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.codecs import HDF5
from icefloe.virtual.decoders.hdf5 import DECODERS, Chunk, undo
from icefloe.virtual.errors import RefusalReason, RefusedVariable
from icefloe.virtual.parsers import INLINE_BYTES
from icefloe.virtual.variables import ChunkReferences
from icefloe.virtual.zarr_metadata import blosc_codec, numcodec, zstd_codec

if TYPE_CHECKING:
    import h5py

StoredFilter: TypeAlias = tuple[int, int, tuple[int, ...], bytes]
"""A filter as h5py describes it: number, flags, values and name."""
_SHUFFLE: Final = 2
_FLETCHER32: Final = 3
_CHECKSUM_BYTES: Final = 4
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True, slots=True)
class _Filter:
    """A step of HDF5's pipeline, and the Zarr codec that undoes it."""

    bit: int
    """Its position in the masks of chunks that it skipped."""
    number: int
    values: tuple[int, ...]
    codec: dict[str, Any]

    @property
    def can_encode(self) -> bool:
        """Whether the codec can encode too, being one of zarr or numcodecs."""
        return bool(self.codec["name"] != HDF5)

    @property
    def skips(self) -> bool:
        """Whether the codec leaves chunks alone that already have the decoded size."""
        return bool(self.codec["configuration"].get("skips", False))


def _blosc(values: Sequence[int]) -> dict[str, Any]:
    # Two versions, sizes of elements and chunks, then level, shuffle and compressor, which may be left out.
    level, shuffle, compressor = values[4:7] if len(values) >= 7 else (5, 1, 0)
    return blosc_codec(_BLOSC_COMPRESSORS[compressor], level, shuffle, max(values[2], 1))


def _own_codec(number: int, values: Sequence[int], *, skips: bool = False) -> dict[str, Any]:
    configuration = {"filter": number, "values": list(values), **({"skips": True} if skips else {})}
    return {"name": HDF5, "configuration": configuration}


_CODECS: Final[dict[int, Callable[[Sequence[int]], dict[str, Any]]]] = {
    1: lambda values: numcodec("zlib", level=values[0] if values else 1),
    _SHUFFLE: lambda values: numcodec("shuffle", elementsize=values[0]),
    _FLETCHER32: lambda values: numcodec("fletcher32"),
    307: lambda values: numcodec("bz2", level=values[0] if values else 9),
    32001: _blosc,
    32015: lambda values: zstd_codec(values[0] if values else 3),
}
"""Filters that codecs of zarr and numcodecs undo; others are left to our own codec."""
_KNOWN: Final = {32017: "SZ", 32019: "JPEG", 32024: "SZ3", 32028: "SPERR"}


def refer_to_chunks(
    dataset: h5py.Dataset, stored: Sequence[StoredFilter], dtype: np.dtype[Any], inner: tuple[int, ...]
) -> tuple[list[dict[str, Any]], ChunkReferences]:
    """Return the codecs that all chunks need, and references to the chunks that were written."""
    filters = _filters(stored)
    own_shape, own_chunks = dataset.shape, dataset.chunks
    chunk = Chunk((*own_chunks, *inner), dtype)
    rank = len(own_shape)
    numbers = array("Q")
    # One walk of the index, where asking for each chunk is one walk each.
    dataset.id.chunk_iter(
        lambda found: numbers.extend((*found.chunk_offset, found.byte_offset, found.size, found.filter_mask))
    )
    table = np.frombuffer(numbers, np.uint64).reshape(-1, rank + 3)
    coords, rows = table[:, :rank] // np.array(own_chunks, np.uint64), table[:, rank:]
    # A file may keep chunks beyond the present shape for a while after it was cut down.
    grid = -(-np.array(own_shape) // np.array(own_chunks))
    inside = (coords < grid.astype(np.uint64)).all(axis=1)
    coords, rows = coords[inside], rows[inside]
    masks = np.unique(rows[:, 2])
    if len(masks) == 1:
        filters = [each for each in filters if not int(masks[0]) >> each.bit & 1]
    odd = rows[:, 2] != 0 if len(masks) > 1 else np.zeros(len(rows), np.bool_)
    # A few chunks are stored inline, encoded by all filters, so that every reader has the codecs.
    are_few = np.count_nonzero(odd) * chunk.size_bytes <= INLINE_BYTES
    if odd.any() and not (are_few and all(each.can_encode for each in filters)):
        compressor = _find_compressor(filters)
        if compressor is not None:
            found = filters[compressor]
            filters[compressor] = replace(found, codec=_own_codec(found.number, found.values, skips=True))
            odd = ~_are_told_by_size(rows, filters, compressor, chunk)
    inline = _read_inline(dataset, coords[odd], filters, chunk)
    plain = ~odd
    chunks = ChunkReferences.of(coords[plain], rows[plain, 0], rows[plain, 1], inline=inline)
    return [each.codec for each in filters], chunks.with_inner(len(inner))


def _filters(stored: Sequence[StoredFilter]) -> list[_Filter]:
    """Return the filters in the order of their application; RefusedVariable for one that no codec undoes."""
    found: list[_Filter] = []
    for position, (number, _, values, name) in enumerate(stored):
        if number not in _CODECS and number not in DECODERS:
            known = _KNOWN.get(number) or name.decode(errors="replace").rstrip("\0") or "unknown"
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER, f"no Zarr codec undoes HDF5's filter {number} ({known})"
            )
        if number == _SHUFFLE and values[0] == 1:
            continue  # nothing is moved
        # After another filter there may be any number of bytes, and not one of whole values.
        usual = number in _CODECS and not (number == _SHUFFLE and found)
        codec = _CODECS[number](values) if usual else _own_codec(number, values)
        found.append(_Filter(position, number, tuple(values), codec))
    return found


def _find_compressor(filters: list[_Filter]) -> int | None:
    """Find the filter that is skipped for chunks it would have made larger: the last, but for checksums."""
    for place in reversed(range(len(filters))):
        if filters[place].number != _FLETCHER32:
            summed = any(each.number == _FLETCHER32 for each in filters[:place])
            return place if filters[place].number in DECODERS and not summed else None
    return None


def _are_told_by_size(
    rows: NDArray[np.uint64], filters: list[_Filter], compressor: int, chunk: Chunk
) -> NDArray[np.bool_]:
    """Mark the chunks that only the compressor may have skipped, which their size tells."""
    tail = _CHECKSUM_BYTES * (len(filters) - compressor - 1)
    skipped = rows[:, 2] == np.uint64(1 << filters[compressor].bit)
    whole = rows[:, 1] == np.uint64(chunk.size_bytes + tail)
    found: NDArray[np.bool_] = (skipped & whole) | ((rows[:, 2] == 0) & ~whole)
    return found


def _read_inline(
    dataset: h5py.Dataset, coords: NDArray[np.uint64], filters: list[_Filter], chunk: Chunk
) -> dict[tuple[int, ...], bytes]:
    """Read the chunks that some filters skipped, and encode them with all filters."""
    if len(coords) * chunk.size_bytes > INLINE_BYTES:
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            f"{len(coords)} chunks are stored without some of its filters, more than can be taken along",
        )
    inline = {}
    for place in coords.tolist():  # few: see above
        mask, data = dataset.id.read_direct_chunk(tuple(np.multiply(place, dataset.chunks).tolist()))
        inline[tuple(place)] = _reencode(data, mask, filters, chunk)
    return inline


def _reencode(data: bytes, mask: int, filters: Sequence[_Filter], chunk: Chunk) -> bytes:
    """Encode a chunk that some filters skipped as if none had."""
    import numcodecs

    if not all(each.can_encode or each.skips for each in filters):
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            "some chunks are stored without some of its filters, and one of these only decodes",
        )
    codecs = {each.bit: numcodecs.get_codec(_as_numcodec(each.codec)) for each in filters if not each.skips}
    value: Any = data
    for each in reversed(filters):
        if not mask >> each.bit & 1:
            by_us = each.number in DECODERS
            value = undo(each.number, each.values, value, chunk) if by_us else codecs[each.bit].decode(value)
    for codec in codecs.values():
        value = codec.encode(value)
    return bytes(value)


def _as_numcodec(codec: dict[str, Any]) -> dict[str, Any]:
    """Configure the numcodecs codec that encodes what a codec of a Zarr pipeline decodes."""
    match codec["name"]:
        case "zstd":
            return {"id": "zstd", "level": codec["configuration"]["level"]}
        case "blosc":
            return {"id": "blosc", "cname": codec["configuration"]["cname"]}
    return {"id": codec["name"].removeprefix("numcodecs."), **codec["configuration"]}
