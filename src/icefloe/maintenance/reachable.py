"""What snapshots lead to: from branches and tags down to chunk objects, ids as sorted columns."""

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
from icefloe.format.id_columns import id_keys, is_member, key_bytes, sorted_ids
from icefloe.format.pruning import inherited_logs
from icefloe.format.repo_info import NO_PARENT, RepoInfo
from icefloe.maintenance.listings import OBJECT_ID
from icefloe.storage.base import ObjectNotFoundError, Storage

_AT_LEAST: Final = 4_000_000

Ids = NDArray[np.uint8]
"""(n, 12), sorted, each once"""

NO_IDS: Final = np.zeros((0, OBJECT_ID), np.uint8)


class Gathered:
    """The distinct items of many columns; never holds many more than those."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        # A buffer that grows, and is sorted, in place: parts would be held twice while they are put together.
        self._buffer = bytearray()
        self._settled = 0
        """Items at the beginning of it that are sorted, each once."""

    def add(self, items: NDArray[Any]) -> None:
        """Some more."""
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
            del items  # the buffer cannot shrink while it is looked at
            del self._buffer[self._settled * self._dtype.itemsize :]

    def result(self) -> NDArray[Any]:
        """All, sorted, each once. Nothing is added thereafter."""
        self._settle()
        return np.frombuffer(self._buffer, self._dtype)


def each_id(ids: Ids) -> list[bytes]:
    """A column of ids as single ones."""
    data = ids.tobytes()
    return [data[start : start + OBJECT_ID] for start in range(0, len(data), OBJECT_ID)]


def reachable(info: RepoInfo) -> NDArray[np.bool_]:
    """Which snapshots of a repo info a branch or a tag leads to."""
    parents, seen = info.snapshots.parents.tolist(), [False] * len(info.snapshots)
    for id in {*info.branches.values(), *info.tags.values()}:
        row = info.snapshots.row(id)
        while row is not None and row != NO_PARENT and not seen[row]:
            seen[row] = True
            row = parents[row]
    return np.array(seen, np.bool_)


def reachable_snapshots(refs: RefStore) -> Ids:
    """The snapshots that branches and tags lead to."""
    if isinstance(refs, RefStoreV2):
        info = refs.load()
        return info.snapshots.ids[reachable(info)]
    seen: set[SnapshotId] = set()
    for id in {*refs.branches().values(), *refs.tags().values()}:
        for entry in refs.ancestry(id):
            if entry.id in seen:
                break
            seen.add(entry.id)
    return sorted_ids(np.frombuffer(b"".join(seen), np.uint8).reshape(-1, OBJECT_ID))


def led_to(refs: RefStore, tips: Iterable[SnapshotId]) -> Ids:
    """The snapshots that some lead to; one that cannot be read is the last of its line."""
    seen: set[SnapshotId] = set()
    for tip in tips:
        at: SnapshotId | None = tip
        while at is not None and at not in seen:
            seen.add(at)
            try:
                at = refs.snapshot(at).parent_id
            except IcechunkError:
                break
    return sorted_ids(np.frombuffer(b"".join(seen), np.uint8).reshape(-1, OBJECT_ID))


def logs_used(refs: RefStore, snapshots: Ids) -> Ids:
    """The transaction logs of snapshots, with those they inherited."""
    if not isinstance(refs, RefStoreV2):
        return snapshots
    infos = refs.load().snapshots
    rows = np.flatnonzero(is_member(infos.ids, snapshots))
    return sorted_ids(np.concatenate([snapshots, inherited_logs(infos, rows)]))


def manifests_used(storage: Storage, snapshots: Ids, executor: Executor, *, may_miss: bool = False) -> Ids:
    """The manifests that snapshots name, some of which may be missing."""
    return _gathered(
        executor.map(Task(partial(_manifests_of, storage, may_miss), "snapshots"), each_id(snapshots))
    )


def chunks_used(storage: Storage, manifests: Ids, executor: Executor, *, may_miss: bool = False) -> Ids:
    """The chunk objects that manifests name, some of which may be missing."""
    return _gathered(
        executor.map(Task(partial(_chunks_of, storage, may_miss), "manifests"), each_id(manifests))
    )


def _gathered(parts: Iterable[Ids]) -> Ids:
    found = Gathered(f"S{OBJECT_ID}")
    for part in parts:
        found.add(id_keys(part))
    return key_bytes(found.result())


def _manifests_of(storage: Storage, may_miss: bool, snapshot: bytes) -> Ids:
    id = SnapshotId(snapshot)
    data = _read(storage, f"{SNAPSHOTS}/{id}", may_miss)
    return NO_IDS if data is None else read_snapshot(data, id).manifest_files.ids


def _chunks_of(storage: Storage, may_miss: bool, manifest: bytes) -> Ids:
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
