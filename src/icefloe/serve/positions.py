"""Positions in an array, as indices and as labels, in URLs."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from icefloe.serve.picture import Layout
from icefloe.serve.requests import Request
from icefloe.serve.responses import RequestError
from icefloe.serve.windows import ArrayView, Coordinate

_LABEL: Final = "at."
"""The prefix of parameters that select a position by its label."""


def has_labels(request: Request) -> bool:
    """Return whether a URL selects a position by labels."""
    return any(name.startswith(_LABEL) for name in request.query)


def parse_positions(request: Request) -> dict[str, int]:
    """Return the positions of sliders: `i.time=120`."""
    return {
        name[2:]: int(value)
        for name, value in request.query.items()
        if name.startswith("i.") and value.isascii() and value.isdigit() and len(value) < 12
    }


def resolve_labels(request: Request, view: ArrayView, layout: Layout) -> str:
    """Return the URL of the cell that labels select: `at.time=2025-03-03&at.lat=50N`."""
    place = list(layout.at)
    for name, text in request.query.items():
        dim = name.removeprefix(_LABEL)
        if dim != name:
            if dim not in view.dims:
                raise RequestError(400, f"{view.path} has no dimension {dim}")
            axis = view.dims.index(dim)
            place[axis] = view.coordinate(axis).find(text)
    query = {name: value for name, value in request.query.items() if not name.startswith((_LABEL, "i."))}
    query |= {
        f"i.{view.dims[axis]}": str(at) for axis, at in enumerate(place) if axis not in (layout.y, layout.x)
    }
    if layout.y is not None and layout.x is not None:
        query["cell"] = f"{place[layout.y]},{place[layout.x]}"
    return "/" + b"/".join(request.raw).decode("ascii") + f"?{urlencode(query)}#cell"


def list_places(request: Request, view: ArrayView, layout: Layout) -> list[tuple[str, str, str]]:
    """Return the name of each dimension, the label of the current cell and an example of a label."""
    if layout.y is None or layout.x is None:
        return []
    cell = request.query.get("cell", "").split(",")
    drawn = dict(zip((layout.y, layout.x), cell, strict=False)) if len(cell) == 2 else {}
    found = []
    for axis, at in enumerate(layout.at):
        coordinate = view.coordinate(axis)
        text = drawn.get(axis, "" if axis in (layout.y, layout.x) else str(at))
        place = int(text) if text.isdigit() and int(text) < view.shape[axis] else None
        known = "" if place is None else coordinate.labels([place])[0]
        found.append((view.dims[axis], known, _example_label(coordinate)))
    return found


def query_with(request: Request, name: str, at: int) -> str:
    """Return the query of this page with another position of a slider."""
    return urlencode({**request.query, f"i.{name}": at})


def _example_label(coordinate: Coordinate) -> str:
    """Return a label that a coordinate could have, to show how labels are written."""
    if coordinate.latitudes is not None:
        return "50N"
    return "10E" if coordinate.longitudes is not None else coordinate.labels([0])[0]
