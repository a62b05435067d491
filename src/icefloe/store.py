"""The Zarr store of a session: keys and bytes over a workspace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from icefloe.concurrency import FanOut, in_thread
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError, ReadOnlyError, SessionStateError
from icefloe.format.manifest import ChunkRef, InlineRef
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.keys import (
    ChunkKey,
    Key,
    LegacyKey,
    MetadataKey,
    chunk_prefix,
    metadata_key,
    node_path,
    parse_key,
)
from icefloe.paths import ROOT


class Owner(Protocol):
    """What a store needs of the session it belongs to."""

    @property
    def read_only(self) -> bool:
        """Whether nothing may be written."""

    @property
    def workspace(self) -> Workspace:
        """What is read and written."""

    @property
    def fan_out(self) -> FanOut:
        """How requests run side by side."""


class IcechunkStore(Store):
    """A Zarr store that reads and writes through a session. Made by `Session.store`."""

    def __init__(self, session: Owner, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session
        self._is_open = True

    @property
    def session(self) -> Any:
        """The session behind this store."""
        return self._session

    @property
    def _workspace(self) -> Workspace:
        return self._session.workspace

    @property
    def read_only(self) -> bool:
        # docstring inherited
        return self._read_only or self._session.read_only

    def with_read_only(self, read_only: bool = False) -> IcechunkStore:
        # docstring inherited
        if self._session.read_only and not read_only:
            raise ReadOnlyError("a read-only session has no writable store", kind=ErrorKind.READ_ONLY_STORE)
        return IcechunkStore(self._session, read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IcechunkStore) and self._session == other._session

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<icefloe.IcechunkStore of {self._session!r}>"

    def _require_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError("cannot write to a read-only store", kind=ErrorKind.READ_ONLY_STORE)

    # What it can do

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

    # Reading

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The bytes of a key, or a part of them; None where there are none."""
        data = self._read(parse_key(key), byte_range)
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        # docstring inherited
        return await in_thread(partial(self.get_sync, key, prototype=prototype, byte_range=byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        # docstring inherited
        wanted = list(key_ranges)
        fan_out = self._session.fan_out
        read = partial(_get_one, self, prototype)
        return await in_thread(lambda: list(fan_out(read, wanted)))

    def _read(self, key: Key, byte_range: ByteRequest | None) -> bytes | None:
        if isinstance(key, MetadataKey):
            node = self._workspace.node(key.path)
            if node is None:
                return None
            start, stop = resolve_range(byte_range, len(node.user_data))
            return node.user_data[start:stop]
        found = self._ref(key)
        if found is None:
            return None
        start, stop = resolve_range(byte_range, ref_length(found))
        return b"" if start == stop else self._workspace.read(found, start, stop)

    def _ref(self, key: Key) -> ChunkRef | None:
        if not isinstance(key, ChunkKey):
            return None
        node = self._workspace.node(key.path)
        if node is None:
            return None
        if not isinstance(node.node_data, ArrayNodeData):
            raise InvalidInputError(f"not an array: {key.path}", kind=ErrorKind.NOT_AN_ARRAY)
        if len(key.coords) != len(node.node_data.shape):
            return None
        return self._workspace.ref(node, key.coords)

    async def exists(self, key: str) -> bool:
        # docstring inherited
        return await in_thread(lambda: self._size(parse_key(key)) is not None)

    async def getsize(self, key: str) -> int:
        # docstring inherited
        size = await in_thread(lambda: self._size(parse_key(key)))
        if size is None:
            raise NodeNotFoundError(f"key not found: {key}", kind=ErrorKind.KEY_NOT_FOUND)
        return size

    def _size(self, key: Key) -> int | None:
        if isinstance(key, MetadataKey):
            node = self._workspace.node(key.path)
            return None if node is None else len(node.user_data)
        found = self._ref(key)
        return None if found is None else ref_length(found)

    # Writing

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write the bytes of a key."""
        self._require_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"store values are zarr Buffers, not {type(value).__name__}")
        match parse_key(key):
            case MetadataKey(path):
                self._workspace.set_metadata(path, value.to_bytes())
            case ChunkKey(path, coords):
                self._workspace.write(path, coords, _bytes_of(value))
            case LegacyKey():
                raise SessionStateError(
                    f"{key}: Zarr version 2 metadata cannot be stored", kind=ErrorKind.UNIMPLEMENTED
                )

    async def set(self, key: str, value: Buffer) -> None:
        # docstring inherited
        await in_thread(partial(self.set_sync, key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        # docstring inherited
        self._require_writable()
        if not await self.exists(key):
            await self.set(key, value)

    def delete_sync(self, key: str) -> None:
        """Delete a key; nothing happens where there is none."""
        self._require_writable()
        match parse_key(key):
            case MetadataKey(path):
                self._workspace.delete_node(path)
            case ChunkKey(path, coords):
                node = self._workspace.node(path)
                if node is not None and isinstance(node.node_data, ArrayNodeData):
                    self._workspace.delete_chunk(node, coords)
            case LegacyKey():
                return

    async def delete(self, key: str) -> None:
        # docstring inherited
        await in_thread(partial(self.delete_sync, key))

    async def delete_dir(self, prefix: str) -> None:
        # docstring inherited
        self._require_writable()
        await in_thread(partial(self._delete_dir, prefix))

    def _delete_dir(self, prefix: str) -> None:
        path = node_path(prefix)
        if path == ROOT or self._workspace.node(path) is not None or self._workspace.below(path):
            for each in self._workspace.below(path):
                self._workspace.delete_node(each)
            return
        for key in list(self._keys_below(prefix.strip("/"))):
            self.delete_sync(key)

    async def clear(self) -> None:
        # docstring inherited
        await self.delete_dir("")

    def sync_clear(self) -> None:
        """Delete everything in the session."""
        self._require_writable()
        self._delete_dir("")

    async def is_empty(self, prefix: str) -> bool:
        # docstring inherited
        async for _ in self.list_prefix(prefix):
            return False
        return True

    # Listing

    def list(self) -> AsyncIterator[str]:
        # docstring inherited
        return self.list_prefix("")

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        # docstring inherited
        return _in_batches(lambda: self._list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        # docstring inherited
        return _in_batches(lambda: iter(self._list_dir(prefix)))

    def _list_prefix(self, prefix: str) -> Iterator[str]:
        folder = prefix.strip("/")
        return self._keys_below(folder)

    def _keys_below(self, folder: str) -> Iterator[str]:
        """All keys that begin with a folder's path, a slash after it."""
        path = node_path(folder)
        nodes = self._workspace.below(path)
        for each in nodes:
            yield metadata_key(each)
        for each in nodes:
            yield from self._chunk_keys(each)
        if nodes or path == ROOT:
            return
        array = self._enclosing_array(path)
        if array is not None:
            yield from (key for key in self._chunk_keys(array.path) if key.startswith(folder + "/"))

    def _enclosing_array(self, path: str) -> NodeSnapshot | None:
        """The array in whose chunk keys a path leads."""
        parts = path[1:].split("/")
        for at in range(len(parts) - 1, -1, -1):
            node = self._workspace.node("/" + "/".join(parts[:at]))
            if node is not None:
                return node if isinstance(node.node_data, ArrayNodeData) else None
        return None

    def _chunk_keys(self, path: str) -> Iterator[str]:
        node = self._workspace.node(path)
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            return
        if not node.node_data.manifests and node.id not in self._workspace.changes.chunks:
            return
        prefix = chunk_prefix(path)
        coords = self._workspace.chunk_coords(node)
        if not coords.shape[1]:
            yield from [prefix] * min(len(coords), 1)
            return
        for row in coords.tolist():
            yield f"{prefix}/{'/'.join(map(str, row))}"

    def _list_dir(self, prefix: str) -> Sequence[str]:
        folder = prefix.strip("/")
        path = node_path(folder)
        node = self._workspace.node(path)
        if node is not None and isinstance(node.node_data, ArrayNodeData):
            return ["zarr.json", *(["c"] if next(self._chunk_keys(path), None) else [])]
        children = self._workspace.children(path)
        if node is not None or children:
            return (["zarr.json"] if node is not None else []) + children
        depth = folder.count("/") + 1
        return sorted({key.split("/")[depth] for key in self._keys_below(folder)})

    async def getsize_prefix(self, prefix: str) -> int:
        # docstring inherited
        return await in_thread(lambda: self._getsize_prefix(prefix))

    def _getsize_prefix(self, prefix: str) -> int:
        total = 0
        for path in self._workspace.below(node_path(prefix)):
            node = self._workspace.node(path)
            if node is None:
                continue
            total += len(node.user_data)
            if isinstance(node.node_data, ArrayNodeData):
                refs = self._workspace.refs(node)
                total += int(refs.lengths.sum()) + int(refs.inline.lengths.sum())
        return total


def _get_one(
    store: IcechunkStore, prototype: BufferPrototype, wanted: tuple[str, ByteRequest | None]
) -> Buffer | None:
    return store.get_sync(wanted[0], prototype=prototype, byte_range=wanted[1])


def _bytes_of(value: Buffer) -> memoryview:
    array: Any = np.ascontiguousarray(value.as_numpy_array()).view(np.uint8)
    return memoryview(array)


def ref_length(ref: ChunkRef) -> int:
    """The number of bytes of a chunk."""
    return len(ref.data) if isinstance(ref, InlineRef) else ref.length


def resolve_range(request: ByteRequest | None, size: int) -> tuple[int, int]:
    """Start and stop of a byte request, clipped to what there is, as zarr documents it."""
    match request:
        case None:
            return 0, size
        case RangeByteRequest(start, end):
            if start < 0 or end < start:
                raise InvalidInputError(
                    f"invalid byte range {start} to {end}", kind=ErrorKind.INVALID_BYTE_RANGE
                )
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset):
            if offset < 0:
                raise InvalidInputError(f"invalid offset {offset}", kind=ErrorKind.INVALID_BYTE_RANGE)
            return min(offset, size), size
        case SuffixByteRequest(suffix):
            if suffix < 0:
                raise InvalidInputError(f"invalid suffix {suffix}", kind=ErrorKind.INVALID_BYTE_RANGE)
            return max(size - suffix, 0), size
    raise ValueError(f"Unexpected byte_range, got {request!r}.")


_BATCH = 1000


async def _in_batches(start: Callable[[], Iterator[str]]) -> AsyncIterator[str]:
    """The items of a blocking iterator, a batch of them per hop to a thread."""
    iterator = await in_thread(start)

    def batch() -> list[str]:
        return list(islice(iterator, _BATCH))

    while items := await in_thread(batch):
        for item in items:
            yield item
