"""Makes our store pass for the official one where the official package is installed too.

Programs such as VirtualiZarr ask `isinstance(store, icechunk.IcechunkStore)` before they write to a store.
That class is an ABC, so ours can be registered with it; but it may be imported after ours was made. Whoever
imports `icechunk` later finds a watcher on the way, which registers our class and steps aside. Nothing of it
is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULE = "icechunk.store"
_CLASS = "IcechunkStore"


def pass_for_official(store: type) -> None:
    """Let instances of a class be instances of the official store class, now or as soon as there is one."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _register(loaded, store)
    else:
        sys.meta_path.insert(0, _Watcher(store))


def _register(module: ModuleType, store: type) -> None:
    official: Any = getattr(module, _CLASS, None)
    if official is not None and not issubclass(store, official):
        official.register(store)


class _Watcher(MetaPathFinder):
    """Waits for one module to be imported."""

    def __init__(self, store: type) -> None:
        self._store = store

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            sys.meta_path.remove(self)
            found.loader = _Registering(found.loader, self._store)
        return found


class _Registering(Loader):
    """Loads a module as its own loader does, and then registers our class with the one in it."""

    def __init__(self, loader: Loader, store: type) -> None:
        self._loader = loader
        self._store = store

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Tools that look at modules shall see the loader that really is theirs.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register(module, self._store)
