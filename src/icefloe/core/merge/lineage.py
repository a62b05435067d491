"""Find all commits that a snapshot contains, even if its history was shortened.

The id of an expired snapshot remains among the inherited transaction logs, the id of a squashed snapshot in
the metadata of its replacement, and the id of a merged tip in the metadata of the merge. The id of the common
ancestor of two branches is therefore known even if it is no longer listed. Its content is lost after garbage
collection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from icefloe._internal.ids import SnapshotId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError, SnapshotNotFoundError
from icefloe.format.files import SNAPSHOTS
from icefloe.format.repo_info import SnapshotInfo
from icefloe.format.snapshot import Snapshot

OWN_KEY: Final = "icefloe"
"""The key for icefloe's own entries in snapshot metadata."""
MERGED: Final = "merged"
"""The entry that lists the tips that were merged into a snapshot."""
SQUASHED: Final = "squashed"
"""The entry that lists the snapshots that a squash replaced, oldest first."""


class SnapshotLineage:
    """The lineage of snapshots: all commits that they contain, including expired and merged ones."""

    def __init__(self, refs: RefStore, assets: AssetStore, *tips: SnapshotId) -> None:
        self._refs, self._assets = refs, assets
        self._listed: dict[SnapshotId, SnapshotInfo] = {}
        self._before: dict[SnapshotId, set[SnapshotId]] = defaultdict(set)
        self._accounted: set[SnapshotId] = set()
        """The unlisted snapshots for which it is known what they merged."""
        for tip in tips:
            self._add([tip])
            if tip not in self._listed:
                raise SnapshotNotFoundError(f"snapshot not found: {tip}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)

    def contains(self, tip: SnapshotId, snapshot: SnapshotId) -> bool:
        """Return True if a snapshot is in the lineage of a tip, or is the tip itself."""
        return snapshot in self._list_ancestors(tip)

    def base(self, one: SnapshotId, other: SnapshotId) -> SnapshotId:
        """Return the common ancestor of two snapshots: the newest snapshot in both lineages.

        It may have expired.
        """
        common = self._list_ancestors(one) & self._list_ancestors(other)
        older: set[SnapshotId] = set().union(*(self._before[id] for id in common))
        newest = common - older
        if not newest:
            raise make_expired_base_error(f"{one} and {other} have no snapshot in common")
        return max(newest, key=self._get_flush_time_us) if len(newest) > 1 else newest.pop()

    def gaps(self, base: SnapshotId, *tips: SnapshotId) -> set[SnapshotId]:
        """Return the gaps in a lineage: expired snapshots after a merge base that may have been merges
        themselves.
        """
        between = set().union(*map(self._list_ancestors, tips)) - self._list_ancestors(base)
        return between - self._listed.keys() - self._accounted

    def read(self, expired: Iterable[SnapshotId]) -> None:
        """Fill gaps in a lineage by reading the files of expired snapshots, which record the tips they
        merged.
        """
        for id in sorted(expired):
            if not self._before[id]:
                raise make_expired_base_error(f"the merged snapshot {id} and its ancestors have expired")
            metadata = self.readable(id).metadata
            self._before[id] |= {*get_recorded_ids(metadata, MERGED), *get_recorded_ids(metadata, SQUASHED)}
            self._add(get_recorded_ids(metadata, MERGED))
            self._accounted |= {id, *get_recorded_ids(metadata, SQUASHED)}

    def readable(self, id: SnapshotId) -> Snapshot:
        """Return a snapshot, even if it has expired; raise an error if its file is gone."""
        if id not in self._listed and not has_file(self._assets, id):
            raise make_expired_base_error(f"snapshot {id} has expired and was deleted")
        return self._assets.snapshot(id)

    def _add(self, tips: Iterable[SnapshotId]) -> None:
        waiting = list(tips)
        while waiting:
            at = waiting.pop()
            try:
                for info in self._refs.ancestry(at):
                    if info.id in self._listed:
                        break
                    self._record_merges(info)
                    waiting += get_merged_tips(info)
            except SnapshotNotFoundError:
                continue  # there is a gap in the history

    def _record_merges(self, info: SnapshotInfo) -> None:
        squashed = get_recorded_ids(info.metadata, SQUASHED)
        self._listed[info.id] = info
        self._accounted |= {*squashed}
        for line in (info.pruned_ancestor_tx_logs, squashed):
            known = [*([info.parent_id] if info.parent_id else ()), *line, info.id]
            for before, after in pairwise(known):
                self._before[after].add(before)
        self._before[info.id] |= set(get_merged_tips(info))

    def _list_ancestors(self, tip: SnapshotId) -> set[SnapshotId]:
        found: set[SnapshotId] = set()
        waiting = [tip]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self._before[at]
        return found

    def _get_flush_time_us(self, id: SnapshotId) -> int:
        info = self._listed.get(id)
        return self.readable(id).flushed_at_us if info is None else info.flushed_at_us


def has_file(assets: AssetStore, id: SnapshotId) -> bool:
    """Return True if the file of an expired snapshot still exists. The cache is bypassed, because it may
    contain deleted snapshots.
    """
    return assets.storage.exists(f"{SNAPSHOTS}/{id}")


def get_recorded_ids(metadata: Mapping[str, Any], key: str) -> list[SnapshotId]:
    """Return the snapshot ids that a merge or squash recorded in its metadata, under a given entry name."""
    own = metadata.get(OWN_KEY)
    ids = own.get(key) if isinstance(own, dict) else None
    try:
        return [SnapshotId.parse(id) for id in ids or ()]
    except (InvalidInputError, TypeError):  # another program wrote metadata under our key
        return []


def get_merged_tips(info: SnapshotInfo) -> list[SnapshotId]:
    """Return the ids of the tips that were merged into a snapshot, according to its metadata."""
    return get_recorded_ids(info.metadata, MERGED)


def is_squash(info: SnapshotInfo) -> bool:
    """Return True if a snapshot is a squash of several commits.

    Its transaction log contains only their net changes.
    """
    return bool(get_recorded_ids(info.metadata, SQUASHED))


def list_squashed(infos: Iterable[SnapshotInfo]) -> Iterator[SnapshotId]:
    """Yield the ids of the snapshots that a squash would replace, oldest first, including expired ones."""
    for info in infos:
        yield from info.pruned_ancestor_tx_logs
        yield from get_recorded_ids(info.metadata, SQUASHED)
        yield info.id


def make_expired_base_error(problem: str) -> SessionStateError:
    """Return the error for a merge whose common ancestor has expired and can no longer be read."""
    return SessionStateError(
        f"{problem}, so the changes of the two sides are unknown; repeat those of one side in a session on "
        "the other, or cherry-pick its later commits",
        kind=ErrorKind.REBASE_TX_LOG_PRUNED,
    )
