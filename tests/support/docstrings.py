"""Find parameters and return values of public names that their numpydoc docstrings do not describe."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, get_origin

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: :.*)?$", re.MULTILINE)
_WITHOUT_PARAMETERS = (Enum, tuple)
_RETURNS_NOTHING = {inspect.Signature.empty, None, "None", "NoReturn", "Never"}


def undocumented(name: str, value: Any) -> Iterator[str]:
    """Yield one sentence for each part of a public function or class that has no documentation."""
    if get_origin(value) is not None or not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    if not inspect.isclass(value):
        yield from _undocumented_call(name, value, inspect.getdoc(value) or "")
        return
    if not value.__dict__.get("__doc__"):
        yield f"{name} has no docstring"
    if is_dataclass(value):
        yield from _undocumented_fields(name, value)
    elif "__init__" in vars(value) and not issubclass(value, _WITHOUT_PARAMETERS):
        # Parameters of a constructor are described in the docstring of the class or of __init__.
        documented_in = value.__init__ if "Parameters" in (value.__init__.__doc__ or "") else value
        yield from _undocumented_parameters(name, value, inspect.getdoc(documented_in) or "")
    for member, raw in vars(value).items():
        if not member.startswith("_"):
            yield from _undocumented_member(value, f"{name}.{member}", member, raw)


def _undocumented_member(cls: type, name: str, member: str, raw: Any) -> Iterator[str]:
    if isinstance(raw, property):
        if not inspect.getdoc(raw):
            yield f"{name} has no docstring"
        return
    function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    if not inspect.isfunction(function):
        return
    if function.__doc__ is None and any(hasattr(base, member) for base in cls.__mro__[1:]):
        return  # docstring inherited
    yield from _undocumented_call(name, function, inspect.getdoc(function) or "")


def _undocumented_call(name: str, function: Any, text: str) -> Iterator[str]:
    if not text:
        yield f"{name} has no docstring"
        return
    yield from _undocumented_parameters(name, function, text)
    returned = inspect.signature(function).return_annotation
    if returned not in _RETURNS_NOTHING and not {"Returns", "Yields"} & set(_sections(text)):
        yield f"{name} returns {returned}, which has no Returns section"


def _undocumented_parameters(name: str, function: Any, text: str) -> Iterator[str]:
    described = _entries(text, "Parameters")
    expected = {parameter for parameter in inspect.signature(function).parameters if _is_public(parameter)}
    for parameter in sorted(expected - described):
        yield f"{name}: parameter {parameter} is not documented"
    for parameter in sorted(described - expected):
        yield f"{name}: documents {parameter}, which is not a parameter"


def _is_public(parameter: str) -> bool:
    return parameter not in ("self", "cls") and not parameter.startswith("_")


def _undocumented_fields(name: str, cls: type) -> Iterator[str]:
    """Yield fields that neither the docstring of the class nor a string below the field describes."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    described = _entries(inspect.getdoc(cls) or "", "Parameters", "Attributes") | {
        field.target.id
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(below)
    }
    own = [field.name for field in fields(cls) if field.name in inspect.get_annotations(cls)]
    for field_name in filter(_is_public, own):
        if field_name not in described:
            yield f"{name}: field {field_name} is not documented"


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _entries(text: str, *headings: str) -> set[str]:
    """Return the names that sections with these headings describe."""
    sections = _sections(text)
    return {
        entry.strip("* ")
        for heading in headings
        for found in _ENTRY.finditer(sections.get(heading, ""))
        for entry in found.group(1).split(",")
    }


def _sections(text: str) -> dict[str, str]:
    """Split a numpydoc docstring: the heading of each section, and its lines."""
    _, *parts = _SECTION.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
