"""How many chunks one commit may change: as many as a transaction log can name that others can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from icefloe.core.changeset import ChangeSet
from icefloe.encoding.flatbuffers.limits import MAX_PAYLOAD_BYTES
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.transaction_log import TransactionLog, UpdatedChunks

MAX_LOG_TABLES: Final = 50_000_000
"""The official library refuses to read a log with more tables. Each changed chunk is one, and each array."""

_CHUNK_BYTES: Final = 16
_COORDINATE_BYTES: Final = 4

Counts: TypeAlias = Sequence[tuple[int, int]]
"""By array: how many chunks change, and the number of dimensions."""


def check_changed_chunks(counts: Counts, hint: str = "commit it in several parts") -> None:
    """Refuse a commit that changes more chunks than its transaction log may name.

    Parameters
    ----------
    counts
        By array: how many chunks change, and the number of dimensions.
    hint
        What the user can do.
    """
    if _fits(counts):
        return
    total = sum(count for count, _ in counts)
    raise SessionStateError(
        f"one commit would change {total:,} chunks, and the official library cannot read the transaction log "
        f"of so many (at most {MAX_LOG_TABLES:,}); {hint}",
        kind=ErrorKind.COMMIT_NOT_ALLOWED,
    )


def check_changes(changes: ChangeSet, earlier: TransactionLog | None = None) -> None:
    """Refuse changes that one commit cannot hold, before anything is written; see `check_changed_chunks`.

    Chunks of an `earlier` log, which is amended, count too.
    """
    before = [] if earlier is None else _counts_of(earlier.updated_chunks)
    if _fits([*before, *((delta.most(), delta.rank) for delta in changes.chunks.values())]):
        return
    # Some may have been counted twice.
    lists = [(node, delta.coords()) for node, delta in changes.chunks.items()]
    if earlier is not None:
        lists += list(earlier.updated_chunks)
    check_changed_chunks(_counts_of(UpdatedChunks.of_lists(lists)))


def check_log(log: TransactionLog) -> None:
    """Refuse a log that others cannot read."""
    check_changed_chunks(_counts_of(log.updated_chunks))


def _fits(counts: Iterable[tuple[int, int]]) -> bool:
    tables = size_bytes = 0
    for count, rank in counts:
        tables += count + 1
        size_bytes += count * (_CHUNK_BYTES + _COORDINATE_BYTES * rank)
    return tables < MAX_LOG_TABLES and size_bytes < MAX_PAYLOAD_BYTES


def _counts_of(chunks: UpdatedChunks) -> list[tuple[int, int]]:
    return list(zip(chunks.counts.tolist(), chunks.ranks.tolist(), strict=True))
