"""Conditions on the values of one variable. They are evaluated per cell, or per chunk from its min and max.

A condition is a tree of comparisons and null tests. Negations occur only in the leaves. Comparisons are false
for missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from icefloe.query.decode import Mask, Values

OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Masks over chunks that tell whether a condition may hold and whether it must hold, derived from each
    chunk's min and max.
    """

    may: Mask
    """True if the condition may hold for some value in the chunk."""
    must: Mask
    """True if the condition holds for every value in the chunk."""


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """A condition that compares the values of a variable with a constant."""

    word: str
    """The comparison operator, one of `OPERATIONS`."""
    constant: Any

    @property
    def holds_for_null(self) -> bool:
        """False, because a comparison never holds for missing values."""
        return False

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Return a mask of the cells for which the comparison holds."""
        found = self._compare(values)
        return found if missing is None else found & ~missing

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate the comparison for whole chunks, given the min and max of each."""
        match self.word:
            case ">" | ">=":
                return Bounds(self._compare(high), self._compare(low))
            case "<" | "<=":
                return Bounds(self._compare(low), self._compare(high))
        equal = ValueComparison("==", self.constant)
        constant = equal._compare(low) & equal._compare(high)
        within = ValueComparison("<=", self.constant)._compare(low) & ValueComparison(
            ">=", self.constant
        )._compare(high)
        return Bounds(within, constant) if self.word == "==" else Bounds(~constant, ~within)

    def _compare(self, values: Values) -> Mask:
        # Spark compares floats of any size as doubles.
        wide = values.astype(np.float64) if values.dtype.kind == "f" else values
        return np.asarray(OPERATIONS[self.word](wide, self.constant), np.bool_)


@dataclass(frozen=True, slots=True)
class NullTest:
    """An `IS NULL` or `IS NOT NULL` condition on a variable."""

    wanted: bool
    """True for `IS NULL`, False for `IS NOT NULL`."""

    @property
    def holds_for_null(self) -> bool:
        """True for `IS NULL`, which holds for missing values."""
        return self.wanted

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Return a mask of the cells for which `IS NULL` or `IS NOT NULL` holds."""
        found = np.zeros(values.shape, np.bool_) if missing is None else missing
        return found if self.wanted else ~found

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate `IS NULL` or `IS NOT NULL` for the non-missing values of whole chunks."""
        found = np.full(low.shape, not self.wanted)
        return Bounds(found, found)


@dataclass(frozen=True, slots=True)
class Combination:
    """Several conditions on one variable, combined with AND or OR."""

    parts: tuple[ValueCondition, ...]
    all: bool

    @property
    def holds_for_null(self) -> bool:
        """True if the combined condition holds for missing values."""
        found = [part.holds_for_null for part in self.parts]
        return all(found) if self.all else any(found)

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Return a mask of the cells for which the combined condition holds."""
        return self._combine([part.holds(values, missing) for part in self.parts])

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate the combined condition for whole chunks, given the min and max of each."""
        found = [part.bound(low, high) for part in self.parts]
        return Bounds(
            self._combine([each.may for each in found]), self._combine([each.must for each in found])
        )

    def _combine(self, masks: list[Mask]) -> Mask:
        combine: Any = np.logical_and if self.all else np.logical_or
        return np.asarray(combine.reduce(masks), np.bool_)


ValueCondition: TypeAlias = ValueComparison | NullTest | Combination


@dataclass(frozen=True, slots=True)
class ValueFilter:
    """A scan filter: a condition on the values of one variable."""

    variable: str
    condition: ValueCondition
