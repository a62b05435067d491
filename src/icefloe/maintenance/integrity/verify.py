"""Verification: choose the snapshots to check, check them, and record those that are well.

The record is kept beside the repository, for incremental verifications.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe._internal.executor import Executor
from icefloe._internal.ids import SnapshotId, encode_column
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.format.id_columns import is_member, sorted_ids
from icefloe.maintenance.integrity.findings import Level, VerifyReport
from icefloe.maintenance.integrity.verify_chunks import check_chunks
from icefloe.maintenance.integrity.verify_graph import verify_graph
from icefloe.maintenance.reachable import NO_IDS, Ids, each_id, led_to, reachable_snapshots
from icefloe.storage.base import ObjectNotFoundError, Storage

if TYPE_CHECKING:
    import zarr

    from icefloe.session import Session

PLACE: Final = "icefloe/verified"


def verify(
    refs: RefStore,
    assets: AssetStore,
    executor: Executor,
    level: str,
    snapshots: Ids,
    open_session: Callable[[SnapshotId], Session],
    *,
    checksums: bool = False,
    incremental: bool = False,
    dry_run: bool = False,
) -> VerifyReport:
    """Check some snapshots; see `Repository.verify`."""
    depth = as_level(level)
    done = _load(assets.storage, depth) if incremental else NO_IDS
    wanted = snapshots[~is_member(snapshots, done)]
    skipped = len(snapshots) - len(wanted)
    if dry_run:
        return VerifyReport(depth, snapshots=len(wanted), skipped=skipped)
    settled, after = _around(refs, wanted, done) if len(done) else (NO_IDS, NO_IDS)
    deep = depth.includes(Level.CHUNKS)
    report = verify_graph(refs, assets, executor, depth, wanted, settled=settled, checksums=checksums or deep)
    report.counts["skipped"] = skipped
    if deep and report.ok:
        check_chunks(wanted, assets, partial(_open_array, open_session), executor, report, after)
    if incremental and report.ok:
        _record(assets.storage, depth, wanted, reachable_snapshots(refs))
    return report.report()


def as_level(level: str) -> Level:
    """Return a level by its name; ValueError for an unknown one."""
    if level not in list(Level):
        raise ValueError(f"no level {level!r} of verification; choose one of {', '.join(Level)}")
    return Level(level)


def snapshots_to_verify(refs: RefStore, tip: SnapshotId | None, *, history: bool) -> Ids:
    """Select a snapshot with its history or alone, or all that branches and tags lead to."""
    if tip is None:
        if not history:
            raise ValueError("history=False needs a branch, a tag or a snapshot_id")
        return led_to(refs, {*refs.branches().values(), *refs.tags().values()})
    return led_to(refs, {tip}) if history else _sorted({bytes(tip)})


def _around(refs: RefStore, wanted: Ids, done: Ids) -> tuple[Ids, Ids]:
    """Find the verified parents of some snapshots, and those of the snapshots that follow a known one.

    Only a snapshot whose log is its own follows another: one that inherited logs is checked in full.
    """
    ids, known = set(each_id(wanted)), set(each_id(done))
    before, after = set[bytes](), set[bytes]()
    for id in ids:
        try:
            info = refs.snapshot(SnapshotId(id))
        except IcechunkError:  # it is reported later
            continue
        parent = None if info.parent_id is None else bytes(info.parent_id)
        if parent in known:
            before.add(parent)
        if (parent in known or parent in ids) and not info.pruned_ancestor_tx_logs:
            after.add(id)
    return _sorted(before), _sorted(after)


def _sorted(ids: set[bytes]) -> Ids:
    return sorted_ids(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, SnapshotId.SIZE))


def _open_array(
    open_session: Callable[[SnapshotId], Session], snapshot: SnapshotId, path: str
) -> zarr.Array[Any]:
    import zarr

    with zarr.config.set({"array.rectilinear_chunks": True}):  # zarr asks for it where it is an experiment
        return zarr.open_array(open_session(snapshot).store, path=path.strip("/"), mode="r")


def _load(storage: Storage, level: Level) -> Ids:
    """The snapshots that were verified at a level or a deeper one. A record that cannot be read is none."""
    found = [_read(storage, each) for each in Level if each.includes(level)]
    return sorted_ids(np.concatenate([NO_IDS, *found]))


def _record(storage: Storage, level: Level, verified: Ids, there: Ids) -> None:
    """Remember snapshots as verified, and forget those that are not there any more."""
    known = sorted_ids(np.concatenate([_read(storage, level), verified]))
    ids = encode_column(known[is_member(known, sorted_ids(there))])
    storage.put(_path(level), json.dumps({"level": level.value, "snapshots": ids}).encode())
    storage.sync()


def _path(level: Level) -> str:
    return f"{PLACE}/{level.value}.json"


def _read(storage: Storage, level: Level) -> Ids:
    try:
        document = json.loads(storage.get(_path(level))[0])
        return _column(document["snapshots"])
    except (ObjectNotFoundError, ValueError, KeyError, TypeError, InvalidInputError):
        return NO_IDS


def _column(names: Iterable[str]) -> Ids:
    ids = b"".join(bytes(SnapshotId.parse(name)) for name in names)
    return sorted_ids(np.frombuffer(ids, np.uint8).reshape(-1, SnapshotId.SIZE))
