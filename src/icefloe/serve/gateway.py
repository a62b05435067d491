"""Serve any version as plain Zarr over HTTP, and the repository's own files.

A failed read must not look like a missing chunk: clients interpret 404, and only 404, as "fill value". The
gateway therefore responds to a chunk request with 404 only if the version and the array exist and the
manifest does not contain the chunk. GDAL interprets every error status as "fill value", and treats only an
incomplete response as an error.

A reader must not decode chunks of one snapshot with the metadata of another. Chunks are therefore not served
under versions that can select another snapshot later, unless the user requested it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

from icefloe._internal.concurrency import get_pool
from icefloe.core.zarr_keys import (
    ChunkKey,
    LegacyKey,
    MetadataKey,
    list_metadata_keys,
    make_chunk_prefix,
    parse_key,
)
from icefloe.errors import InvalidInputError, NotFoundError, RepositoryNotFoundError
from icefloe.format.files import CHUNKS, MANIFESTS, REPO_PATH, SNAPSHOTS, TRANSACTIONS
from icefloe.format.manifest import ChunkRef, InlineRef, VirtualRef
from icefloe.format.snapshot import ArrayNodeData
from icefloe.history.versions import ResolvedVersion
from icefloe.serve.asgi import (
    NO_STORE,
    Headers,
    Receive,
    RequestError,
    Scope,
    Send,
    as_request_error,
    header,
    respond,
    respond_error,
)
from icefloe.serve.documents import (
    COMMON_CODECS,
    GDAL_CODECS,
    Document,
    Published,
    Transcoder,
    chunk_e_tag,
)
from icefloe.serve.settings import Settings
from icefloe.serve.versions import ResultCache, Versions
from icefloe.serve.work import CancelledError, Decoders, disconnected
from icefloe.storage.base import ObjectNotFoundError, check_path

R = TypeVar("R")

_THREADS: Final = 64
_PART_BYTES: Final = 1 << 20
"""The size of the parts in which stored chunks are streamed."""
_IMMUTABLE: Final = (b"cache-control", b"private, max-age=31536000, immutable")
_REVALIDATE: Final = (b"cache-control", b"no-cache")
_VARY: Final = (b"vary", b"User-Agent")
_JSON: Final = (b"content-type", b"application/json")
_BYTES: Final = (b"content-type", b"application/octet-stream")
_RANGES: Final = (b"accept-ranges", b"bytes")
_ONE_RANGE: Final = re.compile(rb"bytes=\s*(\d*)\s*-\s*(\d*)\s*")
_WRITTEN_ONCE: Final = (CHUNKS, MANIFESTS, SNAPSHOTS, TRANSACTIONS)
_FILES: Final = re.compile(
    rf"({REPO_PATH}|config\.yaml|refs/.+|({CHUNKS}|{MANIFESTS}|{SNAPSHOTS}|{TRANSACTIONS})/[0-9A-Za-z]+"
    r"|overwritten/[0-9A-Za-z._-]+)"
)
_CHUNK: Final = re.compile(rb".*/c(/[0-9]+)*")
_GDAL: Final = b"GDAL/"
_PAUSE_S: Final = 1.0
"""The pause in seconds between the first byte of an aborted response to GDAL and its end."""
_STARTED: Final = "icefloe.started"
"""The key that is set in a request's scope once the status has been sent."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Body:
    """A response body: a stored object to stream."""

    size: int
    e_tag: bytes
    is_quick: bool
    """True if the object can be read inside the event loop, because reads are fast."""


