"""`icefloe.spark.sql`: ordinary SQL over repositories, with scans of just what each table is needed for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from icefloe.errors import ErrorKind, IcechunkError, InvalidInputError
from icefloe.query.decode import ddl, quoted, spark_type
from icefloe.query.metadata_tables import TABLES, View, metadata_table
from icefloe.query.options import any_version, parse, session_at
from icefloe.query.scan.groups import grouped
from icefloe.query.scan.moments import moment_of
from icefloe.query.scan.reduce import Aggregation, planned
from icefloe.query.scan.selection import Coordinates, Selection
from icefloe.query.schema import GroupTables, Role, Table, several, tables_of, unknown
from icefloe.query.sql.aggregates import Reduction, reduction
from icefloe.query.sql.parse import (
    Edit,
    Needs,
    Query,
    TableUse,
    Understood,
    not_understood,
    parse_query,
    understood,
)
from icefloe.query.sql.predicates import Known, answer
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.dataframe import announced, frame_of, is_client, place_of, quiet_errors, slots_of
from icefloe.spark.scan_tables import Place, Scan, aggregated, open_session, scan_of, title_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_ROWS = 200_000
"""So many cells are handed over row by row sooner than Spark has looked at a query a second time."""
_WORTH_IT: Final = 2
"""Groups are used where they have so many cells at least: a row of moments is dearer than one of cells."""


def sql(spark: SparkSession, query: str, repos: Mapping[str, Place]) -> DataFrame:
    """The answer to a query over repositories, which are named by the keys of `repos`.

    `era5` is the table of the root group, `era5.a.b` that of the group /a/b, or of one array of a group;
    `era5.refs` and its like are the tables about the repository. `VERSION AS OF 'tag'` and `TIMESTAMP AS OF`
    choose a version for each place in the query. Other tables and views of the session can be named too.
    """
    parsed = parse_query(query, repos)
    with quiet_errors():
        return _answered(spark, parsed, repos) if parsed.uses else spark.sql(query)


def _answered(spark: SparkSession, parsed: Query, repos: Mapping[str, Place]) -> DataFrame:
    opened: Opened = {}
    sources = [_source(spark, use, repos, opened) for use in parsed.uses]
    columns = {use.number: source.columns for use, source in zip(parsed.uses, sources, strict=True)}
    if _is_read_otherwise(spark, parsed.text):
        found = not_understood(parsed)
    else:
        found = understood(parsed, columns, _other_tables(spark, parsed))
    utc = spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
    asked = _Asked(spark, parsed, sources, found, utc)
    answered = asked.reduced() or asked.plain()
    announced(
        spark,
        [source.title(found.needs[use.number]) for use, source in zip(parsed.uses, sources, strict=True)],
    )
    return answered


def _is_read_otherwise(spark: SparkSession, text: str) -> bool:
    """Whether texts in a query may mean something else to this session than to sqlglot."""
    settings = {'"': "spark.sql.ansi.doubleQuotedIdentifiers", "\\": "spark.sql.parser.escapedStringLiterals"}
    return any(sign in text and spark.conf.get(name) == "true" for sign, name in settings.items())


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query and what its tables are."""

    spark: SparkSession
    query: Query
    sources: Sequence[Source]
    understood: Understood
    utc: bool

    def plain(self) -> DataFrame:
        """The answer from the rows that may matter."""
        try:
            found = self._answer({}, ())
            if is_client(self.spark):
                found.schema  # noqa: B018 - it asks only now
        except AnalysisException as refused:
            # Whatever was not understood, or is wrong: of whole tables Spark says what it says of any.
            try:
                return replace(self, understood=not_understood(self.query))._answer({}, ())
            except InvalidInputError:  # a group with several tables has no whole one
                raise refused from None
        return found

    def reduced(self) -> DataFrame | None:
        """The answer with groups of cells in place of cells where a SELECT has that shape; None elsewhere."""
        if not isinstance(self.query.tree, exp.Query):
            return None  # a statement that does something is said once
        frames: dict[int, DataFrame] = {}
        edits: list[Edit] = []
        for number, scope in self.understood.alone:
            source = self.sources[number]
            if isinstance(source, ArraySource):
                found = source.reduction(self.query, scope, self._needs(number), self.utc)
                if found is not None:
                    frames[number] = source.reduced(found[1])
                    edits += found[0].edits
        return self._checked(frames, edits) if frames else None

    def _checked(self, frames: Mapping[int, DataFrame], edits: Sequence[Edit]) -> DataFrame | None:
        """An answer with the names and types of the plain one; None where it has not."""
        nothing = {
            use.number: _nothing(self.sources[use.number].schema(self._needs(use.number)))
            for use in self.query.uses
        }
        try:
            expected: Any = self.spark.sql(self.query.over(nothing))
            names, types = expected.columns, _types(expected)
            found: Any = self._answer(frames, edits)
            if types != _types(found):
                return None
        except AnalysisException:
            return None
        answered: DataFrame = found if found.columns == names else found.toDF(*names)
        return answered

    def titles(self) -> list[str]:
        """What Spark's pages show of the tables."""
        return [source.title(self._needs(number)) for number, source in enumerate(self.sources)]

    def _needs(self, number: int) -> Needs:
        return self.understood.needs[number]

    def _answer(self, frames: Mapping[int, DataFrame], edits: Sequence[Edit]) -> DataFrame:
        """The query over some frames, and over scans for the other tables."""
        names = {use.number: f"icefloe_{use.number}" for use in self.query.uses}
        given: dict[str, Any] = {
            names[number]: frames[number]
            if number in frames
            else self.sources[number].frame(self._needs(number), self.utc)
            for number in names
        }
        return self.spark.sql(self.query.rewritten(names, edits), **given)


