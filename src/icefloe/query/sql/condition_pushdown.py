"""Push the conditions of a query down to the tables they refer to.

A condition may only be pushed down if the rows that it removes cannot contribute to the result. A WHERE
condition that is not true for null may be pushed below any join, because it also removes the rows that an
outer join fills with null. An ON condition filters only the joined table, unless all joins are inner joins.
No condition is pushed below a LIMIT, a window, or an aggregate whose groups it would divide. Spark evaluates
every condition again, so failing to push a condition down costs time but never changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

TypeOf = Callable[[exp.Column], str | None]
Conditions = dict[str, list[exp.Expr]]
"""Conditions, keyed by the alias of the table they refer to."""


def split_conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Split a SQL condition at AND into conjuncts."""
    if isinstance(condition, exp.Paren):
        return split_conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [each for side in condition.flatten() for each in split_conjuncts(side)]
    return [condition]


def is_about_table(condition: exp.Expr, alias: str) -> bool:
    """Return True if a condition uses columns of only one table."""
    columns = list(condition.find_all(exp.Column))
    if condition.find(exp.Query, exp.Window, exp.AggFunc):
        return False
    return bool(columns) and all(column.table == alias for column in columns)


_MULTI_ROW_CLAUSES: Final = (
    "limit",
    "offset",
    "windows",
    "qualify",
    "laterals",
    "sample",
    "cluster",
    "match",
)
"""The SELECT clauses, other than GROUP BY, whose result depends on several rows."""


def can_push_below(select: exp.Select, condition: exp.Expr) -> bool:
    """Return True if a condition on the results of a SELECT can be pushed down to its input.

    This is possible if no clause depends on several rows, or if the condition removes either all rows of a
    group or none.
    """
    if any(select.args.get(key) for key in _MULTI_ROW_CLAUSES) or select.find(exp.Window):
        return False
    group = select.args.get("group")
    if group is None:
        whole = ("having", "distinct")
        several = any(each.find(exp.AggFunc, exp.Explode) for each in select.selects)
        return not several and not any(select.args.get(key) for key in whole)
    if any(value for key, value in group.args.items() if key != "expressions"):
        return False  # with ROLLUP, CUBE or GROUPING SETS, a row is in several groups
    keys = {_resolve_key(select, each) for each in group.expressions}
    return all(column.sql() in keys for column in condition.find_all(exp.Column))


def is_limited(query: exp.Expr) -> bool:
    """Return True if a query has a LIMIT or similar clause, below which no condition can be pushed."""
    cut = isinstance(query, exp.SetOperation) and any(query.args.get(key) for key in ("limit", "offset"))
    around = query.parent
    while isinstance(around, exp.Subquery):
        cut = cut or any(around.args.get(key) for key in ("limit", "offset", "sample", "pivots"))
        around = around.parent
    return cut


def _resolve_key(select: exp.Select, key: exp.Expr) -> str:
    """Return the SQL text of a GROUP BY key. A position is resolved to the expression of the result
    column.
    """
    if isinstance(key, exp.Literal) and not key.is_string and int(key.name) <= len(select.selects):
        key = select.selects[int(key.name) - 1].unalias()
    return key.sql()


