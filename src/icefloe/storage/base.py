"""The interface of storages: operations on named objects, and conditional writes.

Paths are relative to the root of the storage and use `/`. All operations block, and may be called from many
threads. They raise only errors of icefloe: `ObjectNotFoundError`, `ConditionNotMetError`, `ReadOnlyError` for
writes to a read-only storage, and `StorageError` for all other failures.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice, pairwise
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.times import to_microseconds
from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.config.display import Tree, qualify_name
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, StorageError

Buffer: TypeAlias = bytes | bytearray | memoryview

LISTED_AT_ONCE: Final = 1_000
"""The number of objects in one part of a listing."""

_PLAIN_PATH = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]*(?:/[0-9A-Za-z_-][0-9A-Za-z_.-]*)*")


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object in any storage: an opaque value, to be passed back in `Unchanged`."""

    e_tag: str | None
    """The etag of the object; None if the storage has none."""
    generation: str | None = None
    """The generation of the object, in stores that number them."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A condition for a write to a storage: only if there is no object at the path."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A condition for a write to a storage: only if the object still has this version."""

    version: Version
    """The expected version."""


@dataclass(frozen=True, slots=True)
class Always:
    """The absence of a condition for a write to a storage."""


PutCondition: TypeAlias = Absent | Unchanged | Always

ALWAYS = Always()
ABSENT = Absent()


class ObjectKind(Enum):
    """The kind of an object in a storage: metadata or chunk, which may have different storage classes."""

    METADATA = "metadata"
    CHUNK = "chunk"


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """An object in the listing of a storage. `created_at` is the time of the last write."""

    key: str
    """The path of the object, relative to the root."""
    size_bytes: int
    """The size of the object."""
    created_at: datetime
    """The time of the last write."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedObjects:
    """A part of a storage listing in columns, with the content of `StorageObjectInfo`."""

    keys: list[str]
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """Microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """The result of deleting objects from a storage: their number, and the errors of those that remain."""

    deleted: int
    """The number of deleted objects, including those that did not exist."""
    failed: tuple[tuple[str, StorageError], ...] = ()
    """Paths and errors of the other objects."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of sweeping a storage: the deleted temporary files, and the errors of those that remain."""

    deleted: tuple[StorageObjectInfo, ...] = ()
    failed: tuple[tuple[str, StorageError], ...] = ()


class ObjectNotFoundError(StorageError):
    """Error raised when a storage has no object at a path.

    Parameters
    ----------
    path
        The path of the object.
    kind
        The kind of the error, if it is not `object-not-found`.
    """

    def __init__(self, path: str, kind: str | None = None) -> None:
        super().__init__(f"object not found: {path}", kind or ErrorKind.OBJECT_NOT_FOUND)
        self.path = path
        self.args = (path, self.kind)


class BucketNotFoundError(StorageError):
    """Error raised when the bucket or container of a storage does not exist."""


class ConditionNotMetError(StorageError):
    """Error raised when a conditional write fails because another writer changed the object first.

    Parameters
    ----------
    path
        The path of the object.
    condition
        The condition.
    """

    def __init__(self, path: str, condition: PutCondition = ABSENT) -> None:
        what = "already exists" if isinstance(condition, Absent) else "was changed by another writer"
        super().__init__(f"{path} {what}", ErrorKind.STORAGE_OTHER)
        self.path = path
        self.condition = condition
        self.args = (path, condition)


