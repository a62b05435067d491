"""Which arrays have their manifests preloaded, and which ones split where.

Regexes are searched for anywhere in the array's path, or in its last segment; an invalid one matches nothing.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from icefloe.config.display import literal, qualified


class ManifestPreloadCondition(ABC):
    """Which arrays' manifests are read as soon as a session opens. Combine with `&` and `|`."""

    __slots__ = ()

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Any of these."""
        return _PreloadOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """All of these."""
        return _PreloadAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestPreloadCondition:
        """Arrays whose full path matches."""
        return _PreloadPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestPreloadCondition:
        """Arrays whose name, the last segment of the path, matches."""
        return _PreloadNameMatches(regex)

    @staticmethod
    def num_refs(from_refs: int | None, to_refs: int | None) -> ManifestPreloadCondition:
        """Manifests with at least `from_refs` and fewer than `to_refs` chunk references."""
        return _PreloadNumRefs(from_refs, to_refs)

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """All manifests."""
        return _PreloadTrue()

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """No manifest."""
        return _PreloadFalse()

    def __and__(self, other: ManifestPreloadCondition, /) -> ManifestPreloadCondition:
        return _PreloadAnd((self, other))

    def __or__(self, other: ManifestPreloadCondition, /) -> ManifestPreloadCondition:
        return _PreloadOr((self, other))

    @abstractmethod
    def matches(self, path: str, num_refs: int) -> bool:
        """Whether the manifest with `num_refs` references of the array at `path` is meant."""

    @abstractmethod
    def to_plain(self) -> Any:
        """The condition as it is written on disk."""

    @staticmethod
    def from_plain(plain: Any) -> ManifestPreloadCondition:
        """The condition back again; raises ValueError for one this release does not know."""
        match plain:
            case "true":
                return _PreloadTrue()
            case "false":
                return _PreloadFalse()
            case {"or": [*parts]}:
                return _PreloadOr(tuple(map(ManifestPreloadCondition.from_plain, parts)))
            case {"and": [*parts]}:
                return _PreloadAnd(tuple(map(ManifestPreloadCondition.from_plain, parts)))
            case {"path_matches": {"regex": str(regex)}}:
                return _PreloadPathMatches(regex)
            case {"name_matches": {"regex": str(regex)}}:
                return _PreloadNameMatches(regex)
            case {"num_refs": {"from": lower, "to": upper}}:
                return _PreloadNumRefs(_bound(lower, after=1), _bound(upper, after=0))
        raise ValueError(f"unknown preload condition {plain!r}")


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadOr(ManifestPreloadCondition):
    """Any of these."""

    conditions: tuple[ManifestPreloadCondition, ...]

    def matches(self, path: str, num_refs: int) -> bool:
        return any(condition.matches(path, num_refs) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"or": [condition.to_plain() for condition in self.conditions]}

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.or_conditions", list(self.conditions))


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadAnd(ManifestPreloadCondition):
    """All of these."""

    conditions: tuple[ManifestPreloadCondition, ...]

    def matches(self, path: str, num_refs: int) -> bool:
        return all(condition.matches(path, num_refs) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"and": [condition.to_plain() for condition in self.conditions]}

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.and_conditions", list(self.conditions))


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadPathMatches(ManifestPreloadCondition):
    """By the path."""

    regex: str

    def matches(self, path: str, num_refs: int) -> bool:
        return _found(self.regex, path)

    def to_plain(self) -> Any:
        return {"path_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.path_matches", self.regex)


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadNameMatches(ManifestPreloadCondition):
    """By the last segment of the path."""

    regex: str

    def matches(self, path: str, num_refs: int) -> bool:
        return _found(self.regex, path.rpartition("/")[2])

    def to_plain(self) -> Any:
        return {"name_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.name_matches", self.regex)


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadNumRefs(ManifestPreloadCondition):
    """By the number of references."""

    from_refs: int | None
    to_refs: int | None

    def matches(self, path: str, num_refs: int) -> bool:
        return (self.from_refs or 0) <= num_refs and (self.to_refs is None or num_refs < self.to_refs)

    def to_plain(self) -> Any:
        lower = "Unbounded" if self.from_refs is None else {"Included": self.from_refs}
        upper = "Unbounded" if self.to_refs is None else {"Excluded": self.to_refs}
        return {"num_refs": {"from": lower, "to": upper}}

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.num_refs", self.from_refs, self.to_refs)


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadTrue(ManifestPreloadCondition):
    """All manifests."""

    def matches(self, path: str, num_refs: int) -> bool:
        return True

    def to_plain(self) -> Any:
        return "true"

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.true")


@dataclass(frozen=True, slots=True, repr=False)
class _PreloadFalse(ManifestPreloadCondition):
    """No manifest."""

    def matches(self, path: str, num_refs: int) -> bool:
        return False

    def to_plain(self) -> Any:
        return "false"

    def __repr__(self) -> str:
        return _code("ManifestPreloadCondition.false")


class ManifestSplitCondition(ABC):
    """Which arrays a rule for splitting manifests is about. Combine with `&` and `|`."""

    __slots__ = ()

    AnyArray: ClassVar[type[ManifestSplitCondition]]
    """Every array."""

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Any of these."""
        return _SplitOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """All of these."""
        return _SplitAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose full path matches."""
        return _SplitPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> ManifestSplitCondition:
        """Arrays whose name, the last segment of the path, matches."""
        return _SplitNameMatches(regex)

    def __or__(self, other: ManifestSplitCondition, /) -> ManifestSplitCondition:
        return _SplitOr((self, other))

    def __and__(self, other: ManifestSplitCondition, /) -> ManifestSplitCondition:
        return _SplitAnd((self, other))

    @abstractmethod
    def matches(self, path: str) -> bool:
        """Whether the array at `path` is meant."""

    @abstractmethod
    def to_plain(self) -> Any:
        """The condition as it is written on disk."""

    @staticmethod
    def from_plain(plain: Any) -> ManifestSplitCondition:
        """The condition back again; raises ValueError for one this release does not know."""
        match plain:
            case "any_array":
                return _SplitAnyArray()
            case {"or": [*parts]}:
                return _SplitOr(tuple(map(ManifestSplitCondition.from_plain, parts)))
            case {"and": [*parts]}:
                return _SplitAnd(tuple(map(ManifestSplitCondition.from_plain, parts)))
            case {"path_matches": {"regex": str(regex)}}:
                return _SplitPathMatches(regex)
            case {"name_matches": {"regex": str(regex)}}:
                return _SplitNameMatches(regex)
        raise ValueError(f"unknown split condition {plain!r}")


@dataclass(frozen=True, slots=True, repr=False)
class _SplitOr(ManifestSplitCondition):
    """Any of these."""

    conditions: tuple[ManifestSplitCondition, ...]

    def matches(self, path: str) -> bool:
        return any(condition.matches(path) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"or": [condition.to_plain() for condition in self.conditions]}

    def __repr__(self) -> str:
        return _code("ManifestSplitCondition.or_conditions", list(self.conditions))


@dataclass(frozen=True, slots=True, repr=False)
class _SplitAnd(ManifestSplitCondition):
    """All of these."""

    conditions: tuple[ManifestSplitCondition, ...]

    def matches(self, path: str) -> bool:
        return all(condition.matches(path) for condition in self.conditions)

    def to_plain(self) -> Any:
        return {"and": [condition.to_plain() for condition in self.conditions]}

    def __repr__(self) -> str:
        return _code("ManifestSplitCondition.and_conditions", list(self.conditions))


@dataclass(frozen=True, slots=True, repr=False)
class _SplitPathMatches(ManifestSplitCondition):
    """By the path."""

    regex: str

    def matches(self, path: str) -> bool:
        return _found(self.regex, path)

    def to_plain(self) -> Any:
        return {"path_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return _code("ManifestSplitCondition.path_matches", self.regex)


@dataclass(frozen=True, slots=True, repr=False)
class _SplitNameMatches(ManifestSplitCondition):
    """By the last segment of the path."""

    regex: str

    def matches(self, path: str) -> bool:
        return _found(self.regex, path.rpartition("/")[2])

    def to_plain(self) -> Any:
        return {"name_matches": {"regex": self.regex}}

    def __repr__(self) -> str:
        return _code("ManifestSplitCondition.name_matches", self.regex)


@dataclass(frozen=True, slots=True, repr=False)
class _SplitAnyArray(ManifestSplitCondition):
    """All arrays."""

    def matches(self, path: str) -> bool:
        return True

    def to_plain(self) -> Any:
        return "any_array"

    def __repr__(self) -> str:
        return _code("ManifestSplitCondition.AnyArray")


class _DimensionFamily(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tuple(v for v in vars(cls).values() if isinstance(v, type)))


class ManifestSplitDimCondition(metaclass=_DimensionFamily):
    """Which dimension of an array a split size is for: one of the variants below."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Axis:
        """The dimension with this number, from 0."""

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

        def __repr__(self) -> str:
            return _code("ManifestSplitDimCondition.Axis", self.axis)

    @dataclass(frozen=True, slots=True, repr=False)
    class DimensionName:
        """Dimensions whose name matches; those without a name never do."""

        regex: str

        def matches(self, axis: int, dimension_name: str | None) -> bool:
            """Whether the dimension is meant."""
            return dimension_name is not None and _found(self.regex, dimension_name)

        def to_plain(self) -> object:
            """The condition as it is written on disk."""
            return {"DimensionName": self.regex}

        def __repr__(self) -> str:
            return _code("ManifestSplitDimCondition.DimensionName", self.regex)

    @dataclass(frozen=True, slots=True, repr=False)
    class Any:
        """Every dimension."""

        def matches(self, axis: int, dimension_name: str | None) -> bool:
            """Whether the dimension is meant."""
            return True

        def to_plain(self) -> object:
            """The condition as it is written on disk."""
            return "Any"

        def __repr__(self) -> str:
            return _code("ManifestSplitDimCondition.Any")


AnySplitDimCondition: TypeAlias = (
    ManifestSplitDimCondition.Axis | ManifestSplitDimCondition.DimensionName | ManifestSplitDimCondition.Any
)

# The nested names of the official classes; `True` and `False` cannot be written as attributes.
for _owner, _variants in (
    (
        ManifestPreloadCondition,
        {
            "Or": _PreloadOr,
            "And": _PreloadAnd,
            "PathMatches": _PreloadPathMatches,
            "NameMatches": _PreloadNameMatches,
            "NumRefs": _PreloadNumRefs,
            "True": _PreloadTrue,
            "False": _PreloadFalse,
        },
    ),
    (
        ManifestSplitCondition,
        {
            "Or": _SplitOr,
            "And": _SplitAnd,
            "PathMatches": _SplitPathMatches,
            "NameMatches": _SplitNameMatches,
            "AnyArray": _SplitAnyArray,
        },
    ),
):
    for _name, _variant in _variants.items():
        setattr(_owner, _name, _variant)


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


def _code(name: str, *arguments: object) -> str:
    return f"{qualified('config', name)}({', '.join(map(literal, arguments))})"
