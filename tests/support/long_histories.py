"""Repositories with many commits and branches, written in one step."""

from __future__ import annotations

from dataclasses import replace

import zarr

from icefloe import Repository, Storage, in_memory_storage
from icefloe._internal.ids import SnapshotId
from icefloe.core.refs.v2 import RefStoreV2
from icefloe.format.files import SNAPSHOTS, TRANSACTIONS, write_snapshot, write_transaction_log
from icefloe.format.repo_info import SnapshotInfo, SnapshotInfos
from icefloe.format.spec import V2
from icefloe.ops import UpdateType


def write_history(commits: int, branches: int = 0, storage: Storage | None = None) -> Repository:
    """Create a repository whose branch main has many commits, with one diverging commit per other branch.

    All commits have the same content: an array `a` with four chunks. The repo info file is written once.
    """
    repo = Repository.create(in_memory_storage() if storage is None else storage)
    with repo.transaction("main", message="first") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[:] = 1
    refs, assets = repo._refs, repo._assets
    assert isinstance(refs, RefStoreV2)
    info = refs.load()
    line = [info.branches["main"]]
    snapshot, log = assets.snapshot(line[0]), assets.transaction_log(line[0])
    infos, tips = list(info.snapshots), {}

    def add(parent: SnapshotId, message: str) -> SnapshotId:
        id, time_us = SnapshotId.random(), snapshot.flushed_at_us + len(infos)
        infos.append(SnapshotInfo(id, parent, time_us, message))
        again = replace(snapshot, id=id, flushed_at_us=time_us, message=message)
        repo.storage.put(f"{SNAPSHOTS}/{id}", write_snapshot(again, V2, 1))
        repo.storage.put(f"{TRANSACTIONS}/{id}", write_transaction_log(replace(log, id=id), V2, 1))
        return id

    for number in range(commits):
        line.append(add(line[-1], f"commit {number}"))
    for number in range(branches):
        name = f"branch-{number:06}"
        tips[name] = add(line[number % len(line)], name)
    changed = replace(info, snapshots=SnapshotInfos.of(infos), branches={**tips, "main": line[-1]})
    refs.update(lambda _: (changed, UpdateType.NewCommit("main", str(line[-1]))))
    return Repository.open(repo.storage)
