"""Parse GRIB 1 and 2: each message is a chunk.

Messages that differ only in ensemble number, time, step or level form a variable. Variables, dimensions and
coordinates have the names that cfgrib gives them. If variables do not share their coordinates, each set of
coordinates becomes a group, where cfgrib returns several datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import IcechunkError
from icefloe.virtual.codecs import GRIB, to_rows
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.errors import DAMAGE, CannotVirtualizeError, RefusalReason, Refused, RefusedVariable
from icefloe.virtual.parsers import ParseOptions
from icefloe.virtual.parsers.grib.message import Message, headers_of, messages_of
from icefloe.virtual.sources import SourceFile
from icefloe.virtual.variables import ChunkReferences, VirtualVariable, loaded_variable
from icefloe.virtual.zarr_metadata import fill_value_json

_SAME: Final = (
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
"""Keys that have the same value in all messages of a variable."""
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


@dataclass(frozen=True, slots=True)
class _Grid:
    """The grid of a message."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    latitude: NDArray[np.float64] | None
    """One value per row; None if each point has its own, which is decoded from the message."""
    longitude: NDArray[np.float64] | None
    located: bool
    """Whether ecCodes can compute latitudes and longitudes."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field, and its position among the fields of its variable."""

    message: Message
    number_in_message: int
    place: tuple[Any, ...]
    """Number, time in seconds since 1970, step in hours, level."""


@dataclass(slots=True)
class _Cube:
    """The fields of one variable."""

    name: str
    level_name: str
    keys: dict[str, Any]
    grid: _Grid
    fields: dict[tuple[Any, ...], _Field]

    def values(self, axis: int) -> tuple[Any, ...]:
        found = {place[axis] for place in self.fields if place[axis] is not None}
        return tuple(sorted(found, reverse=axis == 3 and self.level_name in _FALLING))

    def coordinates(self) -> tuple[Any, ...]:
        """Return a key that is equal for variables with the same coordinates."""
        axes = tuple(self.values(axis) for axis in range(len(_AXES)))
        return axes, self.level_name, self.keys.get("md5GridSection"), self.grid.dimensions


def parse_grib(file: SourceFile, options: ParseOptions) -> VirtualDataset:
    """Parse a GRIB file. All chunks are in source 0."""
    scan = _Scan(file, options)
    scan.run()
    groups: dict[tuple[Any, ...], dict[str, _Cube]] = {}
    for cube in scan.cubes.values():
        members = groups.setdefault(cube.coordinates(), {})
        while cube.name in members:  # a second variable of this name gets its own group
            members = groups.setdefault((*cube.coordinates(), len(groups)), {})
        members[cube.name] = cube
    datasets = [_dataset(cubes, options) for cubes in groups.values()]
    if len(datasets) <= 1:
        variables = datasets[0] if datasets else {}
        return _chosen(VirtualDataset(variables, (), scan.attributes, {}, tuple(scan.refused)), options, file)
    names = _group_names([next(iter(cubes.values())) for cubes in groups.values()])
    parts = {
        name: VirtualDataset(each, (), scan.attributes) for name, each in zip(names, datasets, strict=True)
    }
    return _chosen(VirtualDataset({}, (), scan.attributes, parts, tuple(scan.refused)), options, file)


def _chosen(dataset: VirtualDataset, options: ParseOptions, file: SourceFile) -> VirtualDataset:
    if options.group is None:
        return dataset
    if options.group not in dataset.groups:
        names = ", ".join(dataset.groups) or "none"
        raise CannotVirtualizeError(f"{file.location} has no group {options.group!r}; it has {names}")
    return dataset.groups[options.group]


class _Scan:
    """A scan of the messages of a file."""

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

        for message in messages_of(self._file):
            try:
                for number, field in enumerate(headers_of(self._file, message)):
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
        keys = {name: _get(handle, name) for name in _SAME}
        # ecCodes looks names up in tables, which takes longer than everything else: do it once per variable.
        mark = tuple(keys.values())
        if mark not in self._names:
            self._names[mark] = _variable_name(handle)
        name = self._names[mark]
        if self._options.drops(name):
            return
        if not self.attributes:
            self.attributes = _described(handle, _GLOBAL)
        try:
            grid = self._grid(handle, keys)
            place = _place(handle)
        except RefusedVariable as refusal:
            if name not in {each.variable for each in self.refused}:
                self.refused.append(refusal.named(name))
            return
        field = _Field(message, number, place)
        for again in range(
            len(self.cubes) + 1
        ):  # a second field at the same position starts another variable
            cube = self.cubes.get((*mark, number, again))
            if cube is None:
                level = str(keys["typeOfLevel"])
                described = {**keys, **_described_keys(handle)}
                cube = _Cube(name, level if level not in _UNKNOWN else "level", described, grid, {})
                self.cubes[(*mark, number, again)] = cube
            if place not in cube.fields:
                cube.fields[place] = field
                return

    def _grid(self, handle: Any, keys: dict[str, Any]) -> _Grid:
        mark = (keys["md5GridSection"], keys["gridType"], keys["numberOfPoints"])
        if mark not in self._grids:
            self._grids[mark] = _grid_of(handle, str(keys["gridType"]))
        return self._grids[mark]


