"""Names for the parts of GRIB files that do not fit into one dataset.

A part consists of messages that can share coordinates. Its name contains its distinguishing properties: the
type of level; the type of step, if that type of level has several; the level, if variables lie on different
ones; and a number as a last resort.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"typeOfLevel=([^,]*),stepType=([^,]*)(?:,level=([^,]*))?(?:,number=(\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """The kind of a GRIB file's part: the properties that distinguish it. Its text selects the part, like the
    path of a group.
    """

    level_type: str
    step_type: str
    level: str = ""
    """The level, if there is only one."""
    number: int = 1
    """Number of the part among parts that differ only in their coordinates."""

    def __str__(self) -> str:
        level = f",level={self.level}" if self.level else ""
        number = f",number={self.number}" if self.number > 1 else ""
        return f"typeOfLevel={self.level_type},stepType={self.step_type}{level}{number}"

    @staticmethod
    def parse(text: str) -> Kind | None:
        """Parse the text of a GRIB part's kind; return None for other text, such as the path of a group."""
        found = _TEXT.fullmatch(text)
        return None if found is None else Kind(found[1], found[2], found[3] or "", int(found[4] or 1))

    def matches(self, path: str) -> bool:
        """Return whether a group path of level type and, optionally, step type and level matches the kind of
        a GRIB part."""
        level_type, *rest = path.split("/")
        return level_type == self.level_type and rest in (
            *([], [self.step_type], [self.level]),
            [self.step_type, self.level],
        )


def format_level(levels: Collection[float]) -> str:
    """Format the level of a GRIB variable for a group name; empty if there is not exactly one level."""
    return f"{next(iter(levels)):g}" if len(levels) == 1 else ""


def name_groups(kinds: Iterable[Kind], named: Mapping[Kind, str] | None = None) -> dict[Kind, str]:
    """Choose a group name for each kind of GRIB part. Kinds in `named` keep their names.

    Levels are part of a name, so omit them from kinds whose variables are all on the same levels. No group is
    below another one, because xarray opens a tree only if groups share the coordinates of their parents.
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
    """Add a number to a name, unless it is 1 and nothing else has the name."""
    found = f"{name}_{number}" if number > 1 else name
    while found in used:
        number += 1
        found = f"{name}_{number}"
    return found
