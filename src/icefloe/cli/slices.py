"""Select one or two dimensions of an array for a plot, with their coordinates and units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe._internal.paths import ROOT, get_parent, join, normalize
from icefloe._internal.printable import escape_control
from icefloe.cf import is_latitude, is_longitude, parse_time_coding, unpack_numbers
from icefloe.cli.values import read
from icefloe.coastlines import check_latitudes, unwrapped_longitudes
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.export.selection import find_positions
from icefloe.session import Session

_MAX_CELLS = 200_000_000


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """A dimension of a plotted slice of an array."""

    name: str
    values: Any
    """The coordinate values as numbers or times; None if the dimension has no coordinate."""
    indices: range
    """The selected indices along the dimension."""
    units: str = ""
    standard_name: str = ""

    @property
    def labels(self) -> Any:
        """The coordinate values along the dimension, or its indices if it has no coordinate."""
        return np.array(self.indices) if self.values is None else self.values

    @property
    def title(self) -> str:
        """The name and units of the dimension.

        Unnamed dimensions are numbered.
        """
        name = f"dimension {self.name}" if self.name.isdigit() else self.name
        return escape_control(f"{name} ({self.units})" if self.units else name)

    @property
    def is_increasing(self) -> bool:
        """True if the dimension has a coordinate whose last value is greater than its first."""
        return self.values is not None and len(self.values) > 1 and bool(self.values[-1] > self.values[0])

    @property
    def latitudes(self) -> Any:
        """The coordinate values if they are latitudes, otherwise None."""
        return check_latitudes(self.values) if is_latitude(self.name, self._attributes) else None

    @property
    def longitudes(self) -> Any:
        """The coordinate values without jumps if they are longitudes, otherwise None."""
        return unwrapped_longitudes(self.values) if is_longitude(self.name, self._attributes) else None

    @property
    def _attributes(self) -> dict[str, str]:
        return {"standard_name": self.standard_name, "units": self.units}


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of an array to plot: values along one or two dimensions, with coordinates and units."""

    path: str
    values: Any
    """The values as floating-point numbers, with NaN for missing values."""
    axes: tuple[PlotAxis, ...]
    units: str
    title: str
    """The title of the plot, without control characters."""
    at: Mapping[str, str]
    """The labels at which all other dimensions are fixed."""

    def summary(self) -> dict[str, Any]:
        """Return the shape, minimum, maximum, mean and number of missing values of the slice."""
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
    """Select the slice of an array to plot, by index or label.

    If more than two dimensions are left, the leading ones are fixed at their first element.
    """
    whole = normalize(path if path.startswith("/") else f"/{path}")
    node = session._workspace.array(whole)
    names = [name or str(axis) for axis, name in enumerate(node.array.names)]
    sizes = dict(zip(names, node.array.lengths, strict=True))
    chosen = _select_ranges(session, whole, sizes, isel, sel)
    left = [
        name
        for name in names
        if not isinstance(chosen[name], int) and len(_parse_range(chosen[name], sizes[name])) > 1
    ]
    for name in [name for name in names if not isinstance(chosen[name], int)]:
        span = _parse_range(chosen[name], sizes[name])
        if not len(span):
            raise _make_error(f"{whole}: the selection along {name} is empty")
        if name not in left or name in left[:-2]:
            chosen[name] = span[0]
    if not left:
        raise _make_error(
            f"{whole}: a plot requires a dimension with more than one selected element; use "
            "`icefloe cat` to print single values"
        )
    drawn = [name for name in names if not isinstance(chosen[name], int)]
    attributes = json.loads(node.user_data).get("attributes", {})
    if np.prod([len(_parse_range(chosen[name], sizes[name])) for name in drawn]) > _MAX_CELLS:
        raise _make_error(
            f"{whole}: a plot can have at most {_MAX_CELLS} values; select fewer with --isel or --sel"
        )
    values = _decode_numbers(read(session, whole, tuple(chosen[name] for name in names)), attributes, whole)
    axes = tuple(_make_axis(session, whole, name, chosen[name], sizes[name]) for name in drawn)
    at = {
        name: _format_label_at(session, whole, name, chosen[name], sizes[name])
        for name in names
        if name not in drawn
    }
    label = str(attributes.get("long_name") or attributes.get("standard_name") or whole.strip("/"))
    where = ", ".join(f"{name}={value}" for name, value in at.items())
    title = escape_control(f"{label}, {where}" if where else label)
    return Slice(whole, values, axes, str(attributes.get("units", "")), title, at)


