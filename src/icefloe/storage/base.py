"""The storage interface: operations on named objects, including conditional writes.

Paths are relative to the root of the storage and use `/`. All operations block and are thread-safe. They
raise only icefloe errors: `ObjectNotFoundError`, `ConditionNotMetError`, `ReadOnlyError` for writes to a
read-only storage, and `StorageError` for all other failures.
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
"""The number of objects per part of a listing."""

_PLAIN_PATH = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]*(?:/[0-9A-Za-z_-][0-9A-Za-z_.-]*)*")


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a stored object: an opaque value, to be passed back in `Unchanged`."""

    e_tag: str | None
    """The etag of the object; None if the storage does not use etags."""
    generation: str | None = None
    """The generation number of the object; None if the storage does not use generations."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Write condition: write only if there is no object at the path."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Write condition: write only if the object still has the given version."""

    version: Version
    """The expected version."""


@dataclass(frozen=True, slots=True)
class Always:
    """Write condition: write unconditionally."""


PutCondition: TypeAlias = Absent | Unchanged | Always

ALWAYS = Always()
ABSENT = Absent()


class ObjectKind(Enum):
    """The kind of a stored object: metadata or chunk. The two kinds may have different storage classes."""

    METADATA = "metadata"
    CHUNK = "chunk"


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """An object in a storage listing."""

    key: str
    """The path of the object, relative to the root."""
    size_bytes: int
    """The size of the object."""
    created_at: datetime
    """The time of the last write."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedObjects:
    """One part of a storage listing, with the fields of `StorageObjectInfo` as columns."""

    keys: list[str]
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """The times of the last writes, in microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """The result of deleting objects from a storage: the number of deleted objects, and the failures."""

    deleted: int
    """The number of deleted objects, including those that did not exist."""
    failed: tuple[tuple[str, StorageError], ...] = ()
    """Paths and error messages of the objects that could not be deleted."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of sweeping a storage: the deleted temporary files, and the failures."""

    deleted: tuple[StorageObjectInfo, ...] = ()
    failed: tuple[tuple[str, StorageError], ...] = ()


class ObjectNotFoundError(StorageError):
    """Error raised when a storage has no object at a path.

    Parameters
    ----------
    path
        The path of the object.
    kind
        The error kind. Default: `object-not-found`.
    """

    def __init__(self, path: str, kind: str | None = None) -> None:
        super().__init__(f"object not found: {path}", kind or ErrorKind.OBJECT_NOT_FOUND)
        self.path = path
        self.args = (path, self.kind)


class BucketNotFoundError(StorageError):
    """Error raised when the bucket or container of a storage does not exist."""


class ConditionNotMetError(StorageError):
    """Error raised when the condition of a write does not hold, because another writer changed the object
    first.

    Parameters
    ----------
    path
        The path of the object.
    condition
        The condition that does not hold.
    """

    def __init__(self, path: str, condition: PutCondition = ABSENT) -> None:
        what = "already exists" if isinstance(condition, Absent) else "was changed by another writer"
        super().__init__(f"{path} {what}", ErrorKind.STORAGE_OTHER)
        self.path = path
        self.condition = condition
        self.args = (path, condition)


