"""`icefloe.spark.sql`: SQL over repositories, with scans that read only the needed chunks."""

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
from icefloe.query.sql.analysis import Analysis, Needs, analyze_query, assume_everything
from icefloe.query.sql.parse import Edit, Query, parse_query
from icefloe.query.sql.relations import (
    ArrayRelation,
    MetadataRelation,
    Relation,
    Sessions,
    TableReads,
    resolve_relation,
)
from icefloe.spark.errors import mute_query_logs, unwrap_errors
from icefloe.spark.progress import describe_next_jobs, is_client, watch_stages
from icefloe.spark.scan_tables import aggregate_frame, scan_frame
from icefloe.spark.task_frames import count_slots, make_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Rows = tuple[list[str], list[tuple[Any, ...]]]
"""Names of the columns, and rows."""


def sql(
    spark: SparkSession, query: str, repos: Mapping[str, AnyRepository], *, statistics: bool = True
) -> DataFrame:
    """Run a SQL query over repositories.

    Each scan reads only the columns and the chunks that the query needs. A SELECT that aggregates arrays is
    computed where the chunks are read. Spark evaluates all conditions again, so the result is that of all
    rows.

    Parameters
    ----------
    spark
        The session that runs the query. Its own tables and views can be named too.
    query
        The query. With a repository named `era5`, `era5` is the table of its root group, `era5.a.b` that of
        the group /a/b or of one array, and `era5.refs` a metadata table. `VERSION AS OF 'tag'` and
        `TIMESTAMP AS OF '2024-05-01'` after a name select a version.
    repos
        Repositories, sessions, paths or URLs, by the names that the query uses.
    statistics
        Use statistics of chunks instead of reading them, where that gives the same result.

    Returns
    -------
    DataFrame
        The result. Nothing is read before it is used.

    Raises
    ------
    InvalidInputError
        If the query cannot be parsed, or names a table that does not exist.
    """
    parsed = parse_query(query, repos)
    with mute_query_logs():
        return _plan(spark, parsed, repos, statistics)[0] if parsed.uses else spark.sql(query)


def explain_query(
    spark: SparkSession, query: str, repos: Mapping[str, AnyRepository], *, statistics: bool = True
) -> list[TableReads]:
    """Plan a query without running it, and count the chunks of each table that it would read.

    Parameters
    ----------
    spark, query, repos, statistics
        As for `sql`.

    Returns
    -------
    list of TableReads
        One entry per array table that the query names.
    """
    parsed = parse_query(query, repos)
    with mute_query_logs(), unwrap_errors():
        return _plan(spark, parsed, repos, statistics)[1] if parsed.uses else []


def run_query(
    spark: SparkSession,
    query: str,
    repos: Mapping[str, AnyRepository],
    limit: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    statistics: bool = True,
) -> Rows:
    """Run a query and fetch its first rows, for the command line.

    `progress` receives the number of finished tasks and of all tasks that are known so far.
    """
    try:
        with unwrap_errors(), watch_stages(spark, progress):
            frame = sql(spark, query, repos, statistics=statistics)
            return list(frame.columns), [tuple(row) for row in frame.limit(limit).collect()]
    except PySparkException as error:
        sentence = str(error).strip().splitlines()[0]
        raise InvalidInputError(f"Spark rejected the query: {sentence}", kind=ErrorKind.NOT_ALLOWED) from None


def _plan(
    spark: SparkSession, parsed: Query, repos: Mapping[str, AnyRepository], statistics: bool
) -> tuple[DataFrame, list[TableReads]]:
    opened: Sessions = {}
    relations = [resolve_relation(use, repos, opened, statistics=statistics) for use in parsed.uses]
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


def _has_other_literals(spark: SparkSession, text: str) -> bool:
    """Check whether this session may parse string literals of a query differently from sqlglot."""
    settings = {'"': "spark.sql.ansi.doubleQuotedIdentifiers", "\\": "spark.sql.parser.escapedStringLiterals"}
    return any(sign in text and spark.conf.get(name) == "true" for sign, name in settings.items())


@dataclass(frozen=True, slots=True)
class _PlannedQuery:
    """A query, its relations, and the columns and rows that it needs of each."""

    spark: SparkSession
    query: Query
    relations: Sequence[Relation]
    analysis: Analysis
    utc: bool

    def answer_from_rows(self, reads: dict[int, TableReads]) -> DataFrame:
        """Answer the query from the rows that may affect the result."""
        reads.clear()
        try:
            found = self._answer({}, (), reads)
            if is_client(self.spark):
                found.schema  # noqa: B018 - a client of Spark Connect analyzes the query only now
        except AnalysisException as refused:
            # The query is invalid, or the analysis missed something. Whole tables give exact errors.
            try:
                return replace(self, analysis=assume_everything(self.query))._answer({}, (), reads)
            except InvalidInputError:  # a group with several tables cannot be read as one table
                raise refused from None
        return found

    def answer_from_groups(self, reads: dict[int, TableReads]) -> DataFrame | None:
        """Answer the query from groups of cells; None if no SELECT of it allows that."""
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
                    reads[number] = TableReads(self.query.uses[number].name, "groups", found[1].counts)
                    schema = found[1].partial_schema
                    frames[number] = aggregate_frame(self.spark, relation.session, found[1], schema, title)
        return self._check_types(frames, edits, reads) if frames else None

    def _check_types(
        self, frames: Mapping[int, DataFrame], edits: Sequence[Edit], reads: dict[int, TableReads]
    ) -> DataFrame | None:
        """Rename the columns to those of the plain answer; return None if the types differ."""
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
        """Run the query over the given frames, and over scans for all other relations."""
        names = {number: f"icefloe_{number}" for number in range(len(self.relations))}
        given: dict[str, Any] = {}
        for number, relation in enumerate(self.relations):
            needs = self.analysis.needs[number]
            if number in frames:
                given[names[number]] = frames[number]
            elif isinstance(relation, ArrayRelation):
                scan = relation.scan(needs, self.utc)
                plan = scan.plan()
                reads[number] = TableReads(self.query.uses[number].name, "rows", plan.count_chunks())
                given[names[number]] = scan_frame(self.spark, scan, plan)
            else:
                given[names[number]] = _metadata_frame(self.spark, relation, needs)
        return self.spark.sql(self.query.rewrite(names, edits), **given)


def _metadata_frame(spark: SparkSession, relation: MetadataRelation, needs: Needs) -> DataFrame:
    tasks = relation.tasks()
    read = partial(_read_metadata, relation, tasks)
    return make_frame(spark, len(tasks), read, to_ddl(relation.schema(needs)), relation.title(needs))


def _read_metadata(relation: MetadataRelation, tasks: Sequence[Any], number: int) -> Any:
    return relation.read(tasks[number])


def _make_empty_query(schema: pa.Schema) -> str:
    """Write a query with columns of these names and types that reads nothing."""
    columns = [f"CAST(NULL AS {to_spark_type(field.type)}) AS {quote_name(field.name)}" for field in schema]
    return f"(SELECT {', '.join(columns)})"


def _list_types(frame: Any) -> list[Any]:
    return [field.dataType for field in frame.schema.fields]


def _list_other_tables(spark: SparkSession, query: Query) -> dict[str, list[str]]:
    """List the columns of Spark's own tables, to find the table of an unqualified column."""
    found: dict[str, list[str]] = {}
    for name in query.others:
        try:
            found[name] = list(spark.table(name).columns)
        except Exception:  # noqa: BLE001 - Spark reports what is wrong when it runs the query
            continue
    return found
