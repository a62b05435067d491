"""Columns between processes: every encoding of numbers round-trips, and invalid ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding.packed_columns import ColumnPacker, ColumnUnpacker
from icefloe.errors import FormatError

MAGIC = b"COLUMNS\x01"


def packed(column: Any, *, ascending: bool = True) -> tuple[list[int], bytes]:
    packer = ColumnPacker()
    note = packer.numbers(column, ascending=ascending)
    return note, packer.pack(MAGIC, note)


def unpacked(data: bytes, count: int, dtype: str, note: list[int] | None = None) -> Any:
    unpacker = ColumnUnpacker(data, MAGIC, "the columns")
    return unpacker.numbers(unpacker.head if note is None else note, np.dtype(dtype), count)


@given(
    runs=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 40)), max_size=8),
    first=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["u4", "u8"]),
)
def test_runs_of_steps_round_trip(runs: list[tuple[int, int]], first: int, dtype: str) -> None:
    steps = np.repeat([step for step, _ in runs] or [0], [count for _, count in runs] or [0])
    column = (first + np.concatenate([[0], steps.cumsum()])).astype(dtype)

    found = unpacked(packed(column)[1], len(column), dtype)

    assert found.dtype == column.dtype
    assert np.array_equal(found, column)


@pytest.mark.parametrize(
    ("column", "way", "most_bytes"),
    [
        (np.arange(5, 100_005), 3, 100),  # a ramp
        (np.arange(100_000) % 100 * 1000, 3, 5_000),  # chunks of one file after the other
        (np.arange(100_000) ** 2 % 1_000_003, 2, 500_000),  # no two steps alike
        (np.zeros(100_000), 0, 100),
    ],
)
def test_repeated_steps_take_few_bytes(column: Any, way: int, most_bytes: int) -> None:
    column = column.astype("u8")

    note, data = packed(column)

    assert note[0] == way
    assert len(data) < most_bytes
    assert np.array_equal(unpacked(data, len(column), "u8"), column)


@pytest.mark.parametrize(
    "lie",
    [{2: 99}, {2: 2**40}, {2: 0}, {4: 0}, {4: 9}, {3: 10**9}],
    ids=["rows", "many rows", "no rows", "no runs", "more runs", "elsewhere"],
)
def test_inconsistent_runs_are_rejected(lie: dict[int, int]) -> None:
    note, data = packed(np.arange(100, dtype="u4"))
    for place, value in lie.items():
        note[place] = value

    with pytest.raises(FormatError, match="the columns"):
        unpacked(data, note[2], "u4", note)


def test_oversized_numbers_are_rejected() -> None:
    column = np.array([1, 2**63, 2**63 + 1, 5], "u8")

    with pytest.raises(FormatError, match="int64"):
        unpacked(packed(column)[1], 4, "i8")
