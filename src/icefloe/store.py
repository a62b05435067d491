"""The Zarr store of a session. It reads and writes keys, and sets references to chunks in external files."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

from icefloe._internal.concurrency import MAY_WAIT, AsyncCloseableIterator, async_twin, run_in_thread
from icefloe._internal.executor import Executor, Task
from icefloe._internal.private_imports import get_zarr_buffer_selector
from icefloe.config.display import Shown, Tree, qualify_name
from icefloe.core.changeset import count_dimensions
from icefloe.core.listing import KeyListing
from icefloe.core.reference_columns import (
    ChunkBatch,
    Failed,
    VirtualColumns,
    from_grid,
    from_specs,
    iterate_chunks,
    repeat_checksum,
    set_virtual_refs,
)
from icefloe.core.workspace import ReadOnlyStoreError, Workspace, read_only_store
from icefloe.core.zarr_keys import (
    METADATA_NAME,
    ChunkKey,
    Key,
    LegacyKey,
    MetadataKey,
    parse_key,
    parse_node_path,
)
from icefloe.encoding.columns import Blobs
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError, SessionStateError
from icefloe.format.manifest import ChunkRef
from icefloe.format.snapshot import ArrayNodeData
from icefloe.types import SessionMode, VirtualChunkSpec

_BATCH = 10_000
_LARGE_BYTES = 1 << 20
"""Chunks of at least this size are written to a local folder by threads: 128 of 1 MiB took 0.16 s instead of
0.20 s.
"""
_default_prototype = get_zarr_buffer_selector()
R = TypeVar("R")


class KeyNotFoundError(NodeNotFoundError, FileNotFoundError):
    """Raised when a store does not contain a key. It is a FileNotFoundError, as zarr expects."""


class Owner(Protocol):
    """The interface that a store requires of its session."""

    @property
    def read_only(self) -> bool:
        """True if the session is read-only."""

    @property
    def mode(self) -> SessionMode:
        """The operations that the session allows."""

    @property
    def snapshot_id(self) -> str:
        """The id of the snapshot that the session is based on."""

    @property
    def branch(self) -> str | None:
        """The branch that the session commits to."""

    _workspace: Workspace
    """The hierarchy that the store reads and writes."""

    @property
    def executor(self) -> Executor:
        """The session's executor for concurrent requests."""


class _OfficialInstance:
    """A mixin whose instances pass as instances of the official store class.

    Programs such as VirtualiZarr check `isinstance(store, icechunk.IcechunkStore)` before they write. The
    official class is an ABC, so our class can be registered with it. However, it may be imported after our
    store was created. Since `isinstance` first reads the object's `__class__` attribute, our class is
    registered at that moment.
    """

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            official = getattr(sys.modules.get("icechunk.store"), "IcechunkStore", None)
            if official is not None and official is not IcechunkStore:
                official.register(IcechunkStore)  # does nothing the second time
            return type(self)


