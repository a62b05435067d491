"""What all parts of a config share: checked fields that may be unset, merging, plain dicts, reprs.

A part is a mutable dataclass whose fields are None until set. Each field says how its values are checked,
what an unset one means, and how it is written on disk.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeVar, dataclass_transform

from icefloe.config.display import Tree, call, literal, qualified
from icefloe.errors import ErrorKind, FormatError

T = TypeVar("T")

_PLAIN = frozenset({int, bool, str, float})
"""Types whose values are not copied."""


class Codec(Protocol):
    """How one field is checked and how its value looks in a plain dict."""

    def check(self, value: Any) -> Any:
        """The value to keep; raises TypeError, ValueError or OverflowError for one that makes no sense."""

    def to_plain(self, value: Any) -> Any:
        """The value in terms of dicts, lists, strings, numbers."""

    def from_plain(self, plain: Any) -> Any:
        """The value back again."""


@dataclass(frozen=True)
class Number:
    """A whole number that fits into so many bits."""

    bits: int = 64
    signed: bool = False
    minimum: int | None = None

    def check(self, value: Any) -> int:
        if not isinstance(value, int):
            raise TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer")
        low, high = (-(1 << self.bits - 1), 1 << self.bits - 1) if self.signed else (0, 1 << self.bits)
        if not low <= value < high:
            raise OverflowError(f"{value} is out of range, must be at least {low} and less than {high}")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{value} is too small, must be at least {self.minimum}")
        return int(value)

    def to_plain(self, value: Any) -> Any:
        return value

    from_plain = check


@dataclass(frozen=True)
class Simple:
    """A value of one built-in type."""

    kind: type

    def check(self, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise TypeError(f"'{type(value).__name__}' object is not a {self.kind.__name__}")
        return value

    def to_plain(self, value: Any) -> Any:
        return value

    from_plain = check


@dataclass(frozen=True)
class Choice:
    """A member of an enum, on disk under a name of its own."""

    kind: type[Enum]
    names: Mapping[Any, str]

    def check(self, value: Any) -> Any:
        return Simple(self.kind).check(value)

    def to_plain(self, value: Any) -> Any:
        return self.names[value]

    def from_plain(self, plain: Any) -> Any:
        for member, name in self.names.items():
            if name == plain:
                return member
        raise ValueError(f"{plain!r} is none of {', '.join(self.names.values())}")


@dataclass(frozen=True)
class Part:
    """A value that maps itself to plain dicts: another part of the config, or a condition."""

    kind: type

    def check(self, value: Any) -> Any:
        return Simple(self.kind).check(value)

    def to_plain(self, value: Any) -> Any:
        return value.to_plain()

    def from_plain(self, plain: Any) -> Any:
        return self.kind.from_plain(plain)  # type: ignore[attr-defined]


def setting(
    codec: Codec,
    *,
    default: object,
    initial: object = None,
    shown_when_unset: Callable[[], object] | None = None,
    replaced_whole: bool = False,
    kw_only: bool = False,
) -> Any:
    """Declare a field of a part.

    A new part holds `initial`. `default` is what None means, or a function that gives it; `shown_when_unset`
    makes the part to show and to use in place of None. Merging goes into parts unless `replaced_whole`.
    """
    metadata = {"codec": codec, "default": default, "unset": shown_when_unset, "whole": replaced_whole}
    return dataclasses.field(default=initial, metadata=metadata, kw_only=kw_only)


@dataclass
class ConfigPart:
    """The ground of all config classes: compares by value, copies, pickles, merges; not hashable."""

    module: ClassVar[str] = "config"
    on_disk: ClassVar[tuple[str, ...]] = ()
    """The order of the keys on disk where it differs from that of the arguments."""
    reserved: ClassVar[tuple[str, ...]] = ()
    """Keys that are written as null and not read."""
    unknown_keys: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Keys read from disk that this release has no name for; written back as they were."""

    def __setattr__(self, name: str, value: object) -> None:
        field = self.__dataclass_fields__.get(name)
        if field is None or "codec" not in field.metadata:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        if value is not None:
            value = field.metadata["codec"].check(value)
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # What is held was checked when it was set; most of it are numbers, and parts like this one.
        twin = object.__new__(type(self))
        twin.__dict__.update(
            (name, value if value is None or type(value) in _PLAIN else copy.deepcopy(value, memo))
            for name, value in self.__dict__.items()
        )
        return twin

    def merge(self, other: Self) -> Self:
        """A new value with what `other` sets, and what this one sets where `other` does not."""
        merged = copy.deepcopy(self)
        held = merged.__dict__
        for field in dataclasses.fields(self):
            theirs = getattr(other, field.name)
            if theirs is None:
                continue
            ours = held[field.name]
            into = isinstance(ours, ConfigPart) and not field.metadata["whole"]
            held[field.name] = ours.merge(theirs) if into else copy.deepcopy(theirs)
        held["unknown_keys"] = {**self.unknown_keys, **other.unknown_keys}
        return merged

    def resolved(self) -> Self:
        """A value in which everything unset has its default, nested parts included. To be read alone.

        Each opening of a repository comes here, so nothing is copied and nothing checked again.
        """
        full = object.__new__(type(self))
        held = full.__dict__
        held.update(self.__dict__)
        for name, field in self.__dataclass_fields__.items():
            metadata = field.metadata
            if "codec" not in metadata:
                continue
            value = held[name]
            if isinstance(value, ConfigPart):
                held[name] = value.resolved()
            elif value is None:
                unset = metadata["unset"]
                held[name] = _default_of(field) if unset is None else _resolved_default(unset)
        return full

    def to_plain(self) -> dict[str, Any]:
        """All keys of the on-disk form, None where unset."""
        plain: dict[str, Any] = {}
        for name in self._key_order():
            value = None if name in self.reserved else getattr(self, name)
            codec = None if value is None else self.__dataclass_fields__[name].metadata["codec"]
            plain[name] = None if codec is None else codec.to_plain(value)
        return {**plain, **copy.deepcopy(dict(self.unknown_keys))}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """The value an on-disk map describes; keys may be missing, unknown ones are kept for writing back."""
        if not isinstance(plain, Mapping):
            raise _wrong(cls.__name__, f"a map expected, not {type(plain).__name__}")
        part = cls()
        names = {field.name: field.metadata["codec"] for field in dataclasses.fields(cls)}
        for name, codec in names.items():
            if plain.get(name) is not None:
                try:
                    setattr(part, name, codec.from_plain(plain[name]))
                except (TypeError, ValueError, OverflowError, KeyError) as cause:
                    raise _wrong(f"{cls.__name__}.{name}", str(cause)) from cause
        unknown = {k: v for k, v in plain.items() if k not in names and k not in cls.reserved}
        object.__setattr__(part, "unknown_keys", copy.deepcopy(unknown))
        return part

    def _key_order(self) -> tuple[str, ...]:
        return self.on_disk or tuple(field.name for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        shown = {f.name: literal(getattr(self, f.name)) for f in self._shown_order()}
        return call(qualified(self.module, type(self).__name__), shown)

    def __str__(self) -> str:
        return self.tree().as_text()

    def _repr_html_(self) -> str:
        return self.tree().as_html()

    def tree(self) -> Tree:
        """The value with its defaults, to show."""
        rows = tuple((f.name, self._shown(f)) for f in self._shown_order())
        return Tree(qualified(self.module, type(self).__name__), rows)

    def _shown_order(self) -> list[dataclasses.Field[Any]]:
        """Plain values first, then parts, then maps."""
        by_name = self.__dataclass_fields__
        ordered = [by_name[name] for name in self._key_order() if name not in self.reserved]
        rank: dict[type, int] = {Part: 1, Number: 0, Simple: 0, Choice: 0}
        return sorted(ordered, key=lambda field: rank.get(type(field.metadata["codec"]), 2))

    def _shown(self, field: dataclasses.Field[Any]) -> str | Tree:
        value = getattr(self, field.name)
        if value is None and field.metadata["unset"] is not None:
            value = field.metadata["unset"]()
        if isinstance(value, ConfigPart):
            return value.tree()
        if isinstance(value, Mapping):
            return Tree("", tuple((key, item.tree()) for key, item in value.items()))
        if value is not None:
            return value.name if isinstance(value, Enum) else literal(value)
        default = _default_of(field)
        if default is None:
            return "None"
        return f"{default.name if isinstance(default, Enum) else literal(default)} (default)"


@dataclass_transform(field_specifiers=(setting,))
def config_part(cls: type[T]) -> type[T]:
    """Make a dataclass of a subclass of `ConfigPart`, keeping the reprs it inherits."""
    return dataclass(repr=False)(cls)


@cache
def _resolved_default(make: Callable[[], ConfigPart]) -> ConfigPart:
    return make().resolved()


def _default_of(field: dataclasses.Field[Any]) -> Any:
    default = field.metadata["default"]
    return default() if callable(default) else default


def _wrong(where: str, what: str) -> FormatError:
    return FormatError(f"config: {where}: {what}", kind=ErrorKind.CONFIG_DESERIALIZATION)
