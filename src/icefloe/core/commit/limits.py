"""The number of chunks that one commit may change, so that others can read its transaction log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from icefloe.core.changeset import ChangeSet
from icefloe.encoding.flatbuffers.limits import MAX_PAYLOAD_BYTES
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks

MAX_LOG_TABLES: Final = 50_000_000
"""The official library refuses logs with more tables. Each changed chunk and each array is one."""

_CHUNK_BYTES: Final = 16
_COORDINATE_BYTES: Final = 4

Counts: TypeAlias = Sequence[tuple[int, int]]
"""The number of changed chunks and the number of dimensions, by array."""


def check_changed_chunks(counts: Counts, hint: str = "commit it in several parts") -> None:
    """Raise an error if a commit changes more chunks than its transaction log may contain.

    Parameters
    ----------
    counts
        The number of changed chunks and the number of dimensions, by array.
    hint
        The advice to the user.
    """
    if _fits(counts):
        return
    total = sum(count for count, _ in counts)
    raise SessionStateError(
        f"the commit would change {total:,} chunks, but the official library can only read transaction logs "
        f"with up to {MAX_LOG_TABLES:,}; {hint}",
        kind=ErrorKind.COMMIT_NOT_ALLOWED,
    )


def check_changes(changes: ChangeSet, earlier: TransactionLog | None = None) -> None:
    """Raise an error, before anything is written, if a commit would change too many chunks.

    Chunks of an `earlier` log, which is amended, count as well.
    """
    before = [] if earlier is None else _counts_of(earlier.updated_chunks)
    if _fits([*before, *((delta.most(), delta.rank) for delta in changes.chunks.values())]):
        return
    # Some chunks may have been counted twice.
    lists = [(node, delta.coords()) for node, delta in changes.chunks.items()]
    if earlier is not None:
        lists += list(earlier.updated_chunks)
    check_changed_chunks(_counts_of(UpdatedChunks.of_lists(lists)))


def check_log(log: TransactionLog) -> None:
    """Raise an error if the official library cannot read a transaction log."""
    check_changed_chunks(_counts_of(log.updated_chunks))


def _fits(counts: Iterable[tuple[int, int]]) -> bool:
    tables = size_bytes = 0
    for count, rank in counts:
        tables += count + 1
        size_bytes += count * (_CHUNK_BYTES + _COORDINATE_BYTES * rank)
    return tables < MAX_LOG_TABLES and size_bytes < MAX_PAYLOAD_BYTES


def _counts_of(chunks: UpdatedChunks) -> list[tuple[int, int]]:
    return list(zip(chunks.counts.tolist(), chunks.ranks.tolist(), strict=True))
