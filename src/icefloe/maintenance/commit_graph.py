"""The commit graph of a repository, independent of the format version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import SnapshotId
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v1 import RefStoreV1
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import ErrorKind, RefNotFoundError
from icefloe.format.pruning import shorten_history
from icefloe.format.repo_changes import list_protected
from icefloe.format.repo_info import NO_PARENT, SnapshotInfo, SnapshotInfos


@dataclass(frozen=True, slots=True)
class History:
    """The commit graph of a repository: its snapshots, branches and tags."""

    snapshots: SnapshotInfos
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str] = frozenset()
    protected: frozenset[str] = frozenset()
    """The protected branches, which are never deleted."""

    @property
    def tips(self) -> set[SnapshotId]:
        """The tips of the commit graph: the snapshots that branches and tags point to."""
        return {*self.branches.values(), *self.tags.values()}

    def reached(self) -> NDArray[np.bool_]:
        """Return a mask of the snapshots that are reachable from branches and tags."""
        return self.snapshots.mark_ancestry(self.tips)

    def with_refs(self, branches: Iterable[str] | None, tags: Iterable[str] | None) -> History:
        """Return the commit graph limited to the given branches and tags; None selects all of them."""
        selected = replace(
            self,
            branches=_select("branch", self.branches, branches),
            tags=_select("tag", self.tags, tags),
        )
        return selected.keep(selected.reached())

    def newest(self, depth: int) -> History:
        """Return the commit graph limited to the first snapshot and the newest `depth` snapshots of each
        ref.
        """
        keep = self.snapshots.parents == NO_PARENT
        for tip in self.tips:
            keep[list(islice(self.snapshots.walk(tip), depth))] = True
        return self.keep(keep & self.reached())

    def keep(self, keep: NDArray[np.bool_]) -> History:
        """Return the commit graph limited to the given snapshots, each with its nearest kept ancestor as its
        parent.

        The tips of all branches and tags must be kept.
        """
        if keep.all():
            return self
        return replace(self, snapshots=shorten_history(self.snapshots, keep))


def load_history(refs: RefStore) -> History:
    """Load the commit graph of a repository: all snapshots reachable from its current branches and tags."""
    if isinstance(refs, RefStoreV2):
        info = refs.load()
        protected = frozenset(list_protected(info))
        found = History(info.snapshots, info.branches, info.tags, info.deleted_tags, protected)
        return found.keep(found.reached())
    refs.forget_history()
    branches, tags = refs.branches(), refs.tags()
    seen: dict[SnapshotId, SnapshotInfo] = {}
    for tip in {*branches.values(), *tags.values()}:
        for entry in refs.ancestry(tip):
            if entry.id in seen:
                break
            seen[entry.id] = entry
    files = refs.all_refs() if isinstance(refs, RefStoreV1) else ()
    deleted = frozenset(file.name for file in files if file.deleted)
    return History(SnapshotInfos.of(seen.values()), branches, tags, deleted)


def _select(
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
