"""The history of a repository as one value, whatever version of the format keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ErrorKind, RefNotFoundError
from icefloe.format.pruning import shortened
from icefloe.format.repo_info import NO_PARENT, SnapshotInfo, SnapshotInfos


@dataclass(frozen=True, slots=True)
class History:
    """Snapshots, and the refs that lead to them."""

    snapshots: SnapshotInfos
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str] = frozenset()

    def lines(self) -> dict[SnapshotId, list[int]]:
        """The rows of each tip and its ancestors, newest first."""
        return {tip: self.snapshots.ancestry(tip) for tip in {*self.branches.values(), *self.tags.values()}}

    def reached(self) -> NDArray[np.bool_]:
        """Which snapshots a branch or a tag leads to."""
        seen = np.zeros(len(self.snapshots), np.bool_)
        for rows in self.lines().values():
            seen[rows] = True
        return seen

    def of_refs(self, branches: Iterable[str] | None, tags: Iterable[str] | None) -> History:
        """With some branches and tags alone, and what they lead to; None stands for all of them."""
        chosen = replace(
            self,
            branches=_chosen("branch", self.branches, branches),
            tags=_chosen("tag", self.tags, tags),
        )
        return chosen.keeping(chosen.reached())

    def newest(self, depth: int) -> History:
        """With so many snapshots of each branch and tag, and the first one of all."""
        keep = self.snapshots.parents == NO_PARENT
        for rows in self.lines().values():
            keep[rows[:depth]] = True
        return self.keeping(keep & self.reached())

    def keeping(self, keep: NDArray[np.bool_]) -> History:
        """With some of the snapshots, tied together anew; those that refs name must be among them."""
        if keep.all():
            return self
        return replace(self, snapshots=shortened(self.snapshots, keep))


def history_of(refs: RefStore) -> History:
    """The history as it is now, with the snapshots that branches and tags lead to."""
    if isinstance(refs, RefStoreV2):
        info = refs.load()
        found = History(info.snapshots, info.branches, info.tags, info.deleted_tags)
        return found.keeping(found.reached())
    branches, tags = refs.branches(), refs.tags()
    seen: dict[SnapshotId, SnapshotInfo] = {}
    for tip in {*branches.values(), *tags.values()}:
        for entry in refs.ancestry(tip):
            if entry.id in seen:
                break
            seen[entry.id] = entry
    gone = refs.all_refs() if isinstance(refs, RefStoreV1) else ()
    deleted = frozenset(file.name for file in gone if file.deleted)
    return History(SnapshotInfos.of(seen.values()), branches, tags, deleted)


def _chosen(
    kind: str, known: Mapping[str, SnapshotId], names: Iterable[str] | None
) -> Mapping[str, SnapshotId]:
    if names is None:
        return known
    wanted = set(names)
    missing = sorted(wanted - known.keys())
    if missing:
        raise RefNotFoundError(
            f"ref not found: there is no {kind} `{missing[0]}`", kind=ErrorKind.REF_NOT_FOUND
        )
    return {name: id for name, id in known.items() if name in wanted}
