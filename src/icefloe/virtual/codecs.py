"""Decode-only Zarr codecs for formats that neither zarr nor numcodecs supports.

zarr discovers these codecs through the entry points of this package, so any process with icefloe installed
can read arrays that use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.registry import register_codec

from icefloe.virtual.decoders.grib import decode_grib
from icefloe.virtual.decoders.hdf5 import Chunk, decode_filter

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, NDBuffer

    ArraySpec: TypeAlias = Any  # zarr does not export it

GRIB: Final = "icefloe.grib"
TIFF: Final = "icefloe.tiff"
HDF5: Final = "icefloe.hdf5"


class _DecodesOnly:
    """A mixin for decode-only codecs: converts their configuration to and from JSON, and rejects encoding."""

    codec_name: str
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Create the codec from its entry in a zarr.json."""
        if data["name"] != cls.codec_name:
            raise ValueError(f"expected the codec {cls.codec_name}, not {data['name']}")
        return cls(**(data.get("configuration") or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for this codec in a zarr.json."""
        return {"name": self.codec_name, "configuration": self._configuration()}

    def _configuration(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "codec_name"}  # type: ignore[attr-defined]

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Raise an error. Only writers need encoded sizes, and this codec cannot encode."""
        raise NotImplementedError(f"{self.codec_name} can only decode, so encoded sizes are unknown")

    async def _encode_single(self, _chunk: Any, _chunk_spec: ArraySpec) -> Any:
        raise NotImplementedError(
            f"{self.codec_name} can only decode; create an array with other codecs to write values"
        )


@dataclass(frozen=True)
class GribCodec(_DecodesOnly, ArrayBytesCodec):
    """A Zarr codec that decodes GRIB messages to data values, latitudes or longitudes. Missing values become
    NaN.
    """

    codec_name = GRIB
    key: Literal["values", "latitudes", "longitudes"] = "values"
    field: int = 0
    """The index of the field, for a message that contains several fields."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = decode_grib(chunk_bytes.to_bytes(), chunk_spec.shape, self.key, self.field)
        dtype = chunk_spec.dtype.to_native_dtype()
        found: NDBuffer = chunk_spec.prototype.nd_buffer.from_numpy_array(values.astype(dtype, copy=False))
        return found


@dataclass(frozen=True)
class Hdf5Codec(_DecodesOnly, BytesBytesCodec):
    """A Zarr codec that decodes one HDF5 filter."""

    codec_name = HDF5
    filter: int = 0
    """The filter id, as registered with the HDF Group."""
    values: tuple[int, ...] = ()
    """The filter parameters, as stored in the file."""
    skips: bool = False
    """True if chunks of the decoded size were stored without the filter, because it did not make them
    smaller.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))

    def _configuration(self) -> dict[str, Any]:
        plain = {"filter": self.filter, "values": list(self.values)}
        return {**plain, "skips": True} if self.skips else plain

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        chunk = Chunk(chunk_spec.shape, chunk_spec.dtype.to_native_dtype())
        data = chunk_bytes.to_bytes()
        if not self.skips or len(data) != chunk.size_bytes:
            data = decode_filter(self.filter, self.values, data, chunk)
        decoded: Buffer = chunk_spec.prototype.buffer.from_bytes(data)
        return decoded


@dataclass(frozen=True)
class TiffCodec(_DecodesOnly, ArrayBytesCodec):
    """A Zarr codec that decodes TIFF strips and tiles. Rows missing from the last strip are filled with
    zeros.
    """

    codec_name = TIFF
    compression: str = "none"
    predictor: int = 1
    endian: Literal["little", "big"] = "little"
    samples: int = 1
    """The number of interleaved samples per pixel."""
    tables: str = ""
    """The JPEG tables that all tiles share, base64-encoded."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        from icefloe.virtual.decoders.tiff import decode_segment

        values = decode_segment(
            self, chunk_bytes.to_bytes(), chunk_spec.shape, chunk_spec.dtype.to_native_dtype()
        )
        found: NDBuffer = chunk_spec.prototype.nd_buffer.from_numpy_array(values)
        return found


def register() -> None:
    """Register icefloe's Zarr codecs in a process that imports icefloe without having it installed."""
    for codec in (GribCodec, Hdf5Codec, TiffCodec):
        register_codec(codec.codec_name, codec)
