"""Export the rows of a table as Parquet files.

Every task reads one partition of the scan and writes one file per partition value. The driver then writes an
empty `_SUCCESS` file, as Spark does, or deletes the files of a failed run.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from icefloe._internal.executor import Executor, Progress, Task, ThreadExecutor
from icefloe._internal.report import Report
from icefloe.errors import ErrorKind, Hint, IcechunkError, InvalidInputError
from icefloe.query.decode import TIMESTAMP
from icefloe.query.scan.plan import ScanPlan, scan_table
from icefloe.query.scan.read import read_partition
from icefloe.query.schema import ArrayTable, Role, find_tables
from icefloe.session import Session
from icefloe.storage.base import Storage
from icefloe.storage.local.folder import LocalStorage, PlainFolder

DATE_PARTS: Final[Mapping[str, str]] = {
    "year": "%Y",
    "month": "%Y-%m",
    "day": "%Y-%m-%d",
    "hour": "%Y-%m-%d-%H",
}
"""The date parts by which rows can be partitioned, with the `strftime` format of each."""
_PARTITION_BYTES: Final = 256 << 20
"""The approximate size of the rows that one task exports, before compression."""
_ROW_GROUP_ROWS: Final = 1 << 20
_CALL: Final = re.compile(r"(\w+)\s*\(\s*(.+?)\s*\)")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The partition value that stands for null, as in Hive and Spark."""
_SUCCESS: Final = "_SUCCESS"
_SUFFIX: Final = ".parquet"
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class TableExportReport(Report):
    """The report of a table export to Parquet or Iceberg, or of a dry run."""

    dry_run: bool
    """True if nothing was written."""
    snapshot_id: str
    """The id of the exported snapshot."""
    columns: tuple[str, ...] = ()
    """The columns of the table."""
    rows: int = 0
    """The number of rows."""
    files: int = 0
    """The number of data files written; 0 in a dry run."""
    bytes_written: int = 0
    """The total size of the data files."""


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """A coordinate, or a date part of one, by which exported rows are partitioned into folders."""

    column: str
    part: str = ""
    """The date part: `year`, `month`, `day` or `hour`; empty to partition by the coordinate values
    themselves.
    """

    @property
    def name(self) -> str:
        """The name of the partition column, such as `time_month` for month(time), as in Iceberg."""
        return f"{self.column}_{self.part}" if self.part else self.column