class IcechunkStore(_OfficialInstance, Shown, Store):
    """A Zarr store that reads and writes through a session. Use `Session.store` to create one.

    Keys follow Zarr version 3: `zarr.json`, `<path>/zarr.json` and `<path>/c/<i>/<j>`.

    Parameters
    ----------
    session
        The session.
    read_only
        True to refuse writes; by default, writes are refused if the session is read-only.
    """

    def __init__(self, session: Owner, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session
        self._pace = _Pace()
        self._is_open = True

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> IcechunkStore:
        # docstring inherited
        return cls(*args, **kwargs)

    @property
    def session(self) -> Any:
        """The session of this store."""
        return self._session

    @property
    def _store(self) -> RawStore:
        return RawStore(self)

    @property
    def _workspace(self) -> Workspace:
        return self._session._workspace

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return self._read_only or self._session.read_only

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        # docstring inherited
        if self._session.read_only and not read_only:
            raise ReadOnlyStoreError(
                "a read-only session has no writable store; open one with Repository.writable_session",
                kind=ErrorKind.READ_ONLY_STORE,
            )
        store = type(self)(self._session, read_only)
        store._is_open = False
        return store

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IcechunkStore)
            and self._session == other._session
            and self.read_only == other.read_only
        )

    __hash__ = None  # type: ignore[assignment]

    def tree(self) -> Tree:
        # docstring inherited
        session = self._session
        rows = [("read_only", str(self.read_only)), ("snapshot_id", session.snapshot_id)]
        if not session.read_only:
            rows.append(("branch", str(session.branch)))
        return Tree(qualify_name("", "IcechunkStore"), tuple(rows))

    def _check_writable(self) -> None:
        # docstring inherited
        if self.read_only:
            raise read_only_store()
        if self._session.mode is SessionMode.rearrange:
            raise SessionStateError(
                "a rearrange session can only move nodes; write in a session of Repository.writable_session",
                kind=ErrorKind.REARRANGE_SESSION_ONLY,
            )

    # Capabilities

    @property
    def supports_writes(self) -> bool:
        # docstring inherited
        return True

    @property
    def supports_deletes(self) -> bool:
        # docstring inherited
        return True

    @property
    def supports_listing(self) -> bool:
        # docstring inherited
        return True

    @property
    def supports_consolidated_metadata(self) -> bool:
        # docstring inherited
        return False

    @property
    def _supports_sync_io(self) -> bool:
        """True if zarr's fused pipeline may call the `*_sync` methods from its own threads.

        Zarr uses too few threads to keep an object store busy.
        """
        return self._at_once

    @property
    def _at_once(self) -> bool:
        assets = self._session._workspace.assets
        return assets.storage.answers_at_once and assets.virtual.answers_at_once

    # Reading

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the bytes of a key, or part of them.

        Parameters
        ----------
        key
            The key.
        prototype
            The buffer prototype to use.
        byte_range
            The byte range to read; by default all bytes.

        Returns
        -------
        Buffer or None
            The bytes; None if the key does not exist.
        """
        data = self._read(parse_key(key), byte_range)
        if data is None:
            return None
        return (prototype or _default_prototype()).buffer.from_bytes(data)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        # docstring inherited
        if self._at_once:
            return self.get_sync(key, prototype=prototype, byte_range=byte_range)
        return await run_in_thread(partial(self.get_sync, key, prototype=prototype, byte_range=byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        # docstring inherited
        wanted = list(key_ranges)
        executor = self._session.executor

        def read(one: tuple[str, ByteRequest | None]) -> Buffer | None:
            return self.get_sync(one[0], prototype=prototype, byte_range=one[1])

        return await run_in_thread(lambda: list(executor.map(Task(read, "chunks"), wanted)))

    def _read(self, key: Key, byte_range: ByteRequest | None) -> bytes | None:
        workspace = self._session._workspace
        if isinstance(key, MetadataKey):
            node = workspace.node(key.path)
            if node is None:
                return None
            start, stop = resolve_range(byte_range, len(node.user_data))
            return node.user_data[start:stop]
        if not isinstance(key, ChunkKey):
            return None
        found = self._find_ref(workspace, key)
        if found is None:
            return None
        size = found.length
        start, stop = (0, size) if byte_range is None else resolve_range(byte_range, size)
        if start == stop:
            return b""
        return workspace.read(found, start, stop, f"{key.coords} of {key.path}")

    @staticmethod
    def _find_ref(workspace: Workspace, key: ChunkKey) -> ChunkRef | None:
        node = workspace.node(key.path)
        if node is None:
            return None
        if not isinstance(node.node_data, ArrayNodeData):
            raise InvalidInputError(
                f"not an array: {key.path} is a group and has no chunks", kind=ErrorKind.NOT_AN_ARRAY
            )
        return workspace.ref(node, key.coords)

    async def exists(self, key: str) -> bool:
        # docstring inherited
        return await self._call(lambda: self._get_size(parse_key(key)) is not None)

    async def getsize(self, key: str) -> int:
        # docstring inherited
        size = await self._call(lambda: self._get_size(parse_key(key)))
        if size is None:
            raise KeyNotFoundError(f"key not found: {key}", kind=ErrorKind.KEY_NOT_FOUND)
        return size

    def _get_size(self, key: Key) -> int | None:
        if isinstance(key, MetadataKey):
            node = self._workspace.node(key.path)
            return None if node is None else len(node.user_data)
        found = self._find_ref(self._workspace, key) if isinstance(key, ChunkKey) else None
        return None if found is None else found.length

    # Writing

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write the bytes of a key.

        Parameters
        ----------
        key
            The key.
        value
            The bytes.

        Raises
        ------
        ReadOnlyError
            If the store is read-only.
        """
        self._check_writable()
        match parse_key(key):
            case MetadataKey(path):
                self._workspace.set_metadata(path, _check_value(value).to_bytes())
            case ChunkKey(path, coords):
                self._workspace.write(path, coords, _to_bytes(_check_value(value)))
            case LegacyKey():
                raise SessionStateError(
                    f"{key}: Icechunk supports only Zarr version 3; write with zarr_format=3",
                    kind=ErrorKind.UNIMPLEMENTED,
                )

    async def set(self, key: str, value: Buffer) -> None:
        # docstring inherited
        write = partial(self.set_sync, key, value)
        if _is_document(key) or self._workspace.is_inline(len(_check_value(value))):
            done = self._change_without_waiting(write)
        elif self._at_once and len(value) < _LARGE_BYTES and self._pace.is_quick():
            with self._pace.measured():
                done = self._change_without_waiting(write)
        else:
            done = False
        if not done:
            await run_in_thread(write, MAY_WAIT)

    def _change_without_waiting(self, change: Callable[[], None]) -> bool:
        """Make a change on the event loop unless it would wait for a commit. Return True if it was made.

        Waiting could deadlock, because a commit may itself need zarr's event loop to decode chunks or to
        check a branch.
        """
        workspace = self._workspace
        with workspace.exclusive():  # no commit starts before the change is made
            if workspace.is_committing:
                return False
            change()
            return True

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        # docstring inherited
        self._check_writable()
        if not await self.exists(key):
            await self.set(key, value)

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Raise an error, because the store can only write whole chunks.

        Parameters
        ----------
        key_start_values
            Not used.

        Raises
        ------
        SessionStateError
            Always.
        """
        raise SessionStateError(
            "a chunk cannot be written in part; set the whole value", kind=ErrorKind.UNIMPLEMENTED
        )

    def delete_sync(self, key: str) -> None:
        """Delete a key if it exists.

        Parameters
        ----------
        key
            The key.
        """
        self._check_writable()
        match parse_key(key):
            case MetadataKey(path):
                self._workspace.delete_node(path)
            case ChunkKey(path, coords):
                node = self._workspace.node(path)
                if node is not None:
                    self._workspace.delete_chunk(node, coords)
            case LegacyKey():
                return

    async def delete(self, key: str) -> None:
        # docstring inherited
        delete = partial(self.delete_sync, key)
        if not self._change_without_waiting(delete):
            await run_in_thread(delete, MAY_WAIT)

    async def delete_dir(self, prefix: str) -> None:
        # docstring inherited
        self._check_writable()
        await run_in_thread(partial(self._delete_dir, prefix), MAY_WAIT)

    def _delete_dir(self, prefix: str) -> None:
        path, workspace = parse_node_path(prefix), self._workspace
        inside = self._listing.inside_array(path)
        if inside is None:
            workspace.delete_node(path)
        else:
            workspace.delete_chunks(inside[0], workspace.chunk_coords(*inside))

    async def clear(self) -> None:
        # docstring inherited
        await self.delete_dir("")

    def sync_clear(self) -> None:
        """Delete all nodes and chunks."""
        self._check_writable()
        self._delete_dir("")

    # Virtual chunks

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Set a chunk key to a byte range in an external file.

        Parameters
        ----------
        key
            The key of the chunk.
        location
            The URL of the file, in which reserved characters are percent-encoded, or `vcc://NAME/PATH` for a
            path in the virtual chunk container with that name.
        offset
            The offset of the chunk's first byte in the file.
        length
            The number of bytes.
        checksum
            The file's etag or last modification time, with which later changes of the file are detected.
        validate_container
            Raise an error if no virtual chunk container matches the location.

        Raises
        ------
        InvalidInputError
            If no virtual chunk container matches the location.
        """
        self._check_writable()
        chunk = parse_key(key)
        if not isinstance(chunk, ChunkKey):
            raise SessionStateError(
                f"{key} is a metadata document, which cannot be a reference; write it with set",
                kind=ErrorKind.NOT_ALLOWED,
            )
        if offset < 0 or length < 0:
            raise OverflowError(f"{key}: offset {offset} and length {length} must not be negative")
        refs = VirtualColumns(
            np.array([chunk.coords], np.uint32).reshape(1, len(chunk.coords)),
            np.zeros(1, np.uint32),
            Blobs.from_texts([location]),
            np.array([offset], np.uint64),
            np.array([length], np.uint64),
            repeat_checksum(checksum, 1),
        )
        failed = self._set_virtual(chunk.path, refs, validate=validate_container)
        if failed:
            raise InvalidInputError(
                f"invalid chunk location, no matching virtual chunk container: {location!r} for {key}; add "
                "the container to the configuration, or pass validate_container=False",
                kind=ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
            )

    set_virtual_ref_async = async_twin(set_virtual_ref)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: list[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Failed:
        """Set many virtual references of an array. All of them are checked before the first is set.

        Parameters
        ----------
        array_path
            The path of the array.
        chunks
            The references.
        validate_containers
            Skip references whose location matches no virtual chunk container.

        Returns
        -------
        list of tuple of int or None
            The coordinates of the references that were skipped; None if there are none.

        Raises
        ------
        InvalidInputError
            If a reference is invalid.
        """
        self._check_writable()
        path = parse_node_path(array_path)
        rank = count_dimensions(self._workspace.array(path))
        return self._set_virtual(path, from_specs(chunks, rank), validate=validate_containers)

    set_virtual_refs_async = async_twin(set_virtual_refs)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: list[str],
        offsets: np.ndarray[Any, np.dtype[np.uint64]],
        lengths: np.ndarray[Any, np.dtype[np.uint64]],
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: datetime | str | None = None,
    ) -> Failed:
        """Set virtual references for a window of an array's chunk grid, given as columns in C order.

        This is the fastest way to set many references.

        Parameters
        ----------
        array_path
            The path of the array.
        chunk_grid_shape
            The shape of the window, in chunks.
        locations
            The URL of each chunk, as a list or a numpy or pyarrow column; `""` for a missing chunk.
        offsets
            The offset of each chunk's first byte in its file.
        lengths
            The number of bytes of each chunk.
        validate_containers
            Skip references whose location matches no virtual chunk container.
        arr_offset
            The coordinates of the window's first chunk; by default, all 0.
        checksum
            An etag or a last modification time that applies to all files.

        Returns
        -------
        list of tuple of int or None
            The coordinates of the references that were skipped; None if there are none.
        """
        self._check_writable()
        path = parse_node_path(array_path)
        self._workspace.array(path)
        refs = from_grid(chunk_grid_shape, locations, offsets, lengths, arr_offset, checksum)
        return self._set_virtual(path, refs, validate=validate_containers)

    set_virtual_refs_arr_async = async_twin(set_virtual_refs_arr)

    def _set_virtual_columns(
        self, array_path: str, refs: VirtualColumns, *, validate_containers: bool
    ) -> Failed:
        """Set virtual references from columns, which may refer to different files."""
        self._check_writable()
        return self._set_virtual(parse_node_path(array_path), refs, validate=validate_containers)

    def _set_virtual(self, path: str, refs: VirtualColumns, *, validate: bool) -> Failed:
        workspace = self._workspace
        return set_virtual_refs(workspace, path, refs, workspace.assets.virtual.containers, validate=validate)

    def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncCloseableIterator[ChunkBatch]:
        """Iterate over the references of all chunks of an array, in batches of columns.

        Chunks that were never written are skipped.

        Parameters
        ----------
        array_path
            The path of the array. If there is no array, there are no batches.
        batch_size
            The number of references per batch.

        Returns
        -------
        AsyncCloseableIterator
            Tuples of coordinates (n, dimensions), types (see `ChunkType`), paths (the URL of a virtual chunk,
            the id of a native chunk, `""` for an inline chunk), offsets, lengths, and a dict with the bytes
            of inline chunks by row.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        workspace = self._workspace
        node = workspace.node(parse_node_path(array_path))
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            nothing: Sequence[ChunkBatch] = ()
            return AsyncCloseableIterator(nothing)
        return AsyncCloseableIterator(
            iterate_chunks(workspace, node, workspace.assets.virtual.containers, batch_size)
        )

    # Listing

    @property
    def _listing(self) -> KeyListing:
        return KeyListing(self._workspace)

    async def is_empty(self, prefix: str) -> bool:
        # docstring inherited
        return await self._call(lambda: self._listing.is_empty(parse_node_path(prefix)))

    def list(self) -> KeyIterator:
        # docstring inherited
        return self.list_prefix("")

    def list_prefix(self, prefix: str) -> KeyIterator:
        # docstring inherited
        return KeyIterator(lambda: self._listing.keys(parse_node_path(prefix)), at_once=self._at_once)

    def list_dir(self, prefix: str) -> KeyIterator:
        # docstring inherited
        return KeyIterator(lambda: iter(self._listing.names(parse_node_path(prefix))), at_once=self._at_once)

    async def getsize_prefix(self, prefix: str) -> int:
        # docstring inherited
        return await self._call(
            lambda: self._listing.size_bytes(parse_node_path(prefix), self._session.executor)
        )

    async def _call(self, function: Callable[[], R]) -> R:
        """Call a function that may load manifests but no chunks."""
        return function() if self._at_once else await run_in_thread(function)


class RawStore:
    """A view of the store that works with plain bytes, like the native store of the official package."""

    def __init__(self, store: IcechunkStore) -> None:
        self._store = store

    async def get(self, key: str, byte_range: ByteRequest | None = None) -> bytes:
        """Return the bytes of a key. Raise KeyError if it does not exist."""
        data = await self._store.get(key, byte_range=byte_range)
        if data is None:
            raise KeyError(key)
        return data.to_bytes()

    async def set(self, key: str, value: bytes) -> None:
        """Write the bytes of a key."""
        await self._store.set(key, _default_prototype().buffer.from_bytes(value))


class _Pace:
    """Measures how fast chunks are written, to decide if writing them in threads pays off.

    Threads pay off on a slow disk, which can serve several writers at once. On a fast one, they only cost
    time.
    """

    _SLOW_S = 0.003
    _WRITES_IN_THREADS = 256

    def __init__(self) -> None:
        self._average_s = 0.0
        self._in_threads = 0

    def is_quick(self) -> bool:
        """Return True to write the next chunk in this thread. After slow writes, some chunks are written by
        threads.
        """
        if self._in_threads:
            self._in_threads -= 1
            return False
        return True

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a write. The average changes slowly, because other processes can slow down a single
        write.
        """
        start = time.perf_counter()
        yield
        self._average_s += (time.perf_counter() - start - self._average_s) / 8
        if self._average_s > self._SLOW_S:
            self._average_s, self._in_threads = 0.0, self._WRITES_IN_THREADS


