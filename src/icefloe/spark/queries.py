"""What a SQL query needs of each table it names: columns, conditions on coordinates, and a version.

The query itself stays as it was written. Only the names of tables are replaced, so that Spark evaluates every
condition again: what is worked out here can save work and never change an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify_columns import qualify_columns
from sqlglot.optimizer.qualify_tables import qualify_tables
from sqlglot.optimizer.scope import Scope, traverse_scope, walk_in_scope
from sqlglot.schema import MappingSchema

from icefloe.errors import ErrorKind, InvalidInputError

_DIALECT: Final = "spark"
_USE: Final = "icefloe_use"


@dataclass(frozen=True, slots=True)
class TableUse:
    """One place in a query where a repository is read."""

    number: int
    repo: str
    rest: tuple[str, ...]
    """What follows the name of the repository, after dots."""
    start: int
    stop: int
    """Where it stands in the text, its version included."""
    has_alias: bool
    version: Mapping[str, str]
    """As options name it."""

    @property
    def name(self) -> str:
        """What its columns may be qualified with."""
        return self.rest[-1] if self.rest else self.repo


@dataclass(frozen=True, slots=True)
class Edit:
    """Other words for a part of a query's text."""

    start: int
    stop: int
    text: str


@dataclass(slots=True)
class Needs:
    """What a query needs of one table."""

    columns: set[str] | None = None
    """Folded to lower case; None stands for all."""
    conditions: list[exp.Expr] = field(default_factory=list)
    """Each of them must hold for a row to matter."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query and the tables of repositories in it."""

    text: str
    tree: exp.Expr
    uses: tuple[TableUse, ...]
    tokens: Sequence[Any]

    def rewritten(self, names: Mapping[int, str], edits: Iterable[Edit] = ()) -> str:
        """The query with other tables in place of the uses, by number, for Spark to format."""
        places = [Edit(edit.start, edit.stop, _escaped(edit.text)) for edit in edits]
        for use in self.uses:
            alias = "" if use.has_alias else " AS `" + use.name.replace("`", "``") + "`"
            places.append(Edit(use.start, use.stop, "{" + names[use.number] + "}" + _escaped(alias)))
        parts = []
        at = 0
        for place in sorted(places, key=lambda place: place.start):
            parts += [_escaped(self.text[at : place.start]), place.text]
            at = place.stop
        parts.append(_escaped(self.text[at:]))
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def parse_query(text: str, repos: Collection[str]) -> Query:
    """A query over repositories of these names; other tables are left to Spark."""
    try:
        tree = sqlglot.parse_one(text, dialect=_DIALECT)
        tokens = sqlglot.tokenize(text, dialect=_DIALECT)
        scopes = traverse_scope(_queried(tree))
    except SqlglotError as error:
        raise InvalidInputError(
            f"the query cannot be parsed: {str(error).splitlines()[0]}", kind=ErrorKind.BAD_METADATA
        ) from None
    known = {name.lower(): name for name in repos}
    uses: list[TableUse] = []
    for table in _tables(scopes):
        parts = [part.name for part in table.parts]
        repo = known.get(parts[0].lower()) if parts else None
        if repo is None:
            continue
        first, last = table.parts[0].meta, table.parts[-1].meta
        version, stop = _version(table, tokens, last["end"])
        number = len(uses)
        table.meta[_USE] = number
        alias = table.args.get("alias") is not None
        uses.append(TableUse(number, repo, tuple(parts[1:]), first["start"], stop + 1, alias, version))
    return Query(text, tree, tuple(uses), tokens)


def _queried(tree: exp.Expr) -> exp.Expr:
    """The query in a statement that does more, such as INSERT."""
    return tree if isinstance(tree, exp.Query) else tree.find(exp.Query) or tree


def _tables(scopes: Iterable[Scope]) -> Iterator[exp.Table]:
    seen: set[int] = set()
    for scope in scopes:
        for source in scope.sources.values():
            if (
                isinstance(source, exp.Table)
                and id(source) not in seen
                and isinstance(source.this, exp.Identifier)
            ):
                seen.add(id(source))
                yield source


