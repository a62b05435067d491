"""Record object checksums, and verify objects against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from icefloe._internal.executor import Executor, Progress, ThreadExecutor
from icefloe._internal.ids import encode_column
from icefloe.core.refs.base import RefStore
from icefloe.errors import IcechunkError
from icefloe.format.files import CHUNKS, MANIFESTS, REPO_PATH, SNAPSHOTS, TRANSACTIONS, read_ops_log
from icefloe.format.id_columns import is_member
from icefloe.format.updates import Updates
from icefloe.maintenance.integrity import catalogue
from icefloe.maintenance.integrity.catalogue import Catalogue, Rows, get_row_ids
from icefloe.maintenance.integrity.findings import Finding, Findings
from icefloe.maintenance.listings import OBJECT_ID, Ids, ObjectListing, list_folder
from icefloe.maintenance.reachable import (
    list_chunks_used,
    list_logs_used,
    list_manifests_used,
    list_reachable_snapshots,
)
from icefloe.storage.base import ObjectNotFoundError, Storage

_DIFFERENT = "the bytes differ from the recorded checksum"


def check_checksums(
    storage: Storage,
    listed: Mapping[str, ObjectListing],
    used: Mapping[str, Ids],
    executor: Executor,
    report: Findings,
) -> None:
    """Read all used objects, and report those that differ from their recorded checksums."""
    try:
        known = catalogue.load(storage)
    except IcechunkError as damage:
        report.findings.append(Finding("unreadable", catalogue.FOLDER, "the catalogue", str(damage)))
        return
    wanted = [_find_recorded(known, listed[folder], ids, report) for folder, ids in used.items()]
    for rows in catalogue.compute_digests(storage, wanted, executor):
        for folder in catalogue.FOLDERS:
            _compare(known, folder, rows, report)
    _check_repo_info(storage, known, report)


def record_checksums(refs: RefStore, storage: Storage, executor: Executor, progress: Progress | None) -> int:
    """Record checksums of used objects that have none yet, and return how many were recorded."""
    storage.check_writable()
    snapshots = list_reachable_snapshots(refs)
    manifests = list_manifests_used(storage, snapshots, executor)
    listed = {folder: list_folder(storage, folder) for folder in catalogue.FOLDERS}
    used = {
        SNAPSHOTS: snapshots,
        TRANSACTIONS: list_logs_used(refs, snapshots),
        MANIFESTS: manifests,
        CHUNKS: list_chunks_used(storage, manifests, executor),
    }
    known = catalogue.load(storage)
    fresh = []
    for folder, ids in used.items():
        there = listed[folder]
        _, recorded = known.find(folder, ids)
        fresh.append(there.take(is_member(there.ids, ids[~recorded])))
    again = _with_new_parents(storage, known, listed[SNAPSHOTS], used[SNAPSHOTS], executor)
    rows = np.concatenate(
        [
            again,
            *catalogue.compute_digests(storage, fresh, executor, progress),
            _compute_repo_info_row(storage, known),
        ]
    )
    catalogue.record(storage, rows)
    return int((rows["kind"] < len(catalogue.FOLDERS)).sum())


def record_again(storage: Storage, folder: str, ids: Iterable[bytes]) -> None:
    """Replace the checksums of restored objects that already had one."""
    column = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, OBJECT_ID)
    if not len(column):
        return
    was, _ = catalogue.load(storage).find(folder, column)
    again = ObjectListing(folder, get_row_ids(was), was["size"].astype(np.int64), np.zeros(0, np.int64))
    rows = list(catalogue.compute_digests(storage, [again], ThreadExecutor(1)))
    if rows:
        catalogue.record(storage, np.concatenate(rows))


def _with_new_parents(
    storage: Storage, known: Catalogue, listed: ObjectListing, snapshots: Ids, executor: Executor
) -> Rows:
    """Return the checksums of snapshot files that an expiration rewrote with a different parent."""
    recorded, _ = known.find(catalogue.WITHOUT_PARENT, snapshots)
    again = listed.take(is_member(listed.ids, get_row_ids(recorded)))
    rows = np.concatenate([recorded[:0], *catalogue.compute_digests(storage, [again], executor)])
    return rows[is_member(get_row_ids(rows), known.with_new_parents(rows))]


def _find_recorded(known: Catalogue, listed: ObjectListing, ids: Ids, report: Findings) -> ObjectListing:
    """Return the existing used objects that have a recorded checksum, and report missing ones."""
    recorded = ids[known.find(listed.folder, ids)[1]]
    there = is_member(recorded, listed.ids)
    reported = {found.object for found in report.findings}
    for name in encode_column(recorded[~there]):
        path = f"{listed.folder}/{name}"
        if path not in reported:
            report.findings.append(Finding("missing", path, "the catalogue", "the file does not exist"))
    return listed.take(is_member(listed.ids, recorded[there]))


def _compare(known: Catalogue, folder: str, rows: Rows, report: Findings) -> None:
    objects = catalogue.select_kind(rows, folder)
    if not len(objects):
        return
    report.counts["checksums"] += len(objects)
    expected, _ = known.find(folder, get_row_ids(objects))
    wrong = (expected["size"] != objects["size"]) | (expected["digest"] != objects["digest"])
    if folder == SNAPSHOTS and wrong.any():
        wrong &= ~is_member(get_row_ids(objects), known.with_new_parents(rows))
    for name, was, size in zip(
        encode_column(get_row_ids(objects[wrong])),
        expected["size"][wrong].tolist(),
        objects["size"][wrong].tolist(),
        strict=True,
    ):
        what = f"{size} bytes, but {was} were recorded" if was != size else _DIFFERENT
        report.findings.append(Finding("checksum", f"{folder}/{name}", "the catalogue", what))


# The repo info file


def _compute_repo_info_row(storage: Storage, known: Catalogue) -> Rows:
    """Return the checksum row of the repo info file, unless its current state is already recorded."""
    found = _read_repo_info(storage)
    if found is None:
        return known.rows[:0]
    row = catalogue.make_repo_info_row(found[0], found[1].newest_at_us)
    return row[~known.find(catalogue.REPO_INFO, get_row_ids(row))[1]]


def _read_repo_info(storage: Storage) -> tuple[bytes, Updates, bool] | None:
    """Read the repo info file. Return its bytes, its ops log, and True if the log is complete."""
    try:
        data, _ = storage.get(REPO_PATH)
    except ObjectNotFoundError:
        return None
    log, before = read_ops_log(data)
    return (data, log, before is None) if len(log) else None


def _check_repo_info(storage: Storage, known: Catalogue, report: Findings) -> None:
    """Check that the repo info file matches its recorded checksum or has a newer entry in its ops log."""
    recorded = known.of(catalogue.REPO_INFO)
    try:
        found = _read_repo_info(storage) if len(recorded) else None
    except IcechunkError as damage:
        report.findings.append(Finding("unreadable", REPO_PATH, "the catalogue", str(damage)))
        return
    if found is None:
        return
    data, log, whole = found
    now = catalogue.make_repo_info_row(data, log.newest_at_us)
    expected, there = known.find(catalogue.REPO_INFO, get_row_ids(now))
    if there.all():
        report.counts["checksums"] += 1
        if (expected["size"] != now["size"]) | (expected["digest"] != now["digest"]):
            what = _DIFFERENT
            report.findings.append(Finding("checksum", REPO_PATH, "the catalogue", what))
    elif whole and not is_member(get_row_ids(recorded[-1:]), catalogue.to_time_ids(log.times_us)[::-1])[0]:
        what = "the ops log lacks the entry that was recorded last"
        report.findings.append(Finding("checksum", REPO_PATH, "the catalogue", what))
