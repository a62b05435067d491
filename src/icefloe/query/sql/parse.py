"""What a SQL query needs of each table it names: columns, conditions on coordinates, and a version.

The query itself stays as it was written. Only the names of tables are replaced, so that Spark evaluates every
condition again: what is worked out here can save work and never change an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify_columns import qualify_columns
from sqlglot.optimizer.qualify_tables import qualify_tables
from sqlglot.optimizer.scope import Scope, traverse_scope, walk_in_scope
from sqlglot.schema import MappingSchema

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.sql.pushdown import conjuncts, in_terms, is_cut, passes_filter, table_conditions
from icefloe.query.sql.stars import counts_columns, depends_on_all, has_star

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
    alias_at: int
    """Where an alias would stand: after TABLESAMPLE, if there is one."""
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
    starred: bool = False
    """Whether a star stands for its columns, of which these are the ones that matter."""
    conditions: list[exp.Expr] = field(default_factory=list)
    """Each of them must hold for a row to matter."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query and the tables of repositories in it."""

    text: str
    tree: exp.Expr
    uses: tuple[TableUse, ...]
    others: tuple[str, ...]
    """The names of tables that are of no repository."""
    tokens: Sequence[Any]

    @property
    def is_piped(self) -> bool:
        """Whether it has operators such as `|> WHERE`, whose order the tree of sqlglot does not keep."""
        return any(token.token_type is sqlglot.TokenType.PIPE_GT for token in self.tokens)

    def rewritten(self, names: Mapping[int, str], edits: Iterable[Edit] = ()) -> str:
        """The query with other tables in place of the uses, by number, for Spark to format."""
        tables = {number: "{" + name + "}" for number, name in names.items()}
        return self._with(tables, edits, _escaped)

    def over(self, tables: Mapping[int, str]) -> str:
        """The query over inner queries in place of the uses, by number."""
        return self._with(tables, (), str)

    def _with(self, tables: Mapping[int, str], edits: Iterable[Edit], escaped: Callable[[str], str]) -> str:
        places = [Edit(edit.start, edit.stop, escaped(edit.text)) for edit in edits]
        for use in self.uses:
            places.append(Edit(use.start, use.stop, tables[use.number]))
            if not use.has_alias:
                alias = " AS `" + use.name.replace("`", "``") + "`"
                places.append(Edit(use.alias_at, use.alias_at, escaped(alias)))
        parts = []
        at = 0
        for place in sorted(places, key=lambda place: (place.start, place.stop)):
            parts += [escaped(self.text[at : place.start]), place.text]
            at = place.stop
        parts.append(escaped(self.text[at:]))
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def parse_query(text: str, repos: Collection[str]) -> Query:
    """A query over repositories of these names; other tables are left to Spark."""
    try:
        tree = sqlglot.parse_one(text, dialect=_DIALECT)
        tokens = sqlglot.tokenize(text, dialect=_DIALECT)
        # Spark finds a table of WITH whatever its case; sqlglot does where all are in one.
        tables = {_start(table): table for table in _tables(traverse_scope(_lowered(_queried(tree.copy()))))}
    except SqlglotError as error:
        raise InvalidInputError(
            f"the query cannot be parsed: {str(error).splitlines()[0]}", kind=ErrorKind.BAD_METADATA
        ) from None
    known = {name.lower(): name for name in repos}
    _check_statement(tree, text, known)
    others: list[str] = []
    uses: list[TableUse] = []
    for table in sorted(tree.find_all(exp.Table), key=_start):
        if tables.pop(_start(table), None) is None:
            continue
        parts = [part.name for part in table.parts]
        repo = known.get(parts[0].lower())
        if repo is None:
            others.append(".".join(parts))
            continue
        first, last = table.parts[0].meta, table.parts[-1].meta
        version, stop = _version(table, tokens, last["end"])
        number = len(uses)
        table.meta[_USE] = number
        alias = table.args.get("alias") is not None
        after = _sampled(tokens, stop) if table.args.get("sample") else stop
        uses.append(
            TableUse(number, repo, tuple(parts[1:]), first["start"], stop + 1, alias, after + 1, version)
        )
    return Query(text, tree, tuple(uses), tuple(others), tokens)


def _check_statement(tree: exp.Expr, text: str, repos: Mapping[str, str]) -> None:
    """Refuse statements for which Spark would look for a table in vain, now or later."""
    named = next((repos[word] for word in re.findall(r"\w+", text.lower()) if word in repos), None)
    if named is None:
        return
    if tree.find(exp.Query) is None:
        sentence = (
            f"{named} is a repository and can be asked with a query: SELECT ... FROM {named}; its columns"
        )
        sentence += " are told by sql(...).printSchema(), and how it is answered by sql(...).explain()"
    elif isinstance(tree, exp.Cache) or (isinstance(tree, exp.Create) and tree.kind == "VIEW"):
        sentence = "a view would be looked up again without its repositories; make it of the answer:"
        sentence += " sql(spark, 'SELECT ...', repos).createOrReplaceTempView('name')"
    else:
        return
    raise InvalidInputError(sentence, kind=ErrorKind.NOT_ALLOWED)


