"""Work on whole branches: merge, pick, revert, squash. Each ends in one ordinary commit or ref move.

A merge commit has one parent, as any other; the tip that was merged is named in its metadata. Where histories
met is looked for along both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from icefloe.concurrency import FanOut
from icefloe.core.ancestry import log_of, steps_between
from icefloe.core.assets import AssetStore
from icefloe.core.commit import flush, merged_logs, snapshot_info, write_files
from icefloe.core.diff import logs_diff, session_diff
from icefloe.core.refs import RefStore
from icefloe.core.retries import attempts
from icefloe.core.state_changes import State, Touched, changes_between, touched_between
from icefloe.core.three_way import Sides, merge
from icefloe.core.workspace import Workspace
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.id_columns import is_member, sorted_ids
from icefloe.format.repo_changes import later_than
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import Nodes
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks
from icefloe.ids import NodeId, SnapshotId
from icefloe.merging import MergeConflictError, MergeConflicts, MergeResult, MergeStrategy
from icefloe.snapshots import Diff

OWN_KEY: Final = "icefloe"
"""Where the metadata of a snapshot keeps what this package knows of it."""
MERGED: Final = "merged"
"""Below it, the tips that were merged into a snapshot."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be brought to a branch: all that leads from a base to a target."""

    branch: str
    base: SnapshotId
    target: SnapshotId
    commit: SnapshotId
    """The snapshot that users named."""
    message: str
    record: Mapping[str, Any]
    """For the metadata of the commit."""
    even_if_empty: bool = False


