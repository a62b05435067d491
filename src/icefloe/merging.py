"""What becomes of a merge of branches: the snapshot it made, and the table of conflicts it met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, TypeAlias

from icefloe._internal.printable import printable
from icefloe.config.display import Shown, Tree, qualified
from icefloe.conflicts import Column, ConflictType
from icefloe.errors import ConflictError, ErrorKind
from icefloe.snapshots import Diff

__all__ = [
    "ChunkDetails",
    "MergeConflict",
    "MergeConflictError",
    "MergeConflicts",
    "MergeOutcome",
    "MergeResult",
    "MergeStrategy",
]

MergeStrategy: TypeAlias = Literal["fail", "ours", "theirs"]
"""Who wins where both sides changed the same: nobody, the branch that is merged into, or what is merged."""

MergeOutcome: TypeAlias = Literal["up-to-date", "fast-forward", "merged", "conflicts"]
"""There was nothing to do, the branch only had to move, a snapshot was made, or conflicts forbid one."""


MOST_SHOWN: Final = 20
"""So many conflicts are shown to people; the others are counted."""
MOST_COMPARED: Final = 10
"""The values of so many conflicting chunks are read and compared."""
_IN_ERRORS: Final = 3


@dataclass(frozen=True, slots=True)
class ChunkDetails:
    """Where a conflicting chunk is, in coordinate labels, and how its values differ between the two sides."""

    where: str
    """Labels of the first and the last element per dimension, as in `time=2024-03-01..2024-03-10, x[0:5]`. A
    dimension without a coordinate has numbers of elements in brackets.
    """
    their_where: str | None = None
    """The labels on the side that is merged, where they are others."""
    num_cells: int | None = None
    """The cells of the chunk that both sides have; None where values were not compared."""
    num_differing: int | None = None
    num_missing_on_one_side: int | None = None
    """Of those that differ: cells that are NaN or the fill value on one side."""
    largest_difference: float | None = None
    """Between two numbers or times, unpacked by `scale_factor`; None for other types."""
    units: str = ""
    problem: str | None = None
    """Why the values could not be compared."""

    def __str__(self) -> str:
        where = self.where + (f" (theirs: {self.their_where})" if self.their_where is not None else "")
        return printable(": ".join(filter(None, (where, self._difference()))))

    def _difference(self) -> str:
        if self.problem is not None:
            return f"values not compared, {self.problem}"
        if self.num_cells is None or self.num_differing is None:
            return ""
        if not self.num_differing:
            return f"none of {self.num_cells} cells differs"
        text = (
            f"{self.num_differing} of {self.num_cells} cells differ{'s' if self.num_differing == 1 else ''}"
        )
        if self.largest_difference is not None:
            text += f", by up to {self.largest_difference:.6g}{f' {self.units}' if self.units else ''}"
        if self.num_missing_on_one_side:
            text += f", {self.num_missing_on_one_side} missing on one side"
        return text


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One row of the table: what both sides changed in different ways."""

    path: str
    chunk: tuple[int, ...] | None
    """The coordinates of a chunk; None where the conflict is about the node."""
    kind: ConflictType
    ours: str
    """What the branch did that is merged into."""
    theirs: str
    """What is merged did."""


@dataclass(frozen=True, slots=True)
class ConflictGroup:
    """The conflicts of one kind about one node, as columns that become rows when somebody looks."""

    path: str
    kind: ConflictType
    chunks: Column | None
    ours: Callable[[], list[str]]
    theirs: Callable[[], list[str]]
    details: Callable[[tuple[int, ...], bool], ChunkDetails] | None = None
    """Describe one of the chunks, with or without comparing its values."""

    def __len__(self) -> int:
        return 1 if self.chunks is None else len(self.chunks)

    def rows(self) -> Iterator[MergeConflict]:
        """A row per chunk, or one for the node."""
        places = [None] if self.chunks is None else [tuple(row) for row in self.chunks.tolist()]
        for place, ours, theirs in zip(places, self.ours(), self.theirs(), strict=True):
            yield MergeConflict(self.path, place, self.kind, ours, theirs)


