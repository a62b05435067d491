"""Extract values at points. The cells of all points are looked up first, then each chunk is read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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

NEAREST: Final = "nearest"
LINEAR: Final = "linear"
_DISTANCES_PER_STEP: Final = 2**24
"""The maximum number of distances to compute at a time, to limit memory."""


@dataclass(frozen=True, slots=True, eq=False)
class PointCells:
    """The cells that contribute to the value at each point, with their weights."""

    axes: tuple[int, ...]
    cells: tuple[Indices, ...]
    """Positions along the lookup dimensions, of shape `(corners, points)`."""
    weights: Floats
    """Weights of shape `(corners, points)`; NaN for points that get no value."""


@dataclass(frozen=True, slots=True, eq=False)
class PointPlan:
    """The plan of a point extraction: the cells of each point, and the blocks to read."""

    scan: TableScan
    points: pa.Table
    samples: PointCells
    slices: ExtractionBlocks

    @property
    def cells(self) -> list[Indices]:
        """The positions of all cells that the points need, per lookup dimension."""
        return [cells.reshape(-1) for cells in self.samples.cells]

    @property
    def schema(self) -> pa.Schema:
        """The result columns: the columns of the points, the remaining coordinates, and the variables."""
        fields = [*self.points.schema]
        fields += [pa.field(column.name, column.arrow) for column in self.labels]
        is_linear = len(self.samples.weights) > 1
        for column in self.scan.table.variables:
            fields.append(pa.field(column.name, pa.float64() if is_linear else column.arrow))
        return pa.schema(fields)

    @property
    def labels(self) -> list[Column]:
        """The coordinates of the dimensions that the points do not specify."""
        rest = set(self.slices.rest)
        return [
            column
            for column in self.scan.table.columns
            if column.role is not Role.VARIABLE
            and set(column.axes) <= rest
            and column.name not in self.points.column_names
        ]


def plan_points(scan: TableScan, points: Any, method: str = NEAREST, tolerance: Any = None) -> PointPlan:
    """Plan the extraction of values at points: look up the cells of each point.

    Parameters
    ----------
    scan
        A scan of the table, optionally narrowed along the other dimensions.
    points
        A table with a column per lookup coordinate: a DataFrame, an Arrow table, or a mapping of lists. Other
        columns are passed through to the result.
    method
        `nearest` takes the value of the nearest cell; `linear` interpolates between the cells around a point.
    tolerance
        With `nearest`, the maximum distance in units of the coordinate: one number, or one per coordinate.
        Points without a cell within this distance get null values.

    Returns
    -------
    PointPlan

    Raises
    ------
    InvalidInputError
        If no column is a coordinate, or the method does not suit the coordinates.
    """
    if method not in (NEAREST, LINEAR):
        raise make_unknown_name_error("method", method, (NEAREST, LINEAR), kind=ErrorKind.NOT_ALLOWED)
    table = to_table(points)
    _check_tolerance(scan, method, tolerance)
    plane = _find_plane(scan, table.column_names)
    if plane is not None:
        samples = _find_on_sphere(scan, table, plane, method, tolerance)
    else:
        samples = _find_on_axes(scan, table, method, tolerance)
    for column in scan.table.variables:
        if column.name in table.column_names:
            raise InvalidInputError(
                f"the points have a column {column.name} like the table; rename it",
                kind=ErrorKind.NOT_ALLOWED,
            )
        if not set(samples.axes) <= set(column.axes):
            raise InvalidInputError(
                f"{column.name} does not vary along all coordinates of the points; select other variables",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        if method == LINEAR and (column.coding is None or column.coding.stored.kind not in "iuf"):
            raise InvalidInputError(
                f"{column.name} is not numeric and cannot be interpolated; use nearest",
                kind=ErrorKind.NOT_ALLOWED,
            )
    plan = make_plan(scan.table, scan.selection, partition_bytes=scan.partition_bytes)
    return PointPlan(scan, table, samples, ExtractionBlocks(plan, samples.axes))


def to_table(points: Any) -> pa.Table:
    """Convert points, given as a DataFrame, an Arrow table or a mapping of lists, to an Arrow table."""
    if isinstance(points, pa.Table):
        return points
    if hasattr(points, "toArrow"):  # a Spark DataFrame
        return points.toArrow()
    if hasattr(points, "iloc"):
        return pa.Table.from_pandas(points, preserve_index=False)
    try:
        return pa.table(points) if hasattr(points, "__arrow_c_stream__") else pa.table(dict(points))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"the points are not a table: {error}; pass a data frame, or a mapping of lists of equal length",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        ) from None


def _check_tolerance(scan: TableScan, method: str, tolerance: Any) -> None:
    if tolerance is not None and method == LINEAR:
        raise InvalidInputError(
            "a tolerance applies to the method nearest; linear gives null outside the grid",
            kind=ErrorKind.NOT_ALLOWED,
        )
    columns = scan.coordinates.table.columns
    known = [column.name for column in columns if column.role is not Role.VARIABLE]
    for name in tolerance if isinstance(tolerance, Mapping) else ():
        if name not in known:
            raise make_unknown_name_error("coordinate", name, known, "in tolerance")


def _list_coordinates(scan: TableScan) -> set[str]:
    """Return the names of all one-dimensional coordinates of a table, including unselected ones."""
    columns = scan.coordinates.table.columns
    return {c.name for c in columns if c.role is not Role.VARIABLE and len(c.axes) == 1}


def _list_lookups(scan: TableScan, table: pa.Table) -> list[CoordinateAxis]:
    """Return the one-dimensional coordinates that the points specify, in dimension order."""
    known = _list_coordinates(scan)
    names = [name for name in table.column_names if name in known]
    return sorted((find_axis(scan, name) for name in names), key=lambda each: each.axis)


def _find_on_axes(scan: TableScan, table: pa.Table, method: str, tolerance: Any) -> PointCells:
    """Look up the cells of points along one-dimensional coordinates."""
    axes = _list_lookups(scan, table)
    if not axes:
        known = _list_coordinates(scan)
        raise InvalidInputError(
            f"none of the columns of the points ({', '.join(table.column_names)}) is a coordinate;"
            f" coordinates are {', '.join(sorted(known))}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    found = [
        _find_nearest(axis, _read_numbers(table, axis.name), _get_tolerance(tolerance, axis.name))
        if method == NEAREST
        else _find_neighbours(axis, _read_numbers(table, axis.name))
        for axis in axes
    ]
    corners = list(product(*(range(len(cells)) for cells, _ in found)))
    cells = tuple(np.stack([at[corner[k]] for corner in corners]) for k, (at, _) in enumerate(found))
    weights = np.stack(
        [np.prod([share[corner[k]] for k, (_, share) in enumerate(found)], axis=0) for corner in corners]
    )
    return PointCells(tuple(axis.axis for axis in axes), cells, weights)


def _read_numbers(table: pa.Table, name: str) -> Floats:
    column = table.column(name).combine_chunks()
    missing = pc.sum(pc.is_null(column, nan_is_null=True)).as_py()
    if missing:
        raise InvalidInputError(
            f"{missing} points have no {name}; drop them", kind=ErrorKind.INVALID_ARRAY_METADATA
        )
    values = column.to_numpy(zero_copy_only=False)
    try:
        return to_numbers(values.astype("M8[us]") if values.dtype == object else values)
    except ValueError:
        raise InvalidInputError(
            f"the {name} of the points must be numbers or times, not {column.type}: {values[0]!r}",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        ) from None


def _get_tolerance(tolerance: Any, name: str) -> float:
    given = tolerance.get(name) if isinstance(tolerance, Mapping) else tolerance
    if isinstance(given, timedelta):
        given = np.timedelta64(given)
    return np.inf if given is None else float(to_numbers(np.asarray(given)))


Found = tuple[NDArray[np.int64], Floats]
"""Cell positions and their weights, both of shape `(candidates, points)`."""


def _find_nearest(axis: CoordinateAxis, wanted: Floats, tolerance: float) -> Found:
    """Find the nearest label of each value. If two labels are equally near, choose the larger one, as pandas
    does."""
    order = np.argsort(axis.values, kind="stable")
    labels = axis.values[order]
    if axis.turns:
        wanted = _wrap_longitudes(wanted, labels)
        order = np.concatenate([order[-1:], order, order[:1]])
        labels = np.concatenate([labels[-1:] - TURN, labels, labels[:1] + TURN])
    right = np.clip(np.searchsorted(labels, wanted), 1, max(len(labels) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(labels) - 1)
    is_left = np.abs(wanted - labels[left]) < np.abs(labels[right] - wanted)
    nearest = np.where(is_left, left, right)
    far = np.abs(labels[nearest] - wanted) > tolerance
    return order[nearest][None], np.where(far, np.nan, 1.0)[None]


def _find_neighbours(axis: CoordinateAxis, wanted: Floats) -> Found:
    """Find the labels on both sides of each value, with interpolation weights. A value outside the labels has
    no neighbours."""
    order = np.argsort(axis.values, kind="stable")
    labels = axis.values[order]
    if axis.turns:
        wanted = _wrap_longitudes(wanted, labels)
        if axis.is_closed:
            order = np.concatenate([order[-1:], order, order[:1]])
            labels = np.concatenate([labels[-1:] - TURN, labels, labels[:1] + TURN])
    if len(labels) == 1:
        inside = np.where(wanted == labels[0], 1.0, np.nan)
        return np.zeros((1, len(wanted)), np.int64), inside[None]
    right = np.clip(np.searchsorted(labels, wanted), 1, len(labels) - 1)
    left = right - 1
    share = (wanted - labels[left]) / (labels[right] - labels[left])
    share = np.where((share < 0) | (share > 1), np.nan, share)
    return np.stack([order[left], order[right]]), np.stack([1 - share, share])


def _wrap_longitudes(wanted: Floats, labels: Floats) -> Floats:
    """Wrap longitudes by multiples of 360 degrees into the range that starts at the first label."""
    turned = (wanted - labels[0]) % TURN + labels[0]
    return np.where((wanted >= labels[0]) & (wanted <= labels[-1]), wanted, turned)


def _find_plane(scan: TableScan, names: Sequence[str]) -> tuple[Column, Column] | None:
    """Return the two-dimensional latitude and longitude coordinates if the points have both columns,
    otherwise None.
    """
    columns = scan.coordinates.table.columns
    flat = [c for c in columns if c.array is not None and len(c.axes) == 2 and c.name in names]
    lat = [c for c in flat if c.array is not None and is_latitude(c.name, c.array.attributes)]
    lon = [c for c in flat if c.array is not None and is_longitude(c.name, c.array.attributes)]
    return (lat[0], lon[0]) if lat and lon else None


def _find_on_sphere(
    scan: TableScan, table: pa.Table, plane: tuple[Column, Column], method: str, tolerance: Any
) -> PointCells:
    """Find the nearest cells of a curvilinear grid by great-circle distance."""
    if method == LINEAR:
        raise InvalidInputError(
            f"{plane[0].name} and {plane[1].name} are two-dimensional, which linear interpolation does not"
            " support; use nearest",
            kind=ErrorKind.NOT_ALLOWED,
        )
    import zarr

    store = scan.session.store
    grids = []
    for column in plane:
        path = column.array.path if column.array is not None else column.name
        values, missing = get_coding(column).decode(
            np.asarray(zarr.open_array(store, path=path, mode="r")[...])
        )
        degrees = values.astype(np.float64)
        if missing is not None:
            degrees[missing] = np.nan
        order = sorted(range(2), key=column.axes.__getitem__)
        grids.append(degrees.transpose(order))
    cells = _to_vectors(*(grid.ravel() for grid in grids))
    wanted = _to_vectors(*(_read_numbers(table, column.name) for column in plane))
    known = np.flatnonzero(np.isfinite(cells).all(axis=1))
    nearest, cosines = np.empty(len(wanted), np.int64), np.empty(len(wanted))
    step = max(_DISTANCES_PER_STEP // max(len(known), 1), 1)
    for first in range(0, len(wanted), step):
        part = wanted[first : first + step] @ cells[known].T
        best = part.argmax(axis=1)
        nearest[first : first + step] = known[best]
        cosines[first : first + step] = part[np.arange(len(best)), best]
    limit = _get_tolerance(tolerance, plane[0].name)
    far = np.rad2deg(np.arccos(np.clip(cosines, -1, 1))) > limit
    positions = np.unravel_index(nearest, grids[0].shape)
    found = dict(zip(sorted(plane[0].axes), (each[None] for each in positions), strict=True))
    weights = np.where(far, np.nan, 1.0)[None]
    for axis in _list_lookups(scan, table):
        limit = _get_tolerance(tolerance, axis.name) if isinstance(tolerance, Mapping) else np.inf
        found[axis.axis], own = _find_nearest(axis, _read_numbers(table, axis.name), limit)
        weights = weights * own
    return PointCells(tuple(sorted(found)), tuple(found[axis] for axis in sorted(found)), weights)


def _to_vectors(lat: Floats, lon: Floats) -> Floats:
    """Convert latitudes and longitudes to unit vectors. Nearer points have a larger dot product."""
    phi, lam = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def read_points(plan: PointPlan, arrays: ExtractionArrays, number: int) -> Iterator[pa.RecordBatch]:
    """Extract the values at all points for one block. Yield one row for each pair of block cell and point."""
    block = plan.slices.block(number)
    shape = tuple(span.count for span in block)
    count, cells = len(plan.points), int(np.prod(shape, dtype=np.int64))
    if not cells or not count:
        return
    columns = [_repeat_rows(plan.points.column(name), cells) for name in plan.points.column_names]
    columns += arrays.read_labels(block, count)
    columns += [_gather_values(plan, arrays, column, block, shape) for column in plan.scan.table.variables]
    yield pa.RecordBatch.from_arrays(columns, schema=plan.schema)


def _repeat_rows(column: pa.ChunkedArray, times: int) -> pa.Array:
    """Repeat a column of the points once for each cell of a block."""
    return column.combine_chunks().take(pa.array(np.tile(np.arange(len(column)), times)))


def _gather_values(
    plan: PointPlan, arrays: ExtractionArrays, column: Column, block: Block, shape: tuple[int, ...]
) -> pa.Array:
    """Return the weighted values of a variable at all points, for one block."""
    coding, samples = get_coding(column), plan.samples
    corners, count = samples.weights.shape
    found: Any = None
    for group, values in arrays.read_cells(column, block, plan.cells):
        if found is None:
            found = np.zeros((*shape, corners * count), values.dtype)
        found[..., group.rows] = values
    if found is None:
        found = np.zeros((*shape, 0), coding.stored)
    if corners == 1:
        column_values = coding.to_column(found.reshape(-1))
        lost = np.isnan(samples.weights[0])
        if not lost.any():
            return column_values
        kept = np.broadcast_to(~lost, (*shape, count)).reshape(-1)
        return pc.if_else(pa.array(kept), column_values, pa.scalar(None, column_values.type))
    decoded, missing = coding.decode(found)
    numbers = decoded.astype(np.float64)
    if missing is not None:
        numbers[missing] = np.nan
    weighted = numbers.reshape(*shape, corners, count) * samples.weights
    # A corner with weight 0 is ignored, even if its value is missing.
    total = np.where(samples.weights == 0, 0.0, weighted).sum(axis=-2).reshape(-1)
    return to_arrow(total, np.isnan(total), pa.float64())
