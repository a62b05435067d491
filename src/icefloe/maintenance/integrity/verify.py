"""Which snapshots were verified, and how deep: kept beside the repository for the next verification."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import numpy as np

from icefloe._internal.ids import SnapshotId, encode_column
from icefloe.errors import InvalidInputError
from icefloe.format.id_columns import is_member, sorted_ids
from icefloe.maintenance.integrity.findings import Level
from icefloe.maintenance.reachable import NO_IDS, Ids
from icefloe.storage.base import ObjectNotFoundError, Storage

PLACE: Final = "icefloe/verified"


def load(storage: Storage, level: Level) -> Ids:
    """The snapshots that were verified at a level or a deeper one. A record that cannot be read is none."""
    found = [_read(storage, each) for each in Level if each.includes(level)]
    return sorted_ids(np.concatenate([NO_IDS, *found]))


def record(storage: Storage, level: Level, verified: Ids, there: Ids) -> None:
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
