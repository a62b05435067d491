"""`icefloe.scan`: read the arrays of a repository as Arrow tables, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.decode import Mask, Values, unwrap_numbers, wrap_numbers
from icefloe.query.extract.points import NEAREST, plan_points
from icefloe.query.extract.run import collect
from icefloe.query.extract.zones import plan_zones
from icefloe.query.local.results import collect_moments, index_moments
from icefloe.query.options import AnyRepository, open_scan
from icefloe.query.scan.data_skipping import ChunkCounts
from icefloe.query.scan.plan import BATCH_ROWS, TableScan
from icefloe.query.scan.read import read_partition
from icefloe.query.scan.reduce import finish_result, plan_aggregation, reduce_partition
from icefloe.query.schema import ArrayTable, Role
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.condition_pushdown import split_conjuncts
from icefloe.query.sql.parse import DIALECT, lower_names, parse_sql
from icefloe.query.sql.predicates import KnownColumn, evaluate_condition
from icefloe.query.sql.pruning import prune_rows
from icefloe.query.sql.value_conditions import translate_filter

Filters = str | Sequence[tuple[str, str, Any]]
"""A SQL condition, or (column, operator, value) triples, all of which must hold."""
_OPERATORS: Final[Mapping[str, type[exp.Expr]]] = {
    **dict.fromkeys(("==", "="), exp.EQ),
    "!=": exp.NEQ,
    ">": exp.GT,
    ">=": exp.GTE,
    "<": exp.LT,
    "<=": exp.LTE,
}


@dataclass(frozen=True, slots=True)
class LocalScan(TableScan):
    """A scan that reads arrays as Arrow tables in this process, without Spark.

    `sel`, `isel` and `select` return a narrower scan. Libraries that accept Arrow streams, such as DuckDB,
    Polars and pyarrow, read a scan directly.
    """

    columns: tuple[str, ...] | None = None
    """The columns to return; None for all columns of the table."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows that the scan returns."""
        return self._list_shown_columns.schema

    @property
    def _list_shown_columns(self) -> ArrayTable:
        return self.table if self.columns is None else self.table.select_columns(self.columns)

    def select(self, *names: str | Iterable[str]) -> LocalScan:
        # docstring inherited
        flat = [each for name in names for each in ([name] if isinstance(name, str) else name)]
        return replace(self, columns=tuple(self.coordinates.table.column(name).name for name in flat))

    def count_chunks(self) -> ChunkCounts:
        """Count how many chunks a read of all rows would skip, and how many it would fetch.

        Returns
        -------
        ChunkCounts
            The total number of chunks, and the number of chunks that are read.
        """
        return self._reading().plan().count_chunks()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows of a local scan as Arrow record batches.

        Yields
        ------
        pyarrow.RecordBatch
            Rows that satisfy the filters.
        """
        names = self._list_shown_columns.schema.names
        reading = self._reading()
        plan = reading.plan()
        for partition in range(plan.partitions):
            for batch in read_partition(self.session, plan, partition, self.batch_rows):
                found = self._filter(batch).select(names)
                if found.num_rows:
                    yield found

    def to_arrow(self) -> pa.Table:
        """Read all rows of a local scan into an Arrow table.

        Returns
        -------
        pyarrow.Table
            One row per cell.
        """
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as an Arrow stream, which is read batch by batch."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def aggregate(self, by: Iterable[str] | str = (), **results: Any) -> pa.Table:
        """Aggregate variables over the cells of a local scan.

        Where possible, whole chunks are aggregated from their statistics without being read.

        Missing values are ignored. Groups without values have null results.

        Parameters
        ----------
        by
            Coordinates, or date parts of them such as `month(time)`.
        **results
            The aggregates to compute: `t2m="mean"`, several as `t2m=["min", "max"]` (columns t2m_min and
            t2m_max), or with a result name, `warmest=("t2m", "max")`. The functions are count, sum, mean,
            min, max, std and var. As in SQL, std and var are the sample statistics.

        Returns
        -------
        pyarrow.Table
            One row per group.
        """
        terms = [by] if isinstance(by, str) else list(by)
        aggregation = plan_aggregation(self, terms, results, slots=1)
        if aggregation.whole and (aggregation.plan.partitions or terms):
            tasks = range(aggregation.tasks)
            batches = [batch for n in tasks for batch in reduce_partition(self.session, aggregation, n)]
            return pa.Table.from_batches(batches, aggregation.schema)
        keys, moments = collect_moments(self.session, aggregation)
        indexed = index_moments(moments)
        columns = [finish_result(result, indexed) for result in aggregation.results]
        return pa.Table.from_arrays([*keys.columns, *columns], schema=aggregation.schema)

    def points(self, frame: Any, *, method: str = NEAREST, tolerance: Any = None) -> pa.Table:
        """Read the values at points in a local scan, without Spark. Each chunk is read once.

        Parameters
        ----------
        frame
            A table with a column per lookup coordinate: a DataFrame, an Arrow table, or a mapping of lists.
            Other columns are passed through.
        method
            `nearest` takes the value of the nearest cell; `linear` interpolates between the cells around a
            point. Latitudes and longitudes may be two-dimensional with `nearest`.
        tolerance
            With `nearest`, the maximum distance in units of the coordinate, or one per coordinate. Points
            without a cell within this distance have null values.

        Returns
        -------
        pyarrow.Table
            One row for each combination of a point and a cell along the other dimensions.

        Raises
        ------
        InvalidInputError
            If no column is a coordinate, or the scan has filters.
        """
        self._refuse_filters("points")
        return collect(plan_points(self, frame, method, tolerance))

    def zones(
        self, zones: Any, *, by: str | None = None, weights: str | None = None, **results: Any
    ) -> pa.Table:
        """Aggregate variables over zones in a local scan, without Spark.

        Each cell is weighted by the fraction of it that a zone covers.

        Parameters
        ----------
        zones
            GeoJSON, given as a mapping, a string or a file path; or a mask, which is an array over latitude
            and longitude with a zone number in each cell and NaN outside all zones. A mask uses whole cells.
        by
            The feature property that names a zone. Defaults to the feature's id, or its number.
        weights
            `area` also weights cells by their area on the sphere.
        **results
            Functions by variable, as in `aggregate`: mean, sum, min, max or count.

        Returns
        -------
        pyarrow.Table
            One row for each combination of a zone and a cell along the other dimensions.

        Raises
        ------
        InvalidInputError
            If the zones cannot be parsed, or the scan has filters.
        """
        self._refuse_filters("zones")
        return collect(plan_zones(self, zones, results, by=by, weights=weights))

    def _refuse_filters(self, what: str) -> None:
        if self.filters:
            raise InvalidInputError(
                f"filters do not apply to {what}; select cells with sel or isel, or filter the result",
                kind=ErrorKind.NOT_ALLOWED,
            )

    def _reading(self) -> TableScan:
        """Return the underlying scan, restricted to the columns that are returned or used by filters."""
        names = [*self._list_shown_columns.schema.names, *(each.variable for each in self.filters)]
        return replace(self, table=self.coordinates.table.select_columns(dict.fromkeys(names)))

    def _filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.filters:
            return batch
        wanted = np.ones(batch.num_rows, np.bool_)
        for each in self.filters:
            wanted &= each.condition.holds(*_to_numpy(batch.column(each.variable)))
        return batch if wanted.all() else batch.filter(wrap_numbers(wanted, pa.bool_()))


def _to_numpy(column: pa.Array) -> tuple[Values, Mask | None]:
    if pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type):
        return unwrap_numbers(column)
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
    zero = "" if pa.types.is_string(column.type) else pa.scalar(0, pa.int64()).cast(column.type)
    return column.fill_null(zero).to_numpy(zero_copy_only=False), missing if column.null_count else None


def scan(
    repo: AnyRepository,
    *,
    group: str = "/",
    variables: Iterable[str] | str | None = None,
    columns: Iterable[str] | str | None = None,
    filters: Filters | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    batch_rows: int = BATCH_ROWS,
    storage_options: Mapping[str, Any] | None = None,
    statistics: bool = True,
) -> LocalScan:
    """Scan the table formed by the variables of a group in this process, without Spark.

    Parameters
    ----------
    repo
        A repository, one of its sessions, or a path or URL.
    group
        Path of the group.
    variables
        Variables to read. They must have the same dimensions. All by default.
    columns
        The columns to return; by default all coordinates and variables. Other variables are not read.
    filters
        A SQL condition such as `"t2m > 310 AND lat < 50"`, or triples such as `[("t2m", ">", 310)]`, all of
        which must hold. Each condition compares one column with constants. Only filters given here reduce
        what is read: an Arrow stream cannot receive filters from the query of another library.
    branch, tag, snapshot_id
        The version to read; the tip of `main` by default. Not allowed if `repo` is a session.
    as_of
        Read the branch as of this time.
    batch_rows
        Number of rows per record batch.
    storage_options
        Storage options, such as `region`, if `repo` is a path or URL.
    statistics
        Use chunk statistics instead of reading chunks wherever the result is the same.

    Returns
    -------
    LocalScan
        The scan. Narrow it with `sel`, `isel` and `select`. Read it with `aggregate` or `to_arrow`, or with
        any library that accepts Arrow streams.

    Raises
    ------
    InvalidInputError
        If the variables do not form one table, or a filter cannot be evaluated.

    Examples
    --------
    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="write") as store:
    ...     array = zarr.create_array(store, name="t2m", shape=2, dtype="f8", fill_value=281.0)
    >>> icefloe.scan(repo, filters="t2m > 280.7").to_arrow().num_rows
    2
    """
    version = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
    found = open_scan(
        LocalScan,
        repo,
        group=group,
        variables=variables,
        version=version,
        storage_options=storage_options,
        statistics=statistics,
        batch_rows=batch_rows,
    )
    if filters:
        found = filter_rows(found, parse_filters(filters))
    return found if columns is None else found.select([columns] if isinstance(columns, str) else columns)


def parse_filters(filters: Filters) -> list[exp.Expr]:
    """Parse scan filters into SQL conditions, all of which must hold."""
    if isinstance(filters, str):
        try:
            return split_conjuncts(lower_names(parse_sql(filters)))
        except SqlglotError as error:
            raise _invalid_filter(f"{filters!r} cannot be parsed: {str(error).splitlines()[0]}") from None
    return [_make_condition(*each) for each in filters]


def _make_condition(name: str, operator: str, value: Any) -> exp.Expr:
    column = exp.column(name.lower(), quoted=True)
    if operator in ("in", "not in"):
        found: exp.Expr = exp.In(this=column, expressions=[_make_literal(each) for each in value])
        return exp.Not(this=found) if operator == "not in" else found
    if operator not in _OPERATORS:
        known = ", ".join([*_OPERATORS, "in", "not in"])
        raise _invalid_filter(f"the operator {operator!r} is not known; use {known}")
    if value is None:
        empty = exp.Is(this=column, expression=exp.Null())
        return exp.Not(this=empty) if operator == "!=" else empty
    return _OPERATORS[operator](this=column, expression=_make_literal(value))


def _make_literal(value: Any) -> exp.Expr:
    if isinstance(value, bool | np.bool_):
        return exp.Boolean(this=bool(value))
    if isinstance(value, int | float | np.number):
        number = exp.Literal.number(repr(abs(value.item() if isinstance(value, np.number) else value)))
        return exp.Neg(this=number) if value < 0 else number
    text = value.isoformat(sep=" ") if isinstance(value, datetime) else str(value).replace("T", " ")
    return exp.Literal.string(text)


def filter_rows(found: LocalScan, conditions: Sequence[exp.Expr]) -> LocalScan:
    """Restrict a local scan to the rows for which all conditions hold."""
    for condition in conditions:
        if not is_exact(found, condition):
            raise _invalid_filter(f"the condition {condition.sql(DIALECT)} cannot be evaluated here")
    narrowed = prune_rows(found, TableNeeds(conditions=list(conditions)), utc=True)
    return replace(found, selection=narrowed.selection, filters=(*found.filters, *narrowed.filters))


def is_exact(found: TableScan, condition: exp.Expr) -> bool:
    """Return True if a local scan can evaluate a condition on a coordinate or variable exactly."""
    names = {column.name for column in condition.find_all(exp.Column)}
    if len(names) != 1:
        return False
    column = found.coordinates.table.column(next(iter(names)))
    if column.role is Role.VARIABLE:
        return translate_filter(condition, found.coordinates.table, utc=True) is not None
    if len(column.axes) != 1:
        return False
    values, missing = found.coordinates.values(column)
    known = evaluate_condition(condition, KnownColumn(values, missing, column.arrow, utc=True))
    return known is not None and known.exact


def _invalid_filter(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{problem}; filters compare one column with constants, such as t2m > 310 AND lat BETWEEN 40 AND 50",
        kind=ErrorKind.INVALID_ARRAY_METADATA,
    )
