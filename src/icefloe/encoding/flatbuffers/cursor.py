"""Single lookups in a FlatBuffers payload, by table and field, without building columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import I64
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.reader import Payload

_UNSIGNED = {1: struct.Struct("<B"), 2: struct.Struct("<H"), 4: struct.Struct("<I"), 8: struct.Struct("<Q")}
_OFFSET = _UNSIGNED[4]
_SHORT = _UNSIGNED[2]
_SIGNED = struct.Struct("<i")
_ROWS = 1 << 16
"""The number of tables to check at a time."""


class Cursor:
    """A cursor positioned at one table of a FlatBuffers payload. Fields are read on demand, and every access
    is checked.
    """

    __slots__ = ("_memory", "_payload", "_table", "_vtable", "_vtable_size", "position")

    def __init__(self, payload: Payload, table: fb.TableSchema, position: int) -> None:
        self._payload = payload
        self._memory = payload.data.data
        self._table = table
        self.position = position
        # Hot path: a lookup opens several tables, and function calls would take longer than the checks.
        if position < 0 or position % 4 or position + 4 > payload.size:
            self._refuse(_SIGNED, position, "the table")
        self._vtable = at = position - _SIGNED.unpack_from(self._memory, position)[0]
        if at < 0 or at % 2 or at + 2 > payload.size:
            self._refuse(_SHORT, at, "the vtable")
        self._vtable_size = size = _SHORT.unpack_from(self._memory, at)[0]
        if size < 4:
            payload.fail(f"the vtable of {table.name} is shorter than its head", at)
        if size % 2 or at + size > payload.size:
            payload.fail(f"the vtable of {table.name} points outside the file", at)

    @staticmethod
    def root(payload: Payload, table: fb.TableSchema) -> Cursor:
        """Return a cursor at the root table of a FlatBuffers payload."""
        if payload.size < 8:
            payload.fail(f"{payload.size} bytes are too few for a {table.name}")
        return Cursor(payload, table, _OFFSET.unpack_from(payload.data.data, 0)[0])

    def number(self, name: str) -> int:
        """Return the value of a scalar field, or its default if it is absent."""
        field: Any = self._table.fields[name]
        at = self._locate(name, field)
        if at is None:
            return int(field.default)
        kind = _SIGNED if field.dtype == np.dtype("<i4") else _UNSIGNED[field.dtype.itemsize]
        return self._unpack(kind, at, name)

    def bytes(self, name: str) -> bytes | None:
        """Return the bytes of a struct, byte vector or string field; None if it is absent."""
        field = self._table.fields[name]
        at = self._locate(name, field)
        if at is None:
            return None
        if isinstance(field, fb.Struct):
            start, length = at, field.size
            if start + length > self._payload.size:
                self._fail(name, "points outside the file", start)
        else:
            start, length = self._locate_vector(name, at, 1)
        return self._memory[start : start + length].tobytes()

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the names of the fields that are present in this table."""
        there = []
        for name in names:
            entry = 4 + 2 * self._table.fields[name].slot
            if entry < self._vtable_size and _SHORT.unpack_from(self._memory, self._vtable + entry)[0]:
                there.append(name)
        return there

    def place_of(self, name: str) -> int | None:
        """Return the byte position of a scalar or struct field of the table; None if it is absent."""
        return self._locate(name, self._table.fields[name])

    def numbers(self, name: str) -> tuple[Any, ...] | None:
        """Return the value of a field of type `[uint32]`; None if it is absent."""
        at = self._locate(name, self._table.fields[name])
        if at is None:
            return None
        start, length = self._locate_vector(name, at, 4)
        return struct.unpack_from(f"<{length}I", self._memory, start)

    def children(self, name: str) -> Slots | None:
        """Return the value of a vector-of-tables field without reading the tables; None if it is absent."""
        field: Any = self._table.fields[name]
        at = self._locate(name, field)
        if at is None:
            return None
        return Slots(self._payload, field.table, *self._locate_vector(name, at, 4))

    def _locate(self, name: str, field: fb.Field) -> int | None:
        entry = 4 + 2 * field.slot
        # The constructor checked that the vtable is inside the file and has an even size.
        offset = 0
        if entry < self._vtable_size:
            offset = _SHORT.unpack_from(self._memory, self._vtable + entry)[0]
        if not offset:
            if field.required:
                self._fail(name, "is missing", self.position)
            return None
        return self.position + offset

    def _locate_vector(self, name: str, at: int, item: int) -> tuple[int, int]:
        start = at + self._unpack(_OFFSET, at, name)
        length = self._unpack(_OFFSET, start, name)
        if start + 4 + length * item > self._payload.size:
            self._fail(name, f"has {length} items, more than the file holds", start)
        return start + 4, length

    def _unpack(self, kind: struct.Struct, at: int, name: str) -> int:
        if at < 0 or at % kind.size or at + kind.size > self._payload.size:
            self._refuse(kind, at, name)
        value: int = kind.unpack_from(self._memory, at)[0]
        return value

    def _refuse(self, kind: struct.Struct, at: int, name: str) -> NoReturn:
        if at < 0 or at + kind.size > self._payload.size:
            self._fail(name, "points outside the file", at)
        self._fail(name, f"is not aligned to {kind.size} bytes", at)

    def _fail(self, name: str, what: str, at: int) -> NoReturn:
        self._payload.fail(f"{self._table.name}.{name} {what}", at)


