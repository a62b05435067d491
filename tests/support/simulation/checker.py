"""Check every change of the refs of a repository against the model and the requests of the writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from icefloe.conflicts import MergeConflictError
from icefloe.errors import ConflictError, IcechunkError, StorageError
from icefloe.storage.base import Storage
from tests.support.simulation import model
from tests.support.simulation.audit import Audit, Stored, Violation
from tests.support.simulation.branch_model import BranchModel
from tests.support.simulation.maintenance_model import after_expiration, check_collection
from tests.support.simulation.model import Commit, Refs
from tests.support.simulation.twins import ACCOUNTS, TOTAL, Twin

_LOGGED = {
    "commit": "NewCommit",
    "amend": "CommitAmended",
    "create_branch": "BranchCreated",
    "delete_branch": "BranchDeleted",
    "reset_branch": "BranchReset",
    "create_tag": "TagCreated",
    "delete_tag": "TagDeleted",
    "update_metadata": "MetadataChanged",
    "merge": "NewCommit",
    "cherry_pick": "NewCommit",
    "revert": "NewCommit",
    "squash": "CommitAmended",
    "expire": "ExpirationRan",
    "collect": "GCRan",
}
"""The entry in the ops log that each kind of operation makes; a merge may be a reset, too."""
BRANCH_WORK = ("merge", "cherry_pick", "revert", "squash")
MAINTENANCE = ("expire", "collect")


@dataclass(eq=False, slots=True)
class Operation:
    """An operation of a writer, and its outcome."""

    kind: str
    branch: str = ""
    tag: str = ""
    snapshot: str = ""
    expected: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    cutoff_us: int = 0
    """The time of an expiration or a collection."""
    twin: Twin | None = None
    solver: str | None = None
    """How a commit is rebased, if it is: a solver of `model.rebased`."""
    result: str | None = None
    """The snapshot that a commit, or other work on a branch, says the branch is at."""
    made: str | None = None
    """The new snapshot that it made."""
    landed: str | None = None
    """The snapshot that it put the branch on."""
    changes: int = 0
    """How often it changed the refs."""
    outcome: str = "running"
    """Then "done", "refused", or "unknown" where no answer came."""

    def __str__(self) -> str:
        return " ".join(word for word in (self.kind, self.branch, self.tag, self.snapshot) if word)


class Checker:
    """An observer of a repository that compares each new state with the running operation."""

    def __init__(self, storage: Storage) -> None:
        self._audit = Audit(storage)
        self._stored = Stored(Refs({}))
        self._trail: list[Refs] = []
        self.first = ""
        """The snapshot that the repository began with."""
        self.commits: dict[str, Commit] = {}
        """All snapshots that refs ever led to."""
        self.branches = BranchModel(self.commits, lambda id: self._audit.snapshot(id).flushed_at_us)
        """What work on branches must give."""

    @property
    def refs(self) -> Refs:
        """Return the refs as last observed."""
        return self._stored.refs

    def tree(self, snapshot: str) -> model.Tree:
        """Return the content of a snapshot."""
        if snapshot not in self.commits:
            raise Violation(f"snapshot {snapshot} was made by nobody")
        return self.commits[snapshot].tree

    def written_at_us(self) -> dict[str, int]:
        """Return the times of all existing snapshots."""
        found = {id: self._audit.written_at_us(f"snapshots/{id}") for id in self.commits}
        return {id: at_us for id, at_us in found.items() if at_us is not None}

    def choices(self, kind: str, branch: str) -> list[str]:
        """Return snapshots for operations on a branch; accounts are never removed."""
        if kind in ("merge", "cherry_pick"):
            return sorted(self.commits.keys() - {self.first})
        history = self.branches.history(self.refs.branches[branch])
        return history[:-2] if kind == "revert" else history[:-1]

    def begin(self) -> None:
        """Start with a new repository, which must have one empty snapshot."""
        self._stored = self._audit.everything()
        self._trail = [self._stored.refs]
        (self.first,) = self._stored.refs.branches.values()
        self.commits[self.first] = Commit(None, model.Tree(), model.Changes())

    @contextmanager
    def operation(self, operation: Operation) -> Iterator[Operation]:
        """Observe an operation, and compare its outcome with its effect."""
        start = len(self._trail) - 1
        try:
            yield operation
            operation.outcome = "done"
        except StorageError:
            operation.outcome = "unknown"
            raise
        except IcechunkError as error:
            operation.outcome = "refused"
            if isinstance(error, ConflictError) and operation.twin is not None:
                self._check_conflict(operation, operation.twin, self._trail[start:])
            if isinstance(error, MergeConflictError) and not any(
                self.branches.may_fail(operation.kind, tip, operation.snapshot)
                for tip in _tips(self._trail[start:], operation.branch)
            ):
                raise Violation(f"{operation} met a conflict that there was not") from None
            raise
        except BaseException:
            operation.outcome = "unknown"
            raise
        finally:
            self._check_outcome(operation, self._trail[start:])

    def _check_outcome(self, operation: Operation, meanwhile: list[Refs]) -> None:
        expected = operation.kind in _LOGGED and not (
            self._was_so(operation, meanwhile) or self._was_merged(operation, meanwhile)
        )
        if operation.outcome == "done" and operation.changes < expected:
            raise Violation(f"{operation} was acknowledged, but changed the refs {operation.changes} times")
        if operation.outcome == "refused" and operation.changes:
            raise Violation(f"{operation} was refused, but changed the refs")
        if operation.changes and operation.result not in (None, operation.landed):
            raise Violation(f"{operation} says {operation.result}, but the branch went to {operation.landed}")

    def _was_merged(self, operation: Operation, meanwhile: list[Refs]) -> bool:
        """Return True if there was nothing to merge or cherry-pick."""
        tips = _tips(meanwhile, operation.branch)
        return operation.kind in BRANCH_WORK and any(
            tip == operation.result and self.branches.is_done(operation.kind, tip, operation.snapshot)
            for tip in tips
        )

    def _was_so(self, operation: Operation, meanwhile: list[Refs]) -> bool:
        """Return True if a ref is where an operation puts it, which is all that shows without an ops log."""
        if self._stored.updates:
            return False
        wanted = operation.snapshot
        match operation.kind:
            case "reset_branch":
                return any(refs.branches.get(operation.branch) == wanted for refs in meanwhile)
            case "delete_branch":
                return any(operation.branch not in refs.branches for refs in meanwhile)
            case "collect":
                return True  # files of refs stay as they are
        return False

    def _check_conflict(self, operation: Operation, twin: Twin, meanwhile: list[Refs]) -> None:
        """Check that another writer moved the branch and caused the conflict."""
        solver = operation.solver
        if solver is not None:
            self.follow(twin, solver)
        tips = {refs.branches.get(operation.branch) for refs in meanwhile} - {twin.model.base, None}
        if solver is not None:
            tips = {tip for tip in tips if tip and isinstance(self.rebased(twin, tip, solver), set)}
        if not tips:
            raise Violation(f"{operation} met a conflict that there was not")

    def deleting(self, paths: list[str], operation: Operation | None) -> None:
        """Check that objects to delete are unused and old enough."""
        if operation is None or operation.kind != "collect":
            return
        lost = self._audit.needed(self._stored) & set(paths)
        if lost:
            raise Violation(f"{operation} deletes {sorted(lost)}, which are in use")
        for path in paths:
            written_us = self._audit.written_at_us(path)
            if written_us is not None and written_us >= operation.cutoff_us:
                raise Violation(f"{operation} deletes {path}, which is not old enough")

    def nothing_written(self, what: str) -> None:
        """Check that an operation changed nothing."""
        if self._audit.stored() != self._stored:
            raise Violation(f"the refs changed by {what}, which was done before")

    def ref_written(self, operation: Operation | None) -> None:
        """Check that a change of the refs is the effect of the running operation."""
        before, after = self._stored, self._audit.stored()
        if after == before:
            return
        if operation is None:
            raise Violation("the refs changed, and nobody asked for it")
        operation.changes += 1
        if operation.changes > 1:
            raise Violation(f"{operation} changed the refs twice")
        try:
            expected = self._expected(operation, before, after)
        except KeyError as refusal:
            raise Violation(
                f"{operation} changed the refs, but should have been refused: {refusal}"
            ) from None
        if after.refs != expected:
            raise Violation(f"{operation} made of {before.refs} {after.refs}, expected {expected}")
        self._check_log(operation, before, after)
        self._stored = after
        self._trail.append(after.refs)

    def _expected(self, operation: Operation, before: Stored, after: Stored) -> Refs:
        refs, branch, tag, snapshot = before.refs, operation.branch, operation.tag, operation.snapshot
        match operation.kind:
            case "create_branch":
                return refs.create_branch(branch, snapshot)
            case "delete_branch":
                return refs.delete_branch(branch)
            case "reset_branch":
                return refs.reset_branch(branch, snapshot, operation.expected)
            case "create_tag":
                return refs.create_tag(tag, snapshot)
            case "delete_tag":
                return refs.delete_tag(tag)
            case "update_metadata":
                if after.metadata != {**before.metadata, **operation.metadata}:
                    raise Violation(f"{operation} made of {before.metadata} {after.metadata}")
                return refs
            case "commit" | "amend":
                return self._committed(operation, before, after)
            case "merge" | "cherry_pick" | "revert" | "squash":
                return self._worked(operation, before, after)
            case "expire" | "collect":
                self._kept(operation, before, after)
                return refs
        raise Violation(f"{operation} changed the refs")

    def _check_log(self, operation: Operation, before: Stored, after: Stored) -> None:
        if not after.updates:
            return
        if after.updates[1:] != before.updates:
            raise Violation(f"{operation} changed older entries of the ops log")
        only_moved = operation.kind == "merge" and operation.made is None
        if type(after.updates[0]).__name__ != ("BranchReset" if only_moved else _LOGGED[operation.kind]):
            raise Violation(f"{operation} is in the ops log as {after.updates[0]}")
        if operation.kind in MAINTENANCE:
            return
        new = after.parents.keys() - before.parents.keys()
        lost = before.parents.keys() - after.parents.keys()
        if lost or new != ({operation.made} if operation.made else set()):
            raise Violation(f"{operation}: snapshots {new} are new, {lost} lost")

    def _committed(self, operation: Operation, before: Stored, after: Stored) -> Refs:
        """Return the expected refs after a commit or amend, and record its snapshot."""
        twin, branch = operation.twin, operation.branch
        made = after.refs.branches.get(branch)
        tip = before.refs.branches[branch]
        if twin is None or made is None or made in self.commits:
            raise Violation(f"{operation} made no new snapshot")
        amends = operation.kind == "amend"
        if amends and tip != twin.model.base:
            raise KeyError(f"{branch} is at {tip}, the session began at {twin.model.base}")
        parent = self.commits[tip].parent if amends else tip
        if self._audit.parent(made, after) != parent:
            raise Violation(
                f"{operation}: the parent of {made} is {self._audit.parent(made, after)}, not {parent}"
            )
        changes = self._landed(operation, twin, tip)
        tree = changes.over(self.tree(tip))
        if self._audit.tree(made) != tree.plain():
            raise Violation(f"{operation}: {made} holds {self._audit.tree(made)}, expected {tree.plain()}")
        self._check_accounts(made, tip)
        merges: tuple[str, ...] = ()
        if amends:
            changes, merges = self.commits[tip].changes.then(changes), self.commits[tip].merged
        self.commits[made] = Commit(parent, tree, changes, merges)
        operation.made = operation.landed = made
        return before.refs.advance(branch, tip, made)

    def _worked(self, operation: Operation, before: Stored, after: Stored) -> Refs:
        """Return the expected refs after a merge, cherry-pick, revert or squash."""
        kind, branch, snapshot = operation.kind, operation.branch, operation.snapshot
        tip, made = before.refs.branches[branch], after.refs.branches.get(branch, "")
        operation.landed = made
        if kind == "merge" and self._between(tip, snapshot) is not None:
            return before.refs.advance(branch, tip, snapshot)
        if made in self.commits:
            raise Violation(f"{operation} made no new snapshot")
        tree = self.branches.expected(kind, tip, snapshot)
        if tree is None:
            raise KeyError("there are conflicts")
        parent = snapshot if kind == "squash" else tip
        if self._audit.parent(made, after) != parent:
            raise Violation(f"{operation}: {made} has another parent than {parent}")
        if self._audit.tree(made) != tree.plain():
            raise Violation(f"{operation}: {made} holds {self._audit.tree(made)}, expected {tree.plain()}")
        changes = self._audit.logged_changes(made, parent, tree, self.tree(parent))
        if changes.over(self.tree(parent)) != tree:
            raise Violation(f"{operation}: the transaction log of {made} does not tell all: {changes}")
        self.commits[made] = Commit(parent, tree, changes, self.branches.merges(kind, tip, snapshot))
        operation.made = made
        return before.refs.advance(branch, tip, made)

    def _kept(self, operation: Operation, before: Stored, after: Stored) -> None:
        """Return the expected history after an expiration or a collection."""
        if operation.kind == "collect":

            def written_at_us(id: str) -> int:
                return self._audit.written_at_us(f"snapshots/{id}") or 0

            check_collection(before, after, written_at_us, operation.cutoff_us)
        else:
            parents, inherited = after_expiration(
                before, lambda id: self._audit.snapshot(id).flushed_at_us, operation.cutoff_us
            )
            if (after.parents, after.inherited) != (parents, inherited):
                raise Violation(f"{operation} made of {before.parents} {after.parents}, expected {parents}")
        for id, parent in after.parents.items():
            self.commits[id] = replace(self.commits[id], parent=parent)

    def _landed(self, operation: Operation, twin: Twin, tip: str) -> model.Changes:
        """Return the changes of a session rebased onto a tip; KeyError if there are conflicts."""
        if tip == twin.model.base:
            return twin.model.changes.copy()
        if operation.solver is None:
            raise KeyError(f"{twin.model.branch} is at {tip}, the session began at {twin.model.base}")
        found = self.rebased(twin, tip, operation.solver)
        if isinstance(found, set):
            raise KeyError(f"there are conflicts: {', '.join(sorted(found))}")
        if operation.solver == "nothing":
            self._check_reads(twin, tip)
        return found

    def rebased(self, twin: Twin, tip: str, solver: str) -> model.Changes | set[str]:
        """Rebase the changes of a session onto a tip; return the changes or the first conflicts."""
        changes, tree = twin.model.changes, twin.model.base_tree
        steps = self._between(twin.model.base, tip)
        if steps is None:
            return {"BranchHistoryReplaced"}
        for step in steps:
            found = model.rebased(changes, tree, step, solver)
            if isinstance(found, set):
                return found
            changes, tree = found, step.tree
        return changes

    def follow(self, twin: Twin, solver: str) -> None:
        """Rebase the model of a session as far as the session itself was rebased."""
        base = twin.real.snapshot_id
        if base == twin.model.base:
            return
        changes = self.rebased(twin, base, solver)
        if isinstance(changes, set):
            raise Violation(f"rebased to {base} over conflicts: {', '.join(sorted(changes))}")
        twin.rebase(base, self.tree(base), changes)

    def _between(self, base: str, tip: str) -> list[Commit] | None:
        """Return the commits after a base up to a tip, oldest first; None if the base is not an ancestor."""
        steps: list[Commit] = []
        at: str | None = tip
        while at is not None and at != base:
            steps.append(self.commits[at])
            at = steps[-1].parent
        return None if at is None else steps[::-1]

    def _check_reads(self, twin: Twin, tip: str) -> None:
        """Check that a commit read values that are current at its position in the history."""
        cells = self.tree(tip).cells
        for cell, value in twin.reads.items():
            if cell in twin.model.changes.cells and cells.get(cell) != value:
                raise Violation(f"a commit on {tip} had read {value} where there was {cells.get(cell)}")

    def _check_accounts(self, snapshot: str, before: str) -> None:
        """Check that transfers keep the sum. Merges may not: equal changes of both sides count once."""
        now, then = (
            sum(tree[ACCOUNTS][2].values()) if ACCOUNTS in tree else None
            for tree in map(self._audit.tree, (snapshot, before))
        )
        if now != (TOTAL if then is None else then):
            raise Violation(f"the accounts of {snapshot} add up to {now}, those of {before} to {then}")

    def finish(self) -> None:
        """Check at the end that the stored state is the last observed one, and intact."""
        if self._audit.stored() != self._stored:
            raise Violation("the refs changed after the last operation")
        self._audit = Audit(self._audit.storage)  # which has to read all again
        stored = self._audit.everything()
        for tip in {*stored.refs.branches.values(), *stored.refs.tags.values()}:
            for id in self._audit.history(tip, stored):
                if id not in self.commits:
                    raise Violation(f"snapshot {id} was made by nobody")


def _tips(trail: list[Refs], branch: str) -> set[str]:
    return {refs.branches[branch] for refs in trail if branch in refs.branches}
