"""Look up the array cells at the coordinates of rows, and add the current values of these cells to the
rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.query.decode import Mask, to_arrow
from icefloe.query.schema import Column, Role
from icefloe.query.write.blocks import BLOCK, CELL
from icefloe.query.write.target import WriteTarget
from icefloe.session import Session

KEY = "k:"
"""The prefix of the columns that hold a row's coordinates."""
TARGET = "t:"
"""The prefix of the columns that hold the current values of a row's cell."""
UNKNOWN = -1
"""The block and cell number of rows whose coordinates do not exist."""


def find_cells(target: WriteTarget, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add block and cell numbers to rows. Rows with null or unknown coordinates get `UNKNOWN`."""
    keys = [batch.column(KEY + dim) for dim in target.dims]
    usable = np.ones(batch.num_rows, np.bool_)
    for key in keys:
        usable &= np.asarray(key.is_valid().to_numpy(zero_copy_only=False), np.bool_) & ~_find_nan(key)
    blocks = np.full(batch.num_rows, UNKNOWN, np.int64)
    cells = blocks.copy()
    named = pa.RecordBatch.from_arrays([key.filter(pa.array(usable)) for key in keys], names=target.dims)
    placed, where, known = target.place(named)
    rows = np.flatnonzero(usable)[known]
    blocks[rows], cells[rows] = placed[known], where[known]
    columns = [pa.array(blocks), pa.array(cells), *batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=[BLOCK, CELL, *batch.schema.names])


def _find_nan(key: pa.Array) -> Mask:
    if not pa.types.is_floating(key.type):
        return np.zeros(len(key), np.bool_)
    return np.asarray(np.isnan(key.to_numpy(zero_copy_only=False)), np.bool_)


@dataclass(frozen=True, slots=True)
class CellReader:
    """A reader that adds the current cell values to rows before they are written.

    Each task opens its own session.
    """

    target: WriteTarget
    columns: tuple[Column, ...]

    @property
    def reads_variables(self) -> bool:
        """True if current cell values are needed. Rows must then be sorted by block."""
        return any(column.role is Role.VARIABLE for column in self.columns)

    def attach(self, session: Session, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the current values of the matching cells to rows.

        Each chunk is read once if rows are sorted by block.
        """
        columns = [_OpenColumn(session, column) for column in self.columns]
        for batch in batches:
            blocks = batch.column(BLOCK).to_numpy(zero_copy_only=False)
            changes = np.flatnonzero(np.diff(blocks)) + 1 if self.reads_variables else np.zeros(0, int)
            for first, last in pairwise([0, *changes.tolist(), len(blocks)]):
                yield self._attach(columns, batch.slice(first, last - first))

    def _attach(self, columns: list[_OpenColumn], rows: pa.RecordBatch) -> pa.RecordBatch:
        cells = rows.column(CELL).to_numpy(zero_copy_only=False)
        known = np.flatnonzero(cells != UNKNOWN)
        # Rows without a cell get a null index, which results in null values.
        index = pa.array(np.cumsum(cells != UNKNOWN) - 1, mask=cells == UNKNOWN)
        if len(known):
            block = rows.column(BLOCK)[int(known[0])].as_py()
            region, positions = self.target.region(block), np.unravel_index(cells[known], self.target.shape)
            found = [each.read(block, region, positions).take(index) for each in columns]
        else:
            found = [pa.nulls(len(cells), each.column.arrow) for each in columns]
        names = [*rows.schema.names, *(TARGET + each.column.name for each in columns)]
        return pa.RecordBatch.from_arrays([*rows.columns, *found], names=names)


class _OpenColumn:
    """An open table column that caches the values of the last block read."""

    def __init__(self, session: Session, column: Column) -> None:
        import zarr

        self.column = column
        self._array: Any = None
        if column.array is not None:
            self._array = zarr.open_array(session.store, path=column.array.path, mode="r")
        self._block: int | None = None
        self._values: NDArray[Any] | None = None

    def read(self, block: int, region: tuple[slice, ...], positions: tuple[NDArray[Any], ...]) -> pa.Array:
        """Read the column's values at the given cells of a block."""
        column = self.column
        mine = [positions[axis] for axis in column.axes]
        if self._array is None or column.coding is None:
            return pa.array(mine[0].astype(np.int64))
        starts = [0] * len(mine)
        if column.role is Role.VARIABLE:
            own = tuple(region[axis] for axis in column.axes)
            starts = [part.start for part in own]
            if self._block != block:
                self._block, self._values = block, np.asarray(self._array[own])
        elif self._values is None:
            self._values = np.asarray(self._array[...])
        place = tuple(at - start for at, start in zip(mine, starts, strict=True))
        held = np.asarray(self._values)
        raw = np.broadcast_to(held[place], positions[0].shape)
        if column.numeric:
            return pa.array(raw.astype(np.float64))
        return to_arrow(*column.coding.decode(raw), column.arrow)
