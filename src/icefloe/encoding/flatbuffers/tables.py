"""FlatBuffers tables of one type as columns, and conversion between columns and plain dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import Blobs, Ragged, Shared, concat, count_rows, make_constant, take, to_splits
from icefloe.encoding.flatbuffers import schema as fb

PRESENT = 1
"""The union type of a present row, in a `Union` that represents a single child table."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """FlatBuffers tables of one type as columns with `count` rows.

    A column may be absent if no row has a value.
    """

    count: int
    columns: Mapping[str, Any]
    present: Mapping[str, NDArray[np.bool_]]
    """For each field that only some rows have, a mask of these rows."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def has(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the rows that have a field."""
        if name not in self.columns:
            return np.zeros(self.count, np.bool_)
        mask = self.present.get(name)
        return np.ones(self.count, np.bool_) if mask is None else mask

    def take(self, rows: Any) -> Tables:
        """Select rows by a slice, a mask or indices."""
        columns = {name: take(column, rows) for name, column in self.columns.items()}
        present = {name: mask[rows] for name, mask in self.present.items()}
        return Tables(count_rows(rows, self.count), columns, present)

    @staticmethod
    def concat(parts: Sequence[Tables]) -> Tables:
        """Concatenate several sets of tables, column by column."""
        if len(parts) == 1:
            return parts[0]
        likes = {name: column for part in parts for name, column in part.columns.items()}
        columns, present = {}, {}
        for name, like in likes.items():
            columns[name] = concat(
                [p.columns[name] if name in p.columns else make_absent(like, len(p)) for p in parts]
            )
            mask = np.concatenate([part.has(name) for part in parts])
            if not mask.all():
                present[name] = mask
        return Tables(sum(part.count for part in parts), columns, present)


@dataclass(frozen=True, eq=False)  # without slots, because `places` is cached
class Union:
    """A FlatBuffers union as a column of tables: one of several types per row, or none (type 0)."""

    kinds: NDArray[np.uint8]
    tables: Mapping[int, Tables]
    """The tables of each type, in the order of the rows."""

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """For each row of the union, its index among the tables of its type."""
        places = np.zeros(len(self.kinds), np.int64)
        for kind in self.tables:
            rows = self.kinds == kind
            places[rows] = np.arange(int(rows.sum()))
        return places

    def take(self, rows: Any) -> Union:
        """Select rows by a slice, a mask or indices, together with their tables."""
        kinds, places = self.kinds[rows], self.places[rows]
        tables = {kind: table.take(places[kinds == kind]) for kind, table in self.tables.items()}
        return Union(kinds, {kind: table for kind, table in tables.items() if len(table)})

    @staticmethod
    def concat(parts: Sequence[Union]) -> Union:
        """Concatenate several union columns, including their tables."""
        kinds = np.concatenate([part.kinds for part in parts])
        found = sorted({kind for part in parts for kind in part.tables})
        tables = {k: Tables.concat([part.tables[k] for part in parts if k in part.tables]) for k in found}
        return Union(kinds, tables)


def make_absent(like: Any, count: int) -> Any:
    """Return a column of the same type as `like` in which no row has a value."""
    if isinstance(like, np.ndarray):
        return np.zeros((count, *like.shape[1:]), like.dtype)
    if isinstance(like, Blobs):
        return Blobs.empty(count)
    if isinstance(like, Ragged):
        return Ragged(take(like.items, slice(0, 0)), np.zeros(count + 1, np.int64))
    if isinstance(like, Shared):
        return Shared(make_constant(0, count, np.uint32), Blobs.empty(0))
    return Union(np.zeros(count, np.uint8), {})


def from_rows(table: fb.TableSchema, rows: Sequence[Mapping[str, Any]]) -> Tables:
    """Create FlatBuffers tables as columns from one dict per row.

    None stands for an absent field, or for the default of a number.

    Values have the same form as in `to_rows`. Use this function only for few rows, because it loops over them
    in Python.
    """
    columns: dict[str, Any] = {}
    present: dict[str, NDArray[np.bool_]] = {}
    for name, field in table.fields.items():
        values = [row.get(name) for row in rows]
        if isinstance(field, fb.Scalar):
            columns[name] = np.array([field.default if v is None else v for v in values], field.dtype)
            continue
        mask = np.fromiter((value is not None for value in values), np.bool_, len(values))
        if not mask.any():
            continue
        columns[name] = _make_column(field, values)
        if not mask.all():
            present[name] = mask
    return Tables(len(rows), columns, present)


