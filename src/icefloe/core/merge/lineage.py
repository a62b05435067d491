"""Which commits went into a snapshot, also where the history was shortened since.

An expired snapshot leaves its id among the inherited logs, a squashed one in the metadata of the snapshot
that replaced it, and a merged tip in the metadata of the merge. So the snapshot where two branches parted is
known by its id even if it is no longer listed. Its content is lost once garbage was collected.
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
"""Where the metadata of a snapshot keeps what this package knows of it."""
MERGED: Final = "merged"
"""Below it, the tips that were merged into a snapshot."""
SQUASHED: Final = "squashed"
"""Below it, the snapshots that a snapshot replaced, oldest first."""


class Lineage:
    """The commits that went into some snapshots."""

    def __init__(self, refs: RefStore, assets: AssetStore, *tips: SnapshotId) -> None:
        self._refs, self._assets = refs, assets
        self._listed: dict[SnapshotId, SnapshotInfo] = {}
        self._before: dict[SnapshotId, set[SnapshotId]] = defaultdict(set)
        self._accounted: set[SnapshotId] = set()
        """Snapshots that are not listed, but whose merges are known."""
        for tip in tips:
            self._add([tip])
            if tip not in self._listed:
                raise SnapshotNotFoundError(f"snapshot not found: {tip}", kind=ErrorKind.SNAPSHOT_NOT_FOUND)

    def contains(self, tip: SnapshotId, snapshot: SnapshotId) -> bool:
        """Tell whether a snapshot went into another, or is that snapshot."""
        return snapshot in self._ancestors(tip)

    def base(self, one: SnapshotId, other: SnapshotId) -> SnapshotId:
        """Find the newest snapshot that went into both. It may have expired."""
        common = self._ancestors(one) & self._ancestors(other)
        older: set[SnapshotId] = set().union(*(self._before[id] for id in common))
        newest = common - older
        if not newest:
            raise expired_base(f"{one} and {other} have no snapshot in common")
        return max(newest, key=self._flushed_at_us) if len(newest) > 1 else newest.pop()

    def gaps(self, base: SnapshotId, *tips: SnapshotId) -> set[SnapshotId]:
        """Find the expired snapshots after a base that may have been merges, for all that is known."""
        between = set().union(*map(self._ancestors, tips)) - self._ancestors(base)
        return between - self._listed.keys() - self._accounted

    def read(self, expired: Iterable[SnapshotId]) -> None:
        """Learn from their files what was merged into expired snapshots; refuse if one cannot be read."""
        for id in sorted(expired):
            if not self._before[id]:
                raise expired_base(f"the snapshot {id}, which was merged, has expired with those before it")
            metadata = self.readable(id).metadata
            self._before[id] |= {*recorded(metadata, MERGED), *recorded(metadata, SQUASHED)}
            self._add(recorded(metadata, MERGED))
            self._accounted |= {id, *recorded(metadata, SQUASHED)}

    def readable(self, id: SnapshotId) -> Snapshot:
        """Give a snapshot that may have expired; refuse if its file is gone."""
        if id not in self._listed and not has_file(self._assets, id):
            raise expired_base(f"the snapshot {id} has expired and its content is gone")
        return self._assets.snapshot(id)

    def _add(self, tips: Iterable[SnapshotId]) -> None:
        waiting = list(tips)
        while waiting:
            at = waiting.pop()
            try:
                for info in self._refs.ancestry(at):
                    if info.id in self._listed:
                        break
                    self._note(info)
                    waiting += merged_tips(info)
            except SnapshotNotFoundError:
                continue  # a gap

    def _note(self, info: SnapshotInfo) -> None:
        squashed = recorded(info.metadata, SQUASHED)
        self._listed[info.id] = info
        self._accounted |= {*squashed}
        for line in (info.pruned_ancestor_tx_logs, squashed):
            known = [*([info.parent_id] if info.parent_id else ()), *line, info.id]
            for before, after in pairwise(known):
                self._before[after].add(before)
        self._before[info.id] |= set(merged_tips(info))

    def _ancestors(self, tip: SnapshotId) -> set[SnapshotId]:
        found: set[SnapshotId] = set()
        waiting = [tip]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self._before[at]
        return found

    def _flushed_at_us(self, id: SnapshotId) -> int:
        info = self._listed.get(id)
        return self.readable(id).flushed_at_us if info is None else info.flushed_at_us


def has_file(assets: AssetStore, id: SnapshotId) -> bool:
    """Tell whether a snapshot that is not listed can still be read; a cache may have what was collected."""
    return assets.storage.exists(f"{SNAPSHOTS}/{id}")


def recorded(metadata: Mapping[str, Any], key: str) -> list[SnapshotId]:
    """Read the ids under a key of ours in the metadata of a snapshot."""
    own = metadata.get(OWN_KEY)
    ids = own.get(key) if isinstance(own, dict) else None
    try:
        return [SnapshotId.parse(id) for id in ids or ()]
    except (InvalidInputError, TypeError):  # somebody else's metadata under our name
        return []


def merged_tips(info: SnapshotInfo) -> list[SnapshotId]:
    """Read the tips that a snapshot's metadata says were merged into it."""
    return recorded(info.metadata, MERGED)


def is_squash(info: SnapshotInfo) -> bool:
    """Tell whether a snapshot replaced others. Its log names their net changes only."""
    return bool(recorded(info.metadata, SQUASHED))


def replaced_by_squash(infos: Iterable[SnapshotInfo]) -> Iterator[SnapshotId]:
    """Give all snapshots that a squash of some replaces, oldest first: expired and squashed ones too."""
    for info in infos:
        yield from info.pruned_ancestor_tx_logs
        yield from recorded(info.metadata, SQUASHED)
        yield info.id


def expired_base(problem: str) -> SessionStateError:
    """Make the error of a merge whose common ancestor is not known any more."""
    return SessionStateError(
        f"{problem}, so nobody can tell what either side changed since they parted; make the changes of one "
        "side again in a session on the other, or cherry-pick its later commits",
        kind=ErrorKind.REBASE_TX_LOG_PRUNED,
    )
