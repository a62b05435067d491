"""Conditions on the values of one variable, evaluated for cells and for the extremes of whole chunks.

A condition is a tree of comparisons and null tests, without negations: those are moved to the leaves. No
comparison holds for a missing value.
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
    """The consequences of the extremes of chunks for a condition, one entry per chunk."""

    may: Mask
    """True if the condition may hold for a value of the chunk."""
    must: Mask
    """True if the condition holds for every value of the chunk."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a value with a constant."""

    word: str
    """One of `OPERATIONS`."""
    constant: Any

    @property
    def holds_for_null(self) -> bool:
        """False: no comparison holds for a missing value."""
        return False

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Find the cells for which the condition holds."""
        found = self._compare(values)
        return found if missing is None else found & ~missing

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate the condition for chunks with these extremes."""
        match self.word:
            case ">" | ">=":
                return Bounds(self._compare(high), self._compare(low))
            case "<" | "<=":
                return Bounds(self._compare(low), self._compare(high))
        equal = Comparison("==", self.constant)
        constant = equal._compare(low) & equal._compare(high)
        within = Comparison("<=", self.constant)._compare(low) & Comparison(">=", self.constant)._compare(
            high
        )
        return Bounds(within, constant) if self.word == "==" else Bounds(~constant, ~within)

    def _compare(self, values: Values) -> Mask:
        # Spark compares floats of any size as doubles.
        wide = values.astype(np.float64) if values.dtype.kind == "f" else values
        return np.asarray(OPERATIONS[self.word](wide, self.constant), np.bool_)


@dataclass(frozen=True, slots=True)
class NullTest:
    """`IS NULL`, or `IS NOT NULL`."""

    wanted: bool
    """True for `IS NULL`."""

    @property
    def holds_for_null(self) -> bool:
        """True for `IS NULL`."""
        return self.wanted

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Find the cells for which the condition holds."""
        found = np.zeros(values.shape, np.bool_) if missing is None else missing
        return found if self.wanted else ~found

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate the condition for the values of chunks that are not missing."""
        found = np.full(low.shape, not self.wanted)
        return Bounds(found, found)


@dataclass(frozen=True, slots=True)
class Combination:
    """Several conditions of which all have to hold, or any."""

    parts: tuple[ValueCondition, ...]
    all: bool

    @property
    def holds_for_null(self) -> bool:
        """True if the condition holds for a missing value."""
        found = [part.holds_for_null for part in self.parts]
        return all(found) if self.all else any(found)

    def holds(self, values: Values, missing: Mask | None) -> Mask:
        """Find the cells for which the condition holds."""
        return self._combine([part.holds(values, missing) for part in self.parts])

    def bound(self, low: Values, high: Values) -> Bounds:
        """Evaluate the condition for chunks with these extremes."""
        found = [part.bound(low, high) for part in self.parts]
        return Bounds(
            self._combine([each.may for each in found]), self._combine([each.must for each in found])
        )

    def _combine(self, masks: list[Mask]) -> Mask:
        combine: Any = np.logical_and if self.all else np.logical_or
        return np.asarray(combine.reduce(masks), np.bool_)


ValueCondition: TypeAlias = Comparison | NullTest | Combination


@dataclass(frozen=True, slots=True)
class ValueFilter:
    """A condition on the values of a variable."""

    variable: str
    condition: ValueCondition
