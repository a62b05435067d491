"""Decode TIFF strips and tiles: decompress them, undo the predictor, and pad the last strip."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, Final, Protocol

import numpy as np

_COMPRESSIONS: Final = ("lzw", "packbits", "zstd", "lzma")
"""TIFF compression schemes for plain bytes, with the imagecodecs decoder of each."""
_IMAGES: Final = {
    "jpeg": "jpeg_decode",
    "webp": "webp_decode",
    "jpeg2000": "jpeg2k_decode",
    "lerc": "lerc_decode",
}
"""TIFF compression schemes for whole images, with the imagecodecs decoder of each."""


class SegmentCoding(Protocol):
    """The encoding of TIFF strips and tiles. The fields match the configuration of `TiffCodec`."""

    compression: str
    predictor: int
    endian: str
    samples: int
    tables: str


def decode_segment(coding: Any, data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Decode a TIFF strip or tile to samples in native byte order."""
    if coding.compression in _IMAGES:
        return _pad(_decode_image(coding, data), shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.frombuffer(_decompress(coding, data, size), np.uint8)
    width = shape[-2] if coding.samples > 1 else shape[-1]
    row_bytes = width * coding.samples * dtype.itemsize
    rows = min(len(raw) // row_bytes, math.prod(shape) // (width * coding.samples))
    block = raw[: rows * row_bytes].reshape(rows, row_bytes)
    if coding.predictor == 3:
        values = _undo_float_predictor(block, coding.samples, dtype)
    else:
        values = block.view(dtype.newbyteorder("<" if coding.endian == "little" else ">")).astype(dtype)
        if coding.predictor == 2:
            samples = values.reshape(rows, width, coding.samples)
            values = _undo_differences(samples, dtype)
    return _pad(values.reshape(rows, -1), shape, dtype)


def _decompress(coding: SegmentCoding, data: bytes, size: int) -> bytes:
    if coding.compression == "none":
        return data
    if coding.compression == "deflate":
        return zlib.decompress(data)
    if coding.compression not in _COMPRESSIONS:
        raise ValueError(f"unknown TIFF compression {coding.compression!r}")
    import imagecodecs

    return bytes(getattr(imagecodecs, f"{coding.compression}_decode")(data, out=size))


def _decode_image(coding: SegmentCoding, data: bytes) -> Any:
    import imagecodecs

    if coding.compression == "jpeg":
        return imagecodecs.jpeg_decode(data, tables=base64.standard_b64decode(coding.tables) or None)
    return getattr(imagecodecs, _IMAGES[coding.compression])(data)


def _undo_differences(samples: Any, dtype: np.dtype[Any]) -> Any:
    """Undo the TIFF predictor for horizontal differencing. Sums wrap around as in the encoder."""
    integers = samples.view(f"u{dtype.itemsize}")
    return np.cumsum(integers, axis=1, dtype=integers.dtype).view(dtype)


def _undo_float_predictor(block: Any, samples: int, dtype: np.dtype[Any]) -> Any:
    """Undo the TIFF floating-point predictor, which stores byte differences ordered by significance."""
    rows, row_bytes = block.shape
    pixels = block.reshape(rows, row_bytes // samples, samples) if samples > 1 else block[..., np.newaxis]
    summed = np.cumsum(pixels, axis=1, dtype=np.uint8).reshape(rows, dtype.itemsize, -1)
    return np.ascontiguousarray(summed.transpose(0, 2, 1)).view(dtype.newbyteorder(">")).astype(dtype)


def _pad(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    flat = np.ascontiguousarray(values, dtype).reshape(-1)
    wanted = math.prod(shape)
    if len(flat) < wanted:
        flat = np.concatenate([flat, np.zeros(wanted - len(flat), dtype)])
    return flat[:wanted].reshape(shape)
