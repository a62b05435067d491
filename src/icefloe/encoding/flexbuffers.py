"""FlexBuffers: JSON-like values as self-describing bytes, used for metadata and configuration in version 2.

A value is stored in a slot of its parent, either directly (null, bool, int, uint, float) or as a backward
offset to its location. The type byte, which the parent stores, distinguishes the two cases and contains the
width of the value's parts (1, 2, 4 or 8 bytes). The encoding ends with the slot, type byte and slot width of
the outermost value.

The writer makes the same choices as the official one (Rust's serde), so that equal values are encoded to
equal bytes. The reader accepts any valid layout.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple, NoReturn

import numpy as np

from icefloe.encoding.json_values import MAX_DEPTH, JsonValue, canonicalize
from icefloe.errors import ErrorKind, FormatError, InvalidInputError

NULL, INT, UINT, FLOAT, KEY, STRING, INDIRECT_INT, INDIRECT_UINT, INDIRECT_FLOAT, MAP, VECTOR = range(11)
VECTOR_INT, VECTOR_UINT, VECTOR_FLOAT, VECTOR_KEY, VECTOR_STRING = range(11, 16)
VECTOR_INT2, VECTOR_FLOAT4 = 16, 24  # the last typed vectors of int, uint, float x 2; the same x 3; x 4
BLOB, BOOL, VECTOR_BOOL = 25, 26, 36

_INLINE: Final = frozenset({NULL, INT, UINT, FLOAT, BOOL})
_WIDTHS: Final = (1, 2, 4, 8)
_TYPED_VECTORS: Final = {
    INT: VECTOR_INT,
    UINT: VECTOR_UINT,
    FLOAT: VECTOR_FLOAT,
    KEY: VECTOR_KEY,
    BOOL: VECTOR_BOOL,
}
_ELEMENTS: Final = {vector: element for element, vector in _TYPED_VECTORS.items()} | {
    VECTOR_STRING: KEY,  # deprecated: lengths have no stored width, so readers use the final zero
}
_FLOATS: Final = {4: struct.Struct("<f"), 8: struct.Struct("<d")}

_BUDGET_PER_BYTE: Final = 4
"""The maximum number of values and text bytes per byte of input. A ratio above one requires shared parts."""


def dumps(value: object) -> bytes:
    """Encode a JSON-like value as FlexBuffers; see `json_values.canonicalize` for accepted values
    and errors."""
    writer = _Writer()
    return writer.finish(writer.store(canonicalize(value)))


def loads(data: bytes | bytearray | memoryview) -> JsonValue:
    """Decode a FlexBuffers value. Blobs become lists of integers, and NaN and infinities become None, as in
    `dumps`.

    Raises FormatError with the byte offset if the input is damaged, nested deeper than MAX_DEPTH, has
    duplicate keys, or expands far beyond its size, which requires shared or circular parts.
    """
    return _Reader(bytes(data)).root()


class _Stored(NamedTuple):
    """An encoded value that has not been assigned a slot in its parent yet."""

    kind: int
    content: int | float
    """The value itself if it is a number, otherwise the address at which it is stored."""
    width: int
    """The width of the number, or of the parts of the stored value, in bytes."""

    def width_in(self, start: int, index: int) -> int:
        """Return the slot width in bytes that this value needs at position `index` of a vector that starts at
        `start`, once aligned.
        """
        if self.kind in _INLINE:
            return self.width
        for width in _WIDTHS[:-1]:
            slot = start + -start % width + index * width
            if slot - self.content < 1 << 8 * width:
                return width
        return 8


class _Writer:
    def __init__(self) -> None:
        self.buffer = bytearray()
        self.keys: dict[str, int] = {}

    def finish(self, root: _Stored) -> bytes:
        width = root.width_in(len(self.buffer), 0)
        self.align(width)
        self.put(root, width)
        self.buffer += bytes((_type_byte(root, width), width))
        return bytes(self.buffer)

    def store(self, value: JsonValue) -> _Stored:
        if value is None:
            return _Stored(NULL, 0, 1)
        if isinstance(value, bool):
            return _Stored(BOOL, int(value), 1)
        if isinstance(value, int):
            return _Stored(INT if value < 0 else UINT, value, _int_width(value))
        if isinstance(value, float):
            return _Stored(FLOAT, value, _float_width(value))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self.map(value)
        return self.vector([self.store(item) for item in value])

    def text(self, value: str) -> _Stored:
        raw = value.encode()
        width = _int_width(len(raw))
        self.align(width)
        self.buffer += len(raw).to_bytes(width, "little")
        address = len(self.buffer)
        self.buffer += raw + b"\0"
        return _Stored(STRING, address, width)

    def key(self, key: str) -> _Stored:
        if key not in self.keys:
            if "\0" in key:
                raise InvalidInputError(
                    f"the key {key!r} contains a null character", kind=ErrorKind.BAD_METADATA
                )
            self.keys[key] = len(self.buffer)
            self.buffer += key.encode() + b"\0"
        return _Stored(KEY, self.keys[key], 1)

    def map(self, value: dict[str, JsonValue]) -> _Stored:
        keys, values = [], []
        for key, item in value.items():
            keys.append(self.key(key))
            values.append(self.store(item))
        return self.vector(values, self.vector(keys))

    def vector(self, values: list[_Stored], keys: _Stored | None = None) -> _Stored:
        """Write a list, or a map if `keys` is given. Lists are typed if possible. A short typed list has no
        length field.
        """
        kind = _choose_vector_kind(values) if keys is None else MAP
        prefix = [] if _is_fixed(kind) else [_Stored(UINT, len(values), _int_width(len(values)))]
        if keys is not None:
            prefix = [keys, _Stored(UINT, keys.width, 1), *prefix]
        slots = prefix + values
        start = len(self.buffer)
        width = max(stored.width_in(start, index) for index, stored in enumerate(slots)) if slots else 1
        self.align(width)
        address = len(self.buffer) + len(prefix) * width
        for stored in slots:
            self.put(stored, width)
        if kind in (MAP, VECTOR):
            self.buffer += bytes(_type_byte(stored, width) for stored in values)
        return _Stored(kind, address, width)

    def put(self, stored: _Stored, width: int) -> None:
        kind, content, _ = stored
        if kind == FLOAT:
            self.buffer += _FLOATS[width].pack(content)
            return
        number = int(content) if kind in _INLINE else len(self.buffer) - int(content)
        self.buffer += number.to_bytes(width, "little", signed=kind == INT)

    def align(self, width: int) -> None:
        self.buffer += bytes(-len(self.buffer) % width)


def _int_width(value: int) -> int:
    bits = value.bit_length() if value >= 0 else (~value).bit_length() + 1
    return next(width for width in _WIDTHS if bits <= 8 * width)


def _float_width(value: float) -> int:
    try:
        return 4 if _FLOATS[4].unpack(_FLOATS[4].pack(value)) == (value,) else 8
    except OverflowError:
        return 8


def _type_byte(stored: _Stored, slot_width: int) -> int:
    width = max(stored.width, slot_width) if stored.kind in _INLINE else stored.width
    return stored.kind << 2 | _WIDTHS.index(width)


def _choose_vector_kind(values: list[_Stored]) -> int:
    kinds = {stored.kind for stored in values}
    if len(kinds) != 1:
        return VECTOR
    kind = kinds.pop()
    if kind in (INT, UINT, FLOAT) and 2 <= len(values) <= 4:
        return VECTOR_INT2 + 3 * (len(values) - 2) + kind - INT
    return _TYPED_VECTORS.get(kind, VECTOR)


def _is_fixed(kind: int) -> bool:
    return VECTOR_INT2 <= kind <= VECTOR_FLOAT4


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = _BUDGET_PER_BYTE * len(data)
        self.texts: dict[tuple[int, int], str] = {}

    def root(self) -> JsonValue:
        size = len(self.data)
        if size < 3:
            self.fail(f"{size} bytes are too few; the shortest value has 3", 0)
        width = self.data[-1]
        if width not in _WIDTHS:
            self.fail(f"root slot of {width} bytes", size - 1)
        return self.value(size - 2 - width, width, self.data[-2], 0)

    def value(self, slot: int, width: int, type_byte: int, depth: int) -> JsonValue:
        """Decode the value in a slot of `width` bytes."""
        kind, inner_width = type_byte >> 2, 1 << (type_byte & 3)
        self.spend(1, slot)
        if kind in _INLINE:
            if inner_width != width and kind != NULL:
                self.fail(f"type byte {type_byte:#x} for a slot of {width} bytes", slot)
            return self.scalar(kind, slot, width)
        at = self.follow(slot, width)
        if INDIRECT_INT <= kind <= INDIRECT_FLOAT:
            return self.scalar(kind - INDIRECT_INT + INT, at, inner_width)
        if kind == KEY:
            return self.key(at)
        if kind == STRING:
            return self.text(at, inner_width)
        if depth == MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels", slot)
        if kind == MAP:
            return self.map(at, inner_width, depth)
        if kind == VECTOR:
            return self.vector(at, inner_width, depth)
        return self.typed_vector(at, inner_width, kind)

    def scalar(self, kind: int, at: int, width: int) -> JsonValue:
        raw = self.uint(at, width)
        if kind == INT:
            return raw - (raw >> (8 * width - 1) << 8 * width)
        if kind == UINT:
            return raw
        if kind == FLOAT:
            return self.numbers(FLOAT, at, width, 1)[0]
        return raw != 0 if kind == BOOL else None

    def map(self, at: int, width: int, depth: int) -> dict[str, JsonValue]:
        # Before the values: offset of the keys, width of the keys, number of values.
        count = self.length(at, width)
        self.span(at, count, width + 1)
        keys_at, keys_width = self.follow(at - 3 * width, width), self.uint(at - 2 * width, width)
        if keys_width not in _WIDTHS or self.length(keys_at, keys_width) != count:
            self.fail("map without matching keys", at)
        self.span(keys_at, count, keys_width)
        items: dict[str, JsonValue] = {}
        for i in range(count):
            key = self.key(self.follow(keys_at + i * keys_width, keys_width))
            if key in items:
                self.fail(f"map with duplicate key {key[:40]!r}", at)
            items[key] = self.value(at + i * width, width, self.data[at + count * width + i], depth + 1)
        return items

    def vector(self, at: int, width: int, depth: int) -> list[JsonValue]:
        count = self.length(at, width)
        self.span(at, count, width + 1)
        items: list[JsonValue] = []
        for i in range(count):
            type_byte = self.data[at + count * width + i]
            items.append(self.value(at + i * width, width, type_byte, depth + 1))
        return items

    def typed_vector(self, at: int, width: int, kind: int) -> list[JsonValue]:
        if _is_fixed(kind):
            count, element = (kind - VECTOR_INT2) // 3 + 2, (kind - VECTOR_INT2) % 3 + INT
        elif kind == BLOB:
            count, element, width = self.length(at, width), UINT, 1
        elif kind in _ELEMENTS:
            count, element = self.length(at, width), _ELEMENTS[kind]
        else:
            self.fail(f"unknown type {kind}", at)
        self.span(at, count, width)
        self.spend(count, at)
        if element == KEY:
            return [self.key(self.follow(at + i * width, width)) for i in range(count)]
        return self.numbers(element, at, width, count)

    def numbers(self, kind: int, at: int, width: int, count: int) -> list[JsonValue]:
        if kind == FLOAT and width not in _FLOATS:
            self.fail(f"floating point number of {width} bytes", at)
        code = {INT: "i", FLOAT: "f"}.get(kind, "u")
        numbers: list[JsonValue] = np.frombuffer(self.data, f"<{code}{width}", count, at).tolist()
        if kind == BOOL:
            return [number != 0 for number in numbers]
        if kind == FLOAT:
            return [number if math.isfinite(number) else None for number in numbers]  # type: ignore[arg-type]
        return numbers

    def text(self, at: int, width: int) -> str:
        if (at, width) not in self.texts:
            count = self.length(at, width)
            self.span(at, count, 1)
            self.texts[at, width] = self.decode(at, at + count)
        return self.texts[at, width]

    def key(self, at: int) -> str:
        if (at, 0) not in self.texts:
            end = self.data.find(0, at)
            if end < 0:
                self.fail("key without end", at)
            self.texts[at, 0] = self.decode(at, end)
        return self.texts[at, 0]

    def decode(self, start: int, end: int) -> str:
        self.spend(end - start, start)
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError:
            self.fail("text is not UTF-8", start)

    def follow(self, slot: int, width: int) -> int:
        """Return the address that an offset points to."""
        offset = self.uint(slot, width)
        if offset > slot:
            self.fail(f"offset {offset} points before the start", slot)
        return slot - offset

    def length(self, at: int, width: int) -> int:
        return self.uint(at - width, width)

    def uint(self, at: int, width: int) -> int:
        if at < 0 or at + width > len(self.data):
            self.fail(f"{width} bytes are outside the {len(self.data)} available", at)
        return int.from_bytes(self.data[at : at + width], "little")

    def span(self, at: int, count: int, width: int) -> None:
        if at + count * width > len(self.data):
            self.fail(f"{count} items of {width} bytes exceed the {len(self.data)} available", at)

    def spend(self, amount: int, at: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            self.fail("value is too large for the size of its encoding", at)

    def fail(self, problem: str, at: int) -> NoReturn:
        raise FormatError(f"FlexBuffers, byte {at}: {problem}", kind=ErrorKind.DESERIALIZATION)
