"""MessagePack: metadata of version 1, and whole files of earlier formats. A thin layer over the msgpack
library.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import msgpack

from icefloe.encoding.json_values import JsonValue, canonicalize
from icefloe.errors import ErrorKind, FormatError


def dumps(value: object) -> bytes:
    """Encode a JSON-like value as MessagePack; see `json_values.canonicalize` for accepted values and errors.

    Integers are as short as possible, floats have 64 bits and maps are sorted, as in official files.
    """
    return cast(bytes, msgpack.packb(canonicalize(value)))


def loads(data: bytes | bytearray | memoryview) -> JsonValue:
    """Decode exactly one MessagePack value to canonical form: binary strings become lists of integers, NaN
    becomes None.

    Raises FormatError if the input is damaged, has excess bytes, or contains something that JSON does not
    allow: extension types, keys other than strings, duplicate keys.
    """
    try:
        return canonicalize(_unpack(data))
    except (ValueError, TypeError) as error:
        raise _make_damage_error(str(error)) from None


def loads_structures(data: bytes | bytearray | memoryview) -> Any:
    """Decode exactly one MessagePack value unchanged: arrays as tuples, binary strings as bytes, keys of any
    type.

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
        # For some kinds of damage the error of the library has no message.
        raise _make_damage_error(str(error) or type(error).__name__) from None


def pack(value: object) -> bytes:
    """Encode numbers, texts, binary strings, and lists and maps of them as MessagePack, for `unpack`."""
    return cast(bytes, msgpack.packb(value))


def unpack(data: bytes | bytearray | memoryview) -> object:
    """Decode exactly one MessagePack value of `pack`; raise FormatError if it is damaged."""
    return cast(object, _unpack(data))


def _check_complete(data: bytes) -> None:
    """Check that a MessagePack value is complete by walking over it, without creating it.

    The library allocates memory for the number of items that a list declares. After this check, all
    declarations are true.
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
