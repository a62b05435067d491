"""Where on Earth the pixels of a GeoTIFF are: its tags as coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from icefloe.virtual.loading import loaded_variable
from icefloe.virtual.variables import VirtualVariable

_PIXEL_IS_POINT: Final = 2
_PROJECTED, _GEOGRAPHIC = 1, 2
_ATTRIBUTES: Final[dict[int, dict[str, dict[str, str]]]] = {
    _PROJECTED: {
        "x": {"standard_name": "projection_x_coordinate", "axis": "X"},
        "y": {"standard_name": "projection_y_coordinate", "axis": "Y"},
    },
    _GEOGRAPHIC: {
        "x": {"standard_name": "longitude", "units": "degrees_east", "axis": "X"},
        "y": {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"},
    },
}


def coordinates_of(page: Any, variable: VirtualVariable) -> dict[str, VirtualVariable]:
    """The places of the middles of pixels along x and y, of a page or of an overview of it.

    None for pages that do not say, and for those whose rows do not run along a coordinate.
    """
    tags: Mapping[str, Any] = page.geotiff_tags or {}
    steps = _steps(tags)
    if steps is None:
        return {}
    (x, y), (x_step, y_step) = steps
    if _number(tags.get("GTRasterTypeGeoKey")) == _PIXEL_IS_POINT:
        x, y = x - x_step / 2, y - y_step / 2
    sizes = dict(zip(variable.dimensions, variable.shape, strict=True))
    # Overviews have fewer pixels for the same piece of Earth.
    x_step *= page.imagewidth / sizes["x"]
    y_step *= page.imagelength / sizes["y"]
    described = _ATTRIBUTES.get(_number(tags.get("GTModelTypeGeoKey")), {})
    return {
        name: loaded_variable((name,), start + (np.arange(sizes[name]) + 0.5) * step, described.get(name, {}))
        for name, start, step in (("x", x, x_step), ("y", y, y_step))
    }


def _steps(tags: Mapping[str, Any]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The place of the corner of the first pixel, and the steps from pixel to pixel."""
    matrix = tags.get("ModelTransformation")
    if matrix is not None:
        table = np.asarray(matrix, np.float64).reshape(4, 4)
        if table[0, 1] or table[1, 0] or not table[0, 0] or not table[1, 1]:
            return None  # turned, so that x depends on the row
        return (float(table[0, 3]), float(table[1, 3])), (float(table[0, 0]), float(table[1, 1]))
    scale, tie = tags.get("ModelPixelScale"), tags.get("ModelTiepoint")
    if scale is None or tie is None or len(tie) != 6 or not scale[0] or not scale[1]:
        return None  # several points are not a grid, but something to be fitted to
    column, row, _, x, y, _ = (float(value) for value in tie)
    x_step, y_step = float(scale[0]), -float(scale[1])
    return (x - column * x_step, y - row * y_step), (x_step, y_step)


def _number(key: Any) -> int:
    return 0 if key is None else int(getattr(key, "value", key))