class Storage(ABC):
    """A storage: the location of a repository. Create one with the `*_storage` functions or
    `storage_from_url`.

    Storages can be pickled. The pickle contains their credentials: send it to workers, but do not store it.
    The repr contains no secrets.

    Parameters
    ----------
    settings
        Settings that override the defaults of the back end.
    """

    # The official constructors. They are set by `factories` and `urls`, which know all storages.
    if TYPE_CHECKING:
        new_in_memory: ClassVar[Callable[..., Storage]]
        new_local_filesystem: ClassVar[Callable[..., Storage]]
        new_s3: ClassVar[Callable[..., Storage]]
        new_s3_object_store: ClassVar[Callable[..., Storage]]
        new_tigris: ClassVar[Callable[..., Storage]]
        new_r2: ClassVar[Callable[..., Storage]]
        new_hf: ClassVar[Callable[..., Storage]]
        new_gcs: ClassVar[Callable[..., Storage]]
        new_azure_blob: ClassVar[Callable[..., Storage]]
        new_http: ClassVar[Callable[..., Storage]]
        new_redirect: ClassVar[Callable[..., Storage]]

    def __init__(self, settings: StorageSettings | None = None) -> None:
        self._settings = self.default_settings().merge(settings or StorageSettings())
        self._effective = self._settings.effective()

    # Properties

    @property
    def read_only(self) -> bool:
        """True if writes to this storage raise an error."""
        return False

    @property
    def answers_at_once(self) -> bool:
        """True if reads from this storage do not wait for a network, so that threads would not pay off."""
        return False

    def default_settings(self) -> StorageSettings:
        """Return the default settings of this kind of storage.

        Returns
        -------
        StorageSettings
            The settings.
        """
        return StorageSettings()

    @property
    def settings(self) -> EffectiveStorageSettings:
        """The effective settings of this storage."""
        return self._effective

    @abstractmethod
    def with_settings(self, settings: StorageSettings) -> Self:
        """Return a storage at the same location with different settings.

        Parameters
        ----------
        settings
            Settings that override the defaults of the back end.

        Returns
        -------
        Storage
            The storage.
        """

    def with_attribution(self, attribution: Attribution) -> Self:
        """Return a storage whose requests carry an attribution. Storages without requests are returned
        unchanged.

        Parameters
        ----------
        attribution
            The software, workload and principal to name.

        Returns
        -------
        Storage
            The storage.
        """
        return self

    def for_temporary_objects(self) -> Self:
        """Return a storage at the same location for temporary objects, which do not have to be written
        durably.

        Returns
        -------
        Storage
            The storage.
        """
        return self

    def prepare_for_creation(self) -> None:
        """Check that a repository can be created here. A missing folder is created.

        Raises
        ------
        ReadOnlyError
            If the storage is read-only.
        InvalidInputError
            If the location is the root of a bucket.
        """
        self.check_writable()

    def require_conditional_writes(self) -> None:  # noqa: B027 - most places need nothing
        """Check, before a ref moves, that the storage honours the conditions of writes.

        Raises
        ------
        StorageError
            If it ignores them.
        """

    def fits(self, path: str) -> bool:
        """Return True if the path of an object is short enough for this storage, as far as is known.

        Parameters
        ----------
        path
            The path.

        Returns
        -------
        bool
            False if the path is too long.
        """
        return True

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Describe the type and the location of the storage, without secrets.

        Returns
        -------
        mapping
            Names and values; the first is `type`.
        """

    @property
    def place(self) -> str:
        """The type and the location of the storage in one line, without secrets."""
        kind, *rest = self.describe().items()
        where = ", ".join(f"{name} {value}" for name, value in rest)
        return f"{kind[1]} storage ({where})" if where else f"{kind[1]} storage"

    @property
    def identity(self) -> str:
        """A text that identifies the location, equal for all handles and pickled copies, without secrets."""
        return self.place

    @property
    def copy_id(self) -> str:
        """A text that differs for copies that do not share their objects, such as pickled memory storages."""
        return ""

    # Reading

    @abstractmethod
    def get(self, path: str) -> tuple[bytes, Version]:
        """Read an object from the storage.

        Parameters
        ----------
        path
            The path of the object.

        Returns
        -------
        data, version
            The bytes and their version.
        """

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        """Read an object from the storage unless it still has a known version.

        Parameters
        ----------
        path
            The path of the object.
        version
            The known version.

        Returns
        -------
        data, version or None
            The bytes and their version; None if the version is still current.
        """
        data, current = self.get(path)
        return None if current == version else (data, current)

    @abstractmethod
    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        """Read a byte range of an object in the storage. Long ranges are read in parallel where that is
        faster.

        Parameters
        ----------
        path
            The path of the object.
        start
            The first byte.
        stop
            The byte after the last; None for the end of the object.

        Returns
        -------
        bytes
            The bytes.

        Raises
        ------
        StorageError
            With the kind `invalid-object-size`, if the object ends before `stop`.
        """

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Read several byte ranges of one object in the storage.

        Parameters
        ----------
        path
            The path of the object.
        ranges
            Pairs of the first byte and the byte after the last.

        Returns
        -------
        sequence of bytes
            The bytes of each range, in order.
        """
        return [self.get_range(path, start, stop) for start, stop in ranges]

    @abstractmethod
    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        """Return size, time and version of an object in the storage.

        Parameters
        ----------
        path
            The path of the object.

        Returns
        -------
        info, version
            The entry of a listing, and the version.
        """

    def size_of(self, path: str) -> int:
        """Return the size of an object in the storage, in bytes.

        Parameters
        ----------
        path
            The path of the object.

        Returns
        -------
        int
            The number of bytes.
        """
        return self.head(path)[0].size_bytes

    def exists(self, path: str) -> bool:
        """Return True if the storage has an object at a path.

        Parameters
        ----------
        path
            The path.

        Returns
        -------
        bool
            True if there is one.
        """
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        return True

    def clock(self, written: str) -> datetime | None:
        """Return the time of the storage's own clock.

        Parameters
        ----------
        written
            An object that was just written.

        Returns
        -------
        datetime or None
            The time; None if the storage has no clock of its own.
        """
        return None

    @abstractmethod
    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        """List all objects of the storage in a folder and below, in no particular order.

        Objects that are written or deleted during the listing may be included or not.

        Parameters
        ----------
        prefix
            The folder; "" for the root.

        Returns
        -------
        iterator of StorageObjectInfo
            The objects, with keys relative to the root.
        """

    def list_columns(self, prefix: str = "") -> Iterator[ListedObjects]:
        """List the objects in a folder of the storage as columns, in parts that fit into memory.

        Objects in subfolders may be included.

        Parameters
        ----------
        prefix
            The folder; "" for the root.

        Yields
        ------
        ListedObjects
            A part of the listing.
        """
        found = self.list_prefix(prefix)
        while part := list(islice(found, LISTED_AT_ONCE)):
            yield ListedObjects(
                [info.key for info in part],
                np.array([info.size_bytes for info in part], np.int64),
                np.array([to_microseconds(info.created_at) for info in part], np.int64),
            )

    # Writing

    @abstractmethod
    def put(
        self,
        path: str,
        data: Buffer,
        condition: PutCondition = ALWAYS,
        *,
        kind: ObjectKind = ObjectKind.METADATA,
        metadata: Mapping[str, str] | None = None,
    ) -> Version:
        """Write a whole object to the storage atomically. Readers see the old or the new content, never a
        part.

        When a conditional write returns, this write and all earlier writes of this storage are durable.

        Parameters
        ----------
        path
            The path of the object.
        data
            The content.
        condition
            The condition under which to write.
        kind
            Whether the object is a chunk or metadata.
        metadata
            Metadata of the object, for storages that support it.

        Returns
        -------
        Version
            The version that was written.

        Raises
        ------
        ConditionNotMetError
            If the condition does not hold.
        """

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        """Copy an object within the storage.

        Parameters
        ----------
        source
            The path of the object.
        target
            The path of the copy.
        version
            Copy only if the source still has this version.

        Raises
        ------
        ConditionNotMetError
            If the source has another version.
        """
        data, current = self.get(source)
        if version is not None and version != current:
            raise ConditionNotMetError(source, Unchanged(version))
        self.put(target, data)

    def back_up(self, source: str, target: str, version: Version) -> None:
        """Copy an object to another path before it is replaced. The backup may keep the original's time.

        Parameters
        ----------
        source
            The path of the object.
        target
            The path of the backup.
        version
            The version to keep.

        Raises
        ------
        ConditionNotMetError
            If the source has another version.
        """
        self.copy(source, target, version)

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> DeleteReport:
        """Delete objects from the storage. Objects that do not exist count as deleted.

        Parameters
        ----------
        paths
            The paths of the objects.

        Returns
        -------
        DeleteReport
            The number of deleted objects, and the failures.
        """

    def make_room(self, expendable: Callable[[], Iterator[str]]) -> AbstractContextManager[None]:
        """Let writes of this thread to the storage delete expendable objects, one by one, when the disk is
        full.

        Parameters
        ----------
        expendable
            Returns the paths of the objects in the order in which to delete them. Called when the disk is
            full.

        Returns
        -------
        context manager
            The scope in which writes may delete objects.
        """
        return nullcontext()

    def remove_empty_folder(self, folder: str) -> None:  # noqa: B027
        """Remove a folder without objects from the storage, if it has folders.

        Parameters
        ----------
        folder
            The folder; "" for the root.
        """

    def sync(self) -> None:  # noqa: B027
        """Make all previous writes to the storage durable. Writers call this if another process moves the
        ref."""

    def sweep(
        self,
        older_than: datetime,
        folders: Sequence[str],
        is_own_path: Callable[[str], bool],
        *,
        dry_run: bool = False,
    ) -> SweepReport:
        """Delete temporary files that killed writers left in the storage. Listings do not contain them.

        Parameters
        ----------
        older_than
            Keep files that were written at this time or later.
        folders
            The folders to search, including their subfolders. The root itself is always searched.
        is_own_path
            Returns whether a path belongs to the caller. Temporary files for other paths are kept.
        dry_run
            Find the files, but delete nothing.

        Returns
        -------
        SweepReport
            The deleted files, and the failures.
        """
        return SweepReport()

    # The official methods

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """List keys and sizes of the objects below a prefix of the storage.

        Parameters
        ----------
        settings
            Settings for this call.
        prefix
            The prefix. Keys are relative to it.

        Returns
        -------
        list of tuple
            The key and the size in bytes of each object.
        """
        return [(info.key, info.size_bytes) for info in self.list_objects_metadata(settings, prefix)]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """List keys, sizes and times of the objects below a prefix of the storage.

        Parameters
        ----------
        settings
            Settings for this call.
        prefix
            The prefix. Keys are relative to it.

        Returns
        -------
        list of StorageObjectInfo
            The objects.
        """
        storage = self if settings is None else self.with_settings(settings)
        folder = f"{prefix.strip('/')}/" if prefix and prefix.strip("/") else ""
        return [
            dataclasses.replace(info, key=info.key.removeprefix(folder))
            for info in storage.list_prefix(folder)
        ]

    def tree(self) -> Tree:
        """Return the storage as a tree for display.

        Returns
        -------
        Tree
            The type and the location.
        """
        return Tree(qualify_name("", "Storage"), tuple(self.describe().items()))

    def __repr__(self) -> str:
        return f"{self.tree().as_text()}\n"  # the last line of the official repr

    def _repr_html_(self) -> str:
        return self.tree().as_html()

    def check_writable(self) -> None:
        """Check that the storage accepts writes.

        Raises
        ------
        ReadOnlyError
            If it is read-only.
        """
        if self.read_only:
            raise ReadOnlyError(
                f"{self.describe()['type']} storage is read-only", kind=ErrorKind.READ_ONLY_STORAGE
            )


