"""Changing what is in a MessagePack file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from tests.support.legacy.files import pack


def unpacked(data: bytes) -> Any:
    """Return the value of a raw file, with lists that can be changed except in keys of maps."""
    return _loose(msgpack.unpackb(data, use_list=False, strict_map_key=False))


def edited(data: bytes, change: Callable[[Any], None]) -> bytes:
    """Return a raw file after a change of its value."""
    value = unpacked(data)
    change(value)
    return pack(value)


def _loose(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_loose(item) for item in value]
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    return value
