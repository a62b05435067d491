"""Validate statements that change arrays, and translate their clauses to Spark SQL expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.query.schema import ArrayInfo, ArrayTable, Column, Role, make_unknown_name_error
from icefloe.query.spark_types import quote_name, to_spark_type
from icefloe.query.sql.parse import DIALECT, parse_sql
from icefloe.query.statements.parse import Action, Assignment, DeleteCells, InsertCells, SetValues
from icefloe.query.write.cells import KEY, TARGET
from icefloe.session import Session

SOURCE: Final = "s:"
"""The prefix of column names that come from the source of a MERGE statement."""
_BEFORE: Final = "SELECT "
UPDATED: Final = "updated"
DELETED: Final = "deleted"
INSERTED: Final = "inserted"


@dataclass(frozen=True, slots=True)
class Clause:
    """The change that a WHEN clause of MERGE, or a whole statement, makes to a cell."""

    kind: str
    condition: str | None
    values: Mapping[str, str]
    """The new value of each variable that the clause sets, as a SQL expression keyed by variable name."""
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """The coordinates of an inserted cell, as one SQL expression per dimension. Empty for existing cells."""


Qualify = Callable[[str], str]


def make_clause(
    table: ArrayTable,
    action: Action,
    session: Session,
    condition: str | None = None,
    qualify: Qualify = str,
    source: Sequence[str] = (),
) -> Clause:
    """Validate the changes of a statement, and translate them to SQL expressions.

    `source` lists the columns that `*` stands for.
    """
    condition = None if condition is None else qualify(condition)
    if isinstance(action, DeleteCells):
        for column in table.variables:
            _check_deletable(column, session)
        nulls = {c.name: f"CAST(NULL AS {to_spark_type(c.arrow)})" for c in _list_writable(table)}
        return Clause(DELETED, condition, nulls)
    given = action.assignments
    if given is None:
        given = tuple(_select_from_source(table, source, isinstance(action, InsertCells)))
        qualify = str
    if isinstance(action, SetValues):
        values = {find_variable(table, each.column).name: qualify(each.value) for each in given}
        return Clause(UPDATED, condition, values)
    dims, variables = divide_columns(table, [each.column for each in given])
    texts = [qualify(each.value) for each in given]
    return Clause(
        INSERTED,
        condition,
        {name: texts[at] for name, at in variables.items()},
        {name: texts[at] for name, at in dims.items()},
    )


def _select_from_source(table: ArrayTable, source: Sequence[str], is_insert: bool) -> list[Assignment]:
    """Expand `*`: assign the source column of the same name to each variable and, for INSERT, to each
    dimension.
    """
    known = {name.lower(): name for name in source}
    wanted = [*(table.dims if is_insert else ()), *(column.name for column in _list_writable(table))]
    for name in wanted:
        if name.lower() not in known:
            raise make_unknown_name_error("column", name, list(source), "in the source, which * requires")
    return [Assignment(name, quote_name(SOURCE + known[name.lower()])) for name in wanted]


def _list_writable(table: ArrayTable) -> list[Column]:
    return [column for column in table.variables if not column.numeric]


def find_variable(table: ArrayTable, name: str) -> Column:
    """Return a variable that a statement changes, by name. Raise InvalidInputError if the name is a
    coordinate.
    """
    column = table.column(name)
    if column.role is not Role.VARIABLE or column.numeric:
        raise InvalidInputError(
            f"{name} is a coordinate of group {table.group}, which a statement cannot set; set variables:"
            f" {', '.join(each.name for each in _list_writable(table)) or 'there are none'}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return column


def divide_columns(table: ArrayTable, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Split the columns of an INSERT statement into dimensions and variables, each with its position in the
    rows.

    Auxiliary coordinates are part of the grid and are ignored.
    """
    columns = [table.column(name) for name in names]
    found = [column.name for column in columns]
    for name in found:
        if found.count(name) > 1:
            raise InvalidInputError(
                f"INSERT contains the column {name} twice; remove one", kind=ErrorKind.NOT_ALLOWED
            )
    dims = {column.name: at for at, column in enumerate(columns) if column.role is Role.DIMENSION}
    values = {c.name: at for at, c in enumerate(columns) if c.role is Role.VARIABLE and not c.numeric}
    for dim in table.dims:
        if dim not in dims:
            raise InvalidInputError(
                f"INSERT needs a value for every dimension; {dim} is missing in {', '.join(names)}",
                kind=ErrorKind.NOT_ALLOWED,
            )
    if not values:
        raise InvalidInputError(
            "INSERT contains only coordinates; add at least one variable", kind=ErrorKind.NOT_ALLOWED
        )
    return dims, values


