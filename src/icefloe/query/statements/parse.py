"""Parse SQL statements that modify arrays, or that list, create and drop branches and tags.

sqlglot checks the syntax. The statement is then split at its keywords, so that Spark receives conditions and
values exactly as written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.schema import make_unknown_name_error
from icefloe.query.sql.parse import DIALECT, parse_sql

_OPENING: Final = {"(": 1, ")": -1, "[": 1, "]": -1}
_CHANGES: Final = ("MERGE", "UPDATE", "DELETE", "INSERT")
_REFS: Final = ("BRANCH", "TAG")
_LEADING_WORD: Final = "x "
"""A dummy word that is put before the statement, because sqlglot does not tokenize the rest of a statement
that begins with SHOW.
"""


@dataclass(frozen=True, slots=True)
class TargetName:
    """The parsed name of the target table of a SQL statement."""

    repo: str
    text: str
    """The name, version and alias, as written in the statement."""
    alias: str
    """The name that qualifies the columns of the table."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment of an expression to a column, in a SQL statement such as UPDATE."""

    column: str
    value: str


@dataclass(frozen=True, slots=True)
class SetValues:
    """A SET action, which assigns new values to variables of matching cells.

    Without assignments, all variables are set from the source columns of the same name.
    """

    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True)
class DeleteCells:
    """A DELETE action, which sets all variables of matching cells to missing."""


@dataclass(frozen=True, slots=True)
class InsertCells:
    """An INSERT action, which sets the values of the cell at the given coordinates."""

    assignments: tuple[Assignment, ...] | None


Action: TypeAlias = SetValues | DeleteCells | InsertCells
MATCHED: Final = "MATCHED"
NOT_MATCHED: Final = "NOT MATCHED"
NOT_MATCHED_BY_SOURCE: Final = "NOT MATCHED BY SOURCE"


@dataclass(frozen=True, slots=True)
class MergeClause:
    """A parsed WHEN clause of a MERGE statement: an action, and the rows to which it applies."""

    rows: str
    condition: str | None
    action: Action


@dataclass(frozen=True, slots=True)
class Merge:
    """A parsed MERGE statement."""

    target: TargetName
    source: str
    """The source table or query with its alias, as written."""
    source_alias: str
    on: tuple[str, ...]
    """The conditions in the ON clause, which are combined with AND."""
    clauses: tuple[MergeClause, ...]