def _start(table: exp.Table) -> int:
    """Where a table stands in the text; before it, where it does not."""
    return int(table.parts[0].meta.get("start", -1)) if table.parts else -1


def _queried(tree: exp.Expr) -> exp.Expr:
    """The query in a statement that does more, such as INSERT."""
    return tree if isinstance(tree, exp.Query) else tree.find(exp.Query) or tree


def _tables(scopes: Iterable[Scope]) -> Iterator[exp.Table]:
    """The tables that queries read from, those of WITH apart."""
    for scope in scopes:
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
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


def _sampled(tokens: Sequence[Any], end: int) -> int:
    """Where the text of a TABLESAMPLE ends that follows a name."""
    words = [token for token in tokens if token.start > end]
    at = 0
    for word in ("TABLESAMPLE", "REPEATABLE"):
        if at < len(words) and words[at].text.upper() == word:
            depth = 0
            while True:
                at += 1
                depth += {"(": 1, ")": -1}.get(words[at].text, 0)
                if not depth:
                    break
            end = int(words[at].end)
            at += 1
    return end


@dataclass(frozen=True, slots=True)
class Understood:
    """What a query says about its uses."""

    needs: Mapping[int, Needs]
    """What is needed of each use, by number."""
    alone: tuple[tuple[int, Scope], ...]
    """Uses that are all that a SELECT reads from, and that SELECT, in which columns say whose they are."""


def understood(
    query: Query, columns: Mapping[int, Mapping[str, str]], others: Mapping[str, Sequence[str]]
) -> Understood:
    """What a query says, given the columns of all uses, with their types, and those of other tables.

    Where it says something that is not understood, everything is needed.
    """
    if query.is_piped:
        return not_understood(query)
    try:
        analysis = _Analysis(query, columns, others)
        alone = tuple(analysis.alone())
        return Understood(analysis.needs(), alone)
    except Exception:  # noqa: BLE001 - sqlglot raises what it likes for queries that Spark answers
        return not_understood(query)


def not_understood(query: Query) -> Understood:
    """Everything is needed, and nothing can be said of the query."""
    return Understood({use.number: Needs() for use in query.uses}, ())


