"""`icefloe.spark.sql`: SQL queries over repositories, with scans that read only the needed chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from sqlglot import exp

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.options import AnyRepository
from icefloe.query.spark_types import quote_name, to_ddl, to_spark_type
from icefloe.query.sql.analysis import Analysis, TableNeeds, analyze_query, assume_everything
from icefloe.query.sql.parse import Edit, Query, TableUse, parse_query
from icefloe.query.sql.relations import (
    ArrayRelation,
    MetadataRelation,
    Relation,
    Sessions,
    TableReads,
    resolve_relation,
)
from icefloe.query.statements.parse import parse_statement
from icefloe.spark.errors import mute_query_logs, name_write_view, unwrap_errors
from icefloe.spark.progress import describe_next_jobs, is_client, watch_stages
from icefloe.spark.run_statements import WriteSettings, run_statement
from icefloe.spark.scan_tables import aggregate_frame, scan_frame
from icefloe.spark.task_frames import convert_schema, count_slots, make_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Rows = tuple[list[str], list[tuple[Any, ...]]]
"""The column names and the rows of a result."""


def sql(
    spark: SparkSession,
    query: str,
    repos: Mapping[str, AnyRepository | DataFrame],
    *,
    statistics: bool = True,
    append_dim: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    txn_app_id: str | None = None,
    txn_version: str | int | None = None,
) -> DataFrame:
    """Run a SQL query or statement over repositories with Spark.

    Each scan reads only the columns and the chunks that the query needs. Aggregates over arrays are computed
    in the tasks that read the chunks. Spark still evaluates all conditions, so the result is the same as if
    all rows had been read.

    `MERGE INTO`, `UPDATE`, `DELETE FROM` and `INSERT INTO` change array cells, which rows identify by their
    coordinates, in one commit. They run immediately. Every cell of the grid is a row of the table, even if
    its values are missing: `MATCHED` means that the cell exists, and `DELETE` sets its values to missing.
    `DESCRIBE HISTORY`, `SHOW BRANCHES` and `SHOW TAGS` list versions; `CREATE` and `DROP` change branches and
    tags, as in `CREATE BRANCH dev IN era5 AS OF VERSION 'v1'`.

    Parameters
    ----------
    spark
        The session that runs the query. The query can also use the session's own tables and views.
    query
        The query or statement. With a repository named `era5`, `era5` is the table of its root group,
        `era5.a.b` is the table of the group /a/b or of a single array, and `era5.refs` is a metadata table.
        `VERSION AS OF 'tag'` and `TIMESTAMP AS OF '2024-05-01'` after a table name select a version. A
        statement changes the branch `main`, or the branch given by `VERSION AS OF`.
    repos
        Repositories, sessions, paths, URLs or DataFrames, keyed by the names used in the query.
    statistics
        Use chunk statistics instead of reading chunks wherever the result is the same.
    append_dim
        The dimension that inserted rows with new coordinates extend. By default, rows off the grid are
        rejected.
    message
        Commit message of a statement. Defaults to the first words of the statement.
    metadata
        Commit metadata of a statement.
    txn_app_id, txn_version
        Application name and version of this run, which form an idempotency key. Running a statement again
        with the same pair commits nothing.

    Returns
    -------
    DataFrame
        The result of a query, which is evaluated lazily. For a statement that changes arrays, one row with
        the snapshot id and the numbers of cells that were updated, deleted and inserted.

    Raises
    ------
    InvalidInputError
        If the query cannot be parsed, or names a table that does not exist; if a statement sets a coordinate,
        two rows name the same cell, or a row is off the grid.
    ConflictError
        If another writer changed chunks that the statement read or wrote.
    """
    statement = parse_statement(query, [name for name in repos if not _is_frame(repos[name])])
    settings = WriteSettings(
        append_dim, message, metadata or {}, txn_app_id, None if txn_version is None else str(txn_version)
    )
    if statement is not None:
        with mute_query_logs():
            return run_statement(spark, statement, repos, settings, partial(_plan_text, spark, statistics))
    if settings != WriteSettings():
        raise InvalidInputError(
            "append_dim, message, metadata, txn_app_id and txn_version require a statement that changes"
            " arrays; remove them",
            kind=ErrorKind.NOT_ALLOWED,
        )
    with mute_query_logs(), name_write_view(spark):
        return _plan_text(spark, statistics, query, repos, {})[0]


def _plan_text(
    spark: SparkSession,
    statistics: bool,
    query: str,
    repos: Mapping[str, AnyRepository | DataFrame],
    opened: Sessions,
) -> tuple[DataFrame, list[TableReads]]:
    parsed = parse_query(query, repos)
    return _plan(spark, parsed, repos, statistics, opened) if parsed.uses else (spark.sql(query), [])


def explain_query(
    spark: SparkSession, query: str, repos: Mapping[str, AnyRepository], *, statistics: bool = True
) -> list[TableReads]:
    """Plan a SQL query without running it on Spark, and report which chunks of each table it would read.

    Parameters
    ----------
    spark, query, repos, statistics
        As in `sql`.

    Returns
    -------
    list of TableReads
        One entry per array table that the query names.
    """
    if parse_statement(query, repos) is not None:
        raise InvalidInputError(
            "only queries can be explained, because the chunks of a statement are unknown before it runs;"
            " pass a SELECT",
            kind=ErrorKind.NOT_ALLOWED,
        )
    with mute_query_logs(), unwrap_errors():
        return _plan_text(spark, statistics, query, repos, {})[1]


def run_query(
    spark: SparkSession,
    query: str,
    repos: Mapping[str, AnyRepository],
    limit: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    statistics: bool = True,
) -> Rows:
    """Run a SQL query on Spark and fetch its first rows, for the command line interface.

    `progress` receives the number of finished tasks, and the number of all tasks known so far.
    """
    try:
        with unwrap_errors(), watch_stages(spark, progress):
            frame = sql(spark, query, repos, statistics=statistics)
            return list(frame.columns), [tuple(row) for row in frame.limit(limit).collect()]
    except PySparkException as error:
        sentence = str(error).strip().splitlines()[0]
        raise InvalidInputError(f"Spark rejected the query: {sentence}", kind=ErrorKind.NOT_ALLOWED) from None


def _plan(
    spark: SparkSession,
    parsed: Query,
    repos: Mapping[str, AnyRepository | DataFrame],
    statistics: bool,
    opened: Sessions,
) -> tuple[DataFrame, list[TableReads]]:
    relations = [_resolve(use, repos, opened, statistics) for use in parsed.uses]
    columns = {number: relation.columns for number, relation in enumerate(relations)}
    if _has_other_literals(spark, parsed.text):
        analysis = assume_everything(parsed)
    else:
        analysis = analyze_query(parsed, columns, _list_other_tables(spark, parsed))
    utc = spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
    planned = _PlannedQuery(spark, parsed, relations, analysis, utc)
    reads: dict[int, TableReads] = {}
    frame = planned.answer_from_groups(reads) or planned.answer_from_rows(reads)
    titles = [each.title(analysis.needs[number]) for number, each in enumerate(relations)]
    counted = [
        f"{title} ({reads[number].counts})" if number in reads else title
        for number, title in enumerate(titles)
    ]
    describe_next_jobs(spark, counted)
    return frame, [reads[number] for number in sorted(reads)]


def _is_frame(repo: object) -> bool:
    """Return True if an argument is a Spark DataFrame, from a classic session or from Spark Connect."""
    return hasattr(repo, "sparkSession")


def _resolve(
    use: TableUse, repos: Mapping[str, Any], opened: Sessions, statistics: bool
) -> Relation | _FrameRelation:
    if not _is_frame(repos[use.repo]):
        return resolve_relation(use, repos, opened, statistics=statistics)
    if use.rest or use.version:
        raise InvalidInputError(
            f"{use.repo} is a data frame, which has no versions or groups; use its name alone",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return _FrameRelation(use.repo, repos[use.repo])


@dataclass(frozen=True, slots=True)
class _FrameRelation:
    """A DataFrame that was passed to a query by name."""

    name: str
    frame: Any

    @property
    def columns(self) -> dict[str, str]:
        return dict(self.frame.dtypes)

    def schema(self, needs: TableNeeds) -> pa.Schema:
        return convert_schema(self.frame.schema)

    def title(self, needs: TableNeeds) -> str:
        return self.name


def _has_other_literals(spark: SparkSession, text: str) -> bool:
    """Return True if the Spark session may parse string literals in a query differently than sqlglot."""
    settings = {'"': "spark.sql.ansi.doubleQuotedIdentifiers", "\\": "spark.sql.parser.escapedStringLiterals"}
    return any(sign in text and spark.conf.get(name) == "true" for sign, name in settings.items())


@dataclass(frozen=True, slots=True)
class _PlannedQuery:
    """A parsed query with its relations, and the columns and rows that it needs from each relation."""

    spark: SparkSession
    query: Query
    relations: Sequence[Relation | _FrameRelation]
    analysis: Analysis
    utc: bool

    def answer_from_rows(self, reads: dict[int, TableReads]) -> DataFrame:
        """Run the query over scans of only the rows that may affect the result."""
        reads.clear()
        try:
            found = self._answer({}, (), reads)
            if is_client(self.spark):
                found.schema  # noqa: B018 - Spark Connect analyzes the query only now
        except AnalysisException as refused:
            # The query is invalid, or the analysis is incomplete. Reading whole tables gives Spark's exact
            # error.
            try:
                return replace(self, analysis=assume_everything(self.query))._answer({}, (), reads)
            except InvalidInputError:  # a group with several tables cannot be read as one table
                raise refused from None
        return found

    def answer_from_groups(self, reads: dict[int, TableReads]) -> DataFrame | None:
        """Run the query over groups of cells where possible. Return None if no SELECT allows that."""
        if not isinstance(self.query.tree, exp.Query):
            return None  # a statement with side effects runs once
        frames: dict[int, DataFrame] = {}
        edits: list[Edit] = []
        slots = count_slots(self.spark)
        for number, scope in self.analysis.alone:
            relation, needs = self.relations[number], self.analysis.needs[number]
            if isinstance(relation, ArrayRelation):
                found = relation.reduce(self.query, scope, needs, self.utc, slots)
                if found is not None:
                    edits += found[0]
                    title = relation.aggregate_title(needs, found[1])
                    reads[number] = TableReads(
                        self.query.uses[number].name, "groups", found[1].counts, relation.choose(needs)
                    )
                    schema = found[1].partial_schema
                    frames[number] = aggregate_frame(self.spark, relation.session, found[1], schema, title)
        return self._check_types(frames, edits, reads) if frames else None

    def _check_types(
        self, frames: Mapping[int, DataFrame], edits: Sequence[Edit], reads: dict[int, TableReads]
    ) -> DataFrame | None:
        """Rename the result columns as Spark would name them. Return None if the types differ from Spark's
        own.
        """
        empty = {
            number: _make_empty_query(relation.schema(self.analysis.needs[number]))
            for number, relation in enumerate(self.relations)
        }
        try:
            expected: Any = self.spark.sql(self.query.rewrite_over(empty))
            names, types = expected.columns, _list_types(expected)
            found: Any = self._answer(frames, edits, reads)
            if types != _list_types(found):
                return None
        except AnalysisException:
            return None
        renamed: DataFrame = found if found.columns == names else found.toDF(*names)
        return renamed

    def _answer(
        self, frames: Mapping[int, DataFrame], edits: Sequence[Edit], reads: dict[int, TableReads]
    ) -> DataFrame:
        """Run the query over the given DataFrames, and over scans of all other relations."""
        names = {number: f"icefloe_{number}" for number in range(len(self.relations))}
        given: dict[str, Any] = {}
        for number, relation in enumerate(self.relations):
            needs = self.analysis.needs[number]
            if number in frames:
                given[names[number]] = frames[number]
            elif isinstance(relation, _FrameRelation):
                given[names[number]] = relation.frame
            elif isinstance(relation, ArrayRelation):
                scan = relation.scan(needs, self.utc)
                plan = scan.plan()
                reads[number] = TableReads(self.query.uses[number].name, "rows", plan.count_chunks(), scan)
                given[names[number]] = scan_frame(self.spark, scan, plan)
            else:
                given[names[number]] = _metadata_frame(self.spark, relation, needs)
        return self.spark.sql(self.query.rewrite(names, edits), **given)


def _metadata_frame(spark: SparkSession, relation: MetadataRelation, needs: TableNeeds) -> DataFrame:
    tasks = relation.tasks()
    read = partial(_read_metadata, relation, tasks)
    return make_frame(spark, len(tasks), read, to_ddl(relation.schema(needs)), relation.title(needs))


def _read_metadata(relation: MetadataRelation, tasks: Sequence[Any], number: int) -> Any:
    return relation.read(tasks[number])


def _make_empty_query(schema: pa.Schema) -> str:
    """Return a SQL query that reads nothing and has columns with the given names and types."""
    columns = [f"CAST(NULL AS {to_spark_type(field.type)}) AS {quote_name(field.name)}" for field in schema]
    return f"(SELECT {', '.join(columns)})"


def _list_types(frame: Any) -> list[Any]:
    return [field.dataType for field in frame.schema.fields]


def _list_other_tables(spark: SparkSession, query: Query) -> dict[str, list[str]]:
    """Return the columns of Spark's own tables in a query, which are needed to resolve unqualified column
    names.
    """
    found: dict[str, list[str]] = {}
    for name in query.others:
        try:
            found[name] = list(spark.table(name).columns)
        except Exception:  # noqa: BLE001 - Spark reports the error when it runs the query
            continue
    return found
