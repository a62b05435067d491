"""Conditions of a query: of which table they speak, what follows from them, and how far down they may go.

Those that matter later compare one column with literals. They hold for no row in which that column is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

TypeOf = Callable[[exp.Column], str | None]
Conditions = dict[str, list[exp.Expr]]
"""By the alias of the table that they are about."""


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Conditions that all have to hold, one by one."""
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [each for side in condition.flatten() for each in conjuncts(side)]
    return [condition]


def only_of(condition: exp.Expr, alias: str) -> bool:
    """Whether a condition is about columns of one table alone."""
    columns = list(condition.find_all(exp.Column))
    if condition.find(exp.Query, exp.Window, exp.AggFunc):
        return False
    return bool(columns) and all(column.table == alias for column in columns)


_SEVERAL: Final = ("limit", "offset", "windows", "qualify", "laterals", "sample", "cluster", "match")
"""What a SELECT may have that looks at several rows, groups apart."""


def passes_filter(select: exp.Select, condition: exp.Expr) -> bool:
    """Whether rows of a table that a later filter drops may be dropped before the SELECT.

    So it is where nothing looks at several rows, or where all rows of a group are dropped or none.
    """
    if any(select.args.get(key) for key in _SEVERAL) or select.find(exp.Window):
        return False
    group = select.args.get("group")
    if group is None:
        whole = ("having", "distinct")
        several = any(each.find(exp.AggFunc, exp.Explode) for each in select.selects)
        return not several and not any(select.args.get(key) for key in whole)
    if any(value for key, value in group.args.items() if key != "expressions"):
        return False  # with ROLLUP and its like a row is in several groups
    keys = {_key(select, each) for each in group.expressions}
    return all(column.sql() in keys for column in condition.find_all(exp.Column))


def is_cut(query: exp.Expr) -> bool:
    """Whether rows of an inner query are chosen once all are there: a LIMIT after UNION or brackets."""
    cut = isinstance(query, exp.SetOperation) and any(query.args.get(key) for key in ("limit", "offset"))
    around = query.parent
    while isinstance(around, exp.Subquery):
        cut = cut or any(around.args.get(key) for key in ("limit", "offset", "sample", "pivots"))
        around = around.parent
    return cut


def _key(select: exp.Select, key: exp.Expr) -> str:
    """A key of GROUP BY, which may be the number of a result."""
    if isinstance(key, exp.Literal) and not key.is_string and int(key.name) <= len(select.selects):
        key = select.selects[int(key.name) - 1].unalias()
    return key.sql()


def in_terms(condition: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr | None:
    """A condition on the columns of an inner query in terms of that query's own; None where it has others."""
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


def table_conditions(
    select: exp.Expr,
    aliases: Sequence[str],
    filters: Sequence[exp.Expr],
    type_of: TypeOf,
) -> Conditions:
    """For each table of a SELECT what must hold for its rows to matter, given the filters of its rows."""
    joins = [_Join.of(join) for join in select.args.get("joins") or []]
    if not any(join.side in ("RIGHT", "FULL") for join in joins):
        for place in (*filters, *(each for join in joins for each in join.on)):
            _one_name(place)
    found: Conditions = {
        alias: [each for each in filters if only_of(each, alias)] for alias in [*aliases, *_asides(joins)]
    }
    only_inner = not any(join.side for join in joins)
    for join in joins:
        for alias, mine in found.items():
            # Of the table that is joined only what fits is looked at, and of all where all must fit.
            if join.side not in ("RIGHT", "FULL") and (only_inner or join.alias == alias):
                mine += [each for each in join.on if only_of(each, alias)]
    links = [link for join in joins for each in join.on if (link := _link(each, join, type_of)) is not None]
    if only_inner:
        both = [link for each in filters if (link := _link(each, None, type_of)) is not None]
        links += both + [(second, first) for first, second in (*links, *both)]
    _follow(found, links)
    return found


@dataclass(frozen=True, slots=True)
class _Join:
    """A table that is joined to those before it."""

    alias: str
    side: str
    """LEFT, RIGHT, FULL or nothing."""
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
            tuple(conjuncts(condition)) if condition is not None else (),
        )


_SIDES: Final = {"": "", "INNER": "", "CROSS": "", "SEMI": "LEFT", "ANTI": "LEFT"}
"""For joins that name no side: which rows stay without a partner. Nothing is known of other joins."""


def _asides(joins: Sequence[_Join]) -> list[str]:
    """Tables that rows are looked for in, and that give no columns."""
    return [join.alias for join in joins if join.kind in ("SEMI", "ANTI")]


def _one_name(condition: exp.Expr) -> None:
    """Let the column of a join's USING be that of the first table, which it is but for outer joins of others.

    The coalesce in its place was made while columns were given their tables, and stands nowhere in the text.
    """
    for made in list(condition.find_all(exp.Coalesce)):
        columns = [made.this, *made.expressions]
        if all(isinstance(column, exp.Column) and "start" not in column.this.meta for column in columns):
            made.replace(made.this.copy())


Link = tuple[exp.Column, exp.Column]
"""Where a condition on the first holds, it does on the second."""


def _link(
    condition: exp.Expr, join: _Join | None, type_of: Callable[[exp.Column], str | None]
) -> Link | None:
    """Two columns of one type that a condition holds equal; that of the joined table is the second."""
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


def _follow(found: Conditions, links: Sequence[Link]) -> None:
    """Add what follows for other tables from the conditions on single columns."""
    known = {(alias, each.sql()) for alias, mine in found.items() for each in mine}
    waiting = [(alias, each) for alias, mine in found.items() for each in mine]
    while waiting:
        alias, condition = waiting.pop()
        for first, second in links:
            names = {column.name for column in condition.find_all(exp.Column)}
            if first.table != alias or names != {first.name} or second.table not in found:
                continue
            implied = in_terms(condition, {first.name: second})
            if implied is not None and (second.table, implied.sql()) not in known:
                known.add((second.table, implied.sql()))
                found[second.table].append(implied)
                waiting.append((second.table, implied))
