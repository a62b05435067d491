"""Parse a SQL query and find the places where it reads a repository.

The query itself is not changed. Only the names of tables are replaced, so that Spark evaluates every
condition again: the analysis can save work, but never change an answer.
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
    """A place in a query where a repository is read."""

    number: int
    repo: str
    rest: tuple[str, ...]
    """Parts of the name after that of the repository."""
    start: int
    stop: int
    """End of the text, including the version."""
    has_alias: bool
    alias_at: int
    """Position for an alias: after TABLESAMPLE, if there is one."""
    version: Mapping[str, str]
    """The version, by Spark option names."""

    @property
    def name(self) -> str:
        """The name that qualifies the columns of this table."""
        return self.rest[-1] if self.rest else self.repo


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of part of the query text."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query, with the places where it reads repositories."""

    text: str
    tree: exp.Expr
    uses: tuple[TableUse, ...]
    others: tuple[str, ...]
    """Names of tables that are not in a repository."""
    tokens: Sequence[Any]

    @property
    def is_piped(self) -> bool:
        """True if the query has operators such as `|> WHERE`, whose order sqlglot does not keep."""
        return any(token.token_type is sqlglot.TokenType.PIPE_GT for token in self.tokens)

    def rewrite(self, names: Mapping[int, str], edits: Iterable[Edit] = ()) -> str:
        """Replace table uses, by number, with names that Spark formats."""
        tables = {number: "{" + name + "}" for number, name in names.items()}
        return self._replace(tables, edits, _escape)

    def rewrite_over(self, tables: Mapping[int, str]) -> str:
        """Replace table uses, by number, with inner queries."""
        return self._replace(tables, (), str)

    def _replace(self, tables: Mapping[int, str], edits: Iterable[Edit], escape: Callable[[str], str]) -> str:
        places = [Edit(edit.start, edit.stop, escape(edit.text)) for edit in edits]
        for use in self.uses:
            places.append(Edit(use.start, use.stop, tables[use.number]))
            if not use.has_alias:
                alias = " AS `" + use.name.replace("`", "``") + "`"
                places.append(Edit(use.alias_at, use.alias_at, escape(alias)))
        parts = []
        at = 0
        for place in sorted(places, key=lambda place: (place.start, place.stop)):
            parts += [escape(self.text[at : place.start]), place.text]
            at = place.stop
        parts.append(escape(self.text[at:]))
        return "".join(parts)


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def parse_query(text: str, repos: Collection[str]) -> Query:
    """Parse a query over repositories of these names. Other tables are left to Spark."""
    try:
        tree = sqlglot.parse_one(text, dialect=DIALECT)
        tokens = sqlglot.tokenize(text, dialect=DIALECT)
        # Spark matches the names of WITH in any case, sqlglot only in the same case.
        tables = {
            _get_start(table): table
            for table in _list_tables(traverse_scope(lower_names(find_query(tree.copy()))))
        }
    except SqlglotError as error:
        raise InvalidInputError(
            f"the query cannot be parsed: {str(error).splitlines()[0]}", kind=ErrorKind.BAD_METADATA
        ) from None
    known = {name.lower(): name for name in repos}
    _check_statement(tree, text, known)
    others: list[str] = []
    uses: list[TableUse] = []
    for table in sorted(tree.find_all(exp.Table), key=_get_start):
        if tables.pop(_get_start(table), None) is None:
            continue
        parts = [part.name for part in table.parts]
        repo = known.get(parts[0].lower())
        if repo is None:
            others.append(".".join(parts))
            continue
        first, last = table.parts[0].meta, table.parts[-1].meta
        version, stop = _parse_version(table, tokens, last["end"])
        number = len(uses)
        table.meta[USE] = number
        alias = table.args.get("alias") is not None
        after = _find_sample_end(tokens, stop) if table.args.get("sample") else stop
        uses.append(
            TableUse(number, repo, tuple(parts[1:]), first["start"], stop + 1, alias, after + 1, version)
        )
    return Query(text, tree, tuple(uses), tuple(others), tokens)


def _check_statement(tree: exp.Expr, text: str, repos: Mapping[str, str]) -> None:
    """Reject statements for which Spark would not find the table, now or later."""
    named = next((repos[word] for word in re.findall(r"\w+", text.lower()) if word in repos), None)
    if named is None:
        return
    if tree.find(exp.Query) is None:
        sentence = (
            f"{named} is a repository, which only queries can read: SELECT ... FROM {named}; its columns are"
        )
        sentence += " shown by sql(...).printSchema(), and the plan by sql(...).explain()"
    elif isinstance(tree, exp.Cache) or (isinstance(tree, exp.Create) and tree.kind == "VIEW"):
        sentence = "Spark resolves a view again later, without the repositories; create it from the result:"
        sentence += " sql(spark, 'SELECT ...', repos).createOrReplaceTempView('name')"
    else:
        return
    raise InvalidInputError(sentence, kind=ErrorKind.NOT_ALLOWED)


def _get_start(table: exp.Table) -> int:
    """Return the position of a table in the text; -1 if it is not there."""
    return int(table.parts[0].meta.get("start", -1)) if table.parts else -1


def find_query(tree: exp.Expr) -> exp.Expr:
    """Find the query in a statement such as INSERT."""
    return tree if isinstance(tree, exp.Query) else tree.find(exp.Query) or tree


def _list_tables(scopes: Iterable[Scope]) -> Iterator[exp.Table]:
    """Generate the tables that queries read from, except those of WITH."""
    for scope in scopes:
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
                yield source


def _parse_version(table: exp.Table, tokens: Sequence[Any], end: int) -> tuple[dict[str, str], int]:
    """Parse the version after the name of a table, and find the end of its text."""
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


def _find_sample_end(tokens: Sequence[Any], end: int) -> int:
    """Find the end of the TABLESAMPLE that follows a name."""
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
    """Convert names to lower case: Spark ignores case."""
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", True)
    return tree
