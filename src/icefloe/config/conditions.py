"""Which arrays have their manifests preloaded, and which ones split where.

Regexes are searched for anywhere in the array's path, or in its last segment; an invalid one matches nothing.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias

from icefloe.config.display import literal, qualified


class _Shown:
    """A dataclass whose repr is the official call that makes it."""

    __slots__ = ()

    call: ClassVar[str]

    def __repr__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        shown = (literal(list(value) if isinstance(value, tuple) else value) for value in values)
        return f"{qualified('config', self.call)}({', '.join(shown)})"


class _Condition(_Shown, ABC):
    """A condition on arrays, for preloading or for splitting. Each of the two has its own variants."""

    __slots__ = ()

    _what: ClassVar[str]
    _variants: ClassVar[Mapping[str, type]]

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Match arrays that match any of the conditions."""
        return cls._make("Or", tuple(conditions))

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Match arrays that match all conditions."""
        return cls._make("And", tuple(conditions))

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """Match arrays by their full path."""
        return cls._make("PathMatches", regex)

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """Match arrays by their name, the last segment of the path."""
        return cls._make("NameMatches", regex)

    @classmethod
    def _make(cls, variant: str, *arguments: Any) -> Self:
        made: Self = cls._variants[variant](*arguments)
        return made

    def __and__(self, other: Self, /) -> Self:
        return self._make("And", (self, other))

    def __or__(self, other: Self, /) -> Self:
        return self._make("Or", (self, other))

    @abstractmethod
    def matches(self, path: str, num_refs: int = 0) -> bool:
        """Tell whether the manifest with `num_refs` references of the array at `path` is meant."""

    @abstractmethod
    def to_plain(self) -> Any:
        """Return the condition as it is written on disk."""

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Read a condition from its form on disk; raise ValueError for one this release does not know."""
        for name, variant in cls._variants.items():
            if getattr(variant, "word", None) == plain:
                return cls._make(name)
        match plain:
            case {"or": [*parts]}:
                return cls._make("Or", tuple(map(cls.from_plain, parts)))
            case {"and": [*parts]}:
                return cls._make("And", tuple(map(cls.from_plain, parts)))
            case {"path_matches": {"regex": str(regex)}}:
                return cls._make("PathMatches", regex)
            case {"name_matches": {"regex": str(regex)}}:
                return cls._make("NameMatches", regex)
            case {"num_refs": {"from": lower, "to": upper}} if "NumRefs" in cls._variants:
                return cls._make("NumRefs", _bound(lower, after=1), _bound(upper, after=0))
        raise ValueError(f"unknown {cls._what} condition {plain!r}")


class ManifestPreloadCondition(_Condition):
    """A condition that selects the manifests to read when a session opens. Combine with `&` and `|`."""

    __slots__ = ()

    _what = "preload"

    @classmethod
    def num_refs(cls, from_refs: int | None, to_refs: int | None) -> Self:
        """Match manifests with at least `from_refs` and fewer than `to_refs` chunk references."""
        return cls._make("NumRefs", from_refs, to_refs)

    @classmethod
    def true(cls) -> Self:
        """Match all manifests."""
        return cls._make("True")

    @classmethod
    def false(cls) -> Self:
        """Match no manifest."""
        return cls._make("False")


class ManifestSplitCondition(_Condition):
    """A condition that selects the arrays to which a splitting rule applies. Combine with `&` and `|`."""

    __slots__ = ()

    _what = "split"

    AnyArray: ClassVar[type[ManifestSplitCondition]]
    """Every array."""


@dataclass(frozen=True, slots=True, repr=False)
class _Or:
    """Any of these."""

    conditions: tuple[_Condition, ...]

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return any(condition.matches(path, num_refs) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"or": [condition.to_plain() for condition in self.conditions]}


@dataclass(frozen=True, slots=True, repr=False)
class _And:
    """All of these."""

    conditions: tuple[_Condition, ...]

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return all(condition.matches(path, num_refs) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"and": [condition.to_plain() for condition in self.conditions]}


@dataclass(frozen=True, slots=True, repr=False)
class _PathMatches:
    """By the path."""

    regex: str

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return _found(self.regex, path)

    def to_plain(self) -> Any:
        return {"path_matches": {"regex": self.regex}}


@dataclass(frozen=True, slots=True, repr=False)
class _NameMatches:
    """By the last segment of the path."""

    regex: str

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return _found(self.regex, path.rpartition("/")[2])

    def to_plain(self) -> Any:
        return {"name_matches": {"regex": self.regex}}


@dataclass(frozen=True, slots=True, repr=False)
class _NumRefs:
    """By the number of references."""

    from_refs: int | None
    to_refs: int | None

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return (self.from_refs or 0) <= num_refs and (self.to_refs is None or num_refs < self.to_refs)

    def to_plain(self) -> Any:
        lower = "Unbounded" if self.from_refs is None else {"Included": self.from_refs}
        upper = "Unbounded" if self.to_refs is None else {"Excluded": self.to_refs}
        return {"num_refs": {"from": lower, "to": upper}}