@dataclass(frozen=True, slots=True)
class UpdateOrDelete:
    """A parsed UPDATE or DELETE statement: an action, and the condition that selects cells."""

    target: TargetName
    action: SetValues | DeleteCells
    where: str
    """The WHERE clause, including the keyword; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Insert:
    """A parsed INSERT statement: a query, and the column names if given."""

    target: TargetName
    columns: tuple[str, ...] | None
    by_name: bool
    query: str


@dataclass(frozen=True, slots=True)
class DescribeHistory:
    """A parsed DESCRIBE HISTORY statement, which lists the commits of a version, newest first."""

    name: str
    """The repository name, possibly with a version, as written."""
    rest: str
    """The text after the repository name, such as a LIMIT clause, as written."""


@dataclass(frozen=True, slots=True)
class ShowRefs:
    """A parsed SHOW BRANCHES or SHOW TAGS statement."""

    kind: str
    repo: str


@dataclass(frozen=True, slots=True)
class CreateRef:
    """A parsed CREATE BRANCH or CREATE TAG statement."""

    kind: str
    name: str
    repo: str
    exists_ok: bool
    version: str | None
    """The version at which to create the ref. It is passed to `open_session` as `timestampAsOf` if `is_time`
    is set, otherwise as `versionAsOf`."""
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class DropRef:
    """A parsed DROP BRANCH or DROP TAG statement."""

    kind: str
    name: str
    repo: str
    missing_ok: bool


DataChange: TypeAlias = Merge | UpdateOrDelete | Insert
Statement: TypeAlias = DataChange | DescribeHistory | ShowRefs | CreateRef | DropRef


def parse_statement(text: str, repos: Collection[str]) -> Statement | None:
    """Parse a statement that targets one of the repositories. Return None for queries, and for statements on
    other tables."""
    try:
        words = _StatementTokens(
            _LEADING_WORD + text, sqlglot.tokenize(_LEADING_WORD + text, dialect=DIALECT)[1:]
        )
    except SqlglotError:
        return None  # the query parser reports the error
    if words.is_next("ALTER", "TABLE") and words.find("CREATE", "DROP") is not None:
        return _parse_alter(words, repos)
    if words.is_next("CREATE", *_REFS) or words.is_next("DROP", *_REFS):
        return _parse_ref(words, repos, None)
    if words.is_next("SHOW", "BRANCHES", "TAGS"):
        return _parse_show(words, repos)
    if words.is_next("DESCRIBE", "HISTORY") or words.is_next("DESC", "HISTORY"):
        return _parse_history(words, repos)
    if words.upper(0) == "WITH" and words.find(*_CHANGES) is not None:
        raise _make_syntax_error("write WITH inside the query of the statement, not before it")
    return _parse_change(words, repos) if words.upper(0) in _CHANGES else None


def _parse_change(words: _StatementTokens, repos: Collection[str]) -> DataChange | None:
    tree = _check_syntax(_hide_insert_version(words).removeprefix(_LEADING_WORD))
    name = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(name, exp.Table) or not name.parts:
        return None
    repo = _find_repo(name.parts[0].name, repos)
    if repo is None:
        return None
    match tree:
        case exp.Merge():
            return _parse_merge(words, tree, repo)
        case exp.Update():
            return _parse_update(words, tree, repo)
        case exp.Delete():
            return _parse_delete(words, tree, repo)
        case exp.Insert():
            return _parse_insert(words, tree, repo)
    return None


def _hide_insert_version(words: _StatementTokens) -> str:
    """Blank out the version after the target of INSERT INTO, because sqlglot does not support it."""
    at, query = words.find("VERSION"), words.find("SELECT", "VALUES", "FROM", "WITH", "(")
    if words.upper(0) != "INSERT" or at is None or (query is not None and at > query):
        return words.text
    start, stop = words.start(at), words.start(at) + len(words.cut(at, at + 4))
    return words.text[:start] + " " * (stop - start) + words.text[stop:]


def _check_syntax(text: str) -> Any:
    try:
        tree = parse_sql(text)
    except SqlglotError as error:
        raise _make_syntax_error(str(error).splitlines()[0]) from None
    if isinstance(tree, exp.Command):
        raise _make_syntax_error(f"this form of {text.split()[0].upper()} is not supported")
    return tree


def _parse_merge(words: _StatementTokens, tree: Any, repo: str) -> Merge:
    into, using, on = (words.require(word) for word in ("INTO", "USING", "ON"))
    starts = [at for at in words.find_all("WHEN") if at > on]
    clauses = [
        _parse_when(words, start, stop) for start, stop in zip(starts, [*starts[1:], len(words)], strict=True)
    ]
    target = TargetName(repo, words.cut(into + 1, using), tree.this.alias_or_name)
    conditions = tuple(words.split_conjuncts(on + 1, starts[0]))
    source = words.cut(using + 1, on)
    return Merge(target, source, tree.args["using"].alias_or_name, conditions, tuple(clauses))


def _parse_when(words: _StatementTokens, start: int, stop: int) -> MergeClause:
    then = words.require("THEN", start, stop)
    matched = words.require("MATCHED", start, then)
    negated = words.upper(start + 1) == "NOT"
    after = matched + 1
    by_source = False
    if words.upper(after) == "BY":
        by_source = words.upper(after + 1) == "SOURCE"
        after += 2
    rows = NOT_MATCHED_BY_SOURCE if negated and by_source else NOT_MATCHED if negated else MATCHED
    condition = words.cut(after + 1, then) if words.upper(after) == "AND" else None
    action = _parse_action(words, then + 1, stop)
    if isinstance(action, InsertCells) != (rows == NOT_MATCHED):
        allowed = "INSERT" if rows == NOT_MATCHED else "UPDATE or DELETE"
        raise _make_syntax_error(f"WHEN {rows} must be followed by THEN {allowed}")
    return MergeClause(rows, condition, action)


def _parse_action(words: _StatementTokens, start: int, stop: int) -> Action:
    match words.upper(start):
        case "DELETE":
            return DeleteCells()
        case "UPDATE":
            if words.upper(start + 2) == "*":
                return SetValues(None)
            return SetValues(_parse_assignments(words, start + 2, stop))
    if words.upper(start + 1) == "*":
        return InsertCells(None)
    values = words.require("VALUES", start, stop)
    columns = [name.rpartition(".")[2] for name in words.split_list(start + 1, values)]
    given = words.split_list(values + 1, stop)
    if len(columns) != len(given):
        raise _make_syntax_error(f"INSERT has {len(columns)} columns but {len(given)} values")
    return InsertCells(
        tuple(Assignment(_unquote(name), value) for name, value in zip(columns, given, strict=True))
    )


def _parse_assignments(words: _StatementTokens, start: int, stop: int) -> tuple[Assignment, ...]:
    made = []
    for first, last in words.split(start, stop, ","):
        sign = words.require("=", first, last)
        made.append(Assignment(_unquote(words.word(sign - 1)), words.cut(sign + 1, last)))
    names = [each.column.lower() for each in made]
    for name in names:
        if names.count(name) > 1:
            raise _make_syntax_error(f"SET assigns {name} twice; remove one assignment")
    return tuple(made)


def _parse_update(words: _StatementTokens, tree: Any, repo: str) -> UpdateOrDelete:
    first, where = words.require("SET"), words.find("WHERE")
    if words.find("FROM") is not None:
        raise _make_syntax_error("UPDATE has no FROM clause; use MERGE INTO ... USING ... WHEN MATCHED")
    target = TargetName(repo, words.cut(1, first), tree.this.alias_or_name)
    stop = len(words) if where is None else where
    assignments = _parse_assignments(words, first + 1, stop)
    return UpdateOrDelete(target, SetValues(assignments), words.cut(stop, len(words)))


def _parse_delete(words: _StatementTokens, tree: Any, repo: str) -> UpdateOrDelete:
    where = words.find("WHERE")
    if words.find("USING") is not None:
        raise _make_syntax_error("DELETE has no USING clause; use MERGE INTO ... WHEN MATCHED THEN DELETE")
    stop = len(words) if where is None else where
    target = TargetName(repo, words.cut(words.require("FROM") + 1, stop), tree.this.alias_or_name)
    return UpdateOrDelete(target, DeleteCells(), words.cut(stop, len(words)))


def _parse_insert(words: _StatementTokens, tree: Any, repo: str) -> Insert:
    if tree.args.get("overwrite") or words.upper(1) != "INTO":
        raise InvalidInputError(
            "INSERT OVERWRITE is not supported; icefloe.spark.write(..., mode='overwrite') replaces arrays",
            kind=ErrorKind.NOT_ALLOWED,
        )
    if tree.args.get("partition") or words.find("REPLACE") is not None:
        raise _make_syntax_error(
            "array tables do not support the PARTITION and REPLACE clauses of INSERT; remove the clause"
        )
    start = 3 if words.upper(2) == "TABLE" else 2
    table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    columns = [each.name for each in tree.this.expressions] if isinstance(tree.this, exp.Schema) else None
    by_name = bool(tree.args.get("by_name"))
    end = max(part.meta["end"] for part in table.parts) + len(_LEADING_WORD)
    after = next(at for at in range(start, len(words)) if words.start(at) > end)
    after += 4 if words.has(after, ("VERSION", "AS", "OF")) else 0
    name = words.cut(start, after)
    if columns is not None:
        after = words.close(after) + 1
    if by_name:
        after += 2
    return Insert(
        TargetName(repo, name, table.name),
        None if columns is None else tuple(columns),
        by_name,
        words.cut(after, len(words)),
    )


# Versions


def _parse_history(words: _StatementTokens, repos: Collection[str]) -> DescribeHistory | None:
    tokens = range(2, len(words))
    start = next((at for at in tokens if words.upper(at) != "TABLE"), len(words))
    limit = words.find("LIMIT")
    stop = len(words) if limit is None else limit
    if start >= stop:
        name = _get_only_repo(repos, "DESCRIBE HISTORY name")
    elif _find_repo(_unquote(words.word(start)), repos) is None:
        return None
    else:
        name = words.cut(start, stop)
    return DescribeHistory(name, words.cut(stop, len(words)))


def _parse_show(words: _StatementTokens, repos: Collection[str]) -> ShowRefs:
    kind = words.upper(1)
    if len(words) == 2:
        repo = _get_only_repo(repos, f"SHOW {kind} IN name")
    elif words.upper(2) in ("IN", "FROM") and len(words) == 4:
        repo = _require_repo(_unquote(words.word(3)), repos)
    else:
        raise _make_syntax_error(f"expected SHOW {kind} IN name")
    return ShowRefs("branch" if kind == "BRANCHES" else "tag", repo)


def _parse_alter(words: _StatementTokens, repos: Collection[str]) -> CreateRef | DropRef | None:
    """Parse Iceberg's syntax for branches and tags, such as ALTER TABLE name CREATE BRANCH dev."""
    repo = _find_repo(_unquote(words.word(2)), repos)
    verb = words.find("CREATE", "DROP")
    if repo is None or verb is None or words.upper(verb + 1) not in _REFS:
        return None
    return _parse_ref(_StatementTokens(words.text, words.tokens[verb:]), repos, repo)


