"""Temporary views that follow the tip of a repository, and maintenance procedures as table functions.

A view on a data source always shows the snapshot of its first read. The text of a SQL view, however, is
analyzed again in every query, including the Python table functions that it calls:

    SELECT * FROM icefloe_era5_rows(TABLE(
        SELECT * FROM icefloe_era5_parts(TABLE(SELECT unix_micros(current_timestamp())))))

Spark analyzes each view in a query on its own, but `current_timestamp` is constant within the query. One task
per view finds the tip at that moment and lists the parts, so all tasks of a query read the same snapshot.

Functions are pickled with their repositories, so plans and logs show only function names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructType, TimestampType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.metadata_tables import TABLES, View, get_metadata_table
from icefloe.query.options import open_repository, parse_options, refuse_memory
from icefloe.query.procedures import PROCEDURES, Procedure, ProcedureCall
from icefloe.query.scan.plan import BATCH_ROWS, TableScan, scan_table
from icefloe.query.scan.read import read_partition
from icefloe.query.schema import find_tables
from icefloe.query.spark_types import quote_name, to_ddl
from icefloe.repository import Repository
from icefloe.spark.source import IcechunkSource
from icefloe.spark.task_frames import count_slots
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_VIEWS: Final = 100
_BRANCH: Final = "main"
METADATA_TABLES: Final = tuple(name for name in TABLES if name != "diff")
"""The metadata tables that have views. `diff` has no view, because it needs two versions."""
_PARTS: Final = StructType().add("snapshot", StringType()).add("number", IntegerType())
_MOMENT: Final = "TABLE(SELECT unix_micros(current_timestamp()) AS moment_us)"
"""The SQL text for the start time of a query, which is the same in all of its views. Spark 4.0 accepts it
only in a subquery.
"""
_HAS_ARROW_FUNCTIONS: Final = hasattr(functions, "arrow_udtf")  # since Spark 4.1
_registered: WeakKeyDictionary[Any, dict[str, Repository]] = WeakKeyDictionary()
"""The repositories that procedures can refer to by name, per Spark session."""


def register(spark: SparkSession, /, **repos: Repository | str | os.PathLike[str]) -> list[str]:
    """Register temporary views that show the tip of `main` in every query, and maintenance procedures.

    With `era5=...`, `era5` is the table of the root group, and `era5_a_b` is the table of the group /a/b. If
    a group has several tables, each variable gets its own view, such as `era5_t2m`. `era5_snapshots`,
    `era5_refs` and so on are the metadata tables. All views in a query show the tip at the time the query
    starts; a DataFrame keeps the snapshot of its first action. `INSERT INTO era5_write` adds rows; Spark
    rejects `INSERT INTO era5`.

    Procedures are table functions: `SELECT * FROM icefloe_expire('era5', older_than => '30d')`. They run in a
    single worker when the query is executed, and never for `EXPLAIN`.

    Spark does not pass the needed columns and rows to a view, so each query reads the whole table.
    `icefloe.spark.sql` reads only the data that a query needs.

    Parameters
    ----------
    spark
        The session in which to register the views. Existing views and functions with the same names are
        replaced.
    **repos
        Repositories, paths or URLs, keyed by the names that queries use. A repository is sent to the
        executors with its credentials.

    Returns
    -------
    list of str
        The names of the views.

    Raises
    ------
    InvalidInputError
        If a repository is in-memory, or two tables would get views with the same name.

    Examples
    --------
    >>> register(spark, era5="s3://bucket/era5")  # doctest: +SKIP
    >>> spark.sql("SELECT * FROM icefloe_history('era5', limit => 5)").show()  # doctest: +SKIP
    """
    opened = {name: open_repository(repo) for name, repo in repos.items()}
    for repo in opened.values():
        refuse_memory(repo)
    views = [view for name, repo in opened.items() for view in _list_views(name, repo)]
    _check_names([view.name for view in views])
    known = _registered.setdefault(spark, {})
    known.update(opened)
    for name, procedure in PROCEDURES.items():
        _register_function(spark, f"icefloe_{name}", _make_procedure_handler(procedure, dict(known)), None)
    for view in views:
        _create_view(spark, view)
    return [view.name for view in views]


@dataclass(frozen=True, slots=True)
class _View:
    """A view of one table of a repository."""

    name: str
    repo: Repository
    schema: pa.Schema
    metadata_table: str | None = None
    group: str = "/"

    def open(self, snapshot: str) -> tuple[int, Callable[[int], Iterator[pa.RecordBatch]]]:
        """Return the number of units of work at a snapshot, and a function that reads one unit by number."""
        session = self.repo.readonly_session(snapshot_id=snapshot)
        if self.metadata_table is not None:
            view, table = View(self.repo, session), get_metadata_table(self.metadata_table)
            tasks = table.tasks(view)
            return len(tasks), lambda number: table.read(view, tasks[number])
        plan = self._scan(session).plan()
        return plan.partitions, partial(read_partition, session, plan, batch_rows=BATCH_ROWS)

    def _scan(self, session: Any) -> TableScan:
        tables = find_tables(session, self.group)
        for table in tables.tables:
            if {column.name for column in table.columns}.issuperset(self.schema.names):
                found = table.select_columns(self.schema.names)
                if found.schema == self.schema:
                    return scan_table(session, found)
        raise InvalidInputError(
            f"the columns of the view {self.name} have changed since it was created; call"
            " icefloe.spark.register again",
            kind=ErrorKind.NODE_NOT_FOUND,
        )


def _list_views(name: str, repo: Repository) -> Iterator[_View]:
    session = repo.readonly_session(_BRANCH)
    paths = session._workspace.paths()
    arrays = {node.path for node in session._workspace.arrays_with_chunks(paths)}
    for group in dict.fromkeys(path.rpartition("/")[0] for path in sorted(arrays)):
        prefix = "_".join([name, *group.split("/")[1:]])
        tables = find_tables(session, group).tables
        for table in tables:
            if len(tables) == 1:
                yield _View(prefix, repo, table.schema, None, group or "/")
                continue
            labels = [column.name for column in table.columns if column not in table.variables]
            for variable in table.variables:
                schema = table.select_columns([*labels, variable.name]).schema
                yield _View(f"{prefix}_{variable.name}", repo, schema, None, group or "/")
    for each in METADATA_TABLES:
        yield _View(f"{name}_{each}", repo, get_metadata_table(each).schema, each)


def _check_names(names: Sequence[str]) -> None:
    folded = [name.lower() for name in names]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice or len(names) > MAX_VIEWS:
        problem = f"two tables would have the name {twice[0]}" if twice else f"there are {len(names)} tables"
        raise InvalidInputError(
            f"{problem}, so no views were created; query the repositories with icefloe.spark.sql",
            kind=ErrorKind.NOT_ALLOWED,
        )


def _create_view(spark: SparkSession, view: _View) -> None:
    """Create a temporary view. For an array table, also create a `_write` view that accepts INSERT."""
    prefix = f"icefloe_{view.name}"
    parts, rows = quote_name(f"{prefix}_parts"), quote_name(f"{prefix}_rows")
    _register_function(spark, f"{prefix}_parts", _make_parts_handler(view), None)
    _register_function(spark, f"{prefix}_rows", _make_rows_handler(view), to_ddl(view.schema))
    slots = count_slots(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {quote_name(view.name)} AS SELECT * FROM"
        f" {rows}(TABLE(SELECT /*+ REPARTITION({slots}) */ * FROM {parts}({_MOMENT})))"
    )
    if view.metadata_table is None:
        spark.dataSource.register(_make_sink(view))
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {quote_name(view.name + '_write')} USING {quote_name(prefix)}"
        )


def _register_function(spark: SparkSession, name: str, handler: type, ddl: str | None) -> None:
    """Register a Python table function. With a DDL schema, the function returns record batches of that
    schema.
    """
    made: Any
    if ddl is not None and _HAS_ARROW_FUNCTIONS:
        made = functions.arrow_udtf(handler, returnType=ddl)
    else:
        made = functions.udtf(handler, returnType=ddl, useArrow=False)
    spark.udtf.register(name, made)


# The classes below are created in functions so that they are pickled by value, with their repositories.


@dataclass
class _Resolved(AnalyzeResult):
    """The analysis result of a view's table function: the tip at the time Spark analyzed the view."""

    snapshot: str = ""


