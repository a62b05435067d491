"""Read vectors of FlatBuffers tables into columns.

The tables of a block of rows are grouped by vtable, so that each field has a single position per group and
its values are read at once. Any valid layout is accepted: shared or separate vtables, before or after their
tables, longer or shorter than the schema, fields in any order, and children shared between parents.

Nothing in a payload is trusted. Every position is checked before use. All offsets except vtable offsets point
forward, so reading terminates. Children with several parents are counted once per parent against a `Budget`,
so time and memory are proportional to the payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import (
    I64,
    Blobs,
    Ragged,
    concat,
    expand_ranges,
    make_constant,
    to_splits,
    view_windows,
)
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.tables import PRESENT, Tables, Union, make_absent
from icefloe.errors import ErrorKind, FormatError

NUMBERS: Final = frozenset(map(np.dtype, ("u1", "<u2", "<u4", "<i4", "<u8")))
OFFSET = np.dtype("<u4")
SIGNED = np.dtype("<i4")
SHORT = np.dtype("<u2")
SMALL_ITEMS = 1 << 16
SMALL_BYTES = 16 << 20
PLAIN_RATIO = 32
SHARED_RATIO = 64
"""The maximum total size of byte strings, counted once per reference, as a multiple of the payload size. A
reference itself takes more than 30 bytes.
"""
ROWS = 1 << 14
"""The number of tables to read at a time, so that their field positions fit into the processor cache."""
FEW_VTABLES = 8
"""Up to this many vtables per block are distinguished by comparison instead of sorting."""

Where = NDArray[np.bool_] | None
"""The rows of a block that have a field; None if all rows have it."""


class _Words(dict[np.dtype[Any], NDArray[Any]]):
    """Views of a buffer as numbers of each type. They are created on first use, because most small files need
    none.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data

    def __missing__(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        data, width = self._data, dtype.itemsize
        self[dtype] = words = data[: len(data) // width * width].view(dtype)
        return words


class Payload:
    """The bytes of one FlatBuffers payload. Numbers are read only at checked positions."""

    __slots__ = ("data", "place", "size", "words")

    def __init__(self, data: bytes | bytearray | memoryview | NDArray[np.uint8], place: str) -> None:
        self.data: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.size = len(self.data)
        self.place = place
        self.words: Mapping[np.dtype[Any], NDArray[Any]] = _Words(self.data)

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        """Raise FormatError with the name of the file and the offset of the damaged byte."""
        where = "" if at is None else f" (byte {at} of {self.size})"
        raise FormatError(f"{self.place}: {what}{where}", kind=ErrorKind.INVALID_FILE_FORMAT)

    def check(self, positions: I64, size: int, align: int, what: str) -> None:
        """Raise FormatError if any position is outside the payload or misaligned."""
        if not len(positions):
            return
        if len(positions) == 1:  # small files have many such columns: avoid reductions
            low = high = bits = int(positions[0])
        else:
            low, high = int(positions.min()), int(positions.max())
            bits = int(np.bitwise_or.reduce(positions)) if align > 1 else 0
        if low < 0 or high > self.size - size:
            self.fail(f"{what} points outside the file", low if low < 0 else high)
        if bits & (align - 1):
            bad = int(positions[np.flatnonzero(positions & (align - 1))[0]])
            self.fail(f"{what} is not aligned to {align} bytes", bad)

    def numbers(self, dtype: np.dtype[Any], positions: I64, what: str) -> NDArray[Any]:
        """Read the numbers at the given positions as a column."""
        width = dtype.itemsize
        self.check(positions, width, width, what)
        column: NDArray[Any] = self.words[dtype].take(positions >> (width.bit_length() - 1))
        return column

    def targets(self, positions: I64, what: str) -> I64:
        """Read the offsets at the given positions, and return the positions that they point to."""
        targets: I64 = positions + self.numbers(OFFSET, positions, what)
        return targets

    def vectors(self, positions: I64, item: int, align: int, what: str) -> tuple[I64, I64]:
        """Follow the offsets at the given positions, and return the starts and lengths of the vectors
        there.
        """
        at = self.targets(positions, what)
        lengths = self.numbers(OFFSET, at, what).astype(np.int64)
        starts = at + 4
        if len(starts):
            ends = starts + lengths * item
            if (int(ends[0]) if len(ends) == 1 else int(ends.max())) > self.size:
                worst = int(ends.argmax())
                self.fail(f"{what} has {int(lengths[worst])} items, more than the file holds", int(at[worst]))
            if align > 4 and ((starts & (align - 1)) != 0)[lengths > 0].any():
                self.fail(f"{what} is not aligned to {align} bytes", int(starts[0]))
        return starts, lengths

    @staticmethod
    def parts(starts: I64, lengths: I64, size: int) -> Iterator[I64]:
        """Yield the positions of all items of many vectors, in parts of limited size."""
        if len(starts) == 1:
            start = int(starts[0])
            end = start + int(lengths[0]) * size
            for first in range(start, end, ROWS * size):
                yield np.arange(first, min(first + ROWS * size, end), size, dtype=np.int64)
            return
        positions = Payload.items(starts, lengths, size)
        for row in range(0, len(positions), ROWS):
            yield positions[row : row + ROWS]

    @staticmethod
    def items(starts: I64, lengths: I64, size: int) -> I64:
        """Return the positions of all items of many vectors."""
        total = count_items(lengths)
        if len(starts) == 1:
            start = int(starts[0])
            return np.arange(start, start + total * size, size, dtype=np.int64)
        return expand_ranges(np.zeros_like(starts), lengths) * size + np.repeat(starts, lengths)


class Budget:
    """The budget for reading one FlatBuffers payload: the maximum number of items and bytes.

    A shared part counts each time it is read.


    """

    __slots__ = ("_items", "_payload", "_plain", "_shared")

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._items = 2 * payload.size + SMALL_ITEMS
        self._plain = max(PLAIN_RATIO * payload.size, SMALL_BYTES)
        self._shared = max(SHARED_RATIO * payload.size, SMALL_BYTES)

    def items(self, lengths: I64, what: str) -> None:
        """Subtract vector items from the budget; raise FormatError if it is exceeded."""
        self._items -= count_items(lengths)
        if self._items < 0:
            self._payload.fail(f"{what} has more items than the file has bytes")

    def blobs(self, lengths: I64, shared: bool, what: str) -> None:
        """Subtract byte strings from the budget; raise FormatError if it is exceeded."""
        if shared:
            self._shared -= count_items(lengths)
        else:
            self._plain -= count_items(lengths)
        if min(self._shared, self._plain) < 0:
            self._payload.fail(f"{what} repeats its bytes too often for the size of the file")


def read_root(payload: Payload, table: fb.TableSchema) -> Tables:
    """Read the root table of a FlatBuffers payload, including all of its children, as columns with one
    row.
    """
    return read_tables(payload, table, find_root(payload, table))


def find_root(payload: Payload, table: fb.TableSchema) -> I64:
    """Return the position of the root table, as a column with one row."""
    if payload.size < 8:
        payload.fail(f"{payload.size} bytes are too few for a {table.name}")
    return payload.targets(np.zeros(1, np.int64), f"the offset of the root {table.name}")


def read_tables(
    payload: Payload, table: fb.TableSchema, positions: NDArray[Any], budget: Budget | None = None
) -> Tables:
    """Read the FlatBuffers tables at the given positions as columns."""
    if not len(positions):
        return make_no_tables(table)
    budget = budget or Budget(payload)
    blocks = [
        _read_block(payload, table, positions[start : start + ROWS].astype(np.int64), budget)
        for start in range(0, len(positions), ROWS)
    ]
    return _concat_blocks(blocks)


def make_no_tables(table: fb.TableSchema) -> Tables:
    """Return empty columns, for a vector without tables."""
    scalars = {name: np.zeros(0, f.dtype) for name, f in table.fields.items() if isinstance(f, fb.Scalar)}
    return Tables(0, scalars, {})


def count_items(lengths: I64) -> int:
    """Count the items of many FlatBuffers vectors."""
    return int(lengths[0]) if len(lengths) == 1 else int(lengths.sum())


def _concat_blocks(blocks: list[Tables]) -> Tables:
    """Concatenate blocks field by field, and release each block's columns as soon as they are copied."""
    if len(blocks) == 1:
        return blocks[0]
    loose = [dict(block.columns) for block in blocks]
    likes = {name: column for block in blocks for name, column in block.columns.items()}
    present = {}
    for name in likes:
        mask = np.concatenate([block.has(name) for block in blocks])
        if not mask.all():
            present[name] = mask
    counts = [len(block) for block in blocks]
    blocks.clear()
    columns = {}
    for name in list(likes):
        like = likes.pop(name)
        parts = [
            c.pop(name) if name in c else make_absent(like, n) for c, n in zip(loose, counts, strict=True)
        ]
        columns[name] = concat(parts)
    return Tables(sum(counts), columns, present)


def _read_block(payload: Payload, table: fb.TableSchema, rows: I64, budget: Budget) -> Tables:
    vtables = VTables(payload, table, rows)
    columns: dict[str, Any] = {}
    present: dict[str, NDArray[np.bool_]] = {}
    for name, field in table.fields.items():
        what = f"{table.name}.{name}"
        positions, where = vtables.locate(field.slot)
        if positions is None:
            if field.required and len(rows):
                payload.fail(f"{what} is missing", int(rows[0]))
            if isinstance(field, fb.Scalar):
                columns[name] = make_constant(field.default, len(rows), field.dtype)
            continue
        if where is not None and field.required:
            payload.fail(f"{what} is missing", int(rows[np.flatnonzero(~where)[0]]))
        if isinstance(field, fb.Variants):
            column, where = _read_union(payload, field, vtables, positions, where, what, budget)
        else:
            column = _spread_to_rows(_read_column(payload, field, positions, what, budget), where, field)
        columns[name] = column
        if where is not None:
            present[name] = where
    return Tables(len(rows), columns, present)


def _read_column(payload: Payload, field: fb.Field, positions: I64, what: str, budget: Budget) -> Any:
    """Read a field as a column, only for the rows that have it."""
    match field:
        case fb.Scalar(dtype=dtype):
            return payload.numbers(dtype, positions, what)
        case fb.Struct(size=size):
            payload.check(positions, size, 1, what)
            return view_windows(payload.data, size)[positions].view(np.uint8).reshape(-1, size)
        case fb.Bytes(shared=shared):
            return _read_blobs(payload, positions, what, budget, shared)
        case fb.Vector(dtype=dtype, align=align):
            return _read_vectors(payload, dtype, align, positions, what, budget)
        case fb.Texts():
            starts, lengths = payload.vectors(positions, 4, 4, what)
            budget.items(lengths, what)
            texts = _read_blobs(payload, payload.items(starts, lengths, 4), what, budget)
            return Ragged(texts, to_splits(lengths))
        case fb.Children(table=table):
            starts, lengths = payload.vectors(positions, 4, 4, what)
            budget.items(lengths, what)
            blocks = [
                _read_block(payload, table, payload.targets(part, what), budget)
                for part in payload.parts(starts, lengths, 4)
            ]
            return Ragged(_concat_blocks(blocks) if blocks else make_no_tables(table), to_splits(lengths))
        case fb.Child(table=table):
            tables = read_tables(payload, table, payload.targets(positions, what), budget)
            return Union(np.full(len(positions), PRESENT, np.uint8), {PRESENT: tables})
    raise TypeError(f"cannot read {field!r}")


def _read_blobs(payload: Payload, positions: I64, what: str, budget: Budget, shared: bool = False) -> Blobs:
    starts, lengths = payload.vectors(positions, 1, 1, what)
    budget.blobs(lengths, shared, what)
    return Blobs(payload.data, starts, lengths, payload.place)


def _read_vectors(
    payload: Payload, dtype: np.dtype[Any], align: int, positions: I64, what: str, budget: Budget
) -> Ragged:
    starts, lengths = payload.vectors(positions, dtype.itemsize, align, what)
    budget.items(lengths, what)
    width = int(lengths[0]) if len(lengths) else 0
    if dtype in NUMBERS and width and (lengths == width).all():
        # All have the same length, like coordinates: read one column per position in the vector.
        rectangle = np.empty((len(starts), width), dtype)
        words, first = payload.words[dtype], starts >> (dtype.itemsize.bit_length() - 1)
        for place in range(width):
            rectangle[:, place] = words[place:].take(first)
        return Ragged(rectangle.reshape(-1), np.arange(0, rectangle.size + 1, width, dtype=np.int64))
    at = payload.items(starts, lengths, dtype.itemsize)
    return Ragged(view_windows(payload.data, dtype.itemsize)[at].view(dtype), to_splits(lengths))


def _read_union(
    payload: Payload,
    field: fb.Variants,
    vtables: VTables,
    types: I64,
    where: Where,
    what: str,
    budget: Budget,
) -> tuple[Union, Where]:
    values, has_value = vtables.locate(field.slot + 1)
    kinds = _spread_to_rows(payload.numbers(np.dtype("u1"), types, what), where, field)
    there = kinds != 0
    if values is None:
        values, has_value = np.zeros(0, np.int64), np.zeros(len(kinds), np.bool_)
    if not np.array_equal(there, np.ones(len(kinds), np.bool_) if has_value is None else has_value):
        payload.fail(f"{what} has a type without a value or a value without a type")
    if field.required and not there.all():
        payload.fail(f"{what} is missing")
    targets = _spread_to_rows(payload.targets(values, what), has_value, field)
    found = np.unique(kinds[there]).tolist()
    unknown = [kind for kind in found if kind not in field.tables]
    if unknown:
        payload.fail(f"{what} is of unknown type {unknown[0]}")
    tables = {
        kind: read_tables(payload, field.tables[kind], targets[kinds == kind], budget) for kind in found
    }
    return Union(kinds, tables), None if there.all() else there


def _spread_to_rows(column: Any, where: Where, field: fb.Field) -> Any:
    """Expand a column of the rows that have a field to all rows."""
    if where is None:
        return column
    if isinstance(column, np.ndarray):
        default = field.default if isinstance(field, fb.Scalar) else 0
        full = np.full((len(where), *column.shape[1:]), default, column.dtype)
        full[where] = column
        return full
    rows = where.cumsum() - 1
    if isinstance(column, Blobs):
        starts, lengths = (
            _spread_to_rows(column.starts, where, field),
            _spread_to_rows(column.lengths, where, field),
        )
        return Blobs(column.buffer, starts, lengths, column.place)
    if isinstance(column, Ragged):
        lengths = np.where(where, column.lengths[np.maximum(rows, 0)], 0)
        return Ragged(column.items, to_splits(lengths))
    return Union(_spread_to_rows(column.kinds, where, field), column.tables)


class VTables:
    """The vtables of a block of FlatBuffers tables, and the position of each field in the tables."""

    __slots__ = ("distinct", "group", "payload", "rows", "sizes")

    def __init__(self, payload: Payload, table: fb.TableSchema, rows: I64) -> None:
        what = f"the vtable of {table.name}"
        vtables = rows - payload.numbers(SIGNED, rows, f"a {table.name}")
        self.payload = payload
        self.rows = rows
        self.distinct, self.group = _find_distinct(vtables)
        self.sizes = payload.numbers(SHORT, self.distinct, what).astype(np.int64)
        payload.check(self.distinct + self.sizes, 0, 2, what)
        if len(self.sizes) and int(self.sizes.min()) < 4:
            payload.fail(f"{what} is shorter than its head", int(self.distinct[self.sizes.argmin()]))

    def locate(self, slot: int) -> tuple[I64 | None, Where]:
        """Return the rows that have a field, and its position in each of them; None if no row has it."""
        entry = 4 + 2 * slot
        if self.group is None:
            if int(self.sizes[0]) <= entry:
                return None, None
            offset = self.payload.words[SHORT][(int(self.distinct[0]) + entry) >> 1]
            return (self.rows + offset, None) if offset else (None, None)
        known = self.sizes > entry
        offsets = np.zeros(len(self.sizes), np.int64)
        offsets[known] = self.payload.words[SHORT][(self.distinct[known] + entry) >> 1]
        if not offsets.any():
            return None, None
        if offsets.all():
            first = offsets[0]
            return self.rows + (first if (offsets == first).all() else offsets[self.group]), None
        where = (offsets != 0)[self.group]
        return self.rows[where] + offsets[self.group[where]], where


def _find_distinct(vtables: I64) -> tuple[I64, NDArray[Any] | None]:
    """Return the distinct values, and the index of each row's value (None if there is only one distinct
    value).
    """
    if len(vtables) == 1:
        return vtables, None
    group = np.zeros(len(vtables), np.uint8)
    found = [vtables[0]]
    rest = np.flatnonzero(vtables != vtables[0])
    while len(rest) and len(found) < FEW_VTABLES:
        value = vtables[rest[0]]
        same = vtables[rest] == value
        group[rest[same]] = len(found)
        found.append(value)
        rest = rest[~same]
    if len(rest):
        return np.unique(vtables, return_inverse=True)
    return np.array(found), None if len(found) == 1 else group
