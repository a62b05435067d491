"""Translate SQL conditions on one variable to conditions that numpy can evaluate on values and on statistics.

Translations are exact: a condition holds for a value if and only if it does in Spark. Conditions whose
meaning is uncertain are not translated.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from icefloe.query.decode import TIMESTAMP, is_number
from icefloe.query.scan.conditions import Combination, NullTest, ValueComparison, ValueCondition, ValueFilter
from icefloe.query.schema import ArrayTable, Column, Role
from icefloe.query.sql.predicates import (
    COMPARISONS,
    EXACT_INTEGERS,
    EXACT_SMALL,
    MIRRORED,
    evaluate_constant,
    get_kind,
    parse_time,
)

_LARGEST: Final = 2**62
_WIDE_BITS: Final = 64


def translate_filter(condition: exp.Expr, table: ArrayTable, utc: bool) -> ValueFilter | None:
    """Translate a SQL condition on the values of one variable to a filter.

    Return None for conditions that use other columns, or that cannot be translated exactly.
    """
    names = {column.name.lower() for column in condition.find_all(exp.Column)}
    matches = [column for column in table.columns if column.name.lower() in names]
    if len(names) != 1 or len(matches) != 1 or matches[0].role is not Role.VARIABLE or matches[0].numeric:
        return None
    found = _translate(condition, matches[0], wanted=True, utc=utc)
    return None if found is None else ValueFilter(matches[0].name, found)


def _translate(condition: exp.Expr, column: Column, *, wanted: bool, utc: bool) -> ValueCondition | None:
    match condition:
        case exp.Paren():
            return _translate(condition.this, column, wanted=wanted, utc=utc)
        case exp.Not():
            return _translate(condition.this, column, wanted=not wanted, utc=utc)
        case exp.And() | exp.Or():
            parts = [_translate(side, column, wanted=wanted, utc=utc) for side in condition.flatten()]
            return _combine(parts, isinstance(condition, exp.And) == wanted)
        case exp.Between():
            if condition.args.get("symmetric"):
                return None
            low = exp.GTE(this=condition.this, expression=condition.args["low"])
            high = exp.LTE(this=condition.this, expression=condition.args["high"])
            return _combine(
                [_translate(each, column, wanted=wanted, utc=utc) for each in (low, high)], wanted
            )
        case exp.In():
            return _translate_in(condition, column, wanted=wanted, utc=utc)
        case exp.Is() if isinstance(condition.expression, exp.Null):
            return NullTest(wanted) if isinstance(condition.this.unnest(), exp.Column) else None
    return _translate_comparison(condition, column, wanted=wanted, utc=utc)


def _translate_in(condition: exp.In, column: Column, *, wanted: bool, utc: bool) -> ValueCondition | None:
    if any(condition.args.get(key) for key in ("query", "unnest", "field")):
        return None
    if len({get_kind(each) for each in condition.expressions}) != 1:
        return None  # Spark casts all list items to one type, and null makes NOT IN false
    options = [exp.EQ(this=condition.this, expression=each) for each in condition.expressions]
    return _combine([_translate(each, column, wanted=wanted, utc=utc) for each in options], not wanted)


def _combine(parts: Sequence[ValueCondition | None], all_: bool) -> ValueCondition | None:
    known = tuple(part for part in parts if part is not None)
    return Combination(known, all_) if known and len(known) == len(parts) else None


def _translate_comparison(
    condition: exp.Expr, column: Column, *, wanted: bool, utc: bool
) -> ValueCondition | None:
    words = COMPARISONS.get(type(condition))
    if words is None:
        return None
    word = words[0] if wanted else words[1]
    left, right = condition.this, condition.expression
    if not left.find(exp.Column):
        left, right, word = right, left, MIRRORED.get(word, "")
    if not word or not isinstance(left.unnest(), exp.Column):
        return None
    constant = _find_constant(right, column.arrow, utc)
    return None if constant is None else ValueComparison(word, constant)


def _find_constant(expression: exp.Expr, arrow: pa.DataType, utc: bool) -> Any:
    """Convert a constant as Spark does before comparing it with values of the given type. Return None if the
    conversion is uncertain."""
    constant = evaluate_constant(expression)
    if constant is None:
        return None
    if arrow == TIMESTAMP and constant.kind in ("time", "text"):
        moment: Any = parse_time(str(constant.value)) if constant.kind == "text" else constant.value
        return None if moment is None or (constant.zoned and not utc) else np.datetime64(moment, "us")
    if constant.kind != "number" or not is_number(arrow):
        return None
    value = constant.value
    if pa.types.is_floating(arrow):
        limit = EXACT_INTEGERS if arrow == pa.float64() else EXACT_SMALL
        if isinstance(value, int) and abs(value) >= limit:
            return None
        return float(value)
    if isinstance(value, Decimal) or (isinstance(value, float) and arrow.bit_width == _WIDE_BITS):
        return None
    return None if isinstance(value, int) and abs(value) >= _LARGEST else value
