"""Build a FlatBuffers payload from columns.

Rows with the same fields share one vtable and have a constant stride, so that each field of all rows is
written by one strided assignment. First, everything is assigned a position, the root before its children.
Then one buffer is allocated and filled block by block. Strings that rows share (`Shared`) are written once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.encoding.columns import (
    BLOCK,
    I64,
    U8,
    Blobs,
    Ragged,
    Rectangles,
    RowBlocks,
    Shared,
    StreamedLists,
    copy_ranges,
    take,
    to_splits,
)
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.layout import RowLayout, make_layout
from icefloe.encoding.flatbuffers.limits import check_size, make_file_head
from icefloe.encoding.flatbuffers.row_builder import Blocks
from icefloe.encoding.flatbuffers.tables import PRESENT, Tables
from icefloe.errors import ErrorKind, FormatError

_IN_ROW = 16
"""Vectors with at most this many items are stored next to their table."""

_LONG_LIST = 256
"""Lists longer than this are written one by one."""

Write = Callable[[U8], None]
Buffer: TypeAlias = bytes | memoryview


def build(table: fb.TableSchema, root: Tables, place: str) -> U8:
    """Build a FlatBuffers payload from columns. The root table is the only row of `root`."""
    builder = _Builder(place, 8)
    position = builder.tables(table, root)
    out = builder.filled()
    out[:8] = np.frombuffer(make_file_head(int(position[0])), np.uint8)
    return out


@dataclass(frozen=True, slots=True)
class PayloadParts:
    """A FlatBuffers payload that is built part by part while it is written."""

    size: int
    parts: Iterator[Buffer]


def build_parts(table: fb.TableSchema, root: Tables, place: str) -> PayloadParts:
    """Build a FlatBuffers payload from columns, part by part. Columns may be `StreamedLists`."""
    builder = _Builder(place, 8)
    position = builder.tables(table, root)
    out = builder.filled()
    out[:8] = np.frombuffer(make_file_head(int(position[0])), np.uint8)

    def parts() -> Iterator[Buffer]:
        at = 0
        for start, stop, write in builder.streams:
            yield out[at:start].data
            yield from write()
            at = stop
        yield out[at:].data

    return PayloadParts(len(out), parts())


def build_column_blocks(table: fb.TableSchema, rows: Tables, place: str) -> Blocks:
    """Encode columns as FlatBuffers tables that can be inserted into payloads."""
    builder = _Builder(place, 0)
    positions = builder.tables(table, rows)
    return Blocks(builder.filled().tobytes(), positions, vtables=builder.vtables)


class _Builder:
    def __init__(self, place: str, size: int) -> None:
        self.place = place
        self.size = size
        self.writes: list[Write] = []
        self.vtables: dict[bytes, int] = {}
        self.streams: list[tuple[int, int, Callable[[], Iterator[Buffer]]]] = []
        """The ranges of the payload that are not kept in memory, in order, each with the function that
        generates it.
        """

    def filled(self) -> U8:
        """Return the buffer with all values, padded to a multiple of 8 bytes.

        Streamed ranges are not touched, so that the operating system allocates no memory for them.
        """
        check_size(self.size, self.place)
        out = np.zeros(-(-self.size // 8) * 8, np.uint8)
        for write in self.writes:
            write(out)
        return out

    def reserve(self, size: int, align: int = 4) -> int:
        """Reserve the next `size` bytes, and return the position of the first."""
        position = -(-self.size // align) * align
        self.size = position + size
        return position

    def tables(self, table: fb.TableSchema, rows: Tables) -> I64:
        """Place tables and all of their children, and return their positions."""
        positions = np.empty(len(rows), np.int64)
        if not len(rows):
            return positions
        parts = _split_by_fields(table, rows)
        placed = [self.rows(part) for part in parts]
        for part, base in zip(parts, placed, strict=True):
            stop = base + len(part.tables) * part.layout.stride
            positions[part.rows] = np.arange(base, stop, part.layout.stride, dtype=np.int64)
        for part, base in zip(parts, placed, strict=True):
            targets = {
                name: self.column(field, part.tables.columns[name])
                for name, field in part.layout.fields.items()
                if not isinstance(field, fb.Scalar | fb.Struct) and name not in part.layout.tails
            }
            vtable = self.vtable(part.layout.vtable)
            self.writes.append(partial(_write_rows, part, targets, base, vtable))
        return positions

    def rows(self, part: _Part) -> int:
        """Reserve space for rows with the same fields, after their vtable."""
        self.vtable(part.layout.vtable)
        return self.reserve(part.layout.stride * len(part.tables), part.layout.align)

    def vtable(self, head: bytes) -> int:
        """Place a vtable, or find an identical one, and return its position."""
        if head not in self.vtables:
            position = self.vtables[head] = self.reserve(len(head))
            self.writes.append(lambda out: _put(out, position, head))
        return self.vtables[head]

    def column(self, field: fb.Field, column: Any) -> I64 | _Targets:
        """Place the values that the rows point to, and return one position per row."""
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
                if isinstance(column, StreamedLists):
                    return self.streamed(table, column)
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
        """Place byte strings, each after its length. Texts end with a null byte."""
        if len(blobs) == 1:
            return self.blob(blobs[0], text)
        sizes = (blobs.lengths + (8 if text else 7)) & ~3
        ends = sizes.cumsum()
        positions: I64 = self.reserve(int(ends[-1]) if len(ends) else 0) + ends - sizes

        def write(out: U8) -> None:
            out.view("<u4")[positions >> 2] = blobs.lengths
            copy_ranges(blobs.buffer, blobs.starts, out, positions + 4, blobs.lengths)

        self.writes.append(write)
        return positions

    def blob(self, data: bytes, text: bool) -> I64:
        """Place a single byte string."""
        position = self.reserve((len(data) + (8 if text else 7)) & ~3)
        self.writes.append(lambda out: _put(out, position, len(data).to_bytes(4, "little") + data))
        return np.array([position])

    def vectors(self, column: Ragged, dtype: np.dtype[Any], align: int) -> I64:
        """Place vectors of numbers or structs."""
        items = np.ascontiguousarray(column.items, dtype)
        grain = max(align, 4)
        sizes = -(-(4 + column.lengths * dtype.itemsize) // grain) * grain
        ends = sizes.cumsum()
        # The items must be aligned, not the length before them.
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
        """Place vectors of offsets and then their targets, because offsets can only point forward."""
        count = len(splits) - 1
        base = self.reserve(4 * (count + int(splits[-1])))
        positions = base + 4 * (splits[:-1] + np.arange(count))
        targets = place()

        def write(out: U8) -> None:
            words = out.view("<u4")
            lengths = splits[1:] - splits[:-1]
            words[positions >> 2] = lengths
            if count * _LONG_LIST <= len(targets):  # a vector of a million refs: avoid index columns
                for begin, stop, at in zip(
                    splits[:-1].tolist(), splits[1:].tolist(), positions.tolist(), strict=True
                ):
                    first = (at >> 2) + 1 - begin
                    for start in range(begin, stop, BLOCK):
                        part = targets[start : min(start + BLOCK, stop)]
                        slots = np.arange(first + start, first + start + len(part), dtype=np.int64)
                        words[first + start : first + start + len(part)] = part - slots * 4
                return
            slots = base + 4 * (np.arange(len(targets)) + 1 + np.repeat(np.arange(count), lengths))
            words[slots >> 2] = targets - slots

        self.writes.append(write)
        return positions

    def streamed(self, table: fb.TableSchema, lists: StreamedLists) -> I64:
        """Reserve space for vectors of offsets and for their targets, which are tables with one short vector
        of numbers.
        """
        ((name, _),) = table.fields.items()
        sizes = np.array([len(rows) for rows in lists.items], np.int64)
        ends = to_splits(sizes)[lists.splits]
        count = len(ends) - 1
        base = self.reserve(4 * (count + int(ends[-1])))
        positions = base + 4 * (ends[:-1] + np.arange(count))
        placed: list[tuple[int, int]] = []
        offsets = partial(_stream_offsets, base, lists, placed)
        self.streams.append((base, self.size, offsets))
        for rows in lists.items:
            if not len(rows):
                placed.append((0, 0))
                continue
            layout = make_layout(table, table.fields, {name: rows.rank})
            vtable = self.vtable(layout.vtable)
            at = self.reserve(layout.stride * len(rows), layout.align)
            placed.append((at, layout.stride))
            self.streams.append((at, self.size, partial(_stream_rows, rows, layout, name, at, vtable)))
        return positions


def _stream_offsets(base: int, lists: StreamedLists, placed: Sequence[tuple[int, int]]) -> Iterator[Buffer]:
    """Yield vectors of offsets to rows whose positions and strides are known."""
    at = base
    for start, stop in pairwise(lists.splits.tolist()):
        yield sum(len(lists.items[item]) for item in range(start, stop)).to_bytes(4, "little")
        at += 4
        for item in range(start, stop):
            position, stride = placed[item]
            for row in range(0, len(lists.items[item]), BLOCK):
                rows = np.arange(row, min(row + BLOCK, len(lists.items[item])), dtype=np.int64)
                yield (position + rows * stride - (at + 4 * (rows - row))).astype("<u4").data
                at += 4 * len(rows)


def _stream_rows(rows: RowBlocks, layout: RowLayout, name: str, at: int, vtable: int) -> Iterator[Buffer]:
    """Yield tables whose only field is a vector that is stored next to the table."""
    for items in rows.blocks():
        block = np.zeros(len(items), layout.dtype)
        block["vtable"] = np.arange(at - vtable, at - vtable + len(items) * layout.stride, layout.stride)
        block[name] = layout.tails[name] - layout.offsets[name]
        block[f"{name} length"] = rows.rank
        block[f"{name} items"] = items
        yield block.view(np.uint8).data
        at += len(items) * layout.stride


@dataclass(frozen=True, slots=True)
class _Targets:
    """The positions of shared strings, by code."""

    positions: I64
    codes: NDArray[Any]

    def __getitem__(self, rows: Any) -> I64:
        targets: I64 = self.positions[self.codes[rows]]
        return targets


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a `Tables` that have the same layout."""

    rows: Any
    tables: Tables
    layout: RowLayout


