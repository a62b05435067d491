"""Coastlines of the world, and their positions on a latitude-longitude grid.

A polyline is an array of shape (n, 2) with the longitude and latitude of each point in degrees. Consecutive
points never jump across the date line, so longitudes can exceed 180.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

Polyline = NDArray[np.float64]

_FULL_TURN = 360.0
_MARGIN = 1e-6
"""The tolerance for rounded coordinates, in degrees."""


@cache
def load_coastlines() -> tuple[Polyline, ...]:
    """Load the bundled coastlines (1:110 million).

    Returns
    -------
    tuple of arrays
        Polylines with longitudes and latitudes in degrees, including lake shores.
    """
    topology = json.loads(files("icefloe").joinpath("data", "land-110m.json").read_bytes())
    lines = tuple(line for ring in _join_rings(topology) for line in _cut_at_date_line(ring))
    for line in lines:
        line.flags.writeable = False
    return lines


def select_coastlines(west: float, east: float) -> list[Polyline]:
    """Select the coastlines that touch a range of longitudes.

    Parameters
    ----------
    west, east : float
        Bounds in degrees, in any convention: -180 to 180, 0 to 360 and 350 to 370 are all valid. A range of
        more than a full turn repeats the coastlines.

    Returns
    -------
    list of arrays
        Polylines whose longitudes continue those of the range. They can extend beyond it.
    """
    found = []
    for line in load_coastlines():
        low, high = line[:, 0].min(), line[:, 0].max()
        first, last = np.ceil((west - high) / _FULL_TURN), np.floor((east - low) / _FULL_TURN)
        found += [line + np.array([turn * _FULL_TURN, 0.0]) for turn in np.arange(first, last + 1)]
    return found


def unwrapped_longitudes(longitudes: Any) -> NDArray[np.float64] | None:
    """Return the longitudes of a map without the jump at the date line or at Greenwich.

    Parameters
    ----------
    longitudes : array of shape (n,)
        Degrees east, ascending or descending. They may wrap around once: 350, 355, 0, 5.

    Returns
    -------
    array or None
        Strictly monotonic longitudes, or None if these are not the longitudes of a regular map.
    """
    given = _to_finite(longitudes)
    found = _is_monotonic(given)
    if found is None:
        found = _is_monotonic(np.unwrap(given, period=_FULL_TURN))
    return found if found is not None and abs(found[-1] - found[0]) <= _FULL_TURN + _MARGIN else None


def check_latitudes(latitudes: Any) -> NDArray[np.float64] | None:
    """Return latitudes unchanged, or None if they are not strictly monotonic or not within -90 to 90
    degrees.
    """
    found = _is_monotonic(_to_finite(latitudes))
    return found if found is not None and np.abs(found).max() <= 90 + _MARGIN else None


def find_cell_edges(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the edges of map cells: halfway between neighbouring centres, and extrapolated at both ends."""
    between = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - between[0]], between, [2 * centres[-1] - between[-1]]])


def project_coastlines(latitudes: Any, longitudes: Any) -> list[Polyline]:
    """Project the coastlines onto a latitude-longitude grid, in units of cells.

    Parameters
    ----------
    latitudes, longitudes : array
        The cell centres, at least two along each axis, as returned by `check_latitudes` and
        `unwrapped_longitudes`.

    Returns
    -------
    list of arrays
        Polylines of shape (n, 2) with a row and a column per point. Cell `i` extends from `i` to `i + 1`.
        Points outside the grid have positions below 0 or above the number of cells.
    """
    rows, columns = find_cell_edges(latitudes), find_cell_edges(longitudes)
    return [
        np.stack([_locate_in_grid(line[:, 1], rows), _locate_in_grid(line[:, 0], columns)], axis=1)
        for line in select_coastlines(columns.min(), columns.max())
    ]


def rasterize(
    lines: Iterable[Polyline], scale: tuple[float, float], shape: tuple[int, int]
) -> NDArray[np.bool_]:
    """Draw polylines such as coastlines into a raster of pixels.

    Parameters
    ----------
    lines : iterable of arrays
        Polylines of rows and columns, which may extend beyond the raster.
    scale : tuple of float
        Number of pixels per row and per column.
    shape : tuple of int
        Height and width of the raster in pixels.
    """
    pixels = np.zeros(shape, bool)
    for line in lines:  # about 130, however large the grid is
        points = line * scale
        steps = np.diff(points, axis=0)
        low, high = np.minimum(points[1:], points[:-1]), np.maximum(points[1:], points[:-1])
        is_near = ((high >= 0) & (low < shape)).all(axis=1)
        counts = np.where(is_near, 2 * np.ceil(np.abs(steps).max(axis=1)) + 1, 0).astype(int)
        segment = np.repeat(np.arange(len(counts)), counts)
        along = (np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)) / counts[segment]
        drawn = np.floor(points[segment] + steps[segment] * along[:, None]).astype(int)
        drawn = drawn[((drawn >= 0) & (drawn < shape)).all(axis=1)]
        pixels[drawn[:, 0], drawn[:, 1]] = True
    return pixels


def _join_rings(topology: Any) -> Iterator[Polyline]:
    """Join the arcs of each polygon into a ring. Arcs are delta-encoded and shared by neighbours."""
    scale, origin = (np.array(topology["transform"][name]) for name in ("scale", "translate"))
    arcs = [np.cumsum(np.array(arc, float), axis=0) * scale + origin for arc in topology["arcs"]]
    for geometry in topology["objects"]["land"]["geometries"]:
        polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        for ring in (ring for polygon in polygons for ring in polygon):
            yield np.concatenate([_get_arc(arcs, number)[min(at, 1) :] for at, number in enumerate(ring)])


def _get_arc(arcs: Sequence[Polyline], number: int) -> Polyline:
    """Look up an arc by number. A complemented (negative) number means the reversed arc."""
    return arcs[number] if number >= 0 else arcs[~number][::-1]


def _cut_at_date_line(ring: Polyline) -> Iterator[Polyline]:
    """Unwrap a ring at the date line, and cut it where it follows that line, which is not a coast."""
    on_line = np.abs(np.abs(ring[:, 0]) - 180) < _MARGIN
    cuts = np.flatnonzero(on_line[1:] & on_line[:-1]) + 1
    for part in np.split(ring, cuts):
        if len(part) > 1:
            yield np.stack([np.unwrap(part[:, 0], period=_FULL_TURN), part[:, 1]], axis=1)


def _to_finite(values: Any) -> NDArray[np.float64]:
    """Convert numbers to floats. Return an empty array if any of them is not finite."""
    found = np.asarray(values)
    if found.ndim != 1 or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        return np.empty(0)
    return found.astype(float)


def _is_monotonic(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    steps = np.diff(values)
    return values if len(steps) and (np.all(steps > 0) or np.all(steps < 0)) else None


def _locate_in_grid(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fractional cell index of each value, extrapolated beyond the outermost cells."""
    cells = np.arange(len(edges), dtype=float)
    if edges[-1] < edges[0]:
        edges, cells = edges[::-1], cells[::-1]
    inside = np.interp(values, edges, cells)
    below = np.minimum(values - edges[0], 0) * (cells[1] - cells[0]) / (edges[1] - edges[0])
    above = np.maximum(values - edges[-1], 0) * (cells[-1] - cells[-2]) / (edges[-1] - edges[-2])
    return np.asarray(inside + below + above)
