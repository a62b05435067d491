"""Parse TIFF, BigTIFF, GeoTIFF and COG files: strips and tiles become chunks, overviews become groups.

The first image of a file is the variable `image` with the dimensions y and x, and a band dimension if pixels
have several samples. Further images are named `image_1` and so on, and have their own dimensions. For
georeferenced files, x and y are coordinates, and `spatial_ref` is the grid mapping.
"""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.virtual.codecs import TIFF
from icefloe.virtual.dataset import VirtualDataset, choose_group
from icefloe.virtual.decoders.tiff import decode_segment
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.tiff import OVERVIEW
from icefloe.virtual.parsers.tiff.georeference import locate_pixels
from icefloe.virtual.sources import SourceFile, check_ends
from icefloe.virtual.variables import ChunkReferences, VirtualVariable
from icefloe.virtual.zarr_metadata import (
    configure_bytes,
    configure_numcodec,
    encode_attributes,
    get_zarr_type,
    to_json_fill_value,
    zstd_codec,
)

if TYPE_CHECKING:
    import tifffile

_COMPRESSIONS: Final = {
    1: "none",
    5: "lzw",
    7: "jpeg",
    8: "deflate",
    32773: "packbits",
    32946: "deflate",
    34712: "jpeg2000",
    34887: "lerc",
    34925: "lzma",
    50000: "zstd",
    50001: "webp",
}
_YCBCR: Final = 6


