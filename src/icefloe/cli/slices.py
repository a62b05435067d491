"""One or two dimensions of an array, with coordinates and units: what can be drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe._internal.paths import ROOT, join, normalize, parent
from icefloe._internal.printable import printable
from icefloe.cf import fill_values, time_coding
from icefloe.cli.values import read
from icefloe.coastlines import unwrapped_longitudes, valid_latitudes
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.export.selection import dimensions_of, positions, shape_of
from icefloe.session import Session

_MOST_CELLS = 200_000_000
_LATITUDE = {"latitude", "lat"}
_LONGITUDE = {"longitude", "lon", "long"}
_NORTH = {"degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"}
_EAST = {"degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"}
_DEGREES = {"", "degrees", "degree", "deg", "°"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension that is drawn."""

    name: str
    values: Any
    """Its coordinate as numbers or times; None where it has none."""
    places: range
    """Which elements are drawn."""
    units: str = ""
    standard_name: str = ""

    @property
    def labels(self) -> Any:
        """The coordinate, or the numbers of the elements."""
        return np.array(self.places) if self.values is None else self.values

    @property
    def title(self) -> str:
        """The name, and the units; dimensions without a name have a number."""
        name = f"dimension {self.name}" if self.name.isdigit() else self.name
        return printable(f"{name} ({self.units})" if self.units else name)

    @property
    def rises(self) -> bool:
        """Whether there is a coordinate, and its last value is the greatest."""
        return self.values is not None and len(self.values) > 1 and bool(self.values[-1] > self.values[0])

    @property
    def latitudes(self) -> Any:
        """The coordinate if it is a latitude by the CF conventions or by its name."""
        return valid_latitudes(self.values) if self._is_named(_LATITUDE, _NORTH) else None

    @property
    def longitudes(self) -> Any:
        """The coordinate, without jumps, if it is a longitude by the CF conventions or by its name."""
        return unwrapped_longitudes(self.values) if self._is_named(_LONGITUDE, _EAST) else None

    def _is_named(self, names: set[str], units: set[str]) -> bool:
        """Test the standard name, else the units, else the name. Rotated grids have other standard names."""
        if self.standard_name:
            return self.standard_name.lower() in names
        if self.units.lower() in units:
            return True
        return self.name.lower() in names and self.units.lower() in _DEGREES


@dataclass(frozen=True, slots=True)
class Slice:
    """Values to draw."""

    path: str
    values: Any
    """Floating-point numbers; NaN where there is nothing."""
    axes: tuple[Axis, ...]
    units: str
    title: str
    """Printable, as all that is drawn."""
    at: Mapping[str, str]
    """Where the other dimensions are."""

    def summary(self) -> dict[str, Any]:
        """The values in a few numbers."""
        there = self.values[np.isfinite(self.values)]
        numbers = {"min": there.min(), "max": there.max(), "mean": there.mean()} if there.size else {}
        return {
            "path": self.path,
            "dimensions": [axis.name for axis in self.axes],
            "shape": list(self.values.shape),
            "at": dict(self.at),
            "units": self.units,
            **{name: float(numbers[name]) if numbers else None for name in ("min", "max", "mean")},
            "missing": int(self.values.size - there.size),
        }


def take(session: Session, path: str, isel: Mapping[str, slice | int], sel: Mapping[str, Any]) -> Slice:
    """What is drawn of an array: elements by number or label, and the first one of dimensions too many."""
    whole = normalize(path if path.startswith("/") else f"/{path}")
    node = session._workspace.array(whole)
    names = [name or str(axis) for axis, name in enumerate(dimensions_of(node))]
    sizes = dict(zip(names, shape_of(node), strict=True))
    chosen = _chosen(session, whole, sizes, isel, sel)
    left = [
        name
        for name in names
        if not isinstance(chosen[name], int) and len(_range(chosen[name], sizes[name])) > 1
    ]
    for name in [name for name in names if not isinstance(chosen[name], int)]:
        span = _range(chosen[name], sizes[name])
        if not len(span):
            raise _wrong(f"{whole} has no elements along {name} that could be drawn")
        if name not in left or name in left[:-2]:
            chosen[name] = span[0]
    if not left:
        raise _wrong(
            f"a plot needs one or two dimensions with more than one element, and of {whole} none is left: "
            "`icefloe cat` shows values"
        )
    drawn = [name for name in names if not isinstance(chosen[name], int)]
    attributes = json.loads(node.user_data).get("attributes", {})
    if np.prod([len(_range(chosen[name], sizes[name])) for name in drawn]) > _MOST_CELLS:
        raise _wrong(f"{_MOST_CELLS} values of {whole} are drawn at most: choose fewer with --isel or --sel")
    values = _numbers(read(session, whole, tuple(chosen[name] for name in names)), attributes, whole)
    axes = tuple(_axis(session, whole, name, chosen[name], sizes[name]) for name in drawn)
    at = {
        name: _place(session, whole, name, chosen[name], sizes[name]) for name in names if name not in drawn
    }
    label = str(attributes.get("long_name") or attributes.get("standard_name") or whole.strip("/"))
    where = ", ".join(f"{name}={place}" for name, place in at.items())
    title = printable(f"{label}, {where}" if where else label)
    return Slice(whole, values, axes, str(attributes.get("units", "")), title, at)


