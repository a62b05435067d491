"""Build FlatBuffers from plain rows, for the few tables that a small commit writes.

A numpy call takes about a microsecond however short the column is, so building a file of ten tables from
columns with one row would be slow. Here, a table is one `struct.pack`. Tables that do not change between
commits are not built again, but inserted in one piece, as `Blocks`.

Rows have the same form as in `tables.from_rows`: one dict per table, with None or no entry for an absent
field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import I64, encode_text, put_rows
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.layout import make_layout
from icefloe.encoding.flatbuffers.limits import check_size, make_file_head
from icefloe.errors import ErrorKind, FormatError

Row = Mapping[str, Any]

NUMBERS = {"u1": "B", "<u2": "H", "<u4": "I", "<i4": "i", "<u8": "Q"}
"""The `struct` format characters of numpy number types."""

_OFFSET = struct.Struct("<I").pack
_SHORT_AT = struct.Struct("<H").unpack_from
_SIGNED_AT = struct.Struct("<i").unpack_from
_PUT_OFFSET = struct.Struct("<I").pack_into
_UNSET_FIELD: Final = ""
"""A name that no field has. It marks offsets that are set once their target is placed."""
_PADDING = tuple(bytes(length) for length in range(8))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Encoded FlatBuffers tables. All offsets are relative, so that the tables can be inserted into any
    payload.
    """

    buffer: bytes | bytearray
    """The encoded tables. The length is a multiple of 8, and the position must be as well."""
    positions: I64
    """The position of each table in the buffer, in the order of the rows."""
    dropped: int = 0
    """The number of unused tables in the buffer."""
    vtables: Mapping[bytes, int] = dataclass_field(default_factory=dict)
    """The positions of vtables in the buffer, so that further tables can share them."""

    def __len__(self) -> int:
        return len(self.positions)

    def insert(self, row: int, table: fb.TableSchema, values: Row, place: str) -> Blocks:
        """Return a copy of these tables with one more table inserted before a row."""
        return self.upsert([row], [False], table, [values], place)

    def upsert(
        self,
        rows: Sequence[int],
        over: Sequence[bool],
        table: fb.TableSchema,
        values: Sequence[Row],
        place: str,
    ) -> Blocks:
        """Return a copy of these tables with a few tables added, each before a given row or, with `over`, in
        its place.
        """
        builder = _Builder(bytearray(self.buffer), place, dict(self.vtables))
        made = np.array([builder.table(table, each) for each in values], np.int64)
        positions = put_rows(self.positions, rows, over, made)
        return Blocks(builder.finished(), positions, self.dropped + sum(over), builder.vtables)

    def number_position(self, row: int, slot: int) -> int:
        """Return the byte position of a numeric field in the table of a row."""
        position = int(self.positions[row])
        vtable: int = position - _SIGNED_AT(self.buffer, position)[0]
        offset: int = _SHORT_AT(self.buffer, vtable + 4 + 2 * slot)[0]
        return position + offset

    def with_numbers(self, positions: I64, numbers: NDArray[Any]) -> Blocks:
        """Return a copy of these tables in which the numbers at the given byte positions are replaced."""
        buffer = bytearray(self.buffer)
        np.frombuffer(buffer, numbers.dtype)[positions // numbers.itemsize] = numbers
        return Blocks(buffer, self.positions, self.dropped, self.vtables)

    def without(self, rows: Sequence[int]) -> Blocks:
        """Return a copy of these tables without a few rows. The bytes of removed tables remain in the
        buffer.
        """
        positions = np.delete(self.positions, rows) if rows else self.positions
        return Blocks(self.buffer, positions, self.dropped + len(rows), self.vtables)

    def take(self, rows: slice) -> Blocks:
        """Return a slice of these tables. The bytes of all other tables remain in the buffer."""
        positions = self.positions[rows]
        return Blocks(self.buffer, positions, self.dropped + len(self) - len(positions), self.vtables)


def build_row(table: fb.TableSchema, row: Row, place: str) -> bytes:
    """Build a FlatBuffers payload from the row of its root table."""
    builder = _Builder(bytearray(8), place)
    position = builder.table(table, row)
    out = builder.finished()
    check_size(len(out), place)
    out[:8] = make_file_head(position)
    return bytes(out)


def build_blocks(table: fb.TableSchema, rows: Iterable[Row], place: str) -> Blocks:
    """Encode plain rows as FlatBuffers tables that can be inserted into payloads."""
    builder = _Builder(bytearray(), place)
    positions = [builder.table(table, row) for row in rows]
    return Blocks(builder.finished(), np.array(positions, np.int64), vtables=builder.vtables)


class _Plan:
    """A precomputed plan for writing tables with a given set of fields."""

    __slots__ = ("align", "numbers", "pack", "places", "size", "unions", "vtable")

    def __init__(self, table: fb.TableSchema, names: Sequence[str]) -> None:
        layout = make_layout(table, {name: table.fields[name] for name in names}, {})
        entries: list[tuple[int, str, int, str, int]] = []
        for name, field in layout.fields.items():
            at = layout.offsets[name]
            if isinstance(field, fb.Scalar):
                code, default = NUMBERS[field.dtype.str.replace("|", "")], field.default
                entries.append((at, code, field.dtype.itemsize, name, default))
            elif isinstance(field, fb.Struct):
                entries.append((at, f"{field.size}s", field.size, name, 0))
            elif isinstance(field, fb.Variants):
                entries.append((at, "B", 1, _UNSET_FIELD, 0))
                entries.append((layout.offsets[f"{name} value"], "I", 4, _UNSET_FIELD, 0))
            else:
                entries.append((at, "I", 4, _UNSET_FIELD, 0))
        entries.sort()
        code, end = "<i", 4
        for at, letters, size, _, _ in entries:
            code += "x" * (at - end) + letters
            end = at + size
        even = -(-end // 2) * 2  # the vtable follows the first table that needs it
        packer = struct.Struct(code + "x" * (even - end))
        self.pack = packer.pack
        self.size = packer.size
        self.align = layout.align
        self.vtable = layout.vtable
        self.numbers = [(name, default) for _, _, _, name, default in entries]
        """The numbers in the order in which they are packed, with their defaults."""
        self.places = [
            (name, _choose_placer(field), layout.offsets[name])
            for name, field in layout.fields.items()
            if not isinstance(field, fb.Scalar | fb.Struct | fb.Variants)
        ]
        """For each value that the table points to, the function that places it and the position of its
        offset.
        """
        self.unions = [
            (name, field.tables, layout.offsets[name], layout.offsets[f"{name} value"])
            for name, field in layout.fields.items()
            if isinstance(field, fb.Variants)
        ]


def _make_plan(table: fb.TableSchema, key: tuple[str, ...]) -> _Plan:
    names = [name for name, field in table.fields.items() if name in key or isinstance(field, fb.Scalar)]
    missing = next((name for name, f in table.fields.items() if f.required and name not in names), None)
    if missing is not None:
        raise FormatError(f"{table.name}.{missing} is required but missing", kind=ErrorKind.SERIALIZATION)
    plan = table.layouts[key] = _Plan(table, names)
    return plan


class _Builder:
    __slots__ = ("out", "place", "vtables")

    def __init__(self, out: bytearray, place: str, vtables: dict[bytes, int] | None = None) -> None:
        self.out = out
        self.place = place
        self.vtables = {} if vtables is None else vtables

    def finished(self) -> bytearray:
        """Return all placed values as bytes, padded to a multiple of 8."""
        self.out += _PADDING[-len(self.out) % 8]
        return self.out

    def table(self, table: fb.TableSchema, row: Row) -> int:
        """Place a table and all of its children, and return its position."""
        out, get = self.out, row.get
        key = tuple([name for name in table.optional if get(name) is not None])
        plan: _Plan = table.layouts.get(key) or _make_plan(table, key)
        out += _PADDING[-len(out) % plan.align]
        position = len(out)
        values = [default if (value := get(name)) is None else value for name, default in plan.numbers]
        vtable = self.vtables.get(plan.vtable)
        try:
            if vtable is None:
                self.vtables[plan.vtable] = position + plan.size
                out += plan.pack(-plan.size, *values) + plan.vtable
            else:
                out += plan.pack(position - vtable, *values)
        except struct.error as error:
            self.refuse(table.name, error)
        for name, place, offset in plan.places:
            at = position + offset
            _PUT_OFFSET(out, at, place(self, row[name]) - at)
        for name, tables, kind_at, value_at in plan.unions:
            kind, below = row[name]
            out[position + kind_at] = kind
            at = position + value_at
            _PUT_OFFSET(out, at, self.table(tables[kind], below) - at)
        return position

    def refuse(self, what: str, error: struct.error) -> NoReturn:
        """Raise the error for a number that is out of range for its field."""
        raise FormatError(f"{self.place}: {what}: {error}", kind=ErrorKind.SERIALIZATION) from None

    def text(self, text: str) -> int:
        """Place a string, terminated by a null byte."""
        out, data = self.out, encode_text(text)
        out += _PADDING[-len(out) % 4]
        position = len(out)
        out += _OFFSET(len(data)) + data + _PADDING[4 - len(data) % 4]
        return position

    def blob(self, data: bytes) -> int:
        """Place a byte string after its length."""
        out = self.out
        out += _PADDING[-len(out) % 4]
        position = len(out)
        out += _OFFSET(len(data)) + data + _PADDING[-len(data) % 4]
        return position

    def vector(self, dtype: np.dtype[Any], align: int, value: Any) -> int:
        """Place a vector of numbers or structs."""
        out = self.out
        try:
            data = _items(dtype, value) if len(value) else b""
        except struct.error as error:
            self.refuse("a vector", error)
        out += _PADDING[-(len(out) + 4) % align]  # the items must be aligned, not their number
        position = len(out)
        out += _OFFSET(len(value)) + data
        return position

    def each(self, items: Sequence[Any], place: Callable[[Any], int]) -> int:
        """Place a vector of offsets and their targets."""
        out = self.out
        out += _PADDING[-len(out) % 4]
        position = len(out)
        out += _OFFSET(len(items)) + bytes(4 * len(items))
        at = position
        for item in items:
            at += 4
            _PUT_OFFSET(out, at, place(item) - at)
        return position

    def tables(self, table: fb.TableSchema, value: Sequence[Row] | Blocks) -> int:
        """Place a vector of tables."""
        if isinstance(value, Blocks):
            return self.blocks(value)
        return self.each(value, partial(self.table, table))

    def blocks(self, blocks: Blocks) -> int:
        """Place a vector of encoded tables."""
        out, count = self.out, len(blocks)
        out += _PADDING[-len(out) % 4]
        position = len(out)
        base = -(-(position + 4 + 4 * count) // 8) * 8
        slots = np.arange(position + 4, position + 4 + 4 * count, 4, dtype=np.int64)
        out += _OFFSET(count) + (blocks.positions + base - slots).astype("<u4").tobytes()
        out += _PADDING[base - len(out)]
        out += blocks.buffer
        return position


def _choose_placer(field: fb.Field) -> Callable[[_Builder, Any], int]:
    """Return the function that places the value of a field."""
    match field:
        case fb.Bytes(text=True):
            return _Builder.text
        case fb.Bytes():
            return _Builder.blob
        case fb.Vector(dtype=dtype, align=align):
            return lambda builder, value: builder.vector(dtype, max(align, 4), value)
        case fb.Children(table=table):
            return lambda builder, value: builder.tables(table, value)
        case fb.Texts():
            return lambda builder, value: builder.each(value, builder.text)
        case fb.Child(table=table):
            return lambda builder, value: builder.table(table, value)
    raise TypeError(f"cannot write {field!r}")


def _items(dtype: np.dtype[Any], value: Any) -> bytes:
    """Encode the items of a vector as bytes."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype).tobytes()
    code = NUMBERS.get(dtype.str)
    if code is not None:
        return struct.pack(f"<{len(value)}{code}", *value)
    if dtype.names is None:
        return b"".join(value)
    return np.array(list(map(tuple, value)), dtype).tobytes()