def parse_tiff(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """Parse a TIFF file into a virtual dataset. All chunks are in source 0."""
    import tifffile

    try:
        reader: Any = file.local_path or file.as_binary()
        with tifffile.TiffFile(reader) as opened:
            dataset = _make_dataset(opened, options, file)
    except IcechunkError:
        raise
    except (tifffile.TiffFileError, *DAMAGE) as error:
        raise CannotVirtualizeError(f"{file.location} cannot be read as TIFF: {error}") from None
    return choose_group(dataset, options.group, file.location)


def _make_dataset(opened: tifffile.TiffFile, options: ParseOptions, file: SourceFile) -> VirtualDataset:
    if not opened.series:
        raise CannotVirtualizeError(f"{file.location} contains no image")
    levels: list[tuple[dict[str, VirtualVariable], list[Refused]]] = [({}, [])]
    for number, series in enumerate(opened.series):
        name = f"image_{number}" if number else "image"
        if options.is_excluded(name):
            continue
        levels += [({}, []) for _ in range(len(levels), len(series.levels))]
        for (variables, refused), level in zip(levels, series.levels, strict=False):
            try:
                variable = _Image(level, file, opened.byteorder).variable(f"_{number}" if number else "")
            except RefusedVariable as refusal:
                refused.append(refusal.named(name))
                continue
            located = {"": variable} if number else locate_pixels(opened.pages.first, variable)
            variables[name] = located.pop("")
            variables |= {other: each for other, each in located.items() if not options.is_excluded(other)}
    image, *overviews = [VirtualDataset(found, (), refused=tuple(refused)) for found, refused in levels]
    groups = {f"{OVERVIEW}{depth}": each for depth, each in enumerate(overviews, 1)}
    return replace(image, attributes=_read_file_attributes(opened), groups=groups)


def _read_file_attributes(opened: tifffile.TiffFile) -> dict[str, Any]:
    """Return the GeoTIFF keys and the description of the first TIFF page as attributes."""
    page = opened.pages.first
    found = {
        f"geotiff_{name}": getattr(value, "name", value) for name, value in (page.geotiff_tags or {}).items()
    }
    if page.description:
        found["description"] = page.description
    return encode_attributes(found)


class _Image:
    """An image in a TIFF file: a series of similar pages at one resolution."""

    def __init__(self, series: Any, file: SourceFile, byteorder: str) -> None:
        self._pages = list(series.pages)
        self._file = file
        self._order = byteorder
        page = series.keyframe
        self._page = page
        self._planes = page.samplesperpixel if page.planarconfig == 2 else 1
        self._samples = page.samplesperpixel if page.planarconfig != 2 else 1
        self._compression = _COMPRESSIONS.get(int(page.compression), "")
        self._check()
        self._dtype = np.dtype(page.dtype).newbyteorder(byteorder)
        if page.is_tiled:
            self._chunk = (page.tilelength, page.tilewidth)
        else:
            self._chunk = (min(page.rowsperstrip, page.imagelength), page.imagewidth)

    def _check(self) -> None:
        page = self._page
        if (
            page.dtype is None
            or page.bitspersample not in (8, 16, 32, 64)
            or page.dtype.itemsize * 8 != page.bitspersample
        ):
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_TYPE,
                f"its samples have {page.bitspersample} bits and sample format {page.sampleformat}",
            )
        get_zarr_type(np.dtype(page.dtype))
        if not self._compression:
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_FILTER, f"no codec can decode the compression {page.compression!r}"
            )
        if page.imagedepth > 1 or getattr(page, "fillorder", 1) == 2:
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_LAYOUT, "its images have a depth, or a reversed bit order"
            )
        if int(page.photometric) == _YCBCR and self._compression != "jpeg":
            raise RefusedVariable(
                RefusalReason.UNSUPPORTED_LAYOUT, "its colours are YCbCr without JPEG compression"
            )
        for other in self._pages:
            if other is None:
                raise RefusedVariable(RefusalReason.UNEVEN_CHUNKS, "some of its pages are missing")
            if other.hash != page.hash:
                raise RefusedVariable(RefusalReason.UNEVEN_CHUNKS, "its pages are encoded differently")

    def variable(self, suffix: str) -> VirtualVariable:
        """Create the virtual variable of the image. The suffix is appended to its dimension names."""
        page, rows = self._page, self._page.imagelength
        lead = ([("page", len(self._pages))] if len(self._pages) > 1 else []) + (
            [("band", self._planes)] if self._planes > 1 else []
        )
        tail = [("band", self._samples)] if self._samples > 1 else []
        shape = (*(size for _, size in lead), rows, page.imagewidth, *(size for _, size in tail))
        chunk_shape = (*(1 for _ in lead), *self._chunk, *(size for _, size in tail))
        plain = self._find_standard_codecs()
        chunks = self._make_references(len(lead), len(tail), chunk_shape, plain is not None)
        names = (*(name for name, _ in lead), "y", "x", *(name for name, _ in tail))
        dtype = self._dtype.newbyteorder("=")
        return VirtualVariable(
            tuple(f"{name}{suffix}" for name in names),
            shape,
            dtype,
            chunk_shape,
            plain or (self._make_own_codec(),),
            to_json_fill_value(self._find_nodata(dtype), dtype),  # missing tiles have no data
            self._make_attributes(dtype),
            chunks,
        )

    def _find_standard_codecs(self) -> tuple[dict[str, Any], ...] | None:
        """Return standard Zarr codecs if they can decode the strips or tiles. Otherwise return None."""
        if self._page.predictor != 1:
            return None
        match self._compression:
            case "none":
                return (configure_bytes(self._dtype),)
            case "deflate":
                return configure_bytes(self._dtype), configure_numcodec("zlib", level=6)
            case "zstd":
                return configure_bytes(self._dtype), zstd_codec(3)
        return None

    def _make_own_codec(self) -> dict[str, Any]:
        tables = self._page.jpegtables or b""
        return {
            "name": TIFF,
            "configuration": {
                "compression": self._compression,
                "predictor": int(self._page.predictor),
                "endian": "little" if self._order == "<" else "big",
                "samples": self._samples,
                "tables": base64.standard_b64encode(tables).decode(),
            },
        }

    def _make_references(
        self, leading: int, trailing: int, chunk_shape: tuple[int, ...], plain: bool
    ) -> ChunkReferences:
        height, width = self._chunk
        down, across = -(-self._page.imagelength // height), -(-self._page.imagewidth // width)
        grid = (len(self._pages), self._planes, down, across)
        offsets = np.array([page.dataoffsets for page in self._pages], np.uint64).reshape(-1)
        lengths = np.array([page.databytecounts for page in self._pages], np.uint64).reshape(-1)
        offsets, lengths = self._split_strips(offsets, lengths, grid)
        places = np.indices(grid, np.uint32).reshape(4, -1)
        kept = [axis for axis, size in ((0, len(self._pages)), (1, self._planes)) if size > 1]
        coords = np.zeros((len(offsets), leading + 2 + trailing), np.uint32)
        for column, axis in enumerate([*kept, 2, 3]):
            coords[:, column] = places[axis]
        check_ends(self._file, "an image", offsets, lengths)
        present = lengths > 0  # sparse files omit tiles
        short = self._page.imagelength % height
        inline: dict[tuple[int, ...], bytes] = {}
        if plain and short and not self._page.is_tiled:
            last = present & (places[2] == down - 1)
            for row in np.flatnonzero(last).tolist():  # one per page and plane
                place = tuple(coords[row].tolist())
                inline[place] = self._pad_strip(int(offsets[row]), int(lengths[row]), chunk_shape)
            present &= ~last
        return ChunkReferences.of(coords[present], offsets[present], lengths[present], inline=inline)

    def _split_strips(self, offsets: Any, lengths: Any, grid: tuple[int, ...]) -> tuple[Any, Any]:
        """Split contiguous strips into separate chunks again, because tifffile merges them."""
        if len(offsets) == math.prod(grid):
            return offsets, lengths
        strip = math.prod(self._chunk) * self._samples * self._dtype.itemsize
        page_bytes = self._page.imagelength * self._page.imagewidth * self._samples * self._dtype.itemsize
        runs = len(self._pages) * self._planes
        if (
            self._compression != "none"
            or self._page.is_tiled
            or len(offsets) * page_bytes != runs * page_bytes
        ):
            raise RefusedVariable(
                RefusalReason.UNEVEN_CHUNKS,
                f"it has {len(offsets)} segments, but its shape implies {math.prod(grid)}",
            )
        starts = np.arange(grid[2], dtype=np.uint64) * np.uint64(strip)
        sizes = np.minimum(np.uint64(strip), np.uint64(page_bytes) - starts)
        return (offsets[:, None] + starts).reshape(-1), np.tile(sizes, runs)

    def _pad_strip(self, offset: int, length: int, chunk_shape: tuple[int, ...]) -> bytes:
        """Pad the last strip with rows of zeros, because all chunks of a Zarr array have the same size."""
        from numcodecs import Zlib, Zstd

        from icefloe.virtual.codecs import TiffCodec

        coding = TiffCodec.from_dict(self._make_own_codec())
        data = self._file.read(offset, offset + length)
        values = decode_segment(coding, data, chunk_shape, self._dtype.newbyteorder("="))
        raw: bytes = values.astype(self._dtype).tobytes()
        match self._compression:
            case "deflate":
                return bytes(Zlib().encode(raw))
            case "zstd":
                return bytes(Zstd().encode(raw))
        return raw

    def _make_attributes(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        nodata = self._find_nodata(dtype)
        return {} if nodata is None else encode_attributes({"_FillValue": nodata}, dtype)

    def _find_nodata(self, dtype: np.dtype[Any]) -> Any:
        """Return the nodata value. Return None if it is not declared or does not fit the data type."""
        if self._page.tags.get("GDAL_NODATA") is None:
            return None
        try:
            return dtype.type(self._page.nodata)
        except (OverflowError, ValueError, TypeError):
            return None
