"""Arithmetic expressions over arrays, such as `(nir - red) / (nir + red)`, evaluated without `eval`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: Final[Mapping[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    name: getattr(np, name)
    for name in (
        "abs",
        "arccos",
        "arcsin",
        "arctan",
        "arctan2",
        "ceil",
        "clip",
        "cos",
        "cosh",
        "degrees",
        "exp",
        "expm1",
        "floor",
        "fmax",
        "fmin",
        "hypot",
        "isfinite",
        "isnan",
        "log",
        "log10",
        "log1p",
        "log2",
        "maximum",
        "minimum",
        "radians",
        "rint",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
        "where",
    )
}
"""The numpy functions that expressions may call."""
_CONSTANTS: Final = {"pi": float(np.pi), "nan": float("nan")}


def check_expression(text: str, names: Collection[str]) -> None:
    """Raise InvalidInputError if an expression is not plain arithmetic over the given names.

    The error message quotes the part that is not allowed.
    """
    used = _check(_parse(text), text, frozenset(names))
    if not used:
        raise _make_error(text, f"it does not use any of the inputs {', '.join(names)}")


def evaluate(text: str, arrays: Mapping[str, Any]) -> Any:
    """Evaluate a checked expression over arrays, without `eval`."""
    return _evaluate(_parse(text), arrays)


def _parse(text: Any) -> ast.expr:
    if not isinstance(text, str) or len(text) > 10_000:
        raise _make_error(text, "it must be a string of at most 10,000 characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _make_error(text, f"cannot be parsed: {getattr(error, 'msg', error)}") from None


def _check(node: ast.expr, text: str, names: frozenset[str]) -> bool:
    """Check a node of an expression. Return True if it uses an input."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return False
        case ast.Name(id=name):
            if name not in names and name not in _CONSTANTS:
                raise _make_error(text, f"{name} is not an input; inputs are {', '.join(sorted(names))}")
            return name in names
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            used = [_check(each, text, names) for each in (left, right)]
            if isinstance(op, ast.Pow) and not any(used):
                raise _make_error(text, "powers of constants are not allowed; write the result instead")
            return any(used)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _check(operand, text, names)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            used = [_check(each, text, names) for each in (left, right)]
            return any(used)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FUNCTIONS:
                raise _make_error(text, f"unknown function {name}; functions are {', '.join(FUNCTIONS)}")
            used = [_check(each, text, names) for each in arguments]
            return any(used)
    raise _make_error(
        text, f"`{ast.unparse(node)}` is not allowed; use numbers, inputs, operators and functions"
    )


def _evaluate(node: ast.expr, arrays: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return arrays[name] if name in arrays else _CONSTANTS[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, arrays), _evaluate(right, arrays))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, arrays))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARISONS[type(op)](_evaluate(left, arrays), _evaluate(right, arrays))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_evaluate(each, arrays) for each in arguments))
    raise AssertionError(ast.dump(node))  # check_expression has rejected all other nodes


def _make_error(text: Any, problem: str) -> InvalidInputError:
    return InvalidInputError(f"expression {text!r}: {problem}", ErrorKind.INVALID_COMMIT_CONFIGURATION)
