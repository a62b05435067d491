"""Conflicts between the changes of two writers: conflict types, conflict solvers and merge results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias

from icefloe._internal.amounts import counted
from icefloe._internal.printable import escape_control
from icefloe._internal.report import Report
from icefloe.config.display import Shown, Tree, qualify_name
from icefloe.errors import ConflictError, ErrorKind, Hint, RebaseFailedError
from icefloe.snapshots import Diff

__all__ = [
    "AppendConflictError",
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
"""The side that wins where both changed the same data: neither (the merge fails), the target branch ("ours"),
or the source ("theirs").
"""

MergeOutcome: TypeAlias = Literal["up-to-date", "fast-forward", "merged", "conflicts"]
"""The outcome of a merge: nothing to do, a moved branch, a new snapshot, or a stop because of conflicts."""

MAX_SHOWN: Final = 20
"""The number of conflicts listed in reprs. The remaining ones are only counted."""
MAX_COMPARED: Final = 10
"""The maximum number of conflicting chunks whose values are read and compared."""
_IN_ERRORS: Final = 3


class ConflictType(IntEnum):
    """The kinds of conflicts between our changes and theirs.

    "Ours" are the changes of the session being rebased, and "theirs" were committed in the meantime. Only
    icefloe detects the last ten types. The official library accepts such changes.
    """

    NewNodeConflictsWithExistingNode = 1
    """Both sides created a node at the same path."""
    NewNodeInInvalidGroup = 2
    """One side created a node inside an array of the other side. The conflict's path is that of the array."""
    ZarrMetadataDoubleUpdate = 3
    """Both sides changed the metadata of the same node."""
    ZarrMetadataUpdateOfDeletedArray = 4
    """We changed the metadata of an array that they deleted."""
    ZarrMetadataUpdateOfDeletedGroup = 5
    """We changed the metadata of a group that they deleted."""
    ChunkDoubleUpdate = 6
    """Both sides wrote or deleted the same chunks."""
    ChunksUpdatedInDeletedArray = 7
    """We wrote chunks of an array that they deleted."""
    ChunksUpdatedInUpdatedArray = 8
    """We wrote chunks of an array whose metadata they changed."""
    DeleteOfUpdatedArray = 9
    """We deleted an array whose metadata or chunks they changed."""
    DeleteOfUpdatedGroup = 10
    """We deleted a group whose metadata they changed."""
    MoveOperationCannotBeRebased = 11
    """They moved nodes."""
    NodeRecreatedByBothSides = 12
    """Both sides deleted the node at a path and created another one there."""
    NewNodeInDeletedGroup = 13
    """We created a node in a group that they deleted, or moved a node there."""
    DeleteOfGroupWithNewNodes = 14
    """We deleted a group in which they created nodes."""
    MoveToExistingNode = 15
    """We moved a node to a path where they created one."""
    MoveOfDeletedNode = 16
    """We moved a node that they deleted."""
    ZarrMetadataUpdateOfWrittenArray = 17
    """They wrote chunks that our metadata would drop or interpret differently."""
    BranchHistoryReplaced = 18
    """The branch was reset or amended: its history no longer contains the snapshot that we started from."""
    NodeMovedByBothSides = 19
    """Both sides moved a node to different paths, or each into a node that the other moved. Only in
    merges.
    """
    AppendsDoNotFit = 20
    """Both sides extended an array, and the rows cannot be combined. Only with an `AppendSolver`."""
    ReadDataChanged = 21
    """They changed data that our changes were computed from. Only for SQL statements."""

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return _INNER_CAPITAL.sub(lambda found: " " + found.group().lower(), self.name)

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


_INNER_CAPITAL: Final = re.compile(r"(?<!^)[A-Z]")


class ChunkColumn(Protocol):
    """The interface of a column of conflicting chunk coordinates, for type checkers."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Any: ...

    def tolist(self) -> Any:
        """Convert the column to a list."""


class VersionSelection(IntEnum):
    """The side of a conflict to keep: ours or theirs."""

    Fail = 0
    """Neither: the rebase fails."""
    UseOurs = 1
    """Keep the version of the session being rebased."""
    UseTheirs = 2
    """Keep the version that was committed in the meantime."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


