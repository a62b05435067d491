"""Verify snapshots, and record the intact ones.

The record is stored next to the repository's objects and used by incremental verifications.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe._internal.executor import Executor
from icefloe._internal.ids import SnapshotId, encode_column
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.errors import IcechunkError, InvalidInputError
from icefloe.format.id_columns import is_member, sort_ids
from icefloe.maintenance.integrity.findings import Level, VerifyReport
from icefloe.maintenance.integrity.verify_chunks import check_chunks
from icefloe.maintenance.integrity.verify_graph import verify_graph
from icefloe.maintenance.listings import NO_IDS, Ids, iterate_ids, to_column
from icefloe.maintenance.reachable import list_reachable_snapshots, list_readable_history
from icefloe.storage.base import ObjectNotFoundError, Storage

if TYPE_CHECKING:
    import zarr

    from icefloe.session import Session

FOLDER: Final = "icefloe/verified"


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
    """Run all checks of a verification level on the given snapshots; see `Repository.verify`."""
    depth = as_level(level)
    done = _load(assets.storage, depth) if incremental else NO_IDS
    wanted = snapshots[~is_member(snapshots, done)]
    skipped = len(snapshots) - len(wanted)
    if dry_run:
        return VerifyReport(depth, snapshots=len(wanted), skipped=skipped)
    settled, after = _find_around(refs, wanted, done) if len(done) else (NO_IDS, NO_IDS)
    deep = depth.includes(Level.CHUNKS)
    report = verify_graph(refs, assets, executor, depth, wanted, settled=settled, checksums=checksums or deep)
    report.counts["skipped"] = skipped
    if deep and report.ok:
        check_chunks(wanted, assets, partial(_open_array, open_session), executor, report, after)
    if incremental and report.ok:
        _record_verified(assets.storage, depth, wanted, list_reachable_snapshots(refs))
    return report.report()


def as_level(level: str) -> Level:
    """Return the verification level with a name. Raise ValueError if there is none."""
    if level not in list(Level):
        raise ValueError(f"unknown level {level!r}; choose one of {', '.join(Level)}")
    return Level(level)


def list_snapshots_to_verify(refs: RefStore, tip: SnapshotId | None, *, history: bool) -> Ids:
    """List the snapshots to verify: one snapshot, one with its ancestors, or all reachable ones."""
    if tip is None:
        if not history:
            raise ValueError("history=False requires a version; pass branch, tag or snapshot_id")
        return list_readable_history(refs, {*refs.branches().values(), *refs.tags().values()})
    return list_readable_history(refs, {tip}) if history else to_column({bytes(tip)})


def _find_around(refs: RefStore, wanted: Ids, done: Ids) -> tuple[Ids, Ids]:
    """Return the already verified parents of the given snapshots, and the snapshots that directly follow
    another one.

    For the latter, only the changes in the transaction log need to be checked. A snapshot that inherited logs
    of expired snapshots does not directly follow its parent.
    """
    ids, known = set(iterate_ids(wanted)), set(iterate_ids(done))
    before, after = set[bytes](), set[bytes]()
    for id in ids:
        try:
            info = refs.snapshot(SnapshotId(id))
        except IcechunkError:  # an unreadable snapshot is reported later
            continue
        parent = None if info.parent_id is None else bytes(info.parent_id)
        if parent in known:
            before.add(parent)
        if (parent in known or parent in ids) and not info.pruned_ancestor_tx_logs:
            after.add(id)
    return to_column(before), to_column(after)


def _open_array(
    open_session: Callable[[SnapshotId], Session], snapshot: SnapshotId, path: str
) -> zarr.Array[Any]:
    import zarr

    with zarr.config.set({"array.rectilinear_chunks": True}):  # experimental in some releases of zarr
        return zarr.open_array(open_session(snapshot).store, path=path.strip("/"), mode="r")


def _load(storage: Storage, level: Level) -> Ids:
    """Return the snapshots that were verified at this level or a higher one. Ignore unreadable records."""
    found = [_read(storage, each) for each in Level if each.includes(level)]
    return sort_ids(np.concatenate([NO_IDS, *found]))


def _record_verified(storage: Storage, level: Level, verified: Ids, there: Ids) -> None:
    """Record snapshots as verified, and forget snapshots that no longer exist."""
    known = sort_ids(np.concatenate([_read(storage, level), verified]))
    ids = encode_column(known[is_member(known, sort_ids(there))])
    storage.put(_make_path(level), json.dumps({"level": level.value, "snapshots": ids}).encode())
    storage.sync()


def _make_path(level: Level) -> str:
    return f"{FOLDER}/{level.value}.json"


def _read(storage: Storage, level: Level) -> Ids:
    try:
        document = json.loads(storage.get(_make_path(level))[0])
        return to_column(SnapshotId.parse(name) for name in document["snapshots"])
    except (ObjectNotFoundError, ValueError, KeyError, TypeError, InvalidInputError):
        return NO_IDS
