"""Single lookups in a FlatBuffers payload: one table, one field, without columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from icefloe.encoding.columns import I64
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.reader import Payload

_UNSIGNED = {1: struct.Struct("<B"), 2: struct.Struct("<H"), 4: struct.Struct("<I"), 8: struct.Struct("<Q")}
_OFFSET = _UNSIGNED[4]
_SHORT = _UNSIGNED[2]
_SIGNED = struct.Struct("<i")


class Cursor:
    """One table of a payload. Fields are read on demand, and every access is checked."""

    __slots__ = ("_memory", "_payload", "_table", "_vtable", "_vtable_size", "position")

    def __init__(self, payload: Payload, table: fb.Table, position: int) -> None:
        self._payload = payload
        self._memory = payload.data.data
        self._table = table
        self.position = position
        # Hot path: a lookup opens several tables, and calls would take longer than the checks.
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
    def root(payload: Payload, table: fb.Table) -> Cursor:
        """Return the root table."""
        if payload.size < 8:
            payload.fail(f"{payload.size} bytes are too few for a {table.name}")
        return Cursor(payload, table, _OFFSET.unpack_from(payload.data.data, 0)[0])

    def number(self, name: str) -> int:
        """Return a scalar field, or its default."""
        field: Any = self._table.fields[name]
        at = self._locate(name, field)
        if at is None:
            return int(field.default)
        kind = _SIGNED if field.dtype == np.dtype("<i4") else _UNSIGNED[field.dtype.itemsize]
        return self._unpack(kind, at, name)

    def bytes(self, name: str) -> bytes | None:
        """Return a struct, byte vector or string field; None if absent."""
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
        """Return the names of those fields that this table has."""
        there = []
        for name in names:
            entry = 4 + 2 * self._table.fields[name].slot
            if entry < self._vtable_size and _SHORT.unpack_from(self._memory, self._vtable + entry)[0]:
                there.append(name)
        return there

    def place_of(self, name: str) -> int | None:
        """Return the position of a scalar or struct field; None if absent."""
        return self._locate(name, self._table.fields[name])

    def numbers(self, name: str) -> tuple[Any, ...] | None:
        """Return a vector of unsigned 32-bit numbers; None if absent."""
        at = self._locate(name, self._table.fields[name])
        if at is None:
            return None
        start, length = self._locate_vector(name, at, 4)
        return struct.unpack_from(f"<{length}I", self._memory, start)

    def children(self, name: str) -> Slots | None:
        """Return a vector of tables; None if absent."""
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
    """A vector of tables that are opened one at a time."""

    __slots__ = ("_payload", "_start", "_table", "count")

    def __init__(self, payload: Payload, table: fb.Table, start: int, count: int) -> None:
        self._payload = payload
        self._table = table
        self._start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Cursor:
        at = self._start + 4 * row
        return Cursor(self._payload, self._table, at + _OFFSET.unpack_from(self._payload.data.data, at)[0])

    def positions(self) -> I64:
        """Return the positions of the tables as a column, unchecked."""
        at = np.arange(self._start, self._start + 4 * self.count, 4, dtype=np.int64)
        at += self._payload.words[np.dtype("<u4")][self._start >> 2 : (self._start >> 2) + self.count]
        return at
