"""Parse a SQL query, and locate the table names that refer to repositories.

Only these table names are replaced. Spark still evaluates every condition, so the analysis can save work but
never changes a result.
"""

from __future__ import annotations

import logging
import re
import threading
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
    """An occurrence of a repository table in a parsed SQL query."""

    number: int
    repo: str
    rest: tuple[str, ...]
    """The parts of the dotted table name after the repository name."""
    start: int
    stop: int
    """The end position of the table name in the query text, including the version clause."""
    has_alias: bool
    alias_at: int
    """The text position at which an alias can be inserted, after a TABLESAMPLE clause if present."""
    version: Mapping[str, str]
    """The version, as data source options."""

    @property
    def name(self) -> str:
        """The name that qualifies the table's columns: its alias, or the table name."""
        return self.rest[-1] if self.rest else self.repo


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement for one range of the query text."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed SQL query, with all of its uses of repository tables."""

    text: str
    tree: exp.Expr
    uses: tuple[TableUse, ...]
    others: tuple[str, ...]
    """The names of tables that do not belong to repositories."""
    tokens: Sequence[Any]

    @property
    def is_piped(self) -> bool:
        """True if the query contains pipe operators such as `|> WHERE`, whose order sqlglot does not
        preserve.
        """
        return any(token.token_type is sqlglot.TokenType.PIPE_GT for token in self.tokens)

    def rewrite(self, names: Mapping[int, str], edits: Iterable[Edit] = ()) -> str:
        """Return the query text with each table use replaced by a placeholder that `spark.sql` fills in."""
        tables = {number: "{" + name + "}" for number, name in names.items()}
        return self._replace(tables, edits, _escape)

    def rewrite_over(self, tables: Mapping[int, str]) -> str:
        """Return the query text with each table use replaced by an inner query."""
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


def parse_sql(text: str) -> Any:
    """Parse SQL with sqlglot, suppressing its warnings about unknown statements."""
    here = threading.get_ident()

    def is_from_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger = logging.getLogger("sqlglot")
    logger.addFilter(is_from_other_thread)
    try:
        return sqlglot.parse_one(text, dialect=DIALECT)
    finally:
        logger.removeFilter(is_from_other_thread)


def parse_query(text: str, repos: Collection[str]) -> Query:
    """Parse a query over repositories with the given names. All other tables are left to Spark."""
    try:
        tree = parse_sql(text)
        tokens = sqlglot.tokenize(text, dialect=DIALECT)
        # Spark matches the names defined by WITH case-insensitively, sqlglot case-sensitively.
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
    """Raise an error for statements such as CREATE VIEW, in which Spark cannot resolve the repository's
    table.
    """
    named = next((repos[word] for word in re.findall(r"\w+", text.lower()) if word in repos), None)
    if named is None:
        return
    if tree.find(exp.Query) is None:
        sentence = (
            f"{named} is a repository, which this statement cannot use; one statement at a time can be"
            " SELECT, MERGE, UPDATE, DELETE, INSERT, DESCRIBE HISTORY, SHOW BRANCHES or TAGS, or CREATE or"
            " DROP BRANCH or TAG. sql(...).printSchema() shows columns, and sql(...).explain() a plan"
        )
    elif isinstance(tree, exp.Cache) or (isinstance(tree, exp.Create) and tree.kind == "VIEW"):
        sentence = "Spark resolves a view again later, without the repositories; create it from the result:"
        sentence += " sql(spark, 'SELECT ...', repos).createOrReplaceTempView('name')"
    else:
        return
    raise InvalidInputError(sentence, kind=ErrorKind.NOT_ALLOWED)


def _get_start(table: exp.Table) -> int:
    """Return the position of a table name in the query text, or -1 if it does not occur there."""
    return int(table.parts[0].meta.get("start", -1)) if table.parts else -1


def find_query(tree: exp.Expr) -> exp.Expr:
    """Return the query inside a parsed statement such as INSERT."""
    return tree if isinstance(tree, exp.Query) else tree.find(exp.Query) or tree


def _list_tables(scopes: Iterable[Scope]) -> Iterator[exp.Table]:
    """Yield the tables that queries read, except those defined by WITH."""
    for scope in scopes:
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
                yield source


def _parse_version(table: exp.Table, tokens: Sequence[Any], end: int) -> tuple[dict[str, str], int]:
    """Parse the version clause after a table name. Return it as data source options, with its end
    position.
    """
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
    """Return the end position of the TABLESAMPLE clause that follows a table name, if there is one."""
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
    """Return a copy of a parsed query with all names in lower case, because Spark ignores case."""
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", True)
    return tree