def _parse_ref(words: _StatementTokens, repos: Collection[str], repo: str | None) -> CreateRef | DropRef:
    verb, kind = words.upper(0), words.upper(1)
    form = f"{verb} {kind} name IN repository" + (" [AS OF VERSION 'v1']" if verb == "CREATE" else "")
    condition = ("IF", "NOT", "EXISTS") if verb == "CREATE" else ("IF", "EXISTS")
    at = 2
    checked = words.has(at, condition)
    at += len(condition) if checked else 0
    if at >= len(words):
        raise _make_syntax_error(f"expected {form}")
    name, at = _unquote(words.word(at)), at + 1
    if repo is None and words.upper(at) in ("IN", "FROM"):
        if at + 1 >= len(words):
            raise _make_syntax_error(f"expected {form}")
        repo = _require_repo(_unquote(words.word(at + 1)), repos)
        at += 2
    repo = repo or _get_only_repo(repos, form)
    version, is_time, at = _parse_version(words, at) if verb == "CREATE" else (None, False, at)
    if at != len(words):
        raise _make_syntax_error(f"unexpected {words.word(at)!r}; expected {form}")
    if verb == "CREATE":
        return CreateRef(kind.lower(), name, repo, checked, version, is_time)
    return DropRef(kind.lower(), name, repo, checked)


