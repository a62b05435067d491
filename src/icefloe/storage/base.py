"""What every storage can do: a few verbs on named objects, and writes that hold only under a condition.

Paths are `/`-separated and relative to the root of the storage. All verbs block; all may be called from many
threads. They raise errors of ours only: `ObjectNotFoundError`, `ConditionNotMetError`, `StorageError` for
anything that went wrong in between, `ReadOnlyError` for writes to a place that takes none.
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
from icefloe.config.display import Tree, qualified
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, StorageError

Buffer: TypeAlias = bytes | bytearray | memoryview

LISTED_AT_ONCE: Final = 1_000
"""Objects in a part of a listing."""

_PLAIN_PATH = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]*(?:/[0-9A-Za-z_-][0-9A-Za-z_.-]*)*")


@dataclass(frozen=True, slots=True)
class Version:
    """Which content of an object was seen: opaque, to hand back in `Unchanged`."""

    e_tag: str | None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """Write only if there is no object at this path."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Write only if the object still has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Always:
    """Write in any case."""


PutCondition: TypeAlias = Absent | Unchanged | Always

ALWAYS = Always()
ABSENT = Absent()


class ObjectKind(Enum):
    """What an object is, for storages that keep metadata and chunks in different classes."""

    METADATA = "metadata"
    CHUNK = "chunk"


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """What a listing tells about an object. The time is that of the last write."""

    key: str
    size_bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class ListedObjects:
    """A part of a listing in columns: what `StorageObjectInfo` tells of one object."""

    keys: list[str]
    sizes: NDArray[np.int64]
    times_us: NDArray[np.int64]
    """Microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """How many objects are gone, and which ones could not be deleted, with the reason."""

    deleted: int
    failed: tuple[tuple[str, StorageError], ...] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The temporary files that were deleted, and those that could not be, with the reason."""

    deleted: tuple[StorageObjectInfo, ...] = ()
    failed: tuple[tuple[str, StorageError], ...] = ()


class ObjectNotFoundError(StorageError):
    """There is no object at this path."""

    def __init__(self, path: str, kind: str | None = None) -> None:
        super().__init__(f"object not found: {path}", kind or ErrorKind.OBJECT_NOT_FOUND)
        self.path = path
        self.args = (path, self.kind)


class BucketNotFoundError(StorageError):
    """There is no bucket or container to look for objects in."""


class ConditionNotMetError(StorageError):
    """Somebody else wrote the object first; nothing was written."""

    def __init__(self, path: str, condition: PutCondition = ABSENT) -> None:
        what = "already exists" if isinstance(condition, Absent) else "was changed by another writer"
        super().__init__(f"{path} {what}", ErrorKind.STORAGE_OTHER)
        self.path = path
        self.condition = condition
        self.args = (path, condition)