def _select_ranges(
    session: Session,
    path: str,
    sizes: Mapping[str, int],
    isel: Mapping[str, slice | int],
    sel: Mapping[str, Any],
) -> dict[str, Any]:
    for name in (*isel, *sel):
        if name not in sizes:
            raise _make_error(f"{path} has no dimension {name!r}; it has {', '.join(sizes) or 'none'}")
        if name in isel and name in sel:
            raise _make_error(f"dimension {name} is selected both by index and by label")
    chosen: dict[str, Any] = {name: slice(None) for name in sizes}
    for name, wanted in isel.items():
        if isinstance(wanted, int) and not -sizes[name] <= wanted < sizes[name]:
            raise _make_error(f"{name}={wanted} is out of bounds for a dimension of size {sizes[name]}")
        if isinstance(wanted, slice) and wanted.step is not None and wanted.step < 1:
            raise _make_error(f"{name}={wanted.step}: a step must be at least 1")
        chosen[name] = wanted % sizes[name] if isinstance(wanted, int) else wanted
    if sel:
        for name, span in find_positions(session, get_parent(path) or ROOT, sel).items():
            chosen[name] = span[0] if len(span) == 1 else slice(span.start, span.stop)
    return chosen


def _parse_range(wanted: slice | int, size: int) -> range:
    return range(*wanted.indices(size)) if isinstance(wanted, slice) else range(wanted, wanted + 1)


def _decode_numbers(values: Any, attributes: Mapping[str, Any], path: str) -> Any:
    """Decode packed values, with NaN for missing ones."""
    if values.dtype.kind not in "biuf":
        raise _make_error(
            f"{path} has values of type {values.dtype}, which cannot be plotted; only numbers can be plotted"
        )
    found = unpack_numbers(values, attributes)
    found[~np.isfinite(found)] = np.nan
    return found


def _make_axis(session: Session, path: str, name: str, wanted: Any, size: int) -> PlotAxis:
    values, units, standard_name = _read_coordinate(session, path, name, size)
    drawn = None if values is None else values[wanted]
    return PlotAxis(name, drawn, _parse_range(wanted, size), units, standard_name)


def _format_label_at(session: Session, path: str, name: str, wanted: int, size: int) -> str:
    """Format the coordinate value at an index, or the index if there is no coordinate."""
    values, _, _ = _read_coordinate(session, path, name, size)
    return str(wanted) if values is None else format_label(values[wanted])


def format_label(value: Any) -> str:
    """Format a coordinate value for display."""
    if isinstance(value, np.datetime64):
        text = str(value.astype("M8[s]"))
        return text.removesuffix("T00:00:00")
    return f"{value:g}" if isinstance(value, int | float | np.number) else str(value)


def _read_coordinate(session: Session, path: str, name: str, size: int) -> tuple[Any, str, str]:
    """Read the values, units and standard name of a dimension's coordinate."""
    coordinate = join(get_parent(path) or ROOT, name)
    node = session._workspace.node(coordinate)
    if node is None or coordinate == path or "shape" not in (document := json.loads(node.user_data)):
        return None, "", ""
    if tuple(document["shape"]) != (size,):
        return None, "", ""
    attributes = document.get("attributes", {})
    values, units = read(session, coordinate, (slice(None),)), str(attributes.get("units", ""))
    standard_name = str(attributes.get("standard_name", ""))
    if " since " in units:
        return *_decode_times(values, attributes, units), standard_name
    return values if values.dtype.kind in "iufM" else None, units, standard_name


def _decode_times(values: Any, attributes: Mapping[str, Any], units: str) -> tuple[Any, str]:
    """Decode times in the standard calendar. For other calendars, keep the stored numbers."""
    coding = parse_time_coding(units, attributes.get("calendar"))
    if coding is None or values.dtype.kind not in "iuf":
        return values, units
    found = coding.microseconds(values)
    return (found.astype("M8[us]"), "") if coding.is_timestamp(found) else (values, units)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_CHUNK_INDEX)
