"""Use icefloe in programs that import `icechunk` by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from icefloe import errors
from icefloe.config import display

__all__ = ["OFFICIAL_VERSION", "install_as_icechunk"]

OFFICIAL_VERSION = "2.3.0"
"""The release of the official package whose API icefloe provides, and the value of `icechunk.__version__`."""

_OFFICIAL = "icechunk"
_PACKAGE = "icefloe"
_OTHER_NAMES = {"_exceptions": "errors"}
_FOR_WORKERS = str(Path(__file__).parent / "_standing_in")


def install_as_icechunk() -> None:
    """Make `import icechunk` return icefloe in this process and its child processes.

    Call it before anything imports `icechunk`. Reprs then also use the name `icechunk`. Child processes that
    inherit the environment, such as those of multiprocessing, dask or local Spark, find a package with that
    name first on their PYTHONPATH. On a cluster, set PYTHONPATH for the workers, or call this function there.

    Raises
    ------
    RuntimeError
        If the official package has been imported.
    """
    loaded = sys.modules.get(_OFFICIAL)
    if loaded is not None and not _is_ours(loaded):
        raise RuntimeError(
            "the official icechunk has been imported; call install_as_icechunk() before any import of it"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    display.PACKAGE = errors.PACKAGE = _OFFICIAL
    if not isinstance(loaded, _Facade):
        sys.modules[_OFFICIAL] = _make_facade()
    if _FOR_WORKERS not in sys.path:
        sys.path.insert(0, _FOR_WORKERS)  # multiprocessing passes this list to its workers, not PYTHONPATH
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _FOR_WORKERS not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_FOR_WORKERS, *filter(None, paths)])


def _is_ours(module: ModuleType) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    return isinstance(module, _Facade) or str(origin).startswith(_FOR_WORKERS)


class _Facade(ModuleType):
    """A module named icechunk that has icefloe's attributes, except for the version."""

    __version__ = OFFICIAL_VERSION

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_PACKAGE), name)

    def __dir__(self) -> Sequence[str]:
        return dir(importlib.import_module(_PACKAGE))


def _make_facade() -> ModuleType:
    package = importlib.import_module(_PACKAGE)
    facade = _Facade(_OFFICIAL, package.__doc__)
    facade.__path__ = []
    facade.__spec__ = ModuleSpec(_OFFICIAL, None, is_package=True)
    facade.__dict__["__all__"] = list(package.__all__)
    return facade


class _Finder(DistributionFinder):
    """An import finder for `icechunk` and its submodules, and for its distribution metadata."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_OFFICIAL}."):
            return None
        first, _, rest = fullname.removeprefix(f"{_OFFICIAL}.").partition(".")
        ours = ".".join(filter(None, (_PACKAGE, _OTHER_NAMES.get(first, first), rest)))
        found = importlib.util.find_spec(ours)
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(ours), is_package=found.submodule_search_locations is not None)

    def find_distributions(self, context: Any = None) -> list[Distribution]:
        if context is None or context.name is None or context.name.lower() != _OFFICIAL:
            return []
        return [_Described()]


class _Alias(Loader):
    """A loader that returns an icefloe module under another name, and keeps the module's own spec."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Described(Distribution):
    """The official distribution's metadata: its name and version."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {_OFFICIAL}\nVersion: {OFFICIAL_VERSION}\n"

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
