"""Find the values of a coordinate for which a SQL condition may hold, with Spark's semantics.

The result never omits a value for which the condition holds. If the meaning of a condition is uncertain, the
result is None, which stands for all values. A result is *exact* if the condition holds for every value in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from icefloe.query.decode import TIMESTAMP, Mask, Values
from icefloe.query.scan.conditions import OPERATIONS
from icefloe.query.scan.groups import DATE_PARTS, extract_part
from icefloe.query.scan.selection import Coordinates
from icefloe.query.schema import ArrayTable, Column, Role

_DAY: Final = np.timedelta64(86400 * 10**6, "us")
EXACT_INTEGERS: Final = 2**53
EXACT_SMALL: Final = 2**24
_EXACT_DIGITS: Final = 15
_TIME_TEXT: Final = re.compile(r"\d{4}(-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?)?)?")
_DATE_TEXT: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class MatchingValues:
    """The values of a coordinate for which a SQL predicate may hold."""

    mask: Mask
    exact: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison in a SQL predicate: the values of a column, or a constant."""

    kind: str
    """The kind of the operand's values: `number`, `time`, `date`, `text` or `bool`."""
    value: Any
    zoned: bool = False
    """True if interpreting the operand as a time depends on the Spark session's time zone."""


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """A coordinate with known values, on which SQL predicates can be evaluated."""

    values: Values
    missing: Mask | None
    arrow: pa.DataType
    utc: bool
    """True if the Spark session's time zone is UTC."""

    def operand(self) -> Operand | None:
        """Return the coordinate as an operand of a SQL predicate, or None if its type is not supported."""
        arrow = self.arrow
        if arrow == TIMESTAMP:
            return Operand("time", self.values.astype("M8[us]"))
        if arrow == pa.string():
            return Operand("text", self.values.astype(object))
        if arrow == pa.bool_():
            return Operand("bool", self.values)
        if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
            return Operand("number", self.values)
        return None


def evaluate_condition(condition: exp.Expr, column: KnownColumn) -> MatchingValues | None:
    """Evaluate a SQL predicate for the values of a coordinate. Return None if the result is uncertain."""
    found = _evaluate(condition, column, wanted=True)
    if found is None:
        return None
    if column.missing is not None:  # no comparison holds for a missing value
        found = MatchingValues(found.mask & ~column.missing, found.exact)
    return found


def find_masks(coordinates: Coordinates, conditions: Sequence[exp.Expr], utc: bool) -> dict[int, Mask]:
    """Evaluate SQL predicates on coordinates. Return a mask of the matching indices for each restricted
    dimension.
    """
    found: dict[int, Mask] = {}
    for condition in conditions:
        column = _find_coordinate(coordinates.table, condition)
        if column is None:
            continue
        values, missing = coordinates.values(column)
        known = evaluate_condition(condition, KnownColumn(values, missing, column.arrow, utc))
        if known is not None:
            axis = column.axes[0]
            found[axis] = known.mask if axis not in found else found[axis] & known.mask
    return found


def _find_coordinate(table: ArrayTable, condition: exp.Expr) -> Column | None:
    """Return the one-dimensional coordinate that is the only column in a condition, or None."""
    names = {column.name.lower() for column in condition.find_all(exp.Column)}
    if len(names) != 1:
        return None
    matches = [column for column in table.columns if column.name.lower() in names]
    if len(matches) != 1 or matches[0].role is Role.VARIABLE or len(matches[0].axes) != 1:
        return None
    return matches[0]


def _evaluate(condition: exp.Expr, column: KnownColumn, wanted: bool) -> MatchingValues | None:
    """Find the values for which a condition is true (`wanted`) or false (not `wanted`). For null, it may be
    neither."""
    match condition:
        case exp.Paren():
            return _evaluate(condition.this, column, wanted)
        case exp.Not():
            return _evaluate(condition.this, column, not wanted)
        case exp.And() | exp.Or():
            both = isinstance(condition, exp.And) == wanted
            return _join([_evaluate(side, column, wanted) for side in condition.flatten()], both)
        case exp.Between():
            low = exp.GTE(this=condition.this, expression=condition.args["low"])
            high = exp.LTE(this=condition.this, expression=condition.args["high"])
            if condition.args.get("symmetric"):
                return None
            return _join([_evaluate(side, column, wanted) for side in (low, high)], wanted)
        case exp.In():
            if condition.args.get("query") or condition.args.get("unnest") or condition.args.get("field"):
                return None
            if len({get_kind(each) for each in condition.expressions if not isinstance(each, exp.Null)}) > 1:
                return None  # Spark casts all of the operands to one type
            options = [exp.EQ(this=condition.this, expression=each) for each in condition.expressions]
            return _join([_evaluate(each, column, wanted) for each in options], not wanted)
    return _evaluate_comparison(condition, column, wanted)