def _version(table: exp.Table, tokens: Sequence[Any], end: int) -> tuple[dict[str, str], int]:
    """The version after the name of a table, and where its text ends."""
    version = table.args.get("version")
    if version is None:
        return {}, end
    value = version.args.get("expression")
    word = "versionAsOf" if str(version.this).upper() == "VERSION" else "timestampAsOf"
    literal = value.this if isinstance(value, exp.Cast) else value
    if not isinstance(literal, exp.Literal) or str(version.args.get("kind")).upper() != "AS OF":
        raise InvalidInputError(
            f"the version of {table.name} must be a literal: VERSION AS OF 'v1' or TIMESTAMP AS OF '2024-05'",
            kind=ErrorKind.INVALID_REF_NAME,
        )
    after = [token for token in tokens if token.start > end]
    place = next(at for at, token in enumerate(after) if token.text.upper() == "OF") + 1
    while after[place].text != literal.name:
        place += 1
    return {word: literal.name}, int(after[place].end)


@dataclass(frozen=True, slots=True)
class Understood:
    """What a query says about its uses."""

    needs: Mapping[int, Needs]
    """What is needed of each use, by number."""
    alone: tuple[tuple[int, Scope], ...]
    """Uses that are all that a SELECT reads from, and that SELECT, in which columns say whose they are."""


def understood(
    query: Query, columns: Mapping[int, Sequence[str]], others: Mapping[str, Sequence[str]]
) -> Understood:
    """What a query says, given the columns of all uses and those of other tables.

    Where it says something that is not understood, everything is needed.
    """
    try:
        analysis = _Analysis(query, columns, others)
        alone = tuple(analysis.alone())
        return Understood(analysis.needs(), alone)
    except SqlglotError:
        return Understood({use.number: Needs() for use in query.uses}, ())


