"""Describe the public names of a package, with their arguments and members, as JSON."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from types import ClassMethodDescriptorType, ModuleType
from typing import Any, TypeAlias

Description: TypeAlias = dict[str, Any]

MODULES = (
    "",
    "config",
    "conflicts",
    "credentials",
    "dask",
    "distributed",
    "ops",
    "repository",
    "session",
    "snapshots",
    "storage",
    "store",
    "testing",
    "testing.invariants",
    "testing.models",
    "testing.strategies",
    "testing.trees",
    "testing.utils",
    "types",
    "virtual",
    "xarray",
)
"""The package itself first: what it has too is not described again."""

_MARKS = {
    inspect.Parameter.POSITIONAL_ONLY: "/",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.VAR_POSITIONAL: "*:",
    inspect.Parameter.KEYWORD_ONLY: "*",
    inspect.Parameter.VAR_KEYWORD: "**:",
}
_SHOWN_PRIVATE = {"_repr_html_", "_repr_svg_"}
_BUILT_IN = (object, BaseException, Exception, KeyError, ValueError, int, str)


def describe(package: str) -> Description:
    """Describe the version and the modules of a package."""
    top = importlib.import_module(package)
    return {"version": top.__version__, "modules": {name: describe_module(package, name) for name in MODULES}}


def describe_module(package: str, name: str) -> dict[str, Description]:
    """Describe the public names of a module. Names that the package also has are not repeated in detail."""
    top = importlib.import_module(package)
    module = importlib.import_module(f"{package}.{name}") if name else top
    known = _public_names(top) if name else set()
    return {
        public: {} if public in known else describe_value(getattr(module, public))
        for public in sorted(_public_names(module))
    }


def _public_names(module: ModuleType) -> set[str]:
    """Return the names that a module lists or defines."""
    listed = set(getattr(module, "__all__", ())) - {"__version__"}
    made_here = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    return listed | made_here


def describe_value(value: Any) -> Description:
    """Describe a function with its arguments, a class with its members, or any other value."""
    if inspect.isclass(value):
        members = {name: describe_member(value, name) for name in _own_members(value)}
        return {"kind": "class", "members": members} | ({} if is_enum(value) else arguments(value))
    if inspect.isroutine(value):
        return {"kind": "function"} | arguments(value)
    return {"kind": "value"}


def describe_member(cls: type, name: str) -> Description:
    """Describe a method with its arguments, a nested class, or an attribute."""
    raw, value = inspect.getattr_static(cls, name), getattr(cls, name)
    if inspect.isclass(value):
        return {"kind": "class"} | arguments(value)
    if isinstance(raw, property) or not callable(value) or is_enum(cls):
        return {"kind": "value"}
    on_class = isinstance(raw, classmethod | staticmethod | ClassMethodDescriptorType)
    kind = "static method" if on_class else "method"
    is_async = {"async": True} if inspect.iscoroutinefunction(value) else {}
    return {"kind": kind} | is_async | arguments(value)


def _own_members(cls: type) -> Iterator[str]:
    """Return the public members that are not inherited from another package."""
    if is_enum(cls):
        yield from sorted(_enum_members(cls))
        return
    for name in sorted(dir(cls)):
        definer = next((base for base in cls.__mro__ if name in vars(base)), cls)
        foreign = definer in _BUILT_IN or definer.__module__.split(".")[0] in ("zarr", "abc")
        if not foreign and (not name.startswith("_") or name in _SHOWN_PRIVATE):
            yield name


def is_enum(cls: type) -> bool:
    """Return True for a Python enum, or a native class that behaves like one."""
    return issubclass(cls, enum.Enum) or bool(_enum_members(cls))


def _enum_members(cls: type) -> set[str]:
    if issubclass(cls, enum.Enum):
        return set(cls.__members__)
    return {name for name in dir(cls) if not name.startswith("_") and type(getattr(cls, name)) is cls}


def arguments(value: Any) -> Description:
    """Return the kind, name and default of all arguments as text; empty if Python cannot tell."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return {}
    texts = [
        _MARKS[parameter.kind] + parameter.name + _default(parameter.default)
        for parameter in parameters
        if parameter.name not in ("self", "cls")
    ]
    return {"arguments": ", ".join(texts)}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f"={value!r}".replace("icechunk.", "").replace("icefloe.", "")
