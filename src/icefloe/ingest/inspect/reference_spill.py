"""Where the chunks of a file are, put aside by the task that looked at it for the one that will refer to it.

A file is then parsed once, and its references, which may be millions, do not pass through the driver. They
are put into chunk objects that no snapshot refers to. Those are deleted when the job ends, however it ends;
what a killed job leaves is garbage as any other, and `garbage_collect` of icefloe or icechunk finds it.
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
from icefloe.storage.base import ObjectKind, ObjectNotFoundError, Storage
from icefloe.virtual.dataset import VirtualDataset
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences, VirtualVariable

_OBJECT_BYTES = 8 << 20
"""What is put aside is written when it is as large as this."""
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Aside:
    """A range of an object."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """What references to a file are made of."""

    sources: tuple[Source, ...]
    variables: Mapping[str, ReferredVariable]

    @staticmethod
    def of(dataset: VirtualDataset) -> Parsed:
        """What a parser found, without what is copied: values that were loaded, or have no dimensions."""
        referred = {name: each for name, each in dataset.variables.items() if each.shape and not each.loaded}
        return Parsed(dataset.sources, {name: ReferredVariable.of(each) for name, each in referred.items()})

    def to_bytes(self) -> bytes:
        """For `from_bytes`, and nobody else."""
        sources = [
            [
                each.location,
                each.size_bytes,
                each.e_tag,
                each.last_modified and each.last_modified.isoformat(),
            ]
            for each in self.sources
        ]
        variables = {name: each.packed() for name, each in self.variables.items()}
        return zstandard.ZstdCompressor(_LEVEL).compress(msgpack.pack([sources, variables]))

    @staticmethod
    def from_bytes(data: bytes) -> Parsed:
        """What `to_bytes` made bytes of."""
        unpacked: Any = msgpack.unpack(zstandard.ZstdDecompressor().decompress(data))
        sources, variables = unpacked
        return Parsed(
            tuple(
                Source(location, size, e_tag, None if modified is None else datetime.fromisoformat(modified))
                for location, size, e_tag, modified in sources
            ),
            {name: ReferredVariable.unpacked(*each) for name, each in variables.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReferredVariable:
    """The chunks of a variable, and the grid they are in."""

    grid_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: ChunkReferences

    @staticmethod
    def of(variable: VirtualVariable) -> ReferredVariable:
        """The chunks of a variable that was parsed."""
        return ReferredVariable(variable.grid_shape, variable.chunk_shape, variable.references)

    def in_chunks(
        self, chunks: tuple[int, ...], lacking: Sequence[int], sizes: Sequence[int]
    ) -> ReferredVariable:
        """The same as a box of an array of these sizes: with some dimensions more, or smaller chunks."""
        shape, found = list(self.chunk_shape), self.chunks
        for axis in lacking:
            shape.insert(axis, 1)
            found = found.repeat(axis, sizes[axis])
        parts = tuple(size // cut for size, cut in zip(shape, chunks, strict=True))
        grid = tuple(-(-size // cut) for size, cut in zip(sizes, chunks, strict=True))
        if any(count > 1 for count in parts):
            found = found.divide(parts).clip(grid)  # without what the last chunk has beyond the end
        return ReferredVariable(grid, chunks, found)

    def packed(self) -> list[Any]:
        """Numbers and bytes. A grid of which every chunk is there, in order, needs no coordinates."""
        chunks = self.chunks
        is_dense = len(chunks.coords) == np.prod(self.grid_shape, dtype=np.int64) and np.array_equal(
            chunks.coords, _all_of(self.grid_shape)
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
    def unpacked(
        grid: Sequence[int],
        chunk: Sequence[int],
        count: int,
        coords: bytes,
        sources: bytes,
        offsets: bytes,
        lengths: bytes,
        inline_coords: bytes,
        inline: Sequence[bytes],
    ) -> ReferredVariable:
        """What `packed` made numbers and bytes of."""
        rank = len(grid)
        places = np.frombuffer(coords, np.uint32).reshape(count, rank) if coords else _all_of(grid)[:count]
        return ReferredVariable(
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


def _all_of(grid: Sequence[int]) -> Any:
    return np.indices(tuple(grid), np.uint32).reshape(len(grid), -1).T


class Putting:
    """Puts aside what was found in files, several in an object; `done` when there are no more."""

    def __init__(self, storage: Storage | None) -> None:
        """Without a storage nothing is put aside."""
        self._storage = None if storage is None else storage.for_a_while()
        self._parts: list[bytes] = []
        self._numbers: list[int] = []
        self._size = 0
        self.places: dict[int, Aside] = {}
        """Where things are, by their numbers; complete when all is done."""

    def put(self, number: int, parsed: Parsed) -> None:
        """Put aside what was found in one file."""
        if self._storage is None:
            return
        data = parsed.to_bytes()
        self._parts.append(data)
        self._numbers.append(number)
        self._size += len(data)
        if self._size >= _OBJECT_BYTES:
            self.done()

    def done(self) -> None:
        """Write what was not written yet."""
        if self._storage is None or not self._parts:
            return
        data = b"".join(self._parts)
        # Named by what is in it: a task that runs twice writes the same, or something else elsewhere.
        path = f"{CHUNKS}/{ChunkId(hashlib.sha256(data).digest()[: ChunkId.SIZE])}"
        self._storage.put(path, data, kind=ObjectKind.CHUNK)
        at = 0
        for number, part in zip(self._numbers, self._parts, strict=True):
            self.places[number] = Aside(path, at, at + len(part))
            at += len(part)
        self._parts, self._numbers, self._size = [], [], 0


def taken_up(asides: Iterable[Aside], storage: Storage) -> dict[Aside, Parsed]:
    """What was put aside, as far as it is still there; an object is read once for all that is in it."""
    by_path: dict[str, list[Aside]] = {}
    for aside in asides:
        by_path.setdefault(aside.path, []).append(aside)
    found = {}
    for path, mine in by_path.items():
        first, last = min(each.start for each in mine), max(each.stop for each in mine)
        try:
            data = bytes(storage.get_range(path, first, last))
        except ObjectNotFoundError:
            continue  # somebody collects garbage: files are parsed once more
        for each in mine:
            found[each] = Parsed.from_bytes(data[each.start - first : each.stop - first])
    return found


class Shelf:
    """All that a job has put aside, wherever its tasks have put it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._paths: set[str] = set()

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *error: object) -> None:
        """Delete all of it. What cannot be deleted now is garbage, and found as such later."""
        with suppress(StorageError):
            self.storage.delete(self._paths)

    def note(self, asides: Iterable[Aside | None]) -> None:
        """Remember what is to be deleted."""
        self._paths.update(each.path for each in asides if each is not None)