class MergeConflicts(Sequence[MergeConflict]):
    """A table of conflicts: rows by number, or whole columns."""

    def __init__(self, groups: Sequence[ConflictGroup] = ()) -> None:
        self._groups = tuple(groups)
        self._rows: list[MergeConflict] | None = None
        self._details: dict[tuple[int, bool], ChunkDetails | None] = {}

    def _all(self) -> list[MergeConflict]:
        if self._rows is None:
            self._rows = [row for group in self._groups for row in group.rows()]
        return self._rows

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        return self._all()[row]

    def __repr__(self) -> str:
        lines = [f"<{len(self)} conflicts>"]
        for row, details in zip(self[:MOST_SHOWN], self.details(), strict=True):
            words = (row.path, row.chunk, repr(row.kind), row.ours, "|", row.theirs)
            lines.append(printable(" ".join(map(str, words))))
            lines += [] if details is None else [f"    {describe_place(row, details)}"]
        return "\n".join(lines + ([f"and {len(self) - MOST_SHOWN} more"] if len(self) > MOST_SHOWN else []))

    def details(
        self, most: int = MOST_SHOWN, *, most_compared: int = MOST_COMPARED
    ) -> list[ChunkDetails | None]:
        """Describe the chunks of the first rows by coordinate labels, and compare their values.

        Values are read now: the merge did not need them. Where they cannot be read, as virtual chunks in a
        container that is not authorized, `problem` says why.

        Parameters
        ----------
        most
            The number of rows to describe.
        most_compared
            The number of rows whose values are read, at most `most`.

        Returns
        -------
        list of ChunkDetails or None
            One for each of the first rows; None where a conflict is not about a chunk.
        """
        places = ((group, row) for group in self._groups for row in range(len(group)))
        found = []
        for number, (group, row) in enumerate(islice(places, most)):
            key = (number, number < most_compared)
            if key not in self._details:
                self._details[key] = _describe(group, row, with_values=number < most_compared)
            found.append(self._details[key])
        return found

    def columns(self) -> dict[str, list[object]]:
        """The table by column, as pandas and pyarrow take it."""
        names = ("path", "chunk", "kind", "ours", "theirs")
        return {name: [getattr(row, name) for row in self] for name in names}


def describe_place(row: MergeConflict, details: ChunkDetails | None) -> str:
    """Describe one conflict for people, safe to print: `t2m at time=2024-03-01: 2 of 9 cells differ`."""
    if details is None:
        return printable(f"{row.path}: {str(row.kind).lower()}")
    return f"{printable(row.path.strip('/'))}{' at ' if details.where else ': '}{details}"


def _describe(group: ConflictGroup, row: int, *, with_values: bool) -> ChunkDetails | None:
    if group.chunks is None or group.details is None:
        return None
    return group.details(tuple(group.chunks[row].tolist()), with_values)


@dataclass(frozen=True, slots=True, repr=False)
class MergeResult(Shown):
    """What a merge did, or would do."""

    outcome: MergeOutcome
    snapshot_id: str | None
    """The tip of the branch afterwards; None where nothing was written: conflicts, or a dry run."""
    base_id: str
    """The snapshot that both sides were compared with."""
    ours_id: str
    """The tip of the branch before."""
    theirs_id: str
    """What was merged into it."""
    conflicts: MergeConflicts = field(default_factory=MergeConflicts)
    """All conflicts, also those that the strategy decided."""
    changes: Diff = field(default_factory=Diff)
    """What the merge changes on the branch."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = [(name, str(getattr(self, name))) for name in ("outcome", "snapshot_id", "base_id")]
        rows += [("ours_id", self.ours_id), ("theirs_id", self.theirs_id)]
        rows.append(("conflicts", str(len(self.conflicts))))
        return Tree(qualified("merging", "MergeResult"), tuple(rows))


class MergeConflictError(ConflictError):
    """Two branches changed the same in different ways, and the strategy does not say who wins.

    `result.conflicts` is the table of conflicts. Nothing was written.
    """

    result: MergeResult

    def __init__(self, result: MergeResult) -> None:
        first = next(iter(result.conflicts))
        place = f"chunk {first.chunk} of {first.path}" if first.chunk is not None else first.path or "a move"
        super().__init__(
            result.ours_id,
            result.theirs_id,
            f"{result.theirs_id} cannot be merged into {result.ours_id}: {len(result.conflicts)} conflicts, "
            f"the first about {place} ({str(first.kind).lower()}); choose strategy='ours' or 'theirs'",
            ErrorKind.MERGE_FAILED,
        )
        self.result = result
        self.args = (result,)

    def __str__(self) -> str:
        """The message, and the first conflicts with coordinate labels and differences, which are read now."""
        rows = self.result.conflicts
        places = zip(rows[:_IN_ERRORS], rows.details(_IN_ERRORS), strict=True)
        return "\n".join([self.message, *(f"  {describe_place(*each)}" for each in places)])
