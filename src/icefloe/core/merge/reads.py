"""Detect commits that changed data that a session has read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe.conflicts import Conflict, ConflictDetector, ConflictType
from icefloe.core.merge.conflicts import Found, TheirChanges
from icefloe.format.id_columns import is_member
from icefloe.format.snapshot import Nodes

ChunkMasks: TypeAlias = tuple[NDArray[np.bool_], ...]
"""For each dimension, a mask of the chunk indices that were read."""


class ReadDetector(ConflictDetector):
    """A conflict solver that rejects commits that changed data the session has read. It does not resolve any
    conflicts.

    Parameters
    ----------
    reads
        The chunks that were read, by array path; None if all chunks were read.
    """

    def __init__(self, reads: Mapping[str, ChunkMasks | None]) -> None:
        self._reads = dict(reads)

    def find_changed_reads(self, base: Nodes, theirs: TheirChanges) -> Iterator[Found]:
        """Find the arrays that the session has read and another commit has changed.

        Parameters
        ----------
        base
            The nodes of the snapshot that the session started from.
        theirs
            The changes of the commit.
        """
        log = theirs.log
        for path, masks in sorted(self._reads.items()):
            node = base.find(path)
            if node is None:
                continue
            chunks = [row for each in theirs.blocks(node.id) for row in _list_read(each, masks)]
            id = np.frombuffer(node.id, np.uint8)[None]
            changed = is_member(id, log.updated_arrays)[0] or is_member(id, log.deleted_arrays)[0]
            if chunks or changed:
                yield Found(Conflict(ConflictType.ReadDataChanged, path, chunks or None))


def _list_read(coords: NDArray[Any], masks: ChunkMasks | None) -> list[list[int]]:
    """List the chunks that the session has read."""
    if masks is None or coords.shape[1] != len(masks):
        return [list(map(int, row)) for row in coords.tolist()]
    kept = np.ones(len(coords), np.bool_)
    for axis, mask in enumerate(masks):
        kept &= np.isin(coords[:, axis], np.flatnonzero(mask))
    return [list(map(int, row)) for row in coords[kept].tolist()]