def get_kind(expression: exp.Expr) -> str:
    """Return the kind of a constant in a SQL predicate, or an empty string if it is not supported."""
    constant = evaluate_constant(expression)
    return "" if constant is None else constant.kind


def _join(sides: list[MatchingValues | None], both: bool) -> MatchingValues | None:
    """Combine the results of several conditions with AND or OR."""
    known = [side for side in sides if side is not None]
    if not known or (not both and len(known) < len(sides)):
        return None
    combine: Any = np.logical_and if both else np.logical_or
    mask = combine.reduce([side.mask for side in known])
    return MatchingValues(mask, len(known) == len(sides) and all(side.exact for side in known))


COMPARISONS: Final[Mapping[type[exp.Expr], tuple[str, str]]] = {
    exp.EQ: ("==", "!="),
    exp.NullSafeEQ: ("==", ""),  # a negated IS NOT NULL holds for missing values
    exp.NEQ: ("!=", "=="),
    exp.GT: (">", "<="),
    exp.GTE: (">=", "<"),
    exp.LT: ("<", ">="),
    exp.LTE: ("<=", ">"),
}
MIRRORED: Final = {"==": "==", "!=": "!=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


def _evaluate_comparison(condition: exp.Expr, column: KnownColumn, wanted: bool) -> MatchingValues | None:
    words = COMPARISONS.get(type(condition))
    if words is None:
        return None
    word = words[0] if wanted else words[1]
    left, right = condition.this, condition.expression
    if not word:
        return None
    if not left.find(exp.Column):
        left, right, word = right, left, MIRRORED[word]
    if right.find(exp.Column):
        return None
    values, constant = evaluate_term(left, column), evaluate_constant(right)
    if values is None or constant is None:
        return None
    return _compare(values, word, constant, column)


def _compare(values: Operand, word: str, constant: Operand, column: KnownColumn) -> MatchingValues | None:
    if values.kind == "number" and constant.kind == "number":
        return _compare_numbers(values.value, word, constant.value)
    if values.kind in ("time", "date") and constant.kind in ("time", "date", "text"):
        return _compare_times(values, word, constant, column.utc)
    if values.kind == constant.kind == "text" or values.kind == constant.kind == "bool":
        return MatchingValues(np.asarray(OPERATIONS[word](values.value, constant.value), np.bool_), True)
    return None


def _compare_numbers(values: Values, word: str, constant: int | float | Decimal) -> MatchingValues | None:
    """Compare numbers as Spark does: integers exactly, and floats with decimals as doubles."""
    if isinstance(constant, Decimal):
        if values.dtype.kind != "f":
            return None
        constant = float(constant)
    if values.dtype.kind in "iub":
        if isinstance(constant, float) and not _are_exact(values):
            return None
        if isinstance(constant, int) and abs(constant) >= 2**62:
            return None
    elif isinstance(constant, int) and abs(constant) >= (
        EXACT_SMALL if values.dtype.itemsize < 8 else EXACT_INTEGERS
    ):
        return None
    exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    return MatchingValues(np.asarray(OPERATIONS[word](exact, constant), np.bool_), True)


def _are_exact(integers: Values) -> bool:
    """Return True if doubles can represent the integers exactly."""
    limit = EXACT_INTEGERS
    return not len(integers) or bool(integers.min() > -limit and integers.max() < limit)


def _compare_times(values: Operand, word: str, constant: Operand, utc: bool) -> MatchingValues | None:
    moment = constant.value
    if constant.kind == "text":
        moment = parse_time(str(moment), dates_only=values.kind == "date")
        if moment is None:
            return None
    moment = np.datetime64(moment, "us")
    stored = values.value.astype("M8[us]")
    if utc or not (values.zoned or constant.zoned):
        return MatchingValues(np.asarray(OPERATIONS[word](stored, moment), np.bool_), True)
    # Zones are less than a day off UTC, and daylight saving may repeat or skip an hour: add a day.
    match word:
        case "==":
            near = (stored >= moment - _DAY) & (stored <= moment + _DAY)
        case "!=":
            return None
        case ">" | ">=":
            near = stored >= moment - _DAY
        case _:
            near = stored <= moment + _DAY
    return MatchingValues(np.asarray(near, np.bool_), False)


def parse_time(text: str, dates_only: bool = False) -> np.datetime64 | None:
    """Parse a time string that Spark and numpy interpret identically.

    Return None for other strings.
    """
    text = text.strip()
    if not (_DATE_TEXT if dates_only else _TIME_TEXT).fullmatch(text):
        return None
    try:
        return np.datetime64(text.replace(" ", "T"), "us")
    except ValueError:
        return None


def evaluate_constant(expression: exp.Expr) -> Operand | None:
    """Evaluate a constant expression: a literal, possibly with a sign or type.

    Return None for other expressions.
    """
    match expression:
        case exp.Paren():
            return evaluate_constant(expression.this)
        case exp.Neg():
            inner = evaluate_constant(expression.this)
            return Operand("number", -inner.value) if inner is not None and inner.kind == "number" else None
        case exp.Boolean():
            return Operand("bool", bool(expression.this))
        case exp.Literal() if expression.is_string:
            return Operand("text", str(expression.this))
        case exp.Literal():
            return _parse_number(str(expression.this))
        case exp.Cast() if isinstance(expression.this, exp.Literal) and expression.this.is_string:
            return _parse_typed(str(expression.this.this), expression.to)
    return None


def _parse_number(text: str) -> Operand | None:
    try:
        if re.fullmatch(r"\d+", text):
            return Operand("number", int(text))
        # Spark compares such a literal with integers as a decimal, with all digits.
        many = len(text) > _EXACT_DIGITS and "e" not in text.lower()
        return Operand("number", Decimal(text) if many else float(text))
    except (ValueError, InvalidOperation):
        return None


def _parse_typed(text: str, type_: exp.DataType) -> Operand | None:
    kinds = exp.DataType.Type
    if type_.is_type(kinds.DATE):
        moment = parse_time(text, dates_only=True)
        return None if moment is None else Operand("date", moment)
    if type_.is_type(kinds.TIMESTAMP, kinds.TIMESTAMPTZ, kinds.TIMESTAMPLTZ, kinds.TIMESTAMPNTZ):
        moment = parse_time(text)
        zoned = not type_.is_type(kinds.TIMESTAMPNTZ)
        return None if moment is None else Operand("time", moment, zoned)
    return None


def evaluate_term(expression: exp.Expr, column: KnownColumn) -> Operand | None:
    """Evaluate a coordinate column, or a supported function of it, as an operand of a SQL predicate.

    Return None for other expressions.
    """
    match expression:
        case exp.Paren():
            return evaluate_term(expression.this, column)
        case exp.Column():
            return column.operand()
        case exp.Neg() | exp.Abs():
            inner = evaluate_term(expression.this, column)
            if inner is None or inner.kind != "number" or inner.value.dtype.kind != "f":
                return None
            return Operand("number", -inner.value if isinstance(expression, exp.Neg) else np.abs(inner.value))
        case exp.TsOrDsToDate() | exp.Date():
            return (
                _to_date(evaluate_term(expression.this, column)) if not expression.args.get("zone") else None
            )
        case exp.Cast() if expression.to.is_type(exp.DataType.Type.DATE):
            return _to_date(evaluate_term(expression.this, column))
        case exp.TimestampTrunc():
            return _truncate(evaluate_term(expression.this, column), _get_unit(expression), column.utc)
        case exp.DateTrunc():
            return _truncate_date(_to_date(evaluate_term(expression.this, column)), _get_unit(expression))
        case exp.Extract():
            return _extract_part(str(expression.this.name), evaluate_term(expression.expression, column))
        case exp.Anonymous():
            single = expression.expressions[0] if len(expression.expressions) == 1 else None
            return None if single is None else _extract_part(expression.name, evaluate_term(single, column))
    if type(expression) in _PARTS_OF and not expression.args.get("expression"):
        return _extract_part(_PARTS_OF[type(expression)], evaluate_term(expression.this, column))
    return None


_PARTS_OF: Final[Mapping[type[exp.Expr], str]] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.Quarter: "quarter",
    exp.DayOfYear: "dayofyear",
    exp.Hour: "hour",
    exp.Minute: "minute",
}


