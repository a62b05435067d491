"""Choose group names for the parts of GRIB files that do not fit into one dataset.

A part consists of messages that can share coordinates. Its name is built from the properties that distinguish
it: the level type; the step type, if that level type has several; the level, if variables are on different
levels; and a number as a last resort.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"typeOfLevel=([^,]*),stepType=([^,]*)(?:,level=([^,]*))?(?:,number=(\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """The properties that identify a part of a GRIB file. As text, it selects the part like a group path."""

    level_type: str
    step_type: str
    level: str = ""
    """The level, if there is exactly one."""
    number: int = 1
    """A number that distinguishes parts that differ only in their coordinates."""

    def __str__(self) -> str:
        level = f",level={self.level}" if self.level else ""
        number = f",number={self.number}" if self.number > 1 else ""
        return f"typeOfLevel={self.level_type},stepType={self.step_type}{level}{number}"

    @staticmethod
    def parse(text: str) -> Kind | None:
        """Parse the text form of a GRIB part's kind. Return None for other text, such as a group path."""
        found = _TEXT.fullmatch(text)
        return None if found is None else Kind(found[1], found[2], found[3] or "", int(found[4] or 1))

    def matches(self, path: str) -> bool:
        """Return True if a group path (level type, optional step type and level) matches this kind of GRIB
        part.
        """
        level_type, *rest = path.split("/")
        return level_type == self.level_type and rest in (
            *([], [self.step_type], [self.level]),
            [self.step_type, self.level],
        )


def format_level(levels: Collection[float]) -> str:
    """Format the level of a GRIB variable for a group name. Return "" unless there is exactly one level."""
    return f"{next(iter(levels)):g}" if len(levels) == 1 else ""


def name_groups(kinds: Iterable[Kind], named: Mapping[Kind, str] | None = None) -> dict[Kind, str]:
    """Choose a group name for each part of a GRIB file. Parts in `named` keep their names.

    Levels are part of a name, so callers should omit them from kinds whose variables are all on the same
    levels. Groups are never nested in each other, because xarray opens a tree only if child groups share the
    coordinates of their parents.
    """
    names = dict(named or {})
    everything = {*kinds, *names}
    for kind in sorted(everything - names.keys()):
        alike = [each for each in everything if each.level_type == kind.level_type]
        same_step = [each for each in alike if each.step_type == kind.step_type]
        path = [kind.level_type]
        if len(same_step) < len(alike):
            path.append(kind.step_type)
        if any(each.level != kind.level for each in same_step):
            path.append(kind.level or "levels")
        name = "/".join(path)
        if any(f"{name}/".startswith(f"{other}/") for other in names.values() if other):
            name = "_".join(path)
        used = [*names.values()]
        if any(
            not names[each] for each in alike if each in names
        ):  # the root group has the levels as an array
            name = "_".join(path)
            used.append(kind.level_type)
        names[kind] = _add_number(name, kind.number, used)
    return names


def _add_number(name: str, number: int, used: Collection[str]) -> str:
    """Append a number to a name, unless the number is 1 and the name is unique."""
    found = f"{name}_{number}" if number > 1 else name
    while found in used:
        number += 1
        found = f"{name}_{number}"
    return found
