"""`spark.readStream.format("icechunk")`: stream the rows, chunks or commits added to a branch.

For each query, Spark keeps one process with a reader that plans batches, and creates further readers in the
tasks. Readers therefore open repositories lazily, and the only state is the offset, which is a snapshot id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.options import QueryOptions
from icefloe.query.scan.plan import TableScan, scan_table
from icefloe.query.schema import find_tables
from icefloe.query.spark_types import to_ddl
from icefloe.query.stream.positions import (
    START,
    StreamSettings,
    advance,
    find_start,
    list_commits,
    make_lost_base_error,
    move_bookmark,
    open_position,
)
from icefloe.query.stream.records import (
    CHUNK_SCHEMA,
    COMMIT_SCHEMA,
    count_changed_bytes,
    list_changed_arrays,
    make_commit_batch,
    read_changed_chunks,
)
from icefloe.query.stream.rows import CHANGE, TableChanges, find_table
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.repository import Repository
    from icefloe.session import Session

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

_NEXT: Final = ".next"
"""The suffix of the bookmark branch that protects the end position of the batch in progress."""


def describe_stream(options: QueryOptions) -> str:
    """Validate the options of a Spark stream, and return its schema as DDL. Called when the user calls
    `load()`.
    """
    settings = StreamSettings.from_options(options)
    _check_limits(settings)
    repo = options.open()
    tip = repo.readonly_session(settings.branch)
    find_start(repo, settings)
    if settings.grain == "commits":
        return to_ddl(COMMIT_SCHEMA)
    if settings.grain == "chunks":
        return to_ddl(CHUNK_SCHEMA)
    table = find_tables(tip, options.group).choose(options.names("variables"))
    return f"{table.ddl}, {CHANGE} string"


def _check_limits(settings: StreamSettings) -> None:
    limits = {"maxCommitsPerTrigger": settings.most_commits, "maxBytesPerTrigger": settings.most_bytes}
    for name, value in limits.items():
        if value is not None and not HAS_LIMITS:
            raise InvalidInputError(
                f"the option {name} needs Spark 4.2 or newer, and this is {pyspark.__version__}; remove it,"
                " or upgrade pyspark",
                kind=ErrorKind.NOT_ALLOWED,
            )


@dataclass(frozen=True, slots=True)
class BatchPart(InputPartition):
    """The input partition of one task in a micro-batch of a streaming read."""

    start: str
    end: str
    kind: str
    """The kind of rows that the task returns: `written`, `removed`, `chunks` or `commits`."""
    item: Any
    """Depending on `kind`: block numbers, a scan number and partition number, or an array path."""
    version: str = VERSION


class _Reader(DataSourceStreamReader):
    """The streaming reader, without admission control."""

    def __init__(self, options: QueryOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._settings = StreamSettings.from_options(options)
        self._columns = [name for name in columns if name != CHANGE]
        self._repo: Repository | None = None
        self._first: str | None = None
        self._last: str | None = None

    def _open(self) -> Repository:
        if self._repo is None:
            self._repo = self._options.open()
        return self._repo

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        # docstring inherited
        with hide_tracebacks():
            if self._first is None:  # Spark calls this method twice, and `latest` must not move in between
                self._first = find_start(self._open(), self._settings)
                move_bookmark(self._open(), self._settings, self._first)
            return {"snapshot": self._first}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: N802
        # docstring inherited
        with hide_tracebacks():
            repo = self._open()
            tip = self._last or repo.lookup_branch(self._settings.branch)
            if start is None:  # before Spark 4.2
                end = tip
            else:
                end = advance(
                    repo,
                    self._settings,
                    start["snapshot"],
                    tip,
                    self._measure,
                    limited=HAS_LIMITS and not isinstance(limit, ReadAllAvailable),
                )
            move_bookmark(repo, self._settings, end, suffix=_NEXT)
            return {"snapshot": end}

    def _measure(self, start: str, end: str) -> int:
        repo = self._open()
        return count_changed_bytes(
            open_position(repo, start), repo.readonly_session(snapshot_id=end), self._options.group
        )

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        # docstring inherited
        with hide_tracebacks():
            first, last = start["snapshot"], end["snapshot"]
            return [] if first == last else list(self._plan(first, last))

    def _plan(self, start: str, end: str) -> Iterator[BatchPart]:
        repo = self._open()
        if self._settings.grain == "commits":
            yield BatchPart(start, end, "commits", None)
            return
        after = open_position(repo, end)
        before = open_position(repo, start)
        lost = start if before is None and start != START else end if after is None else None
        if lost is not None and self._settings.on_lost_base != "reload":
            raise make_lost_base_error(self._settings, lost)
        if (
            after is None
        ):  # the next batch starts here, detects that the position has expired, and reads everything
            return
        if self._settings.grain == "chunks":
            for path in list_changed_arrays(before, after, self._options.group, self._variables):
                yield BatchPart(start, end, "chunks", path)
            return
        yield from self._plan_rows(start, end, self._compare(before, after))

    def _plan_rows(self, start: str, end: str, changes: TableChanges) -> Iterator[BatchPart]:
        plan = changes.new.plan()
        numbers = changes.find_changed_blocks(plan)
        tasks = np.searchsorted(plan.starts, numbers, side="right")
        for blocks in np.split(numbers, np.flatnonzero(np.diff(tasks)) + 1):
            if len(blocks):
                yield BatchPart(start, end, "written", blocks)
        for number, scan in enumerate(changes.removed()):
            for partition in range(scan.plan().partitions):
                yield BatchPart(start, end, "removed", (number, partition))

    @property
    def _variables(self) -> list[str] | None:
        return self._options.names("variables")

    def _compare(self, before: Session | None, after: Session) -> TableChanges:
        new = self._scan(after)
        old = None if before is None or not self._has_table(before) else self._scan(before)
        return TableChanges.between(old, new)

    def _scan(self, session: Session) -> TableScan:
        table = find_table(session, self._options.group, self._columns, every_column=self._variables is None)
        room, rows = self._options.partition_bytes, self._options.batch_rows
        return replace(scan_table(session, table), partition_bytes=room, batch_rows=rows)

    def _has_table(self, session: Session) -> bool:
        """Return True if a version contains any of the table's arrays."""
        space = session._workspace
        prefix = self._options.group.rstrip("/") + "/"
        return any(space.node(prefix + name) is not None for name in self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # docstring inherited
        with hide_tracebacks():
            if not isinstance(partition, BatchPart):
                return
            check_version(partition.version)
            repo = self._open()
            if partition.kind == "commits":
                commits = list_commits(repo, self._settings, partition.start, partition.end)
                yield make_commit_batch(commits)
                return
            before = open_position(repo, partition.start)
            after = repo.readonly_session(snapshot_id=partition.end)
            if partition.kind == "chunks":
                yield from read_changed_chunks(before, after, partition.item)
                return
            changes = self._compare(before, after)
            if partition.kind == "written":
                yield from changes.read_written(changes.new.plan(), partition.item)
            else:
                number, part = partition.item
                yield from changes.read_removed(changes.removed()[number], part)

    def commit(self, end: dict[str, str]) -> None:
        # docstring inherited
        with hide_tracebacks():
            move_bookmark(self._open(), self._settings, end["snapshot"])


if HAS_LIMITS:

    class IcechunkStreamReader(_Reader, SupportsTriggerAvailableNow):
        """The streaming reader with admission control. It emits the rows, chunks or commits added to a
        branch."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            # docstring inherited
            if self._settings.most_commits is not None:
                return ReadMaxFiles(self._settings.most_commits)
            if self._settings.most_bytes is not None:
                return ReadMaxBytes(self._settings.most_bytes)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            # docstring inherited
            with hide_tracebacks():
                self._last = self._open().lookup_branch(self._settings.branch)

        def reportLatestOffset(self) -> dict[str, str]:  # noqa: N802
            # docstring inherited
            with hide_tracebacks():
                return {"snapshot": self._open().lookup_branch(self._settings.branch)}

else:
    IcechunkStreamReader = _Reader  # type: ignore[misc, assignment]