def _get_unit(expression: exp.Expr) -> str:
    unit = expression.args.get("unit")
    return "" if unit is None else str(unit.name).lower()


def _to_date(side: Operand | None) -> Operand | None:
    if side is None or side.kind not in ("time", "date"):
        return None
    return Operand("date", side.value.astype("M8[D]"))


def _truncate(side: Operand | None, unit: str, utc: bool) -> Operand | None:
    code = {"year": "Y", "month": "M", "day": "D", "hour": "h", "minute": "m"}.get(unit)
    if side is None or side.kind != "time" or code is None or (code in "hm" and not utc):
        return None  # Spark truncates in the time zone of the session, in which an hour may be missing
    return Operand("time", side.value.astype(f"M8[{code}]").astype("M8[us]"), zoned=not utc)


def _truncate_date(side: Operand | None, unit: str) -> Operand | None:
    """Evaluate Spark's `trunc`, which returns a date."""
    code = {"year": "Y", "month": "M"}.get(unit)
    return None if side is None or code is None else Operand("date", side.value.astype(f"M8[{code}]"))


def _extract_part(name: str, side: Operand | None) -> Operand | None:
    """Evaluate a date-part function, such as `month`, on an operand."""
    if side is None or side.kind not in ("time", "date") or name.lower() not in DATE_PARTS:
        return None
    return Operand("number", extract_part(name.lower(), side.value))
