"""Convert chunked HDF5 datasets: filters become Zarr codecs, and chunks become references."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.virtual.codecs import HDF5
from icefloe.virtual.decoders.hdf5 import DECODERS, Chunk, decode_filter
from icefloe.virtual.errors import RefusalReason, RefusedVariable
from icefloe.virtual.parsers import INLINE_BYTES
from icefloe.virtual.parsers.hdf5.chunk_index import read_chunk_index
from icefloe.virtual.variables import ChunkReferences
from icefloe.virtual.zarr_metadata import blosc_codec, configure_numcodec, zstd_codec

if TYPE_CHECKING:
    import h5py

StoredFilter: TypeAlias = tuple[int, int, tuple[int, ...], bytes]
"""An HDF5 filter as h5py describes it: id, flags, parameters and name."""
_SHUFFLE: Final = 2
_FLETCHER32: Final = 3
_CHECKSUM_BYTES: Final = 4
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True, slots=True)
class _Filter:
    """An HDF5 filter, and the Zarr codec that decodes it."""

    bit: int
    """The bit of this filter in the chunks' filter masks. It is set if a chunk skipped the filter."""
    number: int
    values: tuple[int, ...]
    codec: dict[str, Any]

    @property
    def can_encode(self) -> bool:
        """True if the codec can also encode, because it comes from zarr or numcodecs."""
        return bool(self.codec["name"] != HDF5)

    @property
    def skips(self) -> bool:
        """True if the codec leaves chunks unchanged that already have the decoded size."""
        return bool(self.codec["configuration"].get("skips", False))


def _blosc(values: Sequence[int]) -> dict[str, Any]:
    # Two versions, element and chunk size; then level, shuffle and compressor, which are optional.
    level, shuffle, compressor = values[4:7] if len(values) >= 7 else (5, 1, 0)
    return blosc_codec(_BLOSC_COMPRESSORS[compressor], level, shuffle, max(values[2], 1))


def _make_own_codec(number: int, values: Sequence[int], *, skips: bool = False) -> dict[str, Any]:
    configuration = {"filter": number, "values": list(values), **({"skips": True} if skips else {})}
    return {"name": HDF5, "configuration": configuration}


_CODECS: Final[dict[int, Callable[[Sequence[int]], dict[str, Any]]]] = {
    1: lambda values: configure_numcodec("zlib", level=values[0] if values else 1),
    _SHUFFLE: lambda values: configure_numcodec("shuffle", elementsize=values[0]),
    _FLETCHER32: lambda values: configure_numcodec("fletcher32"),
    307: lambda values: configure_numcodec("bz2", level=values[0] if values else 9),
    32001: _blosc,
    32015: lambda values: zstd_codec(values[0] if values else 3),
}
"""HDF5 filters for which zarr or numcodecs has a codec. `Hdf5Codec` decodes all others."""
_KNOWN: Final = {32017: "SZ", 32019: "JPEG", 32024: "SZ3", 32028: "SPERR"}


def refer_to_chunks(
    dataset: h5py.Dataset, stored: Sequence[StoredFilter], dtype: np.dtype[Any], inner: tuple[int, ...]
) -> tuple[list[dict[str, Any]], ChunkReferences]:
    """Return the codecs for the filters of a chunked HDF5 dataset, and references to its allocated chunks."""
    filters = _find_filters(stored)
    own_shape, own_chunks = dataset.shape, dataset.chunks
    chunk = Chunk((*own_chunks, *inner), dtype)
    rank = len(own_shape)
    table = read_chunk_index(dataset)
    if table is None:
        table = _walk_index(dataset)
    coords, rows = table[:, :rank] // np.array(own_chunks, np.uint64), table[:, rank:]
    # A dataset that was shrunk may still have chunks outside its shape in the file.
    grid = -(-np.array(own_shape) // np.array(own_chunks))
    inside = (coords < grid.astype(np.uint64)).all(axis=1)
    coords, rows = coords[inside], rows[inside]
    masks = np.unique(rows[:, 2])
    if len(masks) == 1:
        filters = [each for each in filters if not int(masks[0]) >> each.bit & 1]
    odd = rows[:, 2] != 0 if len(masks) > 1 else np.zeros(len(rows), np.bool_)
    # The few chunks that skipped filters are stored inline, fully encoded, so standard codecs suffice.
    are_few = np.count_nonzero(odd) * chunk.size_bytes <= INLINE_BYTES
    if odd.any() and not (are_few and all(each.can_encode for each in filters)):
        compressor = _find_compressor(filters)
        if compressor is not None:
            found = filters[compressor]
            filters[compressor] = replace(
                found, codec=_make_own_codec(found.number, found.values, skips=True)
            )
            odd = ~_find_visible_skips(rows, filters, compressor, chunk)
    inline = _read_inline(dataset, coords[odd], filters, chunk)
    plain = ~odd
    chunks = ChunkReferences.of(coords[plain], rows[plain, 0], rows[plain, 1], inline=inline)
    return [each.codec for each in filters], chunks.with_inner(len(inner))


def _walk_index(dataset: h5py.Dataset) -> NDArray[np.uint64]:
    """List all chunks through the HDF5 library, in the same form as `read_chunk_index`."""
    numbers = array("Q")
    # chunk_iter walks the index once; get_chunk_info would walk it once per chunk.
    dataset.id.chunk_iter(
        lambda found: numbers.extend((*found.chunk_offset, found.byte_offset, found.size, found.filter_mask))
    )
    return np.frombuffer(numbers, np.uint64).reshape(-1, len(dataset.shape) + 3)


def _find_filters(stored: Sequence[StoredFilter]) -> list[_Filter]:
    """Return the filters of an HDF5 dataset in encoding order. Raise RefusedVariable if one cannot be
    decoded.
    """
    found: list[_Filter] = []
    for position, (number, _, values, name) in enumerate(stored):
        if number not in _CODECS and number not in DECODERS:
            known = _KNOWN.get(number) or name.decode(errors="replace").rstrip("\0") or "unknown"
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER, f"no Zarr codec can decode HDF5 filter {number} ({known})"
            )
        if number == _SHUFFLE and values[0] == 1:
            continue  # shuffling single bytes changes nothing
        # After another filter, the number of bytes may not be a multiple of the item size.
        usual = number in _CODECS and not (number == _SHUFFLE and found)
        codec = _CODECS[number](values) if usual else _make_own_codec(number, values)
        found.append(_Filter(position, number, tuple(values), codec))
    return found