class KeyIterator(AsyncIterator[str]):
    """An iterator over store keys for both `async for` and plain `for` loops."""

    def __init__(self, start: Callable[[], Iterator[str]], *, at_once: bool) -> None:
        self._start = start
        self._at_once = at_once
        self._rest: Iterator[str] | None = None
        self._batch: Iterator[str] = iter(())

    def __aiter__(self) -> KeyIterator:
        return self

    async def __anext__(self) -> str:
        for key in self._batch:
            return key
        self._batch = iter(self._load() if self._at_once else await run_in_thread(self._load))
        for key in self._batch:
            return key
        raise StopAsyncIteration

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        for key in self._batch:
            return key
        self._batch = iter(self._load())
        return next(self._batch)

    def _load(self) -> list[str]:
        if self._rest is None:
            self._rest = self._start()
        return list(islice(self._rest, _BATCH))

    async def aclose(self) -> None:
        """End the iteration."""
        self._batch = self._rest = iter(())


def _check_value(value: object) -> Buffer:
    if not isinstance(value, Buffer):
        raise TypeError(
            "IcechunkStore.set(): `value` must be a Buffer instance. "
            f"Got an instance of {type(value)} instead."
        )
    return value


def _is_document(key: str) -> bool:
    return key.endswith(METADATA_NAME)


def _to_bytes(value: Buffer) -> memoryview:
    array: Any = np.ascontiguousarray(value.as_numpy_array()).view(np.uint8)
    return memoryview(array)


def resolve_range(request: ByteRequest | None, size: int) -> tuple[int, int]:
    """Return the start and stop of a byte range request, clipped to the size, as documented by zarr."""
    match request:
        case None:
            return 0, size
        case RangeByteRequest(start, end):
            if start < 0 or end < start:
                raise InvalidInputError(
                    f"invalid byte range {start} to {end}: expected 0 <= start <= end",
                    kind=ErrorKind.INVALID_BYTE_RANGE,
                )
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset):
            if offset < 0:
                raise InvalidInputError(
                    f"invalid offset {offset}: it must be 0 or more", kind=ErrorKind.INVALID_BYTE_RANGE
                )
            return min(offset, size), size
        case SuffixByteRequest(suffix):
            if suffix < 0:
                raise InvalidInputError(
                    f"invalid suffix {suffix}: it must be 0 or more", kind=ErrorKind.INVALID_BYTE_RANGE
                )
            return max(size - suffix, 0), size
    raise ValueError(f"Unexpected byte_range, got {request!r}.")
