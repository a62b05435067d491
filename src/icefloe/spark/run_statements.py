"""Run SQL statements that change arrays in one commit, or that list, create and drop branches and tags.

A statement becomes a Spark query that evaluates all expressions. Each result row has the coordinates of a
cell, the number of the clause that applies, and the new values. The rows are shuffled by block, so that
exactly one task reads and writes each affected chunk. Other chunks are not read.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import NullType, StringType, TimestampType

from icefloe.core.merge.reads import ChunkMasks, ReadDetector
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.maintenance.statistics.collect import record_statistics
from icefloe.query.decode import TIMESTAMP, Values
from icefloe.query.options import AnyRepository, describe_location, open_repository, open_session
from icefloe.query.schema import ArrayTable, Column, Role, make_unknown_name_error
from icefloe.query.spark_types import quote_name, to_ddl, to_spark_type
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.parse import TableUse, parse_query
from icefloe.query.sql.relations import ArrayRelation, Sessions, TableReads, resolve_relation
from icefloe.query.statements.changes import (
    INSERTED,
    SOURCE,
    Clause,
    MergeNames,
    divide_columns,
    make_clause,
    write_clause_number,
    write_coordinates,
    write_values,
)
from icefloe.query.statements.parse import (
    MATCHED,
    NOT_MATCHED,
    NOT_MATCHED_BY_SOURCE,
    CreateRef,
    DataChange,
    DeleteCells,
    DescribeHistory,
    DropRef,
    Insert,
    Merge,
    MergeClause,
    ShowRefs,
    Statement,
    UpdateOrDelete,
)
from icefloe.query.write.blocks import BLOCK, CELL, CLAUSE
from icefloe.query.write.cells import KEY, TARGET, CellReader, find_cells
from icefloe.query.write.idempotency import CommitRequest, check_branch
from icefloe.query.write.job import find_keys
from icefloe.query.write.target import APPEND, Template, WriteTarget, format_key, prepare
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.errors import unwrap_errors
from icefloe.spark.progress import describe_jobs
from icefloe.spark.shuffle_write import collect_keys, write_blocks
from icefloe.spark.task_frames import convert_schema, map_in_arrow
from icefloe.spark.worker import VERSION, check_version, hide_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Select = Callable[[str, Mapping[str, Any], Sessions], tuple[Any, list[TableReads]]]
"""A function that plans a query over repositories, given open sessions, and returns the DataFrame together
with what it reads.
"""
_MATCHED_ROWS: Final = "icefloe_matched"
_IS_MATCHED: Final = "__matched"
_SUMMARY: Final = (
    "snapshot_id string, num_affected_rows bigint, num_updated_rows bigint, num_deleted_rows bigint,"
    " num_inserted_rows bigint"
)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The arguments of `icefloe.spark.sql` for SQL statements that change arrays."""

    append_dim: str | None = None
    """The dimension that inserted rows may extend. If None, rows outside the grid are rejected."""
    message: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    app: str | None = None
    version: str | None = None


def run_statement(
    spark: SparkSession,
    statement: Statement,
    repos: Mapping[str, Any],
    settings: WriteSettings,
    select: Select,
) -> DataFrame:
    """Run a SQL statement that changes arrays or refs, and return its result as a DataFrame."""
    match statement:
        case DescribeHistory():
            parsed = parse_query(f"SELECT * FROM {statement.name}", repos).uses[0]
            query = f"SELECT * FROM {_name_table(parsed, 'snapshots')} ORDER BY commits_before"
            return _only_frame(select(f"{query} {statement.rest}", repos, {}))
        case ShowRefs():
            query = f"SELECT name, snapshot_id, committed_at, message FROM {quote_name(statement.repo)}.refs"
            return _only_frame(select(f"{query} WHERE kind = '{statement.kind}' ORDER BY name", repos, {}))
        case CreateRef() | DropRef():
            repo = _open_repository(statement.repo, repos)
            snapshot = (
                _create(repo, statement) if isinstance(statement, CreateRef) else _drop(repo, statement)
            )
            return _make_frame(spark, [(statement.name, snapshot)], "name string, snapshot_id string")
    return _DataChange(spark, statement, repos, settings, select).run()


def _only_frame(planned: tuple[Any, list[TableReads]]) -> DataFrame:
    frame: DataFrame = planned[0]
    return frame