def _split_by_fields(table: fb.TableSchema, rows: Tables) -> list[_Part]:
    """Group rows by the fields that they have and by the widths of their short vectors."""
    there = {name: field for name, field in table.fields.items() if name in rows.columns}
    for name, field in table.fields.items():
        if field.required and (name not in there or name in rows.present):
            raise FormatError(f"{table.name}.{name} is required but missing", kind=ErrorKind.SERIALIZATION)
    for name in there:
        if isinstance(column := rows.columns[name], Rectangles):
            return list(_split_rectangles(table, rows, name, column))
    masks = {name: rows.present[name] for name in there if name in rows.present}
    short = {
        name: lengths
        for name, f in there.items()
        if (lengths := _find_short_lengths(f, rows.columns[name])) is not None
    }
    if len(rows) == 1 or not (masks or any((lengths != lengths[0]).any() for lengths in short.values())):
        fields = {name: field for name, field in there.items() if name not in masks or masks[name][0]}
        return [_make_part(table, slice(None), rows, fields, short.keys())]
    codes = np.zeros(len(rows), np.int64)
    for mask in masks.values():
        codes = codes * 2 + mask
    for lengths in short.values():
        codes = codes * (_IN_ROW + 1) + lengths
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    parts = []
    for code, example in enumerate(first.tolist()):
        fields = {name: field for name, field in there.items() if name not in masks or masks[name][example]}
        kept = Tables(len(rows), {name: rows.columns[name] for name in fields}, {})
        chosen = np.flatnonzero(group == code)
        parts.append(_make_part(table, chosen, kept.take(chosen), fields, short.keys()))
    return parts


