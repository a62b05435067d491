"""Parse GRIB 1 and 2 files into references. Each message becomes a chunk.

Messages that differ only in ensemble number, time, step or level form a variable. Variables, dimensions and
coordinates have the same names as in cfgrib. If variables do not share their coordinates, each set of
coordinates becomes a group, where cfgrib would return several datasets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import IcechunkError
from icefloe.virtual.codecs import GRIB
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.decoders.grib import to_rows
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.grib.groups import Kind, format_level, name_groups
from icefloe.virtual.parsers.grib.message import Message, iterate_messages, read_headers
from icefloe.virtual.sources import SourceFile
from icefloe.virtual.variables import ChunkReferences, VirtualVariable, make_loaded_variable
from icefloe.virtual.zarr_metadata import to_json_fill_value

_COMMON_KEYS: Final = (
    "paramId",
    "discipline",
    "parameterCategory",
    "parameterNumber",
    "dataType",
    "numberOfPoints",
    "typeOfLevel",
    "stepType",
    "gridType",
    "md5GridSection",
)
"""GRIB keys that must have the same value in all messages of a variable."""
_DESCRIBING: Final = (
    "shortName",
    "name",
    "units",
    "cfName",
    "cfVarName",
    "missingValue",
    "NV",
    "totalNumber",
)
_GLOBAL: Final = ("edition", "centre", "centreDescription", "subCentre")
_STEP_SECONDS: Final = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
_FALLING: Final = ("isobaricInhPa", "isobaricInPa")
_UNKNOWN: Final = ("unknown", "~", "")
_AXES: Final = ("number", "time", "step", "level")
_COORDINATES: Final[dict[str, dict[str, Any]]] = {
    "number": {"long_name": "ensemble member numerical id", "units": "1", "standard_name": "realization"},
    "time": {
        "long_name": "initial time of forecast",
        "standard_name": "forecast_reference_time",
        "units": "seconds since 1970-01-01T00:00:00",
        "calendar": "proleptic_gregorian",
    },
    "step": {
        "long_name": "time since forecast_reference_time",
        "standard_name": "forecast_period",
        "units": "hours",
        "dtype": "timedelta64[ns]",  # without this attribute, xarray shows numbers
    },
    "valid_time": {
        "long_name": "time",
        "standard_name": "time",
        "units": "seconds since 1970-01-01T00:00:00",
        "calendar": "proleptic_gregorian",
    },
    "latitude": {"long_name": "latitude", "standard_name": "latitude", "units": "degrees_north"},
    "longitude": {"long_name": "longitude", "standard_name": "longitude", "units": "degrees_east"},
}


_PRESSURE: Final = {"long_name": "pressure", "positive": "down", "standard_name": "air_pressure"}
_DEPTH: Final = {"long_name": "soil depth", "units": "m", "positive": "down", "standard_name": "depth"}
_LEVELS: Final[dict[str, dict[str, Any]]] = {
    "isobaricInhPa": {**_PRESSURE, "units": "hPa", "stored_direction": "decreasing"},
    "isobaricInPa": {**_PRESSURE, "units": "Pa", "stored_direction": "decreasing"},
    "isobaricLayer": {**_PRESSURE, "units": "Pa"},
    "depthBelowLand": _DEPTH,
    "depthBelowLandLayer": _DEPTH,
    "heightAboveGround": {
        "long_name": "height above the surface",
        "units": "m",
        "positive": "up",
        "standard_name": "height",
    },
}
"""Attributes of level coordinates, as in cfgrib."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """The grid of a GRIB message."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    latitude: NDArray[np.float64] | None
    """One latitude per row. None if latitudes vary within rows; they are then decoded from the message."""
    longitude: NDArray[np.float64] | None
    located: bool
    """True if ecCodes can compute the latitudes and longitudes of the grid points."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A GRIB field, and its coordinates within its variable."""

    message: Message
    number_in_message: int
    place: tuple[Any, ...]
    """The coordinates: ensemble number, time in seconds since 1970, step in hours, and level."""