def _make_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl)


def _name_table(use: TableUse, table: str) -> str:
    """Return the SQL name of a metadata table of the same repository and version."""
    if use.rest:
        raise InvalidInputError(
            f"only a repository has a history; write DESCRIBE HISTORY {use.repo}", kind=ErrorKind.NOT_ALLOWED
        )
    version = "".join(
        f" {'VERSION' if name == 'versionAsOf' else 'TIMESTAMP'} AS OF '{value}'"
        for name, value in use.version.items()
    )
    return f"{quote_name(use.repo)}.{table}{version}"


def _open_repository(name: str, repos: Mapping[str, Any]) -> Repository:
    repo: AnyRepository = repos[name]
    if isinstance(repo, Session):
        raise InvalidInputError(
            f"{name} is a session, which a statement cannot change; pass the repository",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if not isinstance(repo, Repository) and hasattr(repo, "sparkSession"):
        raise InvalidInputError(
            f"{name} is a data frame, which a statement cannot change; pass a repository",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return open_repository(repo)


def _create(repo: Repository, statement: CreateRef) -> str:
    is_tag = statement.kind == "tag"
    known = repo.list_tags() if is_tag else repo.list_branches()
    if statement.exists_ok and statement.name in known:
        return repo.lookup_tag(statement.name) if is_tag else repo.lookup_branch(statement.name)
    option = "timestampAsOf" if statement.is_time else "versionAsOf"
    version = {} if statement.version is None else {option: statement.version}
    snapshot = open_session(repo, version).snapshot_id
    (repo.create_tag if is_tag else repo.create_branch)(statement.name, snapshot)
    return snapshot


def _drop(repo: Repository, statement: DropRef) -> str | None:
    is_tag = statement.kind == "tag"
    known = repo.list_tags() if is_tag else repo.list_branches()
    if statement.missing_ok and statement.name not in known:
        return None
    snapshot = repo.lookup_tag(statement.name) if is_tag else repo.lookup_branch(statement.name)
    (repo.delete_tag if is_tag else repo.delete_branch)(statement.name)
    return snapshot


class _DataChange:
    """The execution of a statement that changes the arrays of one table."""

    def __init__(
        self,
        spark: SparkSession,
        statement: DataChange,
        repos: Mapping[str, Any],
        settings: WriteSettings,
        select: Select,
    ) -> None:
        self._spark = spark
        self._statement = statement
        self._repos = repos
        self._settings = settings
        self._plan = select
        target = statement.target
        self._use = parse_query(f"SELECT * FROM {target.text}", repos).uses[0]
        self._repo = _open_repository(target.repo, repos)
        branch = self._find_branch()
        self._session = self._repo.writable_session(branch)
        self._base = self._repo.readonly_session(snapshot_id=self._session.snapshot_id)
        # All parts of the statement read the snapshot from which it started.
        keys: list[tuple[Any, ...]] = [(target.repo, ("versionAsOf", branch))]
        keys += [(target.repo,)] if branch == "main" else []
        shown = f"{describe_location(self._repo)} {branch}"
        self._opened: Sessions = dict.fromkeys(keys, (self._base, shown))
        message = settings.message or f"{_name_statement(statement)} {target.text}"
        self._request = CommitRequest(branch, message, settings.metadata, settings.app, settings.version)
        self._reads: dict[str, ChunkMasks | None] = {}
        self._title = f"{message} in {shown}"

    def _find_branch(self) -> str:
        if "timestampAsOf" in self._use.version:
            raise InvalidInputError(
                "a statement changes the tip of a branch; select the branch with VERSION AS OF 'name'",
                kind=ErrorKind.INVALID_REF_TYPE,
            )
        branch = self._use.version.get("versionAsOf", "main")
        check_branch(self._repo, branch)
        return branch

    def run(self) -> DataFrame:
        if (done := self._request.find_commit(self._repo)) is not None:
            return self._summarize(done, Counter(), {})
        with describe_jobs(self._spark, self._title), unwrap_errors():
            match self._statement:
                case Merge():
                    return self._merge(self._statement)
                case Insert():
                    return self._insert(self._statement)
                case UpdateOrDelete():
                    return self._change(self._statement)

    def _select(self, query: str, frames: Mapping[str, Any] | None = None) -> Any:
        """Plan a query, and record which chunks it reads from the target repository."""
        frame, reads = self._plan(query, {**self._repos, **(frames or {})}, self._opened)
        for each in reads:
            if each.scan is not None and each.scan.session is self._base:
                self._record_reads(each.scan.table.columns, each.scan.selection.indices)
        return frame

    def _record_reads(self, columns: Sequence[Column], indices: Sequence[Any]) -> None:
        """Record the chunks that the statement reads, for conflict detection: variables at the given indices,
        and complete coordinates."""
        for column in columns:
            if column.array is None:
                continue
            masks = None
            if column.role is Role.VARIABLE:
                pairs = zip(column.axes, column.array.edges, strict=True)
                masks = tuple(_mark_chunks(edges, indices[axis]) for axis, edges in pairs)
            known = self._reads.get(column.array.path, masks)
            if masks is not None and known is not None:
                masks = tuple(a | b for a, b in zip(masks, known, strict=True))
            self._reads[column.array.path] = masks if known is not None else None

    def _find_table(self, names: Sequence[str]) -> ArrayTable:
        """Find the table in the statement's group that has the given columns."""
        relation = resolve_relation(self._use, self._repos, self._opened)
        if not isinstance(relation, ArrayRelation):
            raise InvalidInputError(
                f"{self._statement.target.text} is a metadata table, which a statement cannot change",
                kind=ErrorKind.NOT_ALLOWED,
            )
        wanted = {name.lower() for name in names}
        table = relation.choose(TableNeeds(wanted or None)).table
        growing = self._settings.append_dim
        if growing is not None and growing not in table.dims:
            raise make_unknown_name_error("dimension", growing, table.dims)
        for column in table.columns:  # the position of a row depends on all coordinate values
            if column.role is Role.DIMENSION:
                self._record_reads([column], ())
        return table

    # UPDATE and DELETE

    def _change(self, statement: UpdateOrDelete) -> DataFrame:
        given = getattr(statement.action, "assignments", None) or ()
        table = self._find_table([each.column for each in given])
        clause = make_clause(table, statement.action, self._base)
        alias = quote_name(statement.target.alias)
        dims = [f"{alias}.{quote_name(dim)} AS {quote_name(dim)}" for dim in table.dims]
        values = [f"({value}) AS {quote_name(name)}" for name, value in clause.values.items()]
        columns = ", ".join([*dims, f"0 AS {quote_name(CLAUSE)}", *values])
        frame = self._select(f"SELECT {columns} FROM {statement.target.text} {statement.where}")
        return self._write(table, frame, [clause])

    # INSERT

    def _insert(self, statement: Insert) -> DataFrame:
        rows = self._select(f"SELECT * FROM ({statement.query})")
        names = list(rows.columns) if statement.by_name else statement.columns
        table = self._find_table(names or ())
        if names is None:
            names = [column.name for column in table.columns if not column.numeric]
        if len(names) != len(rows.columns):
            raise InvalidInputError(
                f"INSERT has {len(rows.columns)} values for {len(names)} columns ({', '.join(names)})",
                kind=ErrorKind.NOT_ALLOWED,
            )
        dims, values = divide_columns(table, names)
        numbered = rows.toDF(*(f"c{at}" for at in range(len(names))))
        columns = [f"c{at} AS {quote_name(name)}" for name, at in (*dims.items(), *values.items())]
        frame = numbered.selectExpr(*columns, f"0 AS {quote_name(CLAUSE)}")
        clause = Clause(INSERTED, None, dict.fromkeys(values, ""), dict.fromkeys(dims, ""))
        return self._write(table, frame, [clause])

    # MERGE

    def _merge(self, statement: Merge) -> DataFrame:
        table = self._find_table(_list_assigned(statement.clauses))
        if not table.dims:
            raise InvalidInputError(
                "the table has no dimensions, so ON cannot match a cell; use UPDATE",
                kind=ErrorKind.NOT_ALLOWED,
            )
        everything, _ = self._plan(f"SELECT * FROM {statement.source}", self._repos, self._opened)
        columns = list(everything.columns)
        if len({name.lower() for name in columns}) < len(columns):
            raise InvalidInputError(
                "the source has two columns with the same name; rename one", kind=ErrorKind.NOT_ALLOWED
            )
        shown = [column.name for column in table.columns]
        names = MergeNames(statement.target.alias, shown, statement.source_alias, columns)
        keys, others = names.find_keys(statement.on, table.dims)
        clauses = [
            make_clause(table, each.action, self._base, each.condition, names.qualify, columns)
            for each in statement.clauses
            if each.rows != NOT_MATCHED_BY_SOURCE
        ]
        used = _list_used([*keys.values(), *others], clauses)
        kept = [name for name in columns if SOURCE + name in used]
        selected = self._select(f"SELECT {', '.join(map(quote_name, kept)) or '1'} FROM {statement.source}")
        kept = [SOURCE + name for name in kept] or ["1"]
        source = selected.toDF(*kept).selectExpr(
            *(f"{text} AS {quote_name(KEY + dim)}" for dim, text in keys.items()), *map(quote_name, kept)
        )
        source = _cast_columns(source, {KEY + dim: table.column(dim) for dim in table.dims})
        reader = CellReader(
            self._find_target(table),
            tuple(column for column in table.columns if TARGET + column.name in used),
        )
        joined = self._attach(source, reader).selectExpr("*", f"{_write_match(others)} AS {_IS_MATCHED}")
        return self._apply(statement, table, clauses, reader, joined)

    def _apply(
        self, statement: Merge, table: ArrayTable, clauses: list[Clause], reader: CellReader, joined: Any
    ) -> DataFrame:
        """Determine which MERGE clause applies to each row, and write the changes."""
        whens = [each for each in statement.clauses if each.rows != NOT_MATCHED_BY_SOURCE]
        left_out = [each for each in statement.clauses if each.rows == NOT_MATCHED_BY_SOURCE]
        rows = {MATCHED: _IS_MATCHED, NOT_MATCHED: f"NOT {_IS_MATCHED}"}
        with _cache_rows(joined, reader.reads_variables or bool(left_out)):
            if reader.reads_variables:
                self._record_block_reads(table, reader, joined)
            numbered = dict(enumerate(clauses))
            variables = sorted({name for each in clauses for name in each.values})
            number = quote_name(CLAUSE)
            changes = []
            if clauses:
                guarded = {at: (rows[when.rows], clauses[at]) for at, when in enumerate(whens)}
                chosen = joined.selectExpr("*", f"{write_clause_number(guarded)} AS {number}")
                changes.append(
                    chosen.where(f"{number} IS NOT NULL").selectExpr(
                        *write_coordinates(numbered, table.dims, number),
                        number,
                        *write_values(numbered, variables, number),
                    )
                )
            extra: list[Clause] = []
            if left_out:
                extra = [make_clause(table, each.action, self._base, each.condition) for each in left_out]
                changes.append(self._select_unmatched(statement, table, extra, len(clauses), joined))
            return self._write(table, _union_rows(changes), [*clauses, *extra])

    def _find_target(self, table: ArrayTable) -> WriteTarget:
        """Create the write target for the existing grid of a table."""
        variables = [column for column in table.variables if not column.numeric]
        if not variables:
            raise InvalidInputError(
                f"group {table.group} has no variables that a statement could change",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        columns = [table.column(dim) for dim in table.dims] + variables
        schema = pa.schema([(column.name, column.arrow) for column in columns])
        return self._prepare(self._session.fork(), table, schema, _no_keys(table, schema))

    def _prepare(
        self, session: Session, table: ArrayTable, schema: pa.Schema, keys: Mapping[str, Values]
    ) -> WriteTarget:
        template = Template(table.dims, append_dim=self._settings.append_dim)
        return prepare(session, table.group, schema, table.dims, keys, template, APPEND)

    def _attach(self, source: Any, reader: CellReader) -> Any:
        """Join each source row with its matching cell, and with the current values that the statement
        uses."""
        driver, target = VERSION, reader.target
        pickled = pickle.dumps((self._base, reader))

        def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with hide_tracebacks():
                check_version(driver)
                for batch in batches:
                    yield find_cells(target, batch)

        def attach(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with hide_tracebacks():
                session, cells = pickle.loads(pickled)
                yield from cells.attach(session, batches)

        given = _list_fields(source)
        placed: Any = map_in_arrow(source, find, f"`{BLOCK}` bigint, `{CELL}` bigint, {given}")
        if not reader.columns:
            return placed
        if reader.reads_variables:
            tasks = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 200)
            tasks = max(min(tasks, int(np.prod(target.grid))), 1)
            placed = placed.repartition(tasks, BLOCK).sortWithinPartitions(BLOCK)
        current = to_ddl(pa.schema([(TARGET + column.name, column.arrow) for column in reader.columns]))
        return map_in_arrow(placed, attach, f"`{BLOCK}` bigint, `{CELL}` bigint, {given}, {current}")

    def _record_block_reads(self, table: ArrayTable, reader: CellReader, joined: Any) -> None:
        """Record reads of the chunks whose cells match source rows, for conflict detection."""
        blocks = [row[0] for row in joined.where(f"{CELL} >= 0").select(BLOCK).distinct().collect()]
        found = [np.zeros(size, np.bool_) for size in table.shape]
        for block in blocks:
            for mask, part in zip(found, reader.target.region(block), strict=True):
                mask[part] = True
        self._record_reads(reader.columns, [np.flatnonzero(mask) for mask in found])

    def _select_unmatched(
        self, statement: Merge, table: ArrayTable, clauses: list[Clause], first: int, joined: Any
    ) -> Any:
        """Select the cells that no source row matches, with the clause that applies to each."""
        types = {dim: to_spark_type(table.column(dim).arrow) for dim in table.dims}
        matched = joined.where(_IS_MATCHED).selectExpr(
            *(f"CAST({quote_name(KEY + dim)} AS {kind}) AS {quote_name(dim)}" for dim, kind in types.items())
        )
        alias, number = quote_name(statement.target.alias), quote_name(CLAUSE)
        dims = [f"{alias}.{quote_name(dim)} AS {quote_name(dim)}" for dim in table.dims]
        on = " AND ".join(
            f"{alias}.{quote_name(dim)} = {_MATCHED_ROWS}.{quote_name(dim)}" for dim in table.dims
        )
        guarded = {first + at: ("true", each) for at, each in enumerate(clauses)}
        which = write_clause_number(guarded)
        variables = sorted({name for each in clauses for name in each.values})
        values = write_values({at: each for at, (_, each) in guarded.items()}, variables, f"({which})")
        columns = ", ".join([*dims, f"{which} AS {number}", *values])
        conditions = [each.condition for each in clauses]
        where = "" if None in conditions else "WHERE " + " OR ".join(f"({each})" for each in conditions)
        query = (
            f"SELECT {columns} FROM {statement.target.text} LEFT ANTI JOIN {_MATCHED_ROWS} ON {on} {where}"
        )
        return self._select(query, {_MATCHED_ROWS: matched}).where(f"{number} IS NOT NULL")

    # Writing

    def _write(self, table: ArrayTable, frame: Any, clauses: Sequence[Clause]) -> DataFrame:
        """Write rows that consist of coordinates, a clause number and new values, and commit them."""
        sets = tuple(frozenset(each.values) for each in clauses)
        frame = _cast_columns(frame, {name: table.column(name) for name in frame.columns if name != CLAUSE})
        inserts = any(each.kind == INSERTED for each in clauses)
        with _cache_rows(frame, inserts):
            names = [name for name in frame.columns if name != CLAUSE]
            schema = convert_schema(frame.select(*map(quote_name, names)).schema)
            keys = collect_keys(frame, table.dims) if inserts else _no_keys(table, schema)
            if inserts:
                self._check_on_grid(table, keys)
            if inserts and not all(len(each) for each in keys.values()):
                keys = _no_keys(table, schema)
            target = replace(self._prepare(self._session, table, schema, keys), clauses=sets)
            written = write_blocks(frame, target, self._session.fork())
        self._session._merge_receipts([each for each, *_ in written])
        counts: Counter[int] = Counter()
        for _, _, found in written:
            counts.update(found)
        kinds = {at: each.kind for at, each in enumerate(clauses)}
        if not self._session.has_uncommitted_changes:
            return self._summarize(self._session.snapshot_id, counts, kinds)
        request = replace(self._request, solver=ReadDetector(self._reads))
        commit = request.commit_once(self._repo, self._session, table.dims[0] if table.dims else "")
        record_statistics(self._session, (found for _, statistics, _ in written for found in statistics))
        return self._summarize(commit, counts, kinds)

    def _check_on_grid(self, table: ArrayTable, keys: Mapping[str, Values]) -> None:
        """Raise an error if coordinates are off the grid and do not extend the append dimension."""
        target = self._find_target(table)
        for dim, lookup in zip(target.dims, target.lookups, strict=True):
            fresh = keys[dim][~lookup.find(keys[dim])[1]] if len(keys[dim]) else keys[dim]
            if len(fresh) and self._settings.append_dim != dim:
                raise InvalidInputError(
                    f"{dim} {format_key(fresh[0], lookup.times)} is not a coordinate of group {table.group};"
                    f" pass append_dim={dim!r} to extend the dimension, or drop rows that are not on the"
                    " grid",
                    kind=ErrorKind.INVALID_ARRAY_METADATA,
                )

    def _summarize(self, snapshot: str, counts: Counter[int], kinds: Mapping[int, str]) -> DataFrame:
        totals: Counter[str] = Counter()
        for number, count in counts.items():
            totals[kinds[number]] += count
        row = (snapshot, totals.total(), totals["updated"], totals["deleted"], totals["inserted"])
        return _make_frame(self._spark, [row], _SUMMARY)


def _name_statement(statement: DataChange) -> str:
    if isinstance(statement, UpdateOrDelete):
        return "DELETE FROM" if isinstance(statement.action, DeleteCells) else "UPDATE"
    return "MERGE INTO" if isinstance(statement, Merge) else "INSERT INTO"


def _mark_chunks(edges: Any, indices: Any) -> Any:
    """Return a mask of the chunks along a dimension that contain the given indices. None selects all
    chunks.
    """
    if indices is None:
        return np.ones(len(edges) - 1, np.bool_)
    mask = np.zeros(len(edges) - 1, np.bool_)
    mask[np.searchsorted(edges, indices, side="right") - 1] = True
    return mask


def _no_keys(table: ArrayTable, schema: pa.Schema) -> dict[str, Values]:
    return find_keys([pa.RecordBatch.from_pylist([], schema)], table.dims)


def _list_assigned(clauses: Sequence[MergeClause]) -> list[str]:
    """List the columns that clauses set or insert, which determine the target table within the group."""
    return [
        assignment.column
        for each in clauses
        for assignment in getattr(each.action, "assignments", None) or ()
    ]


def _list_used(texts: Sequence[str], clauses: Sequence[Clause]) -> set[str]:
    """List the target and source columns that qualified expressions use."""
    texts = [
        *texts,
        *(each.condition or "" for each in clauses),
        *(text for each in clauses for text in (*each.values.values(), *each.coordinates.values())),
    ]
    whole = "\n".join(texts)
    parts = whole.replace("``", "\0").split("`")[1::2]
    return {part.replace("\0", "`") for part in parts}


def _write_match(others: Sequence[str]) -> str:
    """Return the SQL condition under which a source row matches a cell."""
    conditions = " AND ".join([f"{CELL} >= 0", *(f"({each})" for each in others)])
    return f"coalesce({conditions}, false)"


def _list_fields(frame: Any) -> str:
    return ", ".join(
        f"{quote_name(each.name)} {each.dataType.simpleString()}" for each in frame.schema.fields
    )


def _cast_columns(frame: Any, columns: Mapping[str, Column]) -> Any:
    """Cast DataFrame columns to the types of a table: untyped nulls, and times given as strings or
    timestamps.
    """
    casts = []
    for each in frame.schema.fields:
        column = columns.get(each.name)
        name = quote_name(each.name)
        is_time = column is not None and column.arrow == TIMESTAMP
        if column is not None and (
            isinstance(each.dataType, NullType)
            or (is_time and isinstance(each.dataType, StringType | TimestampType))
        ):
            casts.append(f"CAST({name} AS {to_spark_type(column.arrow)}) AS {name}")
        else:
            casts.append(name)
    return frame.selectExpr(*casts)


def _union_rows(frames: Sequence[Any]) -> Any:
    """Union DataFrames that have the same dimensions. Missing variables become null."""
    whole, *rest = frames
    for each in rest:
        whole = whole.unionByName(each, allowMissingColumns=True)
    return whole


@contextmanager
def _cache_rows(frame: Any, wanted: bool) -> Iterator[None]:
    """Cache a DataFrame that is used several times, so that every use sees the same rows."""
    if not wanted:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()
