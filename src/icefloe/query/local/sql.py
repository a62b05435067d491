"""Run simple SQL queries on one table in this process: grouped aggregates, and selections of rows.

The built-in engine supports one table, conditions that compare columns with constants, plain aggregates of
variables, groups by coordinates or date parts, ORDER BY and LIMIT. Everything else requires Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icefloe.errors import ErrorKind, Hint, IcechunkError, InvalidInputError
from icefloe.query.decode import TIMESTAMP, is_number, unwrap_numbers, wrap_numbers
from icefloe.query.local.results import collect_moments, index_moments
from icefloe.query.local.scan import LocalScan, filter_rows, is_exact
from icefloe.query.options import AnyRepository
from icefloe.query.scan.data_skipping import TableStatistics
from icefloe.query.scan.groups import GroupTerm, parse_term
from icefloe.query.scan.moments import MOMENTS, Moment, is_wide, make_moment
from icefloe.query.scan.reduce import Aggregation, Result, finish_result, plan_moments
from icefloe.query.schema import Column, Role
from icefloe.query.sql.aggregates import find_function
from icefloe.query.sql.analysis import TableNeeds
from icefloe.query.sql.condition_pushdown import split_conjuncts
from icefloe.query.sql.parse import Query, lower_names, parse_query
from icefloe.query.sql.relations import ArrayRelation, TableReads, resolve_relation
from icefloe.query.statements.parse import parse_statement

_CLAUSES: Final = frozenset(
    ("kind", "hint", "expressions", "from_", "from", "where", "group", "order", "limit")
)
_PARTS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfYear: "dayofyear",
    exp.Quarter: "quarter",
    exp.Hour: "hour",
    exp.Minute: "minute",
}


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The result table of a local SQL query, and the number of chunks that it read."""

    table: pa.Table
    reads: TableReads


@dataclass(frozen=True, slots=True)
class _Output:
    """A result column of an aggregating SELECT: a group key or an aggregate."""

    name: str
    key: int | None
    function: str = ""
    column: Column | None = None
    """The variable to aggregate; None for `count(*)`."""


def run_local_query(
    text: str,
    repos: Mapping[str, AnyRepository],
    limit: int | None = None,
    *,
    statistics: bool = True,
    explain: bool = False,
) -> LocalResult:
    """Run a simple SQL query in this process, without Spark.

    Parameters
    ----------
    text
        The query.
    repos
        Repositories, sessions, paths or URLs, keyed by the names used in the query.
    limit
        The maximum number of rows.
    statistics
        Use chunk statistics instead of reading chunks where possible.
    explain
        Only plan the query; the result table is then empty.

    Returns
    -------
    LocalResult
        The rows, and the number of chunks that were skipped, resolved from statistics, and read.

    Raises
    ------
    InvalidInputError
        If the query is invalid, or needs Spark.
    """
    query, select = parse_select(text, repos)
    relation = resolve_relation(query.uses[0], repos, {}, statistics=statistics)
    if not isinstance(relation, ArrayRelation):
        _refuse("metadata tables")
    found = _open_scan(relation, select, statistics)
    conditions = split_conjuncts(select.args["where"].this) if select.args.get("where") else []
    for condition in conditions:
        if condition.find(exp.Query) or not is_exact(found, condition):
            _refuse(f"the condition {condition.sql('spark')}")
    found = filter_rows(found, conditions)
    most = _find_limit(select, limit)
    name = query.uses[0].name
    if select.args.get("group") or any(each.find(exp.AggFunc) for each in select.selects):
        return _answer_groups(found, select, most, name, explain)
    return _answer_rows(found, select, most, name, explain)


def parse_select(text: str, repos: Collection[str]) -> tuple[Query, exp.Select]:
    """Parse a local SQL query over the named repositories. Raise an error unless it is a single simple
    SELECT.
    """
    if parse_statement(text, repos) is not None:
        _refuse("statements other than SELECT")
    query = parse_query(text, repos)
    return query, _find_select(query)


def _refuse(what: str) -> NoReturn:
    raise InvalidInputError(
        f"the built-in SQL engine does not support {what}", kind=ErrorKind.NOT_ALLOWED
    ).with_hint(Hint("{executor} runs the query with Spark", executor="spark"))


def _find_select(query: Query) -> exp.Select:
    tree = lower_names(query.tree.copy())
    if not isinstance(tree, exp.Select) or query.is_piped:
        _refuse("statements other than one SELECT")
    if len(query.uses) != 1 or query.others or tree.find(exp.Subquery, exp.CTE, exp.Join):
        _refuse("joins, subqueries, or queries without a repository")
    for clause, value in tree.args.items():
        if value and clause not in _CLAUSES:
            _refuse(f"the clause {clause.upper()}")
    if tree.find(exp.Window, exp.Lateral, exp.TableSample, exp.Pivot):
        _refuse("window definitions, LATERAL, TABLESAMPLE and PIVOT")
    return tree


