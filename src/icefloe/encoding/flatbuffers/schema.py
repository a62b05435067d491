"""FlatBuffers schemas as data: the names, slots and types of the fields of each table.

Each table of the specification has one schema, which the columnar reader, the builders and single lookups
share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field in a FlatBuffers schema: its slot in the vtable, and whether it is required."""

    slot: int
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar(Field):
    """The schema of a number, which is stored in the table itself. An absent number has the value
    `default`.
    """

    dtype: np.dtype[Any]
    default: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct(Field):
    """The schema of a struct: a fixed number of bytes in the table itself, such as an object id."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes(Field):
    """The schema of a string or byte vector, which is read into a `Blobs` column."""

    text: bool = False
    shared: bool = False
    """True if thousands of rows may point to the same bytes, so that they are deduplicated before being
    copied.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Field):
    """The schema of a vector of numbers or structs, which is read into a `Ragged` column or a two-dimensional
    array.
    """

    dtype: np.dtype[Any]
    """The numpy dtype of an item; a structured dtype for structs."""
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(Field):
    """The schema of a vector of strings, which is read into a `Ragged` column of `Blobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children(Field):
    """The schema of a vector of tables, which is read into a `Ragged` column of `Tables`."""

    table: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants(Field):
    """The schema of a union, which is read into a `Union` column. The type byte is in `slot`, the table in
    the next slot.
    """

    tables: Mapping[int, TableSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Field):
    """The schema of a single child table. It is read into a `Union` column in which every present row has
    type 1.
    """

    table: TableSchema


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of a FlatBuffers table: its name in the specification, and its fields."""

    name: str
    fields: Mapping[str, Field]
    layouts: dict[Any, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    """A cache of the row layouts that builders have computed."""
    optional: tuple[str, ...] = dataclass_field(init=False, compare=False, repr=False)
    """The fields that a row may lack: all except numbers, which have defaults."""

    def __post_init__(self) -> None:
        names = tuple(name for name, field in self.fields.items() if not isinstance(field, Scalar))
        object.__setattr__(self, "optional", names)


def u8(slot: int, default: int = 0) -> Scalar:
    """Describe a `uint8` field of a FlatBuffers schema."""
    return Scalar(slot=slot, dtype=np.dtype("u1"), default=default)


def u16(slot: int) -> Scalar:
    """Describe a `uint16` field of a FlatBuffers schema."""
    return Scalar(slot=slot, dtype=np.dtype("<u2"))


def u32(slot: int) -> Scalar:
    """Describe a `uint32` field of a FlatBuffers schema."""
    return Scalar(slot=slot, dtype=np.dtype("<u4"))


def i32(slot: int) -> Scalar:
    """Describe an `int32` field of a FlatBuffers schema."""
    return Scalar(slot=slot, dtype=np.dtype("<i4"))


def u64(slot: int) -> Scalar:
    """Describe a `uint64` field of a FlatBuffers schema."""
    return Scalar(slot=slot, dtype=np.dtype("<u8"))


def struct(slot: int, size: int, *, required: bool = False) -> Struct:
    """Describe a struct of bytes in a FlatBuffers schema, such as an ObjectId12."""
    return Struct(slot=slot, size=size, required=required)


def text(slot: int, *, required: bool = False, shared: bool = False) -> Bytes:
    """Describe a `string` field of a FlatBuffers schema."""
    return Bytes(slot=slot, text=True, required=required, shared=shared)


def blob(slot: int, *, required: bool = False, shared: bool = False) -> Bytes:
    """Describe a `[uint8]` field of a FlatBuffers schema."""
    return Bytes(slot=slot, required=required, shared=shared)


def vector(slot: int, dtype: Any, align: int, *, required: bool = False) -> Vector:
    """Describe a vector of numbers in a FlatBuffers schema, or of structs given as a structured dtype."""
    return Vector(slot=slot, dtype=np.dtype(dtype), align=align, required=required)


def texts(slot: int, *, required: bool = False) -> Texts:
    """Describe a `[string]` field of a FlatBuffers schema."""
    return Texts(slot=slot, required=required)


def children(slot: int, table: TableSchema, *, required: bool = False) -> Children:
    """Describe a vector of tables in a FlatBuffers schema."""
    return Children(slot=slot, table=table, required=required)


def child(slot: int, table: TableSchema, *, required: bool = False) -> Child:
    """Describe a field with a single table in a FlatBuffers schema."""
    return Child(slot=slot, table=table, required=required)


def union(slot: int, tables: Mapping[int, TableSchema], *, required: bool = False) -> Variants:
    """Describe a union in a FlatBuffers schema, whose type byte is in `slot`."""
    return Variants(slot=slot, tables=tables, required=required)