def _nothing(schema: pa.Schema) -> str:
    """A query with columns of some names and types, from which a plan is made and nothing read."""
    columns = [f"CAST(NULL AS {spark_type(field.type)}) AS {quoted(field.name)}" for field in schema]
    return f"(SELECT {', '.join(columns)})"


def _types(frame: Any) -> list[Any]:
    return [field.dataType for field in frame.schema.fields]


@dataclass(frozen=True, slots=True)
class AboutSource:
    """A table about a repository, in a query."""

    spark: SparkSession
    name: str
    view: View

    def title(self, needs: Needs) -> str:
        """What Spark's pages show."""
        return f"{place_of(self.view.repo)}: {self.name}"

    @property
    def columns(self) -> dict[str, str]:
        """All it has, and their types."""
        return {field.name: spark_type(field.type) for field in metadata_table(self.name).schema}

    def schema(self, needs: Needs) -> pa.Schema:
        """Those that are read."""
        return metadata_table(self.name).schema

    def frame(self, needs: Needs, utc: bool) -> DataFrame:
        """Its rows."""
        table = metadata_table(self.name)
        orders = table.orders(self.view)
        read = partial(_read_about, self.name, self.view, orders)
        return frame_of(self.spark, len(orders), read, ddl(table.schema), self.title(needs))


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
    scans: dict[tuple[str, ...], Scan] = field(default_factory=dict)
    """Of whole tables, by their dimensions: coordinates are read once for a query."""

    @property
    def columns(self) -> dict[str, str]:
        """Those of all tables of the group: which one is meant the query tells."""
        return {
            column.name: spark_type(column.arrow) for table in self.tables.tables for column in table.columns
        }

    def frame(self, needs: Needs, utc: bool) -> DataFrame:
        """The rows that may matter to the query."""
        return self.scan(needs, utc).frame()

    def title(self, needs: Needs) -> str:
        """What Spark's pages show."""
        table = _needed(self._table(needs), needs.columns)
        return title_of(self.place, self.session, table, [column.name for column in table.variables])

    def schema(self, needs: Needs) -> pa.Schema:
        """The columns of those rows."""
        return _needed(self._table(needs), needs.columns).schema

    def scan(self, needs: Needs, utc: bool) -> Scan:
        """A scan of the needed columns, where the conditions can hold."""
        scan, selection = self._selected(needs, utc)
        return replace(scan, table=_needed(scan.table, needs.columns), selection=selection)

    def _selected(self, needs: Needs, utc: bool) -> tuple[Scan, Selection]:
        table = self._table(needs)
        if table.dims not in self.scans:
            self.scans[table.dims] = scan_of(self.spark, self.session, table, self.place)
        scan = self.scans[table.dims]
        selection = scan.selection
        for axis, mask in masks(scan.coordinates, needs.conditions, utc).items():
            selection = selection.narrowed(axis, np.flatnonzero(mask))
        return scan, selection

    def reduction(
        self, query: Query, scope: Scope, needs: Needs, utc: bool
    ) -> tuple[Reduction, Aggregation] | None:
        """How a SELECT is answered from groups of cells; None where it cannot, or where that saves little."""
        if needs.columns is None:
            return None
        scan, selection = self._selected(needs, utc)
        if math.prod(selection.counts(scan.table)) <= FEW_ROWS:
            return None
        found = reduction(query.text, query.tokens, scope, scan.coordinates, utc)
        if found is None:
            return None
        axes = grouped(scan.table.shape, selection, found.terms)
        keys = [axes[term.axis].key(term) for term in found.shown]
        moments = found.moments or (moment_of("cells", None),)
        order = planned(
            self.session,
            scan.table,
            selection,
            axes,
            keys,
            moments,
            scan.partition_bytes,
            slots_of(self.spark),
        )
        if order.likely_rows * _WORTH_IT > order.plan.rows:
            return None
        return found, order

    def reduced(self, order: Aggregation) -> DataFrame:
        """A row per group of cells."""
        table = order.plan.table
        title = title_of(self.place, self.session, table, [column.name for column in table.columns])
        return aggregated(self.spark, self.session, order, order.partial_schema, f"{title} aggregate")

    def _table(self, needs: Needs) -> Table:
        """Of several tables the one that has all the columns that are named."""
        tables, columns = self.tables.tables, needs.columns
        if columns is None or needs.starred or len(tables) == 1:
            return tables[0] if len(tables) == 1 else self.tables.choose(None)
        fitting = [table for table in tables if columns <= {column.name.lower() for column in table.columns}]
        if len(fitting) > 1:  # each has other rows
            raise several(self.tables.group, fitting)
        return fitting[0] if fitting else self.tables.choose(sorted(columns))


