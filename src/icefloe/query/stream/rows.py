"""Find the table rows that differ between two versions. Rows are matched by coordinate label.

Chunk references determine which blocks are read. A block whose chunks have the same fingerprints at the same
labels has no changed rows. In all other blocks, the decoded values of both versions are compared. Moved,
rechunked and rewritten content is reported only if a value differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.core.fingerprints import fingerprint_grid
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.query.decode import Values
from icefloe.query.scan.plan import Block, ScanPlan, Span, TableScan, scan_table
from icefloe.query.scan.read import TableArrays, make_batches, read_partition
from icefloe.query.scan.selection import Selection
from icefloe.query.schema import ArrayInfo, ArrayTable, Column, Role, find_tables
from icefloe.session import Session

CHANGE: Final = "_change"
"""The name of the column that holds the kind of change: `written` or `removed`."""
WRITTEN: Final = "written"
REMOVED: Final = "removed"

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


def find_table(session: Session, group: str, columns: Sequence[str], *, every_column: bool) -> ArrayTable:
    """Return the schema of the table whose changed rows a stream emits."""
    try:
        table = find_tables(session, group).choose(columns)
        whole = find_tables(session, group).choose(None) if every_column else table
    except (InvalidInputError, NodeNotFoundError) as problem:
        raise _make_schema_error(session, str(problem.args[0])) from problem
    added = sorted({column.name for column in whole.columns} - set(columns))
    if added:
        raise _make_schema_error(session, f"the table has the new columns {', '.join(added)}")
    return table.select_columns(columns)


def _make_schema_error(session: Session, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"the schema of the table has changed in snapshot {session.snapshot_id}, and a running stream keeps"
        f" the schema that it started with: {problem}. Start a new query with a new checkpoint",
        kind=ErrorKind.INVALID_ARRAY_METADATA,
    )


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The row changes of a table between two versions. Rows are matched by coordinate label."""

    old: TableScan | None
    """A scan of the earlier version; None if the table did not exist then."""
    new: TableScan
    matches: tuple[Indices, ...]
    """For each dimension, the position in the earlier version of each label in the later version; -1 for new
    labels.
    """

    @staticmethod
    def between(old: TableScan | None, new: TableScan) -> TableChanges:
        """Match the rows of two versions of a table by coordinate label."""
        if old is None:
            return TableChanges(None, new, tuple(np.full(size, -1) for size in new.table.shape))
        pairs = [(_read_labels(old, dim), _read_labels(new, dim)) for dim in new.table.dims]
        return TableChanges(old, new, tuple(match_labels(*pair) for pair in pairs))

    def find_changed_blocks(self, plan: ScanPlan) -> Indices:
        """Return the numbers of the blocks in the later version that may contain changed rows."""
        shape = tuple(len(edges) for edges in plan.edges)
        same = np.full(shape, self.old is not None)
        if self.old is not None:
            olds = {column.name: column.array for column in self.old.table.columns}
            for column in self.new.table.columns:
                before = olds[column.name]
                if column.role is not Role.DIMENSION and column.array is not None and before is not None:
                    same &= self._compare_chunks(before, column.array, column, plan)
            for axis, found in enumerate(self.matches):
                starts, stops = plan.edges[axis].T
                known = np.concatenate([[0], np.cumsum(found >= 0)])
                whole = known[stops] - known[starts] == stops - starts
                same &= whole.reshape([-1 if each == axis else 1 for each in range(len(shape))])
        return np.flatnonzero(~same.ravel())

    def _compare_chunks(self, before: ArrayInfo, after: ArrayInfo, column: Column, plan: ScanPlan) -> Mask:
        """Return a mask of the blocks in which an array has the same chunks at the same labels in both
        versions."""
        assert self.old is not None  # noqa: S101 - the caller has checked
        spaces = self.old.session._workspace, self.new.session._workspace
        if _describe_meaning(spaces[0], before) != _describe_meaning(spaces[1], after):
            return np.zeros((1,) * len(plan.edges), bool)
        grids = [
            fingerprint_grid(space.refs(space.array(info.path)), [len(edges) - 1 for edges in info.edges])
            for space, info in zip(spaces, (before, after), strict=True)
        ]
        if not grids[0].size:
            return np.zeros((1,) * len(plan.edges), bool)
        moves = [
            _match_chunks(before.edges[own], after.edges[own], self.matches[axis])
            for own, axis in enumerate(column.axes)
        ]
        same = (grids[1] == grids[0][np.ix_(*moves)]).all(axis=-1) if moves else (grids[0] == grids[1]).all()
        known = np.asarray(same)
        for own, move in enumerate(moves):
            known = known & (move >= 0).reshape([-1 if each == own else 1 for each in range(len(moves))])
        for own, axis in enumerate(column.axes):
            first = np.searchsorted(after.edges[own], plan.edges[axis][:, 0])
            known = np.logical_and.reduceat(known, first, axis=own) if len(first) else known
        order = sorted(range(len(column.axes)), key=column.axes.__getitem__)
        sizes = dict(zip(column.axes, known.shape, strict=True))
        return known.transpose(order).reshape([sizes.get(axis, 1) for axis in range(len(plan.edges))])

    def read_written(self, plan: ScanPlan, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Read the rows in the given blocks that are new or whose values differ from the earlier version."""
        news = TableArrays(self.new.session, plan)
        olds = None if self.old is None else TableArrays(self.old.session, self.old.plan())
        for number in numbers:
            block = plan.block(int(number))
            size = int(np.prod([span.count for span in block], dtype=np.int64))
            rows = pa.Table.from_batches(make_batches(plan, block, news.read(block), max(size, 1)))
            same = np.zeros(size, bool) if olds is None else self._find_equal_rows(olds, block, rows)
            for batch in rows.filter(pa.array(~same)).to_batches(max_chunksize=self.new.batch_rows):
                yield add_change(batch, WRITTEN)

    def _find_equal_rows(self, olds: TableArrays, block: Block, rows: pa.Table) -> Mask:
        """Return a mask of the rows in a block that have the same values in the earlier version."""
        assert self.old is not None  # noqa: S101 - the caller has checked
        same = np.zeros(tuple(span.count for span in block), bool)
        chosen = [_pair_positions(self.matches[axis], span) for axis, span in enumerate(block)]
        if not all(len(positions) for positions, _ in chosen):
            return same.ravel()
        before = tuple(Span(int(old[0]), int(old[-1]) + 1, old) for _, old in chosen)
        cells = np.arange(same.size).reshape(same.shape)[np.ix_(*(positions for positions, _ in chosen))]
        plan = self.old.plan()
        values: Sequence[Values] = olds.read(before)
        earlier = pa.Table.from_batches(make_batches(plan, before, values, max(cells.size, 1)))
        later = rows.take(pa.array(cells.ravel()))
        equal = np.ones(cells.size, bool)
        for name in earlier.column_names:
            equal &= find_equal_values(earlier.column(name), later.column(name))
        same.reshape(-1)[cells.ravel()] = equal
        return same.ravel()

    def removed(self) -> list[TableScan]:
        """Return scans of the earlier version that together cover each removed row exactly once."""
        if self.old is None:
            return []
        table = self.old.table
        labels = [column.name for column in table.columns if column.role is not Role.VARIABLE]
        gone = [
            np.setdiff1d(np.arange(size), found)
            for size, found in zip(table.shape, self.matches, strict=True)
        ]
        scans = []
        for axis, lost in enumerate(gone):
            # Earlier dimensions keep only labels that still exist, so that no row occurs twice.
            kept = [np.setdiff1d(np.arange(table.shape[each]), gone[each]) for each in range(axis)]
            rest = [np.arange(size) for size in table.shape[axis + 1 :]]
            indices = (*kept, lost, *rest)
            if all(len(each) for each in indices):
                scan = scan_table(self.old.session, table.select_columns(labels))
                room = self.new.partition_bytes
                scans.append(replace(scan, selection=Selection(indices), partition_bytes=room))
        return scans

    def read_removed(self, scan: TableScan, partition: int) -> Iterator[pa.RecordBatch]:
        """Read the coordinates of removed rows. Their variables are null."""
        schema = self.new.table.schema
        for batch in read_partition(scan.session, scan.plan(), partition, self.new.batch_rows):
            names = batch.schema.names
            columns = [
                batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield add_change(pa.RecordBatch.from_arrays(columns, schema=schema), REMOVED)


def match_labels(old: Values, new: Values) -> Indices:
    """Return the position of each new label among the old labels; -1 for labels that did not exist.

    The nth occurrence of a duplicate label matches its nth occurrence in the other version.
    """
    import pandas as pd  # type: ignore[import-untyped]

    keys = [
        pd.MultiIndex.from_arrays([labels, pd.Series(labels).groupby(labels).cumcount().to_numpy()])
        if len(np.unique(labels)) < len(labels)
        else pd.MultiIndex.from_arrays([labels, np.zeros(len(labels), np.int64)])
        for labels in (_to_plain(old), _to_plain(new))
    ]
    return np.asarray(keys[0].get_indexer(keys[1]), np.int64)


def _to_plain(labels: Values) -> Values:
    return labels.astype(object) if labels.dtype.kind in "UTS" else labels


def _read_labels(scan: TableScan, dim: str) -> Values:
    """Return the labels along a dimension: its coordinate values, or its indices if it has no coordinate."""
    column = next(
        column
        for column in scan.table.columns
        if column.role is Role.DIMENSION and column.axes == (scan.table.dims.index(dim),)
    )
    values, missing = scan.coordinates.values(column)
    if missing is None:
        return values
    labels = values.astype(object)
    labels[missing] = None
    return labels


def _match_chunks(before: Indices, after: Indices, matches: Indices) -> Indices:
    """Return, for each chunk along a dimension, the chunk of the earlier version with the same labels; -1 if
    there is none."""
    starts, stops = after[:-1], after[1:]
    first = matches[starts]
    # If neighbouring labels in a chunk are still neighbours, all of its labels moved by the same distance.
    breaks = np.concatenate([[0], np.cumsum(np.diff(matches) != 1)])
    together = breaks[stops - 1] == breaks[starts]
    chunk = np.searchsorted(before, first, side="right") - 1
    aligned = (first >= 0) & together & (before[np.clip(chunk, 0, None)] == first)
    fits = np.zeros(len(first), bool)
    fits[aligned] = before[chunk[aligned] + 1] - first[aligned] >= (stops - starts)[aligned]
    return np.where(fits, chunk, -1)


def _describe_meaning(workspace: Workspace, info: ArrayInfo) -> str:
    """Serialize the metadata that determines how an array's chunks are decoded, for comparison between
    versions.
    """
    document = json.loads(workspace.array(info.path).user_data)
    return json.dumps({key: value for key, value in document.items() if key != "shape"}, sort_keys=True)


def _pair_positions(matches: Indices, span: Span) -> tuple[Indices, Indices]:
    """Return the positions in a span whose labels exist in the earlier version, and their positions there, in
    ascending order."""
    found = matches[span.start : span.stop]
    positions = np.flatnonzero(found >= 0)
    order = np.argsort(found[positions], kind="stable")
    return positions[order], found[positions][order]


def find_equal_values(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Mask:
    """Compare two columns row by row. Return a mask of the rows with equal values.

    Missing values compare equal.
    """
    if pa.types.is_struct(one.type):  # complex numbers are structs, which Arrow does not compare
        same = pc.equal(pc.is_null(one), pc.is_null(other))
        fields = range(one.type.num_fields)
        parts = [find_equal_values(pc.struct_field(one, [n]), pc.struct_field(other, [n])) for n in fields]
        return np.asarray(np.logical_and.reduce([np.asarray(same.to_numpy(), bool), *parts]), bool)
    equal = pc.fill_null(pc.equal(one, other), False)
    same = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(one.type):
        nans = pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False))
        same = pc.or_(same, nans)
    return np.asarray(same.to_numpy(), bool)


def add_change(batch: pa.RecordBatch, change: str) -> pa.RecordBatch:
    """Add the column that holds the kind of change to a record batch."""
    kinds = pa.repeat(pa.scalar(change, pa.string()), batch.num_rows)
    schema = batch.schema.append(pa.field(CHANGE, pa.string()))
    return pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=schema)