def _parse_version(words: _StatementTokens, at: int) -> tuple[str | None, bool, int]:
    """Parse a version, such as AS OF VERSION 'v1' or TIMESTAMP AS OF '2024-05'. Return the version, whether
    it is a time, and the index of the next token."""
    for word in ("VERSION", "TIMESTAMP"):
        if words.has(at, ("AS", "OF", word)) or words.has(at, (word, "AS", "OF")):
            if at + 3 >= len(words):
                break
            return _unquote(words.word(at + 3)), word == "TIMESTAMP", at + 4
    return None, False, at


def _find_repo(name: str, repos: Collection[str]) -> str | None:
    return {each.lower(): each for each in repos}.get(name.lower())


def _require_repo(name: str, repos: Collection[str]) -> str:
    found = _find_repo(name, repos)
    if found is None:
        raise make_unknown_name_error("repository", name, list(repos))
    return found


def _get_only_repo(repos: Collection[str], form: str) -> str:
    if len(repos) != 1:
        raise _make_syntax_error(f"name the repository: {form}; known repositories are {', '.join(repos)}")
    return next(iter(repos))


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name[:1] == "`" else name.strip("'\"")


def _make_syntax_error(sentence: str) -> InvalidInputError:
    return InvalidInputError(f"the statement cannot be parsed: {sentence}", kind=ErrorKind.BAD_METADATA)


