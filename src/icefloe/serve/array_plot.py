"""Layouts and data of array plots: drawn dimensions, requests, and quantized colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.charts import nice_ticks
from icefloe.coastlines import project_coastlines
from icefloe.serve.settings import RequestLimits
from icefloe.serve.windows import NUMBERS, ArrayView, Index, WindowCoordinate

MAX_CELLS: Final = 320_000
"""The maximum number of cells in a plot, and in all steps that are sent at once: 640 kB."""
_TABLE: Final = 8
"""The number of rows and columns in the table of values."""
_THINNED: Final = "one of every"
_MAX_TICKS: Final = 7
_WHOLE_DEGREES: Final = 60
"""The distance between ticks on maps that are wider than `_WIDE_DEGREES`."""
_WIDE_DEGREES: Final = 150


@dataclass(frozen=True, slots=True)
class PlotLayout:
    """The layout of an array plot: which dimensions are drawn, and the positions along all other
    dimensions.
    """

    kind: str
    """`map`, `heat`, `line`, `table` or `none`."""
    y: int | None
    x: int | None
    """The dimension along the horizontal axis; None if it is not drawn."""
    at: tuple[int, ...]
    """The position along each dimension; 0 for drawn dimensions."""
    every: tuple[int, int] = (1, 1)
    """The steps between drawn rows and between drawn columns."""
    note: str = ""
    """A note below the plot."""

    def index(self, view: ArrayView) -> Index:
        """Return the window of the array that the plot shows."""
        parts = [slice(at, at + 1, 1) for at in self.at]
        for axis, step in ((self.y, self.every[0]), (self.x, self.every[1])):
            if axis is not None:
                parts[axis] = slice(0, view.shape[axis], step)
        return tuple(parts)

    def oriented(self, values: NDArray[Any]) -> NDArray[Any]:
        """Transpose a window into the rows and columns of the plot."""
        kept = [axis for axis in (self.y, self.x) if axis is not None]
        rest = [axis for axis in range(values.ndim) if axis not in kept]
        turned = values.transpose([*rest, *kept])
        return turned.reshape(turned.shape[len(rest) :])


@dataclass(frozen=True, slots=True)
class PlotSource:
    """The data source of an array plot: the array itself, or a level of its pyramid."""

    view: ArrayView
    layout: PlotLayout
    """The layout of the array or level."""
    level: int = 0
    factor: int = 1
    """How many rows or columns of the array correspond to one row or column of the level."""

    @property
    def cells(self) -> int:
        """The number of cells that the plot draws from this source."""
        index = self.layout.index(self.view)
        return math.prod(len(range(part.start, part.stop, part.step)) for part in index)

    @property
    def every(self) -> tuple[int, int]:
        """The distance between drawn cells, in rows and columns of the array."""
        return self.factor * self.layout.every[0], self.factor * self.layout.every[1]

    @property
    def note(self) -> str:
        """The note below the plot about its pyramid level; empty for the array itself."""
        if not self.level:
            return ""
        text = f"level {self.level} of the pyramid, with one cell for {self.factor} × {self.factor}"
        rows, columns = self.layout.every
        return text if rows == columns == 1 else f"one of every {rows} × {columns} cells of {text}"

    def as_part_of(self, layout: PlotLayout) -> PlotLayout:
        """Return the array's plot layout, thinned to the cells of this pyramid level."""
        if not self.level:
            return replace(layout, every=self.every, note=self.layout.note)
        notes = [each for each in layout.note.split("; ") if not each.startswith(_THINNED)]
        return replace(layout, every=self.every, note="; ".join(notes))

    def read(self, most: int) -> Any:
        """Read the cells of the plot. Return None if there are none, or if a page may not decode that many
        bytes.
        """
        if 0 in self.view.shape:
            return None
        index = self.layout.index(self.view)
        fits = (self.layout.at or not self.view.shape) and self.view.touched_bytes(index) <= most
        return self.view.read(index) if fits else None


def choose_layout(view: ArrayView, at: Mapping[str, int], y: str = "", x: str = "") -> PlotLayout:
    """Choose the layout of an array plot.

    Parameters
    ----------
    view
        The array.
    at
        The positions along dimensions that are not drawn; 0 by default.
    y, x
        Names of the dimensions to draw; by default latitude and longitude, or else the last two.
    """
    places = tuple(
        min(max(at.get(name, 0), 0), max(size - 1, 0))
        for name, size in zip(view.dims, view.shape, strict=True)
    )
    found = _choose(view, places, y, x)
    drawn = (found.y, found.x)
    return replace(found, at=tuple(0 if axis in drawn else each for axis, each in enumerate(places)))


