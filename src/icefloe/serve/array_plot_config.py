"""The configuration of an array plot for the script that draws it in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from icefloe.serve.array_plot import PlotLayout, PlotSource, axis_ticks, bands, steps_at_once
from icefloe.serve.settings import RequestLimits
from icefloe.serve.windows import ArrayView


def describe_picture(
    snapshot_id: str,
    view: ArrayView,
    layout: PlotLayout,
    sources: Sequence[PlotSource],
    limits: RequestLimits,
    scale: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Create the configuration of an array plot for the script that draws it in the browser.

    `scale` is the range of all values, if known.
    """
    if layout.kind in ("none", "table"):
        return {"kind": layout.kind}
    rows = None if layout.y is None else view.coordinate(layout.y)
    columns = view.coordinate(layout.x or 0)
    is_map = layout.kind == "map"
    latitudes = rows.latitudes if rows is not None and is_map else None
    longitudes = columns.longitudes if is_map else None
    ticks = partial(axis_ticks, view, is_map=is_map)
    return {
        "kind": layout.kind,
        "version": snapshot_id,
        "path": view.path.strip("/"),
        "dims": view.dims,
        "shape": view.shape,
        "y": layout.y,
        "x": layout.x,
        "at": layout.at,
        "every": layout.every,
        "sources": [_describe_source(each, limits) for each in sources],
        "flip_y": bool(latitudes is not None and latitudes[0] < latitudes[-1]),
        "flip_x": bool(longitudes is not None and longitudes[0] > longitudes[-1]),
        "units": view.units,
        "scale": scale,
        "y_label": "" if rows is None else label_axis(rows.name, rows.units),
        "x_label": label_axis(columns.name, columns.units),
        "y_ticks": [] if layout.y is None else ticks(layout.y, layout.every[0]),
        "x_ticks": [] if layout.y is None else ticks(layout.x or 0, layout.every[1]),
    }


def _describe_source(source: PlotSource, limits: RequestLimits) -> dict[str, Any]:
    """Describe the data sources from which a plot can be drawn."""
    view, layout = source.view, source.layout
    others = [axis for axis in range(len(view.shape)) if axis not in (layout.y, layout.x)]
    return {
        "path": view.path.strip("/"),
        "shape": view.shape,
        "step": layout.every,
        "every": source.every,
        "bands": bands(view, layout, limits),
        "steps": {axis: steps_at_once(view, layout, axis, limits) for axis in others},
        "note": source.note,
    }


def describe_sliders(view: ArrayView, layout: PlotLayout) -> list[dict[str, Any]]:
    """Describe the sliders of an array plot, one per dimension that is not drawn."""
    found = []
    for axis, at in enumerate(layout.at):
        if axis in (layout.y, layout.x):
            continue
        coordinate = view.coordinate(axis)
        found.append(
            {
                "axis": axis,
                "name": view.dims[axis],
                "size": view.shape[axis],
                "at": at,
                "label": coordinate.labels([at])[0] if view.shape[axis] else "",
                "units": coordinate.units,
            }
        )
    return found


def label_axis(name: str, units: str) -> str:
    """Format the name and units of a dimension as an axis label."""
    return f"{name} ({units})" if units else name
