"""What becomes of a merge of branches: the snapshot it made, and the table of conflicts it met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from icefloe.config.display import Shown, Tree, qualified
from icefloe.conflicts import Column, ConflictType
from icefloe.errors import ConflictError, ErrorKind
from icefloe.printable import printable
from icefloe.snapshots import Diff

__all__ = [
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

    def _all(self) -> list[MergeConflict]:
        if self._rows is None:
            self._rows = [row for group in self._groups for row in group.rows()]
        return self._rows

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        return self._all()[row]

    def __repr__(self) -> str:
        rows = [(row.path, row.chunk, repr(row.kind), row.ours, "|", row.theirs) for row in self]
        lines = [printable(" ".join(map(str, row))) for row in rows]
        return "\n".join([f"<{len(lines)} conflicts>", *lines])

    def columns(self) -> dict[str, list[object]]:
        """The table by column, as pandas and pyarrow take it."""
        names = ("path", "chunk", "kind", "ours", "theirs")
        return {name: [getattr(row, name) for row in self] for name in names}


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
