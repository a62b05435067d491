"""Source files of virtual data: their locations, their versions, and byte ranges of them."""

from __future__ import annotations

import io
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from icefloe._internal.concurrency import pool
from icefloe._internal.redaction import has_secret
from icefloe.config import StorageRetriesSettings, StorageSettings, VirtualChunkContainer
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.core.virtual_chunks.locations import key_of, stored_form
from icefloe.credentials import AnyCredential
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.base import ExternalSource, Fetched
from icefloe.storage.external.sources import ObjectSource, check_credential, open_source
from icefloe.virtual.errors import CannotVirtualizeError

BLOCK_BYTES: Final = 1 << 20
"""Remote files are read in blocks of this size: parsers read many small ranges near each other."""
_PEEK_BYTES: Final = 1 << 15
_KEPT_BLOCKS: Final = 64
_IMPATIENT: Final = StorageSettings(retries=StorageRetriesSettings(max_tries=2, initial_backoff_ms=50))
_LOOKING: Final = 16
"""Number of files whose state is checked at a time."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""File names that need no quoting in a URL."""
_STORES: Final[dict[str, Callable[[], AnyObjectStoreConfig]]] = {
    "s3": s3_store,
    "gs": gcs_store,
    "gcs": gcs_store,
    "http": http_store,
    "https": http_store,
}
_AZURE: Final = ("az", "azure", "abfs")

Way: TypeAlias = tuple[AnyObjectStoreConfig | None, AnyCredential | None]
"""An object store configuration and a credential; None stands for the default of the URL's scheme."""
Reach: TypeAlias = Callable[[str], Way]
"""Returns how to access the file at a location: the references of one dataset may span several stores."""


def access_by(store: AnyObjectStoreConfig | None, credential: AnyCredential | None) -> Reach:
    """Access all files with the same store configuration and credential."""
    return lambda location: (store, credential)


def access_by_default(location: str) -> Way:
    """Access a file with the defaults of its URL's scheme."""
    return None, None


@dataclass(frozen=True, slots=True)
class Source:
    """A file that references point into, as it was when it was parsed."""

    location: str
    """The URL of the file, as in references."""
    size_bytes: int | None
    """None if the file was not read."""
    e_tag: str | None = None
    last_modified: datetime | None = None

    @property
    def checksum(self) -> str | datetime | None:
        """The checksum of references to the file: its etag, or the time of its last modification.

        Local files use the time, because the official package knows no etags of them. Readers compare whole
        seconds, so the time is rounded up.
        """
        if self.e_tag is not None and not self.location.startswith("file:"):
            return self.e_tag
        if self.last_modified is None:
            return None
        return datetime.fromtimestamp(math.ceil(self.last_modified.timestamp()), UTC)

    def changed_to(self, other: Source) -> str | None:
        """Describe how the file changed since; None if it did not."""
        for what, was, now in (
            ("etag", self.e_tag, other.e_tag),
            ("time of last modification", self.last_modified, other.last_modified),
            ("size", self.size_bytes, other.size_bytes),
        ):
            if was != now:
                return f"its {what} was {was} and is {now}"
        return None


