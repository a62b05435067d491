"""Source files of virtual data: their locations, their states, and byte-range reads."""

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

import numpy as np

from icefloe._internal.concurrency import get_pool
from icefloe._internal.redaction import has_secret
from icefloe.config import StorageRetriesSettings, StorageSettings, VirtualChunkContainer
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.core.virtual_chunks.locations import decode_key, to_stored_form
from icefloe.credentials import AnyCredential
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.base import ObjectNotFoundError
from icefloe.storage.external.base import ExternalSource, Fetched
from icefloe.storage.external.sources import ObjectSource, check_credential, open_source
from icefloe.virtual.errors import CannotVirtualizeError

BLOCK_BYTES: Final = 1 << 20
"""The block size for reading remote files. Parsers read many small ranges that are close together."""
_PEEK_BYTES: Final = 1 << 15
_KEPT_BLOCKS: Final = 64
_FEW_RETRIES: Final = StorageSettings(retries=StorageRetriesSettings(max_tries=2, initial_backoff_ms=50))
_PARALLEL_CHECKS: Final = 16
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""Paths that need no percent-encoding in a URL."""
_STORES: Final[dict[str, Callable[[], AnyObjectStoreConfig]]] = {
    "s3": s3_store,
    "gs": gcs_store,
    "gcs": gcs_store,
    "http": http_store,
    "https": http_store,
}
_AZURE: Final = ("az", "azure", "abfs")

StoreAccess: TypeAlias = tuple[AnyObjectStoreConfig | None, AnyCredential | None]
"""An object store configuration and a credential. None means the default for the URL scheme."""
FindAccess: TypeAlias = Callable[[str], StoreAccess]
"""A function that returns the store configuration and the credential for a location. The references of one
dataset may point to several stores.
"""


def make_access(store: AnyObjectStoreConfig | None, credential: AnyCredential | None) -> FindAccess:
    """Create an access function that uses one store configuration and credential for all source files."""
    return lambda location: (store, credential)


def make_default_access(location: str) -> StoreAccess:
    """Use the default store configuration and credential for the URL scheme of a source file."""
    return None, None


@dataclass(frozen=True, slots=True)
class Source:
    """A source file of virtual data, in the state in which it was parsed."""

    location: str
    """The URL of the file, as it appears in references."""
    size_bytes: int | None
    """The size of the file; None if it was not read."""
    e_tag: str | None = None
    """The etag from the object store or web server."""
    last_modified: datetime | None = None
    """The modification time."""

    @property
    def checksum(self) -> str | datetime | None:
        """The checksum stored in virtual references to a source file: its etag, or else its modification
        time.

        Local files use the modification time, because the official package does not compute etags for them.
        Readers compare whole seconds, so the time is rounded up.
        """
        if self.e_tag is not None and not self.location.startswith("file:"):
            return self.e_tag
        if self.last_modified is None:
            return None
        return datetime.fromtimestamp(math.ceil(self.last_modified.timestamp()), UTC)

    def describe_change(self, other: Source) -> str | None:
        """Describe how a source file differs from a later state of the same file. Return None if it is
        unchanged.

        Parameters
        ----------
        other
            The later state of the file.

        Returns
        -------
        str or None
            A description of the first difference.
        """
        for what, was, now in (
            ("etag", self.e_tag, other.e_tag),
            ("time of last modification", self.last_modified, other.last_modified),
            ("size", self.size_bytes, other.size_bytes),
        ):
            if was != now:
                return f"its {what} was {was} and is {now}"
        return None


class SourceFile:
    """An open source file of virtual data. Every read checks that the file has not changed since it was
    opened.
    """

    def __init__(self, location: str, source: ExternalSource, local_path: str | None) -> None:
        self.location = location
        self.local_path = local_path
        """The path of a local file; None for a remote file."""
        self._external = source
        self._key = decode_key(to_stored_form(location))
        self._blocks: dict[int, OrderedDict[int, bytes]] = {
            BLOCK_BYTES: OrderedDict(),
            _PEEK_BYTES: OrderedDict(),
        }
        first = self._fetch(0, BLOCK_BYTES)
        size = first.size_bytes
        if size is None:
            if len(first.data) == BLOCK_BYTES:
                raise StorageError(
                    f"{location}: the server does not report the size of the file",
                    kind=ErrorKind.STORAGE_OTHER,
                )
            size = len(first.data)
        self.size_bytes = size
        self.source = Source(location, size, first.e_tag, first.last_modified)
        """The state of the file when it was opened."""
        self._blocks[BLOCK_BYTES][0] = first.data

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to `stop` of a source file. At the end of the file, fewer bytes are
        returned.
        """
        return self._read_blocks(start, stop, BLOCK_BYTES)

    def peek(self, start: int, stop: int) -> bytes:
        """Read a few bytes at a distant position in a source file, without fetching a whole block."""
        known = self.local_path is not None or start // BLOCK_BYTES in self._blocks[BLOCK_BYTES]
        return self._read_blocks(start, stop, BLOCK_BYTES if known else _PEEK_BYTES)

    def finish(self) -> Source:
        """Return the state of a source file for references. Raise StorageError if it changed since it was
        opened.

        If the file was modified within the current second, wait until the second is over, so that any later
        change is visible in the modification time.
        """
        self._fetch_unchanged(0, 1)
        wait_for_next_second([self.source])
        return self.source

    def _read_blocks(self, start: int, stop: int, size: int) -> bytes:
        stop = min(stop, self.size_bytes)
        if start >= stop:
            return b""
        first, last = start // size, (stop - 1) // size
        if last - first > _KEPT_BLOCKS // 4:
            return self._fetch_unchanged(start, stop)
        data = b"".join([self._get_block(number, size) for number in range(first, last + 1)])
        return data[start - first * size : stop - first * size]

    def _get_block(self, number: int, size: int) -> bytes:
        blocks = self._blocks[size]
        data = blocks.get(number)
        if data is None:
            start, stop = number * size, min(number * size + size, self.size_bytes)
            # After three small blocks in a row, the next ones are probably needed too, so fetch a large one.
            in_a_row = size == _PEEK_BYTES and all(number - back in blocks for back in (1, 2, 3))
            data = self.read(start, stop) if in_a_row else self._fetch_unchanged(start, stop)
            while len(blocks) >= _KEPT_BLOCKS:
                blocks.popitem(last=False)
            blocks[number] = data
        blocks.move_to_end(number)
        return data

    def _fetch_unchanged(self, start: int, stop: int) -> bytes:
        found = self._fetch(start, stop)
        size = self.size_bytes if found.size_bytes is None else found.size_bytes
        change = self.source.describe_change(Source(self.location, size, found.e_tag, found.last_modified))
        if change is not None:
            raise StorageError(
                f"{self.location} changed while it was parsed: {change}; parse it again when it is complete",
                kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
            )
        if len(found.data) < min(stop, size) - start:
            raise StorageError(
                f"{self.location}: got {len(found.data)} bytes at {start}, expected {stop - start}",
                kind=ErrorKind.INVALID_OBJECT_SIZE,
            )
        return found.data

    def _fetch(self, start: int, stop: int) -> Fetched:
        try:
            return self._external.fetch(self._key, start, stop)
        except ObjectNotFoundError:
            raise StorageError(
                f"{self.location}: the file does not exist", kind=ErrorKind.OBJECT_NOT_FOUND
            ) from None

    def as_binary(self) -> SourceReader:
        """Wrap a source file in a binary file object, for libraries that need one."""
        return SourceReader(self)


