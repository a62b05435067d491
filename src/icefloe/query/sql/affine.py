"""What an expression of SQL does to the one variable in it: whether sums and extremes pass through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from icefloe.query.schema import Column, Role

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
