"""HDF5's filters as Zarr codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icefloe.virtual.codecs import IMAGECODECS
from icefloe.virtual.refusals import RefusalReason, RefusedVariable
from icefloe.virtual.zarr_terms import numcodec

if TYPE_CHECKING:
    import h5py

_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True, slots=True)
class Filter:
    """A step of HDF5's pipeline, in the words of both sides."""

    bit: int
    """Its place in the masks of chunks that it skipped."""
    codec: dict[str, Any]


def _deflate(values: Sequence[int]) -> dict[str, Any]:
    return numcodec("zlib", level=values[0] if values else 1)


def _shuffle(values: Sequence[int]) -> dict[str, Any]:
    return numcodec("shuffle", elementsize=values[0])


def _blosc(values: Sequence[int]) -> dict[str, Any]:
    # Two versions, sizes of elements and chunks, then level, shuffle and compressor, which may be left out.
    level, shuffle, compressor = values[4:7] if len(values) >= 7 else (5, 1, 0)
    return numcodec("blosc", clevel=level, shuffle=shuffle, cname=_BLOSC_COMPRESSORS[compressor])


def _imagecodec(decoder: str) -> dict[str, Any]:
    return {"name": IMAGECODECS, "configuration": {"decoder": decoder}}


_CODECS: Final[dict[int, Callable[[Sequence[int]], dict[str, Any]]]] = {
    1: _deflate,
    2: _shuffle,
    3: lambda values: numcodec("fletcher32"),
    307: lambda values: numcodec("bz2", level=values[0] if values else 9),
    32000: lambda values: _imagecodec("lzf"),
    32001: _blosc,
    32004: lambda values: _imagecodec("lz4h5"),
    32015: lambda values: numcodec("zstd", level=values[0] if values else 3),
}
_KNOWN: Final = {
    4: "szip",
    5: "n-bit",
    6: "scale-offset",
    32008: "bitshuffle",
    32013: "ZFP",
    32017: "SZ",
    32019: "JPEG",
    32026: "Blosc2",
    32028: "SPERR",
}


def filters_of(dataset: h5py.Dataset) -> list[Filter]:
    """The filters in the order they are applied in; RefusedVariable for one that no codec undoes."""
    properties = dataset.id.get_create_plist()
    found: list[Filter] = []
    for position in range(properties.get_nfilters()):
        code, _, values, name = properties.get_filter(position)
        if code not in _CODECS:
            known = _KNOWN.get(code) or name.decode(errors="replace").rstrip("\0") or "unknown"
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER, f"no Zarr codec undoes HDF5's filter {code} ({known})"
            )
        codec = _CODECS[code](values)
        if codec["name"] == "numcodecs.shuffle" and codec["configuration"]["elementsize"] == 1:
            continue  # nothing is moved
        found.append(Filter(position, codec))
    return found


def pipeline(filters: Sequence[Filter]) -> list[dict[str, Any]]:
    """The filters as the last codecs of a Zarr pipeline."""
    return [each.codec for each in filters]


def reencoded(data: bytes, mask: int, filters: Sequence[Filter]) -> bytes:
    """A chunk that some filters skipped, as if none had."""
    import numcodecs

    if any(each.codec["name"] == IMAGECODECS for each in filters):
        raise RefusedVariable(
            RefusalReason.MIXED_FILTERS,
            "some chunks are stored without some of its filters, and one of these only decodes",
        )
    codecs = [
        (
            each.bit,
            numcodecs.get_codec({"id": name.removeprefix("numcodecs."), **each.codec["configuration"]}),
        )
        for each in filters
        for name in (each.codec["name"],)
    ]
    value: Any = data
    for bit, codec in reversed(codecs):
        if not mask >> bit & 1:
            value = codec.decode(value)
    for _, codec in codecs:
        value = codec.encode(value)
    return bytes(value)
