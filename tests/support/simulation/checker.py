"""Is what happened to a repository what its writers asked for? Each change of its refs beside the model."""

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
UPKEEP = ("expire", "collect")


@dataclass(eq=False, slots=True)
class Operation:
    """One thing that a writer asks for, and how it ended."""

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
    """Follows a repository from state to state. Whoever writes says which operation is at work."""

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
        """The refs as they were last seen."""
        return self._stored.refs

    def tree(self, snapshot: str) -> model.Tree:
        """What a snapshot holds."""
        if snapshot not in self.commits:
            raise Violation(f"snapshot {snapshot} was made by nobody")
        return self.commits[snapshot].tree

    def written_at_us(self) -> dict[str, int]:
        """When each snapshot that is there was written."""
        found = {id: self._audit.written_at_us(f"snapshots/{id}") for id in self.commits}
        return {id: at_us for id, at_us in found.items() if at_us is not None}

    def choices(self, kind: str, branch: str) -> list[str]:
        """Snapshots with which something can be done to a branch; accounts are never taken away."""
        if kind in ("merge", "cherry_pick"):
            return sorted(self.commits.keys() - {self.first})
        history = self.branches.history(self.refs.branches[branch])
        return history[:-2] if kind == "revert" else history[:-1]

    def begin(self) -> None:
        """Take a new repository for what it should be: one empty snapshot."""
        self._stored = self._audit.everything()
        self._trail = [self._stored.refs]
        (self.first,) = self._stored.refs.branches.values()
        self.commits[self.first] = Commit(None, model.Tree(), model.Changes())

    @contextmanager
    def operation(self, operation: Operation) -> Iterator[Operation]:
        """Watch an operation, and compare how it ended with what it did."""
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
        """Whether there was nothing to be merged or picked."""
        tips = _tips(meanwhile, operation.branch)
        return operation.kind in BRANCH_WORK and any(
            tip == operation.result and self.branches.is_done(operation.kind, tip, operation.snapshot)
            for tip in tips
        )

    def _was_so(self, operation: Operation, meanwhile: list[Refs]) -> bool:
        """Whether a ref was where an operation wants it; without an ops log that is all one can see."""
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
        """Somebody else must have moved the branch since the session began, and in our way."""
        solver = operation.solver
        if solver is not None:
            self.follow(twin, solver)
        tips = {refs.branches.get(operation.branch) for refs in meanwhile} - {twin.model.base, None}
        if solver is not None:
            tips = {tip for tip in tips if tip and isinstance(self.rebased(twin, tip, solver), set)}
        if not tips:
            raise Violation(f"{operation} met a conflict that there was not")

    def deleting(self, paths: list[str], operation: Operation | None) -> None:
        """Objects are about to be deleted: nothing may need them, and they must be old enough."""
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
        """Something happened that must have changed nothing."""
        if self._audit.stored() != self._stored:
            raise Violation(f"the refs changed by {what}, which was done before")

    def ref_written(self, operation: Operation | None) -> None:
        """A file of refs may have changed: it must be what the operation at work asks for."""
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
        if operation.kind in UPKEEP:
            return
        new = after.parents.keys() - before.parents.keys()
        lost = before.parents.keys() - after.parents.keys()
        if lost or new != ({operation.made} if operation.made else set()):
            raise Violation(f"{operation}: snapshots {new} are new, {lost} lost")

    def _committed(self, operation: Operation, before: Stored, after: Stored) -> Refs:
        """What a commit or amend must have made of the refs; its snapshot joins those we know."""
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
        """What a merge, a pick, a revert or a squash must have made of the refs."""
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
        """What an expiration or a collection must have left of the history."""
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
        """The changes of a session as they may be put on a tip; KeyError where they may not."""
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
        """The changes of a session as they go over a tip, or the first conflicts on the way there."""
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
        """Let the model of a session go where a rebase took the session, even if it then failed."""
        base = twin.real.snapshot_id
        if base == twin.model.base:
            return
        changes = self.rebased(twin, base, solver)
        if isinstance(changes, set):
            raise Violation(f"rebased to {base} over conflicts: {', '.join(sorted(changes))}")
        twin.rebase(base, self.tree(base), changes)

    def _between(self, base: str, tip: str) -> list[Commit] | None:
        """The commits after a base up to a tip, oldest first; None where it is not in that history."""
        steps: list[Commit] = []
        at: str | None = tip
        while at is not None and at != base:
            steps.append(self.commits[at])
            at = steps[-1].parent
        return None if at is None else steps[::-1]

    def _check_reads(self, twin: Twin, tip: str) -> None:
        """What a commit read and then wrote must be what it would have read at its place in the order."""
        cells = self.tree(tip).cells
        for cell, value in twin.reads.items():
            if cell in twin.model.changes.cells and cells.get(cell) != value:
                raise Violation(f"a commit on {tip} had read {value} where there was {cells.get(cell)}")

    def _check_accounts(self, snapshot: str, before: str) -> None:
        """Transfers leave the sum as it is. A merge may not: what both sides made the same counts once."""
        now, then = (
            sum(tree[ACCOUNTS][2].values()) if ACCOUNTS in tree else None
            for tree in map(self._audit.tree, (snapshot, before))
        )
        if now != (TOTAL if then is None else then):
            raise Violation(f"the accounts of {snapshot} add up to {now}, those of {before} to {then}")

    def finish(self) -> None:
        """After all is over: what is stored is what was seen last, and all of it is whole."""
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
