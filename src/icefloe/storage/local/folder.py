"""Storage in a local folder, through plain system calls. It works in forked children and replaces refs
atomically.

Compare-and-swap. A writer writes the new content to a temporary file, locks the folder, compares the current
content with the expected version, and renames the file. No update is lost between processes on one host, even
with `unsafe_use_conditional_update=False`. The official library stores this setting for folders because it
does not support conditional updates there. It writes unconditionally, so do not let both libraries write to a
folder at the same time.

The version is a hash of the content. Inode, time and size would be cheaper, but inodes are reused and the
kernel's clock ticks in milliseconds, so two different contents can share all three. It does no harm that
equal contents have equal versions, because a change that was computed from one is also valid for the other.

Durability. Unconditional writes are collected and synced together before the next conditional write, so that
a ref never points to files that a power failure could destroy. `sync=False` leaves syncing to the operating
system. The backup of a ref is a hard link if the file system supports it.

File names are percent-encoded as in the official library (object_store's rules). The name of a temporary file
is that of its target, followed by `#` and digits. Both libraries omit such files from listings.

Links. A folder below the root that is a symbolic link can be read and written, but nothing is deleted through
it, because the files behind it may belong to someone else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import numpy as np

from icefloe.config import StorageConcurrencySettings, StorageRetriesSettings, StorageSettings
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.base import (
    ALWAYS,
    LISTED_AT_ONCE,
    Always,
    Buffer,
    ConditionNotMetError,
    DeleteReport,
    ListedObjects,
    ObjectKind,
    ObjectNotFoundError,
    PutCondition,
    Storage,
    StorageObjectInfo,
    SweepReport,
    Unchanged,
    Version,
    check_path,
    check_range,
    make_range_error,
    make_too_short_error,
)
from icefloe.storage.local.keys import decode_key, encode_key
from icefloe.storage.local.lock import LOCK_FILE, lock_folder
from icefloe.storage.local.sync import Unsynced

R = TypeVar("R")

_MAX_UNSYNCED = 1024
_MAX_NAME_BYTES = 255  # in nearly every file system
_MAX_PATH_BYTES = 4096 - len("#18446744073709551615")  # Linux's PATH_MAX, minus a temporary suffix
_PLAIN_PATH = re.compile(r"[0-9A-Za-z_-]+(?:/[0-9A-Za-z_-]+)*")
_TEMPORARY_NAME = re.compile(r"#\d+$")
_OWN_TEMPORARY_NAME = re.compile(r"(.+)#\d{17,20}")
"""Matches the names that `_write_aside` creates. Earlier releases did not pad the number."""
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEDIES = {
    **dict.fromkeys(_FULL, "; free some space and try again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "; check the permissions and try again"),
}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}


class LocalStorage(Storage):
    """A storage in a local folder. The folder is created when the first object is written.

    Parameters
    ----------
    path
        The folder.
    settings
        Settings that override the defaults.
    sync
        True if commits sync the data to disk.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: StorageSettings | None = None,
        *,
        sync: bool = True,
        _unsynced: Unsynced | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._root = os.path.abspath(self._path)
        self._sync = sync
        self._unsynced = _unsynced or Unsynced()
        self._expendable = threading.local()
        super().__init__(settings)

    @property
    def answers_at_once(self) -> bool:
        # docstring inherited
        return True

    def default_settings(self) -> StorageSettings:
        # docstring inherited
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 4096),
            retries=StorageRetriesSettings(1, 0, 0),
            unsafe_use_conditional_update=False,
            unsafe_use_metadata=False,
        )

    def with_settings(self, settings: StorageSettings) -> Self:
        # docstring inherited
        return type(self)(self._root, settings, sync=self._sync, _unsynced=self._unsynced)

    def for_temporary_objects(self) -> Self:
        # docstring inherited
        return type(self)(self._root, self._settings, sync=False)

    def describe(self) -> Mapping[str, str]:
        # docstring inherited
        return {"type": "local filesystem", "path": self._path}

    @property
    def identity(self) -> str:
        # docstring inherited
        return f"local filesystem storage (path {self._root})"

    def fits(self, path: str) -> bool:
        # docstring inherited
        file = self._to_file_path(path)
        whole = len(os.fsencode(file)) < _MAX_PATH_BYTES
        return whole and all(len(os.fsencode(name)) <= _MAX_NAME_BYTES for name in file.split("/"))

    def prepare_for_creation(self) -> None:
        # docstring inherited
        with self._translate_errors(self._path, writing=True):
            if not os.path.isdir(self._root):
                self._make_folders(self._root)

    def get(self, path: str) -> tuple[bytes, Version]:
        # docstring inherited
        with self._translate_errors(path), open(self._to_file_path(path), "rb", buffering=0) as file:
            data = file.readall()
        return data, _version_of(data)

    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        # docstring inherited
        # Hot path: function calls and context managers would take as long as the system calls.
        if start < 0 or (stop is not None and stop < start):
            raise make_range_error(path, start, stop)
        try:
            descriptor = os.open(self._to_file_path(path), os.O_RDONLY)
            try:
                end = os.fstat(descriptor).st_size if stop is None else stop
                data = read_range(descriptor, start, end)
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise self._error(path, cause) from None
        if len(data) < end - start and stop is not None:
            raise make_too_short_error(path, start, end, len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        # docstring inherited
        parts = []
        with self._translate_errors(path), _open(self._to_file_path(path)) as descriptor:
            for start, stop in ranges:
                check_range(path, start, stop)
                data = read_range(descriptor, start, stop)
                if len(data) < stop - start:
                    raise make_too_short_error(path, start, stop, len(data))
                parts.append(data)
        return parts

    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        # docstring inherited
        with self._translate_errors(path), open(self._to_file_path(path), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            version = _version_of(file.readall())
        return _make_info(path, status), version

    def clock(self, written: str) -> datetime | None:
        # docstring inherited
        with self._translate_errors(written, writing=True):
            aside, descriptor = self._write_aside(self._to_file_path(written), b"")
            try:
                return datetime.fromtimestamp(os.fstat(descriptor).st_mtime, UTC)
            finally:
                os.close(descriptor)
                _remove(aside)

    def size_of(self, path: str) -> int:
        # docstring inherited
        with self._translate_errors(path):
            return os.stat(self._to_file_path(path)).st_size

    def exists(self, path: str) -> bool:
        # docstring inherited
        return os.path.isfile(self._to_file_path(path))

    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        # docstring inherited
        return (_make_info(key, status) for key, status in self._list_below(prefix))

    def list_columns(self, prefix: str = "") -> Iterator[ListedObjects]:
        # docstring inherited
        folder = prefix.strip("/")
        start = self._to_file_path(folder) if folder else self._root
        with self._translate_errors(folder or self._path):
            for part in _split_parts(_objects_in(start, f"{folder}/" if folder else "")):
                keys, sizes, times = part
                yield ListedObjects(keys, np.array(sizes, np.int64), np.array(times, np.int64) // 1000)

    def _list_below(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        folder = prefix.strip("/")
        start = self._to_file_path(folder) if folder else self._root
        with self._translate_errors(folder or self._path):
            yield from _walk(start, f"{folder}/" if folder else "")

    def put(
        self,
        path: str,
        data: Buffer,
        condition: PutCondition = ALWAYS,
        *,
        kind: ObjectKind = ObjectKind.METADATA,
        metadata: Mapping[str, str] | None = None,
    ) -> Version:
        # docstring inherited
        target = self._to_file_path(path)
        # Hot path: context managers would take as long as the system calls.
        try:
            if isinstance(condition, Always):
                self._write(target, data)
            else:
                self._write_if(path, target, data, condition)
        except OSError as cause:
            self._put_into_full(path, target, data, condition, cause)
        # Hashing would halve the speed of writing chunks, and chunks are never replaced.
        return Version(None) if kind is ObjectKind.CHUNK else _version_of(data)

    @contextlib.contextmanager
    def make_room(self, expendable: Callable[[], Iterator[str]]) -> Iterator[None]:
        # docstring inherited
        self._expendable.paths = _iterate_lazily(expendable)
        try:
            yield
        finally:
            self._expendable.paths = iter(())

    def _put_into_full(
        self, path: str, target: str, data: Buffer, condition: PutCondition, cause: OSError
    ) -> None:
        """Repeat a write that failed because the disk was full, and delete expendable objects to make room
        for it.

        The lock is held throughout, so that no other process starts to use an object that is being deleted.
        """
        try:
            if cause.errno not in _FULL:
                raise cause
            if isinstance(condition, Always):
                self._write_into_full_disk(lambda: self._write(target, data))
                return
            with lock_folder(os.path.dirname(target), sync=self._sync):
                _check_condition(path, target, condition)
                aside = self._write_into_full_disk(lambda: self._write_synced(target, data))
                try:
                    _put_in_place(path, aside, target, condition)
                except BaseException:
                    _remove(aside)
                    raise
        except OSError as error:
            raise self._error(path, error, writing=True) from None

    def _write_synced(self, target: str, data: Buffer) -> str:
        aside, descriptor = self._write_aside(target, data)
        try:
            if self._sync:
                self._unsynced.sync(descriptor)
        except BaseException:
            _remove(aside)
            raise
        finally:
            os.close(descriptor)
        return aside

    def _write_into_full_disk(self, write: Callable[[], R]) -> R:
        """Repeat a write, deleting one expendable object each time the disk is full."""
        while True:
            try:
                return write()
            except OSError as cause:
                path = next(getattr(self._expendable, "paths", iter(())), None)
                if cause.errno not in _FULL or path is None:
                    raise
                self.delete([path])

    def back_up(self, source: str, target: str, version: Version) -> None:
        # A hard link needs no copy. Objects are replaced and never modified, so the backup keeps its content.
        name = self._to_file_path(target)
        try:
            self._write_into_full_disk(lambda: self._link(self._to_file_path(source), name))
        except OSError as cause:
            if cause.errno not in _NO_HARD_LINKS:
                raise self._error(source, cause) from None
            self.copy(source, target, version)
            return
        if not _has_version(name, version):
            os.unlink(name)
            raise ConditionNotMetError(source, Unchanged(version))
        if self._sync:
            self._unsynced.add(name)

    def _link(self, file: str, name: str) -> None:
        try:
            os.link(file, name)
        except FileNotFoundError:
            self._make_folders(os.path.dirname(name))
            os.link(file, name)

    def _make_folders(self, folder: str) -> None:
        """Create a missing folder and its parents."""
        try:
            os.mkdir(folder)
        except FileNotFoundError:
            self._make_folders(os.path.dirname(folder))
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)  # retry once: some file systems report "not found" even if the parent exists
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        if self._sync:  # the process that created the folder may not have synced it yet
            self._unsynced.add_folder(os.path.dirname(folder))

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        # docstring inherited
        deleted, failed = 0, []
        checked: set[str] = set()
        for path in paths:
            try:
                file = self._to_file_path(path)
                self._check_no_link(os.path.dirname(file), checked)
                os.unlink(file)
            except FileNotFoundError:
                pass
            except OSError as cause:
                failed.append((path, self._error(path, cause, writing=True)))
                continue
            deleted += 1
        return DeleteReport(deleted, tuple(failed))

    def _check_no_link(self, folder: str, checked: set[str]) -> None:
        """Raise OSError if a folder below the root, or one of its parents, is a symbolic link."""
        if folder in checked or len(folder) <= len(self._root):
            return
        self._check_no_link(os.path.dirname(folder), checked)
        if os.path.islink(folder):
            raise OSError(
                errno.ELOOP,
                f"{folder} is a symbolic link, and files behind links are not deleted; delete them in their "
                "own folder, or mount that folder here",
            )
        checked.add(folder)

    def remove_empty_folder(self, folder: str) -> None:
        # docstring inherited
        with contextlib.suppress(OSError):
            os.rmdir(self._to_file_path(folder) if folder else self._root)

    def sync(self) -> None:
        # docstring inherited
        if self._sync:
            with self._translate_errors(self._path, writing=True):
                self._unsynced.sync()

    def sweep(
        self,
        older_than: datetime,
        folders: Sequence[str],
        is_own_path: Callable[[str], bool],
        *,
        dry_run: bool = False,
    ) -> SweepReport:
        # docstring inherited
        deleted: list[StorageObjectInfo] = []
        failed: list[tuple[str, StorageError]] = []
        for key, file in self._temporary_files(folders, is_own_path):
            try:
                status = os.lstat(file)
                if not stat.S_ISREG(status.st_mode) or status.st_mtime >= older_than.timestamp():
                    continue
                if not dry_run:
                    os.unlink(file)
            except FileNotFoundError:
                continue
            except OSError as cause:
                failed.append((key, self._error(key, cause, writing=True)))
                continue
            deleted.append(_make_info(key, status))
        return SweepReport(tuple(deleted), tuple(failed))

    def _temporary_files(
        self, folders: Sequence[str], is_own_path: Callable[[str], bool]
    ) -> Iterator[tuple[str, str]]:
        """Find the temporary files that this class has written. Yield the keys of their targets and their
        paths on disk.
        """
        found = [_list_without_links(self._root, "", deep=False)]
        found += [_list_without_links(f"{self._root}/{folder}", f"{folder}/") for folder in folders]
        for key, file in itertools.chain.from_iterable(found):
            match = _OWN_TEMPORARY_NAME.fullmatch(key)
            if match is not None and is_own_path(match[1]):
                yield key, file

    def _to_file_path(self, path: str) -> str:
        if _PLAIN_PATH.fullmatch(path):  # the case for nearly all paths: chunks and manifests
            return f"{self._root}/{path}"
        return f"{self._root}/{encode_key(check_path(path))}"

    def _write(self, target: str, data: Buffer) -> None:
        """Write a file unconditionally, and register it for a later sync."""
        aside, descriptor = self._write_aside(target, data)
        os.close(descriptor)
        try:
            os.replace(aside, target)
        except BaseException:
            _remove(aside)
            raise
        if self._sync and self._unsynced.add(target) > _MAX_UNSYNCED:
            self._unsynced.sync()

    def _write_if(self, path: str, target: str, data: Buffer, condition: PutCondition) -> None:
        """Write a file if a condition holds, after making all previous writes durable."""
        aside, descriptor = self._write_aside(target, data)
        try:
            if self._sync:
                self._unsynced.sync(descriptor)
            with lock_folder(os.path.dirname(target), sync=self._sync):
                _put_in_place(path, aside, target, condition)
        except BaseException:
            _remove(aside)
            raise
        finally:
            os.close(descriptor)

    def _write_aside(self, target: str, data: Buffer) -> tuple[str, int]:
        """Write a temporary file next to the target, and return its name and open descriptor."""
        aside = f"{target}#{int.from_bytes(os.urandom(8)):020d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(aside, flags, 0o666)
        except FileNotFoundError:
            self._make_folders(os.path.dirname(target))
            descriptor = os.open(aside, flags, 0o666)
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BaseException:
            os.close(descriptor)
            _remove(aside)
            raise
        return aside, descriptor

    @contextlib.contextmanager
    def _translate_errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """Convert operating system errors to icefloe errors."""
        try:
            yield
        except OSError as cause:
            raise self._error(path, cause, writing=writing) from None

    def _error(self, path: str, cause: OSError, *, writing: bool = False) -> StorageError:
        if isinstance(cause, _MISSING) and not writing:
            return ObjectNotFoundError(path)
        place = path if path == self._path else f"{self._path}/{path}"
        way = _REMEDIES.get(cause.errno or 0, "")
        return StorageError(f"{place}: {cause.strerror or cause}{way}", kind=ErrorKind.IO)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (type(self), self._root, self._settings, self._sync))


class PlainFolder(LocalStorage):
    """A local storage whose file names are the object names, without the percent-encoding used in
    repositories.
    """

    def _to_file_path(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"


def _list_without_links(folder: str, prefix: str, *, deep: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the keys and paths of all files in a folder and its subfolders. Links are neither followed nor
    included.
    """
    if deep and os.path.islink(folder):
        return
    try:
        entries = os.scandir(folder)
    except (*_MISSING, PermissionError):
        return
    with entries:
        for entry in entries:
            key = prefix + decode_key(entry.name)
            if entry.is_file(follow_symlinks=False):
                yield key, entry.path
            elif deep and entry.is_dir(follow_symlinks=False):
                yield from _list_without_links(entry.path, f"{key}/")


def _unpickle(cls: type[LocalStorage], root: str, settings: StorageSettings, sync: bool) -> LocalStorage:
    return cls(root, settings, sync=sync)


def _iterate_lazily(items: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Call a function only when its first item is requested."""
    yield from items()


def _check_condition(path: str, target: str, condition: PutCondition) -> None:
    if isinstance(condition, Unchanged):
        holds = _has_version(target, condition.version)
    else:
        holds = not os.path.exists(target)
    if not holds:
        raise ConditionNotMetError(path, condition)


def _put_in_place(path: str, aside: str, target: str, condition: PutCondition) -> None:
    """Rename a temporary file to its target name if the condition holds."""
    if isinstance(condition, Unchanged):
        if not _has_version(target, condition.version):
            raise ConditionNotMetError(path, condition)
        os.replace(aside, target)
        return
    try:
        # Unlike a rename, a hard link fails if the official library has created the object meanwhile.
        os.link(aside, target)
    except FileExistsError:
        raise ConditionNotMetError(path, condition) from None
    except OSError as cause:
        if cause.errno not in _NO_HARD_LINKS:
            raise
        if os.path.exists(target):
            raise ConditionNotMetError(path, condition) from None
        os.replace(aside, target)
    else:
        os.unlink(aside)


def _remove(aside: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(aside)


def _version_of(data: Buffer) -> Version:
    return Version(hashlib.sha256(data).hexdigest())


def _has_version(file: str, version: Version) -> bool:
    try:
        with open(file, "rb", buffering=0) as current:
            return _version_of(current.readall()) == version
    except FileNotFoundError:
        return False


def _walk(
    folder: str, prefix: str, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all objects in a folder and its subfolders. Links are followed, as in the official library.

    A link to one of its own parent folders is not followed. `above` contains the devices and inodes of these
    folders.
    """
    try:
        status = os.stat(folder)
    except _MISSING:
        return
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    folders: list[os.DirEntry[str]] = []
    yield from _objects_in(folder, prefix, folders)
    for entry in folders:
        yield from _walk(entry.path, f"{prefix}{decode_key(entry.name)}/", above | {here})


def _objects_in(
    folder: str, prefix: str, folders: list[os.DirEntry[str]] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the objects in one folder while reading it, because there may be millions. Subfolders are
    appended to `folders`.
    """
    try:
        entries = os.scandir(folder)
    except _MISSING:
        return
    with entries:
        for entry in entries:
            name = entry.name
            if name == LOCK_FILE or ("#" in name and _TEMPORARY_NAME.search(name)):
                continue
            try:
                if entry.is_file():  # reading a pipe or socket would wait forever
                    yield prefix + decode_key(name), entry.stat()
                elif folders is not None and entry.is_dir():
                    folders.append(entry)
            except OSError:
                if not entry.is_symlink() and os.path.lexists(entry.path):
                    raise
                # Deleted meanwhile, or a broken link.


def _split_parts(
    found: Iterator[tuple[str, os.stat_result]],
) -> Iterator[tuple[list[str], list[int], list[int]]]:
    """Yield the keys, sizes and times (in nanoseconds) of objects in parts of limited size."""
    while True:
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        for key, status in itertools.islice(found, LISTED_AT_ONCE):
            keys.append(key)
            sizes.append(status.st_size)
            times.append(status.st_mtime_ns)
        if not keys:
            return
        yield keys, sizes, times


def _make_info(key: str, status: os.stat_result) -> StorageObjectInfo:
    return StorageObjectInfo(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


@contextlib.contextmanager
def _open(file: str) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_range(descriptor: int, start: int, stop: int) -> bytes:
    """Read a byte range of a local file. Fewer bytes are returned if the file ends earlier."""
    data = os.pread(descriptor, stop - start, start)
    if len(data) < stop - start and data:  # the kernel returns at most 2 GiB at a time
        parts = [data]
        while data and sum(map(len, parts)) < stop - start:
            data = os.pread(descriptor, stop - start - sum(map(len, parts)), start + sum(map(len, parts)))
            parts.append(data)
        return b"".join(parts)
    return data
