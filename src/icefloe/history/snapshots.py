"""Snapshots, differences and ancestry graphs as public values."""

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


def to_public_snapshot(info: repo_info.SnapshotInfo) -> SnapshotInfo:
    """Convert a stored snapshot to its public form, `SnapshotInfo`."""
    parent_id = None if info.parent_id is None else str(info.parent_id)
    return SnapshotInfo(
        str(info.id), parent_id, from_microseconds(info.flushed_at_us), info.message, dict(info.metadata)
    )


def to_public_status(status: updates.RepoStatus) -> RepoStatus:
    """Convert a stored repository status to its public form, `RepoStatus`."""
    return RepoStatus(
        RepoAvailability(int(status.availability)),
        from_microseconds(status.set_at_us),
        status.limited_availability_reason,
    )


def to_stored_status(status: RepoStatus) -> updates.RepoStatus:
    """Convert a public repository status to its stored form."""
    return updates.RepoStatus(
        updates.RepoAvailability(int(status.availability)),
        to_microseconds(status.set_at),
        status.limited_availability_reason,
    )


def find_snapshot_at(refs: RefStore, branch: str, at_us: int) -> SnapshotId:
    """Find a branch's newest snapshot that is not later than a given time."""
    for info in refs.ancestry(refs.branch(branch)):
        if info.flushed_at_us <= at_us:
            return info.id
    raise SnapshotNotFoundError(
        f"branch {branch} has no snapshot at or before {from_microseconds(at_us).isoformat()}",
        kind=ErrorKind.NO_SNAPSHOT_AT_TIME,
    )


def diff_between(refs: RefStore, assets: AssetStore, start: SnapshotId, end: SnapshotId) -> Diff:
    """Return the changes between a snapshot and a later one of the same history."""
    from icefloe.core.commit.diff import diff_logs

    steps = []
    for info in refs.ancestry(end):
        if info.id == start:
            break
        steps.append(info)
    else:
        steps = []
    if not steps:
        raise InvalidInputError(
            f"the ancestry of snapshot {end} doesn't include {start}; the first snapshot must be an ancestor",
            kind=ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    logs = _logs(assets, steps)
    return diff_logs(logs, assets.snapshot(start), assets.snapshot(end))


def _logs(assets: AssetStore, newest_first: list[repo_info.SnapshotInfo]) -> Iterator[TransactionLog]:
    for info in reversed(newest_first):
        for pruned in info.pruned_ancestor_tx_logs:
            try:
                yield assets.transaction_log(pruned)
            except ObjectNotFoundError:
                _logger.warning(
                    "the transaction log of the expired snapshot %s is missing, so the diff does not"
                    " contain its changes",
                    pruned,
                )
        yield assets.transaction_log(info.id)


def read_pruned_logs(refs: RefStore, id: SnapshotId) -> tuple[SnapshotId, ...]:
    """Return the transaction logs that a snapshot inherited from expired snapshots."""
    try:
        return refs.snapshot(id).pruned_ancestor_tx_logs
    except SnapshotNotFoundError:
        return ()


def draw(refs: RefStore, tip: SnapshotId | None, *, plain: bool) -> AncestryGraph:
    """Create the ancestry graph of a snapshot or of all branches, including merged commits."""
    from icefloe.ancestry_graph import AncestryGraph, GraphCommit
    from icefloe.core.merge.lineage import get_merged_tips

    branches, tags = refs.branches(), refs.tags()
    infos = _list_ancestors_and_merged(refs, set(branches.values()) if tip is None else {tip})
    branch_names, tag_names = _index_names_by_target(branches), _index_names_by_target(tags)
    commits = [
        GraphCommit(
            str(info.id),
            None if info.parent_id is None else str(info.parent_id),
            info.flushed_at_us,
            info.message,
            branch_names.get(info.id, ()),
            tag_names.get(info.id, ()),
            tuple(map(str, get_merged_tips(info))),
        )
        for info in infos.values()
    ]
    return AncestryGraph.of(commits, plain=plain)


def _list_ancestors_and_merged(
    refs: RefStore, tips: Iterable[SnapshotId]
) -> dict[SnapshotId, repo_info.SnapshotInfo]:
    """Return all ancestors of the given snapshots, following both parents and merges."""
    from icefloe.core.merge.lineage import get_merged_tips

    found: dict[SnapshotId, repo_info.SnapshotInfo] = {}
    merged: list[SnapshotId] = []
    ancestry = refs.ancestries()

    def add(tip: SnapshotId) -> None:
        for info in ancestry(tip):
            if info.id in found:
                break
            found[info.id] = info
            merged.extend(get_merged_tips(info))

    for tip in tips:
        add(tip)
    while merged:
        with contextlib.suppress(SnapshotNotFoundError):  # a merged snapshot may have expired
            add(merged.pop())
    return found


def _index_names_by_target(refs: Mapping[str, SnapshotId]) -> dict[SnapshotId, tuple[str, ...]]:
    names: dict[SnapshotId, list[str]] = {}
    for name in sorted(refs):
        names.setdefault(refs[name], []).append(name)
    return {id: tuple(mine) for id, mine in names.items()}
