"""What a session does with single nodes and chunks, apart from its store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from icefloe._internal.concurrency import async_twin, in_thread
from icefloe._internal.executor import Executor
from icefloe._internal.paths import validate
from icefloe.core.assets import AssetStore
from icefloe.core.reindex import reindex, shift
from icefloe.core.virtual_chunks.materialize import Region, materialize
from icefloe.core.virtual_chunks.references import all_locations
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, NodeNotFoundError
from icefloe.format.manifest import InlineRef, NativeRef
from icefloe.types import ChunkType


class SessionContents:
    """The part of a session that describes and rearranges the chunks of arrays."""

    _assets: AssetStore
    _executor: Executor

    @property
    @abstractmethod
    def _workspace(self) -> Workspace: ...

    @abstractmethod
    def _require_edits(self) -> None: ...

    def get_node_id(self, path: str) -> str:
        """The id of the node at a path."""
        node = self._workspace.node(validate(path))
        if node is None:
            raise NodeNotFoundError(f"node not found at `{path}`", kind=ErrorKind.NODE_NOT_FOUND)
        return str(node.id)

    get_node_id_async = async_twin(get_node_id)

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where a chunk is kept."""
        node = self._workspace.array(validate(array_path))
        ref = self._workspace.ref(node, tuple(chunk_coordinates))
        match ref:
            case None:
                return ChunkType.uninitialized
            case InlineRef():
                return ChunkType.inline
            case NativeRef():
                return ChunkType.native
        return ChunkType.virtual

    chunk_type_async = async_twin(chunk_type)

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """The coordinates of all chunks of an array that exist, in order.

        So many are made Python numbers at a time, in a thread of our own.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        node = self._workspace.array(validate(array_path))
        coords = await in_thread(lambda: self._workspace.chunk_coords(node))
        for start in range(0, len(coords), batch_size):
            for row in coords[start : start + batch_size].tolist():
                yield tuple(row)

    def all_virtual_chunk_locations(self) -> list[str]:
        """The URL of every virtual chunk, by array and coordinates; that of a file once per chunk in it."""
        return all_locations(self._workspace, self._assets.virtual.containers)

    all_virtual_chunk_locations_async = async_twin(all_virtual_chunk_locations)

    def materialize(self, path: str, region: Region | None = None) -> int:
        """Copy virtual chunks of an array into the repository, byte for byte; the number of chunks copied.

        Nothing is decoded. With a region, in elements, those chunks that it touches: slices or numbers per
        dimension, or a mapping of dimension names to them. The references change with the next commit. Raises
        StorageError where a file is not what was recorded; then no reference has changed.
        """
        self._require_edits()
        node = self._workspace.array(validate(path))
        return materialize(self._workspace, node, region, self._executor)

    materialize_async = async_twin(materialize)

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by an offset per dimension, in chunks; nothing is copied.

        Positive offsets lead to higher indices. Chunks that leave the grid are dropped, and those they leave
        behind read as the fill value.
        """
        self._require_edits()
        node = self._workspace.array(validate(array_path))
        shift(self._workspace, node, tuple(chunk_offset))

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[Iterable[int]], Iterable[int] | None],
        backward: Callable[[Iterable[int]], Iterable[int] | None] | None = None,
    ) -> None:
        """Give each chunk of an array the coordinates that `forward` makes of its own; nothing is copied.

        None leaves a chunk where it is. `backward` says where the chunk at some coordinates comes from: given
        it, cells whose chunk went away, or that none came to, read as the fill value afterwards; without it
        they keep what they had. Coordinates outside the grid are an InvalidInputError; nothing changes then.
        """
        self._require_edits()
        node = self._workspace.array(validate(array_path))
        reindex(self._workspace, node, forward, backward)
