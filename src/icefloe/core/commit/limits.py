"""Limits on the number of chunks that a commit may change, chosen so that all supported readers can read its
transaction log.

Official releases count the bytes that they visit while verifying a transaction log. Releases up to 2.1 reject
a log above 2 GiB, and all releases reject a log with more than 50 million tables. A changed chunk is one
table and counts as 30 bytes plus 4 bytes per dimension: 8 for its offset, 6 for the position and length of
its vtable, 6 for the vtable, 2 for its only slot, 4 for the offset of the coordinates and 4 for their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from icefloe._internal.ids import NodeId
from icefloe.core.changeset import ChangeSet
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.chunk_regions import ChunkRegions
from icefloe.format.coordinates import Coords
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks

MAX_CHANGED_CHUNKS: Final = 40_000_000
"""The maximum number of changed chunks for arrays of any rank. A reader needs about 1.5 GB of memory for such
a log.
"""

_MAX_VISITED_BYTES: Final = 1 << 31
_CHUNK_BYTES: Final = 30
_COORDINATE_BYTES: Final = 4
_ARRAY_BYTES: Final = 64

Counts: TypeAlias = Sequence[tuple[int, int]]
"""The number of changed chunks and the number of dimensions, by array."""


def compute_limit(rank: int) -> int:
    """Return the maximum number of chunks that one commit may change in an array with the given number of
    dimensions.
    """
    visited = (_MAX_VISITED_BYTES - _ARRAY_BYTES) // (_CHUNK_BYTES + _COORDINATE_BYTES * rank)
    return min(MAX_CHANGED_CHUNKS, visited)


def count_commits(counts: Counts) -> int:
    """Return the number of commits that are needed to change the given number of chunks, at least one."""
    total = sum(count for count, _ in counts)
    visited = sum(count * (_CHUNK_BYTES + _COORDINATE_BYTES * rank) for count, rank in counts)
    room = _MAX_VISITED_BYTES - _ARRAY_BYTES * len(counts)
    return max(1, -(-total // MAX_CHANGED_CHUNKS), -(-visited // room))


def check_changed_chunks(counts: Counts, hint: str = "commit it in several parts") -> None:
    """Raise an error if a commit changes more chunks than a transaction log may contain.

    Parameters
    ----------
    counts
        The number of changed chunks and the number of dimensions, by array.
    hint
        The advice to the user.
    """
    if count_commits(counts) == 1:
        return
    total = sum(count for count, _ in counts)
    most = min(compute_limit(rank) for count, rank in counts if count)
    raise SessionStateError(
        f"the commit would change {total:,} chunks, but one commit may change at most {most:,}, so that "
        f"supported releases of the official library can read its transaction log; {hint}",
        kind=ErrorKind.COMMIT_NOT_ALLOWED,
    )


def check_changes(changes: ChangeSet, earlier: TransactionLog | None = None) -> None:
    """Raise an error, before anything is written, if a commit would change too many chunks.

    `earlier` is the transaction log of the commit to amend. Its chunks count as well.
    """
    before = [] if earlier is None else _counts_of(earlier.updated_chunks)
    if (
        count_commits([*before, *((delta.count_at_most(), delta.rank) for delta in changes.chunks.values())])
        == 1
    ):
        return
    # Some chunks may have been counted twice, so count exactly.
    lists: list[tuple[NodeId, Coords | ChunkRegions]] = [
        (node, delta.regions()) for node, delta in changes.chunks.items()
    ]
    if earlier is not None:
        lists += earlier.updated_chunks.lists()
    check_changed_chunks(_counts_of(UpdatedChunks.of_lists(lists)))


def check_log(log: TransactionLog) -> None:
    """Raise an error if the official library could not read a transaction log, because it contains too many
    chunks.
    """
    check_changed_chunks(_counts_of(log.updated_chunks))


def _counts_of(chunks: UpdatedChunks) -> list[tuple[int, int]]:
    return list(zip(chunks.counts.tolist(), chunks.ranks.tolist(), strict=True))