@dataclass(slots=True)
class _Cube:
    """All fields of one GRIB variable."""

    name: str
    level_name: str
    keys: dict[str, Any]
    grid: _Grid
    fields: dict[tuple[Any, ...], _Field]

    def values(self, axis: int) -> tuple[Any, ...]:
        found = {place[axis] for place in self.fields if place[axis] is not None}
        return tuple(sorted(found, reverse=axis == 3 and self.level_name in _FALLING))

    def kind(self) -> Kind:
        """Return the properties that distinguish the part of the file to which the variable belongs."""
        levels = self.values(_AXES.index("level"))
        return Kind(self.level_name, str(self.keys.get("stepType")), format_level(levels))

    def coordinates(self) -> tuple[Any, ...]:
        """Return a key that is equal for variables with the same coordinates."""
        axes = tuple(self.values(axis) for axis in range(len(_AXES)))
        return axes, self.level_name, self.keys.get("md5GridSection"), self.grid.dimensions


def parse_grib(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """Parse a GRIB file into a virtual dataset. All chunks are in source 0."""
    scan = _Scan(file, options)
    scan.run()
    cubes = list(scan.cubes.values())
    refused = tuple(scan.refused)

    def dataset(mine: Iterable[_Cube]) -> VirtualDataset:
        variables = _make_dataset({cube.name: cube for cube in mine}, options)
        return VirtualDataset(variables, (), scan.attributes, {}, refused)

    if options.group is not None:
        return dataset(_select_part(cubes, options.group, file))
    whole = dataset(cubes if _fit_into_one_dataset(cubes) else [])
    parts = _split_parts(cubes)
    if options.grib_parts:
        return replace(whole, groups={str(kind): dataset(mine) for kind, mine in parts.items()})
    if not _fit_into_one_dataset(cubes):
        names = name_groups(parts)
        for kind, mine in parts.items():
            part = replace(dataset(mine), refused=())
            whole = _with_group(whole, names[kind].split("/"), part)
    return whole


def _fit_into_one_dataset(cubes: Sequence[_Cube]) -> bool:
    """Return True if the variables of a GRIB file fit into one dataset."""
    names = {cube.name for cube in cubes}
    return len({cube.coordinates() for cube in cubes}) <= 1 and len(names) == len(cubes)


def _split_parts(cubes: Sequence[_Cube]) -> dict[Kind, list[_Cube]]:
    """Split GRIB variables into parts by kind and coordinates. Parts of a kind are sorted largest first."""
    found: dict[Kind, dict[tuple[Any, ...], list[_Cube]]] = {}
    for cube in cubes:
        alike = found.setdefault(cube.kind(), {})
        again = 0  # a second variable of the same name goes to a separate part
        while any(cube.name == each.name for each in alike.get((cube.coordinates(), again), ())):
            again += 1
        alike.setdefault((cube.coordinates(), again), []).append(cube)
    return {
        replace(kind, number=number): mine
        for kind, alike in found.items()
        for number, mine in enumerate(sorted(alike.values(), key=_make_order_key), start=1)
    }


def _make_order_key(cubes: Sequence[_Cube]) -> tuple[Any, ...]:
    return (
        -len(cubes[0].fields),
        str(cubes[0].keys.get("md5GridSection")),
        sorted(each.name for each in cubes),
    )


def _with_group(dataset: VirtualDataset, path: Sequence[str], group: VirtualDataset) -> VirtualDataset:
    """Add a group to a dataset at the given path. Subgroups that already exist there are kept."""
    name, *rest = path
    there = dataset.groups.get(name, VirtualDataset({}, ()))
    new = _with_group(there, rest, group) if rest else replace(group, groups=there.groups)
    return replace(dataset, groups={**dataset.groups, name: new})


def _select_part(cubes: Sequence[_Cube], path: str, file: SourceFile) -> list[_Cube]:
    """Select one part of a GRIB file by kind, group name, or matching messages that fit into one dataset."""
    parts = _split_parts(cubes)
    names = name_groups(parts)
    for kind, mine in parts.items():
        if path == str(kind) or (path == names[kind] and not _fit_into_one_dataset(cubes)):
            return mine
    found = [cube for cube in cubes if cube.kind().matches(path)]
    if found and _fit_into_one_dataset(found):
        return found
    listed = ", ".join(names[kind] for kind in parts) if not _fit_into_one_dataset(cubes) else "none"
    wrong = (
        f"{path!r} selects messages that do not fit into one dataset" if found else f"has no group {path!r}"
    )
    raise CannotVirtualizeError(f"{file.location} {wrong}; it has {listed}")


class _Scan:
    """A scan of all GRIB messages in a file, which builds its grids and variables."""

    def __init__(self, file: SourceFile, options: ParseOptions) -> None:
        self._file = file
        self._options = options
        self._grids: dict[Any, _Grid] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self.cubes: dict[tuple[Any, ...], _Cube] = {}
        self.refused: list[Refused] = []
        self.attributes: dict[str, Any] = {}

    def run(self) -> None:
        import eccodes

        for message in iterate_messages(self._file):
            try:
                for number, field in enumerate(read_headers(self._file, message)):
                    handle = eccodes.codes_new_from_message(field)
                    try:
                        self._add(handle, message, number)
                    finally:
                        eccodes.codes_release(handle)
            except IcechunkError:
                raise
            except (eccodes.CodesInternalError, *DAMAGE) as error:
                raise CannotVirtualizeError(
                    f"{self._file.location}: the GRIB message at byte {message.offset} is damaged: {error}"
                ) from None

    def _add(self, handle: Any, message: Message, number: int) -> None:
        keys = {name: _get(handle, name) for name in _COMMON_KEYS}
        # ecCodes lookups by name take longer than everything else, so do them once per variable.
        mark = tuple(keys.values())
        if mark not in self._names:
            self._names[mark] = _find_variable_name(handle)
        name = self._names[mark]
        if self._options.is_excluded(name):
            return
        if not self.attributes:
            self.attributes = _grib_attributes(handle, _GLOBAL)
        try:
            grid = self._grid(handle, keys)
            place = _read_position(handle)
        except RefusedVariable as refusal:
            if name not in {each.variable for each in self.refused}:
                self.refused.append(refusal.named(name))
            return
        field = _Field(message, number, place)
        for again in range(
            len(self.cubes) + 1
        ):  # a second field with the same coordinates starts another variable
            cube = self.cubes.get((*mark, number, again))
            if cube is None:
                level = str(keys["typeOfLevel"])
                described = {**keys, **_list_described_keys(handle)}
                cube = _Cube(name, level if level not in _UNKNOWN else "level", described, grid, {})
                self.cubes[(*mark, number, again)] = cube
            if place not in cube.fields:
                cube.fields[place] = field
                return

    def _grid(self, handle: Any, keys: dict[str, Any]) -> _Grid:
        mark = (keys["md5GridSection"], keys["gridType"], keys["numberOfPoints"])
        if mark not in self._grids:
            self._grids[mark] = _read_grid(handle, str(keys["gridType"]))
        return self._grids[mark]


def _get(handle: Any, key: str, default: Any = None, kind: type | None = None) -> Any:
    import eccodes

    try:
        return eccodes.codes_get(handle, key, ktype=kind)
    except eccodes.CodesInternalError:
        return default


def _grib_attributes(handle: Any, names: Sequence[str]) -> dict[str, Any]:
    found = {name: _get(handle, name) for name in names}
    return {f"GRIB_{name}": value for name, value in found.items() if value is not None}


def _list_described_keys(handle: Any) -> dict[str, Any]:
    return {name: _get(handle, name) for name in _DESCRIBING}


def _find_variable_name(handle: Any) -> str:
    names = [_get(handle, key) for key in ("cfVarName", "shortName")]
    return next((str(name) for name in names if name not in (*_UNKNOWN, None)), "unknown")


def _read_position(handle: Any) -> tuple[Any, ...]:
    import eccodes

    date, clock = _get(handle, "dataDate"), _get(handle, "dataTime", 0)
    unit = int(eccodes.codes_get(handle, "stepUnits", ktype=int))
    step = int(eccodes.codes_get(handle, "endStep", ktype=int))
    if unit not in _STEP_SECONDS and step:
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_LAYOUT, f"the unit of its steps has the unknown code {unit}"
        )
    try:
        start = datetime(date // 10000, date // 100 % 100, date % 100, clock // 100, clock % 100, tzinfo=UTC)
    except (TypeError, ValueError):
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_LAYOUT, f"its date {date} and time {clock} are invalid"
        ) from None
    hours = (step or 0) * _STEP_SECONDS.get(unit, 3600) / 3600
    return _get(handle, "number"), int(start.timestamp()), hours, _get(handle, "level", kind=float)


