"""The expected results of merges, cherry-picks, reverts and squashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from icefloe.repository import Repository
from tests.support.simulation.merged_trees import may_clash, merged
from tests.support.simulation.model import Cell, Commit, Tree


class BranchModel:
    """A model of branch operations, with the method names of a repository."""

    def __init__(self, commits: Mapping[str, Commit], flushed_at: Callable[[str], int]) -> None:
        """With all commits there are, and when each was written: of several bases the newest is taken."""
        self._commits = commits
        self._flushed_at = flushed_at

    def expected(self, kind: str, tip: str, snapshot: str) -> Tree | None:
        """Return the expected content of a branch after an operation; None if there are conflicts."""
        if kind == "squash":
            return self._commits[tip].tree
        base, target = self._ends(kind, tip, snapshot)
        return merged(self._commits[base].tree, self._commits[tip].tree, self._commits[target].tree)

    def may_fail(self, kind: str, tip: str, snapshot: str) -> bool:
        """Return True if conflicts are possible."""
        if kind == "squash":
            return False
        base, target = self._ends(kind, tip, snapshot)
        before, ours, theirs = (self._commits[id].tree for id in (base, tip, target))
        our_cells = self._cells_between(base, tip)
        their_cells = {*self._commits[snapshot].changes.cells, *self._cells_between(base, target)}
        if merged(before, ours, theirs) is None:
            return True
        return may_clash(before, ours, theirs, our_cells, their_cells)

    def is_done(self, kind: str, tip: str, snapshot: str) -> bool:
        """Return True if the operation has no effect."""
        if kind == "merge":
            return snapshot in self._reachable(tip)
        return kind != "squash" and self.expected(kind, tip, snapshot) == self._commits[tip].tree

    def merges(self, kind: str, tip: str, snapshot: str) -> tuple[str, ...]:
        """Return further parents of the new snapshot: a squash contains the old tip."""
        return {"merge": (snapshot,), "squash": (tip,)}.get(kind, ())

    def history(self, tip: str) -> list[str]:
        """Return a snapshot and its ancestors, newest first."""
        found: list[str] = []
        at: str | None = tip
        while at is not None:
            found.append(at)
            at = self._commits[at].parent
        return found

    def _ends(self, kind: str, tip: str, snapshot: str) -> tuple[str, str]:
        """Return the base, and the state with the changes to apply."""
        parent = self._commits[snapshot].parent or snapshot
        if kind == "merge":
            return max(self._reachable(tip) & self._reachable(snapshot), key=self._flushed_at), snapshot
        return (snapshot, parent) if kind == "revert" else (parent, snapshot)

    def _reachable(self, tip: str) -> set[str]:
        """Return a snapshot and everything that was merged into it."""
        found: set[str] = set()
        waiting = [tip]
        while waiting:
            for id in self.history(waiting.pop()):
                if id not in found:
                    found.add(id)
                    waiting += self._commits[id].merged
        return found

    def _cells_between(self, one: str, other: str) -> set[Cell]:
        """Return a superset of the chunks that were written in between."""
        ids = self._reachable(one) ^ self._reachable(other)
        return {cell for id in ids for cell in self._commits[id].changes.cells}


def perform(repo: Repository, kind: str, branch: str, snapshot: str) -> str | None:
    """Run the operation, and return the new tip of the branch."""
    match kind:
        case "merge":
            return repo.merge(snapshot, branch, message="merge").snapshot_id
        case "cherry_pick":
            return repo.cherry_pick(snapshot, branch=branch).snapshot_id
        case "revert":
            return repo.revert(snapshot, branch=branch).snapshot_id
    return repo.squash(snapshot, branch=branch)
