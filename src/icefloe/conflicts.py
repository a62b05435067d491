"""Conflicts between the changes of two writers: their kinds, and the solvers that decide about them."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Final, Protocol

from icefloe.config.display import Shown, Tree, qualified

__all__ = [
    "BasicConflictSolver",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "VersionSelection",
]


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