class SourceReader(io.RawIOBase):
    """A read-only, seekable binary file object over a source file of virtual data."""

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


def wait_for_next_second(sources: Iterable[Source]) -> None:
    """Wait until the second in which a local source file was last modified is over. Wait at most one second.

    Readers compare modification times in whole seconds, so only changes in a later second are detected.
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


class SourceNumbers:
    """Numbers for the source files of a virtual dataset, assigned in order of first use."""

    def __init__(self, referrer: str) -> None:
        self._referrer = referrer
        self._numbers: dict[Source, int] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The source files of a virtual dataset, ordered by number."""
        return tuple(self._numbers)

    def number(self, source: Source) -> int:
        """Return the number of a source file. A new file gets the next number."""
        check_reference(self._referrer, source.location)
        return self._numbers.setdefault(source, len(self._numbers))


def check_reference(referrer: str, location: str) -> None:
    """Raise CannotVirtualizeError if a remote source file refers to a local file. Such access is
    not allowed.
    """
    if location.startswith("file:") and not referrer.startswith("file:"):
        raise CannotVirtualizeError(
            f"{referrer} refers to the local file {location}, which only local files may do; copy {referrer} "
            "to this machine if you trust it"
        )


def check_ends(file: SourceFile, name: str, offsets: Any, lengths: Any) -> None:
    """Raise CannotVirtualizeError if a chunk of a virtual variable extends beyond the end of its
    source file.
    """
    end = np.max(offsets + lengths, initial=0)
    if end > file.size_bytes:
        raise CannotVirtualizeError(
            f"{file.location} is truncated: {name} ends at byte {end} of a file of {file.size_bytes} bytes"
        )


def check_sources(locations: Sequence[str], access: FindAccess) -> list[Source]:
    """Look up the current state of source files of virtual data, in parallel.

    Files that cannot be read get no size and no checksum.

    If a server does not respond, only one of its files is requested.
    """
    servers: dict[str, ExternalSource | None] = {}

    def check(location: str) -> Source:
        if location.startswith("file:"):
            return _describe_local_source(location)
        source = servers.get(_get_origin(location))
        if source is None:
            return Source(location, None)
        try:
            found = source.fetch(decode_key(to_stored_form(location)), 0, 1)
        except (StorageError, ObjectNotFoundError):
            return Source(location, None)
        return Source(location, found.size_bytes, found.e_tag, found.last_modified)

    for origin, location in {_get_origin(each): each for each in reversed(locations)}.items():
        if not location.startswith("file:"):
            servers[origin] = _open_server(location, *access(location))
    return list(get_pool("check sources", _PARALLEL_CHECKS).map(check, locations))


