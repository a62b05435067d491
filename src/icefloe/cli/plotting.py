"""Array plots, drawn as characters in a terminal or by matplotlib to a file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from icefloe._internal.extras import format_install_command
from icefloe._internal.printable import escape_control
from icefloe.charts import Scale
from icefloe.cli.slices import PlotAxis, Slice, format_label
from icefloe.coastlines import find_cell_edges, project_coastlines, rasterize, select_coastlines

_SHADES = " ░▒▓█"
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bit of each dot in a Braille character, by four rows and two columns."""
_AS_TEXT: Any = {"parse_math": False}
"""Keyword arguments that keep matplotlib from rendering dollar signs in names as formulas."""
_BRAILLE = 0x2800
_LINE_ROWS = 14
_MARGIN = 11


Paint = Callable[[str, str | None, str | None], str]
"""A function that returns a character with escape sequences for its foreground and background colour."""


def as_text(drawn: Slice, width: int, paint: Paint | None = None, *, coastlines: bool = True) -> str:
    """Draw a plot as text with at most `width` characters per line. Without `paint`, use shades of grey."""
    drawn = _with_latitudes_down(drawn)
    there = drawn.values[np.isfinite(drawn.values)]
    if not there.size:
        return f"{drawn.title}\nall {drawn.values.size} values are missing"
    low, high = float(there.min()), float(there.max())
    if drawn.values.ndim == 1:
        picture = _draw_line(drawn, low, high, width)
    else:
        picture = _map(drawn, low, high, width, paint, coastlines)
    units = f" {escape_control(drawn.units)}" if drawn.units else ""
    missing = drawn.values.size - there.size
    note = f", {missing} of {drawn.values.size} missing" if missing else ""
    return f"{drawn.title}\n{picture}\n{low:.6g} to {high:.6g}{units}, mean {there.mean():.6g}{note}"


def _with_latitudes_down(drawn: Slice) -> Slice:
    """Transpose a longitude/latitude array if needed, so that latitude is the vertical axis."""
    if (
        drawn.values.ndim == 2
        and drawn.axes[0].longitudes is not None
        and drawn.axes[1].latitudes is not None
    ):
        return replace(drawn, values=drawn.values.T, axes=drawn.axes[::-1])
    return drawn