class _Analysis:
    """A copy of the query in which each column says which table it is of."""

    def __init__(
        self, query: Query, columns: Mapping[int, Mapping[str, str]], others: Mapping[str, Sequence[str]]
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
        for each in tree.find_all(exp.SetOperation):
            order = each.args.get("order")
            if order is not None and all(key.this.is_int for key in order.expressions):
                each.set("order", None)  # behind a star sqlglot cannot count, and it needs no more columns
        tables = [table for table in tree.find_all(exp.Table) if _USE in table.meta]
        self._renamed = {int(each.meta[_USE]) for each in tables if each.args["alias"].args.get("columns")}
        self._rearranged = {int(each.meta[_USE]) for each in tables if depends_on_all(each)}
        self._types = {
            number: {name.lower(): kind for name, kind in listed.items()}
            for number, listed in columns.items()
        }
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
        for number, names in self._starred():
            needed = found[number].columns
            found[number].starred = True
            if needed is not None:
                found[number].columns = (
                    None if names is None else needed | (names & self._types[number].keys())
                )
        for number in self._renamed | self._rearranged | self._natural():
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
            return {number for number, names in self._types.items() if column.name in names}
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

    def _starred(self) -> Iterator[tuple[int, set[str] | None]]:
        """Uses that a star stands for, with the names that are asked of it; None stands for all."""
        named: dict[str, set[str]] = {}
        for column in self._tree.find_all(exp.Column):
            named.setdefault(column.table, set()).add(column.name)
        asked: dict[int, set[str] | None] = {}
        for scope in reversed(self._scopes):  # from the outside in
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
                    if starred and _USE in source.meta:
                        yield int(source.meta[_USE]), passed
                    continue
                before = asked.get(id(source), set())
                if depends_on_all(node) or depends_on_all(source.expression.parent):
                    passed = None
                asked[id(source)] = None if before is None or passed is None else before | passed

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
            for name, _ in scope.references:  # those of semi and anti joins are not among the selected
                source = scope.sources.get(name)
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
        filters = conjuncts(where.this) if where is not None else []
        filters += self._extra.get(id(scope), [])
        types = partial(self._type, scope)
        for alias, mine in table_conditions(select, list(scope.selected_sources), filters, types).items():
            source = scope.sources.get(alias)
            if isinstance(source, exp.Table):
                number = source.meta.get(_USE)
                if number is not None and number not in self._renamed and not _is_rearranged(source):
                    found[int(number)].conditions.extend(mine)
            elif source is not None and references.get(id(source), 0) == 1 and not _is_recursive(source):
                self._push(source, mine)

    def _push(self, inner: Scope, conditions: Sequence[exp.Expr]) -> None:
        """Hand conditions on the columns of an inner query down to where these come from."""
        if is_cut(inner.expression):
            return
        if not isinstance(inner.expression, exp.SetOperation):
            self._push_into(inner, [in_terms(each, dict(self._outputs(inner))) for each in conditions])
            return
        types = self._output_types(inner)
        names = [name for name, _ in self._outputs(inner)]
        for branch in inner.set_operation_scopes if types else ():
            if is_cut(branch.expression):
                continue
            outputs = [output for _, output in self._outputs(branch)]
            # Where types differ, Spark compares values of a third one.
            renamed = {
                name: output
                for name, output, kind in zip(names, outputs, types, strict=True)
                if kind is not None
            }
            self._push_into(branch, [in_terms(each, renamed) for each in conditions])

    def _push_into(self, inner: Scope, conditions: Sequence[exp.Expr | None]) -> None:
        known = [each for each in conditions if each is not None]
        if not known:
            return
        if isinstance(inner.expression, exp.SetOperation):
            self._push(inner, known)
        elif isinstance(inner.expression, exp.Select):
            passed = [each for each in known if passes_filter(inner.expression, each)]
            self._extra.setdefault(id(inner), []).extend(passed)

    def _outputs(self, inner: Scope) -> list[tuple[str, exp.Expr]]:
        """The columns of an inner query and their names; none where it is not known how many there are."""
        query: Any = inner.expression
        if isinstance(query, exp.SetOperation):
            first = self._outputs(inner.set_operation_scopes[0]) if inner.set_operation_scopes else []
            return [(name, exp.column(name, quoted=True)) for name, _ in first]
        found: list[tuple[str, exp.Expr]] = []
        for each in query.selects:
            if not each.is_star:
                found.append((each.alias_or_name, each))
                continue
            names = self._starred_names(inner, each)
            if names is None:
                return []
            (alias,) = inner.selected_sources
            found += [(name, exp.column(name, table=alias, quoted=True)) for name in names]
        return found

    def _starred_names(self, inner: Scope, star: exp.Expr) -> list[str] | None:
        """What a star stands for, where a query reads one table; None where that is not known."""
        if type(star) is not exp.Star or any(star.args.values()) or len(inner.selected_sources) != 1:
            return None
        (alias,) = inner.selected_sources
        source = inner.sources[alias]
        if isinstance(source, Scope):
            return [name for name, _ in self._outputs(source)] or None
        number = source.meta.get(_USE)
        return None if number is None or number in self._renamed else list(self._types[int(number)])

    def _output_types(self, inner: Scope) -> list[str | None]:
        """The types of the columns of an inner query, None where there are several; else as `_outputs`."""
        query = inner.expression
        if not isinstance(query, exp.SetOperation):
            return [self._type(inner, output) for _, output in self._outputs(inner)]
        branches = [self._output_types(branch) for branch in inner.set_operation_scopes]
        if query.args.get("by_name") or len({len(types) for types in branches}) != 1:
            return []
        return [types[0] if len(set(types)) == 1 else None for types in zip(*branches, strict=True)]

    def _type(self, scope: Scope, output: exp.Expr) -> str | None:
        """The type of a column of a use, however deep in a query; None for all else."""
        column = output.unalias()
        source = scope.sources.get(column.table) if isinstance(column, exp.Column) else None
        if isinstance(source, exp.Table):
            number = source.meta.get(_USE)
            return None if number is None or number in self._renamed else self._types[number].get(column.name)
        if source is None:
            return None
        names = [name for name, _ in self._outputs(source)]
        types = self._output_types(source) or [None] * len(names)
        return dict(zip(names, types, strict=True)).get(column.name)


def _is_recursive(inner: Scope) -> bool:
    """Whether an inner query goes on from its own rows: what is not looked at may lead to what is."""
    around = inner.expression.find_ancestor(exp.With)
    return inner.is_cte and around is not None and bool(around.args.get("recursive"))


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


def _uses_below(tree: exp.Expr) -> set[int]:
    return {int(table.meta[_USE]) for table in tree.find_all(exp.Table) if _USE in table.meta}


def _is_rearranged(table: exp.Table) -> bool:
    return bool(table.args.get("pivots") or table.args.get("sample"))
