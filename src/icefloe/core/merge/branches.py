"""Branch operations: merge, cherry-pick, revert and squash. Each results in a single commit or ref update.

A merge commit has one parent, like any other commit, and records the merged tip in its metadata. The common
ancestor is searched in both histories, including expired and squashed snapshots. See `lineage`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import SnapshotId
from icefloe.conflicts import ConflictSolver, MergeConflictError, MergeConflicts, MergeResult, MergeStrategy
from icefloe.core.ancestry import list_steps_between, read_step_log
from icefloe.core.assets import AssetStore
from icefloe.core.commit.diff import diff_logs, diff_session
from icefloe.core.commit.flush import flush, make_log, make_snapshot_info, write_files
from icefloe.core.commit.gc_race import rescue
from icefloe.core.commit.idempotency import remove_keys, unite_keys, with_keys_of
from icefloe.core.commit.limits import check_changes
from icefloe.core.merge.append_inputs import get_append_rules
from icefloe.core.merge.concurrent_appends import plan_appends
from icefloe.core.merge.lineage import (
    MERGED,
    OWN_KEY,
    SQUASHED,
    SnapshotLineage,
    get_merged_tips,
    get_recorded_ids,
    has_file,
    list_squashed,
    make_expired_base_error,
)
from icefloe.core.merge.moves import arrange
from icefloe.core.merge.state_changes import (
    State,
    Touched,
    find_changes,
    find_last_common_state,
    find_touched,
)
from icefloe.core.merge.three_way import Sides, merge
from icefloe.core.merge.transplant import can_transplant, transplant
from icefloe.core.refs.backoff import retry_conflicts
from icefloe.core.refs.base import CollectedError, RefStore
from icefloe.core.workspace import Workspace
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.repo_changes import choose_later_time
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.transaction_log import TransactionLog

R = TypeVar("R")

_STRATEGIES = ("fail", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A request to merge the changes between a base and a target snapshot into a branch."""

    branch: str
    base: SnapshotId
    target: SnapshotId
    commit: SnapshotId
    """The snapshot that the user selected to merge, cherry-pick or revert."""
    message: str
    record: Mapping[str, Any]
    """The entries that icefloe adds to the metadata of the commit."""
    strategy: MergeStrategy | ConflictSolver
    dry_run: bool
    even_if_empty: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The user's metadata for the commit."""


