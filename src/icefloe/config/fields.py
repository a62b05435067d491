"""The base class of configuration parts: checked optional fields, merging, plain dicts and reprs.

A configuration part is a mutable dataclass whose fields are None until they are set. Each field defines how
its values are checked, what an unset field means, and how the field is stored.
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

from icefloe.config.display import Shown, Tree, call, format_literal, qualify_name
from icefloe.errors import ErrorKind, FormatError

T = TypeVar("T")

_PLAIN = frozenset({int, bool, str, float})
"""Immutable types, whose values need no copy."""


class Codec(Protocol):
    """Checks the values of a configuration field, and converts them to and from their stored form."""

    def check(self, value: Any) -> Any:
        """Check a value; raise TypeError, ValueError or OverflowError if it is invalid."""

    def to_plain(self, value: Any) -> Any:
        """Convert a value to its stored form, which consists of dicts, lists, strings and numbers."""

    def from_plain(self, plain: Any) -> Any:
        """Convert the stored form back to a value."""


@dataclass(frozen=True)
class Number:
    """The codec of an integer field with a fixed number of bits."""

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
    """The codec of a field with one built-in type."""

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
    """The codec of an enum field, whose values are stored by name."""

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
        raise ValueError(f"unknown value {plain!r}; expected one of {', '.join(self.names.values())}")


@dataclass(frozen=True)
class Part:
    """The codec of a field whose values convert themselves to plain dicts: configuration parts or
    conditions.
    """

    kind: type

    def check(self, value: Any) -> Any:
        return Simple(self.kind).check(value)

    def to_plain(self, value: Any) -> Any:
        return value.to_plain()

    def from_plain(self, plain: Any) -> Any:
        return self.kind.from_plain(plain)  # type: ignore[attr-defined]


def declare_setting(
    codec: Codec,
    *,
    default: object,
    initial: object = None,
    shown_when_unset: Callable[[], object] | None = None,
    replaced_whole: bool = False,
    kw_only: bool = False,
    own: bool = False,
) -> Any:
    """Declare a checked, optional field of a configuration part.

    Parameters
    ----------
    codec
        How values are checked and stored.
    default
        The value that None stands for, or a function that returns it.
    initial
        The value in a new part.
    shown_when_unset
        A function that creates the part to display and use instead of None.
    replaced_whole
        Replace the whole part when configurations are merged, instead of merging it field by field.
    kw_only
        Accept the field only as a keyword argument.
    own
        Neither store nor display the field unless it is set, because the official class does not have it.
    """
    metadata = {
        "codec": codec,
        "default": default,
        "unset": shown_when_unset,
        "whole": replaced_whole,
        "own": own,
    }
    return dataclasses.field(default=initial, metadata=metadata, kw_only=kw_only)


@dataclass
class ConfigPart(Shown):
    """Base class of configuration classes. Fields are checked, and instances compare by value and can be
    copied, pickled and merged.
    """

    module: ClassVar[str] = "config"
    on_disk: ClassVar[tuple[str, ...]] = ()
    """The order of the keys in the stored form, if it differs from the order of the fields."""
    reserved: ClassVar[tuple[str, ...]] = ()
    """Keys that are always stored as null and never read."""
    unknown_keys: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Stored keys that are unknown to this release. They are written back unchanged."""

    def __setattr__(self, name: str, value: object) -> None:
        field = self.__dataclass_fields__.get(name)
        if field is None or "codec" not in field.metadata:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        if value is not None:
            value = field.metadata["codec"].check(value)
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Values were checked when they were set. Most of them are numbers or configuration parts.
        twin = object.__new__(type(self))
        twin.__dict__.update(
            (name, value if value is None or type(value) in _PLAIN else copy.deepcopy(value, memo))
            for name, value in self.__dict__.items()
        )
        return twin

    def merge(self, other: Self) -> Self:
        """Merge two configuration values. Fields that are set in `other` win.

        Parameters
        ----------
        other
            The part whose values win.

        Returns
        -------
        ConfigPart
            The merged part.
        """
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
        """Return a read-only copy in which unset fields have their default values.

        This method is called whenever a repository is opened, so it avoids deep copies and does not check
        values again.

        Returns
        -------
        ConfigPart
            The part with all defaults.
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
                held[name] = _default_of(field) if unset is None else _resolve_default(unset)
        return full

    def to_plain(self) -> dict[str, Any]:
        """Convert the configuration value to its stored form, a plain dict.

        Returns
        -------
        dict
            All keys, with None for unset fields.
        """
        plain: dict[str, Any] = {}
        for name in self._list_used_keys():
            value = None if name in self.reserved else getattr(self, name)
            codec = None if value is None else self.__dataclass_fields__[name].metadata["codec"]
            plain[name] = None if codec is None else codec.to_plain(value)
        return {**plain, **copy.deepcopy(dict(self.unknown_keys))}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Create a configuration value from its stored form, a plain dict.

        Keys may be missing; unknown keys are kept.

        Parameters
        ----------
        plain
            The stored form.

        Returns
        -------
        ConfigPart
            The part.

        Raises
        ------
        FormatError
            If a value is invalid.
        """
        if not isinstance(plain, Mapping):
            raise _make_error(cls.__name__, f"expected a map, not {type(plain).__name__}")
        part = cls()
        names = {field.name: field.metadata["codec"] for field in dataclasses.fields(cls)}
        for name, codec in names.items():
            if plain.get(name) is not None:
                try:
                    setattr(part, name, codec.from_plain(plain[name]))
                except (TypeError, ValueError, OverflowError, KeyError) as cause:
                    raise _make_error(f"{cls.__name__}.{name}", str(cause)) from cause
        unknown = {k: v for k, v in plain.items() if k not in names and k not in cls.reserved}
        object.__setattr__(part, "unknown_keys", copy.deepcopy(unknown))
        return part

    def _order_keys(self) -> tuple[str, ...]:
        return self.on_disk or tuple(field.name for field in dataclasses.fields(self))

    def _list_used_keys(self) -> list[str]:
        """Return the keys to store and display, in order. Unset keys that the official class lacks are
        omitted.
        """
        by_name = self.__dataclass_fields__

        def is_used(name: str) -> bool:
            return name not in by_name or not by_name[name].metadata["own"] or getattr(self, name) is not None

        return [name for name in self._order_keys() if is_used(name)]

    def __repr__(self) -> str:
        shown = {f.name: format_literal(getattr(self, f.name)) for f in self._order_shown_fields()}
        return call(qualify_name(self.module, type(self).__name__), shown)

    def tree(self) -> Tree:
        """Return the fields, including defaults, as a tree for display.

        Returns
        -------
        Tree
            The name of the class and its fields.
        """
        rows = tuple((f.name, self._show(f)) for f in self._order_shown_fields())
        return Tree(qualify_name(self.module, type(self).__name__), rows)

    def _order_shown_fields(self) -> list[dataclasses.Field[Any]]:
        """Sort fields for display: plain values first, then nested parts, then maps."""
        by_name = self.__dataclass_fields__
        ordered = [by_name[name] for name in self._list_used_keys() if name not in self.reserved]
        rank: dict[type, int] = {Part: 1, Number: 0, Simple: 0, Choice: 0}
        return sorted(ordered, key=lambda field: rank.get(type(field.metadata["codec"]), 2))

    def _show(self, field: dataclasses.Field[Any]) -> str | Tree:
        value = getattr(self, field.name)
        if value is None and field.metadata["unset"] is not None:
            value = field.metadata["unset"]()
        if isinstance(value, ConfigPart):
            return value.tree()
        if isinstance(value, Mapping):
            return Tree("", tuple((key, item.tree()) for key, item in value.items()))
        if value is not None:
            return value.name if isinstance(value, Enum) else format_literal(value)
        default = _default_of(field)
        if default is None:
            return "None"
        return f"{default.name if isinstance(default, Enum) else format_literal(default)} (default)"


@dataclass_transform(field_specifiers=(declare_setting,))
def config_part(cls: type[T]) -> type[T]:
    """Turn a subclass of `ConfigPart` into a dataclass that keeps the inherited repr. Used as a class
    decorator.
    """
    return dataclass(repr=False)(cls)


@cache
def _resolve_default(make: Callable[[], ConfigPart]) -> ConfigPart:
    return make().resolved()


def _default_of(field: dataclasses.Field[Any]) -> Any:
    default = field.metadata["default"]
    return default() if callable(default) else default


def _make_error(where: str, what: str) -> FormatError:
    return FormatError(f"config: {where}: {what}", kind=ErrorKind.CONFIG_DESERIALIZATION)
