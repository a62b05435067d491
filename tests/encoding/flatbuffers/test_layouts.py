"""The columnar reader, the columnar builder and single lookups, for any schema and any valid layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.builder import build
from icefloe.encoding.flatbuffers.cursor import Cursor
from icefloe.encoding.flatbuffers.reader import Payload, read_root, read_tables
from icefloe.encoding.flatbuffers.tables import Tables, from_rows, to_rows
from icefloe.errors import FormatError
from tests.support.format import flatbuffer_schemas as schemas
from tests.support.format import flatbuffer_writer

MANY = 20
"""Rows beyond the number of vtables that are told apart by comparing."""


@st.composite
def samples(draw: st.DrawFn) -> tuple[fb.TableSchema, list[dict[str, Any]]]:
    """Return a root table with a vector of tables of some type, and rows for the vector."""
    table = draw(schemas.tables(depth=1))
    root = fb.TableSchema("Root", {"rows": fb.children(0, table, required=True)})
    return root, draw(st.lists(schemas.rows(table), max_size=4))


def read(payload: bytes | np.ndarray[Any, Any], root: fb.TableSchema) -> list[dict[str, Any]]:
    found = to_rows(root, read_root(Payload(payload, "sample"), root), "sample")
    rows: list[dict[str, Any]] = found[0]["rows"]
    return rows


@given(samples())
def test_flatbuffer_reader_reads_the_output_of_the_builder(
    sample: tuple[fb.TableSchema, list[dict[str, Any]]],
) -> None:
    root, rows = sample

    payload = build(root, from_rows(root, [{"rows": rows}]), "sample")

    assert read(payload, root) == rows


@given(samples(), st.none() | st.integers(1, 10**6))
def test_any_valid_layout_is_read(
    sample: tuple[fb.TableSchema, list[dict[str, Any]]], seed: int | None
) -> None:
    root, rows = sample

    payload = flatbuffer_writer.write(root, {"rows": rows}, seed)

    assert read(payload, root) == rows


@given(samples(), st.integers(1, 10**6))
def test_single_row_lookups_agree_with_columns(
    sample: tuple[fb.TableSchema, list[dict[str, Any]]], seed: int
) -> None:
    root, rows = sample
    payload = Payload(flatbuffer_writer.write(root, {"rows": rows}, seed), "sample")

    slots = Cursor.root(payload, root).children("rows")

    assert slots is not None
    assert len(slots) == len(rows)
    table: fb.TableSchema = root.fields["rows"].table  # type: ignore[attr-defined]
    for row, expected in enumerate(rows):
        found = {name: look_up(slots[row], name, kind) for name, kind in table.fields.items()}
        assert found == {name: comparable(expected[name], kind) for name, kind in table.fields.items()}
    columns = read_tables(payload, table, slots.positions())
    assert to_rows(table, columns, "sample") == rows


def look_up(cursor: Cursor, name: str, kind: fb.Field) -> Any:
    """Return a field through a cursor; of what cursors do not read, only that it is not asked for."""
    match kind:
        case fb.Scalar():
            return cursor.number(name)
        case fb.Struct() | fb.Bytes():
            return cursor.bytes(name)
        case fb.Vector(dtype=dtype) if dtype == np.dtype("<u4"):
            return cursor.numbers(name)
        case fb.Children():
            found = cursor.children(name)
            return None if found is None else len(found)
    return None


def comparable(value: Any, kind: fb.Field) -> Any:
    match kind:
        case fb.Scalar() | fb.Struct():
            return value
        case fb.Bytes(text=text):
            return value.encode() if text and value is not None else value
        case fb.Vector(dtype=dtype) if dtype == np.dtype("<u4"):
            return None if value is None else tuple(value)
        case fb.Children():
            return None if value is None else len(value)
    return None


@given(samples(), st.data())
def test_rows_are_selected_and_joined(
    sample: tuple[fb.TableSchema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    root, rows = sample
    table: fb.TableSchema = root.fields["rows"].table  # type: ignore[attr-defined]
    whole = from_rows(table, rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    mask = np.array([row in chosen for row in range(len(rows))], np.bool_)
    picks: list[Any] = [np.array(chosen, np.int64), mask, slice(1, None, 2)]

    parts = [whole.take(pick) for pick in picks]

    expected = [[rows[row] for row in chosen], [r for r, m in zip(rows, mask, strict=True) if m], rows[1::2]]
    for part, wanted in zip(parts, expected, strict=True):
        assert to_rows(table, part, "sample") == wanted
    joined = Tables.concat([whole, *parts])
    assert to_rows(table, joined, "sample") == [*rows, *(row for part in expected for row in part)]


def test_tables_with_separate_vtables_are_read() -> None:
    table = fb.TableSchema("Sample", {f"f{slot}": fb.u32(slot) for slot in range(6)})
    root = fb.TableSchema("Root", {"rows": fb.children(0, table, required=True)})
    # Which of six fields a row has makes its vtable: 40 different ones in one block.
    rows = [{f"f{slot}": row + 1 if row >> slot & 1 else 0 for slot in range(6)} for row in range(2 * MANY)]

    assert read(flatbuffer_writer.write(root, {"rows": rows}), root) == rows
    assert read(flatbuffer_writer.write(root, {"rows": rows}, 7), root) == rows


def test_short_vectors_and_a_long_vector_are_written_together() -> None:
    table = fb.TableSchema("Sample", {"numbers": fb.vector(0, "<u4", 4), "name": fb.text(1)})
    root = fb.TableSchema("Root", {"rows": fb.children(0, table)})
    rows: list[dict[str, Any]] = [{"numbers": [1] * n, "name": None} for n in (1, 2)]
    rows.append({"numbers": [0] * 17, "name": "long"})

    payload = build(root, from_rows(root, [{"rows": rows}]), "sample")

    assert read(payload, root) == rows


def test_child_tables_may_be_shared_between_parents() -> None:
    inner = fb.TableSchema("Inner", {"name": fb.text(0, required=True)})
    root = fb.TableSchema("Root", {"rows": fb.children(0, inner, required=True), "one": fb.child(1, inner)})
    graph = flatbuffer_writer.Graph()
    child = graph.table(inner, {"name": "same"})
    table = flatbuffer_writer.Table({0: flatbuffer_writer.Pointers([child] * 3), 1: child})

    found = to_rows(root, read_root(Payload(bytes(flatbuffer_writer.Written(table)), "x"), root), "x")

    assert found == [{"rows": [{"name": "same"}] * 3, "one": {"name": "same"}}]


def test_builder_rejects_a_row_without_a_required_field() -> None:
    table = fb.TableSchema("Sample", {"name": fb.text(0, required=True)})
    root = fb.TableSchema("Root", {"rows": fb.children(0, table)})

    with pytest.raises(FormatError, match=r"Sample\.name is required"):
        build(root, from_rows(root, [{"rows": [{"name": "a"}, {}]}]), "sample")


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_missing_required_field_is_named(seed: int | None) -> None:
    loose = fb.TableSchema("Sample", {"name": fb.text(0), "other": fb.u32(1)})
    strict = fb.TableSchema("Sample", {"name": fb.text(0, required=True), "other": fb.u32(1)})
    written, read_as = (fb.TableSchema("Root", {"rows": fb.children(0, table)}) for table in (loose, strict))
    payload = flatbuffer_writer.write(written, {"rows": [{"name": "a"}, {"other": 5}]}, seed)

    with pytest.raises(FormatError, match=r"^sample: Sample\.name is missing"):
        read(payload, read_as)