def _choose(view: ArrayView, places: tuple[int, ...], y: str, x: str) -> PlotLayout:
    long = [axis for axis, size in enumerate(view.shape) if size > 1]
    if not view.shape or 0 in view.shape or not long:
        return PlotLayout("none", None, None, places)
    if not view.is_numeric:
        return _table_layout(view, long, places)
    by_name = {name: axis for axis, name in enumerate(view.dims)}
    if len(long) == 1:
        return PlotLayout("line", None, long[0], places)
    rows, columns = by_name.get(y), by_name.get(x)
    if columns is not None and not y and x:
        return PlotLayout("line", None, columns, places)
    if rows is None or columns is None or rows == columns:
        rows, columns = _default_axes(view, long)
    every = thin_cells(view.shape[rows], view.shape[columns])
    note = "" if every == (1, 1) else f"{_THINNED} {every[0]} × {every[1]} cells is drawn"
    is_map = _is_map(view.coordinate(rows), view.coordinate(columns))
    if not is_map:
        index = "cells are drawn by their index"
        note = f"{note}; {index}" if note else index
    return PlotLayout("map" if is_map else "heat", rows, columns, places, every, note)


def _table_layout(view: ArrayView, long: list[int], places: tuple[int, ...]) -> PlotLayout:
    """Choose rows and columns for a table of values that cannot be drawn."""
    if len(long) == 1:
        return PlotLayout("table", long[0], None, places, (max(1, view.shape[long[0]] // MAX_CELLS), 1))
    rows, columns = long[-2:]
    return PlotLayout("table", rows, columns, places, thin_cells(view.shape[rows], view.shape[columns]))


def _default_axes(view: ArrayView, long: list[int]) -> tuple[int, int]:
    latitudes = [axis for axis in long if view.coordinate(axis).latitudes is not None]
    longitudes = [axis for axis in long if view.coordinate(axis).longitudes is not None]
    if latitudes and longitudes:
        return latitudes[-1], longitudes[-1]
    return long[-2], long[-1]


def _is_map(rows: WindowCoordinate, columns: WindowCoordinate) -> bool:
    """Return True if each row of the plot has one latitude, and each column one longitude."""
    return rows.latitudes is not None and columns.longitudes is not None


def thin_cells(rows: int, columns: int) -> tuple[int, int]:
    """Return the steps between rows and between columns that keep a plot small enough."""
    step = max(1, math.ceil(math.sqrt(rows * columns / MAX_CELLS)))
    return (min(step, rows), min(step, columns))


def axis_ticks(view: ArrayView, axis: int, step: int, *, is_map: bool = False) -> list[tuple[float, str]]:
    """Choose ticks along a dimension of a plot: positions in drawn cells, and their labels.

    Parameters
    ----------
    view
        The array.
    axis
        The dimension.
    step
        Only every n-th cell is drawn.
    is_map
        Format latitudes and longitudes as on a map: 30°N.
    """
    coordinate, size = view.coordinate(axis), view.shape[axis]
    numbers = _get_steady_values(coordinate)
    if numbers is None:
        spread = _spread(size, _MAX_TICKS)
        return [((at + 0.5) / step, text) for at, text in zip(spread, coordinate.labels(spread), strict=True)]
    rising = numbers if numbers[-1] >= numbers[0] else numbers[::-1]
    found = nice_ticks(float(rising[0]), float(rising[-1]), _MAX_TICKS)
    if coordinate.values is None:
        found = [each for each in found if each == round(each)]
    if is_map and rising[-1] - rising[0] >= _WIDE_DEGREES:
        found = [each for each in range(-360, 721, _WHOLE_DEGREES) if rising[0] <= each <= rising[-1]]
    places = np.interp(found, rising, np.arange(size)) + 0.5
    places = places if rising is numbers else size - places
    texts = [_format_degrees(each, coordinate) if is_map else f"{each:.10g}" for each in found]
    return [(place / step, text) for place, text in zip(places.tolist(), texts, strict=True)]


def _get_steady_values(coordinate: WindowCoordinate) -> NDArray[np.float64] | None:
    """Return strictly monotonic coordinate values, or the indices if there is no coordinate."""
    if coordinate.values is None:
        return np.arange(coordinate.size, dtype="f8")
    if coordinate.is_time or coordinate.values.dtype.kind not in NUMBERS or coordinate.size < 2:
        return None
    numbers = coordinate.longitudes
    numbers = coordinate.values.astype("f8") if numbers is None else numbers
    steps = np.diff(numbers)
    return numbers if np.isfinite(numbers).all() and ((steps > 0).all() or (steps < 0).all()) else None


def _format_degrees(value: float, coordinate: WindowCoordinate) -> str:
    """Format a latitude or longitude as on a map."""
    if coordinate.latitudes is not None:
        return f"{abs(value):g}°{'N' if value > 0 else 'S' if value < 0 else ''}"
    east = (value + 180) % 360 - 180
    return f"{abs(east):g}°{'E' if 0 < east < 180 else 'W' if -180 < east < 0 else ''}"


def steps_at_once(view: ArrayView, layout: PlotLayout, axis: int, limits: RequestLimits) -> int:
    """Choose how many steps along a dimension are sent at once: up to one chunk, within the limits."""
    cells = math.prod(len(range(part.start, part.stop, part.step)) for part in layout.index(view))
    most = max(1, MAX_CELLS // max(cells, 1))
    edges = view.grid.edges[axis]
    chunk = int(edges[1] - edges[0]) if len(edges) > 1 else 1
    return max(1, min(most, max(chunk, 1) if chunk > 1 else most, view.shape[axis]))


def bands(view: ArrayView, layout: PlotLayout, limits: RequestLimits) -> list[tuple[int, int]]:
    """Split the rows of a plot into bands, so that no request decodes too much. There is one band if all rows
    fit.
    """
    index = layout.index(view)
    if layout.y is None or view.touched_bytes(index) <= limits.decoded_bytes:
        return [(0, view.shape[layout.y] if layout.y is not None else 0)]
    edges = view.grid.edges[layout.y]
    step = layout.every[0]
    found: list[tuple[int, int]] = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first = -(-start // step) * step
        if first < min(stop, view.shape[layout.y]):
            found.append((first, min(stop, view.shape[layout.y])))
    return found


@dataclass(frozen=True, slots=True)
class PlotStatistics:
    """The summary statistics shown below an array plot."""

    low: float | None
    high: float | None
    mean: float | None
    missing: int
    infinite: int
    cells: int

    @staticmethod
    def of(values: NDArray[np.float64]) -> PlotStatistics:
        """Compute summary statistics of the finite numbers in a plot. NaN counts as missing."""
        there = values[np.isfinite(values)]
        missing = int(np.count_nonzero(np.isnan(values)))
        counts = (missing, values.size - there.size - missing, values.size)
        if not there.size:
            return PlotStatistics(None, None, None, *counts)
        return PlotStatistics(float(there.min()), float(there.max()), float(there.mean()), *counts)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary statistics as a dictionary."""
        return {name: getattr(self, name) for name in self.__slots__}


def as_colours(values: NDArray[np.float64], low: float | None, high: float | None) -> bytes:
    """Quantize numbers for colouring: 0 for missing ones, otherwise 1 to 65535 from `low` to `high`."""
    if low is None or high is None:
        return bytes(2 * values.size)
    span = high - low
    with np.errstate(invalid="ignore", over="ignore"):
        share = (values - low) / span if span > 0 else np.zeros_like(values)
        codes = np.clip(np.rint(share * 65534), 0, 65534) + 1
    return np.where(np.isfinite(values), codes, 0).astype("<u2").tobytes()


def coast(view: ArrayView, layout: PlotLayout) -> list[list[float]]:
    """Project the coastlines onto a plot: flat lists of x and y coordinates in cells."""
    if layout.kind != "map" or layout.y is None or layout.x is None:
        return []
    latitudes = view.coordinate(layout.y).latitudes
    longitudes = view.coordinate(layout.x).longitudes
    if latitudes is None or longitudes is None:
        return []
    rows, columns = len(latitudes), len(longitudes)
    return [
        part for line in project_coastlines(latitudes, longitudes) for part in _clip_line(line, rows, columns)
    ]


def _clip_line(line: NDArray[np.float64], rows: int, columns: int) -> Iterator[list[float]]:
    """Yield the parts of a line inside a plot, each with the point before and after it."""
    inside = np.asarray(((line > -1) & (line < (rows + 1, columns + 1))).all(axis=1))
    near = inside.copy()
    near[:-1] |= inside[1:]
    near[1:] |= inside[:-1]
    for first, last in _find_runs(near):
        if last - first > 1:
            yield np.round(line[first:last, ::-1].ravel(), 2).tolist()


def _find_runs(marked: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of True values in a mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def value_table(view: ArrayView, layout: PlotLayout, values: NDArray[Any]) -> dict[str, Any] | None:
    """Create a small table of exact values, from evenly spaced rows and columns of a plot."""
    drawn = layout.oriented(values)
    if drawn.ndim > 2:
        return None
    if drawn.ndim < 2:
        layout = replace(layout, y=layout.y if layout.x is None else layout.x, x=None)
        drawn = drawn.reshape(-1, 1)
    most = (2 * _TABLE if drawn.shape[1] == 1 else _TABLE, 2 * _TABLE if drawn.shape[0] == 1 else _TABLE)
    rows, columns = (_spread(size, limit) for size, limit in zip(drawn.shape, most, strict=True))
    texts = view.texts(np.ascontiguousarray(drawn[np.ix_(rows, columns)]))
    return {
        "rows": _format_labels(view, layout.y, rows, layout.every[0]),
        "columns": _format_labels(view, layout.x, columns, layout.every[1]),
        "row_name": "" if layout.y is None else view.dims[layout.y],
        "column_name": "" if layout.x is None else view.dims[layout.x],
        "cells": texts.tolist(),
    }


def _spread(size: int, most: int) -> list[int]:
    """Choose evenly spaced positions from the first to the last."""
    return sorted(set(np.linspace(0, size - 1, min(size, most)).round().astype(int).tolist())) if size else []


def _format_labels(view: ArrayView, axis: int | None, at: list[int], step: int) -> list[str]:
    return [""] * len(at) if axis is None else view.coordinate(axis).labels(each * step for each in at)
