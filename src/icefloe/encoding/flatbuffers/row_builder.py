"""Builds FlatBuffers from plain rows: the few tables that a small commit writes.

A numpy call takes about a microsecond however short the column, so a file of ten tables would spend most of
its time on columns of one row. Here a table is one `struct.pack`. Many tables that do not change from one
commit to the next are not built again: they go along as `Blocks`, in one piece.

Rows are those of `tables.from_rows`: a dict per table, None or nothing for an absent field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np

from icefloe.encoding.columns import I64, encode_text
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.layout import layout_of
from icefloe.encoding.flatbuffers.limits import check_size, file_head
from icefloe.errors import ErrorKind, FormatError

Row = Mapping[str, Any]

NUMBERS = {"u1": "B", "<u2": "H", "<u4": "I", "<i4": "i", "<u8": "Q"}
"""What numpy and `struct` call the same numbers."""

_OFFSET = struct.Struct("<I")
_PADDING = tuple(bytes(length) for length in range(8))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Tables that were built before: all offsets are relative, so they can be put down anywhere."""

    buffer: bytes
    """A multiple of 8 bytes, to stand at a multiple of 8."""
    positions: I64
    """Of each table in the buffer, in the order of the rows."""
    dropped: int = 0
    """How many tables stand in the buffer and are of no use any more."""
    vtables: Mapping[bytes, int] = dataclass_field(default_factory=dict)
    """Where vtables stand in the buffer, for tables to come."""

    def __len__(self) -> int:
        return len(self.positions)

    def inserting(self, row: int, table: fb.Table, values: Row, place: str) -> Blocks:
        """With one more table before the given row."""
        start = len(self.buffer)
        builder = _Builder(bytearray(), place)
        builder.vtables = {vtable: at - start for vtable, at in self.vtables.items()}
        at = np.array([start + builder.table(table, values)], np.int64)
        positions = np.concatenate((self.positions[:row], at, self.positions[row:]))
        vtables = {vtable: at + start for vtable, at in builder.vtables.items()}
        return Blocks(self.buffer + builder.finished(), positions, self.dropped, vtables)

    def take(self, rows: slice) -> Blocks:
        """Some of the tables; the others stay in the buffer."""
        positions = self.positions[rows]
        return Blocks(self.buffer, positions, self.dropped + len(self) - len(positions), self.vtables)


def build_row(table: fb.Table, row: Row, place: str) -> bytes:
    """The payload whose root table is this row."""
    builder = _Builder(bytearray(8), place)
    position = builder.table(table, row)
    out = builder.finished()
    check_size(len(out), place)
    out[:8] = file_head(position)
    return bytes(out)


def build_blocks(table: fb.Table, rows: Iterable[Row], place: str) -> Blocks:
    """Tables to be put into payloads."""
    builder = _Builder(bytearray(), place)
    positions = [builder.table(table, row) for row in rows]
    return Blocks(bytes(builder.finished()), np.array(positions, np.int64), vtables=builder.vtables)


