"""The difference plot of two versions of an array: its initial position, outlines and tables."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.core.chunk_grid import get_stored_grid
from icefloe.errors import IcechunkError
from icefloe.serve.array_plot import PlotLayout, value_table
from icefloe.serve.asgi import RequestError
from icefloe.serve.compare import compare_values
from icefloe.serve.requests import ShownVersion
from icefloe.serve.windows import ArrayView

_MAX_SEARCHED: Final = 16
"""The maximum number of chunks to compare when searching for the first cell that differs."""


def describe_shapes(before: ShownVersion, old: ArrayView, after: ShownVersion, new: ArrayView) -> str:
    """Describe in sentences how the shape of the array differs between the two versions."""
    one, other = (" × ".join(map(str, view.shape)) for view in (old, new))
    text = f"The shape is {one} in {before.label} and {other} in {after.label}. The common part is compared."
    for shown, longer, shorter in ((before, old, new), (after, new, old)):
        parts = [
            longer.coordinate(axis).range_text(size, longer.shape[axis] - 1)
            for axis, size in enumerate(shorter.shape)
            if size < longer.shape[axis]
        ]
        if parts:
            text += f" Only {shown.label} has {', '.join(parts)}."
    return text


def find_first_change(old: ArrayView, new: ArrayView, chunks: Any, chosen: tuple[int, ...]) -> dict[str, int]:
    """Find the initial position of a difference plot: the first differing cell of the chosen chunk, or else
    of the first chunks that differ.

    Parameters
    ----------
    old, new
        The array in both versions, restricted to the common part.
    chunks
        The chunks that differ; None if there are none.
    chosen
        The coordinates of a chunk; empty if none is chosen.
    """
    grid, ranks = get_stored_grid(new.document), len(new.shape)
    found = np.zeros((0, ranks), np.int64) if chunks is None else chunks.coords.astype(np.int64)
    if ranks and len(chosen) == ranks:
        found = np.concatenate([np.array([chosen], np.int64), found.reshape(-1, ranks)])
    if not ranks or found.shape[1] != ranks:
        return {}
    inside = [
        tuple(slice(part.start, min(part.stop, size), 1) for part, size in zip(box, new.shape, strict=True))
        for box in map(
            grid.inside, found[(found < np.array(grid.counts)).all(axis=1)][:_MAX_SEARCHED].tolist()
        )
        if all(part.start < size for part, size in zip(box, new.shape, strict=True))
    ]
    for box in inside:
        try:
            unequal = compare_values(old, new, box).unequal
        except (RequestError, IcechunkError):  # the plot says why
            break
        if unequal.any():
            first = np.unravel_index(int(unequal.argmax()), unequal.shape)
            return {dim: part.start + int(at) for dim, part, at in zip(new.dims, box, first, strict=True)}
    return {dim: part.start for dim, part in zip(new.dims, inside[0], strict=True)} if inside else {}


def describe_extent(view: ArrayView, layout: PlotLayout, unequal: NDArray[np.bool_]) -> str:
    """Format the range of cells that differ in a plot; empty if there are none."""
    found = []
    for axis, step in ((layout.y, layout.every[0]), (layout.x, layout.every[1])):
        if axis is not None and unequal.any():
            at = np.unique(np.nonzero(unequal)[axis]) * step
            found.append(view.coordinate(axis).range_text(int(at[0]), int(at[-1])))
    return ", ".join(found)


def tabulate_difference(view: ArrayView, layout: PlotLayout, difference: Any) -> list[tuple[str, Any]]:
    """Create tables of the values before and after, which are shown next to a difference plot."""
    return [
        ("before", value_table(view, layout, difference.before)),
        ("after", value_table(view, layout, difference.after)),
    ]


def outline_changes(view: ArrayView, layout: PlotLayout, chunks: Any) -> list[list[int]]:
    """Return the rectangles, in cells, that outline the changed chunks in a plot."""
    if chunks is None or layout.kind == "none" or layout.x is None:
        return []
    grid = get_stored_grid(view.document)
    coords = chunks.coords
    for axis, at in enumerate(layout.at):
        if axis in (layout.y, layout.x):
            continue
        here = int(np.searchsorted(grid.edges[axis], at, "right")) - 1
        coords = coords[coords[:, axis] == here]
    drawn = [axis for axis in (layout.y, layout.x) if axis is not None]
    places = np.unique(coords[:, drawn], axis=0)[:400]
    found = []
    for place in places.tolist():
        box = [
            int(edge)
            for axis, at in zip(drawn, place, strict=True)
            for edge in (grid.edges[axis][at], min(grid.edges[axis][at + 1], view.shape[axis]))
        ]
        if any(start >= stop for start, stop in zip(box[::2], box[1::2], strict=True)):
            continue  # outside the part that both versions share
        found.append(box if len(drawn) == 2 else [0, 1, *box])
    return found