@dataclass
class _Prepared(AnalyzeResult):
    """The analysis result of a procedure's table function, with the prepared procedure call."""

    call: ProcedureCall | None = None


def _make_parts_handler(view: _View) -> type:
    driver = VERSION

    class Parts:
        def __init__(self, resolved: _Resolved) -> None:
            self._snapshot = resolved.snapshot

        @staticmethod
        def analyze(_: AnalyzeArgument) -> _Resolved:
            with hide_tracebacks():
                return _Resolved(_PARTS, snapshot=view.repo.lookup_branch(_BRANCH))

        def eval(self, query: Any) -> Iterator[tuple[str, int]]:
            with hide_tracebacks():
                check_version(driver)
                snapshot = _find_snapshot(view.repo, self._snapshot, query["moment_us"])
                for number in range(view.open(snapshot)[0]):
                    yield snapshot, number

    return Parts


def _find_snapshot(repo: Repository, analyzed: str, moment_us: int) -> str:
    """Return the newest commit that was either made before the query started, or was already the tip during
    analysis.

    The latter matters if a writer's clock is ahead of the driver's.
    """
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)
    for info in repo.ancestry(branch=_BRANCH):
        if info.id == analyzed or info.written_at <= moment:
            return info.id
    return analyzed


def _make_rows_handler(view: _View) -> type:
    driver = VERSION

    class Rows:
        def __init__(self) -> None:
            self._open = cache(view.open)

        def eval(self, parts: Any) -> Iterator[Any]:
            with hide_tracebacks():
                check_version(driver)
                for snapshot, number in _list_parts(parts):
                    for batch in self._open(snapshot)[1](number):
                        if _HAS_ARROW_FUNCTIONS:
                            yield pa.Table.from_batches([batch])
                        else:
                            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    return Rows