def substitute_columns(condition: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr | None:
    """Push a condition down into an inner query by replacing result columns with their defining expressions.

    Return None if that is impossible.
    """
    copy = condition.copy()
    for column in list(copy.find_all(exp.Column)):
        output = outputs.get(column.name)
        inner = output.unalias() if output is not None else None
        if not isinstance(inner, exp.Column):
            return None
        if column is copy:
            return None
        column.replace(inner.copy())
    return copy


def collect_conditions(
    select: exp.Expr,
    aliases: Sequence[str],
    filters: Sequence[exp.Expr],
    type_of: TypeOf,
) -> Conditions:
    """Collect, for each table of a SELECT, the conditions that hold for all needed rows and can be pushed
    down.
    """
    joins = [_Join.of(join) for join in select.args.get("joins") or []]
    # In right and full joins a row without a match has nulls in the first table, so the coalesce of a USING
    # column differs from that table's own column.
    if not any(join.side in ("RIGHT", "FULL") for join in joins):
        for place in (*filters, *(each for join in joins for each in join.on)):
            _unify_using(place)
    found: Conditions = {
        alias: [each for each in filters if is_about_table(each, alias)]
        for alias in [*aliases, *_list_semi_joins(joins)]
    }
    # An outer join keeps rows that do not satisfy ON, with nulls for the other table. Then ON filters only
    # the joined table, and says nothing about the rows of the preserved side.
    only_inner = not any(join.side for join in joins)
    for join in joins:
        for alias, mine in found.items():
            # ON filters the rows of the joined table, and those of all tables if every join is an inner join.
            if join.side not in ("RIGHT", "FULL") and (only_inner or join.alias == alias):
                mine += [each for each in join.on if is_about_table(each, alias)]
    links = [
        link for join in joins for each in join.on if (link := _find_link(each, join, type_of)) is not None
    ]
    if only_inner:
        both = [link for each in filters if (link := _find_link(each, None, type_of)) is not None]
        # With `a.time = b.time`, a condition on either column also holds for the other one, so both tables
        # skip chunks. Types must be equal: otherwise Spark compares casts, for which the condition may
        # differ.
        links += both + [(second, first) for first, second in (*links, *both)]
    _derive_conditions(found, links)
    return found


@dataclass(frozen=True, slots=True)
class _Join:
    """A table that is joined to the preceding tables."""

    alias: str
    side: str
    """The outer side of the join: `LEFT`, `RIGHT`, `FULL` or empty."""
    kind: str
    on: tuple[exp.Expr, ...]

    @staticmethod
    def of(join: exp.Expr) -> _Join:
        condition = join.args.get("on")
        kind = str(join.args.get("kind") or "").upper()
        return _Join(
            join.alias_or_name,
            str(join.args.get("side") or "").upper() or _SIDES.get(kind, "FULL"),
            kind,
            tuple(split_conjuncts(condition)) if condition is not None else (),
        )


_SIDES: Final = {"": "", "INNER": "", "CROSS": "", "SEMI": "LEFT", "ANTI": "LEFT"}
"""The outer side of join kinds that do not state it. Unknown kinds are treated as FULL."""


def _list_semi_joins(joins: Sequence[_Join]) -> list[str]:
    """Return the right-hand tables of semi and anti joins, which contribute no columns."""
    return [join.alias for join in joins if join.kind in ("SEMI", "ANTI")]


def _unify_using(condition: exp.Expr) -> None:
    """Replace the `coalesce` of a USING column with the first table's column.

    sqlglot introduces the `coalesce` when it qualifies columns; it is not in the query text. The replacement
    is invalid in right and full joins.
    """
    for made in list(condition.find_all(exp.Coalesce)):
        columns = [made.this, *made.expressions]
        if all(isinstance(column, exp.Column) and "start" not in column.this.meta for column in columns):
            made.replace(made.this.copy())


Link = tuple[exp.Column, exp.Column]
"""A pair of columns that are equal in all needed rows. A condition on the first also holds for the second."""


def _find_link(
    condition: exp.Expr, join: _Join | None, type_of: Callable[[exp.Column], str | None]
) -> Link | None:
    """Return the two columns of equal type that a condition compares with `=`, with the joined table's column
    last. Return None for other conditions."""
    if not isinstance(condition, exp.EQ):
        return None
    first, second = condition.left.unnest(), condition.right.unnest()
    if not isinstance(first, exp.Column) or not isinstance(second, exp.Column):
        return None
    if first.table == second.table or type_of(first) is None or type_of(first) != type_of(second):
        return None
    if join is not None and join.side in ("RIGHT", "FULL"):
        return None
    if join is not None and first.table == join.alias:
        first, second = second, first
    return (first, second) if join is None or second.table == join.alias else None


def _derive_conditions(found: Conditions, links: Sequence[Link]) -> None:
    """Copy conditions on a single column to the columns that are linked to it by equality."""
    known = {(alias, each.sql()) for alias, mine in found.items() for each in mine}
    waiting = [(alias, each) for alias, mine in found.items() for each in mine]
    while waiting:
        alias, condition = waiting.pop()
        for first, second in links:
            names = {column.name for column in condition.find_all(exp.Column)}
            if first.table != alias or names != {first.name} or second.table not in found:
                continue
            implied = substitute_columns(condition, {first.name: second})
            if implied is not None and (second.table, implied.sql()) not in known:
                known.add((second.table, implied.sql()))
                found[second.table].append(implied)
                waiting.append((second.table, implied))