def _split_rectangles(table: fb.TableSchema, rows: Tables, name: str, column: Rectangles) -> Iterator[_Part]:
    """Yield the rows of each (rows, width) array without copying them."""
    start = 0
    for part in column.parts:
        chosen = slice(start, start + len(part))
        others = {other: take(each, chosen) for other, each in rows.columns.items() if other != name}
        yield _make_part(table, chosen, Tables(len(part), {**others, name: part}, {}), table.fields, ())
        start += len(part)


def _find_short_lengths(field: fb.Field, column: Any) -> NDArray[np.int64] | None:
    """Return the lengths of vectors if all of them are short enough to be stored next to their tables."""
    if not isinstance(field, fb.Vector) or not isinstance(column, Ragged):
        return None
    lengths = column.lengths
    longest = int(lengths[0]) if len(lengths) == 1 else int(lengths.max())
    return lengths if longest <= _IN_ROW else None


def _make_part(
    table: fb.TableSchema, chosen: Any, rows: Tables, fields: Mapping[str, fb.Field], short: Container[str]
) -> _Part:
    """Create a part from rows of one layout, with their short vectors as (rows, width) arrays."""
    columns, widths = dict(rows.columns), {}
    for name, field in fields.items():
        if not isinstance(field, fb.Vector):
            continue
        if name in short:
            columns[name] = columns[name].rectangle()
        if isinstance(columns[name], np.ndarray):
            widths[name] = columns[name].shape[1]
    return _Part(chosen, Tables(len(rows), columns, {}), make_layout(table, fields, widths))