class Gateway:
    """An ASGI application that serves `/zarr/<version>/<key>` and `/icechunk/<file>`.

    Parameters
    ----------
    versions
        The versions of the repository.
    settings
        The options of the server.
    decoders
        The threads that transcode chunks.
    """

    def __init__(self, versions: Versions, settings: Settings, decoders: Decoders) -> None:
        self._versions = versions
        self._settings = settings
        self._decoders = decoders
        self._published: ResultCache[Published] = ResultCache(32)
        self._paths: dict[bytes, tuple[str, str]] = {}
        self._at_once = versions.answers_at_once
        self._virtual_at_once = versions.repo._assets.virtual.answers_at_once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Every failure becomes an error status."""
        head = scope["method"] == "HEAD"
        try:
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            if raw.startswith(b"/icechunk"):
                await self._serve_file(raw[len(b"/icechunk") :], scope, receive, send)
            else:
                await self._serve_zarr(raw, scope, receive, send)
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - the client must see any error
            failed = as_request_error(error, self._settings.explain)
            if scope.get(_STARTED):  # the server closes the connection, and the client sees an error
                _logger.warning("response aborted: %s", failed.text)
                raise ConnectionAbortedError from None
            if not head and failed.status != 404 and _is_chunk_for_gdal(scope):
                await _abort_response(send, failed)
            await respond_error(send, failed, head=head)

    # Zarr

    async def _serve_zarr(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        name, key = self._split_path(raw)
        version = await self._resolve(name)
        if not key:
            await self._serve_root(name, version, scope, send, has_slash=raw.endswith(b"/"))
            return
        published = await self._publish(version, scope)
        try:
            parsed = parse_key(key)
        except InvalidInputError as error:
            raise RequestError(400, error.message) from None
        match parsed:
            case MetadataKey(path):
                if key != list_metadata_keys([path])[0]:
                    raise _make_malformed_error(key)
                await self._serve_document(published, path, version, scope, send)
            case ChunkKey(path, coords):
                if key != "/".join((make_chunk_prefix(path), *map(str, coords))):
                    raise _make_malformed_error(key)
                if not version.is_fixed and not self._settings.moving:
                    raise self._make_moving_error(name, version, scope)
                await self._serve_chunk(published, path, coords, version, scope, receive, send)
            case LegacyKey():
                raise RequestError(404, f"{key}: repositories contain only Zarr version 3")

    def _split_path(self, raw: bytes) -> tuple[str, str]:
        """Split a path into a version and a key. A version can contain encoded slashes."""
        found = self._paths.get(raw)
        if found is None:
            _, _, rest = raw.removeprefix(b"/").partition(b"/")
            version, _, key = rest.partition(b"/")
            if (
                b"%2f" in key.lower()
            ):  # clients that do not escape URLs send this for a node whose name contains "%2F"
                raise _make_malformed_error(key.decode("latin-1"))
            try:
                found = (unquote_to_bytes(version).decode(), unquote_to_bytes(key).decode())
            except UnicodeDecodeError:
                raise RequestError(400, "the URL is not UTF-8") from None
            if not found[0]:
                raise RequestError(
                    400, "the URL lacks a version: expected /zarr/main, /zarr/tag:v1 or /zarr/SNAPSHOT_ID"
                )
            if len(self._paths) > 50_000:
                self._paths.clear()
            self._paths[raw] = found
        return found

    async def _resolve(self, name: str) -> ResolvedVersion:
        try:
            if self._at_once or self._versions.is_fresh():
                return self._versions.resolve(name)
            return await self._run_in_thread(partial(self._versions.resolve, name))
        except RepositoryNotFoundError as error:  # the storage is unreachable
            raise RequestError(502, error.message) from None
        except NotFoundError as error:
            raise RequestError(410, error.message) from None
        except InvalidInputError as error:
            raise RequestError(409, error.message) from None

    async def _publish(self, version: ResolvedVersion, scope: Scope) -> Published:
        codecs = GDAL_CODECS if _is_gdal(scope) else COMMON_CODECS
        key = (version.snapshot_id, codecs is GDAL_CODECS)
        found = self._published.get(key)
        if found is None:
            session = await self._run_in_thread(partial(self._versions.session, version.snapshot_id))
            found = self._published.put(key, Published(session, self._settings.limits, codecs))
        return found

    async def _serve_root(
        self, name: str, version: ResolvedVersion, scope: Scope, send: Send, *, has_slash: bool
    ) -> None:
        """Redirect a branch name to its snapshot, or serve the root document of a fixed version."""
        if not version.is_fixed or not has_slash:
            target = name if version.is_fixed else version.snapshot_id
            location = f"/zarr/{quote(target, safe='')}/".encode()
            headers = [(b"location", location), _make_snapshot_header(version), NO_STORE]
            await respond(send, 307, b"", headers, head=scope["method"] == "HEAD")
            return
        await self._serve_document(await self._publish(version, scope), "/", version, scope, send)

    async def _serve_document(
        self, published: Published, path: str, version: ResolvedVersion, scope: Scope, send: Send
    ) -> None:
        document = await self._run_in_thread(partial(published.document, path))
        if document is None:
            raise RequestError(404, f"there is no node {path} in {version.snapshot_id}")
        await _serve_bytes(document, [_JSON, *_make_cache_headers(version)], scope, send)

    async def _serve_chunk(
        self,
        published: Published,
        path: str,
        coords: tuple[int, ...],
        version: ResolvedVersion,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        find = partial(_find_chunk, published, path, coords)
        quick = self._at_once and published.is_warm(path)
        ref, transcoder = find() if quick else await self._run_in_thread(find)
        if ref is None:
            raise RequestError(
                404, f"chunk {coords} of {path} was never written", [_make_snapshot_header(version)]
            )
        e_tag = chunk_e_tag(ref, transcoder)
        headers = [_BYTES, _RANGES, *_make_cache_headers(version)]
        if _is_known(scope, e_tag):
            await _respond_not_modified(send, e_tag, headers)
        elif transcoder is not None:
            data = await self._decoders.run(partial(transcoder.encode, coords), receive)
            await _serve_bytes(Document(data, e_tag), headers, scope, send)
        else:
            read = partial(published.workspace.read, ref, chunk=f"{coords} of {path}")
            quick = self._virtual_at_once if isinstance(ref, VirtualRef) else self._at_once
            body = _Body(ref.length, e_tag, quick or isinstance(ref, InlineRef))
            await self._stream(read, body, headers, scope, receive, send)

    async def _stream(
        self,
        read: Callable[[int, int], bytes],
        body: _Body,
        headers: Headers,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Stream a stored chunk, or a range of it, in parts, because it can be larger than memory."""
        asked = parse_requested_range(scope, body.size, body.e_tag)
        start, stop = asked or (0, body.size)
        headers = [*headers, (b"etag", body.e_tag), (b"content-length", b"%d" % (stop - start))]
        if asked is not None:
            headers.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, body.size)))
        first = {"type": "http.response.start", "status": 200 if asked is None else 206, "headers": headers}
        if scope["method"] == "HEAD":
            await send(first)
            await send({"type": "http.response.body", "body": b""})
            return
        gone = asyncio.ensure_future(disconnected(receive)) if stop - start > _PART_BYTES else None
        try:
            for at in range(start, max(stop, start + 1), _PART_BYTES):
                end = min(at + _PART_BYTES, stop)
                if gone is not None:
                    await asyncio.sleep(
                        0
                    )  # let other requests run, and detect if this client has disconnected
                    if gone.done():
                        raise CancelledError
                data = b""
                if end > at:
                    data = (
                        read(at, end) if body.is_quick else await self._run_in_thread(partial(read, at, end))
                    )
                if at == start:  # only now is it known that the chunk can be read
                    await send(first)
                    scope[_STARTED] = True
                await send({"type": "http.response.body", "body": data, "more_body": end < stop})
        finally:
            if gone is not None:
                gone.cancel()

    def _make_moving_error(self, name: str, version: ResolvedVersion, scope: Scope) -> RequestError:
        host = (header(scope, b"host") or b"").decode("latin-1")
        url = f"{scope.get('scheme', 'http')}://{host}/zarr/{version.snapshot_id}"
        text = (
            f"{name} can move to another snapshot, whose chunks may not match the metadata that you have "
            f"read: open {url}"
        )
        link = f'<{url}>; rel="canonical"'.encode()
        return RequestError(409, text, [(b"link", link), _make_snapshot_header(version)])

    # The repository's own files

    async def _serve_file(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file of the repository to clients that read the Icechunk format."""
        try:
            path = unquote_to_bytes(raw).decode().removeprefix("/")
        except UnicodeDecodeError:
            raise RequestError(400, "the URL is not UTF-8") from None
        if not _FILES.fullmatch(path) or ".." in path:
            raise RequestError(404, f"{path!r} is not a file of an Icechunk repository")
        storage = self._versions.repo.storage
        try:
            check_path(path)
            if path.partition("/")[0] not in _WRITTEN_ONCE:
                data, _ = await self._run_in_thread(partial(storage.get, path))
                await _serve_bytes(Document.of(data), [_BYTES, _RANGES, _REVALIDATE], scope, send)
                return
            size = await self._run_in_thread(partial(storage.size_of, path))
        except ObjectNotFoundError:
            raise RequestError(404, f"there is no file {path}") from None
        e_tag = f'"{path.replace("/", "-")}"'.encode()
        headers = [_BYTES, _RANGES, _IMMUTABLE]
        if _is_known(scope, e_tag):
            await _respond_not_modified(send, e_tag, headers)
            return
        body = _Body(size, e_tag, storage.answers_at_once)
        await self._stream(partial(storage.get_range, path), body, headers, scope, receive, send)

    async def _run_in_thread(self, work: Callable[[], R]) -> R:
        """Run blocking work in the gateway's thread pool, which is separate from the one for pages."""
        return await asyncio.wrap_future(get_pool("serve", _THREADS).submit(work))


def _make_malformed_error(key: str) -> RequestError:
    return RequestError(
        400, f"invalid key {key!r}: it has empty parts, encoded slashes, or chunk indices with leading zeros"
    )


def _is_chunk_for_gdal(scope: Scope) -> bool:
    """Return True if GDAL requests a chunk. GDAL interprets every error status as a missing chunk."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return _is_gdal(scope) and _CHUNK.fullmatch(raw) is not None


def _is_gdal(scope: Scope) -> bool:
    return (header(scope, b"user-agent") or b"").startswith(_GDAL)


async def _abort_response(send: Send, error: RequestError) -> None:
    """Start a response with one byte, then abort it so that the transfer fails.

    GDAL treats a chunk as missing if the transfer fails before its reading thread receives the first byte. If
    more bytes follow, it treats them as values of an uncompressed chunk that is no longer than they are. The
    error message is therefore sent in a header.

    Raises
    ------
    ConnectionAbortedError
        Always, so that the server closes the connection.
    """
    text = re.sub(rb"[^ -~]+", b" ", f"{error.status}: {error.text}".encode("ascii", "replace"))
    headers = [_BYTES, NO_STORE, (b"content-length", b"2"), (b"x-icefloe-error", text), *error.headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"-", "more_body": True})
    await asyncio.sleep(_PAUSE_S)
    _logger.warning("response to GDAL aborted: %s", error.text)
    raise ConnectionAbortedError


def _find_chunk(
    published: Published, path: str, coords: tuple[int, ...]
) -> tuple[ChunkRef | None, Transcoder | None]:
    """Look up the reference of a chunk.

    Raises
    ------
    RequestError
        There is no such array, or the key has a different number of dimensions.
    """
    workspace = published.workspace
    node = workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        what = "a group" if node is not None else "not in this version"
        raise RequestError(409, f"{path} has no chunks: it is {what}")
    rank = len(node.node_data.shape)
    if len(coords) != rank:
        raise RequestError(400, f"chunk keys of {path} have {rank} indices, not {len(coords)}")
    return workspace.ref(node, coords), published.transcoder(node)


def parse_requested_range(scope: Scope, size: int, e_tag: bytes) -> tuple[int, int] | None:
    """Return the start and stop of the byte range that a client requests, or None for the whole object.

    Raises
    ------
    RequestError
        The range lies outside the object.
    """
    value = header(scope, b"range")
    found = _ONE_RANGE.fullmatch(value) if value is not None else None
    condition = header(scope, b"if-range")
    if found is None or (condition is not None and condition != e_tag):
        return None  # for several ranges, or units other than bytes, the whole object may be sent
    first, last = found[1], found[2]
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        is_valid = not last or int(last) >= start
    elif last:
        start, stop, is_valid = max(size - int(last), 0), size, True
    else:
        return None
    if not is_valid:
        return None
    if start >= size or stop <= start:
        raise RequestError(416, f"the object has {size} bytes", [(b"content-range", b"bytes */%d" % size)])
    return start, stop


def _make_snapshot_header(version: ResolvedVersion) -> tuple[bytes, bytes]:
    return (b"x-icefloe-snapshot", version.snapshot_id.encode())


def _make_cache_headers(version: ResolvedVersion) -> Headers:
    return [_IMMUTABLE if version.is_fixed else _REVALIDATE, _VARY, _make_snapshot_header(version)]


def _is_known(scope: Scope, e_tag: bytes) -> bool:
    """Return True if the client has already cached this content."""
    value = header(scope, b"if-none-match")
    return value is not None and (value == b"*" or e_tag in (each.strip() for each in value.split(b",")))


async def _respond_not_modified(send: Send, e_tag: bytes, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": 304, "headers": [*headers, (b"etag", e_tag)]})
    await send({"type": "http.response.body", "body": b""})


async def _serve_bytes(document: Document, headers: Headers, scope: Scope, send: Send) -> None:
    """Send bytes from memory, or a range of them."""
    if _is_known(scope, document.e_tag):
        await _respond_not_modified(send, document.e_tag, headers)
        return
    size = len(document.body)
    asked = parse_requested_range(scope, size, document.e_tag)
    start, stop = asked or (0, size)
    listed = [*headers, (b"etag", document.e_tag)]
    if asked is not None:
        listed.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, size)))
    body = document.body if asked is None else document.body[start:stop]
    await respond(send, 200 if asked is None else 206, body, listed, head=scope["method"] == "HEAD")
