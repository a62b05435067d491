"""Line plots of arrays: values along one dimension."""

from __future__ import annotations

from typing import Any

from icefloe.charts import draw_line
from icefloe.serve import views
from icefloe.serve.array_plot import PlotLayout
from icefloe.serve.array_plot_config import label_axis
from icefloe.serve.requests import ShownVersion
from icefloe.serve.windows import ArrayView


def describe_line(
    shown: ShownVersion | None, view: ArrayView, layout: PlotLayout, numbers: Any
) -> dict[str, Any] | None:
    """Create a line plot of a one-dimensional window. Return None if it has no values or a different
    layout.
    """
    if numbers is None or layout.kind != "line":
        return None
    axis = layout.x or 0
    coordinate = view.coordinate(axis)
    labels = coordinate.labels([0, coordinate.size // 2, coordinate.size - 1])
    return {
        "drawn": draw_line(layout.oriented(numbers).reshape(-1), labels),
        "name": label_axis(coordinate.name, coordinate.units),
        "url": "" if shown is None else series_url(shown, view, list(layout.at), axis),
    }


def series_url(shown: ShownVersion, view: ArrayView, place: list[int], axis: int) -> str:
    """Return the URL of the exact values in a line plot."""
    path = views.version_url("api/series", shown.snapshot_id, view.path)
    return f"{path}?index={','.join(map(str, place))}&axis={axis}"