def _write_rows(part: _Part, targets: Mapping[str, Any], base: int, vtable: int, out: U8) -> None:
    """Write rows of one layout, a block of rows at a time."""
    count, layout = len(part.tables), part.layout
    if count == 1:
        _write_row(part, targets, base, vtable, out.data)
        return
    rows = np.ndarray((count,), layout.dtype, out.data, base)
    for start in range(0, count, BLOCK // 2):
        end = min(start + BLOCK // 2, count)
        first = base + start * layout.stride
        at = np.arange(first, first + (end - start) * layout.stride, layout.stride, dtype=np.int64)
        block = rows[start:end]
        block["vtable"] = at - vtable
        _write_block(block, at, slice(start, end), part, targets)


def _write_row(part: _Part, targets: Mapping[str, Any], base: int, vtable: int, out: memoryview) -> None:
    """Write a single row with plain numbers instead of columns. In small files, most tables have one row."""
    layout = part.layout
    struct.pack_into("<i", out, base, base - vtable)
    for name, field in layout.fields.items():
        column, at = part.tables.columns[name], base + layout.offsets[name]
        if isinstance(field, fb.Scalar):
            data = column[:1].astype(field.dtype).tobytes()
            out[at : at + len(data)] = data
        elif isinstance(field, fb.Struct):
            out[at : at + field.size] = column[0].tobytes()
        elif name in layout.tails and isinstance(field, fb.Vector):
            tail = layout.tails[name]
            struct.pack_into("<I", out, at, tail - layout.offsets[name])
            data = np.ascontiguousarray(column[0], field.dtype).tobytes()
            struct.pack_into("<I", out, base + tail, column.shape[1])
            out[base + tail + 4 : base + tail + 4 + len(data)] = data
        elif isinstance(field, fb.Variants):
            out[at] = int(column.kinds[0])
            at = base + layout.offsets[f"{name} value"]
            struct.pack_into("<I", out, at, int(targets[name][0]) - at)
        else:
            struct.pack_into("<I", out, at, int(targets[name][0]) - at)


def _write_block(rows: NDArray[Any], at: I64, which: slice, part: _Part, targets: Mapping[str, Any]) -> None:
    layout = part.layout
    for name, field in layout.fields.items():
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
