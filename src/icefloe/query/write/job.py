"""Write table rows into arrays in one commit. The query engine that provides the rows runs the tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.maintenance.statistics.collect import Collected
from icefloe.query.decode import Values
from icefloe.query.encode import make_invalid_rows_error, merge_keys, to_keys
from icefloe.query.options import QueryOptions
from icefloe.query.write.blocks import BLOCK, place_rows, write_sorted
from icefloe.query.write.idempotency import CommitRequest, check_branch
from icefloe.query.write.target import APPEND, OVERWRITE, Template, WriteTarget, find_dims, prepare
from icefloe.repository import Repository
from icefloe.session import Session

Start = tuple[int, ...]
"""The first index of a block along each dimension."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """A job that writes rows into arrays in one commit. It is small and contains no secrets, so it can be
    sent to tasks."""

    group: str
    mode: str
    template: Template
    request: CommitRequest

    def __post_init__(self) -> None:
        if self.mode not in (APPEND, OVERWRITE):
            raise InvalidInputError(
                f"mode must be append or overwrite, not {self.mode!r}", kind=ErrorKind.NOT_ALLOWED
            )

    @staticmethod
    def from_options(options: QueryOptions, mode: str) -> WriteJob:
        """Create a write job from the options of a Spark write."""
        request = CommitRequest.from_options(options)
        return WriteJob(options.group, mode, Template.from_options(options), request)

    def start(self, repo: Repository) -> Session:
        """Start a write job: open a writable session on the branch."""
        check_branch(repo, self.request.branch)
        return repo.writable_session(self.request.branch)

    def dims(self, session: Session, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the dimensions of the rows to write."""
        return find_dims(session, self.group, columns, self.template)

    def prepare(
        self, session: Session, schema: pa.Schema, dims: tuple[str, ...], keys: Mapping[str, Values]
    ) -> WriteTarget:
        """Prepare the target of a write job: create or extend the arrays for rows with the given coordinate
        keys.
        """
        return prepare(session, self.group, schema, dims, keys, self.template, self.mode)

    def commit_once(self, repo: Repository, session: Session, dims: tuple[str, ...]) -> str:
        """Commit the session of a write job, unless the branch already contains the job's idempotency key."""
        return self.request.commit_once(repo, session, self.template.append_dim or dims[0])

    def write(
        self, session: Session, rows: pa.Table, dims: tuple[str, ...], claimed: Collection[Start] = ()
    ) -> tuple[Collected, ...]:
        """Write rows into the arrays of the session, in this process.

        Raise an error if a row is in a block that another task has `claimed`.
        """
        whole = rows.combine_chunks()
        target = self.prepare(session, whole.schema, dims, find_keys(whole.to_batches(), dims))
        ordered = pa.Table.from_batches([place_rows(target, batch) for batch in whole.to_batches()])
        ordered = ordered.sort_by(BLOCK)
        for block in np.unique(ordered.column(BLOCK).to_numpy()).tolist():
            start = tuple(part.start for part in target.region(block))
            if start in claimed:
                raise make_duplicate_block_error(start)
        return write_sorted(session, target, iter(ordered.to_batches()))


def find_keys(batches: Sequence[pa.RecordBatch], dims: Sequence[str]) -> dict[str, Values]:
    """Collect the distinct coordinate values of rows, per dimension."""
    return {dim: merge_keys([to_keys(batch.column(dim), dim) for batch in batches]) for dim in dims}


def make_duplicate_block_error(start: Start) -> InvalidInputError:
    """Create the error raised if two tasks of a write job have rows in the same block."""
    where = ", ".join(map(str, start))
    return make_invalid_rows_error(
        f"two tasks have rows for the same cells, in the block that begins at ({where}); drop duplicates"
    )
