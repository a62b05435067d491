"""Find the packages that the programs in the strings of tests import."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

from tests.support.source_tree import Module, imports_of, last_name, outside_modules, source_modules

_CORE = {"numpy", "zarr", "obstore", "zstandard", "msgpack", "yaml", "click", "rich", "numcodecs"}
_CORE |= {
    "pytest",
    "_pytest",
    "hypothesis",
    "icefloe",
    "icechunk",
    "tests",
    "pyspark_icechunk",
    *sys.stdlib_module_names,
}
_IMPORT = re.compile(
    r"(?:^|;)[ \t]*(?:import[ \t]+([\w.]+)|from[ \t]+([\w.]+)[ \t]+import[ \t]+(\w+))", re.MULTILINE
)


def find_unmarked_programs(module: Module) -> Iterator[str]:
    """Return the programs of a test module that need packages which it neither imports nor marks."""
    known = _find_marked(module) | _find_packages(module.name, module)
    for imported in imports_of(module):
        known |= _find_packages(imported.target) | {imported.target.partition(".")[0]}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            needed = {package for target in _find_targets(node.value) for package in _find_packages(target)}
            if unknown := sorted(needed - known):
                yield f"{module.name}:{node.lineno}: needs {', '.join(unknown)}"


def _find_targets(text: str) -> Iterator[str]:
    for package, source, name in _IMPORT.findall(text):
        yield package or f"{source}.{name}"


def _find_marked(module: Module) -> set[str]:
    return {
        argument.value
        for node in module.nodes
        if isinstance(node, ast.Call) and last_name(node.func) == "needs"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


@cache
def _find_packages(target: str, module: Module | None = None) -> frozenset[str]:
    """Return the packages outside the core that importing a name loads, following our own modules."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [target]
    while waiting:
        name = waiting.pop()
        own = _find_own(name) if module is None or name != target else module
        if own is None:
            package = name.partition(".")[0]
            if package not in _CORE and find_spec(package) is not None:
                found.add(package)
        elif own.name not in seen:
            seen.add(own.name)
            waiting += _find_first_imports(own)
    return frozenset(found)


def _find_own(name: str) -> Module | None:
    modules = _own_modules()
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return modules.get(name)


@cache
def _own_modules() -> dict[str, Module]:
    return {module.name: module for module in (*source_modules(), *outside_modules())}


def _find_first_imports(module: Module) -> Iterator[str]:
    """Return what a module imports at once: not in functions, and not where a failure is caught."""
    for node in module.tree.body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(source), names=names):
                yield from (f"{source}.{alias.name}" for alias in names)
