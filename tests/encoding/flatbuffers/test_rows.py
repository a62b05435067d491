"""The row builder, the row reader and `Records` agree with the columnar ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding.flatbuffers import records as records_module
from icefloe.encoding.flatbuffers import row_reader
from icefloe.encoding.flatbuffers import schema as fb
from icefloe.encoding.flatbuffers.builder import build
from icefloe.encoding.flatbuffers.reader import Payload, read_root
from icefloe.encoding.flatbuffers.records import Records
from icefloe.encoding.flatbuffers.row_builder import build_row
from icefloe.encoding.flatbuffers.row_reader import read_row
from icefloe.encoding.flatbuffers.tables import Tables, from_rows, to_rows
from icefloe.errors import FormatError
from tests.support.format import flatbuffer_schemas as schemas
from tests.support.format import flatbuffer_writer

Sample = tuple[fb.TableSchema, list[dict[str, Any]]]


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Return a root table with a vector of tables of some type, and rows for the vector."""
    table = draw(schemas.tables(depth=1))
    root = fb.TableSchema("Root", {"rows": fb.children(0, table, required=True)})
    return root, draw(st.lists(schemas.rows(table), max_size=4))


def by_columns(payload: Any, root: fb.TableSchema) -> dict[str, Any]:
    (row,) = to_rows(root, read_root(Payload(payload, "sample"), root), "sample")
    return row


def child_of(root: fb.TableSchema) -> fb.TableSchema:
    table: fb.TableSchema = root.fields["rows"].table  # type: ignore[attr-defined]
    return table


@given(samples())
def test_built_rows_are_read_by_both_readers(sample: Sample) -> None:
    root, rows = sample

    payload = build_row(root, {"rows": rows}, "sample")

    assert read_row(Payload(payload, "sample"), root) == {"rows": rows}
    assert by_columns(payload, root) == {"rows": rows}


@given(samples(), st.none() | st.integers(1, 10**6))
def test_any_valid_layout_is_read(sample: Sample, seed: int | None) -> None:
    root, rows = sample

    payload = flatbuffer_writer.write(root, {"rows": rows}, seed)

    assert read_row(Payload(payload, "sample"), root) == {"rows": rows}


@given(samples(), st.none() | st.integers(1, 10**6), st.data())
def test_both_readers_agree_on_damaged_payloads(
    sample: Sample, seed: int | None, data: st.DataObject
) -> None:
    root, rows = sample
    payload = bytearray(flatbuffer_writer.write(root, {"rows": rows}, seed))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))

    assert outcome(lambda: read_row(Payload(payload, "sample"), root)) == outcome(
        lambda: by_columns(payload, root)
    )


def outcome(read: Any) -> Any:
    try:
        return read()
    except FormatError as error:
        return "refused", "sample" in error.message


@given(samples())
def test_payloads_with_many_items_are_read_as_columns(sample: Sample) -> None:
    root, rows = sample
    payload = Payload(build(root, from_rows(root, [{"rows": rows}]), "sample"), "sample")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reader, "MANY_ITEMS", 0)
        found = read_row(payload, root, ("rows",))
        whole = read_row(payload, root)

    assert list(found["rows"].rows()) == rows
    assert whole == {"rows": rows}


@given(samples(), st.integers(0, 3), st.data())
def test_records_are_equal_in_every_representation(sample: Sample, few: int, data: st.DataObject) -> None:
    root, rows = sample
    table = child_of(root)
    one = data.draw(schemas.rows(table))
    at = data.draw(st.integers(0, len(rows)))
    expected = [*rows[:at], one, *rows[at:]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_module, "FEW", few)
        forms = [
            Records(table, "sample", rows=rows),
            Records(table, "sample", columns=from_rows(table, rows)),
            Records(table, "sample", blocks=Records(table, "sample", rows=rows).blocks),
            Records(table, "sample", blocks=Records(table, "sample", columns=from_rows(table, rows)).blocks),
        ]
        for form in forms:
            added = form.insert(at, one)
            payload = build_row(root, {"rows": added.blocks}, "sample")

            assert by_columns(payload, root) == {"rows": expected}
            assert list(added.rows()) == expected
            assert [added.row(row) for row in range(len(added))] == expected
            assert list(added.without_first().rows()) == expected[1:]
            assert list(added.first(2).rows()) == expected[:2]
            assert len(added) == len(expected)


def test_dropped_tables_are_eventually_removed() -> None:
    table = fb.TableSchema("Sample", {"name": fb.text(0)})
    rows: list[dict[str, Any]] = [{"name": f"{row:100d}"} for row in range(40)]
    records = Records(table, "sample", columns=from_rows(table, rows))
    full = len(records.blocks.buffer)
    records = Records(table, "sample", blocks=records.blocks)

    for row in range(200):
        records = records.first(39).insert(0, {"name": f"{row:100d}"})

    assert len(records.blocks.buffer) < 3 * full
    assert records.row(0) == {"name": f"{199:100d}"}
    assert len(records) == 40


def test_number_replacement_covers_all_blocks() -> None:
    table = fb.TableSchema("Sample", {"name": fb.text(0), "place": fb.i32(1)})
    rows = [{"name": None if row % 2 else "x" * row, "place": row} for row in range(9)]
    records = Records(table, "sample", rows=rows)

    positions = records.number_positions("place")
    blocks = records.blocks.with_numbers(positions, np.arange(9, dtype=np.int32) * np.int32(-2))

    found = Records(table, "sample", blocks=blocks).rows()
    assert [blocks.number_position(row, 1) for row in range(9)] == positions.tolist()
    assert [row["place"] for row in found] == [-2 * row for row in range(9)]
    assert [row["name"] for row in found] == [row["name"] for row in rows]


def test_number_replacement_adds_fields_omitted_as_default() -> None:
    """The builders of the official library leave out what is the default."""
    table = fb.TableSchema("Sample", {"name": fb.text(0), "place": fb.i32(1)})
    columns = from_rows(table, [{"name": "x", "place": row} for row in range(40)])
    without = Tables(40, columns.columns, {"place": np.arange(40) > 0})
    read = Records(table, "sample", columns=without)

    records = read.with_every("place")

    blocks = records.blocks.with_numbers(records.number_positions("place"), np.arange(40, dtype=np.int32) + 5)
    assert [row["place"] for row in Records(table, "sample", blocks=blocks).rows()] == list(range(5, 45))
    assert list(records.rows()) == list(Records(table, "sample", columns=columns).rows())


def test_row_without_a_required_field_is_rejected() -> None:
    table = fb.TableSchema("Sample", {"name": fb.text(0, required=True)})

    with pytest.raises(FormatError, match=r"Sample\.name is required"):
        build_row(table, {}, "sample")


def test_oversized_number_is_rejected() -> None:
    table = fb.TableSchema("Sample", {"count": fb.u32(0)})

    with pytest.raises(FormatError, match="sample: Sample"):
        build_row(table, {"count": 1 << 32}, "sample")
