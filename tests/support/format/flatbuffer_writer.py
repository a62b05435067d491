"""A second, slow and simple FlatBuffers writer, for layouts that the columnar builder never chooses.

It shares only the schemas with the code under test. Objects form a graph: an object with several parents
is written once. `Layout` chooses among all that the format allows: order of fields, place and length of
vtables, junk between objects, defaults written or left out.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from icefloe.encoding.flatbuffers import schema as fb


@dataclass(eq=False, slots=True)
class Number:
    """Something of fixed size in a table: a scalar or a struct."""

    data: bytes
    align: int


@dataclass(eq=False, slots=True)
class Vector:
    """Bytes behind a count; a string is one that ends in a NUL."""

    count: int
    data: bytes
    align: int = 1


@dataclass(eq=False, slots=True)
class Pointers:
    """A vector of tables or strings."""

    targets: Sequence[Object]


@dataclass(eq=False, slots=True)
class Table:
    """A table: by slot, what it holds or points to."""

    slots: dict[int, Number | Object]


Object: TypeAlias = "Vector | Pointers | Table"


@dataclass(slots=True)
class Layout:
    """Choices of a writer, drawn from a seed. The default is the plainest layout."""

    seed: int | None = None
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def maybe(self) -> bool:
        """Return a random choice."""
        return self.seed is not None and self.random.random() < 0.5

    def junk(self) -> bytes:
        """Bytes that nothing points to."""
        return self.random.randbytes(self.random.randrange(12)) if self.maybe() else b""


class Written:
    """A payload and where its objects stand, for tests that damage it."""

    def __init__(self, root: Table, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()
        self.out = bytearray(8)
        self.positions: dict[int, int] = {}
        self.fields: dict[tuple[int, int], int] = {}
        """Where slot s of the table with `id` i stands."""
        self._vtables: dict[bytes, int] = {}
        self._late: list[tuple[int, bytes]] = []
        self._pointers: list[tuple[int, Object]] = []
        for thing in _parents_first(root):
            self._place(thing)
        for table, vtable in self._late:
            self._align(2)
            self._patch(table, "<i", table - len(self.out))
            self.out += vtable
        for at, target in self._pointers:
            self._patch(at, "<I", self.positions[id(target)] - at)
        self._patch(0, "<I", self.positions[id(root)])
        self.out += self.layout.junk()

    def __bytes__(self) -> bytes:
        return bytes(self.out)

    def at(self, thing: Object) -> int:
        """Return the position of an object."""
        return self.positions[id(thing)]

    def field_at(self, table: Table, slot: int) -> int:
        """Return the position of a field of a table."""
        return self.fields[id(table), slot]

    def patched(self, at: int, code: str, value: int) -> bytes:
        """Return the payload with one number replaced."""
        out = bytearray(self.out)
        struct.pack_into(code, out, at, value)
        return bytes(out)

    def _patch(self, at: int, code: str, value: int) -> None:
        struct.pack_into(code, self.out, at, value)

    def _align(self, size: int, shift: int = 0) -> None:
        while (len(self.out) + shift) % size:
            self.out += bytes([self.layout.random.randrange(256)]) if self.layout.seed else b"\0"

    def _place(self, thing: Object) -> None:
        self.out += self.layout.junk()
        if isinstance(thing, Table):
            self._place_table(thing)
            return
        if isinstance(thing, Vector):
            self._align(max(thing.align, 4), 4 if thing.align > 4 else 0)
            self.positions[id(thing)] = len(self.out)
            self.out += struct.pack("<I", thing.count) + thing.data
            return
        self._align(4)
        self.positions[id(thing)] = len(self.out)
        self.out += struct.pack("<I", len(thing.targets))
        for target in thing.targets:
            self._pointers.append((len(self.out), target))
            self.out += bytes(4)

    def _place_table(self, table: Table) -> None:
        body, offsets = self._body(table)
        vtable = self._vtable(len(body), offsets)
        known = None if self.layout.maybe() else self._vtables.get(vtable)
        before = not self.layout.maybe()
        if known is None and before:
            self._align(2)
            known = self._vtables[vtable] = len(self.out)
            self.out += vtable
        self._align(8)
        position = self.positions[id(table)] = len(self.out)
        for slot, offset in offsets.items():
            self.fields[id(table), slot] = position + offset
            value = table.slots[slot]
            if not isinstance(value, Number):
                self._pointers.append((position + offset, value))
        self.out += body
        if known is None:
            self._late.append((position, vtable))
        else:
            self._patch(position, "<i", position - known)

    def _body(self, table: Table) -> tuple[bytes, dict[int, int]]:
        """Return the table with zeros for its offsets, and where each field begins."""
        body, offsets = bytearray(4), {}
        entries = list(table.slots.items())
        if self.layout.maybe():
            self.layout.random.shuffle(entries)
        for slot, value in entries:
            data, align = (value.data, value.align) if isinstance(value, Number) else (bytes(4), 4)
            if self.layout.maybe():
                body += self.layout.junk()
            body += bytes(-len(body) % align)
            offsets[slot] = len(body)
            body += data
        return bytes(body), offsets

    def _vtable(self, size: int, offsets: Mapping[int, int]) -> bytes:
        count = 1 + max(offsets, default=-1)
        unknown: list[int] = []
        if self.layout.maybe():  # slots of a later version, beyond all that are known
            unknown = [0] * (20 - count) + [4, 0, size - 1]
        slots = [offsets.get(slot, 0) for slot in range(count)] + unknown
        return struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)


def _parents_first(root: Object) -> list[Object]:
    """Return all objects, each behind everything that points to it."""
    done: dict[int, Object] = {}
    order: list[Object] = []
    waiting: list[tuple[Object, bool]] = [(root, False)]
    while waiting:
        thing, below = waiting.pop()
        if below:
            order.append(thing)
        elif id(thing) not in done:
            done[id(thing)] = thing
            waiting.append((thing, True))
            waiting += [(child, False) for child in _children(thing)]
    return order[::-1]


def _children(thing: Object) -> list[Object]:
    if isinstance(thing, Pointers):
        return list(thing.targets)
    if isinstance(thing, Table):
        return [value for value in thing.slots.values() if not isinstance(value, Number)]
    return []


class Graph:
    """Objects out of rows as `to_rows` gives them. Equal byte strings may be shared."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()
        self.shared: dict[tuple[bytes, bool], Vector] = {}

    def table(self, schema: fb.TableSchema, row: Mapping[str, Any]) -> Table:
        """Return one table."""
        slots: dict[int, Number | Object] = {}
        for name, kind in schema.fields.items():
            value = row.get(name)
            if isinstance(kind, fb.Scalar):
                number = kind.default if value is None else value
                if number != kind.default or self.layout.maybe():
                    slots[kind.slot] = scalar(kind, number)
            elif isinstance(kind, fb.Variants) and value is not None:
                slots[kind.slot] = Number(bytes([value[0]]), 1)
                slots[kind.slot + 1] = self.table(kind.tables[value[0]], value[1])
            elif value is not None:
                slots[kind.slot] = self.field(kind, value)
        return Table(slots)

    def field(self, kind: fb.Field, value: Any) -> Number | Object:
        """Return the value or object of a present field."""
        match kind:
            case fb.Struct():
                return Number(value, 1)
            case fb.Bytes(text=text):
                return self.blob(value.encode() if text else value, text)
            case fb.Vector(dtype=dtype, align=align):
                return Vector(len(value), np.array(value, dtype).tobytes(), align)
            case fb.Texts():
                return Pointers([self.blob(text.encode(), True) for text in value])
            case fb.Children(table=table):
                return Pointers([self.table(table, row) for row in value])
            case fb.Child(table=table):
                return self.table(table, value)
        raise TypeError(f"cannot write {kind!r}")

    def blob(self, data: bytes, text: bool) -> Vector:
        """Return a byte string, perhaps the same as one before. The NUL behind a string may be missing."""
        if self.layout.maybe() and (data, text) in self.shared:
            return self.shared[data, text]
        end = b"\0" if text and not self.layout.maybe() else b""
        return self.shared.setdefault((data, text), Vector(len(data), data + end))


def scalar(kind: fb.Scalar, value: int) -> Number:
    """Return a number as a field of a table."""
    width = kind.dtype.itemsize
    return Number(int(value).to_bytes(width, "little", signed=kind.dtype.kind == "i"), width)


def write(schema: fb.TableSchema, row: Mapping[str, Any], seed: int | None = None) -> bytes:
    """Return a payload with one root table; each seed is another layout, none is the plainest."""
    layout = Layout(seed)
    return bytes(Written(Graph(layout).table(schema, row), layout))
