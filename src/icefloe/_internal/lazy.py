"""Lazy imports for packages whose public names are listed in a stub file, `__init__.pyi`.

Scientific Python's `lazy_loader` package (SPEC 1) does the same, but it parses the stub with `ast`, which
takes as long as `import icefloe` itself.

A package whose module has the name of a public function, such as `virtual.combine`, cannot use it: importing
the module would replace the function.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def attach_stub(
    package: str, file: str, optional: Collection[str] = (), needs: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package with lazy imports, given the path of its
    `__init__.py`.

    `__all__` omits names from `optional` modules, which need packages that may not be installed, so that a
    star import does not fail. The message for a missing package also names the packages that all names need.
    """
    homes = read_stub(file)

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        try:
            value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            from icefloe._internal.extras import find_missing_package  # imported late, for fast imports

            if (missing := find_missing_package(error, *needs)) is None:
                raise
            text = f"{package}.{name} needs {missing.module}: {missing.command}"
            raise ModuleNotFoundError(text, name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    public = [name for name in list_public_names(package, file) if homes[name] not in optional]
    return get_attribute, list_names, public


def list_public_names(package: str, file: str) -> list[str]:
    """List the public names that a stub file declares for lazy imports, without modules.

    Names of built-in functions are also left out, because a star import would shadow these functions.
    """
    homes = read_stub(file)
    return sorted([name for name, home in homes.items() if home != package and not hasattr(builtins, name)])


def read_stub(file: str) -> dict[str, str]:
    """Read a stub file for lazy imports, and return the module that defines each name.

    Only names that are imported as themselves are returned: `from module import Name as Name`.
    """
    homes: dict[str, str] = {}
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as lines:
        words = (
            " ".join([line for line in lines if not line.startswith("#")])
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