def split_range(start: int, stop: int, settings: EffectiveStorageSettings) -> list[tuple[int, int]]:
    """Split a byte range of an object into equal parts of about the ideal size, to read them in parallel."""
    wanted = -(-(stop - start) // settings.ideal_concurrent_request_size)
    count = max(min(settings.max_concurrent_requests_for_object, wanted), 1)
    return list(pairwise(start + (stop - start) * i // count for i in range(count + 1)))


def accepts(storage: Storage, path: str, data: bytes, condition: PutCondition) -> bool:
    """Write an object conditionally, and return whether the storage accepted the condition."""
    try:
        storage.put(path, data, condition)
    except ConditionNotMetError:
        return False
    return True


def check_path(path: str) -> str:
    """Return the path of an object if it is below the root of the storage; raise InvalidInputError
    otherwise."""
    if _PLAIN_PATH.fullmatch(path):
        return path  # nearly all
    if not path or path != path.strip("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(f"invalid object path {path!r}", kind=ErrorKind.INVALID_PATH)
    if "\0" in path:
        raise InvalidInputError(f"invalid object path {path!r}", kind=ErrorKind.INVALID_PATH)
    return path


def check_range(path: str, start: int, stop: int | None) -> None:
    """Raise InvalidInputError if a byte range of an object is negative or inverted."""
    if start < 0 or (stop is not None and stop < start):
        raise make_range_error(path, start, stop)


def make_range_error(path: str, start: int, stop: int | None) -> InvalidInputError:
    """Return the error for a byte range of an object that is negative or inverted."""
    return InvalidInputError(
        f"invalid byte range {start}..{stop} of {path}", kind=ErrorKind.INVALID_BYTE_RANGE
    )


def make_too_short_error(path: str, start: int, stop: int, got: int) -> StorageError:
    """Return the error for an object that ends inside a requested byte range."""
    return StorageError(
        f"{path}: requested bytes {start} to {stop}, got only {got}", kind=ErrorKind.INVALID_OBJECT_SIZE
    )
