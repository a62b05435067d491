"""Numbers as colours: perceptually uniform colour maps, and pictures as RGBA arrays or PNG files.

Only numpy is needed. `icefloe plot`, HTML representations and web pages share these colours.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_VIRIDIS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (170, 220, 50), (253, 231, 37)], float
)  # fmt: skip
_BLUE_TO_RED = np.array(
    [(5, 48, 97), (33, 102, 172), (67, 147, 195), (146, 197, 222), (209, 229, 240), (247, 247, 247),
     (253, 219, 199), (244, 165, 130), (214, 96, 77), (178, 24, 43), (103, 0, 31)], float
)  # fmt: skip
_TWO_SIDED = 0.1
"""The colours diverge at zero if the smaller side reaches at least this share of the larger one."""
_MISSING: Final = (0, 0, 0, 0)
"""Cells without a value are transparent."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The colours of a range of values: blue to red around zero if both signs occur, otherwise viridis."""

    low: float
    high: float
    name: str
    colours: Any

    @staticmethod
    def of(low: float, high: float) -> Scale:
        """Choose the colours for the values between two bounds."""
        most = max(-low, high)
        if low < 0 < high and min(-low, high) > _TWO_SIDED * most:
            return Scale(-most, most, "RdBu_r", _BLUE_TO_RED)
        return Scale(low, high, "viridis", _VIRIDIS)

    def colour(self, value: float) -> tuple[float, ...] | None:
        """Interpolate the red, green and blue of a value; None if it is missing."""
        if math.isnan(value):
            return None
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        position = min(max(share, 0.0), 1.0) * (len(self.colours) - 1)
        return tuple(
            float(np.interp(position, np.arange(len(self.colours)), channel)) for channel in self.colours.T
        )

    def rgba(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the colours of an array, with a last axis of red, green, blue and opacity.

        Missing values are transparent, and values outside of the scale have the colour of its end.
        """
        numbers = np.asarray(values, "f8")
        is_missing = np.isnan(numbers)
        width = self.high - self.low
        with np.errstate(invalid="ignore", over="ignore"):
            shares = (numbers - self.low) / width if width > 0 else np.full(numbers.shape, 0.5)
        places = np.clip(np.where(is_missing, 0, shares), 0, 1) * (len(self.colours) - 1)
        found = np.empty((*numbers.shape, 4), np.uint8)
        found[..., 3] = 255
        for channel in range(3):
            mixed = np.interp(places, np.arange(len(self.colours)), self.colours[:, channel])
            found[..., channel] = np.rint(mixed)
        found[is_missing] = _MISSING
        return found


def encode_png(rgba: NDArray[np.uint8]) -> bytes:
    """Encode a picture of shape `(rows, columns, 4)`, as `Scale.rgba` returns it, as a PNG file."""
    rows, columns, _ = rgba.shape
    lines = np.zeros((rows, 1 + 4 * columns), np.uint8)  # each begins with the number of its filter, none
    lines[:, 1:] = np.ascontiguousarray(rgba).reshape(rows, 4 * columns)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
