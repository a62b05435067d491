"""Conditions that select which manifests to preload, and which arrays and dimensions a splitting rule applies
to.

A regular expression may match anywhere in the path of an array, or in its last segment. An invalid one
matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from icefloe.config.display import format_literal, qualify_name


class _Condition:
    """An immutable condition with its operands. The subclass determines the variant."""

    __slots__ = ("operands",)

    operands: tuple[Any, ...]
    variants: ClassVar[Mapping[str, Any]]
    """The variants, by stored name."""
    word: ClassVar[str]
    """The stored name of the variant."""
    call: ClassVar[str]
    """The name of the function that creates the variant, for its repr."""

    @classmethod
    def _make(cls, word: str, *operands: Any) -> Self:
        condition: Self = cls.variants[word](*operands)
        return condition

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot assign to {name!r}: conditions are immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.operands

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.operands == getattr(other, "operands", None)

    def __hash__(self) -> int:
        return hash((type(self), self.operands))

    def __repr__(self) -> str:
        shown = (
            format_literal(list(value) if isinstance(value, tuple) else value) for value in self.operands
        )
        return f"{qualify_name('config', f'{type(self).__base__.__name__}.{self.call}')}({', '.join(shown)})"  # type: ignore[union-attr]


class _ArrayCondition(_Condition):
    """A condition on arrays and their manifests. Combine conditions with `&` and `|`."""

    __slots__ = ()

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Create a condition that matches if any of the given conditions matches.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestPreloadCondition or ManifestSplitCondition
            The condition.
        """
        return cls._make("or", conditions)

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Create a condition that matches if all of the given conditions match.

        Parameters
        ----------
        conditions
            The conditions.

        Returns
        -------
        ManifestPreloadCondition or ManifestSplitCondition
            The condition.
        """
        return cls._make("and", conditions)

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """Create a condition that matches arrays by their full path.

        Parameters
        ----------
        regex
            The regular expression to search for.

        Returns
        -------
        ManifestPreloadCondition or ManifestSplitCondition
            The condition.
        """
        return cls._make("path_matches", regex)

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """Create a condition that matches arrays by their name, the last segment of the path.

        Parameters
        ----------
        regex
            The regular expression to search for.

        Returns
        -------
        ManifestPreloadCondition or ManifestSplitCondition
            The condition.
        """
        return cls._make("name_matches", regex)

    def __and__(self, other: Self, /) -> Self:
        return self.and_conditions((self, other))

    def __or__(self, other: Self, /) -> Self:
        return self.or_conditions((self, other))

    def matches(self, path: str, num_refs: int = 0) -> bool:
        """Return True if the condition matches a manifest of an array.

        Parameters
        ----------
        path
            The path of the array.
        num_refs
            The number of chunk references in the manifest.

        Returns
        -------
        bool
            True if the condition holds.
        """
        match self.word, self.operands:
            case "or", (conditions,):
                return any(condition.matches(path, num_refs) for condition in conditions)
            case "and", (conditions,):
                return all(condition.matches(path, num_refs) for condition in conditions)
            case "path_matches", (regex,):
                return _is_found(regex, path)
            case "name_matches", (regex,):
                return _is_found(regex, path.rpartition("/")[2])
            case "num_refs", (lower, upper):
                return (lower or 0) <= num_refs and (upper is None or num_refs < upper)
        return self.word != "false"

    def to_plain(self) -> Any:
        """Convert the condition to its stored form, for the configuration.

        Returns
        -------
        str or dict
            The stored form.
        """
        match self.word, self.operands:
            case _, ():
                return self.word
            case "or" | "and", (conditions,):
                return {self.word: [condition.to_plain() for condition in conditions]}
            case "num_refs", (lower, upper):
                first = "Unbounded" if lower is None else {"Included": lower}
                end = "Unbounded" if upper is None else {"Excluded": upper}
                return {self.word: {"from": first, "to": end}}
        return {self.word: {"regex": self.operands[0]}}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Create a condition from its stored form.

        Parameters
        ----------
        plain
            The stored form.

        Returns
        -------
        ManifestPreloadCondition or ManifestSplitCondition
            The condition.

        Raises
        ------
        ValueError
            If the condition is unknown to this release.
        """
        match plain:
            case {"or": [*parts]}:
                return cls.or_conditions(map(cls.from_plain, parts))
            case {"and": [*parts]}:
                return cls.and_conditions(map(cls.from_plain, parts))
            case {"path_matches": {"regex": str(regex)}}:
                return cls.path_matches(regex)
            case {"name_matches": {"regex": str(regex)}}:
                return cls.name_matches(regex)
            case {"num_refs": {"from": lower, "to": upper}} if "num_refs" in cls.variants:
                return cls._make("num_refs", _parse_bound(lower, after=1), _parse_bound(upper, after=0))
            case "true" | "false" | "any_array" if plain in cls.variants:
                return cls._make(plain)
        raise ValueError(f"unknown condition {plain!r}; a newer release may know it")


class ManifestPreloadCondition(_ArrayCondition):
    """A condition that selects manifests to preload when a session opens.

    Combine with `&` and `|`.
    """

    __slots__ = ()

    @classmethod
    def num_refs(cls, from_refs: int | None, to_refs: int | None) -> Self:
        """Create a condition that matches manifests with a certain number of chunk references.

        Parameters
        ----------
        from_refs
            The minimum number; None for no limit.
        to_refs
            The exclusive maximum number; None for no limit.

        Returns
        -------
        ManifestPreloadCondition
            The condition.
        """
        return cls._make("num_refs", from_refs, to_refs)

    @classmethod
    def true(cls) -> Self:
        """Create a condition that matches all manifests.

        Returns
        -------
        ManifestPreloadCondition
            The condition.
        """
        return cls._make("true")

    @classmethod
    def false(cls) -> Self:
        """Create a condition that never matches.

        Returns
        -------
        ManifestPreloadCondition
            The condition.
        """
        return cls._make("false")