class Slots:
    """A vector of FlatBuffers tables, each of which is read through its own cursor."""

    __slots__ = ("_payload", "_start", "_table", "count")

    def __init__(self, payload: Payload, table: fb.TableSchema, start: int, count: int) -> None:
        self._payload = payload
        self._table = table
        self._start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Cursor:
        at = self._start + 4 * row
        return Cursor(self._payload, self._table, at + _OFFSET.unpack_from(self._payload.data.data, at)[0])

    def view_vectors(self, name: str) -> NDArray[np.uint32] | None:
        """View a `[uint32]` field of all tables as the rows of one array, without a copy.

        Returns None unless the tables have a constant stride and the same layout. Every table is checked.
        """
        first, last = self[0], self[self.count - 1]
        at, end = first.place_of(name), last.place_of(name)
        if at is None or end is None:
            return None
        start, length = first._locate_vector(name, at, 4)
        stride, rest = divmod(last.position - first.position, max(self.count - 1, 1))
        if (
            rest
            or stride % 4
            or last._locate_vector(name, end, 4) != (start - first.position + last.position, length)
        ):
            return None
        for row in range(0, self.count, _ROWS):
            stop = min(row + _ROWS, self.count)
            position = first.position + stride * row
            places = np.arange(position, position + stride * (stop - row), stride, dtype=np.int64)
            slots = np.arange(self._start + 4 * row, self._start + 4 * stop, 4, dtype=np.int64)
            words = self._payload.words[np.dtype("<u4")]
            if not (
                (slots + words.take(slots >> 2) == places).all()
                and (places - words.take(places >> 2).view(np.int32) == first._vtable).all()
                and (words.take(places + (at - first.position) >> 2) == start - 4 - at).all()
                and (words.take(places + (start - 4 - first.position) >> 2) == length).all()
            ):
                return None
        return np.ndarray((self.count, length), "<u4", self._payload.data.data, start, (stride, 4))

    def clear(self) -> None:
        """Empty the vector in place by setting its length to zero."""
        self._payload.words[np.dtype("<u4")][(self._start >> 2) - 1] = 0

    def positions(self) -> I64:
        """Return the byte positions of all tables in the vector, without checking them."""
        at = np.arange(self._start, self._start + 4 * self.count, 4, dtype=np.int64)
        at += self._payload.words[np.dtype("<u4")][self._start >> 2 : (self._start >> 2) + self.count]
        return at
