"""Draw numbers as pictures: perceptually uniform colour maps, RGBA arrays, PNG files, and curves.

This module only requires numpy. It is shared by `icefloe plot`, HTML representations and web pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

COLOUR_MAPS: Final = {
    "viridis": "440154481a6c472f7d41448739568c31688e2a788e"
    "23888e1f988b22a88435b77954c5687ad151a5db36d2e21bfde725",
    "cividis": "00224e1235703b496c575d6d7071738a8678a59c74c3b369e1cc55fee838",
    "magma": "000004140e363b0f70641a808c2981b73779de4968f7705cfe9f6dfecf92fcfdbf",
    "RdBu_r": "0530612166ac4393c392c5ded1e5f0f7f7f7fddbc7f4a582d6604db2182b67001f",
}
"""Colour maps by their matplotlib names, as evenly spaced colours in hexadecimal digits."""
_TWO_SIDED = 0.1
"""Use a diverging colour map if the range on the smaller side of zero is at least this fraction of the larger
side.
"""
_MISSING: Final = (0, 0, 0, 0)
"""The colour of cells without a value: transparent."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A colour scale: diverging from blue to red around zero if both signs occur, otherwise viridis."""

    low: float
    high: float
    name: str
    colours: Any

    @staticmethod
    def of(low: float, high: float) -> Scale:
        """Choose a colour scale for values between two bounds."""
        most = max(-low, high)
        if low < 0 < high and min(-low, high) > _TWO_SIDED * most:
            return Scale(-most, most, "RdBu_r", _get_stops("RdBu_r"))
        return Scale(low, high, "viridis", _get_stops("viridis"))

    def colour(self, value: float) -> tuple[float, ...] | None:
        """Interpolate the colour of a value. Return None if the value is missing."""
        if math.isnan(value):
            return None
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        position = min(max(share, 0.0), 1.0) * (len(self.colours) - 1)
        return tuple(
            float(np.interp(position, np.arange(len(self.colours)), channel)) for channel in self.colours.T
        )

    def rgba(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the RGBA colours of an array, with red, green, blue and opacity along a new last axis.

        Missing values are transparent, and values outside the scale get the colour at its nearest end.
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


@cache
def _get_stops(name: str) -> NDArray[np.float64]:
    """Return the colours of a colour map as rows of red, green and blue."""
    return np.frombuffer(bytes.fromhex(COLOUR_MAPS[name]), np.uint8).reshape(-1, 3).astype("f8")


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose round, evenly spaced numbers between two bounds as axis ticks.

    Parameters
    ----------
    low, high
        The bounds.
    most
        The maximum number of ticks.

    Returns
    -------
    list of float
        Multiples of 1, 2 or 5 times a power of ten.
    """
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return [low] if math.isfinite(low) else []
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return [low]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A line chart as the parts of an SVG drawing: `path` data, and ticks with positions in pixels and
    labels.
    """

    width: int
    height: int
    left: int
    path: str
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str, str], ...]
    """The position, text and `text-anchor` of each label below the curve."""
    mark: tuple[float, float] | None


_CHART_PX: Final = (900, 230, 70, 26)
"""The width, the height, and the left and bottom margins of a chart."""
_MAX_POINTS: Final = 2000


def draw_line(values: ArrayLike, labels: Sequence[str], mark: int | None = None) -> LineChart:
    """Draw numbers as a line chart. Missing values leave gaps in the line.

    Parameters
    ----------
    values
        The numbers.
    labels
        A label for each number, or only for the first, middle and last one.
    mark
        The index of a number to mark.

    Returns
    -------
    LineChart
        The parts of the drawing.
    """
    width, height, left, below = _CHART_PX
    numbers = np.asarray(values, float)
    there = numbers[np.isfinite(numbers)]
    low, high = (float(there.min()), float(there.max())) if there.size else (0.0, 1.0)
    spread = (high - low) or abs(high) or 1.0
    low, high = low - 0.05 * spread, high + 0.05 * spread
    step = max(1, -(-len(numbers) // _MAX_POINTS))
    xs = left + (width - left - 12) * np.arange(len(numbers)) / max(len(numbers) - 1, 1)
    ys = 8 + (height - below - 12) * (high - numbers) / (high - low)
    path, is_down = [], False
    for x, y in zip(xs[::step].tolist(), ys[::step].tolist(), strict=True):  # at most a few thousand
        is_there = math.isfinite(y)
        if is_there:
            path.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = is_there
    ticks = tuple(
        (round(8 + (height - below - 12) * (high - tick) / (high - low), 1), f"{tick:.10g}")
        for tick in nice_ticks(low, high, 6)
    )
    shown = labels if len(labels) <= 3 else [labels[0], labels[len(labels) // 2], labels[-1]]
    places = ((left, "start"), ((left + width - 12) / 2, "middle"), (width - 12, "end"))
    at = None
    if mark is not None and 0 <= mark < len(numbers) and np.isfinite(ys[mark]):
        at = (round(float(xs[mark]), 1), round(float(ys[mark]), 1))
    listed = tuple((x, text, anchor) for (x, anchor), text in zip(places, shown, strict=False))
    return LineChart(width, height, left, "".join(path), ticks, listed, at)
