"""Find the cells of a table at given coordinates, and read them chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.cf import is_longitude
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import Coding, Values, to_arrow
from icefloe.query.extract.array_cells import fetch_ahead, open_cells
from icefloe.query.scan.plan import Block, ScanPlan, Span, TableScan
from icefloe.query.scan.read import TableArrays
from icefloe.query.schema import Column
from icefloe.session import Session

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
TURN: Final = 360.0


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateAxis:
    """A dimension along which cells are looked up by label, and the labels."""

    column: Column
    axis: int
    values: Floats
    """The labels as numbers. Times are microseconds since 1970."""
    turns: bool
    """True for longitudes, where values that differ by 360 degrees denote the same location."""

    @property
    def name(self) -> str:
        """The name of the coordinate."""
        return self.column.name

    @property
    def is_closed(self) -> bool:
        """True if the longitudes cover the whole globe, so that the last cell is adjacent to the first."""
        if not self.turns or len(self.values) < 2:
            return False
        step = abs(self.values[-1] - self.values[0]) / (len(self.values) - 1)
        return bool(abs(abs(self.values[-1] - self.values[0]) + step - TURN) < step / 2)


def to_numbers(values: Values) -> Floats:
    """Convert coordinate values to floats for cell lookups.

    Times become microseconds since 1970.
    """
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[us]").astype(np.int64).astype(np.float64)
    return values.astype(np.float64)


def find_axis(scan: TableScan, name: str) -> CoordinateAxis:
    """Return the lookup axis for a one-dimensional numeric coordinate, by name."""
    column = scan.coordinates.find(name)
    values, missing = scan.coordinates.values(column)
    if missing is not None or values.dtype.kind not in "iufmM":
        raise InvalidInputError(
            f"coordinate {name} is not numeric or has missing values, so the nearest cells cannot be found",
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
    return CoordinateAxis(column, axis, to_numbers(values), is_longitude(name, attributes))


@dataclass(frozen=True, slots=True, eq=False)
class CellGroup:
    """The requested cells that lie in one chunk."""

    region: tuple[slice, ...]
    """The extent of the chunk along the lookup dimensions."""
    places: tuple[Indices, ...]
    """The positions of the cells within the region, per lookup dimension."""
    rows: Indices
    """The index of each cell in the list of all requested cells."""


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
class ExtractionBlocks:
    """The blocks of an extraction. A block is a range of the dimensions without lookups, such as time, and a
    task reads one block at a time.
    """

    plan: ScanPlan
    axes: tuple[int, ...]
    """The dimensions along which cells are looked up."""

    @property
    def rest(self) -> tuple[int, ...]:
        """The dimensions along which no cells are looked up."""
        return tuple(axis for axis in range(len(self.plan.edges)) if axis not in self.axes)

    @property
    def count(self) -> int:
        """The number of blocks in the extraction."""
        return int(np.prod([len(self.plan.edges[axis]) for axis in self.rest], dtype=np.int64))

    def group_cells(self, column: Column, cells: Sequence[Indices]) -> Iterator[CellGroup]:
        """Group cells, given by their positions, by the variable's chunk that contains them."""
        if column.array is None:
            raise TypeError(f"{column.name} has no array")
        edges = column.array.edges
        return group_by_chunk([edges[column.axes.index(axis)] for axis in self.axes], cells)

    def count_bytes(self, cells: Sequence[Indices]) -> int:
        """Estimate how many bytes of chunks each block reads."""
        total = 0
        for column in self.plan.table.variables:
            edges = () if column.array is None else column.array.edges
            cells_per_chunk = np.prod([np.diff(own).max(initial=1) for own in edges], dtype=np.int64)
            chunks = sum(1 for _ in self.group_cells(column, cells))
            total += chunks * int(cells_per_chunk) * get_coding(column).stored.itemsize
        return total

    def block(self, number: int) -> Block:
        """Return a block by number, as one span per dimension without lookups."""
        shape = [len(self.plan.edges[axis]) for axis in self.rest]
        places = np.unravel_index(number, shape) if shape else ()
        return tuple(self.plan.make_span(axis, int(at)) for axis, at in zip(self.rest, places, strict=True))


def get_coding(column: Column) -> Coding:
    """Return the `Coding` of a variable column."""
    if column.coding is None:
        raise TypeError(f"{column.name} has no array")
    return column.coding


class ExtractionArrays:
    """The open arrays of a table, from which a task reads cells and labels block by block."""

    def __init__(
        self,
        session: Session,
        slices: ExtractionBlocks,
        labels: Sequence[Column],
        pool: Executor | None = None,
    ) -> None:
        table = slices.plan.table
        self._slices = slices
        self._pool = pool
        self._groups: dict[str, tuple[CellGroup, ...]] = {}
        self._columns = tuple(labels)
        names = [column.name for column in labels]
        self._labels = TableArrays(session, replace(slices.plan, table=table.select_columns(names)))
        self._arrays = {
            column.name: open_cells(session, column.array.path)
            for column in table.variables
            if column.array is not None
        }

    def read_cells(
        self, column: Column, block: Block, cells: Sequence[Indices]
    ) -> Iterator[tuple[CellGroup, Values]]:
        """Read the requested cells of a variable in one block, chunk by chunk.

        Cells are given by their positions along the lookup dimensions. For each chunk, yield its cells and
        their stored values, of shape `(*block, cells)`, with length 1 along dimensions that the variable does
        not have.
        """
        slices, array = self._slices, self._arrays[column.name]
        spans = dict(zip(slices.rest, block, strict=True))
        own = [axis for axis in column.axes if axis in spans]
        order = [own.index(axis) for axis in slices.rest if axis in own]
        shape = [spans[axis].count if axis in own else 1 for axis in slices.rest]

        def find_region(group: CellGroup) -> list[Span]:
            looked = dict(zip(slices.axes, group.region, strict=True))
            return [spans[axis] if axis in spans else _to_span(looked[axis]) for axis in column.axes]

        groups = self._groups.get(column.name)
        if groups is None:  # the same for all blocks
            groups = self._groups[column.name] = tuple(slices.group_cells(column, cells))
        for group, fetched in fetch_ahead(self._pool, lambda group: array.fetch(find_region(group)), groups):
            places = {column.axes.index(axis): at for axis, at in zip(slices.axes, group.places, strict=True)}
            values = array.take(fetched, find_region(group), places)
            yield group, values.transpose(*order, -1).reshape(*shape, -1)

    def read_labels(self, block: Block, times: int) -> list[pa.Array]:
        """Read the coordinates of a block. Each value is repeated the given number of times."""
        slices = self._slices
        spans = dict(zip(slices.rest, block, strict=True))
        whole = tuple(spans.get(axis, Span(0, 1, None)) for axis in range(len(slices.plan.edges)))
        shape = tuple(span.count for span in block)
        return [
            _repeat(column, np.broadcast_to(values.squeeze(slices.axes), shape).reshape(-1), times)
            for column, values in zip(self._columns, self._labels.read(whole), strict=True)
        ]


def _to_span(part: slice) -> Span:
    return Span(part.start, part.stop, None)


def _repeat(column: Column, raw: Values, times: int) -> pa.Array:
    if column.coding is None:
        once = pa.array(raw, type=column.arrow)
    elif column.numeric:
        once = to_arrow(raw.astype(np.float64), None, column.arrow)
    else:
        once = column.coding.to_column(raw)
    return once.take(pa.array(np.repeat(np.arange(len(raw)), times)))
