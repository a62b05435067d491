"""Object ids: text form, tolerant parsing, distinct types, and columns of ids."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe._internal import ids
from icefloe._internal.ids import ChunkId, ManifestId, NodeId, ObjectId, SnapshotId
from icefloe.errors import InvalidInputError

TYPES = [SnapshotId, ManifestId, ChunkId, NodeId]
INITIAL = "1CECHNKREP0F1RSTCMT0"


def test_text_form_equals_example_of_the_specification() -> None:
    raw = bytes.fromhex("0b1cc8d6787580f0e33a6534")

    assert str(SnapshotId(raw)) == f"{ids.INITIAL_SNAPSHOT_ID}" == INITIAL
    assert SnapshotId.parse(INITIAL) == ids.INITIAL_SNAPSHOT_ID
    assert bytes(ids.INITIAL_SNAPSHOT_ID) == raw
    assert repr(ids.INITIAL_SNAPSHOT_ID) == "SnapshotId('1CECHNKREP0F1RSTCMT0')"


@pytest.mark.parametrize("cls", TYPES)
@given(data=st.data())
def test_text_form_round_trips(cls: type[ObjectId], data: st.DataObject) -> None:
    one = cls(data.draw(st.binary(min_size=cls.SIZE, max_size=cls.SIZE)))

    text = str(one)

    assert len(text) == {12: 20, 8: 13}[cls.SIZE]
    assert set(text) <= set(ids.ALPHABET.decode())
    assert cls.parse(text) == cls.parse(text.lower()) == one


@given(st.binary(min_size=12, max_size=12), st.binary(min_size=12, max_size=12))
def test_text_order_is_byte_order(a: bytes, b: bytes) -> None:
    assert (str(ChunkId(a)) < str(ChunkId(b))) == (a < b)


@pytest.mark.parametrize("text", [INITIAL.lower(), INITIAL.replace("1", "I"), INITIAL.replace("1", "l")])
def test_parse_accepts_lower_case_and_look_alike_characters(text: str) -> None:
    assert SnapshotId.parse(text) == ids.INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize("last", "0123456789abcdefoil")
def test_parse_ignores_padding_bits(last: str) -> None:
    assert SnapshotId.parse(INITIAL[:-1] + last) == ids.INITIAL_SNAPSHOT_ID


BAD_TEXTS = [
    "",
    INITIAL[:-1],
    INITIAL + "0",
    INITIAL.replace("C", "U"),
    INITIAL[:10] + "-" + INITIAL[11:],
    INITIAL[:19] + " ",
    INITIAL[:19] + "=",
    INITIAL[:16] + "====",
    INITIAL[:19] + "!",
    INITIAL[:19] + "\N{ARABIC-INDIC DIGIT ONE}",
    INITIAL[:19] + "\ud800",
    "0" * 26,
]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_parse_rejects_invalid_text(text: str) -> None:
    with pytest.raises(InvalidInputError, match="invalid snapshot id: ") as caught:
        SnapshotId.parse(text)

    assert caught.value.kind == "invalid-snapshot-id"


def test_parse_does_not_repeat_a_huge_text() -> None:
    with pytest.raises(InvalidInputError) as caught:
        NodeId.parse("0" * 10_000)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("cls", TYPES)
def test_wrong_number_of_bytes_is_rejected(cls: type[ObjectId]) -> None:
    for size in (0, cls.SIZE - 1, cls.SIZE + 1, 16):
        with pytest.raises(InvalidInputError):
            cls(bytes(size))


def test_ids_of_different_kinds_are_never_equal() -> None:
    raw = bytes(range(12))
    same = [SnapshotId(raw), ManifestId(raw), ChunkId(raw), raw]

    assert len(set(same)) == 4
    assert SnapshotId(raw) == SnapshotId(raw)
    assert hash(SnapshotId(raw)) == hash(SnapshotId(raw))
    assert SnapshotId(raw) != raw
    assert raw != SnapshotId(raw)


@pytest.mark.parametrize("cls", TYPES)
def test_random_ids_are_distinct_and_can_be_pickled(cls: type[ObjectId]) -> None:
    one, other = cls.random(), cls.random()

    twin = pickle.loads(pickle.dumps(one))

    assert one != other
    assert twin == one
    assert type(twin) is cls


@pytest.mark.parametrize("size", [8, 12])
@given(data=st.data())
def test_columns_agree_with_single_ids(size: int, data: st.DataObject) -> None:
    cls: type[ObjectId] = {8: NodeId, 12: ChunkId}[size]
    raws = data.draw(st.lists(st.binary(min_size=size, max_size=size), max_size=20))
    column = np.frombuffer(b"".join(raws), np.uint8).reshape(-1, size)

    texts = ids.encode_column(column)

    assert texts == [str(cls(raw)) for raw in raws]


def test_non_contiguous_columns_are_accepted() -> None:
    wide = np.arange(5 * 16, dtype=np.uint8).reshape(5, 16)

    assert ids.encode_column(wide[::2, 2:14]) == [str(ChunkId(row[2:14].tobytes())) for row in wide[::2]]


def test_decode_names_rejects_other_spellings() -> None:
    others = [INITIAL.lower(), INITIAL.replace("0", "O"), INITIAL[:-1] + "1", INITIAL[:-1] + "é", " " * 20]

    found, valid = ids.decode_names([INITIAL, *others, INITIAL], 12)

    assert found.tolist() == [list(ids.INITIAL_SNAPSHOT_ID)] * 2
    assert valid.tolist() == [True, *[False] * len(others), True]
    assert ids.decode_names([], 12)[0].shape == (0, 12)


@given(raws=st.lists(st.binary(min_size=12, max_size=12), max_size=20))
def test_decode_names_accepts_every_id(raws: list[bytes]) -> None:
    column = np.frombuffer(b"".join(raws), np.uint8).reshape(-1, 12)

    found, valid = ids.decode_names(ids.encode_column(column), 12)

    assert valid.all()
    assert found.tolist() == column.tolist()
