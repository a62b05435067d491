"""Objects compared with the checksums that were recorded of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from icefloe.concurrency import FanOut
from icefloe.errors import IcechunkError
from icefloe.format.id_columns import is_member
from icefloe.ids import encode_column
from icefloe.maintenance import catalogue
from icefloe.maintenance.catalogue import Catalogue, Rows, row_ids
from icefloe.maintenance.copies import Progress
from icefloe.maintenance.findings import Finding, Report
from icefloe.maintenance.listings import Listing
from icefloe.maintenance.reach import Ids
from icefloe.storage.base import Storage


def check_checksums(
    storage: Storage,
    listed: Mapping[str, Listing],
    used: Mapping[str, Ids],
    fan_out: FanOut,
    report: Report,
) -> None:
    """Read all objects in use whose checksum was recorded, and report those with other bytes."""
    try:
        known = catalogue.load(storage)
    except IcechunkError as damage:
        report.findings.append(Finding("unreadable", catalogue.PLACE, "the catalogue", str(damage)))
        return
    wanted = [_recorded(known, listed[folder], ids) for folder, ids in used.items()]
    for rows in catalogue.digests(storage, wanted, fan_out):
        report.checksums += len(rows)
        _compare(known, rows, report)


def record_checksums(
    storage: Storage,
    listed: Mapping[str, Listing],
    used: Mapping[str, Ids],
    fan_out: FanOut,
    progress: Progress | None,
) -> int:
    """Record the checksums of objects in use that have none yet; of how many."""
    known = catalogue.load(storage)
    fresh = []
    for folder, ids in used.items():
        there = listed[folder]
        _, recorded = known.find(folder, ids)
        fresh.append(there.take(is_member(there.ids, ids[~recorded])))
    rows = list(catalogue.digests(storage, fresh, fan_out, progress))
    if rows:
        catalogue.record(storage, known, np.concatenate(rows))
    return sum(map(len, rows))


def _recorded(known: Catalogue, listed: Listing, ids: Ids) -> Listing:
    there = ids[is_member(ids, listed.ids)]  # the others are missing, which is reported elsewhere
    _, recorded = known.find(listed.folder, there)
    return listed.take(is_member(listed.ids, there[recorded]))


def _compare(known: Catalogue, rows: Rows, report: Report) -> None:
    if not len(rows):
        return
    folder = catalogue.FOLDERS[int(rows["folder"][0])]  # a batch is of one folder
    expected, _ = known.find(folder, row_ids(rows))
    wrong = (expected["size"] != rows["size"]) | (expected["digest"] != rows["digest"])
    for name, was, size in zip(
        encode_column(row_ids(rows[wrong])),
        expected["size"][wrong].tolist(),
        rows["size"][wrong].tolist(),
        strict=True,
    ):
        what = f"{size} bytes where {was} were recorded" if was != size else "other bytes than were recorded"
        report.findings.append(Finding("checksum", f"{folder}/{name}", "the catalogue", what))
