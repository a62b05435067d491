"""Removal of old backups of the repo info file, in which the ops log continues.

Every change of a V2 repository keeps a copy of `repo` below `overwritten/`, so that the bytes there grow with
the square of the number of commits. A backup is deleted if all operations in it are older than a given time.
The ops log then ends at that point, in both libraries.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

from icefloe.core.refs.v2 import RefStoreV2, get_backup_time_us
from icefloe.format.files import OVERWRITTEN, REPO_PATH
from icefloe.ops import OpsLogTrim
from icefloe.storage.base import Storage, StorageObjectInfo

_DELETE_BATCH: Final = 1_000
_BACKUP: Final = re.compile(rf"{OVERWRITTEN}/({REPO_PATH}\.\d{{14}}\.[0-9A-Z]{{20}})")


def trim_ops_log(refs: RefStoreV2, storage: Storage, older_than_us: int, *, dry_run: bool) -> OpsLogTrim:
    """Delete the backups that contain only operations older than a time."""
    # A backup that another writer makes now belongs to an operation that is not in the log yet.
    cutoff_us = min(older_than_us, time.time_ns() // 1000)
    listed = list(storage.list_prefix(f"{OVERWRITTEN}/"))
    times_us: dict[str, int] = {}
    remaining = 0
    for log in refs.ops_log_files():
        newest = log[0].backup_path if len(log) else None
        if newest is not None and log.newest_at_us < cutoff_us:
            break  # this file and all files that it leads to will be deleted
        remaining += len(log)
        times_us |= {each.backup_path: each.updated_at_us for each in log if each.backup_path is not None}
    old = [info for info in listed if _is_old(info, times_us, cutoff_us)]
    if not dry_run:
        for start in range(0, len(old), _DELETE_BATCH):
            storage.delete([info.key for info in old[start : start + _DELETE_BATCH]])
    return OpsLogTrim(len(old), sum(info.size_bytes for info in old), remaining)


def _is_old(info: StorageObjectInfo, times_us: Mapping[str, int], cutoff_us: int) -> bool:
    """Return whether all operations in a file are older than a time. Files of other kinds are kept.

    A backup that no entry of the log names is older than the time in its name, at which it was made.
    """
    backup = _BACKUP.fullmatch(info.key)
    if backup is None:
        return False
    name = backup.group(1)
    return times_us.get(name, get_backup_time_us(name)) < cutoff_us
