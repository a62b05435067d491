"""Read small FlatBuffers files as plain rows, without columns. Every position is checked, as in `reader`.

A payload with more than a few thousand items is read as columns and then converted to rows, because Python
takes microseconds per table and a malicious file may refer to the same table many times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from icefloe.encoding.columns import decode_text
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.reader import Payload, read_root, read_tables
from icefloe.encoding.flatbuffers.records import FEW, Records
from icefloe.encoding.flatbuffers.row_builder import NUMBERS
from icefloe.encoding.flatbuffers.tables import Tables, to_rows

MANY_ITEMS = 4096
MANY_BYTES = 16 << 20

_OFFSET = struct.Struct("<I")
_SIGNED = struct.Struct("<i")
_SHORT = struct.Struct("<H")
_SCALARS = {np.dtype(name): struct.Struct(f"<{code}") for name, code in NUMBERS.items()}


class _TooManyError(Exception):
    """Error raised when a payload is too large to be read row by row."""


def read_row(
    payload: Payload, table: fb.TableSchema, records: Collection[str] = (), unread: Collection[str] = ()
) -> dict[str, Any]:
    """Read a small FlatBuffers payload as a dict of its root table. Children in `records` become `Records`.

    Fields in `unread` are skipped. Their values in the dict are meaningless.
    """
    reader = _Reader(payload)
    try:
        position = reader.root(table)
        row = reader.table(table, position, {*records, *unread})
        for name in records:
            row[name] = reader.as_records(table, name, row[name])
    except _TooManyError:
        return _read_row_of_columns(payload, table, records)
    return row


def _read_row_of_columns(payload: Payload, table: fb.TableSchema, records: Collection[str]) -> dict[str, Any]:
    columns = read_root(payload, table)
    rest = {name: column for name, column in columns.columns.items() if name not in records}
    (row,) = to_rows(table, Tables(1, rest, {}), payload.place)
    for name in records:
        field: Any = table.fields[name]
        found = columns.columns.get(name)
        row[name] = None if found is None else Records(field.table, payload.place, columns=found.items)
    return row


_FIELDS = "fields"
"""The key under which a table schema caches the functions that read its fields."""


def _list_fields(table: fb.TableSchema) -> list[tuple[Any, ...]]:
    """Return the name, error label, schema, default and read function of each field."""
    found = []
    for name, field in table.fields.items():
        default = field.default if isinstance(field, fb.Scalar) else None
        found.append((name, f"{table.name}.{name}", field, default, _choose_read_function(field)))
    table.layouts[_FIELDS] = found
    return found


def _choose_read_function(field: fb.Field) -> Callable[[_Reader, int, str], Any] | None:
    """Return the function that reads a field if it is present; None for unions, which have two slots."""
    match field:
        case fb.Scalar(dtype=dtype):
            kind = _SCALARS[dtype]
            return lambda reader, at, what: reader.number(kind, at, what)
        case fb.Struct(size=size):
            return lambda reader, at, what: reader.fixed(size, at, what)
        case fb.Bytes(text=text):
            return lambda reader, at, what: reader.blob(at, text, what)
        case fb.Vector():
            return lambda reader, at, what: reader.numbers(field, at, what)
        case fb.Children(table=table):
            return lambda reader, at, what: reader.tables(table, at, what)
        case fb.Texts():
            return lambda reader, at, what: [reader.blob(slot, True, what) for slot in reader.slots(at, what)]
        case fb.Child(table=table):
            return lambda reader, at, what: reader.table(table, reader.target(at, what))
        case fb.Variants():
            return None
    raise TypeError(f"cannot read {field!r}")


class _Reader:
    __slots__ = ("bytes_left", "data", "items_left", "payload", "size")

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.data = payload.data.data
        self.size = payload.size
        self.items_left = MANY_ITEMS
        self.bytes_left = MANY_BYTES

    def root(self, table: fb.TableSchema) -> int:
        """Return the position of the root table."""
        if self.size < 8:
            self.payload.fail(f"{self.size} bytes are too few for a {table.name}")
        position: int = _OFFSET.unpack_from(self.data, 0)[0]
        return position

    def table(self, table: fb.TableSchema, position: int, skip: Collection[str] = ()) -> dict[str, Any]:
        """Read a table and all of its children. For skipped fields, return only their position."""
        vtable = position - self.number(_SIGNED, position, table.name)
        size = self.number(_SHORT, vtable, table.name)
        if size < 4:
            self.payload.fail(f"the vtable of {table.name} is shorter than its head", vtable)
        if size % 2 or vtable + size > self.size:
            self.payload.fail(f"the vtable of {table.name} points outside the file", vtable)
        slots = struct.unpack_from(f"<{size // 2 - 2}H", self.data, vtable + 4)
        known = len(slots)
        row: dict[str, Any] = {}
        for name, what, field, default, read in table.layouts.get(_FIELDS) or _list_fields(table):
            slot = field.slot
            offset = slots[slot] if slot < known else 0
            if read is None:
                value = slots[slot + 1] if slot + 1 < known else 0
                row[name] = self.union(field, position, offset, value, what)
            elif offset:
                at = position + offset
                row[name] = at if name in skip else read(self, at, what)
            elif field.required:
                self.payload.fail(f"{what} is missing", position)
            else:
                row[name] = default
        return row

    def fixed(self, size: int, at: int, what: str) -> bytes:
        """Read a struct of bytes."""
        if at + size > self.size:
            self.payload.fail(f"{what} points outside the file", at)
        return bytes(self.data[at : at + size])

    def tables(self, table: fb.TableSchema, at: int, what: str) -> list[dict[str, Any]]:
        """Read a vector of tables."""
        return [self.table(table, target) for target in self.targets(at, what)]

    def union(
        self, field: fb.Variants, position: int, kind_at: int, value_at: int, what: str
    ) -> tuple[int, dict[str, Any]] | None:
        """Read the type and the table of a union."""
        if kind_at and position + kind_at >= self.size:
            self.payload.fail(f"{what} points outside the file", position + kind_at)
        kind = self.data[position + kind_at] if kind_at else 0
        if bool(kind) != bool(value_at):
            self.payload.fail(f"{what} has a type without a value or a value without a type")
        if not kind:
            if field.required:
                self.payload.fail(f"{what} is missing", position)
            return None
        if kind not in field.tables:
            self.payload.fail(f"{what} is of unknown type {kind}")
        return kind, self.table(field.tables[kind], self.target(position + value_at, what))

    def as_records(self, table: fb.TableSchema, name: str, at: int | None) -> Records | None:
        """Read a vector of tables as rows if there are few, and otherwise as columns."""
        if at is None:
            return None
        field: Any = table.fields[name]
        what = f"{table.name}.{name}"
        start, count = self.vector(at, 4, 4, what)
        place = self.payload.place
        if count <= FEW:
            rows = [self.table(field.table, target) for target in self.targets(at, what)]
            return Records(field.table, place, rows=rows)
        slots = np.arange(start, start + 4 * count, 4, dtype=np.int64)
        targets = self.payload.targets(slots, what)
        return Records(field.table, place, columns=read_tables(self.payload, field.table, targets))

    def blob(self, at: int, text: bool, what: str) -> str | bytes:
        """Read a byte string."""
        start, length = self.vector(at, 1, 1, what)
        self.bytes_left -= length
        if self.bytes_left < 0:
            raise _TooManyError
        data = bytes(self.data[start : start + length])
        return decode_text(data, f"{self.payload.place}: {what}") if text else data

    def numbers(self, field: fb.Vector, at: int, what: str) -> list[Any]:
        """Read a vector of numbers or structs."""
        dtype = field.dtype
        start, count = self.vector(at, dtype.itemsize, field.align, what)
        self.count(count)
        code = NUMBERS.get(dtype.str)
        if code is not None:
            return list(struct.unpack_from(f"<{count}{code}", self.data, start))
        if dtype.names is None:
            size, data = dtype.itemsize, bytes(self.data[start : start + count * dtype.itemsize])
            return [data[place : place + size] for place in range(0, len(data), size)]
        found: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return found

    def targets(self, at: int, what: str) -> list[int]:
        """Return the positions that a vector of offsets points to."""
        return [self.target(slot, what) for slot in self.slots(at, what)]

    def slots(self, at: int, what: str) -> range:
        """Return the positions of the offsets in a vector of offsets."""
        start, count = self.vector(at, 4, 4, what)
        self.count(count)
        return range(start, start + 4 * count, 4)

    def count(self, items: int) -> None:
        """Count items, and raise an error if the payload is too large to be read row by row."""
        self.items_left -= items
        if self.items_left < 0:
            raise _TooManyError

    def vector(self, at: int, item: int, align: int, what: str) -> tuple[int, int]:
        """Follow the offset at a position, and return the start and length of the vector there."""
        target = self.target(at, what)
        length = self.number(_OFFSET, target, what)
        start = target + 4
        if start + length * item > self.size:
            self.payload.fail(f"{what} has {length} items, more than the file holds", target)
        if align > 4 and length and start % align:
            self.payload.fail(f"{what} is not aligned to {align} bytes", start)
        return start, length

    def target(self, at: int, what: str) -> int:
        """Return the position that the offset at a position points to."""
        return at + self.number(_OFFSET, at, what)

    def number(self, kind: struct.Struct, at: int, what: str) -> int:
        """Read the number at a position."""
        size = kind.size
        if at < 0 or at + size > self.size:
            self.payload.fail(f"{what} points outside the file", at)
        if at % size:
            self.payload.fail(f"{what} is not aligned to {size} bytes", at)
        value: int = kind.unpack_from(self.data, at)[0]
        return value
