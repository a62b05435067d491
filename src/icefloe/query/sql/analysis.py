"""Find which columns of each table a SQL query uses, and which conditions its rows must satisfy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlglot import exp
from sqlglot.optimizer.qualify_columns import qualify_columns
from sqlglot.optimizer.qualify_tables import qualify_tables
from sqlglot.optimizer.scope import Scope, traverse_scope, walk_in_scope
from sqlglot.schema import MappingSchema

from icefloe.query.sql.condition_pushdown import (
    can_push_below,
    collect_conditions,
    is_limited,
    split_conjuncts,
    substitute_columns,
)
from icefloe.query.sql.parse import DIALECT, USE, Query, find_query, lower_names


@dataclass(slots=True)
class TableNeeds:
    """The columns and rows that a SQL query needs from one table."""

    columns: set[str] | None = None
    """The lower-case names of the needed columns; None if all columns are needed."""
    starred: bool = False
    """True if the query selects `*`. In that case, `columns` contains only the columns that the query
    names.
    """
    conditions: list[exp.Expr] = field(default_factory=list)
    """Conditions that every needed row satisfies, combined with AND."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a SQL query: the columns and rows that it needs from each table."""

    needs: Mapping[int, TableNeeds]
    """The columns and rows needed from each table use, keyed by the number of the use."""
    alone: tuple[tuple[int, Scope], ...]
    """The table uses that are the only input of a SELECT, each with the qualified scope of that SELECT."""


def analyze_query(
    query: Query, columns: Mapping[int, Mapping[str, str]], others: Mapping[str, Sequence[str]]
) -> Analysis:
    """Find the columns and rows that a SQL query needs, given the columns of all tables.

    If a part of the query cannot be analyzed, all columns and rows are needed.
    """
    if query.is_piped:
        return assume_everything(query)
    try:
        analysis = _Analyzer(query, columns, others)
        alone = tuple(analysis.find_single_table_selects())
        return Analysis(analysis.needs(), alone)
    except Exception:  # noqa: BLE001 - sqlglot may raise any exception for queries that Spark accepts
        return assume_everything(query)


def assume_everything(query: Query) -> Analysis:
    """Return the fallback analysis for a query that cannot be analyzed: all columns and rows are needed."""
    return Analysis({use.number: TableNeeds() for use in query.uses}, ())


