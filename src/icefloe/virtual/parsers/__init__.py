"""Parsers, one module or folder per file format, and the options that all of them take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from icefloe.virtual.parsers.hdf5.file import Witness

LOADED_BYTES: Final = 1 << 24
"""Coordinates larger than this are not loaded unless they are asked for by name."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of a zip file; the latter if it is empty."""
INLINE_BYTES: Final = 1 << 24
"""So many bytes of a variable at most are taken along where references alone cannot say how to decode."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """The variables to parse from a file, and those whose values to load."""

    group: str | None = None
    """The only group to look at, with those below it."""
    drop_variables: frozenset[str] = frozenset()
    """Names, or paths of variables in groups."""
    loadable_variables: frozenset[str] | None = None
    """None for the coordinates of dimensions."""
    contiguous_chunk_bytes: int | None = None
    """Variables that are stored in one piece are referred to in chunks of at most so many bytes."""
    version: str | None = None
    """Of an Icechunk repository: a branch, a tag or a snapshot; None for the branch main."""
    witness: Witness | None = None
    """Is shown the group of an HDF5 file while it is open, for what references do not have."""

    def drops(self, path: str) -> bool:
        """Whether a variable shall be left out."""
        return not self.drop_variables.isdisjoint((path, path.rpartition("/")[2]))

    def loads(self, path: str, dimensions: Sequence[str], size_bytes: int) -> bool:
        """Whether the values of a variable shall be loaded."""
        name = path.rpartition("/")[2]
        if self.loadable_variables is not None:
            return not self.loadable_variables.isdisjoint((path, name))
        return tuple(dimensions) == (name,) and size_bytes <= LOADED_BYTES

    def chunks_of_contiguous(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """How to divide one run of bytes: along the first dimensions, in equal parts.

        Each chunk must be a run itself, and all alike, for Zarr reads whole chunks even at the edge.
        """
        chunks = [max(size, 1) for size in shape]
        limit = self.contiguous_chunk_bytes
        if limit is None:
            return tuple(chunks)
        for axis, size in enumerate(chunks):
            row_bytes = itemsize * math.prod(chunks[axis + 1 :])
            if row_bytes * size <= limit:
                break
            most = max(limit // row_bytes, 1)
            chunks[axis] = next(count for count in range(min(most, size), 0, -1) if size % count == 0)
            if chunks[axis] > 1:
                break
        return tuple(chunks)
