"""Conflicts between the changes of two writers: their kinds, solvers for them, and the result of a merge."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias

from icefloe._internal.printable import printable
from icefloe._internal.report import Report
from icefloe.config.display import Shown, Tree, qualified
from icefloe.errors import ConflictError, ErrorKind, Hint
from icefloe.snapshots import Diff

__all__ = [
    "BasicConflictSolver",
    "ChunkDetails",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "MergeConflict",
    "MergeConflictError",
    "MergeConflicts",
    "MergeOutcome",
    "MergeResult",
    "MergeStrategy",
    "VersionSelection",
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


class ConflictType(IntEnum):
    """In what way a change of ours does not go with one of theirs.

    Ours are the changes of the session that is rebased, theirs those committed in the meantime. The last
    eight are found by icefloe alone; the official library lets such changes through.
    """

    NewNodeConflictsWithExistingNode = 1
    """Both created a node at one path."""
    NewNodeInInvalidGroup = 2
    """One side created a node inside an array of the other's; the path is that of the array."""
    ZarrMetadataDoubleUpdate = 3
    """Both changed the metadata of one node."""
    ZarrMetadataUpdateOfDeletedArray = 4
    """We changed the metadata of an array that they deleted."""
    ZarrMetadataUpdateOfDeletedGroup = 5
    """We changed the metadata of a group that they deleted."""
    ChunkDoubleUpdate = 6
    """Both wrote or deleted the same chunks."""
    ChunksUpdatedInDeletedArray = 7
    """We wrote chunks of an array that they deleted."""
    ChunksUpdatedInUpdatedArray = 8
    """We wrote chunks of an array whose metadata they changed."""
    DeleteOfUpdatedArray = 9
    """We deleted an array of which they changed metadata or chunks."""
    DeleteOfUpdatedGroup = 10
    """We deleted a group whose metadata they changed."""
    MoveOperationCannotBeRebased = 11
    """They moved nodes."""
    NodeRecreatedByBothSides = 12
    """Both deleted the node at one path and created another there."""
    NewNodeInDeletedGroup = 13
    """We created a node in a group that they deleted, or moved one there."""
    DeleteOfGroupWithNewNodes = 14
    """We deleted a group in which they created nodes."""
    MoveToExistingNode = 15
    """We moved a node to where they created one."""
    MoveOfDeletedNode = 16
    """We moved a node that they deleted."""
    ZarrMetadataUpdateOfWrittenArray = 17
    """They wrote chunks that our metadata would drop or read in another way."""
    BranchHistoryReplaced = 18
    """The branch was reset or amended: the snapshot we began at is not in its history any more."""
    NodeMovedByBothSides = 19
    """Both moved a node to different places, or each moved one into what the other moved. In merges alone."""

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return _INNER_CAPITAL.sub(lambda found: " " + found.group().lower(), self.name)

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


_INNER_CAPITAL: Final = re.compile(r"(?<!^)[A-Z]")


class Column(Protocol):
    """A numpy column of coordinates; numpy itself is not needed here."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Any: ...

    def tolist(self) -> Any:
        """A list of rows."""


class VersionSelection(IntEnum):
    """Whose version of a change is taken."""

    Fail = 0
    """Nobody's: the rebase fails."""
    UseOurs = 1
    """That of the session that is rebased."""
    UseTheirs = 2
    """That which was committed in the meantime."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


class Conflict(Shown):
    """One change of ours that does not go with theirs."""

    __slots__ = ("_chunks", "_conflict_type", "_path")

    def __init__(
        self, conflict_type: ConflictType, path: str, conflicted_chunks: list[list[int]] | None = None
    ) -> None:
        self._conflict_type = conflict_type
        self._path = path
        self._chunks: list[list[int]] | Column | None = conflicted_chunks

    @staticmethod
    def of_column(conflict_type: ConflictType, path: str, coords: Column) -> Conflict:
        """The same from a column of coordinates, which becomes a list when somebody asks for it."""
        made = Conflict(conflict_type, path)
        made._chunks = coords
        return made

    @property
    def conflict_type(self) -> ConflictType:
        """What kind of conflict it is."""
        return self._conflict_type

    @property
    def path(self) -> str:
        """The path of the node; empty where the conflict is none of a single node."""
        return self._path

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The coordinates of the chunks, sorted; None where the conflict is not about single chunks."""
        chunks = self._chunks
        if chunks is None or isinstance(chunks, list):
            return chunks
        listed: list[list[int]] = chunks.tolist()
        self._chunks = listed
        return listed

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, Conflict) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.conflict_type, self.path))

    def _content(self) -> tuple[object, ...]:
        return (self.conflict_type, self.path, self.conflicted_chunks)

    def tree(self) -> Tree:
        # docstring inherited
        rows = (
            ("conflict_type", repr(self.conflict_type)),
            ("path", self.path),
            ("conflicted_chunks", repr(self.conflicted_chunks)),
        )
        return Tree(qualified("conflicts", "Conflict"), rows)


class ConflictSolver:
    """Decides about conflicts. Solves none by itself; subclasses say in `choose` which, and how."""

    def choose(self, conflict: Conflict) -> VersionSelection:
        """Whose version is taken.

        Ours can be kept in a ChunkDoubleUpdate, a DeleteOfUpdatedArray and a DeleteOfUpdatedGroup, theirs in
        a ChunkDoubleUpdate. Every other conflict fails the rebase, whatever is chosen.
        """
        return VersionSelection.Fail


class ConflictDetector(ConflictSolver):
    """Solves nothing: a rebase over any conflict fails."""


class BasicConflictSolver(ConflictSolver):
    """Solves chunks that both sides wrote, and deletions of what the other side changed, by fixed rules."""

    def __init__(
        self,
        *,
        on_chunk_conflict: VersionSelection = VersionSelection.UseOurs,
        fail_on_delete_of_updated_array: bool = False,
        fail_on_delete_of_updated_group: bool = False,
    ) -> None:
        self._on_chunk_conflict = VersionSelection(on_chunk_conflict)
        self._fail_on_delete = {
            ConflictType.DeleteOfUpdatedArray: fail_on_delete_of_updated_array,
            ConflictType.DeleteOfUpdatedGroup: fail_on_delete_of_updated_group,
        }

    def choose(self, conflict: Conflict) -> VersionSelection:
        # docstring inherited
        kind = conflict.conflict_type
        if kind is ConflictType.ChunkDoubleUpdate:
            return self._on_chunk_conflict
        return VersionSelection.Fail if self._fail_on_delete.get(kind, True) else VersionSelection.UseOurs


# Merges


@dataclass(frozen=True, slots=True)
class ChunkDetails(Report):
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
    hint: Hint | None = None
    """What to do to have them compared."""

    def __str__(self) -> str:
        where = self.where + (f" (theirs: {self.their_where})" if self.their_where is not None else "")
        return printable(": ".join(filter(None, (where, self._difference()))))

    def _difference(self) -> str:
        if self.problem is not None:
            return f"values not compared, {self.problem}" + (f"; {self.hint}" if self.hint else "")
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
class MergeConflict(Report):
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
class MergeResult(Report, Shown):
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
        return Tree(qualified("conflicts", "MergeResult"), tuple(rows))


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
