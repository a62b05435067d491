"""Georeference GeoTIFF images: create pixel coordinates, and describe the CRS as a CF grid mapping.

pyproj converts EPSG codes and user-defined projections to WKT and CF attributes. Without pyproj, the grid
mapping contains only the EPSG code, which rioxarray and pyproj understand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.virtual.variables import VirtualVariable, make_loaded_variable
from icefloe.virtual.zarr_metadata import GEO_TRANSFORM

if TYPE_CHECKING:
    from pyproj import CRS

SPATIAL_REF: Final = "spatial_ref"
_PIXEL_IS_POINT: Final = 2
_TRANSFORM_TAGS: Final = {"ModelPixelScale": 33550, "ModelTiepoint": 33922, "ModelTransformation": 34264}
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
_WITH_OTHER_PROJ: Final = ("eccodes", "gribapi")
"""Module names of ecCodes, which loads its own copy of PROJ. If pyproj is loaded later, it calls that copy
and crashes.
"""
_PROGRAM: Final = """\
import json, sys
sys.path[:], keys = json.load(sys.stdin)
from icefloe.virtual.parsers.tiff.georeference import make_grid_mapping
print(json.dumps(make_grid_mapping(keys)))
"""
_USER_DEFINED: Final = 32767
_PE_STRING: Final = "ESRI PE String = "
_ANGULAR_UNITS: Final = {9101: ("radian", 1.0), 9105: ("grad", 0.015707963267948967)}
_DEGREE: Final = ("degree", 0.0174532925199433)
_AXES: Final = ',AXIS["Latitude",NORTH],AXIS["Longitude",EAST]'

_ORIGIN_LAT: Final = (
    "ProjNatOriginLatGeoKey",
    "ProjFalseOriginLatGeoKey",
    "ProjCenterLatGeoKey",
)
_ORIGIN_LONG: Final = (
    "ProjNatOriginLongGeoKey",
    "ProjFalseOriginLongGeoKey",
    "ProjCenterLongGeoKey",
    "ProjStraightVertPoleLongGeoKey",
)
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "latitude_of_origin": _ORIGIN_LAT,
    "latitude_of_center": _ORIGIN_LAT,
    "central_meridian": _ORIGIN_LONG,
    "longitude_of_center": _ORIGIN_LONG,
    "standard_parallel_1": ("ProjStdParallel1GeoKey",),
    "standard_parallel_2": ("ProjStdParallel2GeoKey",),
    "scale_factor": ("ProjScaleAtNatOriginGeoKey", "ProjScaleAtCenterGeoKey"),
    "azimuth": ("ProjAzimuthAngleGeoKey",),
    "rectified_grid_angle": ("ProjRectifiedGridAngleGeoKey", "ProjAzimuthAngleGeoKey"),
    "false_easting": (
        "ProjFalseEastingGeoKey",
        "ProjFalseOriginEastingGeoKey",
        "ProjCenterEastingGeoKey",
    ),
    "false_northing": (
        "ProjFalseNorthingGeoKey",
        "ProjFalseOriginNorthingGeoKey",
        "ProjCenterNorthingGeoKey",
    ),
}
"""The GeoTIFF keys for each WKT parameter. Different writers use different keys for the origin."""
_OFFSETS: Final = ("false_easting", "false_northing")
_AT_ORIGIN: Final = ("latitude_of_origin", "central_meridian")
_AT_CENTER: Final = ("latitude_of_center", "longitude_of_center")
_PARALLELS: Final = ("standard_parallel_1", "standard_parallel_2")
_OBLIQUE: Final = (*_AT_CENTER, "azimuth", "rectified_grid_angle", "scale_factor")
_PROJECTIONS: Final[Mapping[int, tuple[str, tuple[str, ...]]]] = {
    1: ("Transverse_Mercator", (*_AT_ORIGIN, "scale_factor")),
    3: ("Hotine_Oblique_Mercator", _OBLIQUE),
    7: ("Mercator_1SP", (*_AT_ORIGIN, "scale_factor")),
    8: ("Lambert_Conformal_Conic_2SP", (*_PARALLELS, *_AT_ORIGIN)),
    9: ("Lambert_Conformal_Conic_1SP", (*_AT_ORIGIN, "scale_factor")),
    10: ("Lambert_Azimuthal_Equal_Area", _AT_CENTER),
    11: ("Albers_Conic_Equal_Area", (*_PARALLELS, *_AT_CENTER)),
    12: ("Azimuthal_Equidistant", _AT_CENTER),
    13: ("Equidistant_Conic", (*_PARALLELS, *_AT_CENTER)),
    14: ("Stereographic", (*_AT_ORIGIN, "scale_factor")),
    15: ("Polar_Stereographic", (*_AT_ORIGIN, "scale_factor")),
    16: ("Oblique_Stereographic", (*_AT_ORIGIN, "scale_factor")),
    17: ("Equirectangular", ("standard_parallel_1", *_AT_ORIGIN)),
    18: ("Cassini_Soldner", _AT_ORIGIN),
    19: ("Gnomonic", _AT_ORIGIN),
    20: ("Miller_Cylindrical", _AT_CENTER),
    21: ("Orthographic", _AT_ORIGIN),
    22: ("Polyconic", _AT_ORIGIN),
    23: ("Robinson", ("longitude_of_center",)),
    24: ("Sinusoidal", ("longitude_of_center",)),
    25: ("VanDerGrinten", ("central_meridian",)),
    26: ("New_Zealand_Map_Grid", _AT_ORIGIN),
    27: ("Transverse_Mercator_South_Orientated", (*_AT_ORIGIN, "scale_factor")),
    28: ("Cylindrical_Equal_Area", ("standard_parallel_1", "central_meridian")),
    9815: ("Hotine_Oblique_Mercator_Azimuth_Center", _OBLIQUE),
}
"""The WKT names of the projection and its parameters, for each value of ProjCoordTransGeoKey."""
_MERCATOR, _LAMBERT_1SP = 7, 9


def locate_pixels(page: Any, variable: VirtualVariable) -> dict[str, VirtualVariable]:
    """Georeference a GeoTIFF image or overview by adding coordinates and a grid mapping.

    The coordinates x and y refer to pixel centres. Rotated images have no coordinates. A grid mapping is
    added if the coordinate reference system is known.

    Returns
    -------
    dict
        The image under the key "", and the other variables by name.
    """
    tags: Mapping[str, Any] = page.geotiff_tags or _list_transform_tags(page)
    sizes = dict(zip(variable.dimensions, variable.shape, strict=True))
    transform = _find_transform(tags, page.imagewidth / sizes["x"], page.imagelength / sizes["y"])
    found = {} if transform is None else _make_coordinates(tags, transform, sizes)
    grid_mapping = make_grid_mapping(tags)
    if not grid_mapping:
        return {"": variable, **found}
    if transform is not None:
        grid_mapping[GEO_TRANSFORM] = " ".join(map(repr, transform))
    # Also listed as a coordinate, as rioxarray expects: xarray reads it without decode_coords="all".
    named = {**variable.attributes, "grid_mapping": SPATIAL_REF, "coordinates": SPATIAL_REF}
    found[SPATIAL_REF] = make_loaded_variable((), np.array(0, np.int32), grid_mapping)
    return {"": replace(variable, attributes=named), **found}


def _list_transform_tags(page: Any) -> dict[str, Any]:
    """Return the affine transform tags of a TIFF page without a coordinate reference system."""
    found = {name: page.tags.get(code) for name, code in _TRANSFORM_TAGS.items()}
    return {name: tag.value for name, tag in found.items() if tag is not None}


def _make_coordinates(
    tags: Mapping[str, Any], transform: tuple[float, ...], sizes: Mapping[str, int]
) -> dict[str, VirtualVariable]:
    x, x_step, x_turn, y, y_turn, y_step = transform
    if x_turn or y_turn or not x_step or not y_step:
        return {}
    described = _ATTRIBUTES.get(get_key_number(tags.get("GTModelTypeGeoKey")), {})
    return {
        name: make_loaded_variable(
            (name,), start + (np.arange(sizes[name]) + 0.5) * step, described.get(name, {})
        )
        for name, start, step in (("x", x, x_step), ("y", y, y_step))
    }


def _find_transform(tags: Mapping[str, Any], columns: float, rows: float) -> tuple[float, ...] | None:
    """Return the affine transform from columns and rows to x and y, in GDAL order.

    `columns` and `rows` are the scale of an overview: the number of full-resolution pixels per overview pixel
    along each axis.
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
        return None  # not georeferenced, or by control points
    if get_key_number(tags.get("GTRasterTypeGeoKey")) == _PIXEL_IS_POINT:
        x, y = x - (x_step + x_turn) / 2, y - (y_step + y_turn) / 2
    return x, x_step * columns, x_turn * rows, y, y_turn * columns, y_step * rows