def _draw_line(drawn: Slice, low: float, high: float, width: int) -> str:
    """Draw a line with Braille characters, with a scale on the left."""
    columns = max(8, min(width - _MARGIN, 2 * drawn.values.size))
    values = drawn.values
    across = np.linspace(0, len(values) - 1, 2 * columns)
    left = np.floor(across).astype(int)
    right = np.minimum(left + 1, len(values) - 1)
    with np.errstate(invalid="ignore"):
        points = values[left] + (values[right] - values[left]) * (across - left)
    points = np.where(across == left, values[left], points)  # ignore a missing neighbour
    rows = 4 * _LINE_ROWS
    scale = (rows - 1) / (high - low) if high > low else 0.0
    height = np.where(np.isfinite(points), np.rint((points - low) * scale), -1).astype(int)
    cells = np.zeros((_LINE_ROWS, columns), int)
    before = -1
    for x, y in enumerate(height.tolist()):  # a character has two columns of dots
        if y >= 0:
            for each in range(min(y, before if before >= 0 else y), max(y, before) + 1):
                row = rows - 1 - each
                cells[row // 4, x // 2] |= _DOTS[row % 4, x % 2]
        before = y
    marks = (
        {0: high, _LINE_ROWS // 2: (low + high) / 2, _LINE_ROWS - 1: low}
        if high > low
        else {_LINE_ROWS - 1: low}
    )
    lines = [
        f"{f'{marks[row]:.5g}' if row in marks else '':>{_MARGIN - 2}} │"
        + "".join(chr(_BRAILLE + cell) for cell in line)
        for row, line in enumerate(cells.tolist())
    ]
    return "\n".join([*lines, " " * (_MARGIN - 1) + _format_axis_ends(drawn.axes[0], columns)])


def _map(drawn: Slice, low: float, high: float, width: int, paint: Paint | None, coastlines: bool) -> str:
    """Draw a map. Each character shows two cells, one above the other, or a single cell if there are no
    colours.
    """
    values = drawn.values[::-1] if drawn.axes[0].is_increasing else drawn.values
    columns = max(2, min(width - 1, 100, values.shape[1] * (1 if values.shape[1] > 40 else 2)))
    # A character is about twice as high as it is wide, so half a character is a square cell.
    rows = max(2, min(2 * 30, math.ceil(columns * values.shape[0] / values.shape[1])))
    rows += rows % 2
    means = _resample(values, rows, columns)
    dots = _draw_coast_dots(drawn, rows // 2, columns) if coastlines else np.zeros((rows // 2, columns), int)
    cell = _make_shading(low, high) if paint is None else _make_painter(Scale.of(low, high), paint)
    lines = [f"{drawn.axes[0].title} down, {_format_vertical_axis(drawn.axes[0])}"]
    for upper, lower, coast in zip(means[::2].tolist(), means[1::2].tolist(), dots.tolist(), strict=True):
        lines.append("".join(map(cell, upper, lower, coast)))
    return "\n".join([*lines, _format_axis_ends(drawn.axes[1], columns)])


def _draw_coast_dots(drawn: Slice, rows: int, columns: int) -> Any:
    """Return the coastlines as Braille dots for each character; 0 where there is no coast."""
    latitudes, longitudes = drawn.axes[0].latitudes, drawn.axes[1].longitudes
    if latitudes is None or longitudes is None:
        return np.zeros((rows, columns), int)
    shape = (4 * rows, 2 * columns)
    scale = (shape[0] / len(latitudes), shape[1] / len(longitudes))
    pixels = rasterize(project_coastlines(latitudes, longitudes), scale, shape)
    pixels = pixels[::-1] if drawn.axes[0].is_increasing else pixels
    return (pixels.reshape(rows, 4, columns, 2) * _DOTS[:, None, :]).sum(axis=(1, 3))


def _make_shading(low: float, high: float) -> Callable[[float, float, int], str]:
    """Return a function that draws two cells as a shade of grey, with coastlines in Braille."""

    def cell(upper: float, lower: float, coast: int) -> str:
        there = [value for value in (upper, lower) if not math.isnan(value)]
        if coast:
            return chr(_BRAILLE + coast)
        if not there:
            return "·"
        share = (sum(there) / len(there) - low) / (high - low) if high > low else 0.5
        return _SHADES[min(len(_SHADES) - 1, int(share * len(_SHADES)))]

    return cell


def _make_painter(scale: Scale, paint: Paint) -> Callable[[float, float, int], str]:
    """Return a function that draws two cells in their colours, or a coastline on their mean colour."""

    def cell(upper: float, lower: float, coast: int) -> str:
        top, bottom = scale.colour(upper), scale.colour(lower)
        if coast:
            there = [colour for colour in (top, bottom) if colour is not None]
            ground = tuple(sum(parts) / len(there) for parts in zip(*there, strict=True)) if there else None
            return paint(chr(_BRAILLE + coast), _choose_ink(ground), _to_hex(ground))
        if top is None:  # only the lower cell has a value
            return paint("▄", _to_hex(bottom), None) if bottom else " "
        return paint("▀", _to_hex(top), _to_hex(bottom))

    return cell


def _choose_ink(ground: tuple[float, ...] | None) -> str | None:
    """Return black or white, whichever contrasts better with a background."""
    if ground is None:
        return None
    red, green, blue = ground
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 110 else "#ffffff"


def _to_hex(colour: tuple[float, ...] | None) -> str | None:
    return None if colour is None else "#" + "".join(f"{round(part):02x}" for part in colour)


def _resample(values: Any, rows: int, columns: int) -> Any:
    """Resample values: average cells that share a character, or repeat cells if there are too few."""
    for axis, wanted in ((0, rows), (1, columns)):
        size = values.shape[axis]
        if size <= wanted:
            values = values.take(np.arange(wanted) * size // wanted, axis=axis)
            continue
        edges = np.arange(wanted) * size // wanted
        there = np.isfinite(values)
        total = np.add.reduceat(np.where(there, values, 0), edges, axis=axis)
        count = np.add.reduceat(there, edges, axis=axis)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(count > 0, total / count, np.nan)
    return values


def _format_axis_ends(axis: PlotAxis, columns: int) -> str:
    """Return the text below the horizontal axis: the first label, the title and the last label."""
    first, last = format_label(axis.labels[0]), format_label(axis.labels[-1])
    room = columns - len(first) - len(last)
    if room > len(axis.title):
        return f"{first}{axis.title.center(room)}{last}"
    return f"{axis.title} from {first} to {last}"


def _format_vertical_axis(axis: PlotAxis) -> str:
    ends = [format_label(axis.labels[0]), format_label(axis.labels[-1])]
    return f"from {ends[1]} to {ends[0]}" if axis.is_increasing else f"from {ends[0]} to {ends[1]}"


def as_file(drawn: Slice, file: Path, *, coastlines: bool = True) -> None:
    """Draw a plot with matplotlib and write it to a file, in the format given by its extension."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError(
            f"--file requires matplotlib: {format_install_command('matplotlib')}; plots in the terminal"
            " do not need it"
        ) from missing
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = _with_latitudes_down(drawn)
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    try:
        axes.set_title(drawn.title, **_AS_TEXT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and matplotlib warn about slices with at most one value
            if drawn.values.ndim == 1:
                _draw_curve(axes, drawn)
            else:
                _draw_map(figure, axes, drawn, coastlines)
            figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _draw_curve(axes: Any, drawn: Slice) -> None:
    (across,) = drawn.axes
    axes.plot(across.labels, drawn.values)
    axes.set_xlabel(across.title, **_AS_TEXT)
    axes.set_ylabel(escape_control(drawn.units), **_AS_TEXT)
    axes.grid(visible=True, alpha=0.3)


def _draw_map(figure: Any, axes: Any, drawn: Slice, coastlines: bool) -> None:
    down, across = drawn.axes
    values = np.ma.masked_invalid(drawn.values)
    scale = Scale.of(float(values.min()), float(values.max())) if values.count() else Scale.of(0.0, 1.0)
    axes.set_facecolor("lightgrey")  # the colour of missing values
    is_map = down.latitudes is not None and across.longitudes is not None
    x, y = (across.longitudes, down.latitudes) if is_map else (across.labels, down.labels)
    colours = {"cmap": scale.name, "vmin": scale.low, "vmax": scale.high}
    painted = axes.pcolormesh(x, y, values, shading="nearest", rasterized=True, **colours)
    if down.values is None:
        axes.invert_yaxis()
    if is_map:
        _draw_degrees(figure, axes, find_cell_edges(x), find_cell_edges(y), coastlines)
    else:
        axes.set_xlabel(across.title, **_AS_TEXT)
        axes.set_ylabel(down.title, **_AS_TEXT)
    figure.colorbar(painted, ax=axes).set_label(escape_control(drawn.units), **_AS_TEXT)


def _draw_degrees(figure: Any, axes: Any, longitudes: Any, latitudes: Any, coastlines: bool) -> None:
    """Draw coastlines, use the same scale on both axes, and label the axes in degrees."""
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    west, east, south, north = longitudes.min(), longitudes.max(), latitudes.min(), latitudes.max()
    if coastlines:
        lines = select_coastlines(west, east)
        axes.add_collection(LineCollection(lines, colors="black", linewidths=0.7), autolim=False)
    axes.set_xlim(west, east)
    axes.set_ylim(max(south, -90), min(north, 90))
    axes.set_aspect("equal")
    figure.set_figheight(min(max(7.4 * (north - south) / (east - west) + 0.6, 3), 9))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(7, steps=[1, 1.5, 2, 3, 4.5, 6, 9, 10]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: _format_degrees((value + 180) % 360 - 180, "EW"))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _format_degrees(value, "NS")))


def _format_degrees(value: float, sides: str) -> str:
    """Format a coordinate as on maps: 30°N, 0°, 45.5°W, 180°."""
    side = "" if value == 0 or abs(value) == 180 else sides[0] if value > 0 else sides[1]
    return f"{abs(value):g}°{side}"
