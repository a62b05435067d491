"""Work on whole branches: merge, pick, revert, squash. Each ends in one ordinary commit or ref move.

A merge commit has one parent, as any other; the tip that was merged is named in its metadata. Where histories
met is looked for along both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from icefloe.concurrency import FanOut
from icefloe.core.ancestry import log_of, steps_between
from icefloe.core.arranging import arranged
from icefloe.core.assets import AssetStore
from icefloe.core.commit import flush, log_of_changes, snapshot_info, write_files
from icefloe.core.commit_keys import unite_keys, with_keys_of, without_keys
from icefloe.core.diff import logs_diff, session_diff
from icefloe.core.refs import CollectedError, RefStore
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
from icefloe.format.repo_changes import later_than
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog
from icefloe.ids import SnapshotId
from icefloe.merging import MergeConflictError, MergeConflicts, MergeResult, MergeStrategy

OWN_KEY: Final = "icefloe"
"""Where the metadata of a snapshot keeps what this package knows of it."""
MERGED: Final = "merged"
"""Below it, the tips that were merged into a snapshot."""
R = TypeVar("R")


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
    strategy: MergeStrategy
    dry_run: bool
    even_if_empty: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What users want in it."""


@dataclass(frozen=True, slots=True)
class Branching:
    """The parts of a repository that branch operations work with."""

    refs: RefStore
    assets: AssetStore
    fan_out: FanOut
    commit_metadata: Mapping[str, Any]

    def merge(
        self,
        source: SnapshotId,
        into: str,
        message: str,
        strategy: MergeStrategy,
        *,
        dry_run: bool,
        metadata: Mapping[str, Any],
    ) -> MergeResult:
        """Bring all that a snapshot's history has into a branch."""

        def attempt(mark: int) -> MergeResult:
            tip = self.refs.branch(into)
            here, there = reachable(self.refs, tip), reachable(self.refs, source)
            if source in here:
                made = None if dry_run else str(tip)
                return MergeResult("up-to-date", made, str(source), str(tip), str(source))
            if steps_between(self.refs, tip, source) is not None:
                return self._fast_forward(into, tip, source, dry_run=dry_run)
            base = max((here[id] for id in here.keys() & there.keys()), key=lambda info: info.flushed_at_us)
            record = {MERGED: [str(source)]}
            ends = (into, base.id, source, source)
            order = Order(*ends, message, record, strategy, dry_run, True, metadata)
            touched = touched_between(self.refs, self.assets, base.id, source, self.fan_out)
            return self._three_way(order, tip, touched, mark)

        return self._until_it_holds(attempt)

    def cherry_pick(
        self, picked: SnapshotId, onto: str, message: str | None, strategy: MergeStrategy, *, dry_run: bool
    ) -> MergeResult:
        """Make the changes of one snapshot on a branch too."""
        info = self.refs.snapshot(picked)
        base, record = self._parent(info, "picked"), {"cherry_picked": str(picked)}
        text = message or info.message
        return self._apply(Order(onto, base, picked, picked, text, record, strategy, dry_run))

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
        text = message or f'Revert "{info.message}"'
        return self._apply(Order(branch, undone, before, undone, text, record, strategy, dry_run))

    def squash(self, branch: str, since: SnapshotId, message: str | None) -> SnapshotId:
        """Put one snapshot in the place of all that a branch has after one of its own."""
        return self._until_it_holds(lambda mark: self._squash(branch, since, message, mark))

    def _squash(self, branch: str, since: SnapshotId, message: str | None, mark: int) -> SnapshotId:
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
        before, after = (State(each, self.assets) for each in (self.assets.snapshot(since), state))
        write_files(self.assets, snapshot, net_log(id, before, after, logs), self.fan_out)
        if self.refs.spec.refs_in_repo_info:
            self.refs.amend(branch, tip, snapshot_info(snapshot, since), mark)
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

    def _apply(self, order: Order) -> MergeResult:
        """Bring what lies between two snapshots to the tip of a branch, wherever that is by then."""
        touched = Touched.of([self.assets.transaction_log(order.commit)])
        return self._until_it_holds(
            lambda mark: self._three_way(order, self.refs.branch(order.branch), touched, mark)
        )

    def _until_it_holds(self, attempt: Callable[[int], R]) -> R:
        """Do something anew, with a new mark in the log, until nobody moved the branch in between nor
        collected what was just written.
        """
        for _ in attempts(self.assets.config):
            try:
                return attempt(self.refs.now())
            except CollectedError:
                continue
            except ConflictError as error:
                if error.kind not in (ErrorKind.COMMIT_CONFLICT, ErrorKind.BRANCH_UPDATE_CONFLICT):
                    raise
        raise AssertionError("attempts end with an error")

    def _fast_forward(self, branch: str, tip: SnapshotId, to: SnapshotId, *, dry_run: bool) -> MergeResult:
        steps = steps_between(self.refs, tip, to) or []
        logs = list(self.fan_out(lambda step: log_of(self.assets, step), steps))
        changes = logs_diff(logs, self.assets.snapshot(tip), self.assets.snapshot(to))
        if not dry_run:
            self.refs.reset_branch(branch, to, tip)
        made = None if dry_run else str(to)
        return MergeResult("fast-forward", made, str(tip), str(tip), str(to), changes=changes)

    def _three_way(self, order: Order, tip: SnapshotId, touched: Touched, mark: int) -> MergeResult:
        if not order.dry_run:
            self.refs.check_tip(order.branch, tip)
        since = touched_between(self.refs, self.assets, order.base, tip, self.fan_out)
        snapshots = [self.assets.snapshot(id) for id in (order.base, tip, order.target)]
        base, ours, theirs = (State(each, self.assets) for each in without_keys(snapshots))
        placed = arranged(base, ours, theirs, {*since.nodes, *touched.nodes})
        result = MergeResult(
            "conflicts",
            None,
            str(order.base),
            str(tip),
            str(order.commit),
            MergeConflicts(placed.conflicts),
        )
        if placed.conflicts:
            return self._not_merged(order, result)
        our_changes = changes_between(placed.base, placed.ours, since)
        their_changes = changes_between(placed.base, placed.theirs, touched)
        sides = Sides(placed.base, placed.ours, placed.theirs, our_changes, their_changes)
        merged = merge(sides, order.strategy)
        result = replace(result, conflicts=MergeConflicts(merged.conflicts))
        if not merged.decided:
            return self._not_merged(order, result)
        workspace = Workspace(with_keys_of(placed.ours.snapshot, snapshots[1]), self.assets, merged.changes)
        unite_keys(workspace, snapshots[0], snapshots[2])
        result = replace(result, outcome="merged", changes=placed.told(session_diff(workspace)))
        if merged.changes.is_empty() and placed.is_empty() and not order.even_if_empty:
            return replace(result, outcome="up-to-date", snapshot_id=None if order.dry_run else str(tip))
        if order.dry_run:
            return result
        earlier = None if placed.is_empty() else placed.log(merged.changes, tip)
        metadata = {**order.metadata, **self._metadata(order.record)}
        snapshot = flush(workspace, order.message, metadata, self.fan_out, tip, earlier).snapshot
        self.refs.advance(order.branch, tip, snapshot_info(snapshot, tip), mark)
        return replace(result, snapshot_id=str(snapshot.id))

    def _not_merged(self, order: Order, result: MergeResult) -> MergeResult:
        if not order.dry_run:
            raise MergeConflictError(result)
        return result

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


def net_log(id: SnapshotId, before: State, after: State, logs: Sequence[TransactionLog]) -> TransactionLog:
    """One log of what several changed, as it is in the end."""
    touched = Touched.of(logs)
    changes = changes_between(before, after, touched)
    changes.moved = {
        new: old
        for node in touched.nodes
        if (new := after.path(node)) and (old := before.path(node)) and new != old
    }
    return log_of_changes(Workspace(before.snapshot, before.workspace.assets, changes), id)