def _get(handle: Any, key: str, default: Any = None, kind: type | None = None) -> Any:
    import eccodes

    try:
        return eccodes.codes_get(handle, key, ktype=kind)
    except eccodes.CodesInternalError:
        return default


def _described(handle: Any, names: Sequence[str]) -> dict[str, Any]:
    found = {name: _get(handle, name) for name in names}
    return {f"GRIB_{name}": value for name, value in found.items() if value is not None}


def _described_keys(handle: Any) -> dict[str, Any]:
    return {name: _get(handle, name) for name in _DESCRIBING}


def _variable_name(handle: Any) -> str:
    names = [_get(handle, key) for key in ("cfVarName", "shortName")]
    return next((str(name) for name in names if name not in (*_UNKNOWN, None)), "unknown")


def _place(handle: Any) -> tuple[Any, ...]:
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


def _grid_of(handle: Any, grid_type: str) -> _Grid:
    import eccodes

    if grid_type in ("sh", "rotated_sh", "stretched_sh", "stretched_rotated_sh"):
        raise RefusedVariable(
            RefusalReason.UNSUPPORTED_GRID, f"its values are spherical harmonics ({grid_type}), not points"
        )
    points = int(eccodes.codes_get(handle, "numberOfPoints"))
    rows, columns = _get(handle, "Ny"), _get(handle, "Nx")
    flat = not isinstance(rows, int) or not isinstance(columns, int) or rows * columns != points
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


def _group_names(cubes: Sequence[_Cube]) -> list[str]:
    """Name groups by type of level; if that is ambiguous, also by type of step, and then by number."""
    names: list[str] = []
    levels = [cube.level_name for cube in cubes]
    for cube in cubes:
        name = cube.level_name
        if levels.count(name) > 1:
            name = f"{name}_{cube.keys.get('stepType')}"
        base, number = name, 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names


def _dataset(cubes: dict[str, _Cube], options: ParseOptions) -> dict[str, VirtualVariable]:
    first = next(iter(cubes.values()))
    variables = {name: _variable(cube) for name, cube in cubes.items()}
    coordinates = {**_header_coordinates(first), **_grid_coordinates(first)}
    variables |= {name: each for name, each in coordinates.items() if not options.drops(name)}
    return variables


def _axes(cube: _Cube) -> list[tuple[str, int, tuple[Any, ...]]]:
    """Return the name, position and values of each axis along which messages differ."""
    names = [cube.level_name if axis == "level" else axis for axis in _AXES]
    return [
        (names[axis], axis, cube.values(axis)) for axis in range(len(_AXES)) if len(cube.values(axis)) > 1
    ]


def _variable(cube: _Cube) -> VirtualVariable:
    axes = _axes(cube)
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
        fill_value_json(np.nan, np.dtype(np.float32)),
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


def _header_coordinates(cube: _Cube) -> dict[str, VirtualVariable]:
    found: dict[str, VirtualVariable] = {}
    for axis, kind in enumerate(_AXES):
        values = cube.values(axis)
        if not values:
            continue
        name = cube.level_name if kind == "level" else kind
        described = _COORDINATES.get(name, {"long_name": f"level of kind {name}", "units": "1"})
        array = np.array(values if len(values) > 1 else values[0])
        found[name] = loaded_variable((name,) if array.ndim else (), array, described)
    time, step = (np.asarray(found[name].chunks) for name in ("time", "step"))
    valid = np.add.outer(time, np.round(step * 3600).astype(np.int64))
    dimensions = (*found["time"].dimensions, *found["step"].dimensions)
    found["valid_time"] = loaded_variable(dimensions, np.asarray(valid), _COORDINATES["valid_time"])
    return found


def _grid_coordinates(cube: _Cube) -> dict[str, VirtualVariable]:
    grid = cube.grid
    if not grid.located:
        return {}
    if grid.latitude is not None and grid.longitude is not None:
        return {
            "latitude": loaded_variable(("latitude",), grid.latitude, _COORDINATES["latitude"]),
            "longitude": loaded_variable(("longitude",), grid.longitude, _COORDINATES["longitude"]),
        }
    return {
        name: _decoded_coordinate(cube, name, key)
        for name, key in (("latitude", "latitudes"), ("longitude", "longitudes"))
    }


def _decoded_coordinate(cube: _Cube, name: str, key: str) -> VirtualVariable:
    """Create a coordinate with a value per point, which ecCodes computes from any message with this grid."""
    field = next(iter(cube.fields.values()))
    grid = cube.grid
    return VirtualVariable(
        grid.dimensions,
        grid.shape,
        np.dtype(np.float64),
        grid.shape,
        ({"name": GRIB, "configuration": {"key": key, "field": field.number_in_message}},),
        fill_value_json(np.nan, np.dtype(np.float64)),
        _COORDINATES[name],
        ChunkReferences.of(np.zeros((1, len(grid.shape))), [field.message.offset], [field.message.length]),
    )