class _Analyzer:
    """An analyzer that works on a copy of the query in which every column is qualified with its table."""

    def __init__(
        self, query: Query, columns: Mapping[int, Mapping[str, str]], others: Mapping[str, Sequence[str]]
    ) -> None:
        self._uses = query.uses
        tree = query.tree.copy()
        # Each use of a table gets its own name, because two uses may read different versions.
        schema: dict[str, object] = {
            name.lower(): dict.fromkeys((column.lower() for column in listed), "unknown")
            for name, listed in others.items()
            if "." not in name
        }
        for table in list(tree.find_all(exp.Table)):
            number = table.meta.get(USE)
            if number is None:
                continue
            use = query.uses[number]
            listed = [column.lower() for column in columns[number]]
            schema[f"{USE}_{number}"] = dict.fromkeys(listed, "unknown")
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(use.name, quoted=True))
            fresh = exp.Table(this=exp.to_identifier(f"{USE}_{number}"), alias=alias.copy())
            fresh.meta[USE] = number
            for key in ("joins", "laterals", "pivots", "sample", "hints"):
                if table.args.get(key):
                    fresh.set(key, table.args[key])
            table.replace(fresh)
        for each in tree.find_all(exp.SetOperation):
            order = each.args.get("order")
            if order is not None and all(key.this.is_int for key in order.expressions):
                each.set(
                    "order", None
                )  # sqlglot cannot resolve ordinals after a star, and ORDER BY needs no other columns
        tables = [table for table in tree.find_all(exp.Table) if USE in table.meta]
        self._renamed = {int(each.meta[USE]) for each in tables if each.args["alias"].args.get("columns")}
        self._rearranged = {int(each.meta[USE]) for each in tables if depends_on_all(each)}
        self._types = {
            number: {name.lower(): kind for name, kind in listed.items()}
            for number, listed in columns.items()
        }
        named = qualify_tables(lower_names(find_query(tree)), dialect=DIALECT)
        self._tree = qualify_columns(
            named,
            MappingSchema(schema, dialect=DIALECT, normalize=False),
            expand_alias_refs=False,
            expand_stars=False,
            allow_partial_qualification=True,
            dialect=DIALECT,
        )
        self._scopes = traverse_scope(self._tree)
        self._extra: dict[int, list[exp.Expr]] = {}

    def needs(self) -> dict[int, TableNeeds]:
        found = {use.number: TableNeeds(columns=set()) for use in self._uses}
        for scope in self._scopes:
            for column in find_columns(scope):
                for number in self._find_owners(scope, column):
                    needed = found[number].columns
                    if needed is not None:
                        needed.add(column.name)
        for number, names in self._find_starred():
            needed = found[number].columns
            found[number].starred = True
            if needed is not None:
                found[number].columns = (
                    None if names is None else needed | (names & self._types[number].keys())
                )
        for number in self._renamed | self._rearranged | self._find_natural():
            found[number].columns = None
        references = self._count_references()
        for scope in reversed(self._scopes):  # outermost query first
            if isinstance(scope.expression, exp.Select):
                self._narrow_needs(scope, found, references)
        return found

    def find_single_table_selects(self) -> Iterator[tuple[int, Scope]]:
        """Yield the SELECTs that read exactly one table use and no columns of outer queries."""
        for scope in self._scopes:
            outer = any(column.table for column in scope.external_columns)
            if not isinstance(scope.expression, exp.Select) or outer:
                continue
            sources = [source for _, source in scope.selected_sources.values()]
            if len(sources) != 1 or not isinstance(sources[0], exp.Table):
                continue
            number = sources[0].meta.get(USE)
            if number is not None and number not in self._renamed and not _is_rearranged(sources[0]):
                yield int(number), scope

    def _find_owners(self, scope: Scope, column: exp.Column) -> set[int]:
        """Return the table uses to which a column may belong; more than one if the column is ambiguous."""
        if not column.table:
            return {number for number, names in self._types.items() if column.name in names}
        number = self._find_owner(scope, column.table)
        return set() if number is None else {number}

    def _find_owner(self, scope: Scope | None, alias: str) -> int | None:
        while scope is not None:
            source = scope.sources.get(alias)
            if isinstance(source, exp.Table):
                number = source.meta.get(USE)
                return None if number is None else int(number)
            if source is not None:
                return None
            scope = scope.parent
        return None

    def _find_starred(self) -> Iterator[tuple[int, set[str] | None]]:
        """Yield the table uses that `*` selects, each with the columns that the query uses, or None for all
        columns.
        """
        named: dict[str, set[str]] = {}
        for column in self._tree.find_all(exp.Column):
            named.setdefault(column.table, set()).add(column.name)
        asked: dict[int, set[str] | None] = {}
        for scope in reversed(self._scopes):  # outermost query first
            select = scope.expression
            if not isinstance(select, exp.Select):
                continue
            wanted = asked.get(id(scope), set() if isinstance(select.parent, exp.Exists) else None)
            for alias, (node, source) in scope.selected_sources.items():
                names = named.get(alias, set()) | named.get("", set())
                starred = has_star(select, alias)
                if starred and (wanted is None or counts_columns(select)):
                    passed = None
                else:
                    passed = names | (wanted if starred and wanted is not None else set())
                if isinstance(source, exp.Table):
                    if starred and USE in source.meta:
                        yield int(source.meta[USE]), passed
                    continue
                before = asked.get(id(source), set())
                if depends_on_all(node) or depends_on_all(source.expression.parent):
                    passed = None
                asked[id(source)] = None if before is None or passed is None else before | passed

    def _find_natural(self) -> set[int]:
        """Return the tables in natural joins, which compare all shared columns."""
        found: set[int] = set()
        for scope in self._scopes:
            joins = scope.expression.args.get("joins") or []
            if any(str(join.args.get("method", "")).upper() == "NATURAL" for join in joins):
                found |= _find_uses(scope.expression)
        return found

    def _count_references(self) -> dict[int, int]:
        """Count how often each inner query is referenced."""
        counts: dict[int, int] = {}
        for scope in self._scopes:
            for name, _ in scope.references:  # selected_sources lacks the tables of semi and anti joins
                source = scope.sources.get(name)
                if isinstance(source, Scope):
                    counts[id(source)] = counts.get(id(source), 0) + 1
        return counts

    def _narrow_needs(
        self, scope: Scope, found: Mapping[int, TableNeeds], references: Mapping[int, int]
    ) -> None:
        select = scope.expression
        where = select.args.get("where")
        if where is not None and len(scope.selected_sources) == 1:
            # sqlglot does not qualify columns after a star, but here only one table can have them.
            (only,) = scope.selected_sources
            for column in scope.columns:
                if not column.table and column.find_ancestor(exp.Where) is where:
                    column.set("table", exp.to_identifier(only, quoted=True))
        filters = split_conjuncts(where.this) if where is not None else []
        filters += self._extra.get(id(scope), [])
        types = partial(self._find_type, scope)
        for alias, mine in collect_conditions(select, list(scope.selected_sources), filters, types).items():
            source = scope.sources.get(alias)
            if isinstance(source, exp.Table):
                number = source.meta.get(USE)
                if number is not None and number not in self._renamed and not _is_rearranged(source):
                    found[int(number)].conditions.extend(mine)
            elif source is not None and references.get(id(source), 0) == 1 and not _is_recursive(source):
                self._push_conditions(source, mine)

    def _push_conditions(self, inner: Scope, conditions: Sequence[exp.Expr]) -> None:
        """Push conditions on the columns of an inner query down to the tables of these columns."""
        if is_limited(inner.expression):
            return
        if not isinstance(inner.expression, exp.SetOperation):
            self._push_into(
                inner, [substitute_columns(each, dict(self._list_outputs(inner))) for each in conditions]
            )
            return
        types = self._list_output_types(inner)
        names = [name for name, _ in self._list_outputs(inner)]
        for branch in inner.set_operation_scopes if types else ():
            if is_limited(branch.expression):
                continue
            outputs = [output for _, output in self._list_outputs(branch)]
            # If types differ, Spark casts to a third type, in which the condition may mean something else.
            renamed = {
                name: output
                for name, output, kind in zip(names, outputs, types, strict=True)
                if kind is not None
            }
            self._push_into(branch, [substitute_columns(each, renamed) for each in conditions])

    def _push_into(self, inner: Scope, conditions: Sequence[exp.Expr | None]) -> None:
        known = [each for each in conditions if each is not None]
        if not known:
            return
        if isinstance(inner.expression, exp.SetOperation):
            self._push_conditions(inner, known)
        elif isinstance(inner.expression, exp.Select):
            passed = [each for each in known if can_push_below(inner.expression, each)]
            self._extra.setdefault(id(inner), []).extend(passed)

    def _list_outputs(self, inner: Scope) -> list[tuple[str, exp.Expr]]:
        """Return the names and expressions of an inner query's result columns, or an empty list if their
        number is unknown."""
        query: Any = inner.expression
        if isinstance(query, exp.SetOperation):
            first = self._list_outputs(inner.set_operation_scopes[0]) if inner.set_operation_scopes else []
            return [(name, exp.column(name, quoted=True)) for name, _ in first]
        found: list[tuple[str, exp.Expr]] = []
        for each in query.selects:
            if not each.is_star:
                found.append((each.alias_or_name, each))
                continue
            names = self._list_starred(inner, each)
            if names is None:
                return []
            (alias,) = inner.selected_sources
            found += [(name, exp.column(name, table=alias, quoted=True)) for name in names]
        return found

    def _list_starred(self, inner: Scope, star: exp.Expr) -> list[str] | None:
        """Expand a star in a single-table query to column names. Return None if they are unknown."""
        if type(star) is not exp.Star or any(star.args.values()) or len(inner.selected_sources) != 1:
            return None
        (alias,) = inner.selected_sources
        source = inner.sources[alias]
        if isinstance(source, Scope):
            return [name for name, _ in self._list_outputs(source)] or None
        number = source.meta.get(USE)
        return None if number is None or number in self._renamed else list(self._types[int(number)])

    def _list_output_types(self, inner: Scope) -> list[str | None]:
        """Return the types of an inner query's result columns, with None for a column that has several
        types.
        """
        query = inner.expression
        if not isinstance(query, exp.SetOperation):
            return [self._find_type(inner, output) for _, output in self._list_outputs(inner)]
        branches = [self._list_output_types(branch) for branch in inner.set_operation_scopes]
        if query.args.get("by_name") or len({len(types) for types in branches}) != 1:
            return []
        return [types[0] if len(set(types)) == 1 else None for types in zip(*branches, strict=True)]

    def _find_type(self, scope: Scope, output: exp.Expr) -> str | None:
        """Return the type of an expression that is a plain column of a table, possibly through nested
        queries. Return None for other expressions."""
        column = output.unalias()
        source = scope.sources.get(column.table) if isinstance(column, exp.Column) else None
        if isinstance(source, exp.Table):
            number = source.meta.get(USE)
            return None if number is None or number in self._renamed else self._types[number].get(column.name)
        if source is None:
            return None
        names = [name for name, _ in self._list_outputs(source)]
        types = self._list_output_types(source) or [None] * len(names)
        return dict(zip(names, types, strict=True)).get(column.name)


