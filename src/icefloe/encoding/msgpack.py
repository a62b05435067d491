"""MessagePack, used for metadata in version 1 and for whole files in earlier formats. A thin layer over the
msgpack library.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import msgpack

from icefloe.encoding.json_values import JsonValue, canonicalize
from icefloe.errors import ErrorKind, FormatError


def dumps(value: object) -> bytes:
    """Encode a JSON-like value as MessagePack; see `json_values.canonicalize` for accepted values and errors.

    Integers are encoded as short as possible, floats with 64 bits and maps sorted by key, as in official
    files.
    """
    return cast(bytes, msgpack.packb(canonicalize(value)))


def loads(data: bytes | bytearray | memoryview) -> JsonValue:
    """Decode exactly one MessagePack value to canonical form. Binary strings become lists of integers, and
    NaN becomes None.

    Raises FormatError if the input is damaged, has trailing bytes, or contains something that JSON does not
    allow: extension types, non-string keys or duplicate keys.
    """
    try:
        return canonicalize(_unpack(data))
    except (ValueError, TypeError) as error:
        raise _make_damage_error(str(error)) from None


def loads_structures(data: bytes | bytearray | memoryview) -> Any:
    """Decode exactly one MessagePack value without conversion: arrays as tuples, binary strings as bytes,
    keys of any type.

    Raises FormatError like `loads`, except for keys. Time and memory are limited by the size of the input.
    """
    return _unpack(data, use_list=False, strict_map_key=False)


def _unpack(data: bytes | bytearray | memoryview, **options: bool) -> Any:
    whole = bytes(data)
    try:
        _check_complete(whole)
        return msgpack.unpackb(
            whole, object_pairs_hook=_map, ext_hook=_refuse_extension, max_ext_len=0, **options
        )
    except FormatError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # For some kinds of damage, the library's error has no message.
        raise _make_damage_error(str(error) or type(error).__name__) from None


def pack(value: object) -> bytes:
    """Encode numbers, texts, binary strings, lists and maps as MessagePack. Decode the result with
    `unpack`.
    """
    return cast(bytes, msgpack.packb(value))


def unpack(data: bytes | bytearray | memoryview) -> object:
    """Decode exactly one MessagePack value that `pack` encoded; raise FormatError if it is damaged."""
    return cast(object, _unpack(data))


def _check_complete(data: bytes) -> None:
    """Check that a MessagePack value is complete by scanning it, without creating Python objects.

    The library allocates memory for the declared number of items of a list. After this check, all declared
    numbers are correct.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        raise _make_damage_error(f"value is truncated after {len(data)} bytes") from None
    if unpacker.tell() != len(data):
        raise _make_damage_error(f"value ends at byte {unpacker.tell()} of {len(data)}")


def _map(pairs: list[tuple[object, object]]) -> dict[object, object]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise _make_damage_error("map with a duplicate key")
    return items


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise _make_damage_error(f"extension type {code}")


def _make_damage_error(problem: str) -> FormatError:
    return FormatError(f"MessagePack: {problem}", kind=ErrorKind.DESERIALIZATION)