def _needed(table: Table, columns: set[str] | None) -> Table:
    """The table with the columns of some names, in its own order, and at least with one."""
    folded = [column.name.lower() for column in table.columns]
    if columns is None or len(set(folded)) < len(folded):
        return table
    names = [column.name for column in table.columns if column.name.lower() in columns]
    return table.only(
        names or [table.columns[len(table.dims) - 1].name if table.dims else table.columns[0].name]
    )


def masks(coordinates: Coordinates, conditions: Sequence[exp.Expr], utc: bool) -> dict[int, Any]:
    """Per dimension for which indices all conditions can hold."""
    found: dict[int, Any] = {}
    for condition in conditions:
        column = _single_coordinate(coordinates, condition)
        if column is None:
            continue
        values, missing = coordinates.values(column)
        known = answer(condition, Known(values, missing, column.arrow, utc))
        if known is not None:
            axis = column.axes[0]
            found[axis] = known.mask if axis not in found else found[axis] & known.mask
    return found


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
    spark: SparkSession,
    use: TableUse,
    repos: Mapping[str, Place],
    opened: dict[tuple[Any, ...], tuple[Session, str]],
) -> AboutSource | ArraySource:
    place = repos[use.repo]
    if use.rest and (about := _about(use.rest[-1])) is not None and len(use.rest) == 1:
        return AboutSource(spark, about[0], _view(place, use, about))
    key = (use.repo, *sorted(use.version.items()))
    if key not in opened:
        opened[key] = open_session(place, use.version, {})
    session, shown = opened[key]
    return ArraySource(spark, session, _group_tables(session, use), shown)


Source = AboutSource | ArraySource
Opened = dict[tuple[Any, ...], tuple[Session, str]]
"""Sessions by repository and version, with their names for people."""


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


def _group_tables(session: Session, use: TableUse) -> GroupTables:
    """The group that the rest of a name is; or the array, which then chooses the table."""
    path = "/" + "/".join(part.strip("/") for part in use.rest)
    try:
        return tables_of(session, path)
    except IcechunkError as error:
        if error.kind not in (ErrorKind.NODE_NOT_FOUND, ErrorKind.NOT_A_GROUP):
            raise
        group, _, array = path.rpartition("/")
        if not use.rest or session.workspace.node(path) is None:
            known = [*TABLES, *(name for name in session.workspace.children("/"))]
            raise unknown("table", ".".join(use.rest), known, f"in {use.repo}") from None
        found = tables_of(session, group or "/")
        return GroupTables(found.group, (found.choose([array]),), {})


def _other_tables(spark: SparkSession, query: Query) -> dict[str, list[str]]:
    """The columns of tables that Spark itself knows: to tell whose a column without a table is."""
    found: dict[str, list[str]] = {}
    for name in query.others:
        try:
            found[name] = list(spark.table(name).columns)
        except Exception:  # noqa: BLE001 - Spark tells what is wrong with it when it runs the query
            continue
    return found
