"""Array positions in URLs, as indices and as labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from icefloe.errors import IcechunkError
from icefloe.serve.array_plot import PlotLayout
from icefloe.serve.asgi import RequestError
from icefloe.serve.requests import Request
from icefloe.serve.windows import ArrayView, WindowCoordinate

_LABEL: Final = "at."
"""The prefix of query parameters that select a position by its label."""

VIEW_NAMES: Final = {"array": "y x cell colours range scale", "compare": "y x cell"}
"""Parameters of a view that links to other versions keep, in addition to slider positions."""


def has_labels(request: Request) -> bool:
    """Return True if a page URL selects slider positions by label."""
    return any(name.startswith(_LABEL) for name in request.query)


def parse_positions(request: Request) -> dict[str, int]:
    """Parse the slider positions in a page URL, such as `i.time=120`."""
    found = {name[2:]: request.number(name, -1) for name in request.query if name.startswith("i.")}
    return {name: place for name, place in found.items() if place >= 0}


def resolve_labels(request: Request, view: ArrayView, layout: PlotLayout) -> str:
    """Convert the labels in a page URL to positions, such as `at.time=2025-03-03&at.lat=50N`."""
    place: list[int | None] = list(layout.at)
    drawn = [axis for axis in (layout.y, layout.x) if axis is not None]
    cell = request.numbers("cell")
    for number, axis in enumerate(drawn):
        place[axis] = cell[number] if len(cell) == len(drawn) == 2 else None
    for name, text in request.query.items():
        dim = name.removeprefix(_LABEL)
        if dim != name:
            if dim not in view.dims:
                raise RequestError(400, f"{view.path} has no dimension {dim}")
            axis = view.dims.index(dim)
            if text.strip():
                place[axis] = view.coordinate(axis).find(text)
    missing = [view.dims[axis] for axis in drawn if place[axis] is None]
    if 0 < len(missing) < len(drawn):
        raise RequestError(400, f"no cell is selected yet: {missing[0]} is needed, too")
    query = {name: value for name, value in request.query.items() if not name.startswith((_LABEL, "i."))}
    query |= {
        f"i.{view.dims[axis]}": str(at) for axis, at in enumerate(place) if axis not in (layout.y, layout.x)
    }
    if len(drawn) == 2 and not missing:
        query["cell"] = f"{place[drawn[0]]},{place[drawn[1]]}"
    return "/" + b"/".join(request.raw).decode("ascii") + f"?{urlencode(query)}#cell"


def list_places(request: Request, view: ArrayView, layout: PlotLayout) -> list[tuple[str, str, str]]:
    """List the dimensions of an array, each with the label of the current position and an example label."""
    if layout.y is None or layout.x is None:
        return []
    cell = request.numbers("cell")
    drawn = dict(zip((layout.y, layout.x), cell, strict=True)) if len(cell) == 2 else {}
    found = []
    for axis, at in enumerate(layout.at):
        coordinate = view.coordinate(axis)
        place = drawn.get(axis) if axis in (layout.y, layout.x) else at
        known = "" if place is None or place >= view.shape[axis] else coordinate.labels([place])[0]
        found.append((view.dims[axis], known, _example_label(coordinate)))
    return found


def query_with(request: Request, name: str, at: int) -> str:
    """Return the URL query that moves a slider to another position."""
    return urlencode({**request.query, f"i.{name}": at})


def describe_view(request: Request) -> dict[str, str]:
    """Return the URL queries that open other versions and comparisons at the current positions."""
    found = {}
    for page, names in VIEW_NAMES.items():
        kept = {
            name: text
            for name, text in request.query.items()
            if name.startswith("i.") or name in names.split()
        }
        found[f"{page}_view"] = f"?{urlencode(kept)}" if kept else ""
    return found


def _example_label(coordinate: WindowCoordinate) -> str:
    """Return an example of a coordinate label, which shows users the expected format."""
    if coordinate.latitudes is not None:
        return "50N"
    return "10E" if coordinate.longitudes is not None else coordinate.labels([0])[0]


def label_region(open_view: Callable[[str], ArrayView], path: str, box: Mapping[str, tuple[int, int]]) -> str:
    """Format a region of an array with coordinate labels. Return an empty string if they cannot be read or
    the region does not exist.
    """
    try:
        view = open_view(path)
        axes = {dim: view.dims.index(dim) for dim in box}
        if not all(first < stop <= view.shape[axes[dim]] for dim, (first, stop) in box.items()):
            return ""
        coordinates = {dim: view.coordinate(axis) for dim, axis in axes.items()}
    except (RequestError, IcechunkError, ValueError):
        return ""
    return ", ".join(coordinates[dim].range_text(first, stop - 1) for dim, (first, stop) in box.items())
