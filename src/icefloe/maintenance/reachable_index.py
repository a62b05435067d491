"""An index of reachable objects, which lets the next garbage collection read only new files.

Snapshots and manifests never change, so neither do their references. The file `icefloe/reachable` contains
the ids of the snapshots and manifests that were read, and of their chunks. It may be lost at any time. It is
only used if the repo info file contains its digest, which excludes damaged, foreign and outdated files, and
if all of its snapshots are still reachable. Otherwise a collection reads everything.

Official writers drop the digest whenever they change the repo info file. Repositories of version 1 have no
repo info file, and therefore no index.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from icefloe.errors import IcechunkError
from icefloe.format.id_columns import IdIndex, are_ids_ascending, is_member, sort_ids
from icefloe.format.repo_info import RepoInfo
from icefloe.maintenance.listings import NO_IDS, OBJECT_ID, Ids
from icefloe.storage.base import Storage

PATH: Final = "icefloe/reachable"
_MAGIC: Final = b"icefloe reachable objects 1\n"
_MARK: Final = b"icefloe reachable "
"""The prefix of a repo info file's `extra` field if the field contains the digest of an index."""
_COLUMNS: Final = 3
_HEAD: Final = 8
_MAX_IDS: Final = 20_000_000
"""The number of ids (240 MB) above which no index is written."""
_FEW_FILES: Final = 64
"""The number of files below which rereading them is cheaper than updating the index."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ReachableIndex:
    """An index of the snapshots, manifests and chunks that the last garbage collection found reachable."""

    snapshots: Ids
    manifests: Ids
    chunks: IdIndex

    def extend(self, snapshots: Ids, manifests: Ids, added: Ids) -> ReachableIndex | None:
        """Return the index extended by new files, or None if it would save the next collection only a few
        requests.

        Parameters
        ----------
        snapshots, manifests
            The sorted ids of all files, including those of this index.
        added
            The ids of chunks, of which some may be in this index.
        """
        files = len(self.snapshots) + len(self.manifests)
        more = len(snapshots) + len(manifests) - files
        fits = files + more + len(self.chunks) + len(added) <= _MAX_IDS
        if not fits or more <= max(_FEW_FILES, files // 20):
            return None
        chunks = sort_ids(np.concatenate([self.chunks.ids(), added]))
        return ReachableIndex(snapshots, manifests, IdIndex(chunks))

    def encode(self) -> bytes:
        """Encode the index as the content of its file."""
        counts = np.array([len(self.snapshots), len(self.manifests), len(self.chunks)], "<u8")
        columns = (self.snapshots, self.manifests, self.chunks.heads.astype("<u8"), self.chunks.tails)
        return b"".join((_MAGIC, counts.tobytes(), *(column.tobytes() for column in columns)))


NO_INDEX: Final = ReachableIndex(NO_IDS, NO_IDS, IdIndex(NO_IDS))


def read_index(storage: Storage, info: RepoInfo, reachable: Ids) -> ReachableIndex:
    """Read the index of reachable objects; empty if there is no valid index.

    Parameters
    ----------
    storage
        The storage of the repository.
    info
        The current repo info, which contains the digest of the index.
    reachable
        The sorted ids of the snapshots currently reachable from branches and tags.
    """
    mark = info.extra or b""
    digest, size = mark[len(_MARK) :][:32], int.from_bytes(mark[len(_MARK) + 32 :], "little")
    if not mark.startswith(_MARK) or size > len(_MAGIC) + 8 * _COLUMNS + _MAX_IDS * OBJECT_ID:
        return NO_INDEX
    try:
        data = storage.get_range(PATH, 0, size)
    except IcechunkError as error:
        _log.info("%s cannot be read, so all snapshots and manifests will be read: %s", PATH, error)
        return NO_INDEX
    if hashlib.sha256(data).digest() != digest:
        _log.info("ignored %s, which was not written by the last collection", PATH)
        return NO_INDEX
    index = _decode(data)
    return index if is_member(index.snapshots, reachable).all() else NO_INDEX


def _decode(data: bytes) -> ReachableIndex:
    start = len(_MAGIC) + 8 * _COLUMNS
    counts = np.frombuffer(data[len(_MAGIC) : start], "<u8").tolist()
    if not data.startswith(_MAGIC) or len(counts) != _COLUMNS or len(data) != start + OBJECT_ID * sum(counts):
        return NO_INDEX
    ids = np.frombuffer(data, np.uint8, offset=start)
    widths = np.array([OBJECT_ID, OBJECT_ID, _HEAD])
    snapshots, manifests, heads, tails = np.split(ids, np.cumsum(widths * counts))
    columns = snapshots.reshape(-1, OBJECT_ID), manifests.reshape(-1, OBJECT_ID)
    numbers = heads.view("<u8").astype(np.uint64, copy=False)
    if not all(map(are_ids_ascending, columns)) or (numbers[1:] < numbers[:-1]).any():
        return NO_INDEX
    return ReachableIndex(*columns, IdIndex.of_columns(numbers, tails.reshape(-1, OBJECT_ID - _HEAD)))


def write_index(storage: Storage, index: ReachableIndex) -> bytes | None:
    """Write an index of reachable objects. Return its mark for the repo info, or None if writing failed."""
    data = index.encode()
    try:
        storage.put(PATH, data)
    except IcechunkError as error:
        _log.info("%s cannot be written; the next collection will read everything: %s", PATH, error)
        return None
    return _MARK + hashlib.sha256(data).digest() + len(data).to_bytes(8, "little")


def add_mark(info: RepoInfo, mark: bytes | None) -> RepoInfo:
    """Record in the `extra` field of a repo info that an index exists, unless the field is already in use."""
    if mark is None or not (info.extra or _MARK).startswith(_MARK):
        return info
    return replace(info, extra=mark)