class Conflict(Shown):
    """A conflict: a change of ours that is incompatible with one of theirs.

    Parameters
    ----------
    conflict_type
        The type of the conflict.
    path
        The path of the node. Empty if the conflict does not concern a single node.
    conflicted_chunks
        The coordinates of the chunks, sorted. None if the conflict does not concern single chunks.
    """

    __slots__ = ("_chunks", "_conflict_type", "_path")

    def __init__(
        self, conflict_type: ConflictType, path: str, conflicted_chunks: list[list[int]] | None = None
    ) -> None:
        self._conflict_type = conflict_type
        self._path = path
        self._chunks: list[list[int]] | ChunkColumn | None = conflicted_chunks

    @staticmethod
    def of_column(conflict_type: ConflictType, path: str, coords: ChunkColumn) -> Conflict:
        """Create a conflict from a column of chunk coordinates, which is converted to a list on first use.

        Parameters
        ----------
        conflict_type
            The type of the conflict.
        path
            The path of the node.
        coords
            The coordinates of the chunks, one row per chunk.

        Returns
        -------
        Conflict
            The conflict.
        """
        conflict = Conflict(conflict_type, path)
        conflict._chunks = coords
        return conflict

    @property
    def conflict_type(self) -> ConflictType:
        """The type of the conflict."""
        return self._conflict_type

    @property
    def path(self) -> str:
        """The path of the conflicting node. Empty if the conflict does not concern a single node."""
        return self._path

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The sorted coordinates of the conflicting chunks. None if the conflict does not concern chunks."""
        chunks = self._chunks
        if chunks is None or isinstance(chunks, list):
            return chunks
        listed: list[list[int]] = chunks.tolist()
        self._chunks = listed
        return listed

    def __eq__(self, other: object) -> bool:
        return self._get_content() == other._get_content() if isinstance(other, Conflict) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.conflict_type, self.path))

    def _get_content(self) -> tuple[object, ...]:
        return (self.conflict_type, self.path, self.conflicted_chunks)

    def tree(self) -> Tree:
        # docstring inherited
        rows = (
            ("conflict_type", repr(self.conflict_type)),
            ("path", self.path),
            ("conflicted_chunks", repr(self.conflicted_chunks)),
        )
        return Tree(qualify_name("conflicts", "Conflict"), rows)


class ConflictSolver:
    """A policy that resolves conflicts during a rebase. This base class resolves none; subclasses override
    `choose`.
    """

    def choose(self, conflict: Conflict) -> VersionSelection:
        """Choose which version of a conflicting change to keep.

        Our version can be kept for ChunkDoubleUpdate, DeleteOfUpdatedArray and DeleteOfUpdatedGroup, and
        theirs for ChunkDoubleUpdate. All other conflicts make the rebase fail, whatever is chosen.

        Parameters
        ----------
        conflict
            The conflict to solve.

        Returns
        -------
        VersionSelection
            The version to keep.
        """
        return VersionSelection.Fail


class ConflictDetector(ConflictSolver):
    """A conflict solver that resolves nothing, so that any conflict makes the rebase fail."""


class BasicConflictSolver(ConflictSolver):
    """A conflict solver with fixed rules for chunks that both sides wrote and for deletions of updated nodes.

    Parameters
    ----------
    on_chunk_conflict
        Which version to keep of chunks that both sides wrote.
    fail_on_delete_of_updated_array
        Fail if we deleted an array that they changed, instead of deleting it.
    fail_on_delete_of_updated_group
        Fail if we deleted a group that they changed, instead of deleting it.
    """

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


class AppendConflictError(RebaseFailedError):
    """Raised when appended rows cannot be combined with those of another writer.

    Parameters
    ----------
    snapshot
        The id of the snapshot that contains the other writer's rows.
    path
        The path of the array.
    dim
        The dimension along which both writers appended.
    reason
        Why the rows cannot be combined.
    """

    def __init__(self, snapshot: str, path: str, dim: str, reason: str) -> None:
        super().__init__(snapshot, [Conflict(ConflictType.AppendsDoNotFit, path)])
        self.message = f"cannot append to {path} along {dim}: {reason}"
        self.args = (snapshot, path, dim, reason)


# Merges


@dataclass(frozen=True, slots=True)
class DifferingCell(Report):
    """A cell of a conflicting chunk, with both values as text."""

    where: str
    """The labels of the cell, such as `time=2024-03-01, x[3]`. Dimensions without a coordinate have an index
    in brackets.
    """
    ours: str
    """The value on the target branch, unpacked, with times as dates; `missing` for NaN or the fill value."""
    theirs: str
    """The value in the merge source."""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return escape_control(f"{where}ours {self.ours}, theirs {self.theirs}")


@dataclass(frozen=True, slots=True)
class ChunkDetails(Report):
    """Details of a conflicting chunk: where it lies in coordinate labels, and how its two versions differ."""

    where: str
    """The labels of the first and last element along each dimension, such as `time=2024-03-01..2024-03-10,
    x[0:5]`. Dimensions without a coordinate have indices in brackets.
    """
    their_where: str | None = None
    """The labels in the merge source, if they differ."""
    num_cells: int | None = None
    """The number of the chunk's cells that both sides have; None if values were not compared."""
    num_differing: int | None = None
    """The number of cells that differ; None if values were not compared."""
    num_missing_on_one_side: int | None = None
    """The number of differing cells that are NaN or the fill value on one side."""
    largest_difference: float | None = None
    """The largest difference between two numbers or times, after `scale_factor` is applied; None for other
    types.
    """
    units: str = ""
    """The units of the array, if it has any."""
    problem: str | None = None
    """Why the values could not be compared."""
    hint: Hint | None = None
    """How to make the values comparable."""
    cells: tuple[DifferingCell, ...] = ()
    """The cells with the largest differences, up to three."""

    def __str__(self) -> str:
        where = self.where + (f" (theirs: {self.their_where})" if self.their_where is not None else "")
        return escape_control(": ".join(filter(None, (where, self._format_difference()))))

    def _format_difference(self) -> str:
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
    """One merge conflict, as a row in the table of conflicts."""

    path: str
    """The path of the node."""
    chunk: tuple[int, ...] | None
    """The coordinates of the chunk; None if the conflict concerns the node."""
    kind: ConflictType
    """The type of the conflict."""
    ours: str
    """The change on the target branch."""
    theirs: str
    """The change made in the merge source."""


