"""Rebase the changes of a session onto commits that were made in the meantime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe._internal.paths import DERIVED, is_within
from icefloe.conflicts import Conflict, ConflictSolver, ConflictType, VersionSelection
from icefloe.core.ancestry import Step, list_steps_between, read_step_log
from icefloe.core.assets import AssetStore
from icefloe.core.changeset import ChangeSet
from icefloe.core.commit.idempotency import is_key_node
from icefloe.core.merge.append_inputs import Appended, AppendRules
from icefloe.core.merge.concurrent_appends import AppendPlan, plan_appends
from icefloe.core.merge.conflicts import Detection, Found, TheirChanges, find_moved_along
from icefloe.core.merge.reads import ReadDetector
from icefloe.core.refs.base import RefStore
from icefloe.core.workspace import Workspace
from icefloe.errors import RebaseFailedError, RefNotFoundError
from icefloe.format.snapshot import ArrayNodeData, Nodes, NodeSnapshot, Snapshot
from icefloe.format.transaction_log import TransactionLog

_KEEPING_OURS: Final = {
    ConflictType.ChunkDoubleUpdate,
    ConflictType.DeleteOfUpdatedArray,
    ConflictType.DeleteOfUpdatedGroup,
}
"""The types of conflicts that can be resolved by keeping our change."""


def rebase(
    workspace: Workspace, refs: RefStore, branch: str, solver: ConflictSolver, executor: Executor
) -> None:
    """Rebase a session by moving the base of its workspace to the tip of a branch, commit by commit.

    The transaction log of each commit in between is compared with our changes, so that the snapshots
    themselves need not be read. If the solver cannot resolve a conflict, RebaseFailedError is raised. The
    workspace is then based on the last commit before the conflict, and its changes are complete. If the
    branch does not exist, nothing happens, because the commit will report it.
    """
    try:
        tip = refs.branch(branch)
    except RefNotFoundError:
        return
    base = workspace.base.id
    if tip == base:
        return
    # A reset or an amend replaces history. No sequence of logs then leads from our base to the tip, so the
    # differences cannot be checked for conflicts.
    steps = list_steps_between(refs, base, tip)
    if steps is None:
        raise RebaseFailedError(str(tip), [Conflict(ConflictType.BranchHistoryReplaced, "")])
    assets = workspace.assets
    logs = _read_logs(assets, steps, executor)
    if isinstance(solver, AppendRules) and _rebase_appends(workspace, solver, steps, logs):
        return
    with workspace.editing():
        # Rebase commit by commit, oldest first. After a conflict, the session is based on the last commit
        # without a conflict, as in the official library, and a user who resolves the conflict starts there.
        began, changes = workspace.base.nodes, workspace.changes.copy()
        reached: SnapshotId | None = None
        try:
            for step, log in zip(steps, logs, strict=True):
                theirs = TheirChanges(log, partial(assets.snapshot, step.snapshot))
                replay(began, changes, theirs, solver, step.snapshot)
                reached = step.snapshot
        finally:
            if reached is not None:
                snapshot = assets.snapshot(reached)
                workspace.rebase(snapshot, transfer_changes(snapshot.nodes, changes))


def _read_logs(assets: AssetStore, steps: Sequence[Step], executor: Executor) -> list[TransactionLog]:
    """Read the transaction logs of some commits and, at the same time, the snapshot of the last commit, which
    becomes the new base.
    """

    def read(step: Step | None) -> TransactionLog | None:
        if step is not None:
            return read_step_log(assets, step)
        assets.snapshot(steps[-1].snapshot)
        return None

    found = executor.map(Task(read, "transaction logs"), [*steps, None])
    return [log for log in found if log is not None]


def _rebase_appends(
    workspace: Workspace, solver: ConflictSolver, steps: Sequence[Step], logs: Sequence[TransactionLog]
) -> bool:
    """Rebase a session that appended rows to arrays that the commits in between also changed.

    All commits are processed at once, and a conflict leaves the workspace unchanged. The lock of the
    workspace is not held meanwhile, because rows are decoded on zarr's event loop, where reads of the session
    need the lock.
    """
    assets = workspace.assets
    tip = assets.snapshot(steps[-1].snapshot)
    with workspace.committing():
        plan = plan_appends(workspace, tip, solver) if isinstance(solver, AppendRules) else None
        if plan is None or not isinstance(solver, AppendRules):
            return False
        # The plan already combines the rows of all commits, because the position of a row depends on all of
        # them. Only the other changes are compared commit by commit.
        for step, log in zip(steps, logs, strict=True):
            theirs = TheirChanges(log, partial(assets.snapshot, step.snapshot))
            replay(workspace.base.nodes, plan.rest, theirs, solver, step.snapshot)
        _rebase_as_planned(workspace, tip, transfer_changes(tip.nodes, plan.rest), plan)
    solver.note(plan.done)
    return True


def _rebase_as_planned(workspace: Workspace, tip: Snapshot, rest: ChangeSet, plan: AppendPlan) -> None:
    """Move a workspace to a new base snapshot and apply the plan's changes, in one step."""
    rebased = Workspace(tip, workspace.assets, rest)
    plan.apply(rebased)
    workspace.rebase(tip, rebased.changes)


