"""Read virtual chunks, but only from authorized containers and only if the file still has the recorded
version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from icefloe._internal.concurrency import fork_safe_lock
from icefloe.config import StorageSettings, VirtualChunkContainer
from icefloe.core.virtual_chunks.locations import Containers, decode_key, to_stored_form
from icefloe.core.virtual_chunks.range_reads import KeptBytes, RangeReader, ReadLimits
from icefloe.errors import ErrorKind, Hint, InvalidInputError, StorageError
from icefloe.format.manifest import Checksum, ETag, LastModified, VirtualRef
from icefloe.storage.base import ObjectNotFoundError, Storage
from icefloe.storage.disk_cache import CachedLocation
from icefloe.storage.external.base import ExternalSource, Fetched

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

Authorized: TypeAlias = "Mapping[str, AnyCredential | None]"
"""Credentials by the URL prefix of their container."""

_NO_SETTINGS: Final = StorageSettings()
_MAX_FILES: Final = 256
"""The maximum number of files whose recent reads are remembered."""


class VirtualReader:
    """A thread-safe reader for virtual chunks in authorized containers.

    An endpoint that is only named in the stored configuration receives credentials if it belongs to the
    provider, if it is also the endpoint of the repository's `storage`, or if the container is `trusted`.

    All stores of a repository share one source, and therefore one pool of connections, per container.
    """

    def __init__(
        self,
        containers: Mapping[str, VirtualChunkContainer] | None = None,
        authorized: Authorized | None = None,
        settings: StorageSettings | None = None,
        storage: Storage | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        self.containers = Containers.of((containers or {}).values())
        self._authorized = {_get_container_prefix(key): value for key, value in (authorized or {}).items()}
        for container in self.containers.ordered:
            from icefloe.storage.external.sources import (
                check_credential,
            )  # many repositories have no virtual chunk containers

            check_credential(container, self._authorized.get(container.url_prefix))
        self.withheld = self._find_withheld(storage, {_get_container_prefix(each) for each in trusted})
        """Untrusted endpoints that receive no credentials, by the URL prefix of their container."""
        reachable = {each.url_prefix for each in self.containers.ordered} & self._authorized.keys()
        self.answers_at_once = all(prefix.startswith("file:") for prefix in reachable)
        """True if all readable virtual chunks are local, so that reads do not use the network."""
        self._settings = settings or _NO_SETTINGS
        self.limits = ReadLimits()
        """The read limits for files that are opened from now on. May be replaced."""
        self._kept = KeptBytes()
        self.disk: CachedLocation | None = None
        """The entries of this repository in a disk cache."""
        self._sources: dict[str, ExternalSource] = {}
        self._places: dict[str, tuple[ExternalSource, str]] = {}
        self._files: OrderedDict[tuple[str, Checksum | None], RangeReader] = OrderedDict()
        self._lock = fork_safe_lock()

    def _find_withheld(self, storage: Storage | None, trusted: Collection[str]) -> dict[str, str]:
        """Return the untrusted endpoints that only the stored configuration names, by container."""
        asked = [each for each in self.containers.ordered if each.url_prefix in self._authorized]
        unknown = [each for each in asked if each.url_prefix not in trusted]
        if storage is None or not unknown:
            return {}
        from icefloe.storage.external.trusted_endpoints import find_foreign_endpoint

        found = {
            each.url_prefix: find_foreign_endpoint(each, self._authorized[each.url_prefix], storage)
            for each in unknown
        }
        return {prefix: endpoint for prefix, endpoint in found.items() if endpoint is not None}

    def read(self, ref: VirtualRef, start: int, stop: int, chunk: str) -> bytes:
        """Read bytes `start` to `stop` of a virtual chunk from its file.

        Error messages mention the chunk and its file.

        Raises InvalidInputError if its container does not exist or is not authorized, and StorageError if the
        file does not exist, is too short, or has changed since the reference was set. If the reference has a
        checksum, the bytes may come from the disk cache, even if the file has changed since.
        """
        source, key = self.place(ref.location)
        first, last = ref.offset + start, ref.offset + stop
        if self.disk is None or ref.checksum is None:
            return self._read_source(source, key, ref, first, last, chunk)
        entry = (source.endpoint, self.containers.absolute(ref.location), ref.checksum, first, last)
        return self.disk.get(entry, lambda: self._read_source(source, key, ref, first, last, chunk))

    def _read_source(
        self, source: ExternalSource, key: str, ref: VirtualRef, first: int, last: int, chunk: str
    ) -> bytes:
        with translate_source_errors(ref.location, chunk):
            if source.answers_at_once:
                found = source.fetch(key, first, last)
            else:
                found = self._open_file(source, key, ref).read(first, last)
        check_version(found, ref.checksum, ref.location, chunk)
        if len(found.data) < last - first:
            raise make_too_short_error(found, first, last, ref.location, chunk)
        return found.data

    def place(self, location: str) -> tuple[ExternalSource, str]:
        """Return the external source and the key of the file that contains a virtual chunk."""
        place = self._places.get(location)
        if place is None:
            place = self._find(location)
            if len(self._places) > 64 * _MAX_FILES:
                self._places.clear()
            self._places[location] = place
        return place

    def _find(self, location: str) -> tuple[ExternalSource, str]:
        # A manifest may come from anyone, so repeat all checks that are made when a reference is set.
        url = to_stored_form(self.containers.absolute(location))
        container = self.containers.find(url)
        if container is None:
            raise InvalidInputError(
                f"no virtual chunk container can handle the chunk location ({location}), edit the repository "
                "configuration adding one",
                kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )
        key = decode_key(url)
        if not key.startswith(decode_key(container.url_prefix)):
            raise InvalidInputError(
                f"{location} is outside the virtual chunk container {container.url_prefix}",
                kind=ErrorKind.INVALID_VIRTUAL_REF,
            )
        return self._get_source(container, location), key

    def _get_source(self, container: VirtualChunkContainer, location: str) -> ExternalSource:
        prefix = container.url_prefix
        if prefix not in self._authorized:
            name = f" (container: {container.name})" if container.name else ""
            raise InvalidInputError(
                f"the virtual chunk at {location} resolves to the url prefix {prefix}{name}",
                kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            ).with_hint(
                Hint(
                    "to fetch it, authorize the virtual chunk container with "
                    "{authorize_virtual_chunk_access}",
                    authorize_virtual_chunk_access=None,
                )
            )
        if prefix in self.withheld:
            raise InvalidInputError(
                f"{prefix}: the configuration stored in the repository names {self.withheld[prefix]}, which "
                "would receive your credentials for this virtual chunk container",
                kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            ).with_hint(Hint("if you trust it, pass the container in `{config}`", config=None))
        from icefloe.storage.external.sources import open_source
        from icefloe.storage.external.trusted_endpoints import find_endpoint

        with self._lock:
            source = self._sources.get(prefix)
            if source is None:
                source = open_source(container, self._authorized[prefix], self._settings)
                source.endpoint = find_endpoint(container.store)
                self._sources[prefix] = source
            return source

    def _open_file(self, source: ExternalSource, key: str, ref: VirtualRef) -> RangeReader:
        name = (ref.location, ref.checksum)
        with self._lock:
            reader = self._files.get(name)
            if reader is None:
                reader = RangeReader(partial(source.fetch, key), self.limits, self._kept)
                for other in self._files.values():
                    other.forget_old()
                self._files[name] = reader
                while len(self._files) > _MAX_FILES:
                    self._files.popitem(last=False)[1].close()
            self._files.move_to_end(name)
            return reader


def _get_container_prefix(key: str) -> str:
    """Return the URL prefix of the container that a key of `authorize_virtual_chunk_access` refers to."""
    try:
        return to_stored_form(key if key.endswith("/") else f"{key}/")
    except InvalidInputError:
        return key  # no container has such a prefix, so nothing is authorized


@contextmanager
def translate_source_errors(location: str, chunk: str) -> Iterator[None]:
    """Translate errors from reading a file into errors about the virtual chunk in it."""
    try:
        yield
    except StorageError as error:
        text = "there is no such file" if isinstance(error, ObjectNotFoundError) else error.message
        modified = error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
        raise StorageError(
            f"error fetching virtual reference {location} of chunk {chunk}: {text}",
            kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED if modified else ErrorKind.VIRTUAL_CHUNK_FETCH,
        ) from None


def check_version(found: Fetched, checksum: Checksum | None, location: str, chunk: str) -> None:
    """Raise StorageError if the file has changed since the virtual reference was set."""
    match checksum:
        case None:
            return
        case ETag(value):
            if found.e_tag is not None and _is_same_tag(found.e_tag, value):
                return
            was, now = f"the etag {value!r}", "none" if found.e_tag is None else repr(found.e_tag)
        case LastModified(seconds):
            # Only seconds are recorded. Compare strictly, so that a change in the same second is detected.
            if found.last_modified is not None and found.last_modified.timestamp() <= seconds:
                return
            was = f"last modified at {datetime.fromtimestamp(seconds, UTC).isoformat()}"
            now = "no such time" if found.last_modified is None else found.last_modified.isoformat()
    raise StorageError(
        f"the checksum of the object owning the virtual chunk has changed ({location}): chunk {chunk} was "
        f"recorded with {was}, and the file has {now}",
        kind=ErrorKind.VIRTUAL_CHUNK_MODIFIED,
    )


def _is_same_tag(one: str, other: str) -> bool:
    return one.removeprefix("W/").strip('"') == other.removeprefix("W/").strip('"')


def make_too_short_error(found: Fetched, first: int, last: int, location: str, chunk: str) -> StorageError:
    """Return the error for a file that ends inside a virtual chunk."""
    size = "fewer" if found.size_bytes is None else str(found.size_bytes)
    return StorageError(
        f"error fetching virtual reference {location} of chunk {chunk}: it is bytes {first} to {last}, and "
        f"the file has {size} bytes",
        kind=ErrorKind.VIRTUAL_CHUNK_FETCH,
    )