@dataclass(frozen=True, slots=True, repr=False)
class _Constant:
    """All arrays, or none."""

    word: ClassVar[str]
    """The condition on disk."""

    def matches(self, path: str, num_refs: int = 0) -> bool:
        return self.word != "false"

    def to_plain(self) -> Any:
        return self.word


def _add_variants(family: Any, variants: Mapping[str, tuple[type, str]], **words: str) -> None:
    """Make the nested classes of an official class: name, behaviour, and the call in the repr of each."""
    made = {}
    for name, (behaviour, call) in variants.items():
        attributes = {
            "__slots__": (),
            "__module__": __name__,
            "__qualname__": f"{family.__name__}.{name}",
            "__doc__": behaviour.__doc__,
            "call": f"{family.__name__}.{call}",
            **({"word": words[name]} if name in words else {}),
        }
        made[name] = type(name, (behaviour, family), attributes)
        setattr(family, name, made[name])  # `True` and `False` cannot be written as attributes
    family._variants = made


_COMMON = {
    "Or": (_Or, "or_conditions"),
    "And": (_And, "and_conditions"),
    "PathMatches": (_PathMatches, "path_matches"),
    "NameMatches": (_NameMatches, "name_matches"),
}
_add_variants(
    ManifestPreloadCondition,
    {
        **_COMMON,
        "NumRefs": (_NumRefs, "num_refs"),
        "True": (_Constant, "true"),
        "False": (_Constant, "false"),
    },
    **{"True": "true", "False": "false"},
)
_add_variants(ManifestSplitCondition, {**_COMMON, "AnyArray": (_Constant, "AnyArray")}, AnyArray="any_array")


class _DimensionFamily(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tuple(v for v in vars(cls).values() if isinstance(v, type)))


class ManifestSplitDimCondition(metaclass=_DimensionFamily):
    """Which dimension of an array a split size is for: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Axis(_Shown):
        """The dimension with this number, from 0."""

        call = "ManifestSplitDimCondition.Axis"

        axis: int

        def __post_init__(self) -> None:
            if self.axis < 0:
                raise OverflowError("an axis cannot be negative")

        def matches(self, axis: int, dimension_name: str | None) -> bool:
            """Whether the dimension is meant."""
            return axis == self.axis

        def to_plain(self) -> object:
            """The condition as it is written on disk."""
            return {"Axis": self.axis}

    @dataclass(frozen=True, slots=True, repr=False)
    class DimensionName(_Shown):
        """Dimensions whose name matches; those without a name never do."""

        call = "ManifestSplitDimCondition.DimensionName"

        regex: str

        def matches(self, axis: int, dimension_name: str | None) -> bool:
            """Whether the dimension is meant."""
            return dimension_name is not None and _found(self.regex, dimension_name)

        def to_plain(self) -> object:
            """The condition as it is written on disk."""
            return {"DimensionName": self.regex}

    @dataclass(frozen=True, slots=True, repr=False)
    class Any(_Shown):
        """Every dimension."""

        call = "ManifestSplitDimCondition.Any"

        def matches(self, axis: int, dimension_name: str | None) -> bool:
            """Whether the dimension is meant."""
            return True

        def to_plain(self) -> object:
            """The condition as it is written on disk."""
            return "Any"


AnySplitDimCondition: TypeAlias = (
    ManifestSplitDimCondition.Axis | ManifestSplitDimCondition.DimensionName | ManifestSplitDimCondition.Any
)


def split_dim_condition_from_plain(plain: Any) -> AnySplitDimCondition:
    """The dimension condition an on-disk value describes; raises ValueError for an unknown one."""
    match plain:
        case "Any":
            return ManifestSplitDimCondition.Any()
        case {"Axis": int(axis)}:
            return ManifestSplitDimCondition.Axis(axis)
        case {"DimensionName": str(regex)}:
            return ManifestSplitDimCondition.DimensionName(regex)
    raise ValueError(f"unknown dimension condition {plain!r}")


def _found(regex: str, text: str) -> bool:
    pattern = _compiled(regex)
    return pattern is not None and pattern.search(text) is not None


@lru_cache(maxsize=256)
def _compiled(regex: str) -> re.Pattern[str] | None:
    try:
        return re.compile(regex)
    except (re.error, RecursionError, OverflowError):
        return None


def _bound(plain: Any, after: int) -> int | None:
    """One end of a half-open interval; `after` is what an excluded lower end adds."""
    match plain:
        case "Unbounded":
            return None
        case Mapping() as tagged if len(tagged) == 1:
            (tag, number), *_ = tagged.items()
            if isinstance(number, int) and tag in ("Included", "Excluded"):
                return number + (after if tag == "Excluded" else 1 - after)
    raise ValueError(f"unknown bound {plain!r}")
