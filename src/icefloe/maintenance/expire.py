"""Expiration: old snapshots leave the history; what they hold goes with the next garbage collection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.format.files import TRANSACTIONS
from icefloe.format.id_columns import sorted_ids
from icefloe.format.pruning import ancestors, pruned
from icefloe.format.repo_changes import Changed
from icefloe.format.repo_info import MAIN, NO_PARENT, RepoInfo, SnapshotInfo
from icefloe.maintenance.reachable import NO_IDS, Ids
from icefloe.ops import UpdateType


def expire(
    refs: RefStore,
    assets: AssetStore,
    older_than_us: int,
    *,
    delete_branches: bool = False,
    delete_tags: bool = False,
) -> Ids:
    """Take snapshots flushed before a time out of the history; their ids."""
    if not isinstance(refs, RefStoreV2):
        released = _expire_v1(refs, assets, older_than_us, delete_branches, delete_tags)
        return sorted_ids(np.frombuffer(b"".join(released), np.uint8).reshape(-1, SnapshotId.SIZE))
    gone = NO_IDS

    def change(info: RepoInfo) -> Changed:
        nonlocal gone
        changed, gone = expired(info, older_than_us, delete_branches, delete_tags)
        return changed, UpdateType.ExpirationRan()

    with assets.storage.making_room(refs.old_backups):
        refs.update(change)
    return gone


def expired(
    info: RepoInfo, older_than_us: int, delete_branches: bool, delete_tags: bool
) -> tuple[RepoInfo, Ids]:
    """A repo info without what was flushed before a time, and the snapshots that left it.

    First snapshots stay, the tip of main stays, and the tips of tags and branches unless those may go.
    A snapshot whose parent leaves is tied to the root of its history and inherits the logs of all between.
    """
    snapshots = info.snapshots
    parents = snapshots.parents.tolist()
    old = (snapshots.columns["flushed_at"] < older_than_us) & (snapshots.parents != NO_PARENT)
    keep = ~old
    tips = {name: snapshots.row(id) for name, id in info.branches.items()}
    marks = {name: snapshots.row(id) for name, id in info.tags.items()}
    stay = [tips.get(MAIN)]
    stay += [] if delete_branches else list(tips.values())
    stay += [] if delete_tags else list(marks.values())
    keep[[row for row in stay if row is not None]] = True
    orphans = np.flatnonzero(keep & (snapshots.parents != NO_PARENT) & ~keep[snapshots.parents]).tolist()
    lines = {row: ancestors(parents, row) for row in orphans}
    gone_branches = {
        n for n, row in tips.items() if delete_branches and n != MAIN and row is not None and old[row]
    }
    gone_tags = {n for n, row in marks.items() if delete_tags and row is not None and old[row]}
    changed = replace(
        info,
        snapshots=pruned(
            snapshots,
            keep,
            {row: line[-1] for row, line in lines.items()},
            {row: line[:-1] for row, line in lines.items()},
        ),
        branches={name: id for name, id in info.branches.items() if name not in gone_branches},
        tags={name: id for name, id in info.tags.items() if name not in gone_tags},
        deleted_tags=info.deleted_tags | gone_tags,
    )
    return changed, snapshots.ids[~keep]


def _expire_v1(
    refs: RefStore, assets: AssetStore, older_than_us: int, delete_branches: bool, delete_tags: bool
) -> set[SnapshotId]:
    """Per branch and tag: the oldest snapshot that stays is written again, with the root as its parent."""
    released: set[SnapshotId] = set()
    for lookup, may_go, drop in (
        (refs.tags(), delete_tags, refs.delete_tag),
        (refs.branches(), delete_branches, refs.delete_branch),
    ):
        for name in sorted(lookup):
            line = list(refs.ancestry(lookup[name]))
            released |= _shorten(assets, line, older_than_us)
            if may_go and line[0].flushed_at_us < older_than_us and name != MAIN:
                drop(name)
    return released


def _shorten(assets: AssetStore, line: list[SnapshotInfo], older_than_us: int) -> set[SnapshotId]:
    """The old snapshots of a line of history but its first; the last that stays is tied to that one.

    A tip stays while its ref does, yet counts among the old ones, as in the official library.
    """
    young = sum(info.flushed_at_us >= older_than_us for info in line)
    last = line[max(young, 1) - 1]
    if last.parent_id in (None, line[-1].id):
        return set()
    released = {info.id for info in line[young:-1]}
    with assets.storage.making_room(lambda: (f"{TRANSACTIONS}/{id}" for id in sorted(released - {last.id}))):
        assets.write_snapshot(replace(assets.snapshot(last.id), parent_id=line[-1].id))
    return released
