"""The horizontal grid of a table, and the reading of some of its cells, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.cf import is_longitude
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import Coding, Values, to_arrow
from icefloe.query.scan.plan import Block, Plan, Span, TableScan
from icefloe.query.scan.read import TableArrays, fetch_spans
from icefloe.query.schema import Column
from icefloe.session import Session

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
TURN: Final = 360.0


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A dimension that is looked up by the values of its coordinate."""

    column: Column
    axis: int
    values: Floats
    """Labels as numbers: times are microseconds since 1970."""
    turns: bool
    """True for longitudes, where labels that differ by 360 degrees are the same place."""

    @property
    def name(self) -> str:
        """Name of the coordinate."""
        return self.column.name

    @property
    def is_closed(self) -> bool:
        """True if the longitudes go around the globe, so that the last is next to the first."""
        if not self.turns or len(self.values) < 2:
            return False
        step = abs(self.values[-1] - self.values[0]) / (len(self.values) - 1)
        return bool(abs(abs(self.values[-1] - self.values[0]) + step - TURN) < step / 2)


def to_numbers(values: Values) -> Floats:
    """Convert labels to floats; times to microseconds since 1970."""
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[us]").astype(np.int64).astype(np.float64)
    return values.astype(np.float64)


def find_axis(scan: TableScan, name: str) -> Axis:
    """Find the dimension with a one-dimensional numeric coordinate of a name."""
    column = scan.coordinates.find(name)
    values, missing = scan.coordinates.values(column)
    if missing is not None or values.dtype.kind not in "iufmM":
        raise InvalidInputError(
            f"coordinate {name} is not numeric or has missing values, so that nothing can be near it",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )
    attributes = {} if column.array is None else column.array.attributes
    axis = column.axes[0]
    if scan.selection.indices[axis] is not None:
        raise InvalidInputError(
            f"{name} is already selected; select along the other dimensions only, because the points or zones"
            f" determine {name}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return Axis(column, axis, to_numbers(values), is_longitude(name, attributes))


@dataclass(frozen=True, slots=True, eq=False)
class CellGroup:
    """Cells that are in one chunk of an array, seen along some of its dimensions."""

    region: tuple[slice, ...]
    """The extent of the chunk along these dimensions."""
    places: tuple[Indices, ...]
    """Positions of the cells in the region, per dimension."""
    rows: Indices
    """Numbers of the cells among all cells."""


def group_by_chunk(edges: Sequence[Indices], cells: Sequence[Indices]) -> Iterator[CellGroup]:
    """Group cells, given by their positions along each dimension, by the chunk that contains them."""
    chunks = [np.searchsorted(own, at, side="right") - 1 for own, at in zip(edges, cells, strict=True)]
    grid = tuple(len(own) - 1 for own in edges)
    keys = np.ravel_multi_index(chunks, grid) if grid else np.zeros(1, np.int64)
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows):
            first = [int(chunk[rows[0]]) for chunk in chunks]
            region = tuple(slice(int(own[c]), int(own[c + 1])) for own, c in zip(edges, first, strict=True))
            places = tuple(at[rows] - part.start for at, part in zip(cells, region, strict=True))
            yield CellGroup(region, places, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Blocks of a table along the dimensions that are not looked up, one per task."""

    plan: Plan
    axes: tuple[int, ...]
    """The dimensions that are looked up."""

    @property
    def rest(self) -> tuple[int, ...]:
        """The other dimensions."""
        return tuple(axis for axis in range(len(self.plan.edges)) if axis not in self.axes)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return int(np.prod([len(self.plan.edges[axis]) for axis in self.rest], dtype=np.int64))

    def block(self, number: int) -> Block:
        """Return the spans of the other dimensions in a block."""
        shape = [len(self.plan.edges[axis]) for axis in self.rest]
        places = np.unravel_index(number, shape) if shape else ()
        return tuple(self.plan.make_span(axis, int(at)) for axis, at in zip(self.rest, places, strict=True))


def get_coding(column: Column) -> Coding:
    """Return the coding of a column that has an array."""
    if column.coding is None:
        raise TypeError(f"{column.name} has no array")
    return column.coding


def read_cells(
    session: Session, column: Column, slices: Slices, block: Block, cells: Sequence[Indices]
) -> Iterator[tuple[CellGroup, Values]]:
    """Read cells of a variable in a block, one chunk column at a time.

    Yields the cells in a chunk, given by their positions along the dimensions that are looked up, and their
    stored values: shape `(*block, cells)`, with length 1 along dimensions that the variable does not have.
    """
    import zarr

    info = column.array
    if info is None:
        raise TypeError(f"{column.name} has no array")
    array = zarr.open_array(session.store, path=info.path, mode="r")
    own = {axis: number for number, axis in enumerate(column.axes)}
    spans = dict(zip(slices.rest, block, strict=True))
    order = [own[axis] for axis in (*slices.rest, *slices.axes) if axis in own]
    shape = [spans[axis].count if axis in own else 1 for axis in slices.rest]
    for group in group_by_chunk([info.edges[own[axis]] for axis in slices.axes], cells):
        looked = dict(zip(slices.axes, group.region, strict=True))
        wanted = [spans[axis] if axis in spans else _to_span(looked[axis]) for axis in column.axes]
        values = fetch_spans(array, wanted).transpose(order)
        values = values.reshape(*shape, *(part.stop - part.start for part in group.region))
        at: tuple[Any, ...] = (..., *group.places)
        yield group, values[at]


def _to_span(part: slice) -> Span:
    return Span(part.start, part.stop, None)


def read_labels(
    scan: TableScan, slices: Slices, columns: Sequence[Column], block: Block, times: int
) -> list[pa.Array]:
    """Read coordinates of a block, each value repeated a number of times."""
    if not columns:
        return []
    spans = dict(zip(slices.rest, block, strict=True))
    whole = tuple(spans.get(axis, Span(0, 1, None)) for axis in range(len(scan.table.dims)))
    table = scan.table.select_columns([column.name for column in columns])
    found = TableArrays(scan.session, replace(slices.plan, table=table)).read(whole)
    shape = tuple(span.count for span in block)
    return [
        _repeat(column, np.broadcast_to(values.squeeze(slices.axes), shape).reshape(-1), times)
        for column, values in zip(columns, found, strict=True)
    ]


def _repeat(column: Column, raw: Values, times: int) -> pa.Array:
    if column.coding is None:
        once = pa.array(raw, type=column.arrow)
    elif column.numeric:
        once = to_arrow(raw.astype(np.float64), None, column.arrow)
    else:
        once = column.coding.to_column(raw)
    return once.take(pa.array(np.repeat(np.arange(len(raw)), times)))