def _find_compressor(filters: list[_Filter]) -> int | None:
    """Find the compressor (the last filter except checksums). HDF5 skips it for chunks that would grow."""
    for place in reversed(range(len(filters))):
        if filters[place].number != _FLETCHER32:
            summed = any(each.number == _FLETCHER32 for each in filters[:place])
            return place if filters[place].number in DECODERS and not summed else None
    return None


def _find_visible_skips(
    rows: NDArray[np.uint64], filters: list[_Filter], compressor: int, chunk: Chunk
) -> NDArray[np.bool_]:
    """Find chunks whose size shows whether the compressor was skipped, and that skipped no other filter."""
    tail = _CHECKSUM_BYTES * (len(filters) - compressor - 1)
    skipped = rows[:, 2] == np.uint64(1 << filters[compressor].bit)
    whole = rows[:, 1] == np.uint64(chunk.size_bytes + tail)
    found: NDArray[np.bool_] = (skipped & whole) | ((rows[:, 2] == 0) & ~whole)
    return found


def _read_inline(
    dataset: h5py.Dataset, coords: NDArray[np.uint64], filters: list[_Filter], chunk: Chunk
) -> dict[tuple[int, ...], bytes]:
    """Read the chunks that skipped some filters, and re-encode them with all filters."""
    if len(coords) * chunk.size_bytes > INLINE_BYTES:
        from icefloe._internal.amounts import counted

        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            f"{counted(len(coords), 'chunk')} skipped some filters and cannot be stored inline: too large",
        )
    inline = {}
    for place in coords.tolist():  # few chunks, see above
        mask, data = dataset.id.read_direct_chunk(tuple(np.multiply(place, dataset.chunks).tolist()))
        inline[tuple(place)] = _reencode(data, mask, filters, chunk)
    return inline


def _reencode(data: bytes, mask: int, filters: Sequence[_Filter], chunk: Chunk) -> bytes:
    """Re-encode a chunk that skipped some filters, so that all filters are applied."""
    import numcodecs

    if not all(each.can_encode or each.skips for each in filters):
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            "some filters were skipped for some chunks, and one of the filters cannot be encoded",
        )
    codecs = {each.bit: numcodecs.get_codec(_as_numcodec(each.codec)) for each in filters if not each.skips}
    value: Any = data
    for each in reversed(filters):
        if not mask >> each.bit & 1:
            by_us = each.number in DECODERS
            value = (
                decode_filter(each.number, each.values, value, chunk)
                if by_us
                else codecs[each.bit].decode(value)
            )
    for codec in codecs.values():
        value = codec.encode(value)
    return bytes(value)


def _as_numcodec(codec: dict[str, Any]) -> dict[str, Any]:
    """Return the numcodecs configuration that corresponds to a Zarr codec."""
    match codec["name"]:
        case "zstd":
            return {"id": "zstd", "level": codec["configuration"]["level"]}
        case "blosc":
            return {"id": "blosc", "cname": codec["configuration"]["cname"]}
    return {"id": codec["name"].removeprefix("numcodecs."), **codec["configuration"]}
