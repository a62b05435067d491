"""Builds a FlatBuffers payload from columns.

Rows that have the same fields share one vtable and stand at one distance from each other, so that a field of
all of them is one strided assignment. Everything is placed first, root before children; then one buffer is
allocated and filled block by block. Strings that rows share (`Shared`) are written once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import BLOCK, I64, U8, Blobs, Ragged, Shared, copy_ranges
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.tables import PRESENT, Tables
from icefloe.errors import ErrorKind, FormatError

IDENTIFIER = b"Ichk"
MAX_PAYLOAD_BYTES = (1 << 31) - 1
"""FlatBuffers offsets are signed 32-bit numbers in places."""

_IN_ROW = 16
"""Vectors of up to so many items stand in the row of their table."""

Write = Callable[[U8], None]


def build(table: fb.Table, root: Tables, place: str) -> U8:
    """The payload whose root table is the one row of `root`."""
    builder = _Builder(place)
    position = builder.tables(table, root)
    if builder.size > MAX_PAYLOAD_BYTES:
        raise FormatError(
            f"{place}: {builder.size} bytes, a file holds at most {MAX_PAYLOAD_BYTES}; split it",
            kind=ErrorKind.SERIALIZATION,
        )
    out = np.zeros(-(-builder.size // 8) * 8, np.uint8)
    out[:8] = np.frombuffer(struct.pack("<I4s", int(position[0]), IDENTIFIER), np.uint8)
    for write in builder.writes:
        write(out)
    return out


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows with the same fields: where the fields stand in a row, and where the rows stand."""

    vtable: int
    base: int
    stride: int
    size: int
    """Of the table proper, without the vectors that follow it in the row."""
    offsets: Mapping[str, int]
    """Of each field in the table."""
    tails: Mapping[str, int]
    """Of each vector that stands in the row, behind the table."""


