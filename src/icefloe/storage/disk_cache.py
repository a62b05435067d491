"""A disk cache: copies of immutable bytes in a local folder that all processes of a user share.

An entry is one file: a checksum of its key and content, followed by the content. Entries are written to a
temporary file and renamed, and the checksum is verified by each read. So after a killed writer, a power
failure or disk damage, data is requested from the source again, and wrong bytes are never returned.

Entries are distributed over 256 folders by key. The file `state` records the number of bytes in each folder,
so that a writer that needs room lists only a few folders. A lock on this file protects the folders and the
state. A killed writer may leave a recorded size that is too large, so each process counts a folder again
before its first write to it.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import stat
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from icefloe._internal.concurrency import fork_safe_lock
from icefloe._internal.telemetry import observe
from icefloe.errors import ErrorKind, InvalidInputError

DEFAULT_BYTES: Final = 10 << 30

_FOLDERS: Final = 256
_CHECKSUM_BYTES: Final = 16
_LARGEST_SHARE: Final = 8
"""The divisor for the maximum size of an entry, relative to the cache size."""
_SAMPLE: Final = 8
_EVICTED_SHARE: Final = 3
"""The divisor for the bytes to evict from some folders at a time, starting with the least recently used
entries: 3 for a third.
"""
_TAG: Final = "CACHEDIR.TAG"
_TAG_TEXT: Final = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# A disk cache of icefloe; it may be deleted.\n"
)
"""The content of the tag file by which backup programs recognize caches, and by which we recognize our
own.
"""
_STATE: Final = "state"
_TEMPORARY: Final = "."
_USED_AGAIN_S: Final = 60.0
"""A read updates the time of an entry if it is older than this, in seconds."""
_NEW_S: Final = 2.0
_LOCK_S: Final = 2.0
"""The maximum time in seconds that a writer waits for the lock."""
_BUSY_S: Final = 60.0
_PAUSE_S: Final = 0.001
_REPORT_S: Final = 5.0
_PRIVATE: Final = 0o700
_CLOSED: Final = getattr(os, "O_CLOEXEC", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _CLOSED

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskCacheUsage:
    """The size and the hit counts of a disk cache, over all processes."""

    entries: int
    """The number of entries."""
    size_bytes: int
    """The total size of all entries, in bytes."""
    hits: int
    """The number of reads that found an entry."""
    misses: int
    """The number of reads that did not find an entry."""

    @property
    def hit_rate(self) -> float | None:
        """The share of reads that found an entry; None before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


@dataclass(frozen=True, slots=True, init=False)
class DiskCache:
    """A cache for remote data in a local folder, shared by all processes of a user.

    Pass it to `Repository.open`. It is a client-side setting, which is not stored in the repository. Pickled
    repositories and sessions contain the path, so that workers use the same path on their own machine.

    Parameters
    ----------
    path
        The folder. If it does not exist, it is created and readable only by its owner. An existing folder
        must be empty or already be a disk cache.
    max_bytes
        The maximum total size of all entries. When it is reached, the (approximately) least recently used
        entries are deleted.

    Examples
    --------
    >>> import icefloe
    >>> cache = icefloe.DiskCache("~/.cache/icefloe", max_bytes=50 * 2**30)
    >>> repo = icefloe.Repository.open(storage, disk_cache=cache)  # doctest: +SKIP
    >>> cache.usage().hit_rate  # doctest: +SKIP
    0.87
    """

    path: str
    """The absolute path of the folder."""
    max_bytes: int
    """The maximum size of all entries."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = DEFAULT_BYTES) -> None:
        text = os.fspath(path)
        if not text:
            raise InvalidInputError("the path of the disk cache is empty", kind=ErrorKind.STORAGE_CONFIG)
        if max_bytes <= 0:
            raise InvalidInputError(
                f"the size of the disk cache must be positive, not {max_bytes}", kind=ErrorKind.STORAGE_CONFIG
            )
        object.__setattr__(self, "path", os.path.abspath(os.path.expanduser(text)))
        object.__setattr__(self, "max_bytes", max_bytes)

    def usage(self) -> DiskCacheUsage:
        """Return the number and size of the entries, and the hits and misses of all processes.

        Each process reports its reads every few seconds and when it exits.

        Returns
        -------
        DiskCacheUsage

        Raises
        ------
        InvalidInputError
            If the folder is not a disk cache.
        """
        check_folder(self.path)
        return get_entries(self).usage()

    def clear(self) -> None:
        """Delete all entries of the disk cache.

        Raises
        ------
        InvalidInputError
            If the folder is not a disk cache.
        """
        check_folder(self.path)
        get_entries(self).clear()


AnyDiskCache: TypeAlias = DiskCache | str | os.PathLike[str]
"""A disk cache, or the path of a folder for one."""


def choose_disk_cache(cache: AnyDiskCache | None) -> DiskCache | None:
    """Return the disk cache for an argument; raise InvalidInputError if its folder cannot be used."""
    found = cache if cache is None or isinstance(cache, DiskCache) else DiskCache(cache)
    if found is not None:
        check_folder(found.path)
    return found


def check_folder(path: str) -> None:
    """Raise InvalidInputError if a folder exists but cannot be used as this user's disk cache."""
    try:
        status = os.stat(path)
        names = os.listdir(path) if stat.S_ISDIR(status.st_mode) else []
    except OSError:
        return  # the folder does not exist or is not accessible; the cache warns on first use
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder"
    elif not _is_own(status):
        problem = "belongs to another user"
    elif names and _TAG not in names:
        problem = "is not empty and not a disk cache"
    else:
        return
    raise InvalidInputError(
        f"disk cache: {path} {problem}; choose a new or empty folder of your own",
        kind=ErrorKind.STORAGE_CONFIG,
    )


