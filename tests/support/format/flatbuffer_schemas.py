"""Hypothesis strategies for FlatBuffers schemas, and for rows that fit one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from icefloe.encoding.flatbuffers import schema as fb

PAIR = [("from", "<u4"), ("to", "<u4")]
WIDE = [("length", "<u8"), ("chunk", "<u8")]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)

ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "<u4": U32,
    "<u2": st.integers(0, 2**16 - 1),
    "V8": st.binary(min_size=8, max_size=8),
    "pair": st.tuples(U32, U32),
    "wide": st.tuples(U64, U64),
}
VECTORS: dict[str, tuple[Any, int]] = {
    "<u4": ("<u4", 4),
    "<u2": ("<u2", 2),
    "V8": ("V8", 1),
    "pair": (PAIR, 4),
    "wide": (WIDE, 8),
}
Maker = Callable[[int, bool], fb.Field]


def tables(depth: int = 2) -> st.SearchStrategy[fb.TableSchema]:
    """Return a strategy for table types of up to six fields, which may contain tables."""
    return st.lists(st.tuples(_makers(depth), st.booleans(), st.integers(0, 2)), min_size=1, max_size=6).map(
        _table
    )


def _table(entries: list[tuple[Maker, bool, int]]) -> fb.TableSchema:
    fields: dict[str, fb.Field] = {}
    slot = 0
    for maker, required, gap in entries:
        slot += gap  # slots of fields that this reader does not know
        made = maker(slot, required)
        fields[f"f{slot}"] = made
        slot += 2 if isinstance(made, fb.Variants) else 1
    return fb.TableSchema("Sample", fields)


def _makers(depth: int) -> st.SearchStrategy[Maker]:
    plain: list[Maker] = [
        *(lambda slot, _, make=make: make(slot) for make in (fb.u8, fb.u16, fb.u32, fb.i32, fb.u64)),
        lambda slot, _: fb.u8(slot, default=1),
        lambda slot, required: fb.struct(slot, 12, required=required),
        lambda slot, required: fb.text(slot, required=required),
        lambda slot, required: fb.blob(slot, required=required),
        lambda slot, required: fb.texts(slot, required=required),
    ]
    for dtype, align in VECTORS.values():
        plain.append(_vector_maker(dtype, align))
    makers = st.sampled_from(plain)
    if not depth:
        return makers
    inner = tables(depth - 1)
    return st.one_of(
        makers,
        inner.map(lambda table: lambda slot, required: fb.children(slot, table, required=required)),
        inner.map(lambda table: lambda slot, required: fb.child(slot, table, required=required)),
        st.tuples(inner, inner).map(
            lambda pair: lambda slot, required: fb.union(slot, {1: pair[0], 3: pair[1]}, required=required)
        ),
    )


def _vector_maker(dtype: Any, align: int) -> Maker:
    return lambda slot, required: fb.vector(slot, dtype, align, required=required)


def rows(table: fb.TableSchema) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for rows of a table, in the form of `to_rows`."""
    return st.fixed_dictionaries({name: _values(field) for name, field in table.fields.items()})


def _values(field: fb.Field) -> st.SearchStrategy[Any]:
    if isinstance(field, fb.Scalar):
        info = np.iinfo(field.dtype)
        return st.just(field.default) | st.integers(int(info.min), int(info.max))
    present = _present(field)
    return present if field.required else st.none() | present


def _present(field: fb.Field) -> st.SearchStrategy[Any]:
    match field:
        case fb.Struct(size=size):
            return st.binary(min_size=size, max_size=size)
        case fb.Bytes(text=text):
            return TEXTS if text else st.binary(max_size=10)
        case fb.Vector(dtype=dtype):
            name = next(name for name, (known, _) in VECTORS.items() if np.dtype(known) == dtype)
            items = ITEMS[name]
            return st.lists(items, max_size=3) | items.map(lambda item: [item] * 17)
        case fb.Texts():
            return st.lists(TEXTS, max_size=3)
        case fb.Children(table=table):
            return st.lists(rows(table), max_size=3)
        case fb.Child(table=table):
            return rows(table)
        case fb.Variants(tables=known):
            return st.one_of(*(rows(table).map(lambda r, k=kind: (k, r)) for kind, table in known.items()))  # type: ignore[misc]
    raise TypeError(f"no rows for {field!r}")
