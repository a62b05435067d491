"""Stars in a query: of which tables they are all columns, and whether it matters how many those are."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.optimizer.scope import walk_in_scope


def has_star(select: exp.Select, alias: str) -> bool:
    """Whether a star stands for the columns of a table, `count(*)` apart."""
    return any(not (table := _table(star)) or table == alias for star in _stars(select))


def counts_columns(select: exp.Select) -> bool:
    """Whether a SELECT with stars gives another answer when they stand for fewer columns."""
    results = {id(each) for each in select.selects}
    for star in _stars(select):
        whole = star.parent if isinstance(star.parent, exp.Column) else star
        if id(whole) not in results or any(star.args.values()):
            return True
    group, order = select.args.get("group"), select.args.get("order")
    keys = [
        *(group.expressions if group is not None else ()),
        *(order.expressions if order is not None else ()),
    ]
    by_all = group is not None and bool(group.args.get("all"))
    return bool(select.args.get("distinct")) or by_all or any(_is_place(key) for key in keys)


def depends_on_all(table: exp.Expr | None) -> bool:
    """Whether what is made of a table depends on each of its columns, named or not."""
    if table is None:
        return False
    alias = table.args.get("alias")
    renamed = isinstance(alias, exp.TableAlias) and bool(alias.args.get("columns"))
    return renamed or bool(table.args.get("pivots"))


def _stars(select: exp.Select) -> list[exp.Star]:
    nodes = walk_in_scope(select)
    return [node for node in nodes if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)]


def _table(star: exp.Star) -> str:
    return star.parent.table if isinstance(star.parent, exp.Column) else ""


def _is_place(key: exp.Expr) -> bool:
    """Whether a key of GROUP BY or ORDER BY is the number of a result, or stands for all of them."""
    key = key.this if isinstance(key, exp.Ordered) else key
    number = isinstance(key, exp.Literal) and not key.is_string
    return number or (isinstance(key, (exp.Column, exp.Var)) and key.name.lower() == "all")
