"""The JSON-like values that the metadata encodings support, and conversion of Python values to them.

Both FlexBuffers and MessagePack are used for user metadata. The conversion rules match the official package,
so that a Python value is encoded to the same bytes, except that huge integers are rejected instead of being
converted to floats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH: Final = 128
"""The maximum nesting of lists and maps. The official package has no limit, and crashes with a stack
overflow.
"""

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**64 - 1

_Place: TypeAlias = "tuple[()] | tuple[_Place, str | int]"
"""The path from the outermost value to an inner one, innermost step last."""


def canonicalize(value: object) -> JsonValue:
    """Convert a Python value to canonical JSON-like form: None, bool, int, float, str, list or dict (sorted
    by key).

    NaN and infinities become None. Sequences become lists, so bytes become lists of integers. Numpy scalars
    and arrays become numbers and lists. Other types raise TypeError. Integers beyond 64 bits, text that
    cannot be encoded as UTF-8 and excessive nesting raise InvalidInputError. Both errors mention the position
    in the value.
    """
    return _canonicalize(value, (), 0)


def _canonicalize(value: object, place: _Place, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _check_integer(int(value), place)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return _check_text(value, place)
    if isinstance(value, np.generic | np.ndarray):
        plain = value.tolist()
        if not isinstance(plain, np.generic | np.ndarray):
            return _canonicalize(plain, place, depth)
    if isinstance(value, Mapping | Sequence):
        if depth == MAX_DEPTH:
            raise _make_json_error(f"nested deeper than {MAX_DEPTH} levels", place)
        return _map(value, place, depth) if isinstance(value, Mapping) else _list(value, place, depth)
    raise TypeError(f"{_render(place)} is a {type(value).__name__}, which metadata cannot contain")


def _map(value: Mapping[object, object], place: _Place, depth: int) -> dict[str, JsonValue]:
    items: dict[str, JsonValue] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{_render(place)} has the key {key!r}, a {type(key).__name__}; keys must be str")
        text = _check_text(key, (place, key))
        items[text] = _canonicalize(item, (place, text), depth + 1)
    return dict(sorted(items.items()))


def _list(value: Sequence[object], place: _Place, depth: int) -> list[JsonValue]:
    return [_canonicalize(item, (place, i), depth + 1) for i, item in enumerate(value)]


def _check_integer(value: int, place: _Place) -> int:
    if not MIN_INT <= value <= MAX_INT:
        raise _make_json_error("an integer outside [-2**63, 2**64)", place)
    return value


def _check_text(value: str, place: _Place) -> str:
    text = str.__str__(value)  # also turns a str enum member into plain text
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _make_json_error(
                "a text with lone surrogates, which cannot be encoded as UTF-8", place
            ) from None
    return text


def _make_json_error(reason: str, place: _Place) -> InvalidInputError:
    return InvalidInputError(f"{_render(place)} is {reason}", kind=ErrorKind.BAD_METADATA)


def _render(place: _Place) -> str:
    steps: list[str] = []
    while place:
        place, step = place
        steps.append(f"[{step!r}]")
    if len(steps) > 10:
        steps[5:-5] = ["[...]"]
    return "value" + "".join(reversed(steps))