class Storage(ABC):
    """A place for a repository. Make one with the `*_storage` functions or `storage_from_url`.

    Pickles, with its credentials in it: send it to workers, do not keep it in files. Its repr shows none.
    """

    # The official constructors. The modules `factories` and `urls`, which know all storages, set them.
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

    # What it is

    @property
    def read_only(self) -> bool:
        """Whether every write is refused."""
        return False

    @property
    def answers_at_once(self) -> bool:
        """Whether reads wait for no network, so that a thread for each would cost more than it saves."""
        return False

    def default_settings(self) -> StorageSettings:
        """The settings of this kind of storage, to which given ones are added."""
        return StorageSettings()

    @property
    def settings(self) -> EffectiveStorageSettings:
        """The settings this storage works by."""
        return self._effective

    @abstractmethod
    def with_settings(self, settings: StorageSettings) -> Self:
        """The same place, worked by other settings: the defaults, with these over them."""

    def with_attribution(self, attribution: Attribution) -> Self:
        """The same place, whose requests say who sends them; a place without requests stays as it is."""
        return self

    def for_a_while(self) -> Self:
        """The same place for objects that are soon deleted: writes to it are never waited for at the disk."""
        return self

    def prepare_for_creation(self) -> None:
        """Make sure a repository can be made here; a folder is created if needed.

        Raises ReadOnlyError, or InvalidInputError for the bare root of a bucket.
        """
        self.check_writable()

    def require_conditional_writes(self) -> None:  # noqa: B027 - most places need nothing
        """Make sure, before a ref moves, that conditions hold here; raises StorageError where they do not."""

    def fits(self, path: str) -> bool:
        """Whether an object's path is not too long for this place, as far as that is known beforehand."""
        return True

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """What it is and where, without secrets: `type` first."""

    @property
    def place(self) -> str:
        """What it is and where, in one line without secrets."""
        kind, *rest = self.describe().items()
        where = ", ".join(f"{name} {value}" for name, value in rest)
        return f"{kind[1]} storage ({where})" if where else f"{kind[1]} storage"

    @property
    def identity(self) -> str:
        """The same for all that look at one place, and for copies of it that were pickled; no secrets."""
        return self.place

    @property
    def copy_id(self) -> str:
        """Another for each copy that shares nothing with the original; of most places there are none."""
        return ""

    # Reading

    @abstractmethod
    def get(self, path: str) -> tuple[bytes, Version]:
        """The whole object and its version."""

    def get_if_changed(self, path: str, version: Version) -> tuple[bytes, Version] | None:
        """The whole object and its version, or None if that version is still the current one."""
        data, current = self.get(path)
        return None if current == version else (data, current)

    @abstractmethod
    def get_range(self, path: str, start: int, stop: int | None) -> bytes:
        """Bytes from `start` up to `stop`, or to the end if that is None, without asking for the version.

        An object that ends before `stop` is an error of kind `invalid-object-size`. Long ranges are read in
        parallel where that helps.
        """

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Several ranges of one object, in order."""
        return [self.get_range(path, start, stop) for start, stop in ranges]

    @abstractmethod
    def head(self, path: str) -> tuple[StorageObjectInfo, Version]:
        """What a listing tells about the object, and its version."""

    def size_of(self, path: str) -> int:
        """Return the size of an object in bytes, without reading it."""
        return self.head(path)[0].size_bytes

    def exists(self, path: str) -> bool:
        """Whether there is an object at this path."""
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        return True

    def clock(self, written: str) -> datetime | None:
        """Give the storage's own time, as of an object that was just written; None where it has none."""
        return None

    @abstractmethod
    def list_prefix(self, prefix: str = "") -> Iterator[StorageObjectInfo]:
        """All objects in a folder and below, in no particular order; keys start at the root.

        What is written or deleted while this is read may be among them or not.
        """

    def list_columns(self, prefix: str = "") -> Iterator[ListedObjects]:
        """List the objects directly in a folder as columns, part by part: they may be more than memory holds.

        Objects in folders below may be among them.
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
        """Write a whole object, all or nothing; raises ConditionNotMetError if the condition does not hold.

        A reader sees the old or the new content, never a part. When this returns from a conditional write,
        that write and all earlier ones of this storage are durable. `metadata` is kept where objects have
        such a thing and dropped elsewhere.
        """

    def copy(self, source: str, target: str, version: Version | None = None) -> None:
        """Copy an object within the storage; with a version only if the source still has it."""
        data, current = self.get(source)
        if version is not None and version != current:
            raise ConditionNotMetError(source, Unchanged(version))
        self.put(target, data)

    def back_up(self, source: str, target: str, version: Version) -> None:
        """Keep an object under another name before it is replaced, if it still has a version.

        Unlike a copy it may be as old as the original.
        """
        self.copy(source, target, version)

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> DeleteReport:
        """Delete objects; those that do not exist count as deleted."""

    def making_room(self, expendable: Callable[[], Iterator[str]]) -> AbstractContextManager[None]:
        """Let writes of this thread that find the disk full delete objects, one by one, until they fit.

        Parameters
        ----------
        expendable
            Gives the paths of the objects, those to delete first in front. Called when the disk is full.
        """
        return nullcontext()

    def remove_empty_folder(self, folder: str) -> None:  # noqa: B027
        """Remove a folder that holds nothing any more, where there are some; "" is the one of them all."""

    def sync(self) -> None:  # noqa: B027
        """Make all writes so far durable, for one who writes objects while another moves the ref."""

    def sweep(
        self,
        older_than: datetime,
        folders: Sequence[str],
        is_own_path: Callable[[str], bool],
        *,
        dry_run: bool = False,
    ) -> SweepReport:
        """Delete temporary files that killed writers left behind, which no listing shows.

        Parameters
        ----------
        older_than
            Keep files that were written at this time or later.
        folders
            The folders to look in, with the folders below them. The root itself is also looked in.
        is_own_path
            Tells whether a path is one of the caller's objects. Temporary files for other paths are kept.
        dry_run
            Find the files, but delete nothing.
        """
        return SweepReport()

    # The official methods

    def list_objects(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """Key and size in bytes of every object under `prefix`; keys are relative to it."""
        return [(info.key, info.size_bytes) for info in self.list_objects_metadata(settings, prefix)]

    def list_objects_metadata(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """Key, size and time of every object under `prefix`; keys are relative to it."""
        storage = self if settings is None else self.with_settings(settings)
        folder = f"{prefix.strip('/')}/" if prefix and prefix.strip("/") else ""
        return [
            dataclasses.replace(info, key=info.key.removeprefix(folder))
            for info in storage.list_prefix(folder)
        ]

    def tree(self) -> Tree:
        """The storage, to show."""
        return Tree(qualified("", "Storage"), tuple(self.describe().items()))

    def __repr__(self) -> str:
        return f"{self.tree().as_text()}\n"  # as the official one ends

    def _repr_html_(self) -> str:
        return self.tree().as_html()

    def check_writable(self) -> None:
        """Raise ReadOnlyError if this place takes no writes."""
        if self.read_only:
            raise ReadOnlyError(
                f"{self.describe()['type']} storage is read-only", kind=ErrorKind.READ_ONLY_STORAGE
            )


def split_range(start: int, stop: int, settings: EffectiveStorageSettings) -> list[tuple[int, int]]:
    """Split a byte range into equal parts of about the ideal size, at most as many as may run in parallel."""
    wanted = -(-(stop - start) // settings.ideal_concurrent_request_size)
    count = max(min(settings.max_concurrent_requests_for_object, wanted), 1)
    return list(pairwise(start + (stop - start) * i // count for i in range(count + 1)))


def accepts(storage: Storage, path: str, data: bytes, condition: PutCondition) -> bool:
    """Write an object, and return whether the storage accepted the condition."""
    try:
        storage.put(path, data, condition)
    except ConditionNotMetError:
        return False
    return True


def checked_path(path: str) -> str:
    """The path itself; raises InvalidInputError unless it names an object below the root."""
    if _PLAIN_PATH.fullmatch(path):
        return path  # nearly all
    if not path or path != path.strip("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(f"invalid object path {path!r}", kind=ErrorKind.INVALID_PATH)
    if "\0" in path:
        raise InvalidInputError(f"invalid object path {path!r}", kind=ErrorKind.INVALID_PATH)
    return path


def checked_range(path: str, start: int, stop: int | None) -> None:
    """Raise InvalidInputError for a range that is negative or inverted."""
    if start < 0 or (stop is not None and stop < start):
        raise invalid_range(path, start, stop)


def invalid_range(path: str, start: int, stop: int | None) -> InvalidInputError:
    """Describe a range that is negative or inverted."""
    return InvalidInputError(
        f"invalid byte range {start}..{stop} of {path}", kind=ErrorKind.INVALID_BYTE_RANGE
    )


def too_short(path: str, start: int, stop: int, got: int) -> StorageError:
    """The error for an object that ends inside the range asked for."""
    return StorageError(
        f"{path}: asked for bytes {start}..{stop}, got only {got}", kind=ErrorKind.INVALID_OBJECT_SIZE
    )
