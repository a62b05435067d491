"""Source files as syntax trees, for tests of the house rules."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "icefloe"


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, its text and its syntax tree."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """Made when a rule asks for it: most files are only counted."""
        with _no_garbage_collection():
            return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree: walking the tree takes as long as parsing."""
        with _no_garbage_collection():
            return tuple(ast.walk(self.tree))

    @property
    def component(self) -> str:
        """The part of the package it belongs to: `icefloe.format.v2` -> `format`, `icefloe` -> ``."""
        return component_of(self.name)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute: `from icefloe.format import v2` -> `icefloe.format.v2`."""

    target: str
    line: int
    at_run_time: bool
    """False inside `if TYPE_CHECKING:`."""


def component_of(module_name: str) -> str:
    """Return the second part of a dotted name. Each module of `_internal` is a component of its own."""
    parts = module_name.split(".")
    depth = 3 if parts[1:2] == ["_internal"] else 2
    return ".".join(parts[1:depth])


def parse(name: str, text: str, *, is_package: bool = False) -> Module:
    """Return a module with the given text, for tests of the rules themselves."""
    return Module(name, text, is_package)


@cache
def source_modules() -> tuple[Module, ...]:
    """Return all modules of the package, sorted by name."""
    return tuple(_modules_below(ROOT / "src", ROOT / "src" / PACKAGE))


@cache
def outside_modules() -> tuple[Module, ...]:
    """Return the modules of tests, benchmarks and the demo."""
    folders = [ROOT / name for name in ("tests", "benchmarks", "demo") if (ROOT / name).is_dir()]
    return tuple(module for folder in folders for module in _modules_below(ROOT, folder))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause collections, which take two thirds of the time while so many nodes are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def imports_of(module: Module) -> tuple[Import, ...]:
    """Return all imports, including those in functions and constant ones through `importlib`."""
    type_only = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return tuple(
        Import(target, getattr(node, "lineno", 0), id(node) not in type_only)
        for node in module.nodes
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
        for target in _targets(node, module)
    )


def _modules_below(base: Path, folder: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        yield parse(name, path.read_text(encoding="utf-8"), is_package=is_package)


def _targets(node: ast.AST, module: Module) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=source, names=names, level=level):
            base = ".".join(part for part in (_anchor(module, level), source) if part)
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]):
            if last_name(func) in {"import_module", "__import__", "find_spec"}:
                yield target


def last_name(node: ast.expr) -> str:
    """Return the name of a variable, or of the last attribute; empty for any other expression."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _anchor(module: Module, level: int) -> str:
    if level == 0:
        return ""
    parts = module.name.split(".")
    dropped = level - 1 if module.is_package else level
    return ".".join(parts[: len(parts) - dropped])
