"""Slices of arrays as pictures: characters for a terminal, or a file drawn by matplotlib."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from icefloe.cli.slices import Axis, Slice, label
from icefloe.extras import pip_install
from icefloe.printable import printable

_COLOURS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (170, 220, 50), (253, 231, 37)], float
)  # fmt: skip
"""Viridis, from low to high."""
_SHADES = " ░▒▓█"
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of a Braille character: four rows of two."""
_AS_TEXT: Any = {"parse_math": False}
"""For matplotlib: dollar signs in names are no formulas."""
_LINE_ROWS = 14
_MARGIN = 11


Paint = Callable[[str, str | None, str | None], str]
"""A character in a colour, on another one, as a terminal takes it."""


def as_text(drawn: Slice, width: int, paint: Paint | None = None) -> str:
    """A picture of so many characters across; without paint in shades."""
    there = drawn.values[np.isfinite(drawn.values)]
    if not there.size:
        return f"{drawn.title}\nall {drawn.values.size} values are missing"
    low, high = float(there.min()), float(there.max())
    if drawn.values.ndim == 1:
        picture = _curve(drawn, low, high, width)
    else:
        picture = _map(drawn, low, high, width, paint)
    units = f" {printable(drawn.units)}" if drawn.units else ""
    missing = drawn.values.size - there.size
    told = f", {missing} of {drawn.values.size} missing" if missing else ""
    return f"{drawn.title}\n{picture}\n{low:.6g} to {high:.6g}{units}, mean {there.mean():.6g}{told}"


def _curve(drawn: Slice, low: float, high: float, width: int) -> str:
    """A line in Braille, with its scale at the left."""
    columns = max(8, min(width - _MARGIN, 2 * drawn.values.size))
    values = drawn.values
    across = np.linspace(0, len(values) - 1, 2 * columns)
    left = np.floor(across).astype(int)
    right = np.minimum(left + 1, len(values) - 1)
    with np.errstate(invalid="ignore"):
        points = values[left] + (values[right] - values[left]) * (across - left)
    points = np.where(
        across == left, values[left], points
    )  # a neighbour that is missing does not matter there
    rows = 4 * _LINE_ROWS
    scale = (rows - 1) / (high - low) if high > low else 0.0
    height = np.where(np.isfinite(points), np.rint((points - low) * scale), -1).astype(int)
    cells = np.zeros((_LINE_ROWS, columns), int)
    before = -1
    for x, y in enumerate(height.tolist()):  # two per character across
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
        + "".join(chr(0x2800 + cell) for cell in line)
        for row, line in enumerate(cells.tolist())
    ]
    return "\n".join([*lines, " " * (_MARGIN - 1) + _ends(drawn.axes[0], columns)])


def _map(drawn: Slice, low: float, high: float, width: int, paint: Paint | None) -> str:
    """Two cells above each other in each character, in colours; or one in shades."""
    values = drawn.values[::-1] if drawn.axes[0].rises else drawn.values
    columns = max(2, min(width - 1, 100, values.shape[1] * (1 if values.shape[1] > 40 else 2)))
    # A character is twice as high as it is wide, so two cells in one are about square.
    rows = max(2, min(2 * 30, math.ceil(columns * values.shape[0] / values.shape[1])))
    rows += rows % 2
    means = _shrunk(values, rows, columns)
    share = (
        np.clip((means - low) / (high - low), 0, 1)
        if high > low
        else np.where(np.isfinite(means), 0.5, np.nan)
    )
    lines = [f"{drawn.axes[0].title} down, {_vertical(drawn.axes[0])}"]
    for upper, lower in zip(share[::2].tolist(), share[1::2].tolist(), strict=True):
        cells = zip(upper, lower, strict=True)
        lines.append("".join(_cell(one, other, paint) for one, other in cells))
    return "\n".join([*lines, _ends(drawn.axes[1], columns)])


def _cell(one: float, other: float, paint: Paint | None) -> str:
    """One character for what is above and what is below."""
    if paint is None:
        return _shade(one, other)
    top, bottom = _colour(one), _colour(other)
    if top is None:  # nothing above: draw what is below
        return paint("▄", bottom, None) if bottom else " "
    return paint("▀", top, bottom)


def _shrunk(values: Any, rows: int, columns: int) -> Any:
    """Means of the cells that fall together, or the same cell again where there are too few."""
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


def _colour(share: float) -> str | None:
    if math.isnan(share):
        return None
    place = share * (len(_COLOURS) - 1)
    first = min(int(place), len(_COLOURS) - 2)
    red, green, blue = _COLOURS[first] + (_COLOURS[first + 1] - _COLOURS[first]) * (place - first)
    return f"#{round(red):02x}{round(green):02x}{round(blue):02x}"


def _shade(one: float, other: float) -> str:
    there = [each for each in (one, other) if not math.isnan(each)]
    if not there:
        return "·"
    return _SHADES[min(len(_SHADES) - 1, int(sum(there) / len(there) * len(_SHADES)))]


def _ends(axis: Axis, columns: int) -> str:
    """The first and the last coordinate at their places, and what they are."""
    first, last = label(axis.labels[0]), label(axis.labels[-1])
    room = columns - len(first) - len(last)
    if room > len(axis.title):
        return f"{first}{axis.title.center(room)}{last}"
    return f"{axis.title} from {first} to {last}"


def _vertical(axis: Axis) -> str:
    ends = [label(axis.labels[0]), label(axis.labels[-1])]
    return f"from {ends[1]} to {ends[0]}" if axis.rises else f"from {ends[0]} to {ends[1]}"


def as_file(drawn: Slice, file: Path) -> None:
    """A picture by matplotlib, of the kind that the name ends in; ImportError where it is not installed."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError(
            f"--file needs matplotlib: {pip_install('matplotlib')}; plots in the terminal do not"
        ) from missing
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    try:
        axes.set_title(drawn.title, **_AS_TEXT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about slices that are all missing, and of one colour
            if drawn.values.ndim == 1:
                _draw_curve(axes, drawn)
            else:
                _draw_map(figure, axes, drawn)
            figure.savefig(file, dpi=120)
    finally:
        plt.close(figure)


def _draw_curve(axes: Any, drawn: Slice) -> None:
    (across,) = drawn.axes
    axes.plot(across.labels, drawn.values)
    axes.set_xlabel(across.title, **_AS_TEXT)
    axes.set_ylabel(printable(drawn.units), **_AS_TEXT)
    axes.grid(visible=True, alpha=0.3)


def _draw_map(figure: Any, axes: Any, drawn: Slice) -> None:
    down, across = drawn.axes
    values = np.ma.masked_invalid(drawn.values)
    axes.set_facecolor("lightgrey")  # what is missing
    painted = axes.pcolormesh(across.labels, down.labels, values, shading="nearest", rasterized=True)
    if down.values is None:
        axes.invert_yaxis()
    axes.set_xlabel(across.title, **_AS_TEXT)
    axes.set_ylabel(down.title, **_AS_TEXT)
    figure.colorbar(painted, ax=axes).set_label(printable(drawn.units), **_AS_TEXT)
