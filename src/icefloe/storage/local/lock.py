"""A lock on a folder, for processes and threads on one host. The kernel releases it if its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from icefloe.errors import ErrorKind, StorageError

LOCK_FILE = ".icefloe.lock"
"""The name of the lock file. It is created only where the folder itself cannot be locked, for example on
NFS.
"""

_FOLDER_NOT_LOCKABLE = {errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EISDIR, errno.ENOSYS}


@contextlib.contextmanager
def lock_folder(folder: str, *, sync: bool = False) -> Iterator[None]:
    """Lock a local folder for the duration of the `with` block. Wait for other holders first.

    The lock is held on the folder's descriptor, so that no lock file is left behind. With `sync`, the folder
    is synced after the lock is released, so that other holders can already continue.
    """
    if sys.platform == "win32":
        raise StorageError(
            "safe commits to a local folder need a POSIX system", kind=ErrorKind.STORAGE_CONFIG
        )
    import fcntl  # not available on all platforms

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locked = _acquire_lock(descriptor, folder)
        try:
            yield
        finally:
            # Closing is not enough, because a child that was forked meanwhile has a copy of the descriptor.
            fcntl.flock(locked, fcntl.LOCK_UN)
            if locked != descriptor:
                os.close(locked)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _acquire_lock(descriptor: int, folder: str) -> int:
    """Lock the folder, or a lock file in it, and return the locked descriptor."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as cause:
        if cause.errno not in _FOLDER_NOT_LOCKABLE:
            raise
        descriptor = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
