"""What happened in a repository, as users see it: snapshots, differences, the drawn graph."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from icefloe._internal.ids import SnapshotId
from icefloe._internal.times import from_microseconds, to_microseconds
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.format import repo_info, updates
from icefloe.format.transaction_log import TransactionLog
from icefloe.snapshots import Diff, SnapshotInfo
from icefloe.storage.base import ObjectNotFoundError
from icefloe.types import RepoAvailability, RepoStatus

if TYPE_CHECKING:
    from icefloe.ancestry_graph import AncestryGraph

_logger = logging.getLogger(__name__)


def public_snapshot(info: repo_info.SnapshotInfo) -> SnapshotInfo:
    """A snapshot as users see it."""
    parent_id = None if info.parent_id is None else str(info.parent_id)
    return SnapshotInfo(
        str(info.id), parent_id, from_microseconds(info.flushed_at_us), info.message, dict(info.metadata)
    )


def public_status(status: updates.RepoStatus) -> RepoStatus:
    """A stored status as users see it."""
    return RepoStatus(
        RepoAvailability(int(status.availability)),
        from_microseconds(status.set_at_us),
        status.limited_availability_reason,
    )


def stored_status(status: RepoStatus) -> updates.RepoStatus:
    """A status as it is stored."""
    return updates.RepoStatus(
        updates.RepoAvailability(int(status.availability)),
        to_microseconds(status.set_at),
        status.limited_availability_reason,
    )


def at_time(refs: RefStore, branch: str, at_us: int) -> SnapshotId:
    """The newest snapshot of a branch that is not newer than a time."""
    for info in refs.ancestry(refs.branch(branch)):
        if info.flushed_at_us <= at_us:
            return info.id
    raise SnapshotNotFoundError(
        f"branch {branch} has no snapshot as old as {from_microseconds(at_us).isoformat()}",
        kind=ErrorKind.NO_SNAPSHOT_AT_TIME,
    )


def diff_between(refs: RefStore, assets: AssetStore, start: SnapshotId, end: SnapshotId) -> Diff:
    """What changed from a snapshot to a later one of the same history."""
    from icefloe.core.commit.diff import logs_diff

    steps = []
    for info in refs.ancestry(end):
        if info.id == start:
            break
        steps.append(info)
    else:
        steps = []
    if not steps:
        raise InvalidInputError(
            f"the ancestry of snapshot {end} doesn't include {start}; a diff goes to a later snapshot",
            kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    logs = _logs(assets, steps)
    return logs_diff(logs, assets.snapshot(start), assets.snapshot(end))


def _logs(assets: AssetStore, newest_first: list[repo_info.SnapshotInfo]) -> Iterator[TransactionLog]:
    for info in reversed(newest_first):
        for pruned in info.pruned_ancestor_tx_logs:
            try:
                yield assets.transaction_log(pruned)
            except ObjectNotFoundError:
                _logger.warning(
                    "the transaction log of the expired snapshot %s is gone: its changes are left out", pruned
                )
        yield assets.transaction_log(info.id)


def pruned_logs(refs: RefStore, id: SnapshotId) -> tuple[SnapshotId, ...]:
    """The logs of expired snapshots that go before a snapshot's own; none if it is not listed."""
    try:
        return refs.snapshot(id).pruned_ancestor_tx_logs
    except SnapshotNotFoundError:
        return ()


def draw(refs: RefStore, tip: SnapshotId | None, *, plain: bool) -> AncestryGraph:
    """Draw the history of a snapshot, or of all branches, with everything that was merged into it."""
    from icefloe.ancestry_graph import AncestryGraph, GraphCommit
    from icefloe.core.merge.lineage import merged_tips

    branches, tags = refs.branches(), refs.tags()
    infos = _with_merged(refs, set(branches.values()) if tip is None else {tip})
    branch_names, tag_names = _names_by_target(branches), _names_by_target(tags)
    commits = [
        GraphCommit(
            str(info.id),
            None if info.parent_id is None else str(info.parent_id),
            info.flushed_at_us,
            info.message,
            branch_names.get(info.id, ()),
            tag_names.get(info.id, ()),
            tuple(map(str, merged_tips(info))),
        )
        for info in infos.values()
    ]
    return AncestryGraph.of(commits, plain=plain)


def _with_merged(refs: RefStore, tips: Iterable[SnapshotId]) -> dict[SnapshotId, repo_info.SnapshotInfo]:
    """Find all ancestors of snapshots, by parents and by merges."""
    from icefloe.core.merge.lineage import merged_tips

    found: dict[SnapshotId, repo_info.SnapshotInfo] = {}
    merged: list[SnapshotId] = []

    def add(tip: SnapshotId) -> None:
        for info in refs.ancestry(tip):
            if info.id in found:
                break
            found[info.id] = info
            merged.extend(merged_tips(info))

    for tip in tips:
        add(tip)
    while merged:
        with contextlib.suppress(SnapshotNotFoundError):  # what was merged may have expired since
            add(merged.pop())
    return found


def _names_by_target(refs: Mapping[str, SnapshotId]) -> dict[SnapshotId, tuple[str, ...]]:
    names: dict[SnapshotId, tuple[str, ...]] = {}
    for name in sorted(refs):
        names[refs[name]] = (*names.get(refs[name], ()), name)
    return names
