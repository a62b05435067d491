"""The relations that a FROM clause can name: the arrays of a group, or a metadata table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlglot.optimizer.scope import Scope

from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.query.metadata_tables import TABLES, View, get_metadata_table
from icefloe.query.options import (
    AnyRepository,
    describe_location,
    open_repository,
    open_session,
    open_version,
    resolve_session,
)
from icefloe.query.scan.data_skipping import ChunkCounts
from icefloe.query.scan.moments import make_moment
from icefloe.query.scan.plan import TableScan, scan_table
from icefloe.query.scan.reduce import Aggregation, plan_moments
from icefloe.query.schema import (
    ArrayTable,
    GroupTables,
    find_tables,
    make_ambiguous_table_error,
    make_unknown_name_error,
)
from icefloe.query.spark_types import to_spark_type
from icefloe.query.sql.aggregates import reduce_select
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.parse import Edit, Query, TableUse
from icefloe.query.sql.pruning import keep_columns, prune_rows, prune_scan
from icefloe.repository import Repository
from icefloe.session import Session

FEW_ROWS = 200_000
"""The number of cells up to which reading rows is faster than letting Spark analyze the query a second
time."""
_MIN_CELLS_PER_GROUP: Final = 2
"""The minimum average number of cells per group for which computing moments per group pays off. A row of
moments costs more than a cell."""


@dataclass(frozen=True, slots=True)
class TableReads:
    """The chunks that a SQL query reads from one relation, and how it reads them."""

    table: str
    """The table name, as written in the query."""
    method: str
    """How the table is read: `groups` if tasks aggregate the chunks they read, `rows` if Spark receives
    rows.
    """
    counts: ChunkCounts
    scan: TableScan | None = None
    """The scan of all cells and arrays on which the result depends; None if it was not recorded."""


@dataclass(frozen=True, slots=True)
class MetadataRelation:
    """A metadata table that a SQL query uses as a relation."""

    name: str
    view: View

    @property
    def columns(self) -> dict[str, str]:
        """The names and Spark types of all columns of the metadata table."""
        return {field.name: to_spark_type(field.type) for field in get_metadata_table(self.name).schema}

    def schema(self, needs: TableNeeds) -> pa.Schema:
        """Return the Arrow schema of the metadata table. Queries always read all of its columns."""
        return get_metadata_table(self.name).schema

    def title(self, needs: TableNeeds) -> str:
        """Return a title for the metadata table in Spark's web UI."""
        return f"{describe_location(self.view.repo)}: {self.name}"

    def tasks(self) -> list[Any]:
        """List the units of work of the metadata table, one per task."""
        return list(get_metadata_table(self.name).tasks(self.view))

    def read(self, item: Any) -> Iterator[pa.RecordBatch]:
        """Read the rows of one unit of work."""
        return get_metadata_table(self.name).read(self.view, item)


