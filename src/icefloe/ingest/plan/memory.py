"""What a task holds beside its block: the chunks that are under way while the block is read or written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zarr

READ_COPIES = 3
"""A chunk as it is stored, decoded, and what the allocator keeps of the ones before."""
WRITE_COPIES = 3
"""A chunk cut out of its block, the room that a codec wants for it, and what comes out."""
_MOST_AT_ONCE = 16
"""Where they are small enough. Requests over 20 ms take 4.0 s for 200 chunks two at a time, 0.9 s so."""


def at_once(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """How many chunks may be under way: what takes about a quarter of the memory, but one at least."""
    return max(1, min(_MOST_AT_ONCE, memory_bytes // 4 // max(1, copies * unit_bytes)))


def under_way(unit_bytes: int, copies: int, memory_bytes: int) -> int:
    """The bytes that they take."""
    return at_once(unit_bytes, copies, memory_bytes) * copies * unit_bytes


def part_bytes(memory_bytes: int) -> int:
    """What of a file is read at once, unless its chunks are larger: a quarter of the memory, with copies."""
    return max(1, memory_bytes // 4 // READ_COPIES)


@contextmanager
def chunks_at_once(count: int) -> Iterator[None]:
    """Let zarr have no more chunks under way than this; for all of the process, which is a task's own."""
    with zarr.config.set({"async.concurrency": count}):
        yield
