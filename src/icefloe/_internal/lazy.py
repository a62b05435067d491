"""Lazy imports for packages whose public names are listed in a stub file, `__init__.pyi`.

The package `lazy_loader` of Scientific Python (SPEC 1) does the same. It parses the stub with `ast`, which
takes as long as `import icefloe` itself.

A package whose module has the name of a public function, such as `virtual.combine`, cannot use it: importing
the module would replace the function.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, given the path of its `__init__.py`.

    `__all__` leaves out modules, and names of built-in functions, which a star import would hide.
    """
    homes = read_stub(file)

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    public = [name for name, home in homes.items() if home != package and not hasattr(builtins, name)]
    return get_attribute, list_names, sorted(public)


def read_stub(file: str) -> dict[str, str]:
    """Return the module of each name that a stub imports. Names are imported as themselves."""
    homes: dict[str, str] = {}
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as lines:
        words = (
            " ".join(line for line in lines if not line.startswith("#"))
            .replace("(", "")
            .replace(")", "")
            .split()
        )
    for at, word in enumerate(words):
        if word == "from":
            home = words[at + 1]
        elif word == "as":
            homes[words[at + 1].rstrip(",")] = home
    return homes