@dataclass(frozen=True, slots=True)
class ArrayRelation:
    """The arrays of a group that a SQL query uses as a relation. They may form several tables."""

    session: Session
    tables: GroupTables
    location: str
    statistics: bool = True
    """True if the query may use chunk statistics."""
    scans: dict[tuple[str, ...], TableScan] = field(default_factory=dict)
    """Whole-table scans, keyed by dimensions. They cache coordinate values for the query."""

    @property
    def columns(self) -> dict[str, str]:
        """The names and Spark types of the columns of all tables of a group."""
        return {
            column.name: to_spark_type(column.arrow)
            for table in self.tables.tables
            for column in table.columns
        }

    def schema(self, needs: TableNeeds) -> pa.Schema:
        """Return the Arrow schema of the columns that a query reads from the group."""
        return keep_columns(self._choose_table(needs), needs).schema

    def title(self, needs: TableNeeds) -> str:
        """Return a title for Spark's web UI that names the repository and the version."""
        scan = self._scan_all(needs)
        return replace(scan, table=keep_columns(scan.table, needs)).title

    def scan(self, needs: TableNeeds, utc: bool) -> TableScan:
        """Return a scan of the needed columns, restricted to the indices for which the conditions can
        hold.
        """
        return prune_scan(self._scan_all(needs), needs, utc)

    def reduce(
        self, query: Query, scope: Scope, needs: TableNeeds, utc: bool, slots: int
    ) -> tuple[tuple[Edit, ...], Aggregation] | None:
        """Plan the computation of a SELECT from groups of cells instead of single cells.

        Return None if it is impossible or saves little.
        """
        if needs.columns is None:
            return None
        scan = prune_rows(self._scan_all(needs), needs, utc)
        few = math.prod(scan.selection.counts(scan.table)) <= FEW_ROWS
        if few and not self.statistics:
            return None
        found = reduce_select(query.text, query.tokens, scope, scan.coordinates, utc)
        if found is None:
            return None
        moments = found.moments or (make_moment("cells", None),)
        scan = replace(scan, filters=found.filters)
        aggregation = plan_moments(scan, found.terms, found.shown, moments, slots)
        large = aggregation.estimated_rows * _MIN_CELLS_PER_GROUP > aggregation.plan.rows
        if aggregation.answers is None and (few or large):
            return None
        return found.edits, aggregation

    def choose(self, needs: TableNeeds) -> TableScan:
        """Choose the table of a group that a SQL query uses.

        Return a scan of all rows and columns of that table.
        """
        return self._scan_all(needs)

    def aggregate_title(self, needs: TableNeeds, aggregation: Aggregation) -> str:
        """Return a title for Spark's web UI that names the variables that the query aggregates."""
        return self._scan_all(needs).title_of(column.name for column in aggregation.plan.table.columns)

    def _scan_all(self, needs: TableNeeds) -> TableScan:
        table = self._choose_table(needs)
        if table.dims not in self.scans:
            self.scans[table.dims] = scan_table(
                self.session, table, self.location, statistics=self.statistics
            )
        return self.scans[table.dims]

    def _choose_table(self, needs: TableNeeds) -> ArrayTable:
        """Choose the table that contains all columns that the query names."""
        tables, columns = self.tables.tables, needs.columns
        if columns is None or needs.starred or len(tables) == 1:
            return tables[0] if len(tables) == 1 else self.tables.choose(None)
        fitting = [table for table in tables if columns <= {column.name.lower() for column in table.columns}]
        if len(fitting) > 1:  # each table has different rows
            raise make_ambiguous_table_error(self.tables.group, fitting)
        return fitting[0] if fitting else self.tables.choose(sorted(columns))


Relation: TypeAlias = ArrayRelation | MetadataRelation
Sessions: TypeAlias = dict[tuple[Any, ...], tuple[Session, str]]
"""Open sessions and their locations, keyed by repository name and version."""


def resolve_relation(
    use: TableUse, repos: Mapping[str, AnyRepository], opened: Sessions, *, statistics: bool = True
) -> Relation:
    """Resolve a table name in a SQL query to a relation: the arrays of a group, or a metadata table.

    A session is opened once per version.
    """
    repo = repos[use.repo]
    if len(use.rest) == 1:
        name, _, versions = use.rest[0].partition(":")  # refs, or diff:v1..v2 with two versions
        if name.lower() in TABLES:
            return MetadataRelation(name.lower(), _open_view(_open_repository(repo, use), use, versions))
    key = (use.repo, *sorted(use.version.items()))
    if key not in opened:
        opened[key] = resolve_session(repo, use.version, open_session)
    session, location = opened[key]
    return ArrayRelation(session, _find_group_tables(session, use), location, statistics)


def _open_view(repo: Repository, use: TableUse, versions: str) -> View:
    start, _, end = versions.partition("..")
    session = open_version(repo, end) if end else open_session(repo, use.version)
    return View(repo, session, open_version(repo, start) if start else None)


def _open_repository(repo: AnyRepository, use: TableUse) -> Repository:
    if isinstance(repo, Session):
        raise InvalidInputError(
            f"{use.repo} is a session, and {use.repo}.{use.rest[-1]} requires a repository; register the"
            " repository",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return open_repository(repo)


def _find_group_tables(session: Session, use: TableUse) -> GroupTables:
    """Return the tables of the group or array named by the parts that follow the repository name."""
    path = "/" + "/".join(part.strip("/") for part in use.rest)
    try:
        return find_tables(session, path)
    except IcechunkError as error:
        if error.kind not in (ErrorKind.NODE_NOT_FOUND, ErrorKind.NOT_A_GROUP):
            raise
        group, _, array = path.rpartition("/")
        if not use.rest or session._workspace.node(path) is None:
            known = [*TABLES, *(name for name in session._workspace.children("/"))]
            raise make_unknown_name_error("table", ".".join(use.rest), known, f"in {use.repo}") from None
        found = find_tables(session, group or "/")
        return GroupTables(found.group, (found.choose([array]),), {})
