"""Where on Earth the pixels of a GeoTIFF are: its tags as coordinates and as a CF grid mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from icefloe.virtual.agreement import GEO_TRANSFORM
from icefloe.virtual.loaded import loaded_variable
from icefloe.virtual.parsers.tiff.crs import grid_mapping_of, key_number
from icefloe.virtual.variables import VirtualVariable

SPATIAL_REF: Final = "spatial_ref"
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


def placed(page: Any, variable: VirtualVariable) -> dict[str, VirtualVariable]:
    """Add to the image of a page, or to an overview of it, variables that say where its pixels are on Earth.

    These are the coordinates x and y of the centres of pixels, if rows and columns run along them, and the
    grid mapping, if the coordinate reference system is known.

    Returns
    -------
    dict
        The image under the name "", and the others under their own.
    """
    tags: Mapping[str, Any] = page.geotiff_tags or {}
    sizes = dict(zip(variable.dimensions, variable.shape, strict=True))
    transform = _transform(tags, page.imagewidth / sizes["x"], page.imagelength / sizes["y"])
    found = {} if transform is None else _coordinates(tags, transform, sizes)
    grid_mapping = grid_mapping_of(tags)
    if not grid_mapping:
        return {"": variable, **found}
    if transform is not None:
        grid_mapping[GEO_TRANSFORM] = " ".join(map(repr, transform))
    # Named as a coordinate, too: xarray makes it one without decode_coords="all", and rioxarray wants that.
    named = {**variable.attributes, "grid_mapping": SPATIAL_REF, "coordinates": SPATIAL_REF}
    found[SPATIAL_REF] = loaded_variable((), np.array(0, np.int32), grid_mapping)
    return {"": replace(variable, attributes=named), **found}


def _coordinates(
    tags: Mapping[str, Any], transform: tuple[float, ...], sizes: Mapping[str, int]
) -> dict[str, VirtualVariable]:
    x, x_step, x_turn, y, y_turn, y_step = transform
    if x_turn or y_turn or not x_step or not y_step:
        return {}
    described = _ATTRIBUTES.get(key_number(tags.get("GTModelTypeGeoKey")), {})
    return {
        name: loaded_variable((name,), start + (np.arange(sizes[name]) + 0.5) * step, described.get(name, {}))
        for name, start, step in (("x", x, x_step), ("y", y, y_step))
    }


def _transform(tags: Mapping[str, Any], columns: float, rows: float) -> tuple[float, ...] | None:
    """Return the affine transform from columns and rows to x and y, in the order of GDAL.

    `columns` and `rows` say how many of the page's pixels make one of the image: an overview has fewer pixels
    for the same piece of Earth.
    """
    matrix, scale, tie = (
        tags.get(key) for key in ("ModelTransformation", "ModelPixelScale", "ModelTiepoint")
    )
    if matrix is not None:
        table = np.asarray(matrix, np.float64).reshape(4, 4)
        x, x_step, x_turn = (float(table[0, at]) for at in (3, 0, 1))
        y, y_turn, y_step = (float(table[1, at]) for at in (3, 0, 1))
    elif scale is not None and tie is not None and len(tie) == 6:
        column, row, _, x, y, _ = (float(value) for value in tie)
        (x_step, y_step), x_turn, y_turn = (float(scale[0]), -float(scale[1])), 0.0, 0.0
        x, y = x - column * x_step, y - row * y_step
    else:
        return None  # nothing, or control points to be fitted to
    if key_number(tags.get("GTRasterTypeGeoKey")) == _PIXEL_IS_POINT:
        x, y = x - (x_step + x_turn) / 2, y - (y_step + y_turn) / 2
    return x, x_step * columns, x_turn * rows, y, y_turn * columns, y_step * rows
