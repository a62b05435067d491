"""What a store does with virtual chunks: references to bytes of files elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from icefloe._internal.concurrency import AsyncCloseableIterator, async_twin
from icefloe.core.changeset import rank_of
from icefloe.core.virtual_chunks.references import (
    ChunkBatch,
    Failed,
    VirtualColumns,
    checksum_columns,
    chunk_batches,
    from_grid,
    from_specs,
    set_virtual_refs,
)
from icefloe.core.workspace import Workspace
from icefloe.core.zarr_keys import ChunkKey, node_path, parse_key
from icefloe.encoding.columns import Blobs
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.snapshot import ArrayNodeData
from icefloe.types import VirtualChunkSpec


class VirtualReferences:
    """The part of a store that sets and lists references to chunks elsewhere."""

    @property
    @abstractmethod
    def _workspace(self) -> Workspace: ...

    @abstractmethod
    def _check_writable(self) -> None: ...

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
        """Let a chunk be a range of bytes of a file elsewhere.

        `location` is a URL whose path is the key of the object, so that what is reserved in URLs must be
        percent-encoded; or `vcc://NAME/PATH` for a path in the container of that name. The checksum, an etag
        or the time of last modification, tells later whether the file is still the same. InvalidInputError
        where no virtual chunk container has the location, unless `validate_container` is False.
        """
        self._check_writable()
        chunk = parse_key(key)
        if not isinstance(chunk, ChunkKey):
            raise SessionStateError(
                f"use set to write the metadata document {key}: only chunks are references",
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
            checksum_columns(checksum, 1),
        )
        failed = self._set(chunk.path, refs, validate=validate_container)
        if failed:
            raise InvalidInputError(
                f"invalid chunk location, no matching virtual chunk container: {location!r} for {key}; add "
                "the container to the configuration, or say validate_container=False",
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
        """Set many references of an array. All are checked before any is set; an error says which is wrong.

        References into no virtual chunk container are left out, and their coordinates returned; None if
        there were none. With `validate_containers=False` they are set all the same.
        """
        self._check_writable()
        path = node_path(array_path)
        rank = rank_of(self._workspace.array(path))
        return self._set(path, from_specs(chunks, rank), validate=validate_containers)

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
        """Set the references of a window of the chunk grid, in C order, from columns.

        The fastest way to set many. Locations may also be a numpy or pyarrow column; '' is a chunk that is
        missing. `arr_offset` is where in the grid the window begins. Returned is what `set_virtual_refs`
        returns.
        """
        self._check_writable()
        path = node_path(array_path)
        self._workspace.array(path)
        refs = from_grid(chunk_grid_shape, locations, offsets, lengths, arr_offset, checksum)
        return self._set(path, refs, validate=validate_containers)

    set_virtual_refs_arr_async = async_twin(set_virtual_refs_arr)

    def set_virtual_columns(
        self, array_path: str, refs: VirtualColumns, *, validate_containers: bool
    ) -> Failed:
        """Set references that are columns already, those of different files among them."""
        self._check_writable()
        return self._set(node_path(array_path), refs, validate=validate_containers)

    def _set(self, path: str, refs: VirtualColumns, *, validate: bool) -> Failed:
        workspace = self._workspace
        return set_virtual_refs(workspace, path, refs, workspace.assets.virtual.containers, validate=validate)

    def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncCloseableIterator[ChunkBatch]:
        """The references of all chunks of an array, as columns, so many at a time.

        Gives tuples of coordinates (n, dimensions), kinds (see `ChunkType`), paths (the URL of a virtual
        chunk, the id of a native one, '' for an inline one), offsets, lengths, and a dict of the bytes of
        inline chunks by row. Chunks that were never written are left out. Nothing where there is no array.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        workspace = self._workspace
        node = workspace.node(node_path(array_path))
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            nothing: Sequence[ChunkBatch] = ()
            return AsyncCloseableIterator(nothing)
        return AsyncCloseableIterator(
            chunk_batches(workspace, node, workspace.assets.virtual.containers, batch_size)
        )
