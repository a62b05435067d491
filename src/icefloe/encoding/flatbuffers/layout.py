"""The memory layouts of encoded tables, computed once per table type and set of fields."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icefloe.encoding.flatbuffers import schema as fb


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of an encoded FlatBuffers table: the positions of its fields, and of the short vectors
    stored after it.
    """

    fields: Mapping[str, fb.Field]
    vtable: bytes
    stride: int
    """The distance between consecutive rows, in bytes."""
    align: int
    offsets: Mapping[str, int]
    """The position of each field in the table. The key for the value of a union has the suffix " value"."""
    tails: Mapping[str, int]
    """The position of each vector that is stored after the table."""
    dtype: np.dtype[Any]
    """The row as a structured numpy dtype."""


def make_layout(
    table: fb.TableSchema, fields: Mapping[str, fb.Field], widths: Mapping[str, int]
) -> RowLayout:
    """Compute the layout of FlatBuffers rows with the given fields, and with stored vectors of the given
    widths.
    """
    key = (tuple(fields), tuple(widths.items()))
    layout = table.layouts.get(key)
    if layout is None:
        layout = table.layouts[key] = _lay_out(fields, widths)
    found: RowLayout = layout
    return found


def _lay_out(fields: Mapping[str, fb.Field], widths: Mapping[str, int]) -> RowLayout:
    offsets, size, align = _arrange(fields)
    slots = [0] * (1 + max((_find_last_slot(field) for field in fields.values()), default=-1))
    for name, field in fields.items():
        slots[field.slot] = offsets[name]
        if isinstance(field, fb.Variants):
            slots[field.slot + 1] = offsets[f"{name} value"]
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)
    tails = {}
    stride = size
    for name, width in widths.items():
        vector: Any = fields[name]
        # The items must be aligned, not the length before them.
        stride = _round_up(stride + 4, vector.align) - 4 if vector.align > 4 else _round_up(stride, 4)
        tails[name] = stride
        stride += 4 + width * vector.dtype.itemsize
        align = max(align, vector.align)
    stride = _round_up(stride, align)
    dtype = _make_row_dtype(fields, offsets, tails, widths, stride)
    return RowLayout(dict(fields), vtable, stride, align, offsets, tails, dtype)


def _arrange(fields: Mapping[str, fb.Field]) -> tuple[dict[str, int], int, int]:
    """Return the offset of each field in a table, the size of the table and its alignment."""
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
    align = max([4, *(each for each, _, _ in sizes)])
    sizes.sort(key=lambda entry: -entry[0])
    small = next((i for i, entry in enumerate(sizes) if entry[0] == 4), None)
    if align == 8 and small is not None:  # fills the gap after the table's vtable offset
        sizes.insert(0, sizes.pop(small))
    offsets, size = {}, 4
    for each, length, name in sizes:
        offsets[name] = _round_up(size, each)
        size = offsets[name] + length
    return offsets, size, align


def _find_last_slot(field: fb.Field) -> int:
    return field.slot + 1 if isinstance(field, fb.Variants) else field.slot


def _round_up(size: int, align: int) -> int:
    return -(-size // align) * align


def _make_row_dtype(
    fields: Mapping[str, fb.Field],
    offsets: Mapping[str, int],
    tails: Mapping[str, int],
    widths: Mapping[str, int],
    stride: int,
) -> np.dtype[Any]:
    entries: list[tuple[str, Any, int]] = [("vtable", "<i4", 0)]
    for name, field in fields.items():
        at = offsets[name]
        if isinstance(field, fb.Scalar):
            entries.append((name, field.dtype, at))
        elif isinstance(field, fb.Struct):
            entries.append((name, ("u1", (field.size,)), at))
        elif isinstance(field, fb.Variants):
            entries += [(name, "u1", at), (f"{name} value", "<u4", offsets[f"{name} value"])]
        else:
            entries.append((name, "<u4", at))
        if name in tails and isinstance(field, fb.Vector):
            entries.append((f"{name} length", "<u4", tails[name]))
            entries.append((f"{name} items", (field.dtype, (widths[name],)), tails[name] + 4))
    names, formats, places = (list(column) for column in zip(*entries, strict=True))
    return np.dtype({"names": names, "formats": formats, "offsets": places, "itemsize": stride})