class CachedLocation:
    """The disk cache entries that belong to one location, such as a repository."""

    def __init__(self, cache: DiskCache, location: str) -> None:
        self._entries = get_entries(cache)
        self._location = location

    def get(self, key: tuple[object, ...], load: Callable[[], bytes]) -> bytes:
        """Return the cached bytes of a key, or load them and add them to the cache."""
        found = self.read(*key)
        if found is None:
            found = load()
            self.write(found, *key)
        return found

    def read(self, *key: object) -> bytes | None:
        """Return the cached bytes of a key; None if it is not cached."""
        return self._entries.read(self._digest(key))

    def write(self, data: bytes, *key: object) -> None:
        """Add bytes to the disk cache. A failure is logged and not raised."""
        self._entries.write(self._digest(key), data)

    def _digest(self, key: tuple[object, ...]) -> bytes:
        return hashlib.blake2b("\0".join(map(str, (self._location, *key))).encode(), digest_size=20).digest()


def get_entries(cache: DiskCache) -> Entries:
    """Return this process's handle for the entries of a disk cache."""
    with _lock:
        found = _open.get(cache)
        if found is None:
            if not _open:
                _watch_processes()
            found = _open[cache] = Entries(cache)
    return found


def _watch_processes() -> None:
    """Report the reads of this process and its forked children, and export the counts as metrics."""
    atexit.register(_report_all)
    if "multiprocessing.util" in sys.modules:  # its processes exit without calling atexit functions
        sys.modules["multiprocessing.util"].Finalize(None, _report_all, exitpriority=0)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_reads)
    observe("disk_cache.hits", lambda: sum(each.hits for each in _open.values()))
    observe("disk_cache.misses", lambda: sum(each.misses for each in _open.values()))
    observe("disk_cache.size_bytes", lambda: sum(each.size_bytes for each in _open.values()))


def _report_all() -> None:
    for entries in list(_open.values()):
        entries.report()


def _forget_reads() -> None:
    """Reset the read counts in a forked child, because the parent reports them."""
    for entries in _open.values():
        entries.forget_reads()


@dataclass(slots=True)
class _State:
    """The content of the `state` file."""

    sizes: list[int] = field(default_factory=lambda: [0] * _FOLDERS)
    """The number of bytes in each folder."""
    next: int = 0
    """The folder from which entries are evicted next."""
    hits: int = 0
    misses: int = 0


_STATE_FORMAT: Final = struct.Struct(f"<8s{_FOLDERS}QQQQ")
_STATE_MAGIC: Final = b"iccache1"


def _decode_state(data: bytes) -> _State | None:
    """Decode the `state` file; return None if it is damaged."""
    body, checksum = data[: _STATE_FORMAT.size], data[_STATE_FORMAT.size :]
    if len(body) < _STATE_FORMAT.size or checksum != struct.pack("<I", zlib.crc32(body)):
        return None
    magic, *sizes, following, hits, misses = _STATE_FORMAT.unpack(body)
    return _State(sizes, following % _FOLDERS, hits, misses) if magic == _STATE_MAGIC else None