_TABULAR = frozenset(
    {
        "regular_ll",
        "regular_gg",
        "rotated_ll",
        "rotated_gg",
        "lambert",
        "lambert_azimuthal_equal_area",
        "albers",
        "polar_stereographic",
    }
)
"""Grid types with two dimensions. For all other grids, cfgrib uses a single dimension named `values`."""


def _read_grid(handle: Any, grid_type: str) -> _Grid:
    import eccodes

    if grid_type in ("sh", "rotated_sh", "stretched_sh", "stretched_rotated_sh"):
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_GRID, f"its values are spherical harmonics ({grid_type}), not points"
        )
    points = int(eccodes.codes_get(handle, "numberOfPoints"))
    rows, columns = _get(handle, "Ny"), _get(handle, "Nx")
    flat = (
        grid_type not in _TABULAR
        or not isinstance(rows, int)
        or not isinstance(columns, int)
        or rows * columns != points
    )
    shape = (points,) if flat else (rows, columns)
    try:
        latitudes = to_rows(eccodes.codes_get_array(handle, "latitudes"), handle, shape, is_coordinate=True)
        longitudes = to_rows(eccodes.codes_get_array(handle, "longitudes"), handle, shape, is_coordinate=True)
    except (eccodes.CodesInternalError, ValueError):
        return _Grid(("values",) if flat else ("y", "x"), shape, None, None, located=False)
    if flat:
        return _Grid(("values",), shape, None, None, located=True)
    if (latitudes == latitudes[:, :1]).all() and (longitudes == longitudes[:1]).all():
        return _Grid(("latitude", "longitude"), shape, latitudes[:, 0], longitudes[0], located=True)
    return _Grid(("y", "x"), shape, None, None, located=True)


