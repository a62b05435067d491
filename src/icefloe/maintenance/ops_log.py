"""Trim the ops log by removing old backups of the repo info file, which contain its older part.

Every change of a V2 repository keeps a copy of `repo` below `overwritten/`, whose total size therefore grows
with the square of the number of commits. A backup is deleted if all of its operations are older than a given
time. Both libraries then end the ops log at that point.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from icefloe._internal.report import Report
from icefloe.core.refs.v2 import RefStoreV2, get_backup_time_us
from icefloe.format.files import OVERWRITTEN, REPO_PATH
from icefloe.storage.base import Storage, StorageObjectInfo

_DELETE_BATCH: Final = 1_000
_BACKUP: Final = re.compile(rf"{OVERWRITTEN}/({REPO_PATH}\.\d{{14}}\.[0-9A-Z]{{20}})")


@dataclass(frozen=True, slots=True)
class OpsLogTrim(Report):
    """The result of trimming the ops log: the backups that were or would be deleted."""

    backups_deleted: int
    """The number of deleted backups of the repo info file."""
    bytes_deleted: int
    """The size of all deleted backups."""
    entries_left: int
    """The number of operations that the ops log still contains."""


def trim_ops_log(refs: RefStoreV2, storage: Storage, older_than_us: int, *, dry_run: bool) -> OpsLogTrim:
    """Trim the ops log: delete the backups that contain only operations older than a time."""
    # A backup that another writer creates now belongs to an operation that is not in the log yet.
    cutoff_us = min(older_than_us, time.time_ns() // 1000)
    listed = list(storage.list_prefix(f"{OVERWRITTEN}/"))
    times_us: dict[str, int] = {}
    remaining = 0
    for log in refs.ops_log_files():
        newest = log[0].backup_path if len(log) else None
        if newest is not None and log.newest_at_us < cutoff_us:
            break  # this file and all files that it links to will be deleted
        remaining += len(log)
        times_us |= {each.backup_path: each.updated_at_us for each in log if each.backup_path is not None}
    old = [info for info in listed if _is_old(info, times_us, cutoff_us)]
    if not dry_run:
        for start in range(0, len(old), _DELETE_BATCH):
            storage.delete([info.key for info in old[start : start + _DELETE_BATCH]])
    return OpsLogTrim(len(old), sum(info.size_bytes for info in old), remaining)


def _is_old(info: StorageObjectInfo, times_us: Mapping[str, int], cutoff_us: int) -> bool:
    """Return True if all operations in a file are older than a time. Files of other kinds are kept.

    A backup that no log entry refers to is at least as old as the creation time in its name.
    """
    backup = _BACKUP.fullmatch(info.key)
    if backup is None:
        return False
    name = backup.group(1)
    return times_us.get(name, get_backup_time_us(name)) < cutoff_us