def _check_deletable(column: Column, session: Session) -> None:
    """Raise an error if an array has no fill value that represents missing values, because DELETE needs
    one.
    """
    info = column.array
    if info is None or column.coding is None or _has_missing_value(info, session):
        return
    raise InvalidInputError(
        f"cells of {info.path} cannot be deleted: its fill value does not mark missing values; add the"
        " attribute"
        " _FillValue, or set values with UPDATE",
        kind=ErrorKind.NOT_ALLOWED,
    )


def _has_missing_value(info: ArrayInfo, session: Session) -> bool:
    import zarr

    declared = any(info.attributes.get(name) is not None for name in ("_FillValue", "missing_value"))
    if info.coding.fills or (declared and info.coding.stored.kind == "f"):
        return True
    array: Any = zarr.open_array(session.store, path=info.path, mode="r")
    fill = np.asarray(array.fill_value).reshape(1)
    return info.coding.find_missing(info.coding.view(fill.astype(info.coding.stored))) is not None


# Column names in MERGE


@dataclass(frozen=True, slots=True)
class MergeNames:
    """A resolver for column names in a MERGE statement, which refer to the target or to the source."""

    target: str
    target_columns: Sequence[str]
    source: str
    source_columns: Sequence[str]

    def qualify(self, text: str, *, only_source: bool = False) -> str:
        """Rewrite an expression to use the column names of the DataFrame that joins target and source."""
        parts: list[str] = []
        at = 0
        for column in sorted(_list_columns(text), key=lambda column: column.parts[0].meta["start"]):
            name, last = self._resolve(column, text, only_source)
            parts += [text[at : column.parts[0].meta["start"] - len(_BEFORE)], quote_name(name)]
            at = last.meta["end"] + 1 - len(_BEFORE)
        return "".join([*parts, text[at:]])

    def find_target_columns(self, text: str) -> set[str]:
        """Return the target columns that an expression of a MERGE statement uses."""
        names = (self._resolve(column, text, False)[0] for column in _list_columns(text))
        return {name.removeprefix(TARGET) for name in names if name.startswith(TARGET)}

    def find_source_columns(self, text: str) -> set[str]:
        """Return the source columns that an expression of a MERGE statement uses."""
        names = (self._resolve(column, text, False)[0] for column in _list_columns(text))
        return {name.removeprefix(SOURCE) for name in names if name.startswith(SOURCE)}

    def _resolve(self, column: exp.Column, text: str, only_source: bool) -> tuple[str, Any]:
        parts = list(column.parts)
        first = parts[0].name.lower()
        sides = {
            TARGET: {each.lower(): each for each in self.target_columns if not only_source},
            SOURCE: {each.lower(): each for each in self.source_columns},
        }
        for prefix, alias in ((SOURCE, self.source), (TARGET, self.target)):
            if len(parts) > 1 and first == alias.lower():
                found = sides[prefix].get(parts[1].name.lower())
                if found is None:
                    known = self.source_columns if prefix == SOURCE else self.target_columns
                    raise make_unknown_name_error("column", parts[1].name, list(known), f"in {alias}")
                return prefix + found, parts[1]
        having = [prefix for prefix, names in sides.items() if first in names]
        if len(having) != 1:
            shown = parts[0].name
            reason = "is in both tables; qualify it" if having else "is in neither table"
            raise InvalidInputError(
                f"column {shown!r} in {text!r} {reason}: {self.target}.{shown} or {self.source}.{shown}",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        return having[0] + sides[having[0]][first], parts[0]

    def find_keys(self, conditions: Sequence[str], dims: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Return the source expression that the ON clause compares with each dimension, and all other
        conditions.
        """
        keys: dict[str, str] = {}
        others: list[str] = []
        for text in conditions:
            found = self._find_key(text, dims)
            if found is None or found[0] in keys:
                others.append(self.qualify(text))
            else:
                keys[found[0]] = self.qualify(found[1], only_source=True)
        for dim in dims:
            if dim not in keys:
                raise InvalidInputError(
                    f"ON does not determine the {dim} of a cell; compare every dimension of the table with"
                    f" the source, such as {self.target}.{dim} = {self.source or 'source'}.{dim}",
                    kind=ErrorKind.NOT_ALLOWED,
                )
        return keys, others

    def _find_key(self, text: str, dims: Sequence[str]) -> tuple[str, str] | None:
        """Return the dimension and the source expression that a condition compares with `=`, or None for
        other conditions."""
        signs = [token for token in sqlglot.tokenize(text, dialect=DIALECT) if token.text in ("=", "==")]
        if len(signs) != 1 or not isinstance(_parse_expression(text), exp.EQ):
            return None
        left, right = text[: signs[0].start].strip(), text[signs[0].end + 1 :].strip()
        for side, other in ((left, right), (right, left)):
            node = _parse_expression(side)
            if isinstance(node, exp.Column) and not self.find_target_columns(other):
                name, _ = self._resolve(node, side, False)
                if name.removeprefix(TARGET) in dims and name.startswith(TARGET):
                    return name.removeprefix(TARGET), other
        return None


def _parse_expression(text: str) -> exp.Expr:
    try:
        select: Any = parse_sql(_BEFORE + text)
    except SqlglotError as error:
        raise InvalidInputError(
            f"{text!r} cannot be parsed: {str(error).splitlines()[0]}", kind=ErrorKind.BAD_METADATA
        ) from None
    found: exp.Expr = select.selects[0]
    return found


def _list_columns(text: str) -> list[exp.Column]:
    tree = _parse_expression(text)
    if tree.find(exp.Query) is not None:
        raise InvalidInputError(
            f"{text!r} contains a query, which a clause of MERGE cannot evaluate; move it into the source",
            kind=ErrorKind.NOT_ALLOWED,
        )
    return [column for column in tree.find_all(exp.Column) if not isinstance(column.this, exp.Star)]


# Expressions over all clauses


def write_clause_number(clauses: Mapping[int, tuple[str, Clause]]) -> str:
    """Return a SQL expression for the number of the first MERGE clause that applies to a row, or null if none
    does.
    """
    whens = [
        f"WHEN {rows}{'' if each.condition is None else f' AND ({each.condition})'} THEN {number}"
        for number, (rows, each) in clauses.items()
    ]
    return f"CASE {' '.join(whens)} END"


def write_values(clauses: Mapping[int, Clause], names: Sequence[str], number: str) -> list[str]:
    """Return SQL expressions for the new values of variables, depending on the column that holds the clause
    number.
    """
    written = []
    for name in names:
        whens = [
            f"WHEN {at} THEN ({each.values[name]})" for at, each in clauses.items() if name in each.values
        ]
        value = f"CASE {number} {' '.join(whens)} END" if whens else "NULL"
        written.append(f"{value} AS {quote_name(name)}")
    return written


def write_coordinates(clauses: Mapping[int, Clause], dims: Sequence[str], number: str) -> list[str]:
    """Return SQL expressions for the coordinates of the cell that each row of a MERGE statement changes."""
    written = []
    for dim in dims:
        key = quote_name(KEY + dim)
        whens = [
            f"WHEN {at} THEN ({each.coordinates[dim]})" for at, each in clauses.items() if each.coordinates
        ]
        value = f"CASE {number} {' '.join(whens)} ELSE {key} END" if whens else key
        written.append(f"{value} AS {quote_name(dim)}")
    return written