def _make_dataset(cubes: dict[str, _Cube], options: ParseOptions) -> dict[str, VirtualVariable]:
    if not cubes:
        return {}
    first = next(iter(cubes.values()))
    variables = {name: _make_variable(cube) for name, cube in cubes.items()}
    coordinates = {**_make_header_coordinates(first), **_make_grid_coordinates(first)}
    variables |= {name: each for name, each in coordinates.items() if not options.is_excluded(name)}
    return variables


def _find_axes(cube: _Cube) -> list[tuple[str, int, tuple[Any, ...]]]:
    """Return the name, index and values of each axis along which the messages of a variable differ."""
    names = [cube.level_name if axis == "level" else axis for axis in _AXES]
    return [
        (names[axis], axis, cube.values(axis)) for axis in range(len(_AXES)) if len(cube.values(axis)) > 1
    ]


def _make_variable(cube: _Cube) -> VirtualVariable:
    axes = _find_axes(cube)
    rows = [{value: row for row, value in enumerate(values)} for _, _, values in axes]
    fields = list(cube.fields.values())
    coords = np.zeros((len(fields), len(axes) + len(cube.grid.shape)), np.uint32)
    for column, (_, axis, _) in enumerate(axes):
        coords[:, column] = [rows[column][field.place[axis]] for field in fields]
    codec: dict[str, Any] = {"key": "values", "field": fields[0].number_in_message}
    header = ["number", "time", "step", cube.level_name, "valid_time", "latitude", "longitude"]
    return VirtualVariable(
        (*(name for name, _, _ in axes), *cube.grid.dimensions),
        (*(len(values) for _, _, values in axes), *cube.grid.shape),
        np.dtype(np.float32),
        (*(1 for _ in axes), *cube.grid.shape),
        ({"name": GRIB, "configuration": codec},),
        to_json_fill_value(np.nan, np.dtype(np.float32)),
        {
            **_attributes(cube),
            "coordinates": " ".join(name for name in header if name not in cube.grid.dimensions),
        },
        ChunkReferences.of(
            coords, [field.message.offset for field in fields], [field.message.length for field in fields]
        ),
    )


