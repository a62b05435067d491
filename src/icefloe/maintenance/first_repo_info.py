"""The repo info file for a repository that had none: refs, snapshots, and a log of how they came to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from icefloe._internal.ids import SnapshotId
from icefloe.format.repo_info import MAIN, RepoInfo, SnapshotInfo, SnapshotInfos
from icefloe.format.updates import RepoStatus, StoredUpdate, Update, Updates
from icefloe.ops import UpdateType

_MOMENT_US: Final = 1000
"""How long after a commit its branch or tag is taken to be made: nothing tells."""


def first_repo_info(
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tags: Mapping[str, SnapshotId | None],
    now_us: int,
    metadata: Mapping[str, Any],
    config: bytes | None,
) -> RepoInfo:
    """The repo info of a repository that is upgraded."""
    events = sorted(_events(snapshots, branches, tags, deleted_tags), key=lambda event: event[0])
    first = events[0][0] if events else now_us
    # Times ascend strictly and stay in the past: a writer refuses to log anything before the newest entry.
    times, last = [], 0
    for at_us, _ in events:
        last = max(last + 1, at_us)
        times.append(last)
    late = max(0, last - (now_us - 1))
    log = [Update(UpdateType.RepoMigrated(1, 2), now_us)]
    log += [
        Update(kind, max(at_us - late, 0)) for at_us, (_, kind) in zip(times[::-1], events[::-1], strict=True)
    ]
    return RepoInfo(
        snapshots=SnapshotInfos.of(snapshots.values()),
        branches=dict(sorted(branches.items())),
        tags=dict(sorted(tags.items())),
        deleted_tags=frozenset(deleted_tags),
        status=RepoStatus(set_at_us=min(first, now_us)),
        latest_updates=Updates.of(log),
        metadata=metadata,
        config=config,
    )


def _events(
    snapshots: Mapping[SnapshotId, SnapshotInfo],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
    deleted_tags: Mapping[str, SnapshotId | None],
) -> Iterator[tuple[int, StoredUpdate]]:
    """What must have happened, with the times that are known."""
    seen: set[SnapshotId] = set()
    for branch in sorted(branches, key=lambda name: (name != MAIN, name)):
        at: SnapshotId | None = branches[branch]
        if branch != MAIN and at is not None:
            yield snapshots[at].flushed_at_us + _MOMENT_US, UpdateType.BranchCreated(branch)
        while at is not None and at not in seen:
            seen.add(at)
            info = snapshots[at]
            first = info.parent_id is None
            yield (
                info.flushed_at_us,
                UpdateType.RepoInitialized() if first else UpdateType.NewCommit(branch, str(at)),
            )
            at = info.parent_id
    for tag, target in tags.items():
        yield snapshots[target].flushed_at_us + _MOMENT_US, UpdateType.TagCreated(tag)
    for tag, gone in deleted_tags.items():
        if gone is not None and gone in snapshots:
            yield snapshots[gone].flushed_at_us + _MOMENT_US, UpdateType.TagCreated(tag)
            yield snapshots[gone].flushed_at_us + 2 * _MOMENT_US, UpdateType.TagDeleted(tag, str(gone))