class _Builder:
    def __init__(self, place: str) -> None:
        self.place = place
        self.size = 8
        self.writes: list[Write] = []
        self.vtables: dict[bytes, int] = {}

    def reserve(self, size: int, align: int = 4) -> int:
        """Take the next `size` bytes; the position of the first."""
        position = -(-self.size // align) * align
        self.size = position + size
        return position

    def tables(self, table: fb.Table, rows: Tables) -> I64:
        """Place tables and all below them; their positions."""
        positions = np.empty(len(rows), np.int64)
        if not len(rows):
            return positions
        groups = [(group, self.group(table, group)) for group in _same_fields(table, rows)]
        for part, layout in groups:
            positions[part.rows] = layout.base + np.arange(len(part.tables), dtype=np.int64) * layout.stride
        for part, layout in groups:
            targets = {
                name: self.column(field, part.tables.columns[name])
                for name, field in part.fields.items()
                if not isinstance(field, fb.Scalar | fb.Struct) and name not in layout.tails
            }
            self.writes.append(_write_rows(layout, part, targets))
        return positions

    def group(self, table: fb.Table, part: _Part) -> _Group:
        """Lay out rows of the same fields, and take the room for them."""
        offsets, size, align = _arrange(part.fields)
        slots = [0] * (1 + max((_last_slot(field) for field in part.fields.values()), default=-1))
        for name, field in part.fields.items():
            slots[field.slot] = offsets[name]
            if isinstance(field, fb.Variants):
                slots[field.slot + 1] = offsets[f"{name} value"]
        head = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)
        tails = {}
        stride = size
        for name, field in part.fields.items():
            column = part.tables.columns[name]
            if isinstance(field, fb.Vector) and isinstance(column, np.ndarray):
                stride = (
                    -(-(stride + 4) // field.align) * field.align - 4
                    if field.align > 4
                    else -(-stride // 4) * 4
                )
                tails[name] = stride
                stride += 4 + column.shape[1] * field.dtype.itemsize
                align = max(align, field.align)
        stride = -(-stride // align) * align
        vtable = self.vtable(head)
        return _Group(vtable, self.reserve(stride * len(part.tables), align), stride, size, offsets, tails)

    def vtable(self, head: bytes) -> int:
        """Place a vtable, or find the same one placed before."""
        if head not in self.vtables:
            position = self.vtables[head] = self.reserve(len(head))
            self.writes.append(lambda out: _put(out, position, head))
        return self.vtables[head]

    def column(self, field: fb.Field, column: Any) -> I64 | _Targets:
        """Place what the rows of a column point to; a position per row."""
        match field:
            case fb.Bytes(text=text):
                if isinstance(column, Shared):
                    return _Targets(self.blobs(column.blobs, text), column.codes)
                return self.blobs(column, text)
            case fb.Vector(dtype=dtype, align=align):
                return self.vectors(column, dtype, align)
            case fb.Texts():
                return self.offsets(column.splits, lambda: self.blobs(column.items, True))
            case fb.Children(table=table):
                return self.offsets(column.splits, lambda: self.tables(table, column.items))
            case fb.Child(table=table):
                return self.tables(table, column.tables[PRESENT])
            case fb.Variants(tables=schemas):
                positions = np.zeros(len(column), np.int64)
                for kind, tables in column.tables.items():
                    positions[column.kinds == kind] = self.tables(schemas[kind], tables)
                return positions
        raise TypeError(f"cannot write {field!r}")

    def blobs(self, blobs: Blobs, text: bool) -> I64:
        """Place byte strings, each behind its length; strings end in a NUL."""
        sizes = (blobs.lengths + (8 if text else 7)) & ~3
        ends = sizes.cumsum()
        positions: I64 = self.reserve(int(ends[-1]) if len(ends) else 0) + ends - sizes

        def write(out: U8) -> None:
            out.view("<u4")[positions >> 2] = blobs.lengths
            copy_ranges(blobs.buffer, blobs.starts, out, positions + 4, blobs.lengths)

        self.writes.append(write)
        return positions

    def vectors(self, column: Ragged, dtype: np.dtype[Any], align: int) -> I64:
        """Place vectors of numbers or structs."""
        items = np.ascontiguousarray(column.items, dtype)
        grain = max(align, 4)
        sizes = -(-(4 + column.lengths * dtype.itemsize) // grain) * grain
        ends = sizes.cumsum()
        # The items, not the length before them, must be aligned.
        base = self.reserve(int(ends[-1]) + grain if len(ends) else 0, grain) + grain - 4
        positions = base + ends - sizes
        starts = column.splits[:-1] * dtype.itemsize
        lengths = column.lengths

        def write(out: U8) -> None:
            out.view("<u4")[positions >> 2] = lengths
            copy_ranges(
                items.view(np.uint8).reshape(-1), starts, out, positions + 4, lengths * dtype.itemsize
            )

        self.writes.append(write)
        return positions

    def offsets(self, splits: I64, place: Callable[[], I64]) -> I64:
        """Place vectors of offsets, then, since offsets only point forward, what they lead to."""
        count = len(splits) - 1
        base = self.reserve(4 * (count + int(splits[-1])))
        positions = base + 4 * (splits[:-1] + np.arange(count))
        targets = place()

        def write(out: U8) -> None:
            words = out.view("<u4")
            lengths = np.diff(splits)
            words[positions >> 2] = lengths
            if count == 1:  # the one vector of a million refs: no index columns
                first = (base >> 2) + 1
                for start in range(0, len(targets), BLOCK):
                    part = targets[start : start + BLOCK]
                    slots = np.arange(first + start, first + start + len(part), dtype=np.int64)
                    words[first + start : first + start + len(part)] = part - slots * 4
                return
            slots = base + 4 * (np.arange(len(targets)) + 1 + np.repeat(np.arange(count), lengths))
            words[slots >> 2] = targets - slots

        self.writes.append(write)
        return positions


@dataclass(frozen=True, slots=True)
class _Targets:
    """Positions of shared strings, by code."""

    positions: I64
    codes: NDArray[Any]

    def __getitem__(self, rows: Any) -> I64:
        targets: I64 = self.positions[self.codes[rows]]
        return targets


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a `Tables` that have one set of fields."""

    rows: Any
    tables: Tables
    fields: Mapping[str, fb.Field]


def _same_fields(table: fb.Table, rows: Tables) -> list[_Part]:
    """Part rows by the fields they have."""
    there = {name: field for name, field in table.fields.items() if name in rows.columns}
    for name, field in table.fields.items():
        if field.required and (name not in there or name in rows.present):
            raise FormatError(f"{table.name}.{name} is required and missing", kind=ErrorKind.SERIALIZATION)
    masks = {name: rows.present[name] for name in there if name in rows.present}
    widths = [
        w for name, field in there.items() if (w := _few_lengths(field, rows.columns[name])) is not None
    ]
    if not masks and not widths:
        return [_Part(slice(None), rows, there)]
    codes = np.zeros(len(rows), np.int64)
    for mask in masks.values():
        codes = codes * 2 + mask
    for lengths in widths:
        codes = codes * (_IN_ROW + 1) + lengths
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    parts = []
    for code, example in enumerate(first.tolist()):
        lacking = {name for name, mask in masks.items() if not mask[example]}
        fields = {name: field for name, field in there.items() if name not in lacking}
        kept = Tables(len(rows), {name: rows.columns[name] for name in fields}, {})
        chosen = np.flatnonzero(group == code)
        parts.append(_Part(chosen, _with_rectangles(kept.take(chosen), fields), fields))
    return parts


def _few_lengths(field: fb.Field, column: Any) -> NDArray[np.int64] | None:
    """The lengths of vectors, where all are short enough to stand in the rows."""
    if not isinstance(field, fb.Vector) or not isinstance(column, Ragged) or not len(column):
        return None
    lengths = column.lengths
    if int(lengths.max()) > _IN_ROW:
        return None
    return lengths


def _with_rectangles(tables: Tables, fields: Mapping[str, fb.Field]) -> Tables:
    columns = dict(tables.columns)
    for name, field in fields.items():
        column = columns[name]
        if (
            isinstance(field, fb.Vector)
            and isinstance(column, Ragged)
            and _few_lengths(field, column) is not None
        ):
            columns[name] = column.rectangle()
    return Tables(len(tables), columns, {})


def _arrange(fields: Mapping[str, fb.Field]) -> tuple[dict[str, int], int, int]:
    """The offset of each field in a table, the table's size and its alignment."""
    sizes: list[tuple[int, int, str]] = []
    for name, field in fields.items():
        if isinstance(field, fb.Scalar):
            sizes.append((field.dtype.itemsize, field.dtype.itemsize, name))
        elif isinstance(field, fb.Struct):
            sizes.append((1, field.size, name))
        elif isinstance(field, fb.Variants):
            sizes += [(1, 1, name), (4, 4, f"{name} value")]
        else:
            sizes.append((4, 4, name))
    align = max([4, *(a for a, _, _ in sizes)])
    if align == 8:  # one four-byte field fills the gap behind the table's own offset
        sizes.sort(key=lambda entry: -entry[0])
        small = next((i for i, entry in enumerate(sizes) if entry[0] == 4), None)
        if small is not None:
            sizes.insert(0, sizes.pop(small))
    else:
        sizes.sort(key=lambda entry: -entry[0])
    offsets, size = {}, 4
    for each, length, name in sizes:
        size = -(-size // each) * each
        offsets[name] = size
        size += length
    return offsets, size, align


def _last_slot(field: fb.Field) -> int:
    return field.slot + 1 if isinstance(field, fb.Variants) else field.slot


def _write_rows(layout: _Group, part: _Part, targets: Mapping[str, Any]) -> Write:
    """A function that fills in the tables of one group, a block of rows at a time."""
    view = _row_dtype(layout, part)
    count = len(part.tables)

    def write(out: U8) -> None:
        rows = np.ndarray((count,), view, out.data, layout.base)
        for start in range(0, count, BLOCK // 2):
            end = min(start + BLOCK // 2, count)
            at = layout.base + np.arange(start, end, dtype=np.int64) * layout.stride
            _write_block(rows[start:end], at, slice(start, end), layout, part, targets)

    return write


def _row_dtype(layout: _Group, part: _Part) -> np.dtype[Any]:
    names, formats, offsets = ["vtable"], ["<i4"], [0]

    def add(name: str, form: Any, offset: int) -> None:
        names.append(name)
        formats.append(form)
        offsets.append(offset)

    for name, field in part.fields.items():
        at = layout.offsets[name]
        if isinstance(field, fb.Scalar):
            add(name, field.dtype, at)
        elif isinstance(field, fb.Struct):
            add(name, ("u1", (field.size,)), at)
        elif isinstance(field, fb.Variants):
            add(name, "u1", at)
            add(f"{name} value", "<u4", layout.offsets[f"{name} value"])
        else:
            add(name, "<u4", at)
        if name in layout.tails and isinstance(field, fb.Vector):
            width = part.tables.columns[name].shape[1]
            add(f"{name} length", "<u4", layout.tails[name])
            add(f"{name} items", (field.dtype, (width,)), layout.tails[name] + 4)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": layout.stride})


def _write_block(
    rows: NDArray[Any], at: I64, which: slice, layout: _Group, part: _Part, targets: Mapping[str, Any]
) -> None:
    rows["vtable"] = at - layout.vtable
    for name, field in part.fields.items():
        column = part.tables.columns[name]
        if isinstance(field, fb.Scalar | fb.Struct):
            rows[name] = column[which]
        elif name in layout.tails:
            rows[name] = layout.tails[name] - layout.offsets[name]
            rows[f"{name} length"] = column.shape[1]
            rows[f"{name} items"] = column[which]
        elif isinstance(field, fb.Variants):
            rows[name] = column.kinds[which]
            rows[f"{name} value"] = targets[name][which] - (at + layout.offsets[f"{name} value"])
        else:
            rows[name] = targets[name][which] - (at + layout.offsets[name])


def _put(out: U8, position: int, data: bytes) -> None:
    out[position : position + len(data)] = np.frombuffer(data, np.uint8)
