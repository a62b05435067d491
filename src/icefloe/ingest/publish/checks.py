"""What may be demanded of staged data."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from icefloe.errors import ErrorKind, InvalidInputError

DEFAULT_CHECKS = ("monotone", "source")
SHORT_FORM = {"range": "variable", "nulls": "variable", "python": "call", "sql": "query"}
"""What a check needs most, where only one thing is given."""
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "monotone": (),
        "gaps": (),
        "source": (),
        "range": ("variable", "low", "high"),
        "nulls": ("variable", "most"),
        "python": ("call",),
        "sql": ("query",),
    }
)
"""All checks, and what may be said of each."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be true of what was staged.

    `monotone`: coordinates along which files follow each other are strictly increasing or decreasing; others
    may repeat values. `gaps`: steps are about equal. `source`: some blocks are as in the files. `range`:
    values of `variable` are between `low` and `high`. `nulls`: a share of at most `most` of the values are
    missing. `python`: the function named by `call`, as `module:function`, gets the dataset and returns None,
    or says what is wrong. `sql`: the answer to `query` has no rows, or is one value that is true or 0;
    `staged` is what was staged, and `published` what the branch has.
    """

    name: str
    variable: str = ""
    low: float = -math.inf
    high: float = math.inf
    most: float = 0.0
    call: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        if self.name not in NEEDS:
            near = difflib.get_close_matches(self.name, NEEDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NEEDS)}"
            raise wrong_check(f"there is no check {self.name!r}; {hint}")
        for need in ("variable", "call", "query"):
            if not isinstance(getattr(self, need), str):
                raise wrong_check(f"the check {self.name}: {need} must be text, not {getattr(self, need)!r}")
        for bound in ("low", "high", "most"):
            if not isinstance(getattr(self, bound), int | float):
                raise wrong_check(
                    f"the check {self.name}: {bound} must be a number, not {getattr(self, bound)!r}"
                )
        if self.low > self.high:
            raise wrong_check(f"the check {self.name}: low is {self.low:g}, more than high, {self.high:g}")
        if not 0 <= self.most <= 1:
            raise wrong_check(f"the check {self.name}: most is a share from 0 to 1, not {self.most:g}")
        if self.name in ("range", "nulls") and not self.variable:
            raise wrong_check(f"the check {self.name} needs a variable")
        if self.name == "range" and math.isinf(self.low) and math.isinf(self.high):
            raise wrong_check("the check range needs low, high, or both")
        if self.name == "python" and ":" not in self.call:
            raise wrong_check("the check python needs a function to call, as module:function")
        if self.name == "sql" and not self.query.strip():
            raise wrong_check("the check sql needs a query")

    @property
    def title(self) -> str:
        """The check and what it is about."""
        return " ".join(each for each in (self.name, self.variable, self.call, *self.query.split()) if each)


def wrong_check(text: str) -> InvalidInputError:
    """The error about a check that cannot be run."""
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of a check."""

    name: str
    passed: bool
    text: str