class _Analysis:
    """A copy of the query in which each column says which table it is of."""

    def __init__(
        self, query: Query, columns: Mapping[int, Sequence[str]], others: Mapping[str, Sequence[str]]
    ) -> None:
        self._uses = query.uses
        tree = query.tree.copy()
        # By now a table is known by its place in the query alone: two uses may be of two versions.
        schema: dict[str, object] = {
            name.lower(): dict.fromkeys((column.lower() for column in listed), "unknown")
            for name, listed in others.items()
            if "." not in name
        }
        for table in list(tree.find_all(exp.Table)):
            number = table.meta.get(_USE)
            if number is None:
                continue
            use = query.uses[number]
            listed = [column.lower() for column in columns[number]]
            schema[f"{_USE}_{number}"] = dict.fromkeys(listed, "unknown")
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(use.name, quoted=True))
            fresh = exp.Table(this=exp.to_identifier(f"{_USE}_{number}"), alias=alias.copy())
            fresh.meta[_USE] = number
            for key in ("joins", "laterals", "pivots", "sample", "hints"):
                if table.args.get(key):
                    fresh.set(key, table.args[key])
            table.replace(fresh)
        self._starred = _starred_uses(tree)
        self._renamed = {
            int(table.meta[_USE])
            for table in tree.find_all(exp.Table)
            if _USE in table.meta and table.args["alias"].args.get("columns")
        }
        self._columns = {number: {name.lower() for name in listed} for number, listed in columns.items()}
        named = qualify_tables(_lowered(_queried(tree)), dialect=_DIALECT)
        self._tree = qualify_columns(
            named,
            MappingSchema(schema, dialect=_DIALECT, normalize=False),
            expand_alias_refs=False,
            expand_stars=False,
            allow_partial_qualification=True,
            dialect=_DIALECT,
        )
        self._scopes = traverse_scope(self._tree)
        self._extra: dict[int, list[exp.Expr]] = {}

    def needs(self) -> dict[int, Needs]:
        found = {use.number: Needs(columns=set()) for use in self._uses}
        for scope in self._scopes:
            for column in columns_of(scope):
                for number in self._owners(scope, column):
                    needed = found[number].columns
                    if needed is not None:
                        needed.add(column.name)
        for number in self._starred | self._renamed | self._natural():
            found[number].columns = None
        references = self._references()
        for scope in reversed(self._scopes):  # from the outside in
            if isinstance(scope.expression, exp.Select):
                self._narrow(scope, found, references)
        return found

    def alone(self) -> Iterator[tuple[int, Scope]]:
        """SELECTs that read one use and nothing else, neither beside it nor from queries around."""
        for scope in self._scopes:
            outer = any(column.table for column in scope.external_columns)
            if not isinstance(scope.expression, exp.Select) or outer:
                continue
            sources = [source for _, source in scope.selected_sources.values()]
            if len(sources) != 1 or not isinstance(sources[0], exp.Table):
                continue
            number = sources[0].meta.get(_USE)
            if number is not None and number not in self._renamed and not _is_rearranged(sources[0]):
                yield int(number), scope

    def _owners(self, scope: Scope, column: exp.Column) -> set[int]:
        """The use that a column is of; all that have one of the name where that is not known."""
        if not column.table:
            return {number for number, names in self._columns.items() if column.name in names}
        number = self._owner(scope, column.table)
        return set() if number is None else {number}

    def _owner(self, scope: Scope | None, alias: str) -> int | None:
        while scope is not None:
            source = scope.sources.get(alias)
            if isinstance(source, exp.Table):
                number = source.meta.get(_USE)
                return None if number is None else int(number)
            if source is not None:
                return None
            scope = scope.parent
        return None

    def _natural(self) -> set[int]:
        """Tables of natural joins: all columns that two tables share are compared."""
        found: set[int] = set()
        for scope in self._scopes:
            joins = scope.expression.args.get("joins") or []
            if any(str(join.args.get("method", "")).upper() == "NATURAL" for join in joins):
                found |= _uses_below(scope.expression)
        return found

    def _references(self) -> dict[int, int]:
        """How often each inner query is read from."""
        counts: dict[int, int] = {}
        for scope in self._scopes:
            for _, source in scope.selected_sources.values():
                if isinstance(source, Scope):
                    counts[id(source)] = counts.get(id(source), 0) + 1
        return counts

    def _narrow(self, scope: Scope, found: Mapping[int, Needs], references: Mapping[int, int]) -> None:
        select = scope.expression
        where = select.args.get("where")
        if where is not None and len(scope.selected_sources) == 1:
            # Behind a star nobody knew whose it is; but there is one table alone.
            (only,) = scope.selected_sources
            for column in scope.columns:
                if not column.table and column.find_ancestor(exp.Where) is where:
                    column.set("table", exp.to_identifier(only, quoted=True))
        conditions = conjuncts(where.this) if where is not None else []
        conditions += self._extra.get(id(scope), [])
        for alias, (_, source) in scope.selected_sources.items():
            mine = [each for each in conditions if _only_of(each, alias)]
            mine += [each for each in _join_conditions(select, alias) if _only_of(each, alias)]
            if isinstance(source, exp.Table):
                number = source.meta.get(_USE)
                if number is not None and number not in self._renamed and not _is_rearranged(source):
                    found[int(number)].conditions.extend(mine)
            elif references.get(id(source), 0) == 1:
                self._push(source, mine)

    def _push(self, inner: Scope, conditions: Sequence[exp.Expr]) -> None:
        """Hand conditions on the columns of an inner query down to where these come from."""
        if isinstance(inner.expression, exp.SetOperation):
            names = [each.alias_or_name for each in _selects(inner)]
            for branch in inner.set_operation_scopes:
                outputs = _selects(branch)
                if len(outputs) != len(names) or inner.expression.args.get("by_name"):
                    return
                renamed = dict(zip(names, outputs, strict=True))
                self._push_into(branch, [_in_terms(each, renamed) for each in conditions])
            return
        self._push_into(inner, [_in_terms(each, _outputs(inner)) for each in conditions])

    def _push_into(self, inner: Scope, conditions: Sequence[exp.Expr | None]) -> None:
        known = [each for each in conditions if each is not None]
        if not known:
            return
        if isinstance(inner.expression, exp.SetOperation):
            outputs = {each.alias_or_name: each for each in _selects(inner)}
            if all(isinstance(each, exp.Column) for each in outputs.values()):
                self._push(inner, known)
            return
        if isinstance(inner.expression, exp.Select) and _passes_filters(inner.expression):
            self._extra.setdefault(id(inner), []).extend(known)


