"""Zarr codecs of ours, for bytes that no codec of zarr and numcodecs decodes. They decode only.

zarr finds them by the entry points of this package, so that any process that has icefloe installed can read
what was written with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.registry import register_codec

from icefloe.virtual.decoders.hdf5 import Chunk, undo
from icefloe.virtual.parsers.grib.message import fields_of

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, NDBuffer

    ArraySpec: TypeAlias = Any  # zarr does not export it

GRIB: Final = "icefloe.grib"
TIFF: Final = "icefloe.tiff"
HDF5: Final = "icefloe.hdf5"
_MISSING: Final = 3.4028234663852886e38
"""Stands for missing values while a message is decoded; the default, 9999, may be a value."""


class _DecodesOnly:
    """What the codecs share: settings from JSON and back, and no way to encode."""

    codec_name: str
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The codec a zarr.json has."""
        if data["name"] != cls.codec_name:
            raise ValueError(f"expected a codec {cls.codec_name}, not {data['name']}")
        return cls(**(data.get("configuration") or {}))

    def to_dict(self) -> dict[str, Any]:
        """The codec as a zarr.json has it."""
        return {"name": self.codec_name, "configuration": self._configuration()}

    def _configuration(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "codec_name"}  # type: ignore[attr-defined]

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Not known before."""
        raise NotImplementedError(f"the size of what {self.codec_name} encodes is not known")

    async def _encode_single(self, _chunk: Any, _chunk_spec: ArraySpec) -> Any:
        raise NotImplementedError(f"{self.codec_name} only decodes; write with other codecs")


@dataclass(frozen=True)
class GribCodec(_DecodesOnly, ArrayBytesCodec):
    """Between one GRIB message and its values, NaN where they are missing; or the latitudes of its points."""

    codec_name = GRIB
    key: Literal["values", "latitudes", "longitudes"] = "values"
    field: int = 0
    """Which of the fields that share the message."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = decode_grib(chunk_bytes.to_bytes(), chunk_spec.shape, self.key, self.field)
        dtype = chunk_spec.dtype.to_native_dtype()
        found: NDBuffer = chunk_spec.prototype.nd_buffer.from_numpy_array(values.astype(dtype, copy=False))
        return found


def decode_grib(message: bytes, shape: tuple[int, ...], key: str = "values", field: int = 0) -> Any:
    """The values of a message in an array of a shape whose last two dimensions, or last one, are the grid."""
    import eccodes

    handle = eccodes.codes_new_from_message(fields_of(message)[field])
    try:
        if key != "values":
            return in_rows(eccodes.codes_get_array(handle, key), handle, shape, places=True)
        eccodes.codes_set(handle, "missingValue", _MISSING)
        values = eccodes.codes_get_array(handle, "values")
        values[values == _MISSING] = np.nan
        return in_rows(values, handle, shape)
    finally:
        eccodes.codes_release(handle)


def in_rows(values: Any, handle: Any, shape: tuple[int, ...], *, places: bool = False) -> Any:
    """Values in the order of a message, as rows along x whatever way the message scans its grid.

    `places` are latitudes or longitudes, for which ecCodes never turns every second row around.
    """
    import eccodes

    def flag(name: str) -> bool:
        return bool(eccodes.codes_is_defined(handle, name) and eccodes.codes_get(handle, name))

    *_, rows, columns = (1, 1, *shape)
    if rows == 1 or columns == 1:
        return values.reshape(shape)
    turned = flag("jPointsAreConsecutive")
    grid = values.reshape((columns, rows) if turned else (rows, columns))
    if not places and flag("alternativeRowScanning"):
        grid = grid.copy()
        grid[1::2] = grid[1::2, ::-1]
    return (grid.T if turned else grid).reshape(shape)


@dataclass(frozen=True)
class Hdf5Codec(_DecodesOnly, BytesBytesCodec):
    """Bytes that one of HDF5's filters was applied to."""

    codec_name = HDF5
    filter: int = 0
    """Its number in the HDF Group's register."""
    values: tuple[int, ...] = ()
    """What the file keeps for it."""
    skips: bool = False
    """Whether chunks that have the size of decoded ones are stored without it: nothing was gained by it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))

    def _configuration(self) -> dict[str, Any]:
        plain = {"filter": self.filter, "values": list(self.values)}
        return {**plain, "skips": True} if self.skips else plain

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        chunk = Chunk(chunk_spec.shape, chunk_spec.dtype.to_native_dtype())
        data = chunk_bytes.to_bytes()
        if not self.skips or len(data) != chunk.size_bytes:
            data = undo(self.filter, self.values, data, chunk)
        decoded: Buffer = chunk_spec.prototype.buffer.from_bytes(data)
        return decoded


@dataclass(frozen=True)
class TiffCodec(_DecodesOnly, ArrayBytesCodec):
    """Between a strip or tile of a TIFF file and its samples, rows that the last strip lacks being zero."""

    codec_name = TIFF
    compression: str = "none"
    predictor: int = 1
    endian: Literal["little", "big"] = "little"
    samples: int = 1
    """So many samples of a pixel stand side by side."""
    tables: str = ""
    """What JPEG tiles share, in base 64."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        from icefloe.virtual.decoders.tiff import decode_segment

        values = decode_segment(
            self, chunk_bytes.to_bytes(), chunk_spec.shape, chunk_spec.dtype.to_native_dtype()
        )
        found: NDBuffer = chunk_spec.prototype.nd_buffer.from_numpy_array(values)
        return found


def register() -> None:
    """Make the codecs known to zarr, where this package is not installed but only imported."""
    for codec in (GribCodec, Hdf5Codec, TiffCodec):
        register_codec(codec.codec_name, codec)
