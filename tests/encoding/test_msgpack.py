"""MessagePack: official bytes, and damaged or malicious input."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.encoding import msgpack
from icefloe.encoding.json_values import MAX_DEPTH, canonicalize
from icefloe.errors import FormatError, InvalidInputError
from tests.support.format.json_strategies import json_values

# Written by icechunk 1.1.21 as metadata of a commit.
OFFICIAL: list[tuple[Any, str]] = [
    (None, "c0"),
    (True, "c3"),
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (256, "cd0100"),
    (65536, "ce00010000"),
    (2**32, "cf0000000100000000"),
    (2**64 - 1, "cfffffffffffffffff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-129, "d1ff7f"),
    (-32769, "d2ffff7fff"),
    (-(2**63), "d38000000000000000"),
    (0.0, "cb0000000000000000"),
    (0.1, "cb3fb999999999999a"),
    (float("nan"), "c0"),
    ("", "a0"),
    ("é" * 15, "be" + "c3a9" * 15),
    ("é" * 16, "d920" + "c3a9" * 16),
    ([], "90"),
    ([1, -1, 0.5, "a", None], "9501ffcb3fe0000000000000a161c0"),
    (list(range(16)), "dc0010000102030405060708090a0b0c0d0e0f"),
    ({}, "80"),
    ({"b": 1, "a": [2, {"é": None}]}, "82a161920281a2c3a9c0a16201"),
]

SAMPLES = [bytes.fromhex(text) for _, text in OFFICIAL]


@pytest.mark.parametrize(("value", "text"), OFFICIAL, ids=[text for _, text in OFFICIAL])
def test_bytes_match_the_official_writer(value: Any, text: str) -> None:
    assert msgpack.dumps(value).hex() == text
    assert repr(msgpack.loads(bytes.fromhex(text))) == repr(canonicalize(value))


@given(json_values)
def test_values_round_trip(value: Any) -> None:
    data = msgpack.dumps(value)

    assert repr(msgpack.loads(data)) == repr(canonicalize(value))
    assert msgpack.dumps(msgpack.loads(data)) == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cd0001", 1),
        ("d30000000000000001", 1),
        ("ca3f000000", 0.5),
        ("cb7ff8000000000000", None),
        ("db0000000161", "a"),
        ("c403010203", [1, 2, 3]),
        ("df00000001a16101", {"a": 1}),
        ("82a16201a16102", {"a": 2, "b": 1}),
    ],
)
def test_other_encodings_of_a_value_are_read(text: str, value: Any) -> None:
    assert repr(msgpack.loads(bytes.fromhex(text))) == repr(value)


def test_input_may_be_any_buffer() -> None:
    assert msgpack.loads(bytearray(b"\x01")) == msgpack.loads(memoryview(b"\x01")) == 1


def test_unsupported_values_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"value\[0\] is an integer outside"):
        msgpack.dumps([2**64])
    with pytest.raises(TypeError, match=r"value\['a'\] is a set"):
        msgpack.dumps({"a": {1}})


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex())
def test_truncated_input_is_rejected(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(FormatError, match="truncated"):
            msgpack.loads(data[:end])


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.hex())
def test_flipped_bits_yield_a_value_or_format_error(data: bytes) -> None:
    for i in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[i // 8] ^= 1 << i % 8
        load_or_refuse(damaged)


@given(st.binary(max_size=60))
def test_any_bytes_yield_a_value_or_format_error(data: bytes) -> None:
    load_or_refuse(data)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "truncated after 0 bytes"),
        ("c1", "MessagePack: FormatError"),
        ("0102", "value ends at byte 1 of 2"),
        ("a1ff", "can't decode byte 0xff"),
        ("d40100", "ext"),
        ("d6ff00000000", "ext"),
        ("c70005", "extension type 5"),
        ("c700ff", "timestamp"),
        ("810102", "int is not allowed for map key"),
        ("81910102", "list is not allowed for map key"),
        ("81c4016101", "keys must be str"),
        ("82a16101a16102", "map with a duplicate key"),
        ("ddffffffff", "truncated"),
        ("dfffffffff", "truncated"),
        ("dbffffffff", "truncated"),
    ],
)
def test_error_names_the_problem(text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        msgpack.loads(bytes.fromhex(text))

    assert caught.value.kind == "deserialization"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
def test_deep_nesting_is_rejected(depth: int) -> None:
    with pytest.raises(FormatError):
        msgpack.loads(b"\x91" * depth + b"\x01")


def test_deepest_nesting_round_trips() -> None:
    value: Any = "x"
    for i in range(MAX_DEPTH):
        value = [value] if i % 2 else {"k": value}

    assert msgpack.loads(msgpack.dumps(value)) == value


def test_declared_lengths_do_not_allocate_memory() -> None:
    # A thousand lists within each other, each said to hold as many items as there are bytes.
    data = b"\xdd\x00\x0f\x00\x00" * 1000 + bytes(0xF0000)
    tracemalloc.start()

    with pytest.raises(FormatError, match="truncated"):
        msgpack.loads(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 5 * len(data)


def load_or_refuse(data: bytes | bytearray) -> None:
    """Decode bytes to a JSON-like value or a FormatError; anything else fails the test."""
    try:
        value = msgpack.loads(data)
    except FormatError:
        return
    assert repr(canonicalize(value)) == repr(value)