class Storage(ABC):
    """The storage of a repository. Create one with the `*_storage` functions or `storage_from_url`.

    Storages can be pickled. The pickle contains their credentials: send it to workers, but do not store it.
    The repr contains no secrets.

    Parameters
    ----------
    settings
        Settings that override the defaults of the back end.
    """

    # The official constructors. They are set by `factories` and `urls`, which know all storage classes.
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
        """True if the storage rejects writes."""
        return False

    @property
    def answers_at_once(self) -> bool:
        """True if reads do not use a network, so that parallel reads on threads would not pay off."""
        return False

    def default_settings(self) -> StorageSettings:
        """Return the default settings of this storage back end.

        Returns
        -------
        StorageSettings
            The settings.
        """
        return StorageSettings()

    @property
    def settings(self) -> EffectiveStorageSettings:
        """The effective settings: the defaults of the back end, overridden by the given settings."""
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
        """Return a storage that sends an attribution with its requests. Storages that do not send requests
        are returned unchanged.

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
        """Return a storage at the same location for temporary objects, whose writes need not be durable.

        Returns
        -------
        Storage
            The storage.
        """
        return self

    def prepare_for_creation(self) -> None:
        """Check that a repository can be created here, and create the folder if it does not exist.

        Raises
        ------
        ReadOnlyError
            If the storage is read-only.
        InvalidInputError
            If the location is the root of a bucket.
        """
        self.check_writable()

    def require_conditional_writes(self) -> None:  # noqa: B027 - most places need nothing
        """Check that the storage honours write conditions, before a ref is moved.

        Raises
        ------
        StorageError
            If it ignores write conditions.
        """

    def fits(self, path: str) -> bool:
        """Return False if an object path is known to be too long for this storage.

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
            Values by name. The first name is `type`.
        """

    @property
    def place(self) -> str:
        """The type and the location of the storage in one line, without secrets."""
        kind, *rest = self.describe().items()
        where = ", ".join(f"{name} {value}" for name, value in rest)
        return f"{kind[1]} storage ({where})" if where else f"{kind[1]} storage"

    @property
    def identity(self) -> str:
        """A text that identifies the location. It is equal for all handles and pickled copies, and contains
        no secrets.
        """
        return self.place

    @property
    def copy_id(self) -> str:
        """A text that differs between copies that do not share objects, such as a memory storage and its
        pickled copy.
        """
        return ""

    # Reading

    @abstractmethod
    def get(self, path: str) -> tuple[bytes, Version]:
        """Read a whole object.

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
        """Read an object, unless it still has the given version.

        Parameters
        ----------
        path
            The path of the object.
        version
            The version that the caller already has.

        Returns
        -------
        data, version or None
            The bytes and their version; None if the version is still current.
        """
        data, current = self.get(path)
        return None if current == version else (data, current)

    @abstractmethod
    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        """Read a byte range of an object. Long ranges are read in parallel where that is faster.

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
            If the object ends before `stop` (kind `invalid-object-size`).
        """

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Read several byte ranges of one object.

        Parameters
        ----------
        path
            The path of the object.
        ranges
            Pairs of start and stop offsets in bytes.

        Returns
        -------
        sequence of bytes
            The bytes of each range, in order.
        """
        return [self.get_range(path, start, stop) for start, stop in ranges]

    @abstractmethod
    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        """Return the size, time and version of an object.

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
        """Return the size of an object in bytes.

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
        """Return True if there is an object at a path.

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
        """Return the current time of the storage's own clock.

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
        """List all objects in a folder, including subfolders, in no particular order.

        Objects that are written or deleted during the listing may or may not be included.

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
        """List the objects in a folder as columns, in parts that fit into memory.

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
        """Write a whole object atomically. Readers see either the old or the new content, never part of it.

        When a conditional write returns, it and all earlier writes of this storage are durable.

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
            Object metadata, for storages that support it.

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
        """Copy an object to another path before it is replaced. The backup may keep the time of the original.

        Parameters
        ----------
        source
            The path of the object.
        target
            The path of the backup.
        version
            The version to back up.

        Raises
        ------
        ConditionNotMetError
            If the source has another version.
        """
        self.copy(source, target, version)

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> DeleteReport:
        """Delete objects. Objects that do not exist count as deleted.

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
        """Let writes by this thread delete expendable objects, one by one, when the disk is full.

        Parameters
        ----------
        expendable
            A function that returns the paths of expendable objects, in the order in which to delete them.
            Called when the disk is full.

        Returns
        -------
        context manager
            The scope in which writes may delete objects.
        """
        return nullcontext()

    def remove_empty_folder(self, folder: str) -> None:  # noqa: B027
        """Remove an empty folder, if the storage has folders.

        Parameters
        ----------
        folder
            The folder; "" for the root.
        """

    def sync(self) -> None:  # noqa: B027
        """Make all previous writes durable. Writers call this method if another process moves the ref."""

    def sweep(
        self,
        older_than: datetime,
        folders: Sequence[str],
        is_own_path: Callable[[str], bool],
        *,
        dry_run: bool = False,
    ) -> SweepReport:
        """Delete temporary files that killed writers left behind. Listings do not contain them.

        Parameters
        ----------
        older_than
            Keep files that were written at this time or later.
        folders
            The folders to search, including their subfolders. The root itself is always searched.
        is_own_path
            A function that returns True if a path belongs to the caller. Temporary files of other paths are
            kept.
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
        """List the keys and sizes of all objects below a prefix.

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
        """List the keys, sizes and times of all objects below a prefix.

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
            If the storage is read-only.
        """
        if self.read_only:
            raise ReadOnlyError(
                f"{self.describe()['type']} storage is read-only", kind=ErrorKind.READ_ONLY_STORAGE
            )


def split_range(start: int, stop: int, settings: EffectiveStorageSettings) -> list[tuple[int, int]]:
    """Split a byte range into equal parts of about the ideal request size, to read them in parallel."""
    wanted = -(-(stop - start) // settings.ideal_concurrent_request_size)
    count = max(min(settings.max_concurrent_requests_for_object, wanted), 1)
    return list(pairwise(start + (stop - start) * i // count for i in range(count + 1)))


def accepts(storage: Storage, path: str, data: bytes, condition: PutCondition) -> bool:
    """Write an object conditionally. Return True if the write succeeded, False if the condition did not
    hold.
    """
    try:
        storage.put(path, data, condition)
    except ConditionNotMetError:
        return False
    return True


def check_path(path: str) -> str:
    """Return an object path unchanged if it is below the root of the storage; raise InvalidInputError
    otherwise.
    """
    if _PLAIN_PATH.fullmatch(path):
        return path  # nearly all paths
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
    """Return the error for a negative or inverted byte range."""
    return InvalidInputError(
        f"invalid byte range {start}..{stop} of {path}", kind=ErrorKind.INVALID_BYTE_RANGE
    )


def make_too_short_error(path: str, start: int, stop: int, got: int) -> StorageError:
    """Return the error for an object that ends inside a requested byte range."""
    return StorageError(
        f"{path}: requested bytes {start} to {stop}, got only {got}", kind=ErrorKind.INVALID_OBJECT_SIZE
    )
