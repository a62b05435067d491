"""Expire old snapshots: remove them from the history. Garbage collection later deletes their objects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.format.files import TRANSACTIONS
from icefloe.format.pruning import list_ancestors, prune_snapshots
from icefloe.format.repo_changes import Changed, list_protected
from icefloe.format.repo_info import MAIN, NO_PARENT, RepoInfo, SnapshotInfo
from icefloe.maintenance.listings import NO_IDS, Ids, to_column
from icefloe.ops import UpdateType


@dataclass(frozen=True, slots=True)
class Expiration:
    """Options for expiring snapshots; see `Repository.expire_snapshots`."""

    older_than_us: int
    delete_branches: bool = False
    """True to delete branches other than `main` whose tip expires."""
    delete_tags: bool = False
    """True to delete tags whose snapshot expires."""


def expire(refs: RefStore, assets: AssetStore, rules: Expiration) -> Ids:
    """Remove snapshots written before a given time from the history, and return their ids."""
    if not isinstance(refs, RefStoreV2):
        return to_column(_expire_v1(refs, assets, rules))
    removed = NO_IDS

    def change(info: RepoInfo) -> Changed:
        nonlocal removed
        changed, removed = drop_expired(info, rules)
        return changed, UpdateType.ExpirationRan()

    with assets.storage.make_room(refs.old_backups):
        refs.update(change)
    return removed


def drop_expired(info: RepoInfo, rules: Expiration) -> tuple[RepoInfo, Ids]:
    """Return a repo info without its expired snapshots, and the ids of these snapshots.

    First snapshots and the tip of `main` are kept. The tips of other branches and tags are kept unless those
    refs may be deleted. As in the official library, a snapshot whose parent expires gets the first snapshot
    of its history as its parent, and inherits the transaction logs of all snapshots in between.
    """
    snapshots = info.snapshots
    parents = snapshots.parents.tolist()
    old = (snapshots.columns["flushed_at"] < rules.older_than_us) & (snapshots.parents != NO_PARENT)
    keep = ~old
    branches, tags = (
        dict(zip(refs, snapshots.rows(list(refs.values())), strict=True))
        for refs in (info.branches, info.tags)
    )
    kept_branches = {MAIN, *list_protected(info)} if rules.delete_branches else branches.keys()
    tips = [row for name, row in branches.items() if name in kept_branches]
    tips += [] if rules.delete_tags else list(tags.values())
    keep[[row for row in tips if row is not None]] = True
    orphans = np.flatnonzero(keep & (snapshots.parents != NO_PARENT) & ~keep[snapshots.parents]).tolist()
    lines = {row: list_ancestors(parents, row) for row in orphans}
    gone_branches = {
        name for name, row in branches.items() if name not in kept_branches and row is not None and old[row]
    }
    gone_tags = {name for name, row in tags.items() if rules.delete_tags and row is not None and old[row]}
    changed = replace(
        info,
        snapshots=prune_snapshots(
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


def _expire_v1(refs: RefStore, assets: AssetStore, rules: Expiration) -> set[SnapshotId]:
    """Expire snapshots one branch or tag at a time, because version 1 snapshot files contain their parent's
    id.
    """
    refs.forget_history()
    removed: set[SnapshotId] = set()
    tips = {*refs.tags().values(), *refs.branches().values()}
    for lookup, may_delete, delete in (
        (refs.tags(), rules.delete_tags, refs.delete_tag),
        (refs.branches(), rules.delete_branches, refs.delete_branch),
    ):
        for name in sorted(lookup):
            line = list(refs.ancestry(lookup[name]))
            removed |= _shorten(assets, line, rules.older_than_us, tips)
            if may_delete and line[0].flushed_at_us < rules.older_than_us and name != MAIN:
                delete(name)
    return removed


def _shorten(
    assets: AssetStore, line: list[SnapshotInfo], older_than_us: int, tips: set[SnapshotId]
) -> set[SnapshotId]:
    """Shorten the history of a ref: make the first snapshot the parent of the oldest snapshot to keep.

    Returns the ids of the expired snapshots, except the first snapshot. As in the official library, an
    expired tip is included in the result, although it is kept while its branch or tag exists.
    """
    young = sum(info.flushed_at_us >= older_than_us for info in line)
    last = line[max(young, 1) - 1]
    if last.parent_id in (None, line[-1].id):
        return set()
    removed = {info.id for info in line[young:-1]}
    expendable = sorted(removed - {last.id} - tips)  # another branch or tag may point to an old snapshot
    with assets.storage.make_room(lambda: (f"{TRANSACTIONS}/{id}" for id in expendable)):
        assets.write_snapshot(replace(assets.snapshot(last.id), parent_id=line[-1].id))
    return removed