def _make_column(field: fb.Field, values: Sequence[Any]) -> Any:
    match field:
        case fb.Struct(size=size):
            joined = b"".join(bytes(size) if value is None else value for value in values)
            return np.frombuffer(joined, np.uint8).reshape(len(values), size)
        case fb.Bytes(text=True):
            return Blobs.from_texts([value or "" for value in values])
        case fb.Bytes():
            return Blobs.from_list([value or b"" for value in values])
        case fb.Vector(dtype=dtype):
            lengths = np.array([0 if value is None else len(value) for value in values])
            return Ragged(
                np.array([item for value in values for item in value or ()], dtype), to_splits(lengths)
            )
        case fb.Texts():
            lengths = np.array([0 if value is None else len(value) for value in values])
            return Ragged(
                Blobs.from_texts([item for value in values for item in value or ()]), to_splits(lengths)
            )
        case fb.Children(table=table):
            lengths = np.array([0 if value is None else len(value) for value in values])
            return Ragged(
                from_rows(table, [item for value in values for item in value or ()]), to_splits(lengths)
            )
        case fb.Child(table=table):
            kinds = np.array([0 if value is None else PRESENT for value in values], np.uint8)
            return Union(kinds, {PRESENT: from_rows(table, [value for value in values if value is not None])})
        case fb.Variants(tables=tables):
            pairs = [(0, {}) if value is None else value for value in values]
            kinds = np.array([kind for kind, _ in pairs], np.uint8)
            found = sorted({kind for kind, _ in pairs} - {0})
            return Union(
                kinds, {k: from_rows(tables[k], [row for kind, row in pairs if kind == k]) for k in found}
            )
    raise TypeError(f"cannot create a column for {field!r}")


def to_rows(table: fb.TableSchema, tables: Tables, place: str) -> list[dict[str, Any]]:
    """Convert columns of FlatBuffers tables to one dict per row; None stands for an absent field."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(tables))]
    for name, field in table.fields.items():
        if name not in tables.columns:
            values: Sequence[Any] = [None] * len(tables)
        else:
            values = get_values(field, tables.columns[name], f"{place}: {table.name}.{name}")
            mask = tables.present.get(name)
            if mask is not None and not isinstance(field, fb.Scalar):
                values = [
                    value if there else None for value, there in zip(values, mask.tolist(), strict=True)
                ]
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def get_values(field: fb.Field, column: Any, place: str) -> Sequence[Any]:
    """Convert one column to a list with one value per row. The values of absent rows are meaningless."""
    match field:
        case fb.Scalar():
            return column.tolist()  # type: ignore[no-any-return]
        case fb.Struct(size=size):
            data = column.tobytes()
            return [data[i * size : (i + 1) * size] for i in range(len(column))]
        case fb.Bytes(text=True):
            return column.texts(place)  # type: ignore[no-any-return]
        case fb.Bytes():
            return column.tolist()  # type: ignore[no-any-return]
        case fb.Vector():
            return _make_lists(column.items.tolist(), column)
        case fb.Texts():
            return _make_lists(column.items.texts(place), column)
        case fb.Children(table=table):
            return _make_lists(to_rows(table, column.items, place), column)
        case fb.Child(table=table):
            children = to_rows(table, column.tables[PRESENT], place) if PRESENT in column.tables else []
            return [children[at] if kind else None for kind, at in _find_places(column)]
        case fb.Variants(tables=schemas):
            found = {kind: to_rows(schemas[kind], rows, place) for kind, rows in column.tables.items()}
            return [(kind, found[kind][at]) if kind else None for kind, at in _find_places(column)]
    raise TypeError(f"no values for {field!r}")


def _make_lists(items: list[Any], column: Ragged) -> list[list[Any]]:
    borders = column.splits.tolist()
    return [items[start:end] for start, end in pairwise(borders)]


def _find_places(column: Union) -> Sequence[tuple[int, int]]:
    return list(zip(column.kinds.tolist(), column.places.tolist(), strict=True))
