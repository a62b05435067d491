"""Supported metadata values, and errors for unsupported ones."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from icefloe.encoding.json_values import MAX_DEPTH, canonicalize
from icefloe.errors import InvalidInputError
from tests.support.format.json_strategies import json_values


class Colour(str, Enum):  # noqa: UP042 (its str() is not its text)
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@given(json_values)
def test_canonical_json_values_are_unchanged(value: Any) -> None:
    once = canonicalize(value)

    assert repr(canonicalize(once)) == repr(once)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        ([float("inf"), -float("inf")], [None, None]),
        ((1, (2,)), [1, [2]]),
        (range(3), [0, 1, 2]),
        (b"ab", [97, 98]),
        (bytearray(b"ab"), [97, 98]),
        ({"b": 1, "a": 2, "é": 3, "": 4}, {"": 4, "a": 2, "b": 1, "é": 3}),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (np.int16(-3), -3),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array(7), 7),
        ([2**64 - 1, -(2**63)], [2**64 - 1, -(2**63)]),
    ],
)
def test_json_compatible_values_are_converted(value: object, expected: object) -> None:
    result = canonicalize(value)

    assert repr(result) == repr(expected)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [1, {2}]}, "value['a'][1] is a set, which metadata cannot contain"),
        (object(), "value is a object, which metadata cannot contain"),
        ([1j], "value[0] is a complex"),
        ({"t": np.datetime64("2020-01-01")}, "value['t'] is a date"),
        ({"x": np.longdouble(1)}, "value['x'] is a longdouble"),
        ({"a": {3: 1}}, "value['a'] has the key 3, a int; keys must be str"),
        ([{None: 1}], "value[0] has the key None, a NoneType; keys must be str"),
    ],
)
def test_wrong_types_raise_type_errors_with_the_position(value: object, sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        canonicalize(value)

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([0, 2**64], "value[1] is an integer outside [-2**63, 2**64)"),
        ({"n": -(2**63) - 1}, "value['n'] is an integer outside"),
        (np.array([10**30], object), "value[0] is an integer outside"),
        (["\ud800"], "value[0] is a text with lone surrogates"),
        ({"\udfff": 1}, "value['\\udfff'] is a text with lone surrogates"),
    ],
)
def test_wrong_values_raise_input_errors_with_the_position(value: object, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        canonicalize(value)

    assert str(caught.value).startswith(sentence)
    assert caught.value.kind == "bad-metadata"


def test_json_nesting_is_limited() -> None:
    allowed: Any = 1
    for _ in range(MAX_DEPTH):
        allowed = [allowed]

    assert canonicalize(allowed) == allowed
    with pytest.raises(InvalidInputError, match="nested deeper than 128 levels"):
        canonicalize([allowed])


def test_self_referential_value_is_rejected() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle

    with pytest.raises(InvalidInputError, match=r"value\['again'\].*\[\.\.\.\].* is nested deeper"):
        canonicalize(circle)
