"""Columns of byte strings and lists, compared with Python lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding.columns import (
    Blobs,
    Ragged,
    Shared,
    concat,
    copy_ranges,
    expand_ranges,
    is_constant,
    make_constant,
    take,
    to_splits,
)
from icefloe.errors import FormatError, InvalidInputError

ITEMS = st.lists(st.binary(max_size=20), max_size=10)


@st.composite
def scattered(draw: st.DrawFn) -> tuple[Blobs, list[bytes]]:
    """Ranges of one buffer that overlap, leave gaps or are empty, and what they hold."""
    data = draw(st.binary(max_size=60))
    bounds = st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(sorted)
    ranges = draw(st.lists(bounds, max_size=10))
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([stop - start for start, stop in ranges], np.int64)
    return Blobs(np.frombuffer(data, np.uint8), starts, lengths), [data[a:b] for a, b in ranges]


@given(ITEMS)
def test_column_of_blobs_returns_its_source_values(items: list[bytes]) -> None:
    blobs = Blobs.from_list(items)

    assert blobs.tolist() == list(blobs) == items
    assert [blobs[row] for row in range(len(blobs))] == items
    assert blobs == Blobs.from_list(items)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8))
def test_texts_round_trip(texts: list[str]) -> None:
    blobs = Blobs.from_texts(texts)

    assert blobs.texts() == texts
    assert blobs.tolist() == [text.encode() for text in texts]


def test_text_with_lone_surrogates_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"lone surrogates.*'x\\ud800'"):
        Blobs.from_texts(["a", "x\ud800"])


@given(scattered(), st.data())
def test_scattered_blobs_are_selected_and_compacted(
    sample: tuple[Blobs, list[bytes]], data: st.DataObject
) -> None:
    blobs, items = sample
    rows = data.draw(st.lists(st.integers(0, len(items) - 1))) if items else []
    mask = np.array([row % 2 == 0 for row in range(len(items))], np.bool_)

    assert blobs.tolist() == items
    assert blobs.compact().tolist() == items
    assert blobs == Blobs.from_list(items)
    assert blobs.take(np.array(rows, np.int64)).tolist() == [items[row] for row in rows]
    assert blobs.take(mask).tolist() == items[::2]
    assert blobs.take(slice(1, 3)).tolist() == items[1:3]


@given(st.lists(scattered(), min_size=1, max_size=4))
def test_columns_of_blobs_are_concatenated(parts: list[tuple[Blobs, list[bytes]]]) -> None:
    whole = Blobs.concat([blobs for blobs, _ in parts])

    assert whole.tolist() == [item for _, items in parts for item in items]


@given(scattered())
def test_parts_of_one_buffer_keep_sharing_it(sample: tuple[Blobs, list[bytes]]) -> None:
    blobs, items = sample

    whole = Blobs.concat([blobs, blobs.take(slice(0, 2)), Blobs.empty(1)])

    assert whole.tolist() == [*items, *items[:2], b""]
    assert whole.buffer is blobs.buffer or not blobs.buffer.size


@given(ITEMS, ITEMS)
def test_blobs_are_equal_if_their_items_are(one: list[bytes], other: list[bytes]) -> None:
    assert (Blobs.from_list(one) == Blobs.from_list(other)) == (one == other)


@pytest.mark.parametrize("bad", [b"\xff", b"ab\xc3", b"\xed\xa0\x80"])
def test_invalid_utf8_is_reported_with_its_row(bad: bytes) -> None:
    with pytest.raises(FormatError, match=r"^names, row 1: not UTF-8 at byte"):
        Blobs.from_list([b"good", bad]).texts("names")


@given(st.lists(st.tuples(st.sampled_from([b"a", b"", b"ccc"]), st.just(0)), max_size=5), st.data())
def test_shared_strings_are_selected_and_joined(items: list[tuple[bytes, int]], data: st.DataObject) -> None:
    distinct = sorted({item for item, _ in items})
    codes = np.array([distinct.index(item) for item, _ in items], np.uint32)
    shared = Shared(codes, Blobs.from_list(distinct))

    def values(column: Shared) -> list[bytes]:
        return [column.blobs[int(code)] for code in column.codes]

    whole = Shared.concat([shared, shared.take(slice(0, 2))])
    assert values(whole) == [item for item, _ in items] + [item for item, _ in items[:2]]


LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    flat = np.array([item for part in lists for item in part], np.int64)
    return Ragged(flat, to_splits(np.array([len(part) for part in lists], np.int64)))


def lists_of(column: Ragged) -> list[list[int]]:
    splits = column.splits.tolist()
    return [column.items[splits[i] : splits[i + 1]].tolist() for i in range(len(column))]


@given(LISTS, st.data())
def test_lists_are_selected_and_joined(lists: list[list[int]], data: st.DataObject) -> None:
    column = ragged(lists)
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1))) if lists else []

    taken = column.take(np.array(rows, np.int64))

    assert lists_of(column) == lists
    assert lists_of(taken) == [lists[row] for row in rows]
    assert lists_of(concat([column, taken])) == lists + [lists[row] for row in rows]


@given(LISTS)
def test_lists_of_equal_length_are_a_rectangle(lists: list[list[int]]) -> None:
    found = ragged(lists).rectangle()

    if len({len(part) for part in lists}) > 1:
        assert found is None
    else:
        assert found is not None
        assert found.tolist() == lists


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=6))
def test_index_ranges_are_expanded(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([length for _, length in ranges], np.int64)

    assert expand_ranges(starts, lengths).tolist() == [s + i for s, n in ranges for i in range(n)]


@given(st.binary(min_size=30, max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8))))
def test_byte_ranges_are_copied(source: bytes, wanted: list[tuple[int, int]]) -> None:
    ranges = [(start, min(length, 30 - start)) for start, length in wanted]
    starts, lengths = (np.array([r[i] for r in ranges], np.int64) for i in range(2))
    ends = lengths.cumsum()
    target = np.zeros(int(lengths.sum()), np.uint8)

    copy_ranges(np.frombuffer(source, np.uint8), starts, target, ends - lengths, lengths)

    assert target.tobytes() == b"".join(source[start : start + length] for start, length in ranges)


@pytest.mark.parametrize("rows", [slice(0, 2), np.array([True, False, True]), np.array([2, 0, 1, 1])])
def test_constant_column_stays_constant(rows: Any) -> None:
    column = make_constant(7, 3, np.uint32)
    plain = np.array([7, 7, 7], np.uint32)

    taken = take(column, rows)

    assert taken.tolist() == plain[rows].tolist()
    assert is_constant(taken)
    assert concat([column, column]).tolist() == [7] * 6
    assert concat([column, make_constant(8, 2, np.uint32)]).tolist() == [7, 7, 7, 8, 8]