def make_grid_mapping(tags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CRS of a GeoTIFF as CF grid mapping attributes. Return {} if it is unknown."""
    if "pyproj" not in sys.modules and any(name in sys.modules for name in _WITH_OTHER_PROJ):
        keys = {
            name: getattr(value, "value", value) for name, value in tags.items() if name.endswith("GeoKey")
        }
        found = json.loads(_compute_in_subprocess(json.dumps(keys, sort_keys=True)))
        return _make_code_only(tags) if found is None else dict(found)
    try:
        import pyproj
    except ModuleNotFoundError:
        return _make_code_only(tags)
    try:
        crs = _find_crs(tags)
    except (pyproj.exceptions.ProjError, ValueError, TypeError, KeyError):
        return _make_code_only(tags)
    if crs is None:
        return {}
    attributes = crs.to_cf()
    return {**attributes, "spatial_ref": attributes["crs_wkt"]}


@lru_cache(maxsize=256)
def _compute_in_subprocess(keys: str) -> str:
    """Compute a grid mapping in a subprocess without ecCodes. Input and output are JSON; null
    means failure.
    """
    given = json.dumps([sys.path, json.loads(keys)])
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "null"
    return done.stdout


def get_key_number(key: Any) -> int:
    """Return the value of a GeoTIFF key, which may be an enum member. Return 0 if the key is missing."""
    return 0 if key is None else int(getattr(key, "value", key))


def _make_code_only(tags: Mapping[str, Any]) -> dict[str, Any]:
    code = _get_code(tags, "ProjectedCSTypeGeoKey")
    if code is None and "ProjectedCSTypeGeoKey" not in tags:
        code = _get_code(tags, "GeographicTypeGeoKey")
    return {} if code is None else {"spatial_ref": f"EPSG:{code}"}


def _get_code(tags: Mapping[str, Any], key: str) -> int | None:
    """Return the code in a GeoTIFF key. Return None if the key is missing, undefined or user-defined."""
    number = get_key_number(tags.get(key))
    return None if number in (0, _USER_DEFINED) else number


def _find_crs(tags: Mapping[str, Any]) -> CRS | None:
    from pyproj import CRS
    from pyproj.crs import CompoundCRS

    found = _find_horizontal_crs(tags)
    vertical = _get_code(tags, "VerticalCSTypeGeoKey")
    if found is None or vertical is None or len(found.axis_info) > 2:
        return found
    below = CRS.from_epsg(vertical)
    if below.is_vertical:
        return CompoundCRS(f"{found.name} + {below.name}", [found, below])
    return (
        below if found.is_geographic and below.is_geographic else found
    )  # a 3D system with ellipsoidal heights


def _find_horizontal_crs(tags: Mapping[str, Any]) -> CRS | None:
    from pyproj import CRS

    for key in ("PCSCitationGeoKey", "GTCitationGeoKey", "GeogCitationGeoKey"):
        if str(tags.get(key, "")).startswith(_PE_STRING):
            return CRS.from_wkt(tags[key].removeprefix(_PE_STRING).rstrip("|\0"))
    if (code := _get_code(tags, "ProjectedCSTypeGeoKey")) is not None:
        return _from_code(code)
    if "ProjCoordTransGeoKey" in tags or "ProjectionGeoKey" in tags:
        return _make_projected_crs(tags)
    if "ProjectedCSTypeGeoKey" not in tags and "GeographicTypeGeoKey" in tags:
        code = _get_code(tags, "GeographicTypeGeoKey")
        return CRS.from_wkt(_make_geographic_crs(tags, _AXES)) if code is None else _from_code(code)
    return None


def _from_code(code: int) -> CRS:
    """Look up a code in the EPSG registry, then in the ESRI registry."""
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return CRS.from_epsg(code)
    except CRSError:
        return CRS.from_authority("ESRI", code)


def _make_projected_crs(tags: Mapping[str, Any]) -> CRS | None:
    from pyproj import CRS
    from pyproj.crs import CoordinateOperation, ProjectedCRS

    geographic = _make_geographic_crs(tags)
    name = str(tags.get("PCSCitationGeoKey") or tags.get("GTCitationGeoKey") or "unknown").strip("|\0")
    if (operation := _get_code(tags, "ProjectionGeoKey")) is not None:
        conversion = CoordinateOperation.from_epsg(operation)
        return ProjectedCRS(conversion, name, geodetic_crs=CRS.from_wkt(geographic))
    number = get_key_number(tags.get("ProjCoordTransGeoKey"))
    if number not in _PROJECTIONS:
        return None
    projection, names = _PROJECTIONS[number]
    if number == _MERCATOR and "ProjStdParallel1GeoKey" in tags:
        projection, names = "Mercator_2SP", ("standard_parallel_1", *_AT_ORIGIN)
    parts = [_quote(name), geographic, f"PROJECTION[{_quote(projection)}]"]
    parts += [f"PARAMETER[{_quote(each)},{_find_parameter(tags, each)!r}]" for each in (*names, *_OFFSETS)]
    return CRS.from_wkt(f"PROJCS[{','.join([*parts, _format_unit(*_make_linear_unit(tags))])}]")


def _find_parameter(tags: Mapping[str, Any], name: str) -> float:
    keys: Iterable[str] = _PARAMETERS[name]
    default = 1.0 if name == "scale_factor" else 0.0
    return float(next((tags[key] for key in keys if tags.get(key) is not None), default))


def _make_geographic_crs(tags: Mapping[str, Any], axes: str = "") -> str:
    """Build the WKT of a GeoTIFF's geographic coordinate reference system."""
    from pyproj.crs import Datum

    if (code := _get_code(tags, "GeographicTypeGeoKey")) is not None:
        return str(_from_code(code).to_2d().to_wkt("WKT1_GDAL"))
    citation = _parse_citation(str(tags.get("GeogCitationGeoKey", "")))
    if (code := _get_code(tags, "GeogGeodeticDatumGeoKey")) is not None:
        datum = Datum.from_epsg(code).to_wkt("WKT1_GDAL")
    else:
        datum = f"DATUM[{_quote(citation.get('Datum', 'unknown'))},{_make_ellipsoid(tags, citation)}]"
    name = _quote(citation.get("GCS Name", "unknown"))
    unit = _format_unit(*_ANGULAR_UNITS.get(get_key_number(tags.get("GeogAngularUnitsGeoKey")), _DEGREE))
    return f"GEOGCS[{name},{datum},{_make_prime_meridian(tags, citation)},{unit}{axes}]"


def _make_ellipsoid(tags: Mapping[str, Any], citation: Mapping[str, str]) -> str:
    from pyproj.crs import Ellipsoid

    if (code := _get_code(tags, "GeogEllipsoidGeoKey")) is not None:
        return str(Ellipsoid.from_epsg(code).to_wkt("WKT1_GDAL"))
    major = float(tags["GeogSemiMajorAxisGeoKey"])
    inverse = float(tags.get("GeogInvFlatteningGeoKey") or 0)
    if not inverse and (minor := float(tags.get("GeogSemiMinorAxisGeoKey") or major)) != major:
        inverse = major / (major - minor)
    return f"SPHEROID[{_quote(citation.get('Ellipsoid', 'unknown'))},{major!r},{inverse!r}]"


def _make_prime_meridian(tags: Mapping[str, Any], citation: Mapping[str, str]) -> str:
    from pyproj.crs import PrimeMeridian

    if (code := _get_code(tags, "GeogPrimeMeridianGeoKey")) is not None:
        return str(PrimeMeridian.from_epsg(code).to_wkt("WKT1_GDAL"))
    longitude = float(tags.get("GeogPrimeMeridianLongGeoKey") or 0)
    name = citation.get("Primem", "unknown" if longitude else "Greenwich")
    return f"PRIMEM[{_quote(name)},{longitude!r}]"


def _make_linear_unit(tags: Mapping[str, Any]) -> tuple[str, float]:
    from pyproj.database import get_units_map

    code = _get_code(tags, "ProjLinearUnitsGeoKey")
    if code is None:
        size = tags.get("ProjLinearUnitSizeGeoKey")
        return ("metre", 1.0) if size is None else ("unknown", float(size))
    units = {unit.code: unit for unit in get_units_map(auth_name="EPSG", category="linear").values()}
    return units[str(code)].name, units[str(code)].conv_factor


def _parse_citation(text: str) -> dict[str, str]:
    """Split a GeoTIFF citation such as `GCS Name = unknown|Primem = Greenwich|` into its parts. Text without
    keys is the name.
    """
    parts = dict(re.findall(r"([^|=]+?) = ([^|]*)", text))
    return parts or ({"GCS Name": text.strip("|\0")} if text.strip("|\0") else {})


def _format_unit(name: str, size: float) -> str:
    return f"UNIT[{_quote(name)},{size!r}]"


def _quote(name: str) -> str:
    return json.dumps(name.replace('"', "'"), ensure_ascii=False)
