"""SELECTs that aggregate one table, answered from a row per group of cells instead of a row per cell.

The cells of a group agree in all that the SELECT says of coordinates, outside of its aggregates and in
conditions. So one of them stands for all, with the moments of their variables beside it; in the text of the
query each aggregate becomes one of moments. All else stays, and Spark evaluates it for fewer rows: what
conditions, keys, HAVING, windows, ROLLUP and ORDER BY say is what they said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.optimizer.scope import Scope, ScopeType, walk_in_scope
from sqlglot.tokenizer_core import Token, TokenType

from icefloe.query.decode import quoted
from icefloe.query.scan.groups import Term
from icefloe.query.scan.reduce import CELLS, MOMENTS, Moment, moment_of
from icefloe.query.scan.selection import Coordinates
from icefloe.query.schema import Column, Role
from icefloe.query.sql.analysis import find_columns
from icefloe.query.sql.parse import Edit
from icefloe.query.sql.predicates import Known, answer, term
from icefloe.query.sql.pushdown import conjuncts

_FUNCTIONS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "mean",
    exp.Min: "min",
    exp.Max: "max",
    exp.Stddev: "std",
    exp.StddevSamp: "std",
    exp.StddevPop: "std_pop",
    exp.Variance: "var",
    exp.VariancePop: "var_pop",
}
_NAMED: Final = {"mean": "mean", "std": "std"}
_CHANGING: Final = (exp.Rand, exp.Randn, exp.Randstr, exp.Uniform, exp.Uuid, exp.Shuffle, exp.Zipf)
"""Functions that may say something else for each row."""
_ELSEWHERE: Final = ("joins", "laterals", "pivots", "sample", "match", "connect", "into", "qualify")
"""What a SELECT may have that looks at more than the rows of its table."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a SELECT is answered from groups of cells."""

    terms: tuple[Term, ...]
    """What the cells of a group have in common."""
    shown: tuple[Term, ...]
    """Coordinates that the SELECT names, of which a group has those of its first cell."""
    moments: tuple[Moment, ...]
    edits: tuple[Edit, ...]


class _UnfitError(Exception):
    """The SELECT needs the cells themselves."""


def reduction(
    text: str, tokens: Sequence[Token], scope: Scope, coordinates: Coordinates, utc: bool
) -> Reduction | None:
    """How a SELECT of one table can be answered from groups of its cells; None where it cannot."""
    try:
        return _Reading(text, tokens, scope, coordinates, utc).reduction()
    except _UnfitError:
        return None


def combine_moments(function: str, variable: str) -> str:
    """The SQL that puts the moments of a variable together: an aggregate, null where there are no values."""

    def total(moment: str) -> str:
        return f"sum({quoted(f'{variable}.{moment}')})"

    match function:
        case "count":
            return f"coalesce({total('count')}, 0)"
        case "sum":
            return total("sum")
        case "mean":
            return f"(CAST({total('sum')} AS double) / nullif({total('count')}, 0))"
        case "min" | "max":
            return f"{function}({quoted(f'{variable}.{function}')})"
    count = total("count")
    squares = f"{total('squares')} - {total('shifted')} * {total('shifted')} / {count}"
    least, divisor = (0, count) if function.endswith("_pop") else (1, f"({count} - 1)")
    variance = f"greatest({squares}, CAST(0 AS double)) / {divisor}"
    if function.startswith("std"):
        variance = f"sqrt({variance})"
    return f"(CASE WHEN {count} > {least} THEN {variance} END)"


