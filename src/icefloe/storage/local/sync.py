"""What was written to a folder and not yet synced, and syncing it: one by one, or side by side if that pays.

A disk with nothing else to do syncs a small file sooner than a thread takes it over. One that makes its
writers wait serves many of them in the time of one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import wait

from icefloe._internal.concurrency import pool

_THREADS = 16
_SLOW_S = 0.002
_MANY = 32


class Unsynced:
    """The files written, and the folders changed, since the last sync."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._adding = threading.Lock()
        self._syncing = threading.Lock()
        self._pid = os.getpid()

    def add(self, file: str) -> int:
        """Remember a file; gives how many there are now."""
        self._renew_locks_after_fork()
        with self._adding:
            self._files.add(file)
            return len(self._files)

    def add_folder(self, folder: str) -> None:
        """Remember a folder in which another was made."""
        self._renew_locks_after_fork()
        with self._adding:
            self._folders.add(folder)

    def sync(self, aside: int | None = None) -> None:
        """Sync all files and their folders, and with them the open descriptor of a file put aside.

        One caller at a time: who finds nothing left to sync must wait for the one who took it.
        """
        self._renew_locks_after_fork()
        with self._syncing:
            with self._adding:
                files, self._files = self._files, set()
                folders, self._folders = self._folders, set()
            folders.update(map(os.path.dirname, files))
            sync_all([*([] if aside is None else [aside]), *files, *folders])

    def _renew_locks_after_fork(self) -> None:
        """In a forked child nobody may ever release an inherited lock."""
        if self._pid != os.getpid():
            self._adding, self._syncing, self._pid = threading.Lock(), threading.Lock(), os.getpid()


def sync_all(entries: Iterable[int | str]) -> None:
    """Sync files and folders, by descriptor or name; threads help if the first took long, or with many."""
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
    per_helper = 1 if time.perf_counter() - began > _SLOW_S else _MANY
    helpers = min(len(left) // per_helper, _THREADS)
    running = [pool("sync", _THREADS).submit(sync_rest) for _ in range(helpers)]
    try:
        sync_rest()
    finally:
        wait(running)
    for each in running:
        each.result()


def sync_entry(path: str) -> None:
    """Sync a file or a folder; one that was deleted since needs no syncing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
