"""`df.write.format("icechunk")`: rows into arrays without a shuffle, which Spark does not give to a source.

A task writes the blocks of the chunk grid that it has every cell of. The other rows go home with its message,
up to a bound, and the commit writes them. `icefloe.spark.write` shuffles first and has no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icefloe.distributed import receipt
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.encode import bad_rows, keys_of, unique_keys
from icefloe.query.options import Options
from icefloe.query.write.blocks import BlockWriter, placed, write_sorted
from icefloe.query.write.idempotency import CommitOrder, check_branch, commit_once, committed, solver_of
from icefloe.query.write.target import APPEND, OVERWRITE, Target, Template, dims_for, prepare
from icefloe.session import ForkSession, Session
from icefloe.spark.dataframe import arrow_schema
from icefloe.spark.worker import VERSION, check_version, readable_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FRAGMENT_BYTES: Final = 64 * 2**20

Start = tuple[int, ...]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did, and the rows that it hands over."""

    receipt: bytes | None
    starts: tuple[Start, ...]
    """Where the blocks begin that it wrote."""
    fragments: bytes


class IcechunkWriter(DataSourceArrowWriter):
    """One write: pickled to the tasks, and to the process that commits."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._mode = OVERWRITE if overwrite else APPEND
        self._schema = arrow_schema(schema)
        self._order = commit_order(options)
        self._version = VERSION
        repo = options.open()
        check_branch(repo, self._order.branch)
        session = repo.writable_session(self._order.branch)
        self._base = session.snapshot_id
        self._template = template_of(options)
        self._dims = dims_for(session, options.group, self._schema.names, self._template)
        self._target = None if overwrite else self._known_target(session)
        self._fork: ForkSession | None = None if self._target is None else session.fork()

    def _known_target(self, session: Session) -> Target | None:
        """Where rows go that need nothing new; None where arrays have to be made, which the commit does."""
        scratch = session.fork()
        nothing = {dim: keys_of(pa.array([], self._schema.field(dim).type), dim) for dim in self._dims}
        target = prepare(
            scratch, self._options.group, self._schema, self._dims, nothing, self._template, APPEND
        )
        return None if scratch.has_uncommitted_changes else target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # docstring inherited
        with readable_errors():
            check_version(self._version)
            if self._target is None or self._fork is None:
                return Written(None, (), self._packed(list(iterator)))
            return self._write_blocks(iterator, self._target, self._fork)

    def _write_blocks(
        self, batches: Iterator[pa.RecordBatch], target: Target, fork: ForkSession
    ) -> WriterCommitMessage:
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
                    writer.write([placed(target, part) for part in waiting.pop(block)])
                    starts.append(tuple(part.start for part in region))
        left = [part for parts in waiting.values() for part in parts]
        return Written(receipt(fork) if starts else None, tuple(starts), self._packed(left + strange))

    def _packed(self, batches: list[pa.RecordBatch]) -> bytes:
        bound = self._options.count("maxFragmentBytes", FRAGMENT_BYTES)
        size = sum(batch.nbytes for batch in batches)
        if size > bound:
            raise bad_rows(
                f"a task has {size} bytes of rows for chunks that it has only a part of, and may hand over"
                f" {bound} (maxFragmentBytes); icefloe.spark.write(df, ...) shuffles rows by chunk first"
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
        with readable_errors():
            repo = self._options.open()
            if committed(repo, self._order) is not None:
                return
            written = [message for message in messages if isinstance(message, Written)]
            session = repo.writable_session_at(self._order.branch, self._base)
            claimed = _claims(written)
            session.merge_receipts([message.receipt for message in written if message.receipt is not None])
            rows = [batch for message in written for batch in _unpacked(message.fragments)]
            if rows:
                self._write_fragments(session, pa.Table.from_batches(rows), claimed)
            if session.has_uncommitted_changes:
                commit_once(repo, session, self._order)

    def _write_fragments(self, session: Session, rows: pa.Table, claimed: set[Start]) -> None:
        whole = rows.combine_chunks()
        keys = {dim: unique_keys([keys_of(whole.column(dim).combine_chunks(), dim)]) for dim in self._dims}
        group = self._options.group
        target = prepare(session, group, whole.schema, self._dims, keys, self._template, self._mode)
        ordered = pa.Table.from_batches([placed(target, batch) for batch in whole.to_batches()])
        ordered = ordered.sort_by(ordered.schema.names[0])
        for block in np.unique(ordered.column(0).to_numpy()).tolist():
            if tuple(part.start for part in target.region(block)) in claimed:
                raise _doubled(target.region(block))
        write_sorted(session, target, iter(ordered.to_batches()))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # Spark also calls this after a commit that landed and whose answer was lost: nothing is deleted here.
        # What no commit refers to is left to the garbage collector.
        """Leave everything as it is."""


def _claims(written: list[Written]) -> set[Start]:
    starts = [start for message in written for start in message.starts]
    if len(set(starts)) < len(starts):
        doubled = next(start for start in starts if starts.count(start) > 1)
        raise _doubled(tuple(slice(at, at + 1) for at in doubled))
    return set(starts)


def _doubled(region: tuple[slice, ...]) -> InvalidInputError:
    where = ", ".join(str(part.start) for part in region)
    return bad_rows(
        f"two tasks have rows for the same cells, in the block that begins at ({where}); a cell takes one"
        " value: drop duplicates"
    )


def _unpacked(fragments: bytes) -> list[pa.RecordBatch]:
    if not fragments:
        return []
    with pa.ipc.open_stream(fragments) as stream:
        return list(stream)


def commit_order(options: Options) -> CommitOrder:
    """What options say of the commit."""
    for name in ("tag", "snapshot", "versionAsOf", "timestampAsOf"):
        if options.text(name):
            raise InvalidInputError(
                f"{name} names a version, and a version never changes; write to a branch",
                kind=ErrorKind.INVALID_REF_TYPE,
            )
    return CommitOrder(
        options.text("branch") or "main",
        options.text("commitMessage") or "written by Spark",
        options.mapping("userMetadata"),
        options.text("txnAppId"),
        options.text("txnVersion"),
        solver_of(options.text("solver")),
    )


def template_of(options: Options) -> Template:
    """What options say of arrays to be made."""
    dims = options.names("dims")
    return Template(
        None if dims is None else tuple(dims),
        options.mapping("chunks"),
        _by_variable(options, "dtype"),
        _by_variable(options, "fillValue"),
        options.text("appendDim"),
    )


def _by_variable(options: Options, name: str) -> dict[str, Any]:
    given = options.text(name)
    if given is None:
        return {}
    return options.mapping(name) if given.lstrip().startswith("{") else {"": given}