def _is_recursive(inner: Scope) -> bool:
    """Return True if a query is recursive. Conditions cannot be pushed into it, because a dropped row may
    produce other rows in a later iteration."""
    around = inner.expression.find_ancestor(exp.With)
    return inner.is_cte and around is not None and bool(around.args.get("recursive"))


def find_columns(scope: Scope) -> list[exp.Column]:
    """Return all column references in an analyzed query scope, including unqualified ones."""
    here = (node for node in walk_in_scope(scope.expression) if isinstance(node, exp.Column))
    return list({id(column): column for column in (*scope.columns, *here)}.values())


def _find_uses(tree: exp.Expr) -> set[int]:
    return {int(table.meta[USE]) for table in tree.find_all(exp.Table) if USE in table.meta}


def _is_rearranged(table: exp.Table) -> bool:
    return bool(table.args.get("pivots") or table.args.get("sample"))


def has_star(select: exp.Select, alias: str) -> bool:
    """Return True if a SELECT uses `*`, other than in `count(*)`, to select the columns of a table."""
    return any(not (table := _get_table(star)) or table == alias for star in _find_stars(select))


def counts_columns(select: exp.Select) -> bool:
    """Return True if the result of a SELECT with `*` depends on the number of columns, so that none may be
    dropped.
    """
    results = {id(each) for each in select.selects}
    for star in _find_stars(select):
        whole = star.parent if isinstance(star.parent, exp.Column) else star
        if id(whole) not in results or any(star.args.values()):
            return True
    group, order = select.args.get("group"), select.args.get("order")
    keys = [
        *(group.expressions if group is not None else ()),
        *(order.expressions if order is not None else ()),
    ]
    by_all = group is not None and bool(group.args.get("all"))
    return bool(select.args.get("distinct")) or by_all or any(_is_ordinal(key) for key in keys)


def depends_on_all(table: exp.Expr | None) -> bool:
    """Return True if a table expression depends on all columns of its input, whether they are named or
    not.
    """
    if table is None:
        return False
    alias = table.args.get("alias")
    renamed = isinstance(alias, exp.TableAlias) and bool(alias.args.get("columns"))
    return renamed or bool(table.args.get("pivots"))


def _find_stars(select: exp.Select) -> list[exp.Star]:
    nodes = walk_in_scope(select)
    return [node for node in nodes if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)]


def _get_table(star: exp.Star) -> str:
    return star.parent.table if isinstance(star.parent, exp.Column) else ""


def _is_ordinal(key: exp.Expr) -> bool:
    """Return True if a GROUP BY or ORDER BY key is ALL or the position of a result column."""
    key = key.this if isinstance(key, exp.Ordered) else key
    number = isinstance(key, exp.Literal) and not key.is_string
    return number or (isinstance(key, (exp.Column, exp.Var)) and key.name.lower() == "all")