class _StatementTokens:
    """The tokens of a statement. Searches ignore everything inside parentheses, brackets and CASE."""

    def __init__(self, text: str, tokens: Sequence[Any]) -> None:
        self.text = text
        kept = list(tokens)
        while kept and kept[-1].text == ";":
            kept.pop()
        self.tokens = kept

    def __len__(self) -> int:
        return len(self.tokens)

    def start(self, at: int) -> int:
        """Return the position in the statement at which a token starts."""
        return int(self.tokens[at].start)

    def word(self, at: int) -> str:
        """Return the text of a token as written."""
        return self.cut(at, at + 1)

    def upper(self, at: int) -> str:
        """Return a token in upper case, or an empty string after the last token."""
        return self.word(at).upper() if at < len(self) else ""

    def has(self, at: int, words: Sequence[str]) -> bool:
        """Return True if the tokens starting at an index are the given words."""
        return all(self.upper(at + step) == word for step, word in enumerate(words))

    def is_next(self, first: str, *second: str) -> bool:
        """Return True if the statement begins with `first`, followed by one of the words in `second`."""
        return self.upper(0) == first and self.upper(1) in second

    def cut(self, start: int, stop: int) -> str:
        """Return the statement text from one token up to another."""
        if start >= stop:
            return ""
        return self.text[self.start(start) : int(self.tokens[stop - 1].end) + 1]

    def find_all(self, *words: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """Yield the token indices at which any of the given words occurs."""
        depth = 0
        for at in range(start, len(self) if stop is None else stop):
            word = self.upper(at)
            if not depth and word in words:
                yield at
            depth += _OPENING.get(word, 0) + (word == "CASE") - (word == "END" and depth > 0)

    def find(self, *words: str) -> int | None:
        """Return the token index of the first occurrence of any given word, or None."""
        return next(self.find_all(*words), None)

    def require(self, word: str, start: int = 0, stop: int | None = None) -> int:
        """Return the token index of a keyword. Raise an error if the statement lacks it."""
        found = next(self.find_all(word, start=start, stop=stop), None)
        if found is None:
            raise _make_syntax_error(f"{word} is missing in {self.cut(start, stop or len(self))!r}")
        return found

    def split(self, start: int, stop: int, sign: str) -> list[tuple[int, int]]:
        """Split a range of tokens at a separator, and return the text of each part."""
        borders = [start - 1, *self.find_all(sign, start=start, stop=stop), stop]
        return [(first + 1, last) for first, last in pairwise(borders)]

    def split_list(self, start: int, stop: int) -> list[str]:
        """Return the text of each item in a parenthesized list."""
        if self.upper(start) != "(" or self.close(start) != stop - 1:
            raise _make_syntax_error(f"expected one list in parentheses, not {self.cut(start, stop)!r}")
        return [self.cut(*each) for each in self.split(start + 1, stop - 1, ",")]

    def close(self, start: int) -> int:
        """Return the index of the token that closes the parenthesis at a position."""
        depth = 0
        for at in range(start, len(self)):
            depth += _OPENING.get(self.upper(at), 0)
            if not depth:
                return at
        raise _make_syntax_error("a parenthesis is not closed")

    def split_conjuncts(self, start: int, stop: int) -> list[str]:
        """Split a condition at AND, but not at the AND of BETWEEN. A condition with OR is not split."""
        while self.upper(start) == "(" and self.close(start) == stop - 1:
            start, stop = start + 1, stop - 1
        if next(self.find_all("OR", start=start, stop=stop), None) is not None:
            return [self.cut(start, stop)]
        borders = [start - 1]
        between = False
        for at in self.find_all("AND", "BETWEEN", start=start, stop=stop):
            if self.upper(at) == "BETWEEN":
                between = True
            elif between:
                between = False
            else:
                borders.append(at)
        parts: list[str] = []
        for before, last in zip(borders, [*borders[1:], stop], strict=True):
            first = before + 1
            whole = self.upper(first) == "(" and self.close(first) == last - 1
            parts += self.split_conjuncts(first, last) if whole else [self.cut(first, last)]
        return parts