Partitioning: TypeAlias = tuple[PartitionTerm, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file written by an export task."""

    path: str
    """The path of the file, relative to the export target."""
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableExport:
    """The plan of a Parquet export: the scan, the columns, and the partition terms."""

    session: Session
    plan: ScanPlan
    terms: Partitioning
    schema: pa.Schema
    """The Arrow schema of the files."""
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """A random component of all file names, so that concurrent runs do not overwrite each other's files."""

    def without_identities(self) -> TableExport:
        """Return a copy of the plan without the columns whose values are part of the folder names."""
        named = {term.column for term in self.terms if not term.part}
        return replace(self, schema=pa.schema([each for each in self.schema if each.name not in named]))

    def summarize(self, files: Sequence[DataFile] | None = None) -> TableExportReport:
        """Create the export report from the data files that were written. Without files, report a dry run."""
        return TableExportReport(
            files is None,
            self.session.snapshot_id,
            tuple(self.plan.table.schema.names),
            self.plan.rows if files is None else sum(file.rows for file in files),
            len(files or ()),
            sum(file.size_bytes for file in files or ()),
        )


def export_parquet(
    session: Session,
    target: Storage,
    *,
    group: str = "/",
    variables: Iterable[str] | None = None,
    isel: Mapping[str, Any] | None = None,
    sel: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    overwrite: bool = False,
    dry_run: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> TableExportReport:
    """Export the variables of a group as rows in Parquet files.

    There is one row per cell, with a column per coordinate and per variable. Values are decoded, and missing
    values are null. An empty file `_SUCCESS` marks a complete export.

    Parameters
    ----------
    session
        The session to read.
    target
        The folder or prefix to write to. It must not contain Parquet files unless `overwrite` is set.
    group
        The path of the group that contains the variables.
    variables
        Variables to export. They must have the same dimensions. All by default.
    isel
        Cells to export by index: a position or a slice per dimension.
    sel
        Cells to export by label: a label or a slice per coordinate, including both ends.
    partition_by
        Coordinates by which to partition the rows, such as `lat`, or date parts such as `month(time)`. Every
        value gets its own folder, such as `time_month=2024-01`, so that query engines can skip irrelevant
        folders.
    overwrite
        Replace the Parquet files in the target. They are deleted after the new files are written.
    dry_run
        Only report what would be written.
    executor
        Runs the tasks; by default a thread pool in this process.
    progress
        Called with a label, the number of completed tasks, and the total number of tasks.

    Returns
    -------
    TableExportReport
        The numbers of rows, files and bytes.

    Raises
    ------
    InvalidInputError
        The variables do not form one table, the target is not empty, or a partition term is invalid.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="write") as store:
    ...     array = zarr.create_array(store, name="t2m", shape=2, dtype="f8", fill_value=281.0)
    >>> report = icefloe.export_parquet(repo.readonly_session("main"), icefloe.in_memory_storage())
    >>> report.rows, report.files
    (2, 1)
    """
    job = plan_export(session, group, variables, isel, sel, partition_by).without_identities()
    place = open_target(target)
    old = [info.key for info in place.list_prefix("") if _is_data(info.key)]
    if old and not overwrite:
        raise InvalidInputError(
            f"{place.place} already contains {old[0]}; choose an empty location",
            kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        ).with_hint(Hint("or replace the existing files with {overwrite}", overwrite=True))
    if dry_run:
        return job.summarize()
    place.check_writable()
    place.prepare_for_creation()
    with write_files(job, place, executor, progress) as files:
        place.delete(old)
        place.put(_SUCCESS, b"")
        place.sync()
    return job.summarize(files)


def open_target(target: Storage) -> Storage:
    """Prepare the target storage of a Parquet export. In a local folder, it then writes plain files."""
    return PlainFolder(target.describe()["path"], sync=False) if type(target) is LocalStorage else target


def plan_export(
    session: Session,
    group: str,
    variables: Iterable[str] | None,
    isel: Mapping[str, Any] | None,
    sel: Mapping[str, Any] | None,
    partition_by: Sequence[str],
) -> TableExport:
    """Plan a Parquet export: select the rows, and parse the partition terms."""
    table = find_tables(session, group).choose(None if variables is None else list(variables))
    scan = scan_table(session, table).sel(sel).isel(isel)
    scan = replace(scan, partition_bytes=_PARTITION_BYTES)
    terms = tuple(_parse_term(table, text) for text in partition_by)
    return TableExport(session, scan.plan(), terms, table.schema)


def _parse_term(table: ArrayTable, text: str) -> PartitionTerm:
    call = _CALL.fullmatch(text.strip())
    part, name = (call[1].lower(), call[2]) if call else ("", text.strip())
    column = table.column(name)
    if column.role is Role.VARIABLE:
        raise _make_partition_error(text, f"{column.name} is a variable; partition by a coordinate")
    if part and part not in DATE_PARTS:
        raise _make_partition_error(text, f"unknown date part {part}; use {', '.join(DATE_PARTS)}")
    if part and column.arrow != TIMESTAMP:
        raise _make_partition_error(text, f"{column.name} does not contain times")
    return PartitionTerm(column.name, part)


def _make_partition_error(text: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"cannot partition by {text}: {reason}", kind=ErrorKind.NOT_ALLOWED)


def _is_data(path: str) -> bool:
    return path.endswith(_SUFFIX) or path == _SUCCESS


@contextmanager
def write_files(
    job: TableExport, target: Storage, executor: Executor | None, progress: Progress | None
) -> Iterator[list[DataFile]]:
    """Write the Parquet files of an export, and yield them to the `with` block.

    If writing or the `with` block fails, delete the files.
    """
    runner = ThreadExecutor(_THREADS, "table-export") if executor is None else executor
    runner = runner if progress is None else runner.with_progress(progress)
    task: Task[int, list[DataFile]] = Task(partial(_write_partition, job, target), "partitions")
    try:
        yield [file for files in runner.map(task, range(job.plan.partitions)) for file in files]
    except BaseException:
        with suppress(IcechunkError):  # the first error is the one to raise
            target.delete([info.key for info in target.list_prefix("") if job.run_id in info.key])
        raise


def _write_partition(job: TableExport, target: Storage, number: int) -> list[DataFile]:
    """Write the rows of one partition of the scan, one file per partition value."""
    files: dict[str, _OpenFile] = {}
    for batch in read_partition(job.session, job.plan, number):
        for folder, rows in _divide(pa.Table.from_batches([batch]), job.terms):
            if folder not in files:
                files[folder] = _OpenFile(job.schema)
            files[folder].add(rows)
    done = []
    for folder, file in files.items():
        data = file.close()
        path = f"{folder}part-{number:05}-{job.run_id}{_SUFFIX}"
        target.put(path, data)
        done.append(DataFile(path, file.rows, len(data)))
    return done


def _divide(rows: pa.Table, terms: Sequence[PartitionTerm]) -> Iterator[tuple[str, pa.Table]]:
    """Split rows by partition value. Yield the folder and the rows of each partition."""
    if not terms:
        yield "", rows
        return
    term, *rest = terms
    column = rows.column(term.column)
    values = pc.strftime(column, format=DATE_PARTS[term.part]) if term.part else column
    for value in pc.unique(values):
        mask = pc.equal(values, value) if value.is_valid else pc.is_null(values)
        text = quote(str(value.as_py()), safe=" ") if value.is_valid else _NULL
        for folder, part in _divide(rows.filter(mask), rest):
            yield f"{term.name}={text}/{folder}", part


class _OpenFile:
    """A Parquet file that is being built in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = parquet.ParquetWriter(self._sink, schema, compression="zstd")
        self._waiting: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows.select(self._schema.names).cast(self._schema))
        if sum(map(len, self._waiting)) >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> bytes:
        self._flush()
        self._writer.close()
        return bytes(self._sink.getvalue())

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
            self._waiting.clear()