def _get_origin(location: str) -> str:
    url = urlsplit(location)
    return f"{url.scheme}://{url.netloc}"


def _describe_local_source(location: str) -> Source:
    try:
        status = os.stat(unquote(urlsplit(location).path))
    except OSError:
        return Source(location, None)
    return Source(location, status.st_size, None, datetime.fromtimestamp(status.st_mtime, UTC))


def _open_server(
    location: str, store: AnyObjectStoreConfig | None, credential: AnyCredential | None
) -> ExternalSource | None:
    """Open the object store or server of a source file. Return None if it does not respond."""
    try:
        source = _open_store(location, store, credential, _FEW_RETRIES)
        source.fetch(decode_key(to_stored_form(location)), 0, 1)
    except ObjectNotFoundError:
        return source
    except (StorageError, InvalidInputError):
        return None
    return source


def _open_store(
    location: str,
    store: AnyObjectStoreConfig | None,
    credential: AnyCredential | None,
    settings: StorageSettings,
) -> ExternalSource:
    container = make_container(location, store)
    check_credential(container, credential)
    return open_source(container, credential, settings)


def open_file(
    location: str,
    store: AnyObjectStoreConfig | None = None,
    credential: AnyCredential | None = None,
) -> SourceFile:
    """Open a source file of virtual data: a local file, an object in a bucket, or a file on a web server.

    The store configuration and the credential are as in a `VirtualChunkContainer`. By default, the URL scheme
    selects them.
    """
    local_path = None
    if location.startswith("file:"):
        local_path = unquote(urlsplit(location).path)
        if os.path.isdir(local_path):
            raise InvalidInputError(f"{local_path} is a folder, not a file", kind=ErrorKind.INVALID_PATH)
    return SourceFile(location, _open_store(location, store, credential, StorageSettings()), local_path)


def list_files(location: str, access: FindAccess) -> Iterator[tuple[str, Source]]:
    """List all source files below a directory or prefix, with their relative paths."""
    prefix = location if location.endswith("/") else f"{location}/"
    if location.startswith("file:"):
        yield from _list_files_below(unquote(urlsplit(prefix).path))
        return
    source = _open_store(location, *access(location), StorageSettings())
    if not isinstance(source, ObjectSource):
        raise CannotVirtualizeError(f"{location} cannot be listed; only folders and object stores can")
    base = decode_key(to_stored_form(prefix))
    for name, found in source.list_files(base):
        key = name.removeprefix(base)
        yield key, Source(to_stored_form(prefix + quote(key)), found.size_bytes, None, found.last_modified)


def _list_files_below(folder: str, path: str = "") -> Iterator[tuple[str, Source]]:
    """List the files below a local directory, sorted by name. Symbolic links to directories are
    not followed.
    """
    base = to_location(folder)
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _list_files_below(entry.path, f"{path}{entry.name}/")
        elif entry.is_file():
            plain = _PLAIN_NAME.fullmatch(entry.name) is not None and not entry.is_symlink()
            location = f"{base}/{entry.name}" if plain else to_location(entry.path)
            status = entry.stat()
            modified = datetime.fromtimestamp(status.st_mtime, UTC)
            yield path + entry.name, Source(location, status.st_size, None, modified)


def to_location(path_or_url: str | os.PathLike[str]) -> str:
    """Return the URL of a source file of virtual data, in the form that references contain.

    Symbolic links are resolved.
    """
    text = os.fspath(path_or_url)
    scheme = urlsplit(text).scheme
    if scheme == "file":
        text = unquote(urlsplit(text).path)
    elif len(scheme) > 1:  # a single letter is a Windows drive, not a URL scheme
        if has_secret(text):
            raise InvalidInputError(
                f"{text}: the URL contains a secret, which references would store in the repository; pass it "
                "with store= or credential=, or ingest a copy of the data",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        return to_stored_form(text)
    return to_stored_form(Path(os.path.realpath(os.path.expanduser(text))).as_uri())


def get_container_prefix(location: str) -> str:
    """Return the container prefix for a source file of virtual data: its local directory, bucket or host."""
    if location.startswith("file:"):
        return location.rpartition("/")[0] + "/"
    url = urlsplit(location)
    return f"{url.scheme}://{url.netloc}/"


def make_container(location: str, store: AnyObjectStoreConfig | None = None) -> VirtualChunkContainer:
    """Create a virtual chunk container for a source file. See `get_container_prefix` for its prefix."""
    url, prefix = urlsplit(location), get_container_prefix(location)
    if url.scheme == "file":
        return VirtualChunkContainer(prefix, store or local_filesystem_store(unquote(urlsplit(prefix).path)))
    if store is None:
        if url.scheme in _AZURE:
            raise StorageError(
                f"{location}: the storage account is unknown; pass store=icefloe.azure_store(account=...)",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        if url.scheme not in _STORES:
            known = ", ".join(sorted({*_STORES, *_AZURE, "file"}))
            raise StorageError(
                f"{location}: unknown scheme {url.scheme!r}; known schemes are {known}",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )
        store = _STORES[url.scheme]()
    return VirtualChunkContainer(prefix, store)
