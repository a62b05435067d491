"""Resolve repository versions for many requests per second."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

from icefloe.core.open import make_parts
from icefloe.format.files import REPO_PATH
from icefloe.history.versions import ResolvedVersion, find_version
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage.base import Storage, Version
from icefloe.storage.read_only import ReadOnlyStorage

T = TypeVar("T")

_SHARE: Final = 5
"""Refs are cached for this many times as long as it took to read them, so that many requests share a read."""
_LONGEST_S: Final = 0.25
_LONGEST_AT_ONCE_S: Final = 0.002
_MAX_NAMES: Final = 1024
_SESSIONS: Final = 32


class SharedRefs(ReadOnlyStorage):
    """A read-only storage that reads the refs once for many requests.

    Parameters
    ----------
    inner
        The storage to read from.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._fresh: tuple[Version | None, float] = (None, 0.0)
        """A version of the refs, and the time until which it is considered fresh."""

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        # docstring inherited
        if path != REPO_PATH:
            return super().get_if_changed(path, version)
        known, until = self._fresh
        start = time.monotonic()
        if known == version and start < until:
            return None
        found = super().get_if_changed(path, version)
        taken = time.monotonic() - start
        newest = version if found is None else found[1]
        self._fresh = (newest, start + taken + share_time(taken, at_once=self.answers_at_once))
        return found


def share_time(taken_s: float, *, at_once: bool) -> float:
    """Return for how many seconds to cache the refs, given how long it took to read them."""
    return min(_SHARE * taken_s, _LONGEST_AT_ONCE_S if at_once else _LONGEST_S)


def read_only(repo: Repository) -> Repository:
    """Reopen a repository with a storage on which every write raises an error."""
    handle, storage = repo._handle, SharedRefs(repo.storage)
    parts = (handle.layout, repo._opened.config, handle.authorized, handle.trusted, handle.disk_cache)
    opened = make_parts(storage, *parts)
    opened.assets.virtual.limits = handle.read_limits
    return Repository._of(
        opened, storage, handle.authorized, repo.attribution, handle.trusted, handle.disk_cache
    )


class ResultCache(Generic[T]):
    """A thread-safe cache of results by version and key.

    Parameters
    ----------
    most
        The maximum number of results to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Any, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> T | None:
        """Return a result from the cache."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: Any, value: T) -> T:
        """Add a result to the cache, and return it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class Versions:
    """Resolves the versions of a served repository, and keeps their sessions open.

    Parameters
    ----------
    repo
        The repository.
    """

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self._state: object = None
        self._fresh_until = 0.0
        self._known: dict[str, ResolvedVersion] = {}
        self._sessions: ResultCache[Session] = ResultCache(_SESSIONS)
        self._lock = threading.Lock()

    @property
    def answers_at_once(self) -> bool:
        """True if the refs can be read inside the event loop, because no network is involved."""
        return self.repo.storage.answers_at_once

    def resolve(self, text: str) -> ResolvedVersion:
        """Find the snapshot that a version currently selects."""
        if time.monotonic() >= self._fresh_until:
            self._refresh_refs()
        found = self._known.get(text)
        if found is None:
            start = time.monotonic()
            found = find_version(self.repo, text)
            if self._state is None:
                self._trust_for(time.monotonic() - start)
            if "@" not in text and len(self._known) < _MAX_NAMES:  # `main@1h` depends on the clock
                self._known[text] = found
        return found

    def is_fresh(self) -> bool:
        """Return True if the next version can be resolved without reading from storage."""
        return time.monotonic() < self._fresh_until

    def session(self, snapshot_id: str) -> Session:
        """Return an open session on a snapshot. Sessions are reused."""
        found = self._sessions.get(snapshot_id)
        if found is None:
            found = self.repo.readonly_session(snapshot_id=snapshot_id)
            self._sessions.put(snapshot_id, found)
        return found

    def is_open(self, snapshot_id: str) -> bool:
        """Return True if a session on this snapshot is already open."""
        return self._sessions.get(snapshot_id) is not None

    def _refresh_refs(self) -> None:
        """Reread the refs, unless another thread has just done so. Drop cached versions if they changed."""
        with self._lock:
            if time.monotonic() < self._fresh_until:
                return
            start = time.monotonic()
            state = self._read_state()
            if state is None or state is not self._state:
                self._known = {}
                self._state = state
            self._trust_for(time.monotonic() - start)

    def _trust_for(self, taken_s: float) -> None:
        self._fresh_until = time.monotonic() + share_time(taken_s, at_once=self.answers_at_once)

    def _read_state(self) -> object:
        """Read the repo info file, which contains all refs. Return None for formats before version 2."""
        load = getattr(self.repo._refs, "load", None)
        return None if load is None else load()