class Entries:
    """Reads and writes the entries of a disk cache for one process. Thread-safe."""

    def __init__(self, cache: DiskCache) -> None:
        self._root, self._max_bytes = cache.path, cache.max_bytes
        self._lock = fork_safe_lock()
        self._counting = fork_safe_lock()
        self._counted: set[int] = set()
        """The folders whose size this process has already verified."""
        self._prepared = False
        self._reads = self._writes = True
        self._busy_until = 0.0
        self.hits = self.misses = 0
        self._reported = (0, 0)
        self._reported_at = time.monotonic()

    # Reading

    def read(self, key: bytes) -> bytes | None:
        """Return the cached bytes of a key; None if they are not cached or damaged."""
        if not self._reads or not self._prepare():
            return None
        path = self._path(key)
        try:
            data = self._read_file(path, key)
        except FileNotFoundError:
            data = None
        except OSError as error:
            _logger.debug("disk cache: cannot read %s: %s", path, error)
            data = None
        with self._counting:
            self.hits += data is not None
            self.misses += data is None
            due = time.monotonic() - self._reported_at > _REPORT_S
        if due:
            self.report()
        return data

    def _read_file(self, path: str, key: bytes) -> bytes | None:
        descriptor = os.open(path, _READ)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not _is_own(status):
                return None
            checksum = file.read(_CHECKSUM_BYTES)
            data = file.readall()
        if checksum != _make_checksum(key, data):
            _logger.debug("disk cache: deleting %s, which is damaged", path)
            os.unlink(path)
            return None
        if time.time() - status.st_mtime > _USED_AGAIN_S:
            os.utime(path)
        return data

    # Writing

    def write(self, key: bytes, data: bytes) -> None:
        """Add bytes to the cache. After the first failure, which is logged, nothing more is written."""
        size = len(data) + _CHECKSUM_BYTES
        if not self._writes or size > self._max_bytes // _LARGEST_SHARE or not self._prepare():
            return
        if time.monotonic() < self._busy_until:
            return
        path = self._path(key)
        name = f"{_TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}"
        temporary = os.path.join(os.path.dirname(path), name)
        try:
            # The lock on it shows others that its writer is alive.
            with open(_create_file(temporary), "wb") as file, _lock_file(file.fileno()):
                file.write(_make_checksum(key, data))
                file.write(data)
                file.flush()
                with self._locked_state() as state:
                    admitted = not os.path.exists(path) and self._admit(state, key[0], size, temporary)
                if admitted:  # so that a killed writer never leaves a named file that was not counted
                    os.rename(temporary, path)
                else:
                    os.unlink(temporary)
        except FileNotFoundError as error:
            if not os.path.isdir(self._root):
                self._stop_writing(error)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            self._stop_writing(error)

    def _admit(self, state: _State, folder: int, size: int, temporary: str) -> bool:
        """Make room for a new entry and count it; return False if there is not enough room."""
        if folder not in self._counted:
            state.sizes[folder] = sum(entry.size for entry in self._list(folder) if entry.path != temporary)
            self._counted.add(folder)
        if not self._make_room(state, size):
            return False
        state.sizes[folder] += size
        return True

    def _make_room(self, state: _State, size: int) -> bool:
        """Evict entries until there is room for a new one. Return False if that is not possible."""
        room = self._max_bytes - size
        for _ in range(_LARGEST_SHARE * _FOLDERS // _SAMPLE):
            if sum(state.sizes) <= room:
                return True
            folders = [(state.next + number) % _FOLDERS for number in range(_SAMPLE)]
            self._evict(state, folders)
            state.next = (state.next + _SAMPLE) % _FOLDERS
        return sum(state.sizes) <= room

    def _evict(self, state: _State, folders: list[int]) -> None:
        """Delete the least recently used entries in the given folders."""
        found = [(entry, folder) for folder in folders for entry in self._list(folder)]
        for folder in folders:
            state.sizes[folder] = sum(entry.size for entry, place in found if place == folder)
        wanted = max(sum(state.sizes[folder] for folder in folders) // _EVICTED_SHARE, 1)
        for entry, folder in sorted(found, key=lambda each: each[0].used_at):
            if wanted <= 0:
                return
            if entry.is_complete:
                with suppress(FileNotFoundError):  # a reader has already deleted it because it was damaged
                    os.unlink(entry.path)
                state.sizes[folder] -= entry.size
                wanted -= entry.size

    def _list(self, folder: int) -> list[_Entry]:
        """List the entries of a folder, and delete the files that killed writers left there."""
        found = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._folder(folder)) as files:
            for file in files:
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    entry = _Entry(file.path, status.st_size, status.st_mtime)
                    is_new = time.time() - entry.used_at < _NEW_S  # perhaps not locked yet
                    if entry.is_complete or is_new or _is_locked(file.path):
                        found.append(entry)
                    else:
                        os.unlink(file.path)
        return found

    # The state

    @contextmanager
    def _locked_state(self) -> Iterator[_State]:
        """Lock the state against other processes and threads, and write it back at the end.

        The state is written even if the block fails. The recorded sizes may then be too large, but never too
        small.
        """
        with self._lock:
            path = os.path.join(self._root, _STATE)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _CLOSED, 0o600)
            try:
                with _lock_file(descriptor):
                    state = self._load(os.pread(descriptor, _STATE_FORMAT.size + 4, 0))
                    try:
                        yield state
                    finally:
                        os.pwrite(descriptor, self._dump(state), 0)
            finally:
                os.close(descriptor)

    def _load(self, data: bytes) -> _State:
        """Decode the state. If it is empty or damaged, compute it from a listing of all entries."""
        return _decode_state(data) or _State(
            [sum(entry.size for entry in self._list(folder)) for folder in range(_FOLDERS)]
        )

    def _dump(self, state: _State) -> bytes:
        """Encode the state, including the reads that this process has not reported yet."""
        with self._counting:
            state.hits += self.hits - self._reported[0]
            state.misses += self.misses - self._reported[1]
            self._reported = (self.hits, self.misses)
            self._reported_at = time.monotonic()
        body = _STATE_FORMAT.pack(_STATE_MAGIC, *state.sizes, state.next, state.hits, state.misses)
        return body + struct.pack("<I", zlib.crc32(body))

    def report(self) -> None:
        """Add the reads of this process to the counts in the state."""
        if self._reported == (self.hits, self.misses) or not self._writes:
            return
        try:
            with self._locked_state():
                pass
        except OSError as error:
            _logger.debug("disk cache: cannot report reads: %s", error)

    def forget_reads(self) -> None:
        """Reset the read counts in a forked child."""
        self.hits = self.misses = 0
        self._reported = (0, 0)

    def usage(self) -> DiskCacheUsage:
        """Return the number and size of the entries, and the hits and misses of all processes."""
        self.report()
        sizes = [
            entry.size for number in range(_FOLDERS) for entry in self._list(number) if entry.is_complete
        ]
        state = self._read_state()
        return DiskCacheUsage(len(sizes), sum(sizes), state.hits, state.misses)

    @property
    def size_bytes(self) -> int:
        """The total size of all entries according to the state, in bytes."""
        return sum(self._read_state().sizes)

    def _read_state(self) -> _State:
        """Read the state without the lock. Its checksum detects a partly written state."""
        with suppress(OSError), open(os.path.join(self._root, _STATE), "rb") as file:
            return _decode_state(file.read()) or _State()
        return _State()

    def clear(self) -> None:
        """Delete all entries of the disk cache."""
        if not self._prepare():
            return
        with self._locked_state() as state:
            for folder in range(_FOLDERS):
                for entry in self._list(folder):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
                state.sizes[folder] = 0

    # The folder

    def _prepare(self) -> bool:
        """Create or check the cache folder. The first failure is logged."""
        if self._prepared:
            return True
        if not self._reads:
            return False
        try:
            check_folder(self._root)
            if sys.platform == "win32":
                raise OSError("the disk cache needs a POSIX system")
            os.makedirs(self._root, _PRIVATE, exist_ok=True)
            if stat.S_IMODE(os.stat(self._root).st_mode) != _PRIVATE:
                os.chmod(self._root, _PRIVATE)
            with suppress(FileExistsError), open(_create_file(os.path.join(self._root, _TAG)), "wb") as tag:
                tag.write(_TAG_TEXT)
        except (OSError, InvalidInputError) as error:
            self._reads = False
            self._stop_writing(error)
            return False
        self._prepared = True
        return True

    def _stop_writing(self, error: Exception) -> None:
        """Stop writing in this process and log the reason. If the cache is only locked, writing resumes after
        a while.
        """
        if isinstance(error, TimeoutError):
            self._busy_until = time.monotonic() + _BUSY_S
            _logger.debug("disk cache: %s", error)
            return
        with self._counting:
            first, self._writes = self._writes, False
        if first:
            what = "is read but not written" if self._reads else "is not used"
            _logger.warning("the disk cache in %s %s by this process: %s", self._root, what, error)

    def _folder(self, number: int) -> str:
        return os.path.join(self._root, f"{number:02x}")

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder(key[0]), key[1:].hex())


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in a disk cache folder, as listed."""

    path: str
    size: int
    used_at: float

    @property
    def is_complete(self) -> bool:
        """True for an entry, False for a temporary file."""
        return not os.path.basename(self.path).startswith(_TEMPORARY)


def _make_checksum(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _create_file(path: str) -> int:
    """Create a file that only its owner can read, and return its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), _PRIVATE)
        return os.open(path, flags, 0o600)


@contextmanager
def _lock_file(descriptor: int) -> Iterator[None]:
    """Lock a file; raise TimeoutError if another process, perhaps a suspended one, does not release it."""
    import fcntl  # not available on all platforms

    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process does not release its lock") from None
            time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        # Closing is not enough, because a child that was forked meanwhile has a copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_locked(path: str) -> bool:
    """Return True if a process holds a lock on a file. The kernel releases locks when a process ends."""
    import fcntl

    descriptor = os.open(path, _READ)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


_lock = fork_safe_lock()
_open: dict[DiskCache, Entries] = {}
