"""Rewrite an aggregating SELECT over one table so that Spark processes one row per group of cells, instead of
one row per cell.

The cells of a group have equal values of all coordinate expressions that the SELECT uses outside its
aggregates. One row with the moments of the variables represents the group, and each aggregate in the query
text is rewritten to an aggregate of moments. Everything else stays as written, and Spark evaluates it for
fewer rows: conditions, keys, HAVING, windows, ROLLUP and ORDER BY keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.optimizer.scope import Scope, ScopeType, walk_in_scope
from sqlglot.tokenizer_core import Token, TokenType

from icefloe.query.decode import TIMESTAMP, is_number
from icefloe.query.scan.conditions import ValueFilter
from icefloe.query.scan.groups import GroupTerm
from icefloe.query.scan.moments import CELLS, MOMENTS, ROUNDING, Moment, is_wide, make_moment
from icefloe.query.scan.selection import Coordinates
from icefloe.query.schema import Column, Role
from icefloe.query.spark_types import quote_name
from icefloe.query.sql.analysis import find_columns
from icefloe.query.sql.condition_pushdown import split_conjuncts
from icefloe.query.sql.parse import Edit
from icefloe.query.sql.predicates import KnownColumn, evaluate_condition, evaluate_term
from icefloe.query.sql.value_conditions import translate_filter

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
_NONDETERMINISTIC_FUNCTIONS: Final = (
    exp.Rand,
    exp.Randn,
    exp.Randstr,
    exp.Uniform,
    exp.Uuid,
    exp.Shuffle,
    exp.Zipf,
)
"""SQL functions that may return a different value for each row."""
_AFTER_WHERE: Final = frozenset(
    getattr(TokenType, name)
    for name in (
        *(
            "R_PAREN",
            "GROUP_BY",
            "HAVING",
            "ORDER_BY",
            "SORT_BY",
            "CLUSTER_BY",
            "DISTRIBUTE_BY",
            "LIMIT",
            "OFFSET",
        ),
        *("WINDOW", "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "SEMICOLON", "LATERAL"),
    )
)
"""The tokens that can follow, and thus end, a WHERE clause."""
_OTHER_INPUTS: Final = ("joins", "laterals", "pivots", "sample", "match", "connect", "into", "qualify")
"""SELECT clauses that do more than filter and group the rows of a single table."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The plan for computing a SELECT from groups of cells: group terms, moments, and edits to the query
    text.
    """

    terms: tuple[GroupTerm, ...]
    """The terms by which cells are grouped."""
    shown: tuple[GroupTerm, ...]
    """The coordinates that the SELECT outputs. Each group has the values of its first cell."""
    moments: tuple[Moment, ...]
    filters: tuple[ValueFilter, ...]
    """Conditions on variables. The edits remove them from the query, because the scan evaluates them."""
    edits: tuple[Edit, ...]


class _NotReducibleError(Exception):
    """Error raised if a SELECT cannot be computed from groups of cells."""


def reduce_select(
    text: str, tokens: Sequence[Token], scope: Scope, coordinates: Coordinates, utc: bool
) -> Reduction | None:
    """Plan the computation of an aggregating SELECT from groups of cells.

    Return None if that is impossible.
    """
    try:
        return _SelectReader(text, tokens, scope, coordinates, utc).reduction()
    except _NotReducibleError:
        return None


def combine_moments(function: str, variable: str, *, wide: bool = False) -> str:
    """Return a SQL expression that computes an aggregate from partial moments. It is null for groups without
    values.

    The sums of a `wide` variable are decimals; Spark raises an error if they exceed 64 bits.
    """

    def total(moment: str) -> str:
        return f"sum({quote_name(f'{variable}.{moment}')})"

    match function:
        case "count":
            return f"coalesce({total('count')}, 0)"
        case "sum":
            return f"CAST({total('sum')} AS bigint)" if wide else total("sum")
        case "mean":
            return f"(CAST({total('sum')} AS double) / nullif({total('count')}, 0))"
        case "min" | "max":
            return f"{function}({quote_name(f'{variable}.{function}')})"
    count = total("count")
    squares = f"{total('squares')} - {total('shifted')} * {total('shifted')} / {count}"
    least, divisor = (0, count) if function.endswith("_pop") else (1, f"({count} - 1)")
    rounded = f"CASE WHEN {squares} < {ROUNDING} * {total('squares')} THEN 0e0 ELSE {squares} END"
    variance = f"({rounded}) / {divisor}"
    if function.startswith("std"):
        variance = f"sqrt({variance})"
    return f"(CASE WHEN {count} > {least} THEN {variance} END)"


class _SelectReader:
    """An analyzer of how one SELECT uses the variables and coordinates of its table."""

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
            raise _NotReducibleError
        self._terms: dict[tuple[str, str], GroupTerm] = {}
        self._shown: dict[str, GroupTerm] = {}
        self._moments: dict[Moment, None] = {}

    def reduction(self) -> Reduction:
        """Return the plan for the SELECT. Raise an error if it cannot be computed from groups."""
        select: Any = self._scope.expression
        nodes = list(walk_in_scope(select))
        aggregates = [node for node in nodes if find_function(node) is not None and not _is_window(node)]
        self._check(select, nodes, aggregates)
        if _has_outside_names(self._scope) and any(_is_unnamed(node, select) for node in aggregates):
            raise _NotReducibleError  # Spark would name such a column after the rewritten text
        edits = [edit for node in aggregates for edit in self._rewrite_aggregate(node)]
        inside = {id(column) for node in aggregates for column in _include_filter(node).find_all(exp.Column)}
        settled = self._find_settled(select)
        filters = self._find_filters(select, settled)
        if filters:
            edits.append(self._drop_where(select))
        names = {each.alias_or_name for each in select.selects}
        for column in find_columns(self._scope):
            if id(column) in inside:
                continue
            if column.name not in self._columns or self._is_output(column, names):
                if column.name not in names:
                    raise _NotReducibleError
            elif id(column) in settled:
                if self._columns[column.name].role is not Role.VARIABLE:
                    self._add_shown_term(column)
            else:
                self._add_group_term(column)
        return Reduction(
            tuple(self._terms.values()),
            tuple(self._shown.values()),
            tuple(self._moments),
            tuple(filters),
            tuple(edits),
        )

    def _check(self, select: exp.Expr, nodes: Iterable[exp.Expr], aggregates: Sequence[exp.Expr]) -> None:
        groups = bool(aggregates or select.args.get("group"))
        if any(select.args.get(key) for key in _OTHER_INPUTS) or not (groups or select.args.get("distinct")):
            raise _NotReducibleError
        for node in nodes:
            other = isinstance(node, exp.AggFunc) and find_function(node) is None and not _is_window(node)
            unknown = isinstance(node, exp.Anonymous) and node.name.lower() not in _NAMED
            star = isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)
            window = isinstance(node, exp.Window) and not groups
            if (
                other
                or unknown
                or star
                or window
                or isinstance(node, (*_NONDETERMINISTIC_FUNCTIONS, exp.UDTF))
            ):
                raise _NotReducibleError

    def _find_settled(self, select: exp.Expr) -> set[int]:
        """Return the ids of the column references in those WHERE conditions that hold for all cells that are
        read.
        """
        where = select.args.get("where")
        found: set[int] = set()
        for condition in split_conjuncts(where.this) if where is not None else []:
            columns = list(condition.find_all(exp.Column))
            if condition.find(exp.Query) or len({column.name for column in columns}) != 1:
                continue
            if self._is_variable(columns[0]):
                continue
            known = evaluate_condition(condition, self._evaluate_column(self._find_coordinate(columns[0])))
            if known is not None and known.exact:
                found |= {id(column) for column in columns}
        return found

    def _find_filters(self, select: exp.Expr, settled: set[int]) -> list[ValueFilter]:
        """Return the conditions on variables as filters. Add their columns to `settled` if every condition of
        the SELECT can be evaluated exactly."""
        where = select.args.get("where")
        if where is None:
            return []
        table = self._coordinates.table
        found: list[ValueFilter | None] = []
        for condition in split_conjuncts(where.this):
            columns = list(condition.find_all(exp.Column))
            if not any(self._is_variable(column) for column in columns):
                if not columns or any(id(column) not in settled for column in columns):
                    found.append(None)
                continue
            found.append(None if condition.find(exp.Query) else translate_filter(condition, table, self._utc))
        filters = [each for each in found if each is not None]
        if filters and len(filters) < len(found):
            raise _NotReducibleError
        if filters:
            settled |= {id(column) for column in where.find_all(exp.Column)}
        return filters

    def _drop_where(self, select: exp.Expr) -> Edit:
        """Return the edit that replaces the WHERE conditions with `true`, because they hold for all cells
        that the scan counts."""
        where: Any = select.args["where"]
        parts = [part.meta for column in where.find_all(exp.Column) for part in column.parts]
        first = min((meta["start"] for meta in parts if "start" in meta), default=0)
        before = [number for number, token in enumerate(self._tokens) if token.start < first]
        at = max((n for n in before if self._tokens[n].token_type is TokenType.WHERE), default=None)
        if at is None:
            raise _NotReducibleError
        depth, stop = 0, at + 1
        while stop < len(self._tokens):
            kind = self._tokens[stop].token_type
            if depth == 0 and kind in _AFTER_WHERE:
                break
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(kind, 0)
            stop += 1
        return Edit(self._tokens[at].end + 1, self._tokens[stop - 1].end + 1, " true")

    def _is_output(self, column: exp.Column, names: set[str]) -> bool:
        """Return True if a name refers to a result column rather than to the variable of the same name."""
        qualifier = column.args.get("table")
        if qualifier is not None and "start" in qualifier.meta:
            return False
        here = self._columns[column.name]
        behind = column.find_ancestor(exp.Having, exp.Order, exp.Select)
        return here.role is Role.VARIABLE and column.name in names and not isinstance(behind, exp.Select)

    def _find_coordinate(self, column: exp.Column) -> Column:
        found = self._columns.get(column.name)
        if found is None or found.role is Role.VARIABLE or len(found.axes) != 1:
            raise _NotReducibleError
        return found

    def _evaluate_column(self, column: Column) -> KnownColumn:
        values, missing = self._coordinates.values(column)
        return KnownColumn(values, missing, column.arrow, self._utc)

    def _add_shown_term(self, column: exp.Column) -> Column:
        found = self._find_coordinate(column)
        values, missing = self._coordinates.values(found)
        self._shown[found.name] = GroupTerm(found.name, found.axes[0], found.arrow, values, missing)
        return found

    def _add_group_term(self, column: exp.Column) -> None:
        """Add a group term for the largest expression around a coordinate that can be evaluated here."""
        found = self._add_shown_term(column)
        known = self._evaluate_column(found)
        largest: exp.Expr = column
        values: Any = self._shown[found.name].values
        while largest.parent is not None and len(list(largest.parent.find_all(exp.Column))) == 1:
            side = evaluate_term(largest.parent, known)
            if side is None:
                break
            largest, values = largest.parent, side.value
        key = (found.name, largest.sql() if largest is not column else "")
        self._terms[key] = GroupTerm(found.name, found.axes[0], found.arrow, values, known.missing)

    def _rewrite_aggregate(self, node: exp.Expr) -> list[Edit]:
        """Return the edits that rewrite an aggregate, or no edits if it can stay as written."""
        function = find_function(node)
        call, argument = self._locate(node)
        columns = list(_include_filter(node).find_all(exp.Column))
        if function is None or _include_filter(node).find(exp.Query) or _has_more(node):
            raise _NotReducibleError
        variables = {column.name for column in columns if self._is_variable(column)}
        for column in columns:
            if column.name not in variables:
                self._add_group_term(column)
        condition = self._get_filter(node)
        if not variables:
            text = self._rewrite_coordinates(function, node, argument, condition)
        elif len(variables) == 1:
            text = self._rewrite_variable(function, node, argument, condition, self._columns[variables.pop()])
        else:
            raise _NotReducibleError
        return [] if text is None else [Edit(*call, text)]

    def _is_variable(self, column: exp.Column) -> bool:
        found = self._columns.get(column.name)
        if found is None:
            raise _NotReducibleError
        return found.role is Role.VARIABLE

    def _rewrite_coordinates(
        self, function: str, node: exp.Expr, argument: tuple[int, int], condition: str | None
    ) -> str | None:
        """Return the rewritten text of an aggregate over coordinates, whose values are equal in all cells of
        a group.
        """
        if function in ("min", "max") or isinstance(_get_argument(node), exp.Distinct):
            return None  # repeated rows do not change the result
        cells = self._make_moment("cells", None)
        if isinstance(_get_argument(node), exp.Star):
            counted = cells if condition is None else f"CASE WHEN {condition} THEN {cells} END"
            return f"coalesce(sum({counted}), 0)"
        value = self._text[slice(*argument)]
        value = f"({value})" if condition is None else f"(CASE WHEN {condition} THEN {value} END)"
        count = f"sum(CASE WHEN {value} IS NOT NULL THEN {cells} END)"
        match function:
            case "count":
                return f"coalesce({count}, 0)"
            case "sum":
                return f"sum({self._cast_to_double(node, value)} * {cells})"
            case "mean":
                return f"(sum(CAST({value} AS double) * {cells}) / nullif({count}, 0))"
        raise _NotReducibleError

    def _cast_to_double(self, node: exp.Expr, value: str) -> str:
        """Cast 32-bit floats to double. Spark adds them as doubles, but multiplies them as 32-bit floats."""
        columns = (self._columns[column.name] for column in _get_argument(node).find_all(exp.Column))
        return (
            f"CAST({value} AS double)" if any(pa.types.is_float32(each.arrow) for each in columns) else value
        )

    def _rewrite_variable(
        self, function: str, node: exp.Expr, argument: tuple[int, int], condition: str | None, column: Column
    ) -> str:
        """Return the rewritten text of an aggregate over a variable, or over a linear function of it."""
        given = AggregateArgument(_get_argument(node), column, self._columns)
        if isinstance(_get_argument(node), exp.Distinct) or not _is_computed(function, column.arrow):
            raise _NotReducibleError
        if given.is_plain and condition is None:
            for name in MOMENTS[function.removesuffix("_pop")]:
                self._make_moment(name, column)
            return combine_moments(function, column.name, wide=is_wide(column.arrow))
        if function in ("min", "max") and given.is_increasing:
            value = self._make_moment(function, column)
            return f"{function}({self._replace_variable(argument, node, column, value, condition)})"
        if function not in ("count", "sum", "mean") or not given.is_linear or is_wide(column.arrow):
            raise _NotReducibleError  # doubles cannot represent all 64-bit integers
        count, total = self._make_moment("count", column), self._make_moment("sum", column)
        value = self._replace_variable(
            argument, node, column, f"(CAST({total} AS double) / nullif({count}, 0))", condition
        )
        counted = f"sum(CASE WHEN {value} IS NOT NULL THEN {count} END)"
        if function == "count":
            return f"coalesce({counted}, 0)"
        added = f"sum({value} * {count})"
        return added if function == "sum" else f"({added} / nullif({counted}, 0))"

    def _make_moment(self, name: str, column: Column | None) -> str:
        found = make_moment(name, column)
        if column is not None:
            self._moments[make_moment("count", column)] = None
        self._moments[found] = None
        return quote_name(found.column if column is not None else CELLS)

    def _replace_variable(
        self, argument: tuple[int, int], node: exp.Expr, column: Column, value: str, condition: str | None
    ) -> str:
        """Return the text of an aggregate's argument, with the variable replaced by another value."""
        start, stop = argument
        places = []
        for each in _get_argument(node).find_all(exp.Column):
            if each.name == column.name.lower():
                parts = [part.meta for part in each.parts if "start" in part.meta]
                places.append((parts[0]["start"], parts[-1]["end"] + 1))
        text = ""
        for first, last in sorted(places):
            text += self._text[start:first] + value
            start = last
        text += self._text[start:stop]
        return f"({text})" if condition is None else f"(CASE WHEN {condition} THEN {text} END)"

    def _get_filter(self, node: exp.Expr) -> str | None:
        """Return the condition in FILTER (WHERE ...), which may use only coordinates, or None if there is no
        such clause."""
        whole = _include_filter(node)
        if whole is node:
            return None
        columns = list(whole.expression.find_all(exp.Column))
        if any(self._is_variable(column) for column in columns) or isinstance(
            _get_argument(node), exp.Distinct
        ):
            raise _NotReducibleError
        if find_function(node) in ("min", "max") and not any(
            map(self._is_variable, node.find_all(exp.Column))
        ):
            raise _NotReducibleError
        at = self._find_token(node.meta["start"])
        at = self._find_closing(at + 1) + 2
        stop = self._find_closing(at)
        return f"({self._text[self._tokens[at + 1].end + 1 : self._tokens[stop].start]})"

    def _locate(self, node: exp.Expr) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the text positions of an aggregate (including its FILTER clause) and of its argument in the
        query."""
        if "start" not in node.meta:
            raise _NotReducibleError
        at = self._find_token(node.meta["start"])
        stop = self._find_closing(at + 1)
        argument = (self._tokens[at + 1].end + 1, self._tokens[stop].start)
        if _include_filter(node) is not node:
            stop = self._find_closing(stop + 2)
        return (self._tokens[at].start, self._tokens[stop].end + 1), argument

    def _find_token(self, start: int) -> int:
        return next(number for number, token in enumerate(self._tokens) if token.start == start)

    def _find_closing(self, at: int) -> int:
        """Return the index of the token that closes the parenthesis at a position."""
        if self._tokens[at].token_type is not TokenType.L_PAREN:
            raise _NotReducibleError
        depth = 0
        for number in range(at, len(self._tokens)):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(self._tokens[number].token_type, 0)
            if not depth:
                return number
        raise _NotReducibleError


def find_function(node: exp.Expr) -> str | None:
    """Return the name of the aggregate function if icefloe can compute it from moments, otherwise None."""
    if isinstance(node, exp.Anonymous):
        return _NAMED.get(node.name.lower())
    return _FUNCTIONS.get(type(node))


def _get_argument(node: exp.Expr) -> exp.Expr:
    argument: exp.Expr = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
    return argument


def _has_more(node: exp.Expr) -> bool:
    """Return True if an aggregate does not have exactly one argument."""
    return len(node.expressions) != isinstance(node, exp.Anonymous)


def _include_filter(node: exp.Expr) -> exp.Expr:
    """Return the expression node of an aggregate, including its FILTER clause if present."""
    return node.parent if isinstance(node.parent, exp.Filter) else node


def _has_outside_names(scope: Scope) -> bool:
    """Return True if an outer query may refer to result columns of a SELECT by name."""
    while scope.scope_type is ScopeType.SET_OPERATION and scope.parent is not None:
        scope = scope.parent
    return bool(scope.is_derived_table or scope.is_cte)


def _is_unnamed(node: exp.Expr, select: exp.Expr) -> bool:
    """Return True if an aggregate is part of a result column that has no alias."""
    while node.parent is not None and node.parent is not select:
        node = node.parent
    named = isinstance(node, exp.Alias) and "start" in node.args["alias"].meta
    return node.arg_key == "expressions" and not named


def _is_window(node: exp.Expr) -> bool:
    """Return True if a function is used as a window function over the result rows."""
    whole = _include_filter(node)
    return isinstance(whole.parent, exp.Window) and whole.parent.this is whole


def _is_computed(function: str, arrow: pa.DataType) -> bool:
    """Return True if an aggregate computed from moments matches Spark's result for the given Arrow type."""
    if function == "count":
        return True
    if arrow == TIMESTAMP:
        return function in ("min", "max")
    return is_number(arrow)


