"""Spill chunk references: tasks that inspect files write them to storage, and tasks that commit read them.

Each file is parsed once, and its references, which may be millions, are not sent to the driver. They are
stored in chunk objects that no snapshot references, and deleted at the end of the job, even if it fails. A
killed job leaves its objects behind, and `garbage_collect` of icefloe or icechunk deletes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import zstandard

from icefloe._internal.ids import ChunkId
from icefloe.encoding import msgpack
from icefloe.errors import StorageError
from icefloe.format.files import CHUNKS
from icefloe.ingest.records import SpillRange
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable

_OBJECT_BYTES = 8 << 20
"""The size in bytes at which the collected references of several files are written as one object."""
_LEVEL = 1


@dataclass(frozen=True, slots=True, eq=False)
class ParsedReferences:
    """The chunk references that a parser found in a source file. They are spilled until they can be
    committed.
    """

    sources: tuple[Source, ...]
    variables: Mapping[str, ReferencedVariable]

    @staticmethod
    def of(dataset: VirtualDataset) -> ParsedReferences:
        """Select the variables whose references must be spilled: those with dimensions, unless they are
        loaded.
        """
        referred = {name: each for name, each in dataset.variables.items() if each.shape and not each.loaded}
        return ParsedReferences(
            dataset.sources, {name: ReferencedVariable.of(each) for name, each in referred.items()}
        )

    def to_bytes(self) -> bytes:
        """Encode the references of a file as bytes."""
        sources = [
            [
                each.location,
                each.size_bytes,
                each.e_tag,
                each.last_modified and each.last_modified.isoformat(),
            ]
            for each in self.sources
        ]
        variables = {name: each.pack() for name, each in self.variables.items()}
        return zstandard.ZstdCompressor(_LEVEL).compress(msgpack.pack([sources, variables]))

    @staticmethod
    def from_bytes(data: bytes) -> ParsedReferences:
        """Decode the references of a file from bytes."""
        unpacked: Any = msgpack.unpack(zstandard.ZstdDecompressor().decompress(data))
        sources, variables = unpacked
        return ParsedReferences(
            tuple(
                Source(location, size, e_tag, None if modified is None else datetime.fromisoformat(modified))
                for location, size, e_tag, modified in sources
            ),
            {name: ReferencedVariable.unpack(*each) for name, each in variables.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReferencedVariable:
    """The spilled chunk references of one variable, and its chunk grid."""

    grid_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: ChunkReferences

    @staticmethod
    def of(variable: VirtualVariable) -> ReferencedVariable:
        """Create the references to spill from a parsed variable."""
        return ReferencedVariable(variable.grid_shape, variable.chunk_shape, variable.references)

    def fit_to(
        self, chunks: tuple[int, ...], lacking: Sequence[int], sizes: Sequence[int]
    ) -> ReferencedVariable:
        """Adapt spilled references to an array with additional dimensions or smaller chunks."""
        shape, found = list(self.chunk_shape), self.chunks
        for axis in lacking:
            shape.insert(axis, 1)
            found = found.repeat(axis, sizes[axis])
        parts = tuple(size // cut for size, cut in zip(shape, chunks, strict=True))
        grid = tuple(-(-size // cut) for size, cut in zip(sizes, chunks, strict=True))
        if any(count > 1 for count in parts):
            found = found.divide(parts).clip(
                grid
            )  # drop the part of the last chunk beyond the end of the array
        return ReferencedVariable(grid, chunks, found)

    def pack(self) -> list[Any]:
        """Pack references into a list that can be encoded as msgpack.

        Chunk coordinates are omitted if the grid is complete and in order.
        """
        chunks = self.chunks
        is_dense = len(chunks.coords) == np.prod(self.grid_shape, dtype=np.int64) and np.array_equal(
            chunks.coords, _list_coords(self.grid_shape)
        )
        return [
            self.grid_shape,
            self.chunk_shape,
            len(chunks.coords),
            b"" if is_dense else chunks.coords.tobytes(),
            chunks.sources.tobytes() if chunks.sources.any() else b"",
            chunks.offsets.tobytes(),
            chunks.lengths.tobytes(),
            chunks.inline_coords.tobytes(),
            list(chunks.inline),
        ]

    @staticmethod
    def unpack(
        grid: Sequence[int],
        chunk: Sequence[int],
        count: int,
        coords: bytes,
        sources: bytes,
        offsets: bytes,
        lengths: bytes,
        inline_coords: bytes,
        inline: Sequence[bytes],
    ) -> ReferencedVariable:
        """Create references from the items of a packed list."""
        rank = len(grid)
        places = (
            np.frombuffer(coords, np.uint32).reshape(count, rank) if coords else _list_coords(grid)[:count]
        )
        return ReferencedVariable(
            tuple(grid),
            tuple(chunk),
            ChunkReferences(
                places,
                np.frombuffer(sources, np.uint32) if sources else np.zeros(count, np.uint32),
                np.frombuffer(offsets, np.uint64),
                np.frombuffer(lengths, np.uint64),
                np.frombuffer(inline_coords, np.uint32).reshape(len(inline), rank),
                tuple(inline),
            ),
        )


def _list_coords(grid: Sequence[int]) -> Any:
    return np.indices(tuple(grid), np.uint32).reshape(len(grid), -1).T


class SpillWriter:
    """Writes the references of several files to spill objects. Call `flush` at the end."""

    def __init__(self, storage: Storage | None) -> None:
        """Create a writer. If `storage` is None, nothing is written."""
        self._storage = None if storage is None else storage.for_temporary_objects()
        self._parts: list[bytes] = []
        self._numbers: list[int] = []
        self._size = 0
        self.ranges: dict[int, SpillRange] = {}
        """The byte range of each file's references, by file number. Complete after `flush`."""

    def put(self, number: int, parsed: ParsedReferences) -> None:
        """Add the references of one file."""
        if self._storage is None:
            return
        data = parsed.to_bytes()
        self._parts.append(data)
        self._numbers.append(number)
        self._size += len(data)
        if self._size >= _OBJECT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all collected references that have not been written yet."""
        if self._storage is None or not self._parts:
            return
        data = b"".join(self._parts)
        # The name is a hash of the content, so a task that runs twice overwrites its object with equal bytes.
        path = f"{CHUNKS}/{ChunkId(hashlib.sha256(data).digest()[: ChunkId.SIZE])}"
        self._storage.put(path, data, kind=ObjectKind.CHUNK)
        at = 0
        for number, part in zip(self._numbers, self._parts, strict=True):
            self.ranges[number] = SpillRange(path, at, at + len(part))
            at += len(part)
        self._parts, self._numbers, self._size = [], [], 0


def read_spilled(ranges: Iterable[SpillRange], storage: Storage) -> dict[SpillRange, ParsedReferences]:
    """Read spilled references, with one request per object.

    Missing objects are omitted from the result.
    """
    by_path: dict[str, list[SpillRange]] = {}
    for each in ranges:
        by_path.setdefault(each.path, []).append(each)
    found = {}
    for path, mine in by_path.items():
        first, last = min(each.start for each in mine), max(each.stop for each in mine)
        try:
            data = bytes(storage.get_range(path, first, last))
        except ObjectNotFoundError:
            continue  # garbage collection deleted the object, so the caller parses the files again
        for each in mine:
            found[each] = ParsedReferences.from_bytes(data[each.start - first : each.stop - first])
    return found


class Spill:
    """The reference spill of a job, as a context manager that deletes the spilled objects at the end."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._paths: set[str] = set()

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *error: object) -> None:
        """Delete the tracked objects. Any objects that remain after a crash are garbage."""
        with suppress(StorageError):
            self.storage.delete(self._paths)

    def track(self, ranges: Iterable[SpillRange | None]) -> None:
        """Track spill objects, so that they are deleted at the end."""
        self._paths.update(each.path for each in ranges if each is not None)