class _Plan:
    """How a table that has certain fields is written."""

    __slots__ = ("align", "fields", "offsets", "pack", "size", "vtable")

    def __init__(self, table: fb.Table, names: Sequence[str]) -> None:
        layout = layout_of(table, {name: table.fields[name] for name in names}, {})
        entries: list[tuple[int, str, int, str]] = []
        for name, field in layout.fields.items():
            at = layout.offsets[name]
            if isinstance(field, fb.Scalar):
                entries.append((at, NUMBERS[field.dtype.str.replace("|", "")], field.dtype.itemsize, name))
            elif isinstance(field, fb.Struct):
                entries.append((at, f"{field.size}s", field.size, name))
            elif isinstance(field, fb.Variants):
                entries.append((at, "B", 1, name))
                entries.append((layout.offsets[f"{name} value"], "I", 4, ""))
            else:
                entries.append((at, "I", 4, ""))
        entries.sort()
        code, end = "<i", 4
        for at, letters, size, _ in entries:
            code += "x" * (at - end) + letters
            end = at + size
        even = -(-end // 2) * 2  # the vtable stands behind the first table that needs it
        packer = struct.Struct(code + "x" * (even - end))
        self.pack = packer.pack
        self.size = packer.size
        self.align = layout.align
        self.vtable = layout.vtable
        self.fields = [(name, table.fields[name]) if name else None for _, _, _, name in entries]
        """In the order in which they are packed; None is an offset, which is filled in later."""
        self.offsets = [
            (name, field, layout.offsets.get(f"{name} value", layout.offsets[name]))
            for name, field in layout.fields.items()
            if not isinstance(field, fb.Scalar | fb.Struct)
        ]


def _plan_of(table: fb.Table, row: Row) -> _Plan:
    names = []
    for name, field in table.fields.items():
        if row.get(name) is not None or isinstance(field, fb.Scalar):
            names.append(name)
        elif field.required:
            raise FormatError(f"{table.name}.{name} is required and missing", kind=ErrorKind.SERIALIZATION)
    key = tuple(names)
    plan = table.layouts.get(key)
    if plan is None:
        plan = table.layouts[key] = _Plan(table, names)
    found: _Plan = plan
    return found


class _Builder:
    __slots__ = ("out", "place", "vtables")

    def __init__(self, out: bytearray, place: str) -> None:
        self.out = out
        self.place = place
        self.vtables: dict[bytes, int] = {}

    def finished(self) -> bytearray:
        """All that was placed, to a multiple of 8 bytes."""
        self.out += _PADDING[-len(self.out) % 8]
        return self.out

    def table(self, table: fb.Table, row: Row) -> int:
        """Place a table and all below it; its position."""
        plan, out = _plan_of(table, row), self.out
        out += _PADDING[-len(out) % plan.align]
        position = len(out)
        vtable = self.vtables.get(plan.vtable, position + plan.size)
        values = (0 if f is None else _value(row, *f) for f in plan.fields)
        out += self.packed(plan.pack, table.name, position - vtable, *values)
        if vtable == position + plan.size:
            out += plan.vtable
            self.vtables[plan.vtable] = vtable
        for name, field, offset in plan.offsets:
            at = position + offset
            _OFFSET.pack_into(out, at, self.place_value(field, row[name]) - at)
        return position

    def packed(self, pack: Callable[..., bytes], what: str, *values: Any) -> bytes:
        """Numbers as bytes; FormatError where one does not fit."""
        try:
            return pack(*values)
        except struct.error as error:
            raise FormatError(f"{self.place}: {what}: {error}", kind=ErrorKind.SERIALIZATION) from None

    def place_value(self, field: fb.Field, value: Any) -> int:
        """Place what a field points to; its position."""
        match field:
            case fb.Bytes(text=text):
                return self.blob(encode_text(value) if text else value, text)
            case fb.Vector():
                return self.vector(field, value)
            case fb.Children(table=table):
                if isinstance(value, Blocks):
                    return self.blocks(value)
                return self.each(value, lambda item: self.table(table, item))
            case fb.Texts():
                return self.each(value, lambda item: self.blob(encode_text(item), True))
            case fb.Child(table=table):
                return self.table(table, value)
            case fb.Variants(tables=tables):
                return self.table(tables[value[0]], value[1])
        raise TypeError(f"cannot write {field!r}")

    def blob(self, data: bytes, text: bool) -> int:
        """Place a byte string behind its length; a string ends in a NUL."""
        out = self.out
        out += _PADDING[-len(out) % 4]
        position = len(out)
        out += _OFFSET.pack(len(data)) + data
        out += _PADDING[4 - len(data) % 4 if text else -len(data) % 4]
        return position

    def vector(self, field: fb.Vector, value: Any) -> int:
        """Place a vector of numbers or structs."""
        out = self.out
        data = self.packed(_items, "a vector", field.dtype, value)
        out += _PADDING[-(len(out) + 4) % max(field.align, 4)]  # the items are aligned, not their number
        position = len(out)
        out += _OFFSET.pack(len(value)) + data
        return position

    def each(self, items: Sequence[Any], place: Any) -> int:
        """Place a vector of offsets and what they lead to."""
        out = self.out
        out += _PADDING[-len(out) % 4]
        position = len(out)
        out += _OFFSET.pack(len(items)) + bytes(4 * len(items))
        for at, item in zip(range(position + 4, position + 4 + 4 * len(items), 4), items, strict=True):
            _OFFSET.pack_into(out, at, place(item) - at)
        return position

    def blocks(self, blocks: Blocks) -> int:
        """Place a vector of tables that were built before."""
        out, count = self.out, len(blocks)
        out += _PADDING[-len(out) % 4]
        position = len(out)
        base = -(-(position + 4 + 4 * count) // 8) * 8
        slots = np.arange(position + 4, position + 4 + 4 * count, 4, dtype=np.int64)
        out += _OFFSET.pack(count) + (blocks.positions + base - slots).astype("<u4").tobytes()
        out += _PADDING[base - len(out)]
        out += blocks.buffer
        return position


def _value(row: Row, name: str, field: fb.Field) -> Any:
    value = row.get(name)
    if isinstance(field, fb.Scalar):
        return field.default if value is None else value
    return value[0] if isinstance(field, fb.Variants) else value  # type: ignore[index]


def _items(dtype: np.dtype[Any], value: Any) -> bytes:
    """The bytes of the items of a vector."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype).tobytes()
    code = NUMBERS.get(dtype.str)
    if code is not None:
        return struct.pack(f"<{len(value)}{code}", *value)
    if dtype.names is None:
        return b"".join(value)
    return np.array(list(map(tuple, value)), dtype).tobytes()
