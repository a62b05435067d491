"""Find the snapshots, manifests and chunks that are reachable from branches and tags, as sorted id
columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.core.refs.base import RefStore
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.errors import IcechunkError
from icefloe.format.files import MANIFESTS, SNAPSHOTS, read_manifest, read_snapshot
from icefloe.format.id_columns import is_member, sort_ids, to_id_bytes, view_id_keys
from icefloe.format.pruning import get_inherited_logs
from icefloe.format.repo_info import RepoInfo
from icefloe.maintenance.listings import NO_IDS, OBJECT_ID, Ids, iterate_ids, to_column
from icefloe.storage.base import ObjectNotFoundError, Storage

_AT_LEAST: Final = 4_000_000


class DistinctItems:
    """A growing set of reachable items. Its memory use is proportional to the number of distinct items."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        # The buffer grows and is sorted in place, because concatenating parts would need twice the memory.
        self._buffer = bytearray()
        self._settled = 0
        """Number of items at the beginning of the buffer that are sorted and distinct."""

    def add(self, items: NDArray[Any]) -> None:
        """Add items to the set. Duplicates are removed whenever the buffer has doubled in size."""
        self._buffer += items.tobytes()
        waiting = len(self._buffer) // self._dtype.itemsize - self._settled
        if waiting > max(_AT_LEAST, self._settled):
            self._settle()

    def _settle(self) -> None:
        items = np.frombuffer(self._buffer, self._dtype)
        items.sort()
        first = np.ones(len(items), np.bool_)
        first[1:] = items[1:] != items[:-1]
        self._settled = int(first.sum())
        if self._settled < len(items):
            items[: self._settled] = items[first]
            del items  # a buffer cannot shrink while an array refers to it
            del self._buffer[self._settled * self._dtype.itemsize :]

    def result(self) -> NDArray[Any]:
        """Return the distinct items, sorted. Do not add items afterwards."""
        self._settle()
        return np.frombuffer(self._buffer, self._dtype)


def mark_reachable(info: RepoInfo) -> NDArray[np.bool_]:
    """Return a mask of the snapshots in a repo info that are reachable from branches and tags."""
    return info.snapshots.mark_ancestry({*info.branches.values(), *info.tags.values()})


def list_reachable_snapshots(refs: RefStore) -> Ids:
    """Return the ids of all snapshots that are reachable from branches and tags."""
    if isinstance(refs, RefStoreV2):
        info = refs.load()
        return info.snapshots.ids[mark_reachable(info)]
    refs.forget_history()
    seen: set[SnapshotId] = set()
    for id in {*refs.branches().values(), *refs.tags().values()}:
        for entry in refs.ancestry(id):
            if entry.id in seen:
                break
            seen.add(entry.id)
    return to_column(seen)


def list_readable_history(refs: RefStore, tips: Iterable[SnapshotId]) -> Ids:
    """Return the ids of the given snapshots and their readable ancestors. A history ends at an unreadable
    snapshot.
    """
    refs.forget_history()
    seen: set[SnapshotId] = set()
    for tip in tips:
        at: SnapshotId | None = tip
        while at is not None and at not in seen:
            seen.add(at)
            try:
                at = refs.snapshot(at).parent_id
            except IcechunkError:
                break
    return to_column(seen)


def list_logs_used(refs: RefStore, snapshots: Ids) -> Ids:
    """Return the ids of the transaction logs that snapshots use, including inherited logs of expired
    snapshots.
    """
    if not isinstance(refs, RefStoreV2):
        return snapshots
    infos = refs.load().snapshots
    rows = np.flatnonzero(is_member(infos.ids, snapshots))
    return sort_ids(np.concatenate([snapshots, get_inherited_logs(infos, rows)]))


def list_manifests_used(
    storage: Storage, snapshots: Ids, executor: Executor, *, may_miss: bool = False
) -> Ids:
    """Return the ids of the manifests that snapshots use. With `may_miss`, skip missing snapshots."""
    task = Task(partial(read_manifest_ids, storage, may_miss), "snapshots")
    return _find_distinct(executor.map(task, iterate_ids(snapshots)))


def list_chunks_used(storage: Storage, manifests: Ids, executor: Executor, *, may_miss: bool = False) -> Ids:
    """Return the ids of the chunk objects that manifests refer to. With `may_miss`, skip missing
    manifests.
    """
    task = Task(partial(_read_chunk_ids, storage, may_miss), "manifests")
    return _find_distinct(executor.map(task, iterate_ids(manifests)))


def _find_distinct(parts: Iterable[Ids]) -> Ids:
    found = DistinctItems(f"S{OBJECT_ID}")
    for part in parts:
        found.add(view_id_keys(part))
    return to_id_bytes(found.result())


def read_manifest_ids(storage: Storage, may_miss: bool, snapshot: bytes) -> Ids:
    """Read the ids of the manifests that one snapshot uses."""
    id = SnapshotId(snapshot)
    data = _read(storage, f"{SNAPSHOTS}/{id}", may_miss)
    return NO_IDS if data is None else read_snapshot(data, id).manifest_files.ids


def _read_chunk_ids(storage: Storage, may_miss: bool, manifest: bytes) -> Ids:
    id = ManifestId(manifest)
    data = _read(storage, f"{MANIFESTS}/{id}", may_miss)
    return NO_IDS if data is None else read_manifest(data, id).chunk_ids()


def _read(storage: Storage, path: str, may_miss: bool) -> bytes | None:
    try:
        return storage.get(path)[0]
    except ObjectNotFoundError:
        if may_miss:
            return None
        raise
