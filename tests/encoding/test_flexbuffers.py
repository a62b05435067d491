"""FlexBuffers: official bytes, layouts of other writers, and damaged or malicious input."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding import flexbuffers
from icefloe.encoding.json_values import MAX_DEPTH, JsonValue, canonicalize
from icefloe.errors import FormatError, InvalidInputError
from tests.support.format.json_strategies import json_values

# Written by icechunk 2.3.0 as metadata of a commit.
OFFICIAL: list[tuple[Any, str]] = [
    (None, "000001"),
    (True, "016801"),
    (False, "006801"),
    (0, "000801"),
    (255, "ff0801"),
    (256, "00010902"),
    (65536, "000001000a04"),
    (2**32, "00000000010000000b08"),
    (2**64 - 1, "ffffffffffffffff0b08"),
    (-1, "ff0401"),
    (-128, "800401"),
    (-129, "7fff0502"),
    (-(2**63), "00000000000000800708"),
    (0.0, "000000000e04"),
    (-0.0, "000000800e04"),
    (0.5, "0000003f0e04"),
    (0.1, "9a9999999999b93f0f08"),
    (1e300, "9c7500883ce4377e0f08"),
    (1e-310, "2be6708b681200000f08"),
    (3.4028234663852886e38, "ffff7f7f0e04"),
    (16777217.0, "00000010000070410f08"),
    ("", "0000011401"),
    ("a", "016100021401"),
    ([], "00002801"),
    ([1], "0101013001"),
    ([1, 2], "0102024401"),
    ([1, 2, 3], "010203035001"),
    ([1, 2, 3, 4], "01020304045c01"),
    ([1, 2, 3, 4, 5], "050102030405053001"),
    ([1, 2, 300, 70000], "01000000020000002c01000070110100105e01"),
    ([1, -1], "0201ff0804042801"),
    ([-1, -2], "fffe024001"),
    ([0.5, 1.5], "0000003f0000c03f084a01"),
    ([0.1, 0.5], "9a9999999999b93f000000000000e03f104b01"),
    ([1, 0.5], "02000000010000000000003f0a0e0a2a01"),
    ([True], "0101019001"),
    ([True, False], "020100029001"),
    ([None], "010000022801"),
    (["a"], "016100010314022801"),
    (["a", "a"], "0161000161000206041414042801"),
    ([[]], "00010128022801"),
    ([[1], [2]], "010101020204033030042801"),
    ({}, "00000100002401"),
    ({"a": 1}, "610001030101010108022401"),
    ({"b": 1, "a": 2}, "6100620002050402010202010808042401"),
    ({"a": "x"}, "610001780001060101010714022401"),
    ({"é": 1, "": 2}, "00c3a90002050502010202010808042401"),
    ([{"a": 1}, {"a": 1}], "610001030101010108010a0101010108020a042424042801"),
    (
        {"a": {"a": 1, "b": 2}, "b": {"a": 3, "b": 4}},
        "6100620002050402010201020808020f0e02010203040808021918020102140b2424042401",
    ),
]

# Written by the Python builder of the flatbuffers project; deprecated types and odd widths included.
FOREIGN: dict[str, tuple[str, Any]] = {
    "indirect int": ("d4fe021901", -300),
    "indirect uint": ("70110100041e01", 70000),
    "indirect float": ("9a9999999999b93f082301", 0.1),
    "blob": ("0200ff026401", [0, 255]),
    "key": ("61626300041001", "abc"),
    "mixed vector": (
        "01780002010204040700000001000000feffffff0000003f17000000000000000100000020000000"
        "06060e14026a28232a01",
        [1, -2, 0.5, "x", None, True, [1, 2]],
    ),
    "typed ints": ("0300010002002c01062d01", [1, 2, 300]),
    "typed floats": ("020000000000003f0000803e083601", [0.5, 0.25]),
    "typed keys": ("6b31006b3200020705023801", ["k1", "k2"]),
    "typed strings": ("0273310002733200020805023c01", ["s1", "s2"]),
    "fixed ints": ("01fe03034c01", [1, -2, 3]),
    "shared strings": ("06736861726564000308090a141414062801", ["shared"] * 3),
    "map of many kinds": (
        "7600050261626b6b00000000060000000e0000000000000001000000180000000000c03f1e00000018026a640e10"
        "730006736861726564007400067368617265640066000000204004071c134c0401040c2017432214142a082401",
        {"f": 2.5, "s": "shared", "t": "shared", "v": [5, None, True, [97, 98], 1.5, "kk"]},
    ),
    "all widths 8": (
        "610073000178007600000000000000000400000000000000ffffffffffffffff000000000000e03f010000000000"
        "00000000000000000000070f6b0300000000030000000000000048000000000000004e000000000000005100000000"
        "00000018000000000000000800000000000000030000000000000001000000000000007b00000000000000700000000"
        "00000000b142b1b2701",
        {"a": 1, "s": "x", "v": [-1, 0.5, True, None]},
    ),
}

SAMPLES = [
    bytes.fromhex(text) for text in [text for _, text in OFFICIAL] + [text for text, _ in FOREIGN.values()]
]


@pytest.mark.parametrize(("value", "text"), OFFICIAL, ids=[text for _, text in OFFICIAL])
def test_bytes_match_the_official_writer(value: Any, text: str) -> None:
    assert flexbuffers.dumps(value).hex() == text
    assert repr(flexbuffers.loads(bytes.fromhex(text))) == repr(canonicalize(value))


@pytest.mark.parametrize(("text", "value"), FOREIGN.values(), ids=FOREIGN.keys())
def test_layouts_of_other_writers_are_read(text: str, value: Any) -> None:
    assert repr(flexbuffers.loads(bytes.fromhex(text))) == repr(value)


@given(json_values)
def test_values_round_trip(value: Any) -> None:
    data = flexbuffers.dumps(value)

    assert repr(flexbuffers.loads(data)) == repr(canonicalize(value))
    assert flexbuffers.dumps(flexbuffers.loads(data)) == data


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [254, 256, 65536])
def test_offsets_are_right_at_width_boundaries(count: int, cut: int) -> None:
    value = {
        "text": "v" * (count - cut),
        "list": ["é" * (count // 2 - cut), -1],
        "numbers": [1] * (count - cut),
    }

    assert flexbuffers.loads(flexbuffers.dumps(value)) == canonicalize(value)


def test_deepest_nesting_round_trips() -> None:
    value: Any = "x"
    for i in range(MAX_DEPTH):
        value = [value] if i % 2 else {"k": value}

    assert flexbuffers.loads(flexbuffers.dumps(value)) == value


def test_input_may_be_any_buffer() -> None:
    data = flexbuffers.dumps({"a": [1, 2]})

    assert flexbuffers.loads(bytearray(data)) == flexbuffers.loads(memoryview(data)) == {"a": [1, 2]}


def test_key_with_a_null_character_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"the key 'a\\x00b' contains a null character"):
        flexbuffers.dumps([{"a\0b": 1}])


def test_nan_is_read_as_none() -> None:
    assert flexbuffers.loads(struct.pack("<f", float("nan")) + b"\x0e\x04") is None
    assert flexbuffers.loads(struct.pack("<dd", 0.5, float("inf")) + b"\x10\x4b\x01") == [0.5, None]


def test_map_keys_may_be_in_any_order() -> None:
    # As {"a": 1, "b": 2}, with the two offsets in the vector of keys exchanged.
    assert flexbuffers.loads(bytes.fromhex("6100620002030602010201020808042401")) == {"b": 1, "a": 2}


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex())
def test_truncated_input_yields_a_value_or_format_error(data: bytes) -> None:
    for end in range(len(data)):
        load_or_refuse(data[:end])
        load_or_refuse(data[end:])


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex())
def test_flipped_bits_yield_a_value_or_format_error(data: bytes) -> None:
    for i in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[i // 8] ^= 1 << i % 8
        load_or_refuse(damaged)


@given(st.binary(max_size=40), st.sampled_from(range(256)), st.sampled_from([1, 2, 4, 8]))
def test_any_bytes_yield_a_value_or_format_error(body: bytes, type_byte: int, width: int) -> None:
    load_or_refuse(body + bytes((type_byte, width)))


@given(json_values, st.data())
def test_any_damage_yields_a_value_or_format_error(value: Any, data: st.DataObject) -> None:
    damaged = bytearray(flexbuffers.dumps(value))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    load_or_refuse(damaged)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "byte 0: 0 bytes are too few"),
        ("0000", "byte 0: 2 bytes"),
        ("000003", "byte 2: root slot of 3 bytes"),
        ("000b08", "outside the 3 available"),
        ("007c01", "byte 0: unknown type 31"),
        ("05611401", "byte 1: offset 97 points before the start"),
        ("00000d02", "byte 0: floating point number of 2 bytes"),
        ("ff0901", "byte 0: type byte 0x9 for a slot of 1 bytes"),
        ("0561021401", "byte -1: 1 bytes are outside"),
        ("0561011401", "byte 1: 5 items of 1 bytes exceed"),
        ("01ff00021401", "byte 1: text is not UTF-8"),
        ("616263031001", "byte 0: key without end"),
        ("6100610002050402010202010808042401", "byte 10: map with duplicate key 'a'"),
        ("6100620001050402010202010808042401", "byte 10: map without matching keys"),
        ("6100620002050402030202010808042401", "byte 10: map without matching keys"),
        ("ffffffffffffffff" + "00" + "01" + "2b" + "01", "items of 9 bytes exceed"),
        ("ffffffffffffffff" + "00" + "01" + "33" + "01", "items of 8 bytes exceed"),
    ],
)
def test_error_names_position_and_problem(text: str, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        flexbuffers.loads(bytes.fromhex(text))

    assert problem in str(caught.value)
    assert caught.value.kind == "deserialization"


@pytest.mark.parametrize(
    ("count", "problem"), [(1, "too large for the size of its encoding"), (200, "nested deeper than 128")]
)
def test_list_that_contains_itself_is_rejected(count: int, problem: str) -> None:
    body = bytes([count, *range(count), *[0x28] * count])

    with pytest.raises(FormatError, match=problem):
        flexbuffers.loads(_root(body, 1, 0x28))


def test_deeply_shared_lists_are_rejected_as_too_large() -> None:
    body = b"\x00"  # an empty list at 1
    at = 1
    for _ in range(60):
        start = len(body) + 1
        body += bytes([2, start - at, start + 1 - at, 0x28, 0x28])
        at = start

    with pytest.raises(FormatError, match="too large for the size of its encoding"):
        flexbuffers.loads(_root(body, at, 0x28))


def test_moderately_shared_values_are_read() -> None:
    body = b"\x03\x01\x02\x03"  # typed list at 1
    body += bytes([3, 4, 5, 6, 0x30, 0x30, 0x30])

    assert flexbuffers.loads(_root(body, 5, 0x28)) == [[1, 2, 3]] * 3


def test_overlapping_texts_are_not_decoded_repeatedly() -> None:
    # Every second byte is the start of a text of 0x4141 bytes.
    texts = b"A" * 60_000
    count = 10_000
    slots = [len(texts) + 4 + 4 * i for i in range(count)]
    offsets = [slot - (2 + 2 * i) for i, slot in enumerate(slots)]
    body = texts + struct.pack(f"<I{count}I", count, *offsets) + b"\x15" * count

    with pytest.raises(FormatError, match="too large for the size of its encoding"):
        _within_memory(2_000_000, _root(body, slots[0], 0x2A))


def test_overlapping_keys_are_not_decoded_repeatedly() -> None:
    keys = b"A" * 60_000 + b"\0"
    keys += bytes(-len(keys) % 4)
    count = 10_000
    slots = [len(keys) + 4 + 4 * i for i in range(count)]
    body = keys + struct.pack(f"<I{count}I", count, *(slot - i for i, slot in enumerate(slots)))

    with pytest.raises(FormatError, match="too large for the size of its encoding"):
        _within_memory(2_000_000, _root(body, slots[0], 0x3A))


def test_many_references_to_one_text_share_one_string() -> None:
    body = flexbuffers.dumps("x" * 200)[:-3]  # the text at 1, without its root
    start = len(body) + 1
    body += bytes([30, *(start + i - 1 for i in range(30)), *[0x14] * 30])

    values = flexbuffers.loads(_root(body, start, 0x28))

    assert values == ["x" * 200] * 30
    assert len({id(value) for value in values}) == 1


def load_or_refuse(data: bytes | bytearray) -> None:
    """Decode bytes to a JSON-like value or a FormatError; anything else fails the test."""
    try:
        value = flexbuffers.loads(data)
    except FormatError:
        return
    assert repr(_sorted(canonicalize(value))) == repr(_sorted(value))


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _root(body: bytes, at: int, type_byte: int) -> bytes:
    """Return the body with a root that refers to the value at `at`."""
    body += bytes(-len(body) % 4)
    return body + struct.pack("<IBB", len(body) - at, type_byte, 4)


def _within_memory(limit_bytes: int, data: bytes) -> None:
    tracemalloc.start()
    try:
        flexbuffers.loads(data)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < limit_bytes
