"""Sync files that were written to a folder, one by one or, if that is faster, in parallel.

An idle disk syncs a small file faster than a thread could take over the work. A busy disk makes writers wait,
but serves many of them in the time of one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import wait

from icefloe._internal.concurrency import get_pool

_THREADS = 16
_SLOW_S = 0.002
_MIN_PARALLEL_FILES = 32


class Unsynced:
    """The local files and folders that have changed since the last sync."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._adding = threading.Lock()
        self._syncing = threading.Lock()
        self._pid = os.getpid()

    def add(self, file: str) -> int:
        """Register a changed file, and return the number of files to sync."""
        self._renew_locks_after_fork()
        with self._adding:
            self._files.add(file)
            return len(self._files)

    def add_folder(self, folder: str) -> None:
        """Register a folder in which a subfolder was created."""
        self._renew_locks_after_fork()
        with self._adding:
            self._folders.add(folder)

    def sync(self, aside: int | None = None) -> None:
        """Sync all changed files and their folders, and optionally the open descriptor of a temporary file.

        Only one caller syncs at a time: a caller that finds nothing to sync must still wait for the one that
        is syncing its files.
        """
        self._renew_locks_after_fork()
        with self._syncing:
            with self._adding:
                files, self._files = self._files, set()
                folders, self._folders = self._folders, set()
            folders.update(map(os.path.dirname, files))
            sync_all([*([] if aside is None else [aside]), *files, *folders])

    def _renew_locks_after_fork(self) -> None:
        """Replace the locks in a forked child, where no thread would release an inherited lock."""
        if self._pid != os.getpid():
            self._adding, self._syncing, self._pid = threading.Lock(), threading.Lock(), os.getpid()


def sync_all(entries: Iterable[int | str]) -> None:
    """Sync local files and folders, given by descriptor or name. Threads are used if there are many, or if
    syncing is slow.
    """
    left = deque(entries)

    def sync_next() -> bool:
        try:
            entry = left.popleft()
        except IndexError:
            return False
        if isinstance(entry, int):
            os.fsync(entry)
        else:
            sync_entry(entry)
        return True

    def sync_rest() -> None:
        while sync_next():
            pass

    began = time.perf_counter()
    sync_next()
    per_helper = 1 if time.perf_counter() - began > _SLOW_S else _MIN_PARALLEL_FILES
    helpers = min(len(left) // per_helper, _THREADS)
    running = [get_pool("sync", _THREADS).submit(sync_rest) for _ in range(helpers)]
    try:
        sync_rest()
    finally:
        wait(running)
    for each in running:
        each.result()


def sync_entry(path: str) -> None:
    """Sync a local file or folder, unless it was deleted meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
