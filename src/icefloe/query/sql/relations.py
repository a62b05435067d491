"""Relations of a SQL query: the arrays of a group, or a metadata table, that the query names in FROM."""

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
from icefloe.query.scan.moments import make_moment
from icefloe.query.scan.plan import TableScan, scan_table
from icefloe.query.scan.reduce import Aggregation, plan_moments
from icefloe.query.scan.statistics import ChunkCounts
from icefloe.query.schema import (
    GroupTables,
    Table,
    find_tables,
    make_ambiguous_table_error,
    make_unknown_name_error,
)
from icefloe.query.spark_types import to_spark_type
from icefloe.query.sql.aggregates import reduce_select
from icefloe.query.sql.analysis import Needs
from icefloe.query.sql.parse import Edit, Query, TableUse
from icefloe.query.sql.pruning import keep_columns, prune_rows, prune_scan
from icefloe.repository import Repository
from icefloe.session import Session

FEW_ROWS = 200_000
"""The number of cells up to which reading rows is faster than a second analysis of the query by Spark."""
_WORTH_IT: Final = 2
"""Smallest number of cells per group for which groups are used: a row of moments costs more than a cell."""


@dataclass(frozen=True, slots=True)
class TableReads:
    """The chunks that a query reads of one table."""

    table: str
    """Name of the table in the query."""
    method: str
    """`groups` if chunks are aggregated where they are read, `rows` if Spark receives rows."""
    counts: ChunkCounts


@dataclass(frozen=True, slots=True)
class MetadataRelation:
    """A metadata table of a repository."""

    name: str
    view: View

    @property
    def columns(self) -> dict[str, str]:
        """Names and Spark types of all columns."""
        return {field.name: to_spark_type(field.type) for field in get_metadata_table(self.name).schema}

    def schema(self, needs: Needs) -> pa.Schema:
        """Return the columns that are read: all of them."""
        return get_metadata_table(self.name).schema

    def title(self, needs: Needs) -> str:
        """Name the repository and the table, for Spark's pages."""
        return f"{describe_location(self.view.repo)}: {self.name}"

    def tasks(self) -> list[Any]:
        """List the units of work, one per task."""
        return list(get_metadata_table(self.name).tasks(self.view))

    def read(self, item: Any) -> Iterator[pa.RecordBatch]:
        """Read the rows of one unit of work."""
        return get_metadata_table(self.name).read(self.view, item)


@dataclass(frozen=True, slots=True)
class ArrayRelation:
    """The arrays of a group, which may form several tables. The query decides which one is meant."""

    session: Session
    tables: GroupTables
    location: str
    statistics: bool = True
    """True if statistics of chunks are used."""
    scans: dict[tuple[str, ...], TableScan] = field(default_factory=dict)
    """Scans of whole tables by their dimensions, so that a query reads coordinates once."""

    @property
    def columns(self) -> dict[str, str]:
        """Names and Spark types of the columns of all tables."""
        return {
            column.name: to_spark_type(column.arrow)
            for table in self.tables.tables
            for column in table.columns
        }

    def schema(self, needs: Needs) -> pa.Schema:
        """Return the columns that a query reads."""
        return keep_columns(self._choose_table(needs), needs).schema

    def title(self, needs: Needs) -> str:
        """Name the repository, the version and the arrays that a query reads, for Spark's pages."""
        scan = self._scan_all(needs)
        return replace(scan, table=keep_columns(scan.table, needs)).title

    def scan(self, needs: Needs, utc: bool) -> TableScan:
        """Scan the needed columns where the conditions can hold."""
        return prune_scan(self._scan_all(needs), needs, utc)

    def reduce(
        self, query: Query, scope: Scope, needs: Needs, utc: bool, slots: int
    ) -> tuple[tuple[Edit, ...], Aggregation] | None:
        """Plan to answer a SELECT from groups of cells; None if that is impossible or saves little."""
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
        large = aggregation.estimated_rows * _WORTH_IT > aggregation.plan.rows
        if aggregation.answers is None and (few or large):
            return None
        return found.edits, aggregation

    def choose(self, needs: Needs) -> TableScan:
        """Scan all rows and columns of the table that a query means."""
        return self._scan_all(needs)

    def aggregate_title(self, needs: Needs, aggregation: Aggregation) -> str:
        """Name the repository, the version and the variables that are aggregated."""
        return self._scan_all(needs).title_of(column.name for column in aggregation.plan.table.columns)

    def _scan_all(self, needs: Needs) -> TableScan:
        table = self._choose_table(needs)
        if table.dims not in self.scans:
            self.scans[table.dims] = scan_table(
                self.session, table, self.location, statistics=self.statistics
            )
        return self.scans[table.dims]

    def _choose_table(self, needs: Needs) -> Table:
        """Choose the table with all columns that the query names."""
        tables, columns = self.tables.tables, needs.columns
        if columns is None or needs.starred or len(tables) == 1:
            return tables[0] if len(tables) == 1 else self.tables.choose(None)
        fitting = [table for table in tables if columns <= {column.name.lower() for column in table.columns}]
        if len(fitting) > 1:  # each table has different rows
            raise make_ambiguous_table_error(self.tables.group, fitting)
        return fitting[0] if fitting else self.tables.choose(sorted(columns))


Relation: TypeAlias = ArrayRelation | MetadataRelation
Sessions: TypeAlias = dict[tuple[Any, ...], tuple[Session, str]]
"""Sessions and their locations, by repository name and version."""


def resolve_relation(
    use: TableUse, repos: Mapping[str, AnyRepository], opened: Sessions, *, statistics: bool = True
) -> Relation:
    """Find the arrays or the metadata table that a query names. Sessions are opened once per version."""
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
            f"{use.repo} is a session; {use.repo}.{use.rest[-1]} requires the repository",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return open_repository(repo)


def _find_group_tables(session: Session, use: TableUse) -> GroupTables:
    """Find the group or array that the rest of a name denotes, and the tables of the group."""
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
