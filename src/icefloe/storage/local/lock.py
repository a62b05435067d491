"""A lock on a folder, between processes and threads of one host; the kernel frees it if its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from icefloe.errors import ErrorKind, StorageError

LOCK_FILE = ".icefloe.lock"
"""Only made where a folder itself cannot be locked, such as on NFS."""

_FOLDER_NOT_LOCKABLE = {errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EISDIR, errno.ENOSYS}


@contextlib.contextmanager
def folder_locked(folder: str, *, sync: bool = False) -> Iterator[None]:
    """Hold the lock of an existing folder; waits for it as long as its holder lives.

    The folder's own descriptor is locked, so no lock file is left behind for others to trip over. With `sync`
    the folder is synced at the end, when others may go on already.
    """
    if sys.platform == "win32":
        raise StorageError(
            "a local folder needs a POSIX system for safe commits", kind=ErrorKind.STORAGE_CONFIG
        )
    import fcntl  # not on every platform

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locked = _locked(descriptor, folder)
        try:
            yield
        finally:
            # Closing would not do: a child forked meanwhile holds a copy of the descriptor.
            fcntl.flock(locked, fcntl.LOCK_UN)
            if locked != descriptor:
                os.close(locked)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, folder: str) -> int:
    """The descriptor with the lock: that of the folder itself, or of a file in it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as cause:
        if cause.errno not in _FOLDER_NOT_LOCKABLE:
            raise
        descriptor = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