def columns_of(scope: Scope) -> list[exp.Column]:
    """All columns that a query names, also where nobody could tell whose they are."""
    here = (node for node in walk_in_scope(scope.expression) if isinstance(node, exp.Column))
    return list({id(column): column for column in (*scope.columns, *here)}.values())


def _lowered(tree: exp.Expr) -> exp.Expr:
    """Names in lower case: Spark does not tell cases apart."""
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", True)
    return tree


def _starred_uses(tree: exp.Expr) -> set[int]:
    """Uses in a query with a star in it, `count(*)` apart: they need all columns."""
    found: set[int] = set()
    for star in tree.find_all(exp.Star):
        if isinstance(star.parent, exp.Count):
            continue
        select = star.find_ancestor(exp.Select)
        if select is not None:
            found |= _uses_below(select)
    return found


def _uses_below(tree: exp.Expr) -> set[int]:
    return {int(table.meta[_USE]) for table in tree.find_all(exp.Table) if _USE in table.meta}


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Conditions that all have to hold, one by one."""
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return conjuncts(condition.left) + conjuncts(condition.right)
    return [condition]


def _only_of(condition: exp.Expr, alias: str) -> bool:
    """Whether a condition is about columns of one table alone."""
    columns = list(condition.find_all(exp.Column))
    if condition.find(exp.Query, exp.Window, exp.AggFunc):
        return False
    return bool(columns) and all(column.table == alias for column in columns)


def _join_conditions(select: exp.Expr, alias: str) -> list[exp.Expr]:
    """Conditions of joins without which no row of a table matters."""
    found: list[exp.Expr] = []
    for join in select.args.get("joins") or []:
        condition = join.args.get("on")
        side, kind = str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()
        if condition is None or side in ("RIGHT", "FULL"):
            continue
        inner = not side and kind in ("", "INNER", "CROSS")
        if inner and not _has_outer_join(select):
            found += conjuncts(condition)
        elif join.alias_or_name == alias:
            found += conjuncts(condition)  # of the table that is joined only what fits is looked at
    return found


def _has_outer_join(select: exp.Expr) -> bool:
    sides = (str(join.args.get("side") or "").upper() for join in select.args.get("joins") or [])
    return any(side in ("LEFT", "RIGHT", "FULL") for side in sides)


def _is_rearranged(table: exp.Table) -> bool:
    return bool(table.args.get("pivots") or table.args.get("sample"))


def _passes_filters(select: exp.Select) -> bool:
    """Whether rows that a later filter drops may be dropped before: nothing here looks at several rows."""
    several = (
        "group",
        "having",
        "distinct",
        "limit",
        "offset",
        "windows",
        "qualify",
        "laterals",
        "sample",
        "cluster",
    )
    if any(select.args.get(key) for key in several) or select.args.get("match"):
        return False
    return not any(each.find(exp.AggFunc, exp.Window, exp.Explode) for each in select.selects)


def _selects(inner: Scope) -> list[Any]:
    query: Any = inner.expression
    return list(query.selects)


def _outputs(inner: Scope) -> Mapping[str, exp.Expr]:
    """The columns of an inner query by name; behind a star, all of the one table there is."""
    selects = _selects(inner)
    sources = list(inner.selected_sources)
    alone = len(selects) == len(sources) == 1
    if alone and type(selects[0]) is exp.Star and not any(selects[0].args.values()):
        return _Star(sources[0])
    return {each.alias_or_name: each for each in selects}


class _Star(dict[str, exp.Expr]):
    """What a star stands for: any column of a table."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table

    def get(self, name: str, default: Any = None) -> Any:
        # docstring inherited
        return exp.column(name, table=self._table, quoted=True)


def _in_terms(condition: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr | None:
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