@dataclass(frozen=True, slots=True)
class ConflictGroup:
    """The merge conflicts of one type in one node, as columns that are converted to rows on first use."""

    path: str
    kind: ConflictType
    chunks: ChunkColumn | None
    ours: Callable[[], list[str]]
    theirs: Callable[[], list[str]]
    details: Callable[[tuple[int, ...], bool], ChunkDetails] | None = None
    """A function that describes one chunk, with or without comparing its values."""

    def __len__(self) -> int:
        return 1 if self.chunks is None else len(self.chunks)

    def rows(self) -> Iterator[MergeConflict]:
        """Yield one conflict per chunk, or a single one for the node."""
        places = [None] if self.chunks is None else [tuple(row) for row in self.chunks.tolist()]
        for place, ours, theirs in zip(places, self.ours(), self.theirs(), strict=True):
            yield MergeConflict(self.path, place, self.kind, ours, theirs)


class MergeConflicts(Sequence[MergeConflict]):
    """The conflicts of a merge as a table: a sequence of rows that can also be read by column.

    Parameters
    ----------
    groups
        The conflicts by node and type.
    """

    def __init__(self, groups: Sequence[ConflictGroup] = ()) -> None:
        self._groups = tuple(groups)
        self._rows: list[MergeConflict] | None = None
        self._details: dict[tuple[int, bool], ChunkDetails | None] = {}

    def _all(self) -> list[MergeConflict]:
        if self._rows is None:
            self._rows = [row for group in self._groups for row in group.rows()]
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        """Replace the groups, which refer to the repository, with plain rows and the details shown in
        reprs.
        """
        self.details()
        return {"_groups": (), "_rows": self._all(), "_details": self._details}

    def __len__(self) -> int:
        return sum(map(len, self._groups)) if self._rows is None else len(self._rows)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        return self._all()[row]

    def __repr__(self) -> str:
        lines = [f"<{len(self)} conflicts>"]
        for row, details in zip(self[:MAX_SHOWN], self.details(), strict=True):
            words = (row.path, row.chunk, repr(row.kind), row.ours, "|", row.theirs)
            lines.append(escape_control(" ".join(map(str, words))))
            lines += [] if details is None else [f"    {describe_place(row, details)}"]
        return "\n".join(lines + ([f"and {len(self) - MAX_SHOWN} more"] if len(self) > MAX_SHOWN else []))

    def details(
        self, most: int = MAX_SHOWN, *, most_compared: int = MAX_COMPARED
    ) -> list[ChunkDetails | None]:
        """Describe the chunks of the first conflicts by coordinate labels, and compare their values.

        A merge does not need the values, so they are only read by this call. If they cannot be read,
        `problem` says why. Virtual chunks, for example, may be in a container that is not authorized.

        Parameters
        ----------
        most
            The number of rows to describe.
        most_compared
            The number of rows whose values are read, at most `most`.

        Returns
        -------
        list of ChunkDetails or None
            One for each of the first rows; None if the conflict does not concern a chunk.
        """
        places = ((group, row) for group in self._groups for row in range(len(group)))
        for number, (group, row) in enumerate(islice(places, most)):
            key = (number, number < most_compared)
            if key not in self._details:
                self._details[key] = _describe(group, row, with_values=number < most_compared)
        # After unpickling there are no groups, only the details that were described before.
        keys = ((number, number < most_compared) for number in range(min(most, len(self))))
        return [self._details.get(key, self._details.get((key[0], not key[1]))) for key in keys]

    def columns(self) -> dict[str, list[object]]:
        """Return the conflicts as columns, in the form that pandas and pyarrow accept.

        Returns
        -------
        dict
            The values of each column, by column name.
        """
        names = ("path", "chunk", "kind", "ours", "theirs")
        return {name: [getattr(row, name) for row in self] for name in names}