def _chosen(
    session: Session,
    path: str,
    sizes: Mapping[str, int],
    isel: Mapping[str, slice | int],
    sel: Mapping[str, Any],
) -> dict[str, Any]:
    for name in (*isel, *sel):
        if name not in sizes:
            raise _wrong(f"{path} has no dimension {name!r}; it has {', '.join(sizes) or 'none'}")
        if name in isel and name in sel:
            raise _wrong(f"dimension {name} is chosen twice, by index and by label")
    chosen: dict[str, Any] = {name: slice(None) for name in sizes}
    for name, wanted in isel.items():
        if isinstance(wanted, int) and not -sizes[name] <= wanted < sizes[name]:
            raise _wrong(f"{name}={wanted} is outside of a dimension of {sizes[name]} elements")
        if isinstance(wanted, slice) and wanted.step is not None and wanted.step < 1:
            raise _wrong(f"{name}={wanted.step}: a step must be at least 1")
        chosen[name] = wanted % sizes[name] if isinstance(wanted, int) else wanted
    if sel:
        for name, span in positions(session, parent(path) or ROOT, sel).items():
            chosen[name] = span[0] if len(span) == 1 else slice(span.start, span.stop)
    return chosen


def _range(wanted: slice | int, size: int) -> range:
    return range(*wanted.indices(size)) if isinstance(wanted, slice) else range(wanted, wanted + 1)


def _numbers(values: Any, attributes: Mapping[str, Any], path: str) -> Any:
    """As users see them: unpacked, and NaN where a value stands for nothing."""
    if values.dtype.kind not in "biuf":
        raise _wrong(f"{path} has values of type {values.dtype}, which cannot be drawn; numbers can")
    found = values.astype("f8")
    for missing in fill_values(attributes, values.dtype):
        found[values == missing] = np.nan
    found[~np.isfinite(found)] = np.nan
    scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
    found = found * scale if isinstance(scale, int | float) else found
    return found + offset if isinstance(offset, int | float) else found


def _axis(session: Session, path: str, name: str, wanted: Any, size: int) -> Axis:
    values, units, standard_name = _coordinate(session, path, name, size)
    drawn = None if values is None else values[wanted]
    return Axis(name, drawn, _range(wanted, size), units, standard_name)


def _place(session: Session, path: str, name: str, wanted: int, size: int) -> str:
    """Where a dimension is, as people say it."""
    values, _, _ = _coordinate(session, path, name, size)
    return str(wanted) if values is None else label(values[wanted])


def label(value: Any) -> str:
    """A coordinate, short."""
    if isinstance(value, np.datetime64):
        text = str(value.astype("M8[s]"))
        return text.removesuffix("T00:00:00")
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)


def _coordinate(session: Session, path: str, name: str, size: int) -> tuple[Any, str, str]:
    """Read values, units and standard name of a dimension's coordinate, the array of its name."""
    place = join(parent(path) or ROOT, name)
    node = session._workspace.node(place)
    if node is None or place == path or "shape" not in (document := json.loads(node.user_data)):
        return None, "", ""
    if tuple(document["shape"]) != (size,):
        return None, "", ""
    attributes = document.get("attributes", {})
    values, units = read(session, place, (slice(None),)), str(attributes.get("units", ""))
    standard_name = str(attributes.get("standard_name", ""))
    if " since " in units:
        return *_times(values, attributes, units), standard_name
    return values if values.dtype.kind in "iufM" else None, units, standard_name


def _times(values: Any, attributes: Mapping[str, Any], units: str) -> tuple[Any, str]:
    """Times, if the calendar is the usual one; else numbers as stored."""
    coding = time_coding(units, attributes.get("calendar"))
    if coding is None or values.dtype.kind not in "iuf":
        return values, units
    found = coding.microseconds(values)
    return (found.astype("M8[us]"), "") if coding.is_timestamp(found) else (values, units)


def _wrong(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_CHUNK_INDEX)
