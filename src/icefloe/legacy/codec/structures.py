"""Decode structures in MessagePack or JSON, in any layout that old writers used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from icefloe._internal.times import to_microseconds
from icefloe.errors import ErrorKind, FormatError

SHORT_ID: int = 12
LONG_ID: int = 16


@dataclass(slots=True)
class LegacyFindings:
    """The findings of the legacy decoders: tolerated problems and shortened ids."""

    tell: Callable[[str], None] = lambda text: None
    """The function that is called once for each distinct note."""
    notes: dict[str, None] = field(default_factory=dict)
    long_ids: dict[bytes, bytes] = field(default_factory=dict)
    """The original 16-byte ids, by shortened 12-byte id."""

    def note(self, text: str) -> None:
        """Record a tolerated problem in a legacy file."""
        if text not in self.notes:
            self.notes[text] = None
            self.tell(text)

    def shorten(self, long: bytes) -> bytes:
        """Shorten a 16-byte id to 12 bytes, and remember the original. See `shorten_id`."""
        short = shorten_id(long)
        if self.long_ids.setdefault(short, long) != long:
            raise make_damage_error(f"ids {long.hex()} and {self.long_ids[short].hex()} collide")
        return short


def shorten_id(long: bytes) -> bytes:
    """Shorten a 16-byte id of the draft format to the first 12 bytes of its SHA-256 hash.

    A hash is used instead of a prefix, because manually numbered ids may differ in any byte.
    """
    return sha256(long).digest()[:SHORT_ID]


@dataclass(frozen=True, slots=True)
class Structure:
    """The schema of a legacy structure, which is stored as a map or as an array with one of several field
    orders.
    """

    name: str
    orders: tuple[tuple[str, ...], ...]
    """The possible field orders of an array, distinguished by the number of fields."""
    optional: frozenset[str] = frozenset()
    """The fields that may be absent from a map."""

    def read(self, value: Any, place: str, findings: LegacyFindings) -> Mapping[str, Any]:
        """Return the fields of a structure as a dict."""
        if isinstance(value, Mapping):
            return self._named(value, place, findings)
        if not isinstance(value, list | tuple):
            raise make_damage_error(f"{place}: {self.name} is {describe_type(value)}, expected its fields")
        for order in self.orders:
            if len(order) == len(value):
                return dict(zip(order, value, strict=True))
        known = " or ".join(str(n) for n in sorted({len(order) for order in self.orders}))
        raise make_damage_error(f"{place}: {self.name} has {len(value)} fields, expected {known}")

    def _named(self, value: Mapping[Any, Any], place: str, findings: LegacyFindings) -> Mapping[str, Any]:
        known = {name for order in self.orders for name in order}
        unknown = sorted(str(name) for name in value if name not in known)
        if unknown:
            findings.note(f"{place}: ignored unknown fields of {self.name}: {', '.join(unknown[:5])}")
        fits = any(set(order) - self.optional <= set(value) for order in self.orders)
        if not fits:
            shortest = min(self.orders, key=lambda order: len(set(order) - set(value) - self.optional))
            lacks = sorted(set(shortest) - set(value) - self.optional)
            raise make_damage_error(f"{place}: {self.name} lacks {', '.join(lacks)}")
        return {name: value[name] for name in value if name in known}


def make_damage_error(message: str) -> FormatError:
    """Return the error for damaged or undocumented content in a legacy structure."""
    return FormatError(message, kind=ErrorKind.DESERIALIZATION)


def to_number(value: Any, place: str, bits: int = 64) -> int:
    """Check that a value is a non-negative integer with at most the given number of bits, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise make_damage_error(f"{place}: expected an integer below 2**{bits}, not {show_value(value)}")
    return value


def to_text(value: Any, place: str) -> str:
    """Check that a value is a text that can be encoded as UTF-8, and return it."""
    if not isinstance(value, str):
        raise make_damage_error(f"{place}: {describe_type(value)}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise make_damage_error(
            f"{place}: text with lone surrogates, which cannot be encoded as UTF-8"
        ) from None
    return value


def to_items(value: Any, place: str) -> Sequence[Any]:
    """Check that a value is a list, and return it. None counts as an empty list."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise make_damage_error(f"{place}: {describe_type(value)}, expected a list")
    return value


def to_pairs(value: Any, place: str) -> Mapping[Any, Any]:
    """Check that a value is a map, and return it. None counts as an empty map."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise make_damage_error(f"{place}: {describe_type(value)}, expected a map")
    return value


def to_variant(value: Any, place: str) -> tuple[str, Any]:
    """Decode a variant, stored as a name or as a map with the name as its only key, to its name and
    content.
    """
    if isinstance(value, str):
        return value, None
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, content),) = value.items()
        if isinstance(name, str):
            return name, content
    raise make_damage_error(f"{place}: invalid variant {show_value(value)}")


def to_time_us(value: Any, place: str) -> int:
    """Convert an RFC 3339 time to microseconds since 1970-01-01 UTC. The default time zone is UTC, and
    nanoseconds are truncated.
    """
    try:
        parsed = datetime.fromisoformat(to_text(value, place))
        return to_microseconds(parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise make_damage_error(f"{place}: invalid time {show_value(value)}") from None


def to_bytes(value: Any, place: str) -> bytes:
    """Return a value as bytes. JSON represents bytes as a list of numbers."""
    if isinstance(value, bytes):
        return value
    try:
        return bytes(to_items(value, place))
    except (ValueError, TypeError):
        raise make_damage_error(f"{place}: not a list of bytes") from None


def show_value(value: Any) -> str:
    """Format a value for an error message, and truncate it if it is long."""
    whole = (
        repr(value)
        if not isinstance(value, Mapping | list | tuple) or len(value) < 8
        else describe_type(value)
    )
    return whole if len(whole) <= 60 else f"{whole[:60]}..."


def describe_type(value: Any) -> str:
    """Describe the type of a value for an error message."""
    if isinstance(value, Mapping | list | tuple):
        return f"a {'map' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"