class SourceFile:
    """An open source file. Every read checks that the file did not change since the first one.

    `finish` checks it once more at the end.
    """

    def __init__(self, location: str, source: ExternalSource, local_path: str | None) -> None:
        self.location = location
        self.local_path = local_path
        """The path of a local file; None for a remote one."""
        self._source = source
        self._key = key_of(stored_form(location))
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._small_blocks: OrderedDict[int, bytes] = OrderedDict()
        first = self._fetch(0, BLOCK_BYTES)
        size = first.size_bytes
        if size is None:
            if len(first.data) == BLOCK_BYTES:
                raise StorageError(
                    f"{location}: the server does not tell how long the file is", kind=ErrorKind.STORAGE_OTHER
                )
            size = len(first.data)
        self.size_bytes = size
        """Of the whole file."""
        self.seen = Source(location, size, first.e_tag, first.last_modified)
        self._blocks[0] = first.data

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to `stop`, fewer at the end of the file."""
        stop = min(stop, self.size_bytes)
        if start >= stop:
            return b""
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        if first == last:
            return self._block(first)[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]
        if last - first > _KEPT_BLOCKS // 4:
            return self._checked(start, stop)
        parts = b"".join(self._block(number) for number in range(first, last + 1))
        return parts[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    def peek(self, start: int, stop: int) -> bytes:
        """Read a few bytes far from those read before, without fetching a whole block."""
        stop = min(stop, self.size_bytes)
        if start >= stop:
            return b""
        number = start // BLOCK_BYTES
        if self.local_path is None and number not in self._blocks:
            first, last = start // _PEEK_BYTES, (stop - 1) // _PEEK_BYTES
            parts = b"".join(self._peeked(part) for part in range(first, last + 1))
            return parts[start - first * _PEEK_BYTES : stop - first * _PEEK_BYTES]
        return self.read(start, stop)

    def _peeked(self, number: int) -> bytes:
        data = self._small_blocks.get(number)
        if data is None:
            start = number * _PEEK_BYTES
            stop = min(start + _PEEK_BYTES, self.size_bytes)
            # Three in a row, and the next too is likely to be wanted: from then on in large blocks.
            in_a_row = all(number - back in self._small_blocks for back in (1, 2, 3))
            data = self.read(start, stop) if in_a_row else self._checked(start, stop)
            while len(self._small_blocks) >= _KEPT_BLOCKS:
                self._small_blocks.popitem(last=False)
            self._small_blocks[number] = data
        return data

    def finish(self) -> Source:
        """Return the source if the file is unchanged; StorageError otherwise.

        If the file was changed within the present second, wait until the second is over: later changes then
        show in its time.
        """
        self._checked(0, 1)
        wait_until_told_apart([self.seen])
        return self.seen

    def _block(self, number: int) -> bytes:
        data = self._blocks.get(number)
        if data is None:
            start = number * BLOCK_BYTES
            data = self._checked(start, min(start + BLOCK_BYTES, self.size_bytes))
            while len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
            self._blocks[number] = data
        self._blocks.move_to_end(number)
        return data

    def _checked(self, start: int, stop: int) -> bytes:
        found = self._fetch(start, stop)
        seen = self.seen
        size = self.size_bytes if found.size_bytes is None else found.size_bytes
        change = seen.changed_to(Source(seen.location, size, found.e_tag, found.last_modified))
        if change is not None:
            raise StorageError(
                f"{self.location} changed while it was parsed: {change}; parse it again when it is done",
                kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
            )
        if len(found.data) < min(stop, size) - start:
            raise StorageError(
                f"{self.location}: got {len(found.data)} bytes at {start}, not {stop - start}",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
        return found.data

    def _fetch(self, start: int, stop: int) -> Fetched:
        try:
            return self._source.fetch(self._key, start, stop)
        except ObjectNotFoundError:
            raise StorageError(
                f"{self.location}: there is no such file", kind=ErrorKind.OBJECT_NOT_FOUND
            ) from None

    def as_binary(self) -> SourceReader:
        """Return a binary file object for libraries."""
        return SourceReader(self)


class SourceReader(io.RawIOBase):
    """A read-only, seekable binary file object over a source."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__()
        self.name = file.location
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        # docstring inherited
        return True

    def seekable(self) -> bool:
        # docstring inherited
        return True

    def tell(self) -> int:
        # docstring inherited
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        # docstring inherited
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        # docstring inherited
        target = memoryview(buffer).cast("B")
        data = self._file.read(self._position, self._position + len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


def wait_until_told_apart(sources: Iterable[Source]) -> None:
    """Wait until the second is over in which a local file was last changed, for a second at most.

    Times are compared in whole seconds, so that only changes in a later second show.
    """
    latest = max(
        [
            each.last_modified.timestamp()
            for each in sources
            if each.last_modified is not None and each.location.startswith("file:")
        ],
        default=0.0,
    )
    rest_s = math.ceil(latest) - time.time()
    if 0 < rest_s <= 1:
        time.sleep(rest_s)


def look_at(locations: Sequence[str], reach: Reach) -> list[Source]:
    """Check the present state of files in parallel. Files that cannot be reached have no size or checksum.

    A server that does not answer is asked for one file only.
    """
    servers: dict[str, ExternalSource | None] = {}

    def look(location: str) -> Source:
        if location.startswith("file:"):
            return _local_source(location)
        source = servers.get(_origin(location))
        if source is None:
            return Source(location, None)
        try:
            found = source.fetch(key_of(stored_form(location)), 0, 1)
        except (StorageError, ObjectNotFoundError):
            return Source(location, None)
        return Source(location, found.size_bytes, found.e_tag, found.last_modified)

    for origin, location in {_origin(each): each for each in reversed(locations)}.items():
        if not location.startswith("file:"):
            servers[origin] = _answering(location, *reach(location))
    return list(pool("looking", _LOOKING).map(look, locations))


def _origin(location: str) -> str:
    url = urlsplit(location)
    return f"{url.scheme}://{url.netloc}"


def _local_source(location: str) -> Source:
    try:
        status = os.stat(unquote(urlsplit(location).path))
    except OSError:
        return Source(location, None)
    return Source(location, status.st_size, None, datetime.fromtimestamp(status.st_mtime, UTC))


def _answering(
    location: str, store: AnyObjectStoreConfig | None, credential: AnyCredential | None
) -> ExternalSource | None:
    """Open the source of a server; None if the server does not answer."""
    try:
        container = container_of(location, store)
        check_credential(container, credential)
        source = open_source(container, credential, _IMPATIENT)
        source.fetch(key_of(stored_form(location)), 0, 1)
    except ObjectNotFoundError:
        return source
    except (StorageError, InvalidInputError):
        return None
    return source


def open_file(
    location: str,
    store: AnyObjectStoreConfig | None = None,
    credential: AnyCredential | None = None,
) -> SourceFile:
    """Open a local file, an object of a bucket, or a file of a web server, at a URL that `location_of` made.

    `store` says how to reach it, as in a `VirtualChunkContainer`; by default, the URL's scheme does. The
    `credential` is one that `authorize_virtual_chunk_access` takes.
    """
    container, local_path = container_of(location, store), None
    if location.startswith("file:"):
        local_path = unquote(urlsplit(location).path)
        if os.path.isdir(local_path):
            raise InvalidInputError(f"{local_path} is a folder, not a file", kind=ErrorKind.INVALID_PATH)
    check_credential(container, credential)
    return SourceFile(location, open_source(container, credential, StorageSettings()), local_path)


def listed_files(location: str, reach: Reach) -> Iterator[tuple[str, Source]]:
    """List all files below a folder or prefix, with their relative paths."""
    prefix = location if location.endswith("/") else f"{location}/"
    if location.startswith("file:"):
        yield from _files_below(unquote(urlsplit(prefix).path))
        return
    store, credential = reach(location)
    container = container_of(location, store)
    check_credential(container, credential)
    source = open_source(container, credential, StorageSettings())
    if not isinstance(source, ObjectSource):
        raise CannotVirtualizeError(f"{location}: what is there cannot be listed; only object stores can")
    base = key_of(stored_form(prefix))
    for name, found in source.list_files(base):
        key = name.removeprefix(base)
        yield key, Source(stored_form(prefix + quote(key)), found.size_bytes, None, found.last_modified)


def _files_below(folder: str, path: str = "") -> Iterator[tuple[str, Source]]:
    """List the files below a folder, sorted by name. Links to folders are not followed."""
    base = location_of(folder)
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{path}{entry.name}/")
        elif entry.is_file():
            plain = _PLAIN_NAME.fullmatch(entry.name) is not None and not entry.is_symlink()
            location = f"{base}/{entry.name}" if plain else location_of(entry.path)
            status = entry.stat()
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            yield path + entry.name, Source(location, status.st_size, None, modified)


def location_of(path_or_url: str | os.PathLike[str]) -> str:
    """Return the URL that references to a file contain. Local symbolic links are followed."""
    text = os.fspath(path_or_url)
    scheme = urlsplit(text).scheme
    if scheme == "file":
        text = unquote(urlsplit(text).path)
    elif len(scheme) > 1:  # one letter is a drive
        if has_secret(text):
            raise InvalidInputError(
                f"{text}: references are stored in the repository, and so would be the secret in this URL; "
                "pass credentials with store= or credential=, or ingest a copy of the data",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        return stored_form(text)
    return stored_form(Path(os.path.realpath(os.path.expanduser(text))).as_uri())


def container_prefix(location: str) -> str:
    """Return the prefix of a container for a location: the folder of a local file, or the host."""
    if location.startswith("file:"):
        return location.rpartition("/")[0] + "/"
    url = urlsplit(location)
    return f"{url.scheme}://{url.netloc}/"


def container_of(location: str, store: AnyObjectStoreConfig | None = None) -> VirtualChunkContainer:
    """Make a virtual chunk container for a location: the folder of a local file, or the host."""
    url, prefix = urlsplit(location), container_prefix(location)
    if url.scheme == "file":
        return VirtualChunkContainer(prefix, store or local_filesystem_store(unquote(urlsplit(prefix).path)))
    if store is None:
        if url.scheme in _AZURE:
            raise StorageError(
                f"{location}: say which account, with store=icefloe.azure_store(account=...)",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if url.scheme not in _STORES:
            known = ", ".join(sorted({*_STORES, *_AZURE, "file"}))
            raise StorageError(
                f"{location}: files are not read from {url.scheme}:// places; known are {known}",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )
        store = _STORES[url.scheme]()
    return VirtualChunkContainer(prefix, store)
