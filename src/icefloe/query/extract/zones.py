"""Aggregate cells over zones, given as polygons or as a mask. Each cell is weighted by the fraction of it
that a polygon covers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from icefloe.cf import is_latitude, is_longitude
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import to_arrow
from icefloe.query.extract.cells import (
    TURN,
    CoordinateAxis,
    ExtractionArrays,
    ExtractionBlocks,
    Floats,
    Indices,
    find_axis,
    get_coding,
    to_numbers,
)
from icefloe.query.scan.plan import Block, TableScan, make_plan
from icefloe.query.schema import Column, Role, make_unknown_name_error

ZONE: Final = "zone"
FUNCTIONS: Final = ("mean", "sum", "min", "max", "count")


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """The cells that each zone covers, with their weights, as sparse columns sorted by zone."""

    names: tuple[Any, ...]
    """The names of the zones."""
    zones: Indices
    """The zone index of each row."""
    cells: tuple[Indices, Indices]
    """The grid row and grid column of the cell in each row."""
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ZonePlan:
    """The plan of a zonal aggregation: the cells of each zone, and the blocks to read."""

    scan: TableScan
    coverage: Coverage
    slices: ExtractionBlocks
    results: tuple[tuple[str, str, str], ...]
    """The (name, variable, function) triple of each result column."""

    @property
    def cells(self) -> tuple[Indices, Indices]:
        """The rows and columns of all cells that the zones cover."""
        return self.coverage.cells

    @property
    def labels(self) -> list[Column]:
        """The coordinates of all dimensions other than latitude and longitude."""
        rest = set(self.slices.rest)
        columns = self.scan.table.columns
        return [c for c in columns if c.role is not Role.VARIABLE and set(c.axes) <= rest]

    @property
    def schema(self) -> pa.Schema:
        """The result columns: the zone, the remaining coordinates, and the aggregates."""
        fields = [pa.field(ZONE, pa.array(self.coverage.names).type)]
        fields += [pa.field(column.name, column.arrow) for column in self.labels]
        fields += [pa.field(name, pa.float64()) for name, _, _ in self.results]
        return pa.schema(fields)


def plan_zones(
    scan: TableScan,
    zones: Any,
    results: Mapping[str, Any],
    *,
    by: str | None = None,
    weights: str | None = None,
) -> ZonePlan:
    """Plan aggregates over zones: find the cells of each zone, with their weights.

    Parameters
    ----------
    scan
        A scan of the table, optionally narrowed along the other dimensions.
    zones
        GeoJSON, given as a mapping, a string or a file path; or a mask, which is an array over latitude and
        longitude, in the dimension order of the variables, with a zone number in each cell and NaN outside
        all zones.
    results
        Functions by variable, as in `aggregate`: `t2m="mean"`, `t2m=["min", "max"]`, or with a name,
        `warmest=("t2m", "max")`.
    by
        The feature property that names a zone. Defaults to the feature's id, or its number.
    weights
        `area` also weights cells by their area on the sphere.

    Returns
    -------
    ZonePlan

    Raises
    ------
    InvalidInputError
        If the table has no latitude and longitude, or the zones cannot be parsed.
    """
    if weights not in (None, "area"):
        raise make_unknown_name_error("kind of weights", str(weights), ("area",), kind=ErrorKind.NOT_ALLOWED)
    lat, lon = _find_plane(scan)
    first, second = sorted((lat, lon), key=lambda each: each.axis)
    if isinstance(zones, np.ndarray) or hasattr(zones, "dims"):
        mask = _order_mask(zones, first, second) if hasattr(zones, "dims") else zones
        coverage = _cover_by_mask(mask, (len(first.values), len(second.values)))
    else:
        coverage = _cover_by_polygons(_read_features(zones), by, lat, lon)
    if weights == "area":
        areas = _compute_areas(lat, lon)
        areas = areas if lat.axis < lon.axis else areas.T
        coverage = Coverage(
            coverage.names, coverage.zones, coverage.cells, coverage.weights * areas[coverage.cells]
        )
    parsed = _parse_results(scan, results)
    plan = make_plan(scan.table, scan.selection, partition_bytes=scan.partition_bytes)
    return ZonePlan(scan, coverage, ExtractionBlocks(plan, (first.axis, second.axis)), parsed)


def _parse_results(scan: TableScan, results: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    found: list[tuple[str, str, str]] = []
    for name, given in results.items():
        if isinstance(given, tuple):
            found.append((name, *given))
        elif isinstance(given, str):
            found.append((name, name, given))
        else:
            found += [(f"{name}_{function}", name, function) for function in given]
    known = [column.name for column in scan.table.variables]
    for _, variable, function in found:
        if variable not in known:
            raise make_unknown_name_error("variable", variable, known)
        if function not in FUNCTIONS:
            raise make_unknown_name_error("function", function, FUNCTIONS, kind=ErrorKind.NOT_ALLOWED)
    if not found:
        raise InvalidInputError(
            "no results were requested; name a variable and a function, such as t2m='mean'",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return tuple(found)


def _find_plane(scan: TableScan) -> tuple[CoordinateAxis, CoordinateAxis]:
    """Return the lookup axes for latitude and longitude."""
    columns = scan.coordinates.table.columns
    flat = [c for c in columns if c.role is Role.DIMENSION and c.array is not None]
    lat = [c.name for c in flat if c.array is not None and is_latitude(c.name, c.array.attributes)]
    lon = [c.name for c in flat if c.array is not None and is_longitude(c.name, c.array.attributes)]
    if not lat or not lon:
        raise InvalidInputError(
            f"the dimensions {', '.join(scan.table.dims)} are not latitude and longitude, which zones need",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    return find_axis(scan, lat[0]), find_axis(scan, lon[0])


def _read_features(zones: Any) -> list[Mapping[str, Any]]:
    """Return the features of a GeoJSON object or file."""
    if isinstance(zones, os.PathLike) or (isinstance(zones, str) and not zones.lstrip().startswith("{")):
        try:
            zones = Path(zones).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidInputError(
                f"the zones in {zones} cannot be read: {error}", kind=ErrorKind.STORAGE_CONFIG
            ) from None
    try:
        document = json.loads(zones) if isinstance(zones, str | bytes) else zones
        kind = document["type"]
        features = document["features"] if kind == "FeatureCollection" else [document]
        found = [each if each["type"] == "Feature" else {"geometry": each} for each in features]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(
            f"the zones are not GeoJSON ({error!r}): expected a FeatureCollection, a Feature or a geometry",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        ) from None
    if not found:
        raise InvalidInputError("the zones have no features", kind=ErrorKind.INVALID_ARRAY_METADATA)
    return found


def _name_zones(features: Sequence[Mapping[str, Any]], by: str | None) -> tuple[Any, ...]:
    if by is not None:
        missing = [n for n, each in enumerate(features) if by not in (each.get("properties") or {})]
        if missing:
            raise InvalidInputError(
                f"feature {missing[0]} has no property {by!r}", kind=ErrorKind.INVALID_ARRAY_METADATA
            )
        return tuple(each["properties"][by] for each in features)
    ids = [each.get("id") for each in features]
    return tuple(ids if all(id is not None for id in ids) else range(len(features)))


def compute_edges(axis: CoordinateAxis) -> Floats:
    """Compute cell boundaries along an axis: midpoints between labels, extrapolated by the same distance
    beyond the outer labels.
    """
    values = axis.values
    if len(values) < 2:
        raise InvalidInputError(
            f"{axis.name} has only one label, so the size of its cells is unknown",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    middle = (values[1:] + values[:-1]) / 2
    edges = np.concatenate([[2 * values[0] - middle[0]], middle, [2 * values[-1] - middle[-1]]])
    return edges if axis.turns else np.clip(edges, -90.0, 90.0)


def _compute_areas(lat: CoordinateAxis, lon: CoordinateAxis) -> Floats:
    """Compute the areas of grid cells on the unit sphere, of shape `(latitudes, longitudes)`."""
    heights = np.abs(np.diff(np.sin(np.deg2rad(compute_edges(lat)))))
    widths = np.abs(np.diff(np.deg2rad(compute_edges(lon))))
    return np.multiply.outer(heights, widths)


def _order_mask(mask: Any, first: CoordinateAxis, second: CoordinateAxis) -> Any:
    """Return the values of an xarray mask, transposed to the dimension order of the variables."""
    names = (first.name, second.name)
    if sorted(map(str, mask.dims)) != sorted(names):
        raise InvalidInputError(
            f"the mask has the dimensions {', '.join(map(str, mask.dims))}, and the grid {', '.join(names)}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    for axis in (first, second):
        labels = to_numbers(np.asarray(mask[axis.name])) if axis.name in mask.coords else axis.values
        if labels.shape == axis.values.shape and not np.allclose(labels, axis.values):
            raise InvalidInputError(
                f"the {axis.name} of the mask differs from the grid; reindex the mask",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
    return np.asarray(mask.transpose(*names))


def _cover_by_mask(mask: Any, shape: tuple[int, int]) -> Coverage:
    if mask.shape != shape:
        raise InvalidInputError(
            f"the mask has the shape {mask.shape}, and the grid {shape}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    inside = np.isfinite(mask) if mask.dtype.kind == "f" else np.ones(shape, bool)
    if mask.dtype.kind == "b":
        inside = mask
    cells = np.nonzero(inside)
    names, zones = np.unique(mask[inside], return_inverse=True)
    order = np.argsort(zones, kind="stable")
    whole = names.astype(np.int64) if (names == np.floor(names)).all() else names
    rows = (cells[0][order], cells[1][order])
    return Coverage(tuple(whole.tolist()), zones[order], rows, np.ones(len(order)))


def _cover_by_polygons(
    features: Sequence[Mapping[str, Any]], by: str | None, lat: CoordinateAxis, lon: CoordinateAxis
) -> Coverage:
    """Compute the fraction of each grid cell that each polygon covers."""
    import shapely  # type: ignore[import-untyped]

    edges = compute_edges(lat), compute_edges(lon)
    zones, rows, columns, weights = [], [], [], []
    for number, feature in enumerate(features):
        try:
            shape = shapely.make_valid(shapely.from_geojson(json.dumps(feature["geometry"])))
        except (shapely.errors.GEOSException, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"feature {number} has no valid geometry: {error}", kind=ErrorKind.INVALID_ARRAY_METADATA
            ) from None
        if shapely.get_dimensions(shape) < 2:
            raise InvalidInputError(
                f"feature {number} is a {shape.geom_type}, which has no area; zones are polygons, and points"
                " are extracted with points()",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        for turn in (-TURN, 0.0, TURN) if lon.turns else (0.0,):
            moved = shapely.transform(shape, partial(_shift_polygon, degrees=turn)) if turn else shape
            found = _compute_coverage(shapely, moved, *edges)
            rows.append(found[0])
            columns.append(found[1])
            weights.append(found[2])
            zones.append(np.full(len(found[2]), number))
    names = _name_zones(features, by)
    cells = [np.concatenate(each).astype(np.int64) for each in (rows, columns)]
    pair = (cells[0], cells[1]) if lat.axis < lon.axis else (cells[1], cells[0])
    return Coverage(names, np.concatenate(zones), pair, np.concatenate(weights))


def _shift_polygon(points: Floats, degrees: float) -> Floats:
    return np.asarray(points + np.array([degrees, 0.0]))


def _compute_coverage(shapely: Any, shape: Any, lat: Floats, lon: Floats) -> tuple[Indices, Indices, Floats]:
    """Return the row, column and covered fraction of each grid cell that overlaps a polygon."""
    west, south, east, north = shape.bounds
    rows = _find_overlaps(lat, south, north)
    columns = _find_overlaps(lon, west, east)
    at = [each.ravel() for each in np.meshgrid(rows, columns, indexing="ij")]
    corners = [
        *(np.minimum(edges[place], edges[place + 1]) for edges, place in ((lon, at[1]), (lat, at[0]))),
        *(np.maximum(edges[place], edges[place + 1]) for edges, place in ((lon, at[1]), (lat, at[0]))),
    ]
    boxes = shapely.box(*corners)
    shapely.prepare(shape)
    fractions = np.zeros(len(boxes))
    inside = shapely.contains_properly(shape, boxes)
    fractions[inside] = 1.0
    border = ~inside & shapely.intersects(shape, boxes)
    parts = shapely.intersection(boxes[border], shape)
    fractions[border] = shapely.area(parts) / shapely.area(boxes[border])
    # exactextract stores fractions as 32-bit floats. The same precision gives the same results.
    fractions = fractions.astype(np.float32).astype(np.float64)
    kept = fractions > 0
    return at[0][kept], at[1][kept], fractions[kept]


def _find_overlaps(edges: Floats, low: float, high: float) -> Indices:
    """Return the indices of the cells that overlap a range, given the cell boundaries."""
    lower, upper = np.minimum(edges[1:], edges[:-1]), np.maximum(edges[1:], edges[:-1])
    return np.flatnonzero((upper > low) & (lower < high))


def read_zones(plan: ZonePlan, arrays: ExtractionArrays, number: int) -> Iterator[pa.RecordBatch]:
    """Aggregate one block over all zones. Yield one row for each pair of block cell and zone."""
    block = plan.slices.block(number)
    shape = tuple(span.count for span in block)
    cells, count = int(np.prod(shape, dtype=np.int64)), len(plan.coverage.names)
    if not cells or not count:
        return
    names = pa.array(plan.coverage.names)
    columns = [names.take(pa.array(np.tile(np.arange(count), cells)))]
    columns += arrays.read_labels(block, count)
    variables = {column.name: column for column in plan.scan.table.variables}
    found = {name: _aggregate(plan, arrays, variables[name], block, shape) for _, name, _ in plan.results}
    for _, variable, function in plan.results:
        values = found[variable].result(function).reshape(-1)
        columns.append(to_arrow(values, np.isnan(values), pa.float64()))
    yield pa.RecordBatch.from_arrays(columns, schema=plan.schema)


class _Sums:
    """The weighted sums, minima and maxima of all zones, for each cell of a block."""

    def __init__(self, shape: tuple[int, ...], zones: int) -> None:
        self._sum, self._weight = np.zeros((*shape, zones)), np.zeros((*shape, zones))
        self._low, self._high = np.full((*shape, zones), np.inf), np.full((*shape, zones), -np.inf)

    def add(self, zones: Indices, values: Floats, weights: Floats) -> None:
        """Add the values of cells to the sums of their zones. Missing values are NaN."""
        order = np.argsort(zones, kind="stable")
        starts = np.flatnonzero(np.diff(zones[order], prepend=-1))
        at = zones[order][starts]
        values, weights = values[..., order], weights[order]
        known = ~np.isnan(values)
        share = np.where(known, weights, 0.0)
        self._sum[..., at] += np.add.reduceat(np.where(known, values, 0.0) * share, starts, axis=-1)
        self._weight[..., at] += np.add.reduceat(share, starts, axis=-1)
        low = np.minimum.reduceat(np.where(known, values, np.inf), starts, axis=-1)
        high = np.maximum.reduceat(np.where(known, values, -np.inf), starts, axis=-1)
        self._low[..., at] = np.minimum(self._low[..., at], low)
        self._high[..., at] = np.maximum(self._high[..., at], high)

    def result(self, function: str) -> Floats:
        """Return the result of an aggregate function for all zones. Zones without values get NaN, or 0 for a
        count."""
        if function == "count":
            return self._weight
        empty = self._weight == 0
        with np.errstate(invalid="ignore", divide="ignore"):
            found = {
                "sum": self._sum,
                "mean": self._sum / self._weight,
                "min": self._low,
                "max": self._high,
            }[function]
        return np.where(empty, np.nan, found)


def _aggregate(
    plan: ZonePlan, arrays: ExtractionArrays, column: Column, block: Block, shape: tuple[int, ...]
) -> _Sums:
    coverage, coding = plan.coverage, get_coding(column)
    sums = _Sums(shape, len(coverage.names))
    for group, raw in arrays.read_cells(column, block, plan.cells):
        values, missing = coding.decode(raw)
        numbers = values.astype(np.float64)
        if missing is not None:
            numbers[missing] = np.nan
        whole = np.broadcast_to(numbers, (*shape, numbers.shape[-1]))
        sums.add(coverage.zones[group.rows], whole, coverage.weights[group.rows])
    return sums