@dataclass(frozen=True, slots=True)
class Branching:
    """The parts of a repository that branch operations work with."""

    refs: RefStore
    assets: AssetStore
    fan_out: FanOut
    commit_metadata: Mapping[str, Any]

    def merge(
        self, source: SnapshotId, into: str, message: str, strategy: MergeStrategy, *, dry_run: bool
    ) -> MergeResult:
        """Bring all that a snapshot's history has into a branch."""
        for _ in attempts(self.assets.config):
            tip = self.refs.branch(into)
            here, there = reachable(self.refs, tip), reachable(self.refs, source)
            if source in here:
                made = None if dry_run else str(tip)
                return MergeResult("up-to-date", made, str(source), str(tip), str(source))
            base = max((here[id] for id in here.keys() & there.keys()), key=lambda info: info.flushed_at_us)
            try:
                if steps_between(self.refs, tip, source) is not None:
                    return self._fast_forward(into, tip, source, dry_run=dry_run)
                order = Order(
                    into, base.id, source, source, message, {MERGED: [str(source)]}, even_if_empty=True
                )
                touched = touched_between(self.refs, self.assets, base.id, source, self.fan_out)
                return self._three_way(order, tip, touched, strategy, dry_run=dry_run)
            except ConflictError as error:
                _raise_unless_lost(error)
        raise AssertionError("attempts end with an error")

    def cherry_pick(
        self, picked: SnapshotId, onto: str, message: str | None, strategy: MergeStrategy, *, dry_run: bool
    ) -> MergeResult:
        """Make the changes of one snapshot on a branch too."""
        info = self.refs.snapshot(picked)
        base, record = self._parent(info, "picked"), {"cherry_picked": str(picked)}
        order = Order(onto, base, picked, picked, message or info.message, record)
        return self._apply(order, strategy, dry_run=dry_run)

    def revert(
        self, undone: SnapshotId, branch: str, message: str | None, strategy: MergeStrategy, *, dry_run: bool
    ) -> MergeResult:
        """Undo on a branch what one snapshot of its history changed."""
        info = self.refs.snapshot(undone)
        before, record = self._parent(info, "reverted"), {"reverted": str(undone)}
        if steps_between(self.refs, undone, self.refs.branch(branch)) is None:
            raise InvalidInputError(
                f"{undone} is not in the history of branch {branch}, so there is nothing to revert",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        order = Order(branch, undone, before, undone, message or f'Revert "{info.message}"', record)
        return self._apply(order, strategy, dry_run=dry_run)

    def squash(self, branch: str, since: SnapshotId, message: str | None) -> SnapshotId:
        """Put one snapshot in the place of all that a branch has after one of its own."""
        tip = self.refs.branch(branch)
        self.refs.check_tip(branch, tip)
        steps = steps_between(self.refs, since, tip)
        if not steps:
            raise InvalidInputError(
                f"{since} is not a snapshot before the tip of branch {branch}, so there is nothing to squash",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        self.refs.snapshot(since)  # it may have left nothing but its log
        infos = [self.refs.snapshot(step.snapshot) for step in steps]
        tips = [str(id) for info in infos for id in merged_tips(info)]
        record = {"squashed": [str(info.id) for info in infos]} | ({MERGED: tips} if tips else {})
        logs = list(self.fan_out(lambda step: log_of(self.assets, step), steps))
        state, id = self.assets.snapshot(tip), SnapshotId.random()
        snapshot = replace(
            state,
            id=id,
            parent_id=since if self.assets.spec.parent_in_snapshot else None,
            flushed_at_us=later_than(state.flushed_at_us, time.time_ns() // 1000),
            message=message or "\n".join(info.message for info in infos),
            metadata=self._metadata(record),
        )
        write_files(self.assets, snapshot, net_log(id, logs, state.nodes), self.fan_out)
        if self.refs.spec.refs_in_repo_info:
            self.refs.amend(branch, tip, snapshot_info(snapshot, since))
        else:
            self.refs.reset_branch(branch, id, tip)
        return id

    def _parent(self, info: SnapshotInfo, what: str) -> SnapshotId:
        """The snapshot that a snapshot's own changes were made on."""
        if info.parent_id is None:
            raise InvalidInputError(
                f"{info.id} is the first snapshot and changed nothing, so it cannot be {what}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
        if info.pruned_ancestor_tx_logs:
            raise SessionStateError(
                f"{info.id} cannot be {what}: the snapshot before it expired, and what it had is not known",
                kind=ErrorKind.REBASE_TX_LOG_PRUNED,
            )
        return info.parent_id

    def _apply(self, order: Order, strategy: MergeStrategy, *, dry_run: bool) -> MergeResult:
        """Bring what lies between two snapshots to the tip of a branch, wherever that is by then."""
        touched = Touched.of([self.assets.transaction_log(order.commit)])
        for _ in attempts(self.assets.config):
            try:
                tip = self.refs.branch(order.branch)
                return self._three_way(order, tip, touched, strategy, dry_run=dry_run)
            except ConflictError as error:
                _raise_unless_lost(error)
        raise AssertionError("attempts end with an error")

    def _fast_forward(self, branch: str, tip: SnapshotId, to: SnapshotId, *, dry_run: bool) -> MergeResult:
        steps = steps_between(self.refs, tip, to) or []
        logs = list(self.fan_out(lambda step: log_of(self.assets, step), steps))
        changes = logs_diff(logs, self.assets.snapshot(tip), self.assets.snapshot(to))
        if not dry_run:
            self.refs.reset_branch(branch, to, tip)
        made = None if dry_run else str(to)
        return MergeResult("fast-forward", made, str(tip), str(tip), str(to), changes=changes)

    def _three_way(
        self, order: Order, tip: SnapshotId, touched: Touched, strategy: MergeStrategy, *, dry_run: bool
    ) -> MergeResult:
        if not dry_run:
            self.refs.check_tip(order.branch, tip)
        base, ours, theirs = (self._state(id) for id in (order.base, tip, order.target))
        since = touched_between(self.refs, self.assets, order.base, tip, self.fan_out)
        sides = Sides(
            base, ours, theirs, changes_between(base, ours, since), changes_between(base, theirs, touched)
        )
        merged = merge(sides, strategy)
        workspace = Workspace(ours.snapshot, self.assets, merged.changes)
        result = MergeResult(
            "merged" if merged.decided else "conflicts",
            None,
            str(order.base),
            str(tip),
            str(order.commit),
            MergeConflicts(merged.conflicts),
            session_diff(workspace) if merged.decided else Diff(),
        )
        if not merged.decided:
            if dry_run:
                return result
            raise MergeConflictError(result)
        if merged.changes.is_empty() and not order.even_if_empty:
            return replace(result, outcome="up-to-date", snapshot_id=None if dry_run else str(tip))
        return result if dry_run else self._commit(order, workspace, result)

    def _commit(self, order: Order, workspace: Workspace, result: MergeResult) -> MergeResult:
        parent = workspace.base.id
        metadata = self._metadata(order.record)
        snapshot = flush(workspace, order.message, metadata, self.fan_out, parent).snapshot
        self.refs.advance(order.branch, parent, snapshot_info(snapshot, parent))
        return replace(result, snapshot_id=str(snapshot.id))

    def _state(self, id: SnapshotId) -> State:
        return State(self.assets.snapshot(id), self.assets)

    def _metadata(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.commit_metadata, OWN_KEY: dict(record)}


def reachable(refs: RefStore, tip: SnapshotId) -> dict[SnapshotId, SnapshotInfo]:
    """A snapshot and all that went into it, by parents and by merges."""
    found: dict[SnapshotId, SnapshotInfo] = {}
    waiting = [tip]
    while waiting:
        try:
            for info in refs.ancestry(waiting.pop()):
                if info.id in found:
                    break
                found[info.id] = info
                waiting += merged_tips(info)
        except SnapshotNotFoundError:  # what was merged may have expired since
            if not found:
                raise
    return found


def merged_tips(info: SnapshotInfo) -> list[SnapshotId]:
    """The tips that a snapshot's metadata says were merged into it."""
    own = info.metadata.get(OWN_KEY)
    tips = own.get(MERGED) if isinstance(own, dict) else None
    try:
        return [SnapshotId.parse(tip) for tip in tips or ()]
    except (InvalidInputError, TypeError):  # somebody else's metadata under our name
        return []


def with_merges_of(tip: SnapshotInfo, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata for a snapshot in the place of another, whose merges it keeps."""
    tips = [str(id) for id in merged_tips(tip)]
    if not tips:
        return dict(metadata)
    own = metadata.get(OWN_KEY)
    return {**metadata, OWN_KEY: {MERGED: tips, **(own if isinstance(own, dict) else {})}}


def net_log(id: SnapshotId, logs: Sequence[TransactionLog], after: Nodes) -> TransactionLog:
    """One log of what several changed, without the chunks of nodes that are not there afterwards."""
    log = merged_logs(id, logs)
    known = sorted_ids(after.columns["id"]) if len(after) else np.zeros((0, NodeId.SIZE), np.uint8)
    lists = list(log.updated_chunks)
    present = is_member(log.updated_chunks.node_ids, known).tolist()
    kept = [each for each, there in zip(lists, present, strict=True) if there]
    return replace(log, updated_chunks=UpdatedChunks.of_lists(kept))


def _raise_unless_lost(error: ConflictError) -> None:
    """Go on only where another writer moved the branch: then all is computed anew."""
    if error.kind not in (ErrorKind.COMMIT_CONFLICT, ErrorKind.BRANCH_UPDATE_CONFLICT):
        raise error