def describe_place(row: MergeConflict, details: ChunkDetails | None) -> str:
    """Describe a merge conflict on one printable line: `t2m at time=2024-03-01: 2 of 9 cells differ`."""
    if details is None:
        return escape_control(f"{row.path}: {str(row.kind).lower()}")
    return f"{escape_control(row.path.strip('/'))}{' at ' if details.where else ': '}{details}"


def _describe(group: ConflictGroup, row: int, *, with_values: bool) -> ChunkDetails | None:
    if group.chunks is None or group.details is None:
        return None
    return group.details(tuple(group.chunks[row].tolist()), with_values)


@dataclass(frozen=True, slots=True, repr=False)
class MergeResult(Report, Shown):
    """The result of a merge or of its dry run, with the conflicts found."""

    outcome: MergeOutcome
    """The outcome of the merge, or of its dry run."""
    snapshot_id: str | None
    """The new tip of the branch; None if nothing was written because of conflicts or a dry run."""
    base_id: str
    """The id of the snapshot that both sides were compared with."""
    ours_id: str
    """The id of the branch tip before the merge."""
    theirs_id: str
    """The id of the snapshot that was merged into the branch."""
    conflicts: MergeConflicts = field(default_factory=MergeConflicts)
    """All conflicts, including those that the strategy solved."""
    changes: Diff = field(default_factory=Diff)
    """The changes that the merge makes on the branch."""

    def tree(self) -> Tree:
        # docstring inherited
        rows = [(name, str(getattr(self, name))) for name in ("outcome", "snapshot_id", "base_id")]
        rows += [("ours_id", self.ours_id), ("theirs_id", self.theirs_id)]
        rows.append(("conflicts", str(len(self.conflicts))))
        return Tree(qualify_name("conflicts", "MergeResult"), tuple(rows))


class MergeConflictError(ConflictError):
    """Raised if both branches of a merge changed the same data and the strategy does not choose a side.

    Nothing was written. `result.conflicts` is the table of conflicts.

    Parameters
    ----------
    result
        The result of the merge, with its conflicts.
    message
        The error message. By default, a sentence about the first conflict.
    """

    result: MergeResult

    def __init__(self, result: MergeResult, message: str | None = None) -> None:
        if message is None:
            first = result.conflicts[0]
            node = first.path or "a move"
            where = node if first.chunk is None else f"chunk {first.chunk} of {node}"
            message = (
                f"{result.theirs_id} cannot be merged into {result.ours_id}: "
                f"{counted(len(result.conflicts), 'conflict')}, first in {where} ({str(first.kind).lower()})"
            )
            self.hint = Hint('choose {strategy} or "theirs"', strategy="ours")
        super().__init__(result.ours_id, result.theirs_id, message, ErrorKind.MERGE_FAILED)
        self.result = result
        self.args = (result, message)

    def __str__(self) -> str:
        """Return the message and the first conflicts, whose labels and differences are read by this call."""
        rows = self.result.conflicts
        places = zip(rows[:_IN_ERRORS], rows.details(_IN_ERRORS), strict=True)
        return "\n".join([super().__str__(), *(f"  {describe_place(*each)}" for each in places)])