def arrange_appends(workspace: Workspace, rules: AppendRules) -> Sequence[Appended]:
    """Match the labels that a session appended with existing labels, and rearrange its rows.

    Rows whose label already exists are written to that row. The rules determine where all other rows go.
    """
    with workspace.committing():
        base = workspace.base
        plan = plan_appends(workspace, base, rules, match_all=True)
        if plan is None:
            return ()
        _rebase_as_planned(workspace, base, plan.rest, plan)
    return plan.done


def check_solver(solver: ConflictSolver) -> None:
    """Raise TypeError if the argument is not a conflict solver."""
    if not isinstance(solver, ConflictSolver):
        raise TypeError(f"'{type(solver).__name__}' object is not an instance of 'ConflictSolver'")


def replay(
    began: Nodes, changes: ChangeSet, theirs: TheirChanges, solver: ConflictSolver, snapshot: SnapshotId
) -> None:
    """Rebase our changes over one commit. If the solver cannot resolve a conflict, raise RebaseFailedError
    without changing anything.
    """
    every = list(Detection(began, changes, theirs).conflicts())
    if isinstance(solver, ReadDetector):
        every += solver.find_changed_reads(began, theirs)
    found = [each for each in every if not is_record(each)]
    # Ask the solver about all conflicts before changing anything. A partial rebase over a commit would leave
    # changes that neither side made.
    chosen = [solver.choose(each.conflict) for each in found]
    if not all(map(_is_solved, found, chosen)):
        raise RebaseFailedError(str(snapshot), [each.conflict for each in found])
    # Keeping our chunk requires no action: it stays in the change set and overwrites theirs in the new
    # snapshot. Keeping their chunk means dropping our change, because their reference is already at the tip.
    for each, choice in zip(found, chosen, strict=True):
        if choice is VersionSelection.UseTheirs and each.node is not None and each.coords is not None:
            changes.chunks[each.node].forget(each.coords)
    for each in every:
        if is_record(each):
            _drop_changes(changes, each.conflict.path)
    if changes.moved:
        changes.moved = _adapt_moves(began, changes.moved, theirs)


def is_record(found: Found) -> bool:
    """Return True if a conflict concerns only the bookkeeping records of a derived array.

    Either side may be dropped: a record states what a chunk was computed from, and is valid only until the
    chunk changes. The next run recomputes chunks without a record.
    """
    return is_within(found.conflict.path, DERIVED)


def _drop_changes(changes: ChangeSet, path: str) -> None:
    """Drop all changes of a node."""
    for kept in (changes.created, changes.updated, changes.deleted):
        kept.pop(path, None)
    for id in [id for id, delta in changes.chunks.items() if delta.path == path]:
        del changes.chunks[id]


def _is_solved(found: Found, choice: VersionSelection) -> bool:
    kind = found.conflict.conflict_type
    if choice is VersionSelection.UseTheirs:
        return kind is ConflictType.ChunkDoubleUpdate and not found.theirs_would_be_lost
    return choice is VersionSelection.UseOurs and kind in _KEEPING_OURS


def _adapt_moves(began: Nodes, moved: Mapping[str, str], theirs: TheirChanges) -> dict[str, str]:
    """Adapt our moves to their changes: also move nodes that they created in a group that we moved, and skip
    nodes that they deleted.
    """
    kept = {path: origin for path, origin in moved.items() if not theirs.deleted(began.find(origin))}
    return kept | find_moved_along(kept, theirs.new_nodes)


def transfer_changes(nodes: Nodes, changes: ChangeSet) -> ChangeSet:
    """Transfer our changes to the current versions of the nodes. There must be no conflicts."""
    # A deletion refers to the node that we saw. If the other side deleted it and created another node at the
    # same path, the id differs, and the new node must survive.
    deleted = {
        path: now
        for path, node in changes.deleted.items()
        if (now := nodes.find(path)) is not None and now.id == node.id and not is_key_node(path)
    }
    created = {
        path: node
        for path, node in changes.created.items()
        if not is_key_node(path) or nodes.find(path) is None
    }
    updated = {path: _keep_manifests(node, nodes.find(path)) for path, node in changes.updated.items()}
    return replace(changes, created=created, updated=updated, deleted=deleted)


def _keep_manifests(node: NodeSnapshot, now: NodeSnapshot | None) -> NodeSnapshot:
    """Return a node that combines our metadata with the chunks at the tip."""
    if now is None or not isinstance(data := node.node_data, ArrayNodeData):
        return node
    theirs = now.node_data
    if not isinstance(theirs, ArrayNodeData) or len(theirs.shape) != len(data.shape):
        return node
    # Our copy of the node has the manifests of our old base. The manifests at the tip also contain the chunks
    # committed since, so only the metadata of our copy is used.
    return replace(node, node_data=replace(data, manifests=theirs.manifests))
