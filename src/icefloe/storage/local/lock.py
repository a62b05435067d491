"""A lock on a folder between processes and threads of one host. The kernel releases it if its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from icefloe.errors import ErrorKind, StorageError

LOCK_FILE = ".icefloe.lock"
"""Created only where a folder itself cannot be locked, for example on NFS."""

_FOLDER_NOT_LOCKABLE = {errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EISDIR, errno.ENOSYS}


@contextlib.contextmanager
def lock_folder(folder: str, *, sync: bool = False) -> Iterator[None]:
    """Lock a local folder within the block, after waiting for other holders of the lock.

    The lock is on the descriptor of the folder, so that no lock file is left behind. With `sync`, the folder
    is synced after the lock is released, when others may already continue.
    """
    if sys.platform == "win32":
        raise StorageError(
            "safe commits to a local folder need a POSIX system", kind=ErrorKind.STORAGE_CONFIG
        )
    import fcntl  # does not exist on all platforms

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locked = _acquire_lock(descriptor, folder)
        try:
            yield
        finally:
            # Closing is not enough: a child that was forked meanwhile has a copy of the descriptor.
            fcntl.flock(locked, fcntl.LOCK_UN)
            if locked != descriptor:
                os.close(locked)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _acquire_lock(descriptor: int, folder: str) -> int:
    """Lock the folder, or a file in it, and return the locked descriptor."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as cause:
        if cause.errno not in _FOLDER_NOT_LOCKABLE:
            raise
        descriptor = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