class _Reading:
    """A SELECT, read for what it says of the variables and the coordinates of its table."""

    def __init__(
        self, text: str, tokens: Sequence[Token], scope: Scope, coordinates: Coordinates, utc: bool
    ) -> None:
        self._text = text
        self._tokens = tokens
        self._scope = scope
        self._coordinates = coordinates
        self._utc = utc
        columns = coordinates.table.columns
        self._columns = {column.name.lower(): column for column in columns}
        if len(self._columns) < len(columns):
            raise _UnfitError
        self._terms: dict[tuple[str, str], Term] = {}
        self._shown: dict[str, Term] = {}
        self._moments: dict[Moment, None] = {}

    def reduction(self) -> Reduction:
        """What was found."""
        select: Any = self._scope.expression
        nodes = list(walk_in_scope(select))
        aggregates = [node for node in nodes if _function(node) is not None and not _is_window(node)]
        self._check(select, nodes, aggregates)
        if _has_outside_names(self._scope) and any(_is_unnamed(node, select) for node in aggregates):
            raise _UnfitError  # Spark names results after their text, which does not stay
        edits = [edit for node in aggregates for edit in self._aggregate(node)]
        inside = {id(column) for node in aggregates for column in _whole(node).find_all(exp.Column)}
        settled = self._settled(select)
        names = {each.alias_or_name for each in select.selects}
        for column in find_columns(self._scope):
            if id(column) in inside:
                continue
            if column.name not in self._columns or self._is_output(column, names):
                if column.name not in names:
                    raise _UnfitError
            elif id(column) in settled:
                self._show(column)
            else:
                self._distinguish(column)
        return Reduction(
            tuple(self._terms.values()), tuple(self._shown.values()), tuple(self._moments), tuple(edits)
        )

    def _check(self, select: exp.Expr, nodes: Iterable[exp.Expr], aggregates: Sequence[exp.Expr]) -> None:
        groups = bool(aggregates or select.args.get("group"))
        if any(select.args.get(key) for key in _ELSEWHERE) or not (groups or select.args.get("distinct")):
            raise _UnfitError
        for node in nodes:
            other = isinstance(node, exp.AggFunc) and _function(node) is None and not _is_window(node)
            unknown = isinstance(node, exp.Anonymous) and node.name.lower() not in _NAMED
            star = isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)
            window = isinstance(node, exp.Window) and not groups
            if other or unknown or star or window or isinstance(node, (*_CHANGING, exp.UDTF)):
                raise _UnfitError

    def _settled(self, select: exp.Expr) -> set[int]:
        """Columns in conditions that hold for all cells that are looked at."""
        where = select.args.get("where")
        found: set[int] = set()
        for condition in conjuncts(where.this) if where is not None else []:
            columns = list(condition.find_all(exp.Column))
            if condition.find(exp.Query) or len({column.name for column in columns}) != 1:
                continue
            known = answer(condition, self._known(self._coordinate(columns[0])))
            if known is not None and known.exact:
                found |= {id(column) for column in columns}
        return found

    def _is_output(self, column: exp.Column, names: set[str]) -> bool:
        """Whether a name is that of a result rather than of the variable of the same name."""
        qualifier = column.args.get("table")
        if qualifier is not None and "start" in qualifier.meta:
            return False
        here = self._columns[column.name]
        behind = column.find_ancestor(exp.Having, exp.Order, exp.Select)
        return here.role is Role.VARIABLE and column.name in names and not isinstance(behind, exp.Select)

    def _coordinate(self, column: exp.Column) -> Column:
        found = self._columns.get(column.name)
        if found is None or found.role is Role.VARIABLE or len(found.axes) != 1:
            raise _UnfitError
        return found

    def _known(self, column: Column) -> Known:
        values, missing = self._coordinates.values(column)
        return Known(values, missing, column.arrow, self._utc)

    def _show(self, column: exp.Column) -> Column:
        found = self._coordinate(column)
        values, missing = self._coordinates.values(found)
        self._shown[found.name] = Term(found.name, found.axes[0], found.arrow, values, missing)
        return found

    def _distinguish(self, column: exp.Column) -> None:
        """Let groups agree in the largest expression with a coordinate in it that is understood."""
        found = self._show(column)
        known = self._known(found)
        largest: exp.Expr = column
        values: Any = self._shown[found.name].values
        while largest.parent is not None and len(list(largest.parent.find_all(exp.Column))) == 1:
            side = term(largest.parent, known)
            if side is None:
                break
            largest, values = largest.parent, side.value
        key = (found.name, largest.sql() if largest is not column else "")
        self._terms[key] = Term(found.name, found.axes[0], found.arrow, values, known.missing)

    def _aggregate(self, node: exp.Expr) -> list[Edit]:
        """The text that takes the place of an aggregate; none where it may stay."""
        function = _function(node)
        call, argument = self._spans(node)
        columns = list(_whole(node).find_all(exp.Column))
        if function is None or _whole(node).find(exp.Query) or _has_more(node):
            raise _UnfitError
        variables = {column.name for column in columns if self._is_variable(column)}
        for column in columns:
            if column.name not in variables:
                self._distinguish(column)
        condition = self._condition(node)
        if not variables:
            text = self._of_coordinates(function, node, argument, condition)
        elif len(variables) == 1:
            text = self._of_variable(function, node, argument, condition, self._columns[variables.pop()])
        else:
            raise _UnfitError
        return [] if text is None else [Edit(*call, text)]

    def _is_variable(self, column: exp.Column) -> bool:
        found = self._columns.get(column.name)
        if found is None:
            raise _UnfitError
        return found.role is Role.VARIABLE

    def _of_coordinates(
        self, function: str, node: exp.Expr, argument: tuple[int, int], condition: str | None
    ) -> str | None:
        """An aggregate of what all cells of a group agree in."""
        if function in ("min", "max") or isinstance(_argument(node), exp.Distinct):
            return None  # it is the same however often a row comes
        cells = self._moment("cells", None)
        if isinstance(_argument(node), exp.Star):
            counted = cells if condition is None else f"CASE WHEN {condition} THEN {cells} END"
            return f"coalesce(sum({counted}), 0)"
        value = self._text[slice(*argument)]
        value = f"({value})" if condition is None else f"(CASE WHEN {condition} THEN {value} END)"
        count = f"sum(CASE WHEN {value} IS NOT NULL THEN {cells} END)"
        match function:
            case "count":
                return f"coalesce({count}, 0)"
            case "sum":
                return f"sum({self._wide(node, value)} * {cells})"
            case "mean":
                return f"(sum(CAST({value} AS double) * {cells}) / nullif({count}, 0))"
        raise _UnfitError

    def _wide(self, node: exp.Expr, value: str) -> str:
        """What Spark adds up in doubles, which a product of small floats is not without ANSI."""
        columns = (self._columns[column.name] for column in _argument(node).find_all(exp.Column))
        return (
            f"CAST({value} AS double)" if any(pa.types.is_float32(each.arrow) for each in columns) else value
        )

    def _of_variable(
        self, function: str, node: exp.Expr, argument: tuple[int, int], condition: str | None, column: Column
    ) -> str:
        """An aggregate of a variable, or of what follows from it in a straight line."""
        given = Argument(_argument(node), column, self._columns)
        if isinstance(_argument(node), exp.Distinct) or not _is_computed(function, column.arrow):
            raise _UnfitError
        if given.is_plain and condition is None:
            for name in MOMENTS[function.removesuffix("_pop")]:
                self._moment(name, column)
            return combine_moments(function, column.name)
        if function in ("min", "max") and given.rises:
            value = self._moment(function, column)
            return f"{function}({self._with(argument, node, column, value, condition)})"
        if function not in ("count", "sum", "mean") or not given.is_straight:
            raise _UnfitError
        count, total = self._moment("count", column), self._moment("sum", column)
        value = self._with(
            argument, node, column, f"(CAST({total} AS double) / nullif({count}, 0))", condition
        )
        counted = f"sum(CASE WHEN {value} IS NOT NULL THEN {count} END)"
        if function == "count":
            return f"coalesce({counted}, 0)"
        added = f"sum({value} * {count})"
        return added if function == "sum" else f"({added} / nullif({counted}, 0))"

    def _moment(self, name: str, column: Column | None) -> str:
        found = moment_of(name, column)
        if column is not None:
            self._moments[moment_of("count", column)] = None
        self._moments[found] = None
        return quoted(found.column if column is not None else CELLS)

    def _with(
        self, argument: tuple[int, int], node: exp.Expr, column: Column, value: str, condition: str | None
    ) -> str:
        """The argument of an aggregate with something else in place of a variable."""
        start, stop = argument
        places = []
        for each in _argument(node).find_all(exp.Column):
            if each.name == column.name.lower():
                parts = [part.meta for part in each.parts if "start" in part.meta]
                places.append((parts[0]["start"], parts[-1]["end"] + 1))
        text = ""
        for first, last in sorted(places):
            text += self._text[start:first] + value
            start = last
        text += self._text[start:stop]
        return f"({text})" if condition is None else f"(CASE WHEN {condition} THEN {text} END)"

    def _condition(self, node: exp.Expr) -> str | None:
        """The text of the condition in FILTER (WHERE ...), which is about coordinates alone."""
        whole = _whole(node)
        if whole is node:
            return None
        columns = list(whole.expression.find_all(exp.Column))
        if any(self._is_variable(column) for column in columns) or isinstance(_argument(node), exp.Distinct):
            raise _UnfitError
        if _function(node) in ("min", "max") and not any(map(self._is_variable, node.find_all(exp.Column))):
            raise _UnfitError
        at = self._token(node.meta["start"])
        at = self._closed(at + 1) + 2
        stop = self._closed(at)
        return f"({self._text[self._tokens[at + 1].end + 1 : self._tokens[stop].start]})"

    def _spans(self, node: exp.Expr) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where an aggregate stands in the text, its filter included, and where its argument does."""
        if "start" not in node.meta:
            raise _UnfitError
        at = self._token(node.meta["start"])
        stop = self._closed(at + 1)
        argument = (self._tokens[at + 1].end + 1, self._tokens[stop].start)
        if _whole(node) is not node:
            stop = self._closed(stop + 2)
        return (self._tokens[at].start, self._tokens[stop].end + 1), argument

    def _token(self, start: int) -> int:
        return next(number for number, token in enumerate(self._tokens) if token.start == start)

    def _closed(self, at: int) -> int:
        """The place of the bracket that closes the one at a place."""
        if self._tokens[at].token_type is not TokenType.L_PAREN:
            raise _UnfitError
        depth = 0
        for number in range(at, len(self._tokens)):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(self._tokens[number].token_type, 0)
            if not depth:
                return number
        raise _UnfitError


def _function(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Anonymous):
        return _NAMED.get(node.name.lower())
    return _FUNCTIONS.get(type(node))


def _argument(node: exp.Expr) -> exp.Expr:
    argument: exp.Expr = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
    return argument


def _has_more(node: exp.Expr) -> bool:
    """Whether an aggregate has not just one argument."""
    return len(node.expressions) != isinstance(node, exp.Anonymous)


def _whole(node: exp.Expr) -> exp.Expr:
    """An aggregate with its filter."""
    return node.parent if isinstance(node.parent, exp.Filter) else node


def _has_outside_names(scope: Scope) -> bool:
    """Whether the results of a SELECT are known by name to a query around it."""
    while scope.scope_type is ScopeType.SET_OPERATION and scope.parent is not None:
        scope = scope.parent
    return bool(scope.is_derived_table or scope.is_cte)


def _is_unnamed(node: exp.Expr, select: exp.Expr) -> bool:
    """Whether an aggregate is in a result without an alias."""
    while node.parent is not None and node.parent is not select:
        node = node.parent
    named = isinstance(node, exp.Alias) and "start" in node.args["alias"].meta
    return node.arg_key == "expressions" and not named


def _is_window(node: exp.Expr) -> bool:
    """Whether a function is computed over rows of the result, not over those of the table."""
    whole = _whole(node)
    return isinstance(whole.parent, exp.Window) and whole.parent.this is whole


def _is_computed(function: str, arrow: pa.DataType) -> bool:
    """Whether moments of values of a type give what Spark gives."""
    if function == "count":
        return True
    if pa.types.is_integer(arrow):  # sums of 64 bits may overflow, which Spark says
        return function in ("min", "max") or arrow.bit_width < 64
    return bool(pa.types.is_floating(arrow))


_DOUBLES: Final = (exp.Cos, exp.Sin, exp.Tan, exp.Radians, exp.Degrees, exp.Sqrt, exp.Exp, exp.Ln, exp.Pow)
"""Functions whose result is a double."""


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument of an aggregate, in which there is one variable."""

    expression: exp.Expr
    variable: Column
    columns: Mapping[str, Column]
    """All of the table, by their names in lower case."""

    @property
    def is_plain(self) -> bool:
        """Whether it is the variable itself."""
        return isinstance(self.expression.unnest(), exp.Column)

    @property
    def is_straight(self) -> bool:
        """Whether it is a * v + b, with a and b that are the same for all cells of a group.

        Then its sum is its value at the mean of v, times the number of values. It is computed in doubles, and
        has to be so for each cell: elsewhere the last digits of floats would not be those of Spark.
        """
        return self._straight(self.expression)

    @property
    def rises(self) -> bool:
        """Whether it is larger where the variable is: its extremes are those of the variable."""
        return self._rising(self.expression)

    def _straight(self, each: exp.Expr) -> bool:
        match each:
            case exp.Paren():
                return self._straight(each.this)
            case exp.Column():
                return self._varies(each)
            case exp.Case() | exp.If():
                return self._branches(each) and all(self._straight(one) for one in self._values(each))
            case exp.Cast():
                return each.to.is_type(exp.DataType.Type.DOUBLE) and self._straight(each.this)
            case exp.Neg():
                return self._straight(each.this)
            case exp.Add() | exp.Sub():
                sides = [side for side in (each.left, each.right) if self._varies(side)]
                return self._in_doubles(each) and all(self._straight(side) for side in sides)
            case exp.Mul():
                one, other = each.left, each.right
                if self._varies(one) == self._varies(other):
                    return False
                return self._in_doubles(each) and self._straight(one if self._varies(one) else other)
            case exp.Div():
                return not self._varies(each.right) and self._straight(each.left)
        return False

    def _rising(self, each: exp.Expr) -> bool:
        match each:
            case exp.Paren():
                return self._rising(each.this)
            case exp.Column():
                return self._varies(each)
            case exp.Case() | exp.If():
                return self._branches(each) and all(self._rising(one) for one in self._values(each))
            case exp.Cast():
                return each.to.is_type(exp.DataType.Type.DOUBLE) and self._rising(each.this)
            case exp.Add():
                one, other = each.left, each.right
                if self._varies(one) == self._varies(other):
                    return False
                return self._rising(one if self._varies(one) else other)
            case exp.Sub():
                return not self._varies(each.right) and self._rising(each.left)
            case exp.Mul() | exp.Div():
                return _is_positive(each.right) and self._rising(each.left)
        return False

    def _varies(self, each: exp.Expr) -> bool:
        """Whether the variable is in an expression."""
        own = self.variable.name.lower()
        return any(column.name == own for column in each.find_all(exp.Column))

    def _branches(self, each: exp.Expr) -> bool:
        """Whether coordinates alone choose among the values of a CASE."""
        conditions = [each.this] if isinstance(each, exp.If) else [one.this for one in each.args["ifs"]]
        base = [] if isinstance(each, exp.If) or each.this is None else [each.this]
        return not any(self._varies(one) for one in (*conditions, *base))

    def _values(self, each: exp.Expr) -> list[exp.Expr]:
        """What a CASE may be, null apart."""
        if isinstance(each, exp.If):
            found = [each.args.get("true"), each.args.get("false")]
        else:
            found = [*(one.args.get("true") for one in each.args["ifs"]), each.args.get("default")]
        return [one for one in found if one is not None and not isinstance(one, exp.Null)]

    def _in_doubles(self, each: exp.Expr) -> bool:
        """Whether Spark computes a sum or a product in doubles, or in whole numbers."""
        return not pa.types.is_float32(self.variable.arrow) or self._is_double(each)

    def _is_double(self, each: exp.Expr) -> bool:
        match each:
            case exp.Paren() | exp.Neg():
                return self._is_double(each.this)
            case exp.Column():
                column = self.columns.get(each.name)
                return (
                    column is not None and column.arrow == pa.float64() and column.role is not Role.VARIABLE
                )
            case exp.Literal():
                return not each.is_string and any(sign in each.name.lower() for sign in ".e")
            case exp.Add() | exp.Sub() | exp.Mul():
                return self._is_double(each.left) or self._is_double(each.right)
            case exp.Cast():
                return each.to.is_type(exp.DataType.Type.DOUBLE)
        return isinstance(each, (exp.Div, *_DOUBLES))


def _is_positive(each: exp.Expr) -> bool:
    if not isinstance(each, exp.Literal) or each.is_string:
        return False
    try:
        return float(each.name) > 0
    except ValueError:
        return False
