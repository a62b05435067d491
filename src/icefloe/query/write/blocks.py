"""Write table rows into arrays block by block. A block contains whole chunks of every variable.

`icefloe.query.write.target` assigns each row to a block and a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.maintenance.statistics.collect import Collected, Collector
from icefloe.query.encode import encode_values, make_invalid_rows_error
from icefloe.query.write.target import Variable, WriteTarget
from icefloe.session import Session

BLOCK = "__block"
CELL = "__cell"
CLAUSE = "__clause"
"""The name of the column that holds the number of the statement clause that produced the row."""


def place_rows(target: WriteTarget, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the coordinate columns of rows with their block and cell numbers.

    Raise an error for unknown coordinates.

    If the target allows it, rows with unknown coordinates are dropped instead.
    """
    blocks, cells, known = target.place(batch)
    if target.drops_unknown:
        batch, blocks, cells = batch.filter(pa.array(known)), blocks[known], cells[known]
    elif not known.all():
        row = int(np.flatnonzero(~known)[0])
        where = ", ".join(f"{dim} {batch.column(dim)[row]}" for dim in target.dims)
        raise make_invalid_rows_error(
            f"the row at {where} appeared after coordinates were collected, because the data frame returns"
            " different rows each time; cache it before writing"
        )
    names = [*([CLAUSE] if target.clauses else []), *(variable.name for variable in target.variables)]
    columns = [pa.array(blocks), pa.array(cells), *(batch.column(name) for name in names)]
    return pa.RecordBatch.from_arrays(columns, names=[BLOCK, CELL, *names])


def write_sorted(
    session: Session, target: WriteTarget, batches: Iterator[pa.RecordBatch]
) -> tuple[Collected, ...]:
    """Write rows that have block and cell numbers and are sorted by block. Return statistics of the written
    chunks."""
    writer = BlockWriter(session, target)
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        blocks = batch.column(0).to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
        for first, last in pairwise(starts):
            part = batch.slice(first, last - first)
            if waiting and part.num_rows and waiting[-1].column(0)[0].as_py() != part.column(0)[0].as_py():
                writer.write(waiting)
                waiting = []
            if part.num_rows:
                waiting.append(part)
    if waiting:
        writer.write(waiting)
    return writer.statistics.finish()


class BlockWriter:
    """A writer that stores rows in arrays, one whole block at a time."""

    def __init__(self, session: Session, target: WriteTarget) -> None:
        import zarr

        self._target = target
        self.statistics = Collector(session)
        store = session.store
        self._arrays: dict[str, Any] = {
            variable.name: zarr.open_array(store, path=variable.path, mode="r+")
            for variable in target.variables
        }

    def write(self, parts: Sequence[pa.RecordBatch]) -> None:
        """Write all rows that belong to one block. Cells without a row keep their values."""
        rows = pa.Table.from_batches(parts).combine_chunks()
        block = int(rows.column(0)[0].as_py())
        region = self._target.region(block)
        cells = rows.column(1).to_numpy()
        self._refuse_duplicates(cells)
        places = self._to_local(cells, region)
        size = int(np.prod([part.stop - part.start for part in region], dtype=np.int64))
        for variable in self._target.variables:
            column, mine = rows.column(variable.name).combine_chunks(), places
            if self._target.clauses:
                setting = [n for n, names in enumerate(self._target.clauses) if variable.name in names]
                kept = np.isin(rows.column(CLAUSE).to_numpy(), setting)
                column, mine = column.filter(pa.array(kept)), tuple(place[kept] for place in places)
            if len(column):
                self._write(variable, region, mine, column, len(column) == size)

    def _refuse_duplicates(self, cells: NDArray[np.int64]) -> None:
        unique, counts = np.unique(cells, return_counts=True)
        if len(unique) == len(cells):
            return
        target = self._target
        positions = np.unravel_index(int(unique[counts > 1][0]), target.shape) if target.shape else ()
        where = ", ".join(
            f"{dim} {lookup.format(int(place))}"
            for dim, lookup, place in zip(target.dims, target.lookups, positions, strict=True)
        )
        raise make_invalid_rows_error(f"two rows have the same coordinates ({where}); drop duplicates")

    def _to_local(self, cells: NDArray[np.int64], region: tuple[slice, ...]) -> tuple[NDArray[np.int64], ...]:
        """Convert cell numbers to positions within the region of a block, per dimension."""
        if not self._target.shape:
            return ()
        positions = np.unravel_index(cells, self._target.shape)
        return tuple(place - part.start for place, part in zip(positions, region, strict=True))

    def _write(
        self,
        variable: Variable,
        region: tuple[slice, ...],
        places: tuple[NDArray[np.int64], ...],
        column: pa.Array,
        whole: bool,
    ) -> None:
        array = self._arrays[variable.name]
        values = encode_values(column, variable.coding, variable.name)
        own = tuple(region[axis] for axis in variable.axes)
        shape = tuple(part.stop - part.start for part in own)
        if whole:
            held = np.empty(shape, values.dtype)
        elif variable.fresh:
            held = np.full(shape, array.fill_value, values.dtype)
        else:
            held = np.asarray(array[own]).astype(values.dtype)
        if held.shape:
            held[tuple(places[axis] for axis in variable.axes)] = values
        else:
            held = values.reshape(())
        array[own] = held
        self.statistics.add(variable.path, own, held)