def _attributes(cube: _Cube) -> dict[str, Any]:
    keys = {
        name: value for name, value in cube.keys.items() if value is not None and name != "md5GridSection"
    }
    attributes = {f"GRIB_{name}": value for name, value in keys.items()}
    for name, key in (("units", "units"), ("long_name", "name"), ("standard_name", "cfName")):
        if keys.get(key) not in (*_UNKNOWN, None):
            attributes[name] = keys[key]
    return attributes


def _make_header_coordinates(cube: _Cube) -> dict[str, VirtualVariable]:
    found: dict[str, VirtualVariable] = {}
    for axis, kind in enumerate(_AXES):
        values = cube.values(axis)
        if not values:
            continue
        name = cube.level_name if kind == "level" else kind
        described = _COORDINATES.get(name, {"long_name": f"level of kind {name}", "units": "1"})
        if kind == "level":
            described = {**described, **_LEVELS.get(name, {})}
        array = np.array(values if len(values) > 1 else values[0])
        found[name] = make_loaded_variable((name,) if array.ndim else (), array, described)
    time, step = (np.asarray(found[name].chunks) for name in ("time", "step"))
    valid = np.add.outer(time, np.round(step * 3600).astype(np.int64))
    dimensions = (*found["time"].dimensions, *found["step"].dimensions)
    found["valid_time"] = make_loaded_variable(dimensions, np.asarray(valid), _COORDINATES["valid_time"])
    return found


def _make_grid_coordinates(cube: _Cube) -> dict[str, VirtualVariable]:
    grid = cube.grid
    if not grid.located:
        return {}
    if grid.latitude is not None and grid.longitude is not None:
        return {
            "latitude": make_loaded_variable(("latitude",), grid.latitude, _COORDINATES["latitude"]),
            "longitude": make_loaded_variable(("longitude",), grid.longitude, _COORDINATES["longitude"]),
        }
    return {
        name: _make_decoded_coordinate(cube, name, key)
        for name, key in (("latitude", "latitudes"), ("longitude", "longitudes"))
    }


def _make_decoded_coordinate(cube: _Cube, name: str, key: str) -> VirtualVariable:
    """Create a coordinate with one value per grid point, which ecCodes decodes from any message with this
    grid.
    """
    field = next(iter(cube.fields.values()))
    grid = cube.grid
    return VirtualVariable(
        grid.dimensions,
        grid.shape,
        np.dtype(np.float64),
        grid.shape,
        ({"name": GRIB, "configuration": {"key": key, "field": field.number_in_message}},),
        to_json_fill_value(np.nan, np.dtype(np.float64)),
        _COORDINATES[name],
        ChunkReferences.of(np.zeros((1, len(grid.shape))), [field.message.offset], [field.message.length]),
    )
