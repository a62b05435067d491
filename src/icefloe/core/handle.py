"""A picklable handle, from which another process opens the same repository.

Everything that is unpickled in one process from the same repository shares its caches, so that a worker that
receives a store with each task reads the snapshot and the manifests once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field

from icefloe._internal.concurrency import fork_safe_lock
from icefloe.config import RepositoryConfig
from icefloe.core.open import Layout, Opened, make_parts
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.core.virtual_chunks.read import Authorized
from icefloe.storage.base import Storage
from icefloe.storage.memory import MemoryStorage

_KEPT = 8
"""The number of repositories that stay open for the next task."""

_lock = fork_safe_lock()
_open: OrderedDict[str, Opened] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Handle:
    """A location, the layout of the repository there, and the configuration to use."""

    storage: Storage
    layout: Layout
    config: RepositoryConfig
    authorized: Authorized = field(default_factory=dict)
    """The containers whose virtual chunks may be read, by URL prefix."""
    trusted: frozenset[str] = frozenset()
    """URL prefixes of the containers in the caller's configuration, whose endpoints may receive
    credentials.
    """
    read_limits: ReadLimits = field(default_factory=ReadLimits)
    """The limits within which reads of virtual chunks are combined."""
    token: str = field(default_factory=lambda: os.urandom(16).hex())
    """An identifier that all handles of one open repository share."""

    def open(self) -> Opened:
        """Open the repository. Nothing is read yet."""
        if isinstance(self.storage, MemoryStorage):
            return self._open_parts()  # each pickle contains its own copy of the objects
        with _lock:
            found = _open[self.token] = _open.get(self.token) or self._open_parts()
            _open.move_to_end(self.token)
            while len(_open) > _KEPT:
                _open.popitem(last=False)
        return found

    def _open_parts(self) -> Opened:
        opened = make_parts(self.storage, self.layout, self.config, self.authorized, self.trusted)
        opened.assets.virtual.limits = self.read_limits
        return opened
