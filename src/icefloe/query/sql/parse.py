"""Parse a SQL query and find the places where it reads a repository.

The query itself stays as it was written. Only the names of tables are replaced, so that Spark evaluates every
condition again: the analysis can save work and never change an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from icefloe.errors import ErrorKind, InvalidInputError

DIALECT: Final = "spark"
USE: Final = "icefloe_use"


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
        tree = sqlglot.parse_one(text, dialect=DIALECT)
        tokens = sqlglot.tokenize(text, dialect=DIALECT)
        # Spark finds a table of WITH whatever its case; sqlglot does where all are in one.
        tables = {
            _start(table): table for table in _tables(traverse_scope(lower_names(find_query(tree.copy()))))
        }
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
        table.meta[USE] = number
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


def find_query(tree: exp.Expr) -> exp.Expr:
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


def lower_names(tree: exp.Expr) -> exp.Expr:
    """Names in lower case: Spark does not tell cases apart."""
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", True)
    return tree