def _open_scan(relation: ArrayRelation, select: exp.Select, statistics: bool) -> LocalScan:
    star = any(
        isinstance(each, exp.Star) or (isinstance(each, exp.Column) and each.is_star)
        for each in select.selects
    )
    outputs = {each.alias for each in select.selects if isinstance(each, exp.Alias)}
    names = {column.name for column in select.find_all(exp.Column) if not column.is_star}
    known = set(map(str.lower, relation.columns))
    if unknown := names - known - outputs:
        relation.schema(TableNeeds(columns=unknown))  # raises an error that names the nearest column
    scan = relation.choose(TableNeeds(columns=None if star else names & known, starred=star))
    used = TableStatistics(scan.session) if statistics else None
    return LocalScan(
        scan.session, scan.table, scan.coordinates, scan.selection, scan.location, statistics=used
    )


def _find_limit(select: exp.Select, limit: int | None) -> int | None:
    clause = select.args.get("limit")
    if clause is None:
        return limit
    try:
        own = int(clause.expression.name)
    except (AttributeError, ValueError):
        _refuse("this LIMIT")
    return own if limit is None else min(own, limit)


# Rows


def _answer_rows(
    found: LocalScan, select: exp.Select, most: int | None, name: str, explain: bool
) -> LocalResult:
    columns, names = [], []
    for each in select.selects:
        if isinstance(each, exp.Star):
            columns += [column.name for column in found.table.columns]
            names += [column.name for column in found.table.columns]
            continue
        inner = each.unalias()
        if not isinstance(inner, exp.Column) or inner.is_star:
            _refuse(f"the expression {inner.sql('spark')}")
        column = found.table.column(inner.name)
        columns.append(column.name)
        names.append(each.alias or column.name)
    keys = _find_order(select, {name.lower(): name for name in (*names, *columns)})
    shown = found.select(dict.fromkeys([*columns, *(key for key, _ in keys if key not in names)]))
    reads = TableReads(name, "rows", shown.count_chunks())
    if explain:
        return LocalResult(shown.schema.empty_table(), reads)
    table = _read_some(shown, most if not keys else None)
    aliases = dict(zip(names, columns, strict=True))
    table = _sort(table, [(aliases.get(key, key), word) for key, word in keys])
    table = table.select(columns).rename_columns(names)
    return LocalResult(table if most is None else table.slice(0, most), reads)


def _read_some(found: LocalScan, most: int | None) -> pa.Table:
    """Read rows until the LIMIT is reached."""
    batches, count = [], 0
    for batch in found.to_batches():
        batches.append(batch)
        count += batch.num_rows
        if most is not None and count >= most:
            break
    return pa.Table.from_batches(batches, found.schema)


# Groups


def _answer_groups(
    found: LocalScan, select: exp.Select, most: int | None, name: str, explain: bool
) -> LocalResult:
    terms, texts = _find_keys(found, select)
    outputs = [_find_output(found, each, texts) for each in select.selects]
    moments: list[Moment] = []
    for output in outputs:
        if output.key is None:
            needed = MOMENTS[output.function] if output.column is not None else ("cells",)
            moments += [make_moment(each, output.column) for each in needed]
            if output.column is not None:
                moments.append(make_moment("count", output.column))
    moments = moments or [make_moment("cells", None)]
    aggregation = plan_moments(found, terms, terms, moments, slots=1)
    reads = TableReads(name, "groups", aggregation.counts)
    order = _find_order(select, {each.name.lower(): each.name for each in outputs})
    if explain:
        return LocalResult(pa.table({}), reads)
    table = _sort(_make_table(found, aggregation, outputs), order)
    return LocalResult(table if most is None else table.slice(0, most), reads)


def _find_keys(found: LocalScan, select: exp.Select) -> tuple[list[GroupTerm], list[str]]:
    group = select.args.get("group")
    if group is None:
        return [], []
    if any(value for key, value in group.args.items() if key != "expressions"):
        _refuse("ROLLUP, CUBE and GROUPING SETS")
    terms, texts = [], []
    for each in group.expressions:
        key = each
        if isinstance(each, exp.Literal) and not each.is_string:
            key = select.selects[int(each.name) - 1].unalias()
        elif isinstance(each, exp.Column):
            key = next((s.unalias() for s in select.selects if s.alias == each.name), each)
        text = _find_term(key)
        if text is None:
            _refuse(f"GROUP BY {key.sql('spark')}")
        try:
            terms.append(parse_term(found.coordinates, text))
        except IcechunkError:
            _refuse(f"groups by {text}")
        texts.append(text)
    return terms, texts


