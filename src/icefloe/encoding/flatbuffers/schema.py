"""How a FlatBuffers table is described: field names, slots and kinds, as data.

A schema is written once per table of the specification and drives the columnar reader, the columnar builder
and single look-ups alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What all kinds have: the vtable slot, and whether the schema demands the field."""

    slot: int
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar(Field):
    """A number in the table itself. Absent means `default`."""

    dtype: np.dtype[Any]
    default: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct(Field):
    """Some fixed number of bytes in the table itself, such as an object id. Column: (n, size) uint8."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes(Field):
    """A string, or a vector of bytes. Column: `Blobs`."""

    text: bool = False
    shared: bool = False
    """Whether thousands of rows may point to the same bytes, and are told apart before these are copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Field):
    """A vector of numbers or of structs of numbers. Column: `Ragged` of an array, or a 2-d array."""

    dtype: np.dtype[Any]
    """Of one item; structured for a struct."""
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(Field):
    """A vector of strings. Column: `Ragged` of `Blobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children(Field):
    """A vector of tables. Column: `Ragged` of `Tables`."""

    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants(Field):
    """A union: a type byte in `slot` and a table in the slot after it. Column: `Union`."""

    tables: Mapping[int, Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Field):
    """One table. Column: `Union` in which every present row is of kind 1."""

    table: Table


@dataclass(frozen=True, slots=True)
class Table:
    """A table type: its name in the specification and its fields."""

    name: str
    fields: Mapping[str, Field]
    layouts: dict[Any, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """Layouts of rows that the builder has worked out, to be found again."""
    optional: tuple[str, ...] = dataclass_field(init=False, compare=False, repr=False)
    """Fields that a row may lack: all but the numbers, which have defaults."""

    def __post_init__(self) -> None:
        names = tuple(name for name, field in self.fields.items() if not isinstance(field, Scalar))
        object.__setattr__(self, "optional", names)


def u8(slot: int, default: int = 0) -> Scalar:
    """A `uint8` field."""
    return Scalar(slot=slot, dtype=np.dtype("u1"), default=default)


def u16(slot: int) -> Scalar:
    """A `uint16` field."""
    return Scalar(slot=slot, dtype=np.dtype("<u2"))


def u32(slot: int) -> Scalar:
    """A `uint32` field."""
    return Scalar(slot=slot, dtype=np.dtype("<u4"))


def i32(slot: int) -> Scalar:
    """An `int32` field."""
    return Scalar(slot=slot, dtype=np.dtype("<i4"))


def u64(slot: int) -> Scalar:
    """A `uint64` field."""
    return Scalar(slot=slot, dtype=np.dtype("<u8"))


def struct(slot: int, size: int, *, required: bool = False) -> Struct:
    """A struct of bytes, such as an ObjectId12."""
    return Struct(slot=slot, size=size, required=required)


def text(slot: int, *, required: bool = False, shared: bool = False) -> Bytes:
    """A `string` field."""
    return Bytes(slot=slot, text=True, required=required, shared=shared)


def blob(slot: int, *, required: bool = False, shared: bool = False) -> Bytes:
    """A `[uint8]` field."""
    return Bytes(slot=slot, required=required, shared=shared)


def vector(slot: int, dtype: Any, align: int, *, required: bool = False) -> Vector:
    """A vector of numbers, or of structs given as a structured dtype."""
    return Vector(slot=slot, dtype=np.dtype(dtype), align=align, required=required)


def texts(slot: int, *, required: bool = False) -> Texts:
    """A `[string]` field."""
    return Texts(slot=slot, required=required)


def children(slot: int, table: Table, *, required: bool = False) -> Children:
    """A vector of tables."""
    return Children(slot=slot, table=table, required=required)


def child(slot: int, table: Table, *, required: bool = False) -> Child:
    """One table."""
    return Child(slot=slot, table=table, required=required)


def union(slot: int, tables: Mapping[int, Table], *, required: bool = False) -> Variants:
    """A union whose type byte is in `slot`."""
    return Variants(slot=slot, tables=tables, required=required)