@dataclass(frozen=True, slots=True)
class Branching:
    """Branch operations: merge, cherry-pick, revert and squash."""

    refs: RefStore
    assets: AssetStore
    executor: Executor
    commit_metadata: Mapping[str, Any]

    def merge(
        self,
        source: SnapshotId,
        into: str,
        message: str,
        strategy: MergeStrategy | ConflictSolver,
        *,
        dry_run: bool,
        metadata: Mapping[str, Any],
    ) -> MergeResult:
        """Merge a snapshot and its history into a branch."""
        _check_strategy(strategy)

        def attempt(mark: int) -> MergeResult:
            tip = self.refs.branch(into)
            lineage = SnapshotLineage(self.refs, self.assets, tip, source)
            if not lineage.contains(tip, source):
                if list_steps_between(self.refs, tip, source) is not None:
                    return self._fast_forward(into, tip, source, dry_run=dry_run)
                base = self._find_base(lineage, tip, source)
                ends = (into, base, source, source)
                record = {MERGED: [str(source)]}
                if base != source:
                    order = ApplyRequest(*ends, message, record, strategy, dry_run, True, metadata)
                    return self._merge_three_way(order, tip, mark)
            made = None if dry_run else str(tip)
            return MergeResult("up-to-date", made, str(source), str(tip), str(source))

        return self._retry_until_stable(attempt)

    def _find_base(self, lineage: SnapshotLineage, tip: SnapshotId, source: SnapshotId) -> SnapshotId:
        """Return the common ancestor of two tips; raise an error if it cannot be determined reliably.

        An expired snapshot after the apparent common ancestor may have been a merge. Then there is a later
        common ancestor, which does not matter if the two sides changed different data.
        """
        base = lineage.base(tip, source)
        while gaps := lineage.gaps(base, tip, source):
            snapshots = [lineage.readable(id) for id in (base, tip, source)]
            before, ours, theirs = (State(each, self.assets) for each in remove_keys(snapshots))
            nodes = before.ids() | ours.ids() | theirs.ids()
            since, touched = (self._find_touched(before, after).among(nodes) for after in (ours, theirs))
            if not since.overlaps(touched) and not _have_path_collision(ours, since, theirs, touched):
                break
            lineage.read(gaps)
            base = lineage.base(tip, source)
        lineage.readable(base)
        if not self._keeps_logs(base) and not all(self._is_explained(base, end) for end in (tip, source)):
            raise make_expired_base_error(f"snapshots between {base} and {tip} or {source} have expired")
        return base

    def _keeps_logs(self, base: SnapshotId) -> bool:
        """Return True if the transaction logs of all snapshots that expired after a given snapshot are still
        known.

        Version 1 of the format does not keep them. In a repository that was upgraded from version 1, the
        history may have been cut off right after the first snapshot.
        """
        if not self.refs.spec.refs_in_repo_info:
            return False
        try:
            return self.refs.snapshot(base).parent_id is not None
        except SnapshotNotFoundError:
            return True

    def _is_explained(self, one: SnapshotId, other: SnapshotId) -> bool:
        """Return True if the transaction logs between two snapshots account for all differences between
        them.
        """
        parted = find_last_common_state(self.refs, one, other)
        if parted is None:
            return False
        for end in {one, other} - {parted}:
            before = State(self.assets.snapshot(parted), self.assets)
            for step in list_steps_between(self.refs, parted, end) or ():
                after = State(self.assets.snapshot(step.snapshot), self.assets)
                found = find_touched(self.refs, self.assets, before.snapshot.id, step.snapshot, self.executor)
                if found is None or not found.explains(before, after):
                    return False
                before = after
        return True

    def _find_touched(self, before: State, after: State) -> Touched:
        """Return the nodes and chunks that may differ between two states, based on transaction logs if
        possible. Otherwise return all of them.
        """
        ends = (before.snapshot.id, after.snapshot.id)
        found = find_touched(self.refs, self.assets, *ends, self.executor)
        if found is None or not (self.refs.spec.refs_in_repo_info or self._is_explained(*ends)):
            return Touched.of_all(before, after)
        return found

    def cherry_pick(
        self,
        picked: SnapshotId,
        onto: str,
        message: str | None,
        strategy: MergeStrategy | ConflictSolver,
        *,
        dry_run: bool,
    ) -> MergeResult:
        """Cherry-pick a snapshot: apply its changes to another branch."""
        _check_strategy(strategy)
        info = self.refs.snapshot(picked)
        base, record = self._find_parent(info, "picked"), {"cherry_picked": str(picked)}
        text = message or info.message
        return self._apply(ApplyRequest(onto, base, picked, picked, text, record, strategy, dry_run))

    def can_transplant(self, base: SnapshotId, source: SnapshotId, branch: str) -> bool:
        """Return True if the commits between two snapshots can be applied to a branch unchanged."""
        return can_transplant(self.refs, self.assets, base, source, self.refs.branch(branch))

    def transplant(
        self, base: SnapshotId, source: SnapshotId, branch: str, metadata: Mapping[str, Any]
    ) -> SnapshotId | None:
        """Apply the commits between two snapshots to a branch unchanged, one by one, and return the new tip.

        Returns None if both sides changed the same node. The last commit gets the given metadata, and records
        that the source was merged.
        """
        recorded = {**metadata, **self._make_metadata({MERGED: [str(source)]})}
        return transplant(self.refs, self.assets, base, source, branch, recorded)

    def revert(
        self,
        undone: SnapshotId,
        branch: str,
        message: str | None,
        strategy: MergeStrategy | ConflictSolver,
        *,
        dry_run: bool,
    ) -> MergeResult:
        """Undo the changes of a snapshot in the history of a branch, in a new commit."""
        _check_strategy(strategy)
        info = self.refs.snapshot(undone)
        before, record = self._find_parent(info, "reverted"), {"reverted": str(undone)}
        if list_steps_between(self.refs, undone, self.refs.branch(branch)) is None:
            raise InvalidInputError(
                f"{undone} is not in the history of branch {branch}, so it cannot be reverted",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        text = message or f'Revert "{info.message}"'
        return self._apply(ApplyRequest(branch, undone, before, undone, text, record, strategy, dry_run))

    def squash(self, branch: str, since: SnapshotId, message: str | None) -> SnapshotId:
        """Squash a branch by replacing all snapshots after a given one with a single snapshot."""
        return self._retry_until_stable(lambda mark: self._squash(branch, since, message, mark))

    def _squash(self, branch: str, since: SnapshotId, message: str | None, mark: int) -> SnapshotId:
        tip = self.refs.branch(branch)
        self.refs.check_tip(branch, tip)
        steps = list_steps_between(self.refs, since, tip)
        if not steps:
            raise InvalidInputError(
                f"{since} is not an ancestor of the tip of branch {branch}, so there is nothing to squash",
                kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
            )
        self.refs.snapshot(since)  # raises an error if only the transaction log of the snapshot is left
        infos = [self.refs.snapshot(step.snapshot) for step in steps]
        tips = [str(id) for info in infos for id in get_merged_tips(info)]
        replaced = [str(id) for id in list_squashed(infos)]
        record = {SQUASHED: replaced} | ({MERGED: tips} if tips else {})
        state, id = self.assets.snapshot(tip), SnapshotId.random()
        snapshot = replace(
            state,
            id=id,
            parent_id=since if self.assets.spec.parent_in_snapshot else None,
            flushed_at_us=choose_later_time(state.flushed_at_us, time.time_ns() // 1000),
            message=message or "\n".join(info.message for info in infos),
            metadata=self._make_metadata(record),
        )
        before, after = (State(each, self.assets) for each in (self.assets.snapshot(since), state))
        log = combine_logs(id, before, after, self._find_touched(before, after))
        write_files(self.assets, snapshot, log, self.executor, state)
        if self.refs.spec.refs_in_repo_info:
            self.refs.amend(branch, tip, make_snapshot_info(snapshot, since), mark)
        else:
            self.refs.reset_branch(branch, id, tip)
        return id

    def _find_parent(self, info: SnapshotInfo, what: str) -> SnapshotId:
        """Return the parent on which a snapshot's changes are based; raise an error if it has expired."""
        if info.parent_id is None:
            raise InvalidInputError(
                f"{info.id} is the first snapshot, which has no changes, so it cannot be {what}",
                kind=ErrorKind.INVALID_SNAPSHOT_ID,
            )
        before = info.parent_id
        if info.pruned_ancestor_tx_logs:
            before = info.pruned_ancestor_tx_logs[-1]
            is_known = has_file(self.assets, before)
        else:
            is_known = self._keeps_logs(before) or self._is_explained(before, info.id)
        if not is_known:
            raise SessionStateError(
                f"{info.id} cannot be {what}: the snapshot before it has expired and was deleted; repeat the "
                "changes in a new session",
                kind=ErrorKind.REBASE_TX_LOG_PRUNED,
            )
        return before

    def _apply(self, order: ApplyRequest) -> MergeResult:
        """Apply the changes between two snapshots to the tip of a branch. Retry if the tip moves."""
        return self._retry_until_stable(
            lambda mark: self._merge_three_way(order, self.refs.branch(order.branch), mark)
        )

    def _retry_until_stable(self, attempt: Callable[[int], R]) -> R:
        """Retry until neither a concurrent commit nor a garbage collection interferes."""
        for _ in retry_conflicts(self.assets.config):
            try:
                return attempt(self.refs.now())
            except CollectedError:
                continue
            except ConflictError as error:
                if error.kind not in (ErrorKind.COMMIT_CONFLICT, ErrorKind.BRANCH_UPDATE_CONFLICT):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _fast_forward(self, branch: str, tip: SnapshotId, to: SnapshotId, *, dry_run: bool) -> MergeResult:
        steps = list_steps_between(self.refs, tip, to) or []
        logs = list(
            self.executor.map(Task(lambda step: read_step_log(self.assets, step), "transaction logs"), steps)
        )
        changes = diff_logs(logs, self.assets.snapshot(tip), self.assets.snapshot(to))
        if not dry_run:
            self.refs.reset_branch(branch, to, tip)
        made = None if dry_run else str(to)
        return MergeResult("fast-forward", made, str(tip), str(tip), str(to), changes=changes)

    def _merge_three_way(self, order: ApplyRequest, tip: SnapshotId, mark: int) -> MergeResult:
        if not order.dry_run:
            self.refs.check_tip(order.branch, tip)
        snapshots = [self.assets.snapshot(id) for id in (order.base, tip, order.target)]
        base, ours, theirs = (State(each, self.assets) for each in remove_keys(snapshots))
        since, touched = (self._find_touched(base, state) for state in (ours, theirs))
        placed = arrange(base, ours, theirs, {*since.nodes, *touched.nodes})
        result = MergeResult(
            "conflicts",
            None,
            str(order.base),
            str(tip),
            str(order.commit),
            MergeConflicts(placed.conflicts),
        )
        if placed.conflicts:
            return self._make_conflict_error(order, result)
        our_changes = find_changes(placed.base, placed.ours, since)
        their_changes = find_changes(placed.base, placed.theirs, touched)
        appends, rules = None, get_append_rules(order.strategy)
        if rules is not None:
            source = Workspace(placed.base.snapshot, self.assets, their_changes)
            appends = plan_appends(source, placed.ours.snapshot, rules, dry_run=order.dry_run)
            their_changes = their_changes if appends is None else appends.rest
        sides = Sides(placed.base, placed.ours, placed.theirs, our_changes, their_changes, since, touched)
        merged = merge(sides, order.strategy if isinstance(order.strategy, str) else "fail")
        result = replace(result, conflicts=MergeConflicts(merged.conflicts))
        if not merged.decided:
            return self._make_conflict_error(order, result)
        workspace = Workspace(with_keys_of(placed.ours.snapshot, snapshots[1]), self.assets, merged.changes)
        unite_keys(workspace, snapshots[0], snapshots[2])
        if appends is not None and rules is not None:
            appends.apply(workspace)
            rules.note(appends.done)
        result = replace(result, outcome="merged", changes=placed.all_changes(diff_session(workspace)))
        if workspace.changes.is_empty() and placed.is_empty() and not order.even_if_empty:
            return replace(result, outcome="up-to-date", snapshot_id=None if order.dry_run else str(tip))
        earlier = None if placed.is_empty() else placed.log(merged.changes, tip)
        check_changes(workspace.changes, earlier)
        if order.dry_run:
            return result
        metadata = {**order.metadata, **self._make_metadata(order.record)}
        if not self.refs.keeps(order.target):
            rescue(workspace, self.executor)
        snapshot = flush(workspace, order.message, metadata, self.executor, tip, earlier).snapshot
        self.refs.advance(order.branch, tip, make_snapshot_info(snapshot, tip), mark)
        return replace(result, snapshot_id=str(snapshot.id))

    def _make_conflict_error(self, order: ApplyRequest, result: MergeResult) -> MergeResult:
        if not order.dry_run:
            raise MergeConflictError(result)
        return result

    def _make_metadata(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.commit_metadata, OWN_KEY: dict(record)}


def _check_strategy(strategy: object) -> None:
    if strategy not in _STRATEGIES and get_append_rules(strategy) is None:
        expected = f"{', '.join(_STRATEGIES)}, or an AppendSolver"
        raise ValueError(f"unknown strategy {strategy!r}; expected one of {expected}")


def _have_path_collision(ours: State, since: Touched, theirs: State, touched: Touched) -> bool:
    """Return True if both sides created or moved a node to the same path."""
    here = {ours.path(id) for id in since.changed}
    return bool({path for id in touched.changed if (path := theirs.path(id))} & here)


def with_merges_of(tip: SnapshotInfo, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for a squashed snapshot, including the merge records of the snapshots that it
    replaces.
    """
    kept = {
        key: list(map(str, ids)) for key in (MERGED, SQUASHED) if (ids := get_recorded_ids(tip.metadata, key))
    }
    if not kept:
        return dict(metadata)
    own = metadata.get(OWN_KEY)
    return {**metadata, OWN_KEY: {**kept, **(own if isinstance(own, dict) else {})}}


def combine_logs(id: SnapshotId, before: State, after: State, touched: Touched) -> TransactionLog:
    """Combine the transaction logs of several commits into one log of their net changes, for a squash."""
    changes = find_changes(before, after, touched)
    changes.moved = {
        new: old
        for node in touched.nodes
        if (new := after.path(node)) and (old := before.path(node)) and new != old
    }
    return make_log(Workspace(before.snapshot, before.workspace.assets, changes), id)