def _find_term(key: exp.Expr) -> str | None:
    """Return the text of a GROUP BY key, such as `lat` or `month(time)`, or None for other expressions."""
    inner = key.unnest()
    if isinstance(inner, exp.Column):
        return str(inner.name)
    part = _PARTS.get(type(inner))
    argument = inner.this
    while isinstance(argument, exp.TsOrDsToDate | exp.Paren):
        argument = argument.this
    return f"{part}({argument.name})" if part and isinstance(argument, exp.Column) else None


def _find_output(found: LocalScan, each: exp.Expr, keys: Sequence[str]) -> _Output:
    inner = each.unalias()
    term = _find_term(inner) if not isinstance(inner, exp.AggFunc) else None
    if term is not None and term in keys:
        return _Output(each.alias or term, keys.index(term))
    function = find_function(inner)
    if function is None or function.endswith("_pop"):
        _refuse(f"the expression {inner.sql('spark')}")
    argument = inner.expressions[0] if isinstance(inner, exp.Anonymous) else inner.this
    if function == "count" and isinstance(argument, exp.Star | exp.Literal):
        return _Output(each.alias or "count(1)", None, "count")
    plain = argument.unnest() if argument is not None else None
    column = found.coordinates.table.column(plain.name) if isinstance(plain, exp.Column) else None
    if column is None or column.role is not Role.VARIABLE or column.numeric:
        _refuse(f"the aggregate {inner.sql('spark')}")
    timed = column.arrow == TIMESTAMP and function in ("min", "max")
    if function != "count" and not timed and not is_number(column.arrow):
        _refuse(f"{function} of {column.arrow}")
    word = str(inner.this) if isinstance(inner, exp.Anonymous) else str(inner.key)
    return _Output(each.alias or f"{_NAMES.get(word, word)}({column.name})", None, function, column)


_NAMES: Final = {"stddevsamp": "stddev_samp", "variance": "var_samp"}


def _make_table(found: LocalScan, aggregation: Aggregation, outputs: Sequence[_Output]) -> pa.Table:
    keys, moments = collect_moments(found.session, aggregation)
    indexed = index_moments(moments)
    columns = []
    for output in outputs:
        if output.key is not None:
            columns.append(keys.column(output.key).combine_chunks())
        elif output.column is None:
            columns.append(wrap_numbers(indexed["", "cells"], pa.int64()))
        else:
            arrow = _find_type(output.function, output.column)
            columns.append(
                finish_result(Result(output.name, output.column.name, output.function, arrow), indexed)
            )
    return pa.Table.from_arrays(columns, [output.name for output in outputs])


def _find_type(function: str, column: Column) -> pa.DataType:
    if function in ("mean", "std", "var"):
        return pa.float64()
    wide = function == "sum" and is_wide(column.arrow)
    return pa.int64() if wide else make_moment(function, column).arrow


def _find_order(select: exp.Select, outputs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the ORDER BY columns with their sort directions."""
    order = select.args.get("order")
    found = []
    for each in order.expressions if order is not None else []:
        key = each.this
        if isinstance(key, exp.Literal) and not key.is_string and 0 < int(key.name) <= len(select.selects):
            chosen = select.selects[int(key.name) - 1]
            text = chosen.alias or (_find_term(chosen) or chosen.sql("spark"))
        else:
            text = _find_term(key) or key.sql("spark").replace("`", "")
        name = outputs.get(text.lower())
        if name is None:
            _refuse(f"ORDER BY {key.sql('spark')}")
        first = each.args.get("nulls_first")
        descending = bool(each.args.get("desc"))
        if first is not None and bool(first) == descending:
            _refuse("a position of nulls that is not the default of the sort direction")
        found.append((name, "descending" if descending else "ascending"))
    return found


def _sort(table: pa.Table, keys: Sequence[tuple[str, str]]) -> pa.Table:
    """Sort a table as Spark does: nulls come first in ascending order, and last in descending order."""
    for name, word in reversed(
        keys
    ):  # one stable sort per key, because the position of nulls depends on its direction
        rows = wrap_numbers(np.arange(table.num_rows), pa.int64())
        numbered = table.select([name]).append_column(_ROW, rows)
        order = unwrap_numbers(pc.sort_indices(numbered, [(name, word), (_ROW, "ascending")]))[0]
        nulls = table.column(name).null_count if word == "ascending" else 0
        table = table.take(wrap_numbers(np.roll(order, nulls), pa.int64()))
    return table


_ROW: Final = "row number"
