"""`icefloe.spark.sql`: ordinary SQL over repositories, with scans of just what each table is needed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.coding import ddl
from icefloe.spark.frames import frame_of
from icefloe.spark.metadata_tables import TABLES, View, metadata_table
from icefloe.spark.options import any_version, parse, session_at
from icefloe.spark.predicates import Known, answer
from icefloe.spark.queries import Needs, Query, TableUse, needs_of, parse_query
from icefloe.spark.scans import Place, Scan, scan_of
from icefloe.spark.selection import Coordinates
from icefloe.spark.table import GroupTables, Role, Table, tables_of, unknown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sql(spark: SparkSession, query: str, repos: Mapping[str, Place]) -> DataFrame:
    """The answer to a query over repositories, which are named by the keys of `repos`.

    `era5` is the table of the root group, `era5.a.b` that of the group /a/b, or of one array of a group;
    `era5.refs` and its like are the tables about the repository. `VERSION AS OF 'tag'` and `TIMESTAMP AS OF`
    choose a version for each place in the query. Other tables and views of the session can be named too.
    """
    parsed = parse_query(query, repos)
    opened: dict[tuple[Any, ...], Session] = {}
    sources = [_source(spark, use, repos, opened) for use in parsed.uses]
    needs = needs_of(
        parsed,
        {use.number: source.columns for use, source in zip(parsed.uses, sources, strict=True)},
        _other_tables(spark, parsed),
    )
    utc = spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
    frames: dict[str, Any] = {
        f"icefloe_{use.number}": source.frame(needs[use.number], utc)
        for use, source in zip(parsed.uses, sources, strict=True)
    }
    names = {use.number: f"icefloe_{use.number}" for use in parsed.uses}
    return spark.sql(parsed.rewritten(names), **frames) if frames else spark.sql(query)


@dataclass(frozen=True, slots=True)
class AboutSource:
    """A table about a repository, in a query."""

    spark: SparkSession
    name: str
    view: View

    @property
    def columns(self) -> list[str]:
        """All it has."""
        return list(metadata_table(self.name).schema.names)

    def frame(self, needs: Needs, utc: bool) -> DataFrame:
        """Its rows."""
        table = metadata_table(self.name)
        orders = table.orders(self.view)
        read = partial(_read_about, self.name, self.view, orders)
        return frame_of(self.spark, len(orders), read, ddl(table.schema), f"icefloe {self.name}")


def _read_about(name: str, view: View, orders: Sequence[Any], number: int) -> Any:
    table = metadata_table(name)
    return table.read(view, orders[number], table.schema)


@dataclass(frozen=True, slots=True)
class ArraySource:
    """The arrays of a group, in a query."""

    spark: SparkSession
    session: Session
    tables: GroupTables
    place: str

    @property
    def columns(self) -> list[str]:
        """Those of all tables of the group: which one is meant the query tells."""
        found = {column.name: None for table in self.tables.tables for column in table.columns}
        return list(found)

    def frame(self, needs: Needs, utc: bool) -> DataFrame:
        """The rows that may matter to the query."""
        return self.scan(needs, utc).to_df()

    def scan(self, needs: Needs, utc: bool) -> Scan:
        """A scan of the needed columns, where the conditions can hold."""
        table = self._table(needs.columns)
        scan = scan_of(self.spark, self.session, table, self.place)
        selection = scan.selection
        for axis, mask in masks(scan.coordinates, needs.conditions, utc)[0].items():
            selection = selection.narrowed(axis, np.flatnonzero(mask))
        chosen = _needed(table, needs.columns)
        everything = scan_of(self.spark, self.session, chosen, self.place)
        return Scan(self.spark, self.session, chosen, scan.coordinates, selection, everything.title)

    def _table(self, columns: set[str] | None) -> Table:
        """Of several tables the smallest that has all the columns that are named."""
        tables = self.tables.tables
        if columns is None or len(tables) == 1:
            return tables[0] if len(tables) == 1 else self.tables.choose(None)
        for table in reversed(tables):
            if columns <= {column.name.lower() for column in table.columns}:
                return table
        return self.tables.choose(sorted(columns))


def _needed(table: Table, columns: set[str] | None) -> Table:
    """The table with the columns of some names, in its own order, and at least with one."""
    folded = [column.name.lower() for column in table.columns]
    if columns is None or len(set(folded)) < len(folded):
        return table
    names = [column.name for column in table.columns if column.name.lower() in columns]
    return table.only(
        names or [table.columns[len(table.dims) - 1].name if table.dims else table.columns[0].name]
    )


def masks(coordinates: Coordinates, conditions: Sequence[exp.Expr], utc: bool) -> tuple[dict[int, Any], bool]:
    """Per dimension for which indices all conditions can hold, and whether that says it all."""
    found: dict[int, Any] = {}
    exact = True
    for condition in conditions:
        column = _single_coordinate(coordinates, condition)
        known = None
        if column is not None:
            values, missing = coordinates.values(column)
            known = answer(condition, Known(values, missing, column.arrow, utc))
        if column is None or known is None:
            exact = False
            continue
        axis = column.axes[0]
        found[axis] = known.mask if axis not in found else found[axis] & known.mask
        exact = exact and known.exact
    return found, exact


def _single_coordinate(coordinates: Coordinates, condition: exp.Expr) -> Any:
    """The one coordinate along one dimension that a condition is about."""
    names = {column.name.lower() for column in condition.find_all(exp.Column)}
    if len(names) != 1:
        return None
    matches = [column for column in coordinates.table.columns if column.name.lower() in names]
    if len(matches) != 1 or matches[0].role is Role.VARIABLE or len(matches[0].axes) != 1:
        return None
    return matches[0]


def _source(
    spark: SparkSession, use: TableUse, repos: Mapping[str, Place], opened: dict[tuple[Any, ...], Session]
) -> AboutSource | ArraySource:
    place = repos[use.repo]
    if use.rest and (about := _about(use.rest[-1])) is not None and len(use.rest) == 1:
        return AboutSource(spark, about[0], _view(place, use, about))
    key = (use.repo, *sorted(use.version.items()))
    if key not in opened:
        opened[key] = _session(place, use.version)
    session = opened[key]
    return ArraySource(spark, session, _group_tables(session, use), use.repo)


def _about(name: str) -> tuple[str, str | None, str | None] | None:
    """A table about the repository: refs, or diff:v1..v2 with two versions."""
    word, _, versions = name.partition(":")
    if word.lower() not in TABLES:
        return None
    start, _, end = versions.partition("..")
    return word.lower(), start or None, end or None


def _view(place: Place, use: TableUse, about: tuple[str, str | None, str | None]) -> View:
    repo = _repository(place, use)
    _, start, end = about
    session = any_version(repo, end) if end else session_at(repo, use.version)
    return View(repo, session, any_version(repo, start) if start else None)


def _repository(place: Place, use: TableUse) -> Repository:
    if isinstance(place, Repository):
        return place
    if isinstance(place, Session):
        raise InvalidInputError(
            f"{use.repo} is given as a session; {use.repo}.{use.rest[-1]} needs the repository",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return parse({"path": str(place)}).open()


def _session(place: Place, version: Mapping[str, str]) -> Session:
    if isinstance(place, Session):
        if version:
            raise InvalidInputError(
                "a session is one version and has no other; give the repository", kind=ErrorKind.NOT_ALLOWED
            )
        return place
    repo = place if isinstance(place, Repository) else parse({"path": str(place)}).open()
    return session_at(repo, version)


def _group_tables(session: Session, use: TableUse) -> GroupTables:
    """The group that the rest of a name is; or the array, which then chooses the table."""
    path = "/" + "/".join(part.strip("/") for part in use.rest)
    try:
        return tables_of(session, path)
    except IcechunkError:
        group, _, array = path.rpartition("/")
        if not use.rest or session.workspace.node(path) is None:
            known = [*TABLES, *(name for name in session.workspace.children("/"))]
            raise unknown("table", ".".join(use.rest), known, f"in {use.repo}") from None
        found = tables_of(session, group or "/")
        return GroupTables(found.group, (found.choose([array]),), {})


def _other_tables(spark: SparkSession, query: Query) -> dict[str, list[str]]:
    """The columns of tables that Spark itself knows: to tell whose a column without a table is."""
    ours = {use.start for use in query.uses}
    found: dict[str, list[str]] = {}
    for scope in traverse_scope(query.tree):
        for source in scope.sources.values():
            if not isinstance(source, exp.Table) or source.parts[0].meta.get("start") in ours:
                continue
            name = ".".join(part.name for part in source.parts)
            try:
                found[name] = list(spark.table(name).columns)
            except Exception:  # noqa: BLE001 - Spark tells what is wrong with it when it runs the query
                continue
    return found
