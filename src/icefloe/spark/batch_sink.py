"""`df.write.format("icechunk")`: write rows into arrays. There is no shuffle, because a Spark sink cannot
request one.

Each task writes the blocks for which it has all cells. It returns its remaining rows, up to a limit, and the
commit writes them, because two tasks that write parts of the same chunk would overwrite each other.
`icefloe.spark.write` shuffles first and has no such limit.

The write is exactly-once. Each task attempt has its own fork of the session, so receipts never contain chunks
from failed or superseded attempts. Chunks become visible only with the commit, which checks the job's
idempotency key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icefloe.distributed import receipt
from icefloe.maintenance.statistics.collect import Collected, record_statistics
from icefloe.query.encode import make_invalid_rows_error
from icefloe.query.options import QueryOptions
from icefloe.query.write.blocks import BlockWriter, place_rows
from icefloe.query.write.job import Start, WriteJob, find_keys, make_duplicate_block_error
from icefloe.query.write.target import APPEND, INSERT, OVERWRITE, WriteTarget
from icefloe.session import ForkSession, Session
from icefloe.spark.task_frames import convert_schema
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FRAGMENT_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class WriteReceipt(WriterCommitMessage):
    """The receipt of a batch write task: the changes it made, and the rows that it leaves to the commit."""

    receipt: bytes | None
    starts: tuple[Start, ...]
    """The start indices of the blocks that the task wrote."""
    fragments: bytes
    statistics: tuple[Collected, ...] = ()


class IcechunkWriter(DataSourceArrowWriter):
    """The batch writer of the Spark data source `icechunk`. Spark pickles it and sends it to the tasks and to
    the process that commits.
    """

    def __init__(self, options: QueryOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._job = WriteJob.from_options(options, OVERWRITE if overwrite else APPEND)
        self.schema = convert_schema(schema)
        self._version = VERSION
        session = self._job.start(options.open(to_write=True))
        self.base = session.snapshot_id
        self._dims = self._job.dims(session, self.schema.names)
        # Inserted rows shift all later blocks, so only the commit can place rows.
        alone = overwrite or self._job.template.late == INSERT
        self._target = None if alone else self._find_target(session)
        self._fork: ForkSession | None = None if self._target is None else session.fork()

    def _find_target(self, session: Session) -> WriteTarget | None:
        """Return the write target for rows with existing coordinates, or None if arrays must be created
        first.
        """
        scratch = session.fork()
        nothing = find_keys([pa.RecordBatch.from_pylist([], self.schema)], self._dims)
        target = self._job.prepare(scratch, self.schema, self._dims, nothing)
        return None if scratch.has_uncommitted_changes else target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteReceipt:
        # docstring inherited
        with hide_tracebacks():
            check_version(self._version)
            if self._target is None or self._fork is None:
                return WriteReceipt(None, (), self._pack(list(iterator)))
            return self._write_blocks(iterator, self._target, self._fork)

    def _write_blocks(
        self, batches: Iterator[pa.RecordBatch], target: WriteTarget, fork: ForkSession
    ) -> WriteReceipt:
        writer = BlockWriter(fork, target)
        waiting: dict[int, list[pa.RecordBatch]] = {}
        strange: list[pa.RecordBatch] = []
        starts: list[Start] = []
        for batch in batches:
            blocks, _, known = target.place(batch)
            if not known.all():
                strange.append(batch.filter(pa.array(~known)))
            for block in np.unique(blocks[known]).tolist():
                parts = waiting.setdefault(block, [])
                parts.append(batch.filter(pa.array(known & (blocks == block))))
                region = target.region(block)
                size = int(np.prod([part.stop - part.start for part in region], dtype=np.int64))
                if sum(part.num_rows for part in parts) == size:
                    writer.write([place_rows(target, part) for part in waiting.pop(block)])
                    starts.append(tuple(part.start for part in region))
        left = [part for parts in waiting.values() for part in parts]
        done = receipt(fork) if starts else None
        return WriteReceipt(done, tuple(starts), self._pack(left + strange), writer.statistics.finish())

    def _pack(self, batches: list[pa.RecordBatch]) -> bytes:
        bound = self._options.count("maxFragmentBytes", FRAGMENT_BYTES)
        size = sum(batch.nbytes for batch in batches)
        if size > bound:
            raise make_invalid_rows_error(
                f"a task has {size} bytes of rows of incomplete chunks, more than maxFragmentBytes ({bound});"
                " use icefloe.spark.write(df, ...), which shuffles rows by chunk"
            )
        if not batches:
            return b""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return bytes(sink.getvalue())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # docstring inherited
        with hide_tracebacks():
            self.commit_from(self.base, [each for each in messages if isinstance(each, WriteReceipt)])

    def commit_from(self, base: str, written: list[WriteReceipt], key: tuple[str, int] | None = None) -> None:
        """Commit a batch write from the receipts of its tasks, unless the branch already contains the job's
        idempotency key.
        """
        request = self._job.request
        if key is not None:
            request = replace(request, app=key[0], version=str(key[1]))
        job = replace(self._job, request=request)
        with hide_tracebacks():
            repo = self._options.open()
            if request.find_commit(repo) is not None:
                return
            session = repo.writable_session_at(request.branch, base)
            claimed = _collect_claims(written)
            session._merge_receipts([message.receipt for message in written if message.receipt is not None])
            statistics = [found for message in written for found in message.statistics]
            rows = [batch for message in written for batch in _unpack(message.fragments)]
            if rows:
                statistics += job.write(session, pa.Table.from_batches(rows), self._dims, claimed)
            if session.has_uncommitted_changes:
                job.commit_once(repo, session, self._dims)
                record_statistics(session, statistics)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: garbage collection deletes the chunks of a failed batch write.

        Deleting chunks here would be unsafe, because Spark also calls this method if a commit succeeded but
        its response was lost.
        """


def _collect_claims(written: list[WriteReceipt]) -> set[Start]:
    starts = [start for message in written for start in message.starts]
    if len(set(starts)) < len(starts):
        raise make_duplicate_block_error(next(start for start in starts if starts.count(start) > 1))
    return set(starts)


def _unpack(fragments: bytes) -> list[pa.RecordBatch]:
    if not fragments:
        return []
    with pa.ipc.open_stream(fragments) as stream:
        return list(stream)
