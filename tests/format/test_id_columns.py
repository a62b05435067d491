"""Membership of ids in sorted columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from icefloe.format import id_columns
from icefloe.format.id_columns import IdIndex, is_member, sort_ids

# Few different bytes, so that many ids are alike in their beginning, and trailing zeros are common.
IDS = st.lists(st.tuples(st.sampled_from([b"\0" * 8, b"\xff" * 8, b"a" * 8]), st.integers(0, 9)), max_size=30)


def column(ids: list[tuple[bytes, int]]) -> NDArray[np.uint8]:
    data = b"".join(head + number.to_bytes(4, "little") for head, number in ids)
    return np.frombuffer(data, np.uint8).reshape(-1, 12)


@given(known=IDS, wanted=IDS)
def test_id_index_agrees_with_a_set(known: list[tuple[bytes, int]], wanted: list[tuple[bytes, int]]) -> None:
    expected = [each in set(known) for each in wanted]

    assert IdIndex(sort_ids(column(known))).has(column(wanted)).tolist() == expected


@pytest.mark.parametrize("count", [0, 1, 1000])
@pytest.mark.parametrize("asked", [0, 1, 64, 500])
def test_few_and_many_ids_are_found(count: int, asked: int) -> None:
    source = np.random.default_rng(count)
    known = sort_ids(source.integers(0, 256, (count, 12), np.uint8))
    wanted = np.concatenate(
        [known[: asked // 2], source.integers(0, 256, (asked - asked // 2, 12), np.uint8)]
    )

    found = is_member(wanted, known)

    assert found.tolist() == [row.tobytes() in {each.tobytes() for each in known} for row in wanted]
    assert id_columns._MANY == 64  # so that both ways were taken