def _list_parts(parts: Any) -> list[tuple[str, int]]:
    """Return the rows of a table argument, which is a record batch, or a single row before Spark 4.1."""
    if isinstance(parts, pa.RecordBatch | pa.Table):
        return list(zip(*(column.to_pylist() for column in parts.columns), strict=True))
    return [(parts["snapshot"], parts["number"])]


def _make_procedure_handler(procedure: Procedure, repos: Mapping[str, Repository]) -> type:
    driver = VERSION
    schema = from_arrow_schema(procedure.schema)

    class Run:
        def __init__(self, prepared: _Prepared) -> None:
            self._call = prepared.call

        @staticmethod
        def analyze(*positional: AnalyzeArgument, **named: AnalyzeArgument) -> _Prepared:
            with hide_tracebacks():
                now = datetime.now(UTC)
                values = [_read_argument(procedure, each, now) for each in positional]
                words = {name: _read_argument(procedure, each, now) for name, each in named.items()}
                return _Prepared(schema, call=procedure.prepare(repos, values, words, now))

        def eval(self, *_: Any, **__: Any) -> Iterator[tuple[Any, ...]]:
            with hide_tracebacks():
                check_version(driver)
                if self._call is not None:
                    yield from procedure.execute(repos, self._call)

    return Run


def _read_argument(procedure: Procedure, argument: AnalyzeArgument, now: datetime) -> Any:
    """Return the value of a procedure argument. Raise an error if it is not a constant."""
    if argument.isTable or not argument.isConstantExpression:
        raise InvalidInputError(
            f"the arguments of icefloe_{procedure.name} must be constants, such as 'main' or '30d'",
            kind=ErrorKind.NOT_ALLOWED,
        )
    value = argument.value
    if isinstance(value, timedelta):
        return now - value
    if isinstance(value, datetime) and isinstance(argument.dataType, TimestampType):
        return value.astimezone(UTC)  # Spark passes instants in local time
    return value


def _make_sink(view: _View) -> type[IcechunkSource]:
    class Sink(IcechunkSource):
        @classmethod
        def name(cls) -> str:
            return f"icefloe_{view.name}"

        def schema(self) -> str:
            return to_ddl(view.schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            with hide_tracebacks():
                raise InvalidInputError(
                    f"{view.name}_write accepts only INSERT; SELECT from {view.name}",
                    kind=ErrorKind.NOT_ALLOWED,
                )

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            from icefloe.spark.batch_sink import IcechunkWriter

            with hide_tracebacks():
                options = replace(parse_options({"group": view.group}), repo=view.repo)
                return IcechunkWriter(options, schema, overwrite)

    return Sink
