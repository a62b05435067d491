"""A picklable handle, from which another process opens the same repository.

All handles of a repository that are unpickled in the same process share caches. A worker that receives a
store with each task therefore reads the snapshot and the manifests only once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field

from icefloe._internal.concurrency import fork_safe_lock
from icefloe.config import RepositoryConfig
from icefloe.core.open import Layout, RepositoryParts, make_parts
from icefloe.core.virtual_chunks.authorized_reads import Authorized
from icefloe.core.virtual_chunks.range_reads import ReadLimits
from icefloe.storage.base import Storage
from icefloe.storage.disk_cache import DiskCache
from icefloe.storage.memory import MemoryStorage

_MAX_OPEN_REPOSITORIES = 8
"""The maximum number of repositories that stay open for later tasks."""

_lock = fork_safe_lock()
_open: OrderedDict[str, RepositoryParts] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Handle:
    """A picklable handle of a repository: its location, its layout, and the configuration to use."""

    storage: Storage
    layout: Layout
    config: RepositoryConfig
    authorized: Authorized = field(default_factory=dict)
    """The containers whose virtual chunks may be read, by URL prefix."""
    trusted: frozenset[str] = frozenset()
    """The URL prefixes of containers from the caller's configuration, whose endpoints may receive
    credentials.
    """
    disk_cache: DiskCache | None = None
    """The client's disk cache. Workers use the same path on their own machine."""
    read_limits: ReadLimits = field(default_factory=ReadLimits)
    """The limits for combining reads of virtual chunks."""
    token: str = field(default_factory=lambda: os.urandom(16).hex())
    """An identifier that all handles of one open repository share."""

    def open(self) -> RepositoryParts:
        """Open the repository of the handle in this process. Nothing is read yet."""
        if isinstance(self.storage, MemoryStorage):
            return self.reopen()  # each pickle contains its own copy of the objects
        with _lock:
            found = _open[self.token] = _open.get(self.token) or self.reopen()
            _open.move_to_end(self.token)
            while len(_open) > _MAX_OPEN_REPOSITORIES:
                _open.popitem(last=False)
        return found

    def reopen(self) -> RepositoryParts:
        """Open the repository of the handle with its own caches instead of the shared ones."""
        opened = make_parts(
            self.storage, self.layout, self.config, self.authorized, self.trusted, self.disk_cache
        )
        opened.assets.virtual.limits = self.read_limits
        return opened
