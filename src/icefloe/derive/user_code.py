"""User-defined functions, given as `module:function` and loaded from their source files.

Long-running processes and Spark workers keep imported modules, even if a file has changed or another recipe
has a module of the same name. Therefore, modules next to a recipe are executed from source instead of taken
from `sys.modules`, once per version of the files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from icefloe.errors import ErrorKind, InvalidInputError

_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
_LOADED: Final[dict[tuple[str, str], tuple[str, Mapping[str, ModuleType]]]] = {}
"""The user modules that this process has loaded: source digest and modules, keyed by folder and name."""


@dataclass(frozen=True, slots=True)
class UserCode:
    """A user-defined function in a recipe, and a digest of its source."""

    text: str
    """The function as the recipe names it: `module:function`."""
    folder: str
    """The folder of the recipe, which is searched for modules first."""
    digest: str
    """A hash of the module's source, and of the modules next to the recipe that it imports."""

    @staticmethod
    def find(text: str, folder: str, version: str = "") -> UserCode:
        """Locate a user's function and hash its source. Raise InvalidInputError if it cannot be imported.

        If the module has no source file, the recipe must specify a version.
        """
        name, sources = text.partition(":")[0], find_sources(text, folder)
        digest = hash_sources(sources) if sources else _hash_installed(name, text, folder, version)
        code = UserCode(text, folder, digest)
        code.load()
        return code

    def load(self) -> Callable[..., Any]:
        """Import the function, making sure that its source still has the planned digest. Raise
        InvalidInputError if that fails.
        """
        module, _, name = self.text.partition(":")
        try:
            found: Any = self._load_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise _make_error(
                f"{self.text} cannot be imported: {type(error).__name__}: {error}; put the module next to"
                " the recipe, or install it on every executor"
            ) from error
        if not callable(found):
            raise _make_error(f"{self.text} is not a function")
        function: Callable[..., Any] = found
        return function

    def _load_module(self, name: str) -> ModuleType:
        if sys.path[0] != self.folder:  # also for imports at call time
            sys.path[:] = [self.folder, *(each for each in sys.path if each != self.folder)]
        key = (self.folder, name)
        known = _LOADED.get(key)
        if known is None or known[0] != self.digest:
            known = _LOADED[key] = (self.digest, self._execute(name))
        sys.modules.update(known[1])
        return known[1][name]

    def _execute(self, name: str) -> Mapping[str, ModuleType]:
        """Import a module from its current source, together with the modules next to the recipe that it
        imports.
        """
        sources = find_sources(self.text, self.folder)
        if not sources:
            before = sys.modules.get(name)
            found = importlib.import_module(name)
            is_old = found is before and (self.folder, name) in _LOADED
            return {name: importlib.reload(found) if is_old else found}
        if hash_sources(sources) != self.digest:
            raise _make_error(
                f"{self.text} changed after the run was planned; every executor needs the "
                "same files, and they may not change during a run"
            )
        finder = _SourceFinder(sources)
        for each in sources:
            sys.modules.pop(each, None)
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)
        return {each: sys.modules[each] for each in sources if each in sys.modules}


@dataclass(frozen=True, slots=True)
class _Source:
    """The source file of a module next to a recipe."""

    file: Path
    data: bytes

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"


def find_sources(text: str, folder: str) -> dict[str, _Source]:
    """Read the source of a user function's module, and of all modules next to the recipe that it imports.

    Return an empty mapping if the module is installed elsewhere.
    """
    found: dict[str, _Source] = {}
    waiting = [text.partition(":")[0]]
    while waiting:
        name = waiting.pop()
        parents = [name[:at] for at, letter in enumerate(name) if letter == "."]
        for each in (*parents, name):
            if each not in found and (source := _read_source(each, folder)) is not None:
                found[each] = source
                waiting += _list_imports(each, source)
    return found


def hash_sources(sources: Mapping[str, _Source]) -> str:
    """Hash the sources of a user's function. If the hash changes, all chunks are computed again."""
    digest = hashlib.blake2b(digest_size=16)
    for name, source in sorted(sources.items()):
        for part in (name.encode(), source.data):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _read_source(name: str, folder: str) -> _Source | None:
    if _is_installed(name.partition(".")[0]):
        return None
    path = Path(folder, *name.split("."))
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return _Source(file, file.read_bytes())
    return None


def _is_installed(name: str) -> bool:
    """Return True if a module name belongs to the standard library or to an installed package that this
    process uses.
    """
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.stdlib_module_names or bool(_INSTALLED & set(Path(file or "").parts))


def _list_imports(name: str, source: _Source) -> list[str]:
    """List the modules that a module's source may import. Listing modules that do not exist is harmless."""
    try:
        tree = ast.parse(source.data)
    except (SyntaxError, ValueError):
        return []  # importing it fails with a clear error
    package = name if source.is_package else name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{each.name}" for each in node.names)]
    return [each for each in found if each]


def _hash_installed(name: str, text: str, folder: str, version: str) -> str:
    """Hash the source of a module that is installed elsewhere, not next to the recipe."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    file = Path(spec.origin) if spec is not None and spec.origin else None
    if file is not None and file.is_file():
        source = _Source(file, file.read_bytes())
        depth = name.count(".") + source.is_package
        sources = {} if _INSTALLED & set(file.parts) else find_sources(text, str(file.parents[depth]))
        return hash_sources(sources or {name: source})
    UserCode(text, folder, version).load()  # fails with a clear error if there is no such module
    if not version:
        raise _make_error(
            f"{text} has no source file, so its changes cannot be detected; set version in the recipe"
        )
    return version


class _SourceFinder(MetaPathFinder):
    """An import finder that loads modules from sources in memory and ignores cached bytecode."""

    def __init__(self, sources: Mapping[str, _Source]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # docstring inherited
        source = self._sources.get(fullname)
        if source is None:
            return None
        folders = [str(source.file.parent)] if source.is_package else None
        loader = _SourceLoader(fullname, source)
        return spec_from_file_location(
            fullname, source.file, loader=loader, submodule_search_locations=folders
        )


class _SourceLoader(SourceFileLoader):
    """An import loader for one source. It does not use cached bytecode, because Python's cache cannot detect
    an edit within the same second that keeps the file length.
    """

    def __init__(self, fullname: str, source: _Source) -> None:
        super().__init__(fullname, str(source.file))
        self._data = source.data

    def get_code(self, fullname: str) -> CodeType | None:
        # docstring inherited
        return self.source_to_code(self._data, self.path)


def _make_error(text: str) -> InvalidInputError:
    return InvalidInputError(text, ErrorKind.INVALID_COMMIT_CONFIGURATION)