_DOUBLES: Final = (exp.Cos, exp.Sin, exp.Tan, exp.Radians, exp.Degrees, exp.Sqrt, exp.Exp, exp.Ln, exp.Pow)
"""SQL functions that return a double."""


@dataclass(frozen=True, slots=True)
class AggregateArgument:
    """The argument of a SQL aggregate: an expression that contains one variable."""

    expression: exp.Expr
    variable: Column
    columns: Mapping[str, Column]
    """All columns of the table, keyed by lower-case name."""

    @property
    def is_plain(self) -> bool:
        """True if the argument is the variable itself."""
        return isinstance(self.expression.unnest(), exp.Column)

    @property
    def is_linear(self) -> bool:
        """True if the argument has the form `a * v + b`, where `a` and `b` are constant within a group.

        The sum of such an argument is its value at the mean of v, times the number of values. Spark must
        compute it in doubles for each cell: otherwise the last digits would differ.
        """
        return self._is_monotonic(self.expression, increasing=False)

    @property
    def is_increasing(self) -> bool:
        """True if the argument increases with the variable, so that both have their min and max in the same
        cells.
        """
        return self._is_monotonic(self.expression, increasing=True)

    def _is_monotonic(self, each: exp.Expr, *, increasing: bool) -> bool:
        """Return True if an expression increases with the variable or, unless `increasing` is set, is linear
        in it.
        """
        varying = [side for side in each.iter_expressions() if self._contains_variable(side)]
        match each:
            case exp.Column():
                return self._contains_variable(each)
            case exp.Case() | exp.If():
                return self._branches_on_coordinates_only(each) and self._are_all_monotonic(
                    self._list_values(each), increasing
                )
            case exp.Paren():
                return self._are_all_monotonic(varying, increasing)
            case exp.Neg():
                return not increasing and self._are_all_monotonic(varying, increasing)
            case exp.Cast():
                return each.to.is_type(exp.DataType.Type.DOUBLE) and self._are_all_monotonic(
                    varying, increasing
                )
            case exp.Add() | exp.Sub() | exp.Mul() if not increasing:
                one_at_most = len(varying) == 1 or not isinstance(each, exp.Mul)
                return (
                    one_at_most and self._is_in_doubles(each) and self._are_all_monotonic(varying, increasing)
                )
            case exp.Add():
                return len(varying) == 1 and self._are_all_monotonic(varying, increasing)
            case exp.Sub() | exp.Mul() | exp.Div():
                scaled = increasing and not isinstance(each, exp.Sub)
                allowed = varying == [each.left] and (not scaled or _is_positive(each.right))
                return allowed and self._are_all_monotonic(varying, increasing)
        return False

    def _are_all_monotonic(self, parts: Sequence[exp.Expr], increasing: bool) -> bool:
        return bool(parts) and all(self._is_monotonic(part, increasing=increasing) for part in parts)

    def _contains_variable(self, each: exp.Expr) -> bool:
        """Return True if an expression contains the variable."""
        own = self.variable.name.lower()
        return any(column.name == own for column in each.find_all(exp.Column))

    def _branches_on_coordinates_only(self, each: exp.Expr) -> bool:
        """Return True if the conditions of a CASE use only coordinates."""
        conditions = [each.this] if isinstance(each, exp.If) else [one.this for one in each.args["ifs"]]
        base = [] if isinstance(each, exp.If) or each.this is None else [each.this]
        return not any(self._contains_variable(one) for one in (*conditions, *base))

    def _list_values(self, each: exp.Expr) -> list[exp.Expr]:
        """Return the non-null result expressions of a CASE."""
        if isinstance(each, exp.If):
            found = [each.args.get("true"), each.args.get("false")]
        else:
            found = [*(one.args.get("true") for one in each.args["ifs"]), each.args.get("default")]
        return [one for one in found if one is not None and not isinstance(one, exp.Null)]

    def _is_in_doubles(self, each: exp.Expr) -> bool:
        """Return True if Spark computes a sum or product in double or integer arithmetic."""
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
