"""Spill references to chunks: the task that inspects a file writes them, the task that commits reads them.

Each file is parsed once, and its references, which may be millions, do not pass through the driver. They are
stored in chunk objects that no snapshot refers to, and deleted when the job ends, whether it succeeds or not.
Objects of a killed job are garbage, which `garbage_collect` of icefloe or icechunk removes.
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
"""The size at which references of several files are written as one object."""
_LEVEL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """The references that a parser found in a file."""

    sources: tuple[Source, ...]
    variables: Mapping[str, ReferencedVariable]

    @staticmethod
    def of(dataset: VirtualDataset) -> Parsed:
        """Select the variables that can be referenced: those with dimensions whose values were not loaded."""
        referred = {name: each for name, each in dataset.variables.items() if each.shape and not each.loaded}
        return Parsed(dataset.sources, {name: ReferencedVariable.of(each) for name, each in referred.items()})

    def to_bytes(self) -> bytes:
        """Encode for `from_bytes`."""
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
    def from_bytes(data: bytes) -> Parsed:
        """Decode the result of `to_bytes`."""
        unpacked: Any = msgpack.unpack(zstandard.ZstdDecompressor().decompress(data))
        sources, variables = unpacked
        return Parsed(
            tuple(
                Source(location, size, e_tag, None if modified is None else datetime.fromisoformat(modified))
                for location, size, e_tag, modified in sources
            ),
            {name: ReferencedVariable.unpack(*each) for name, each in variables.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReferencedVariable:
    """The chunk references of a variable, and its chunk grid."""

    grid_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: ChunkReferences

    @staticmethod
    def of(variable: VirtualVariable) -> ReferencedVariable:
        """Take the chunk references of a parsed variable."""
        return ReferencedVariable(variable.grid_shape, variable.chunk_shape, variable.references)

    def fit_to(
        self, chunks: tuple[int, ...], lacking: Sequence[int], sizes: Sequence[int]
    ) -> ReferencedVariable:
        """Fit the references to a box of an array, which may have more dimensions or smaller chunks."""
        shape, found = list(self.chunk_shape), self.chunks
        for axis in lacking:
            shape.insert(axis, 1)
            found = found.repeat(axis, sizes[axis])
        parts = tuple(size // cut for size, cut in zip(shape, chunks, strict=True))
        grid = tuple(-(-size // cut) for size, cut in zip(sizes, chunks, strict=True))
        if any(count > 1 for count in parts):
            found = found.divide(parts).clip(grid)  # without the part of the last chunk beyond the end
        return ReferencedVariable(grid, chunks, found)

    def pack(self) -> list[Any]:
        """Encode as numbers and bytes. Coordinates are omitted if the grid is complete and in order."""
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
        """Decode the result of `pack`."""
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
    """A writer that spills the references of several files into one object. Call `flush` at the end."""

    def __init__(self, storage: Storage | None) -> None:
        """Create a writer. Without a storage it writes nothing."""
        self._storage = None if storage is None else storage.for_a_while()
        self._parts: list[bytes] = []
        self._numbers: list[int] = []
        self._size = 0
        self.ranges: dict[int, SpillRange] = {}
        """Byte ranges by file number; complete after `flush`."""

    def put(self, number: int, parsed: Parsed) -> None:
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
        """Write the remaining references."""
        if self._storage is None or not self._parts:
            return
        data = b"".join(self._parts)
        # The name is a hash of the content: a task that runs twice overwrites its object with equal bytes.
        path = f"{CHUNKS}/{ChunkId(hashlib.sha256(data).digest()[: ChunkId.SIZE])}"
        self._storage.put(path, data, kind=ObjectKind.CHUNK)
        at = 0
        for number, part in zip(self._numbers, self._parts, strict=True):
            self.ranges[number] = SpillRange(path, at, at + len(part))
            at += len(part)
        self._parts, self._numbers, self._size = [], [], 0


def read_spilled(ranges: Iterable[SpillRange], storage: Storage) -> dict[SpillRange, Parsed]:
    """Read spilled references, one request per object. Missing objects are left out of the result."""
    by_path: dict[str, list[SpillRange]] = {}
    for each in ranges:
        by_path.setdefault(each.path, []).append(each)
    found = {}
    for path, mine in by_path.items():
        first, last = min(each.start for each in mine), max(each.stop for each in mine)
        try:
            data = bytes(storage.get_range(path, first, last))
        except ObjectNotFoundError:
            continue  # collected as garbage: the caller parses the files again
        for each in mine:
            found[each] = Parsed.from_bytes(data[each.start - first : each.stop - first])
    return found


class Spill:
    """All objects that the tasks of a job have spilled; deleted at the end of the context."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._paths: set[str] = set()

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *error: object) -> None:
        """Delete the objects. Objects that remain are garbage, which gc removes."""
        with suppress(StorageError):
            self.storage.delete(self._paths)

    def track(self, ranges: Iterable[SpillRange | None]) -> None:
        """Remember objects to delete."""
        self._paths.update(each.path for each in ranges if each is not None)