class ManifestSplitCondition(_ArrayCondition):
    """A condition that selects the arrays to which a manifest splitting rule applies.

    Combine with `&` and `|`.
    """

    __slots__ = ()

    AnyArray: ClassVar[Callable[[], ManifestSplitCondition]]
    """Matches every array."""


class ManifestSplitDimCondition(_Condition):
    """A condition that selects the dimensions to which a manifest split size applies. Use one of the variants
    below.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        Axis: ClassVar[Callable[[int], ManifestSplitDimCondition]]
        """Matches the dimension with this index, starting at 0."""
        DimensionName: ClassVar[Callable[[str], ManifestSplitDimCondition]]
        """Matches dimensions whose name matches a regular expression. Dimensions without a name
        never match.
        """
        Any: ClassVar[Callable[[], ManifestSplitDimCondition]]
        """Matches every dimension."""

    def matches(self, axis: int, dimension_name: str | None) -> bool:
        """Return True if the condition matches a dimension.

        Parameters
        ----------
        axis
            The index of the dimension, starting at 0.
        dimension_name
            The name of the dimension, if it has one.

        Returns
        -------
        bool
            True if the split size applies.
        """
        if self.word == "Axis":
            return bool(self.operands == (axis,))
        if self.word == "DimensionName":
            return dimension_name is not None and _is_found(self.operands[0], dimension_name)
        return True

    def to_plain(self) -> object:
        """Convert the condition to its stored form, for the configuration.

        Returns
        -------
        str or dict
            The stored form.
        """
        return {self.word: self.operands[0]} if self.operands else self.word

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Create a condition on dimensions from its stored form.

        Parameters
        ----------
        plain
            The stored form.

        Returns
        -------
        ManifestSplitDimCondition
            The condition.

        Raises
        ------
        ValueError
            If the condition is unknown to this release.
        """
        match plain:
            case "Any":
                return cls._make("Any")
            case {"Axis": int(axis)}:
                return cls._make("Axis", axis)
            case {"DimensionName": str(regex)}:
                return cls._make("DimensionName", regex)
        raise ValueError(f"unknown dimension condition {plain!r}; a newer release may know it")


def _set(condition: _Condition, *operands: Any) -> None:
    object.__setattr__(condition, "operands", operands)


def _make_no_operand_error(self: _Condition) -> None:
    _set(self)


def _conditions(self: _Condition, conditions: Iterable[_Condition]) -> None:
    _set(self, tuple(conditions))


def _regex(self: _Condition, regex: str) -> None:
    _set(self, regex)


def _check_bounds(self: _Condition, from_refs: int | None, to_refs: int | None) -> None:
    _set(self, from_refs, to_refs)


def _check_axis(self: _Condition, axis: int) -> None:
    if axis < 0:
        raise OverflowError("an axis cannot be negative")
    _set(self, axis)


def _add_variants(family: Any, variants: Mapping[str, tuple[str, str, Callable[..., None]]]) -> None:
    """Add one nested class per variant, from its stored name, the call in its repr and its constructor."""
    family.variants = {}
    for name, (word, call, init) in variants.items():
        members = {"__slots__": (), "__module__": __name__, "__qualname__": f"{family.__name__}.{name}"}
        variant = type(name, (family,), {**members, "__init__": init, "word": word, "call": call})
        family.variants[word] = variant
        setattr(family, name, variant)  # `True` and `False` cannot be written as attributes


_COMMON: Mapping[str, tuple[str, str, Callable[..., None]]] = {
    "Or": ("or", "or_conditions", _conditions),
    "And": ("and", "and_conditions", _conditions),
    "PathMatches": ("path_matches", "path_matches", _regex),
    "NameMatches": ("name_matches", "name_matches", _regex),
}
_add_variants(
    ManifestPreloadCondition,
    {
        **_COMMON,
        "NumRefs": ("num_refs", "num_refs", _check_bounds),
        "True": ("true", "true", _make_no_operand_error),
        "False": ("false", "false", _make_no_operand_error),
    },
)
_add_variants(
    ManifestSplitCondition, {**_COMMON, "AnyArray": ("any_array", "AnyArray", _make_no_operand_error)}
)
_add_variants(
    ManifestSplitDimCondition,
    {
        "Axis": ("Axis", "Axis", _check_axis),
        "DimensionName": ("DimensionName", "DimensionName", _regex),
        "Any": ("Any", "Any", _make_no_operand_error),
    },
)


def _is_found(regex: str, text: str) -> bool:
    pattern = _compile(regex)
    return pattern is not None and pattern.search(text) is not None


@lru_cache(maxsize=256)
def _compile(regex: str) -> re.Pattern[str] | None:
    try:
        return re.compile(regex)
    except (re.error, RecursionError, OverflowError):
        return None


def _parse_bound(plain: Any, after: int) -> int | None:
    """Convert a stored bound to one end of a half-open interval. `after` is 1 for the lower end and 0 for the
    upper end.
    """
    match plain:
        case "Unbounded":
            return None
        case Mapping() as tagged if len(tagged) == 1:
            (tag, number), *_ = tagged.items()
            if isinstance(number, int) and tag in ("Included", "Excluded"):
                return number + (after if tag == "Excluded" else 1 - after)
    raise ValueError(f"unknown bound {plain!r}; expected Unbounded, Included or Excluded")
