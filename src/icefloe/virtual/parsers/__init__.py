"""Parsers, one module or folder per file format, and the options that all of them take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOADED_BYTES: Final = 1 << 24
"""Coordinates larger than this are not loaded unless they are asked for by name."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of a zip file; the latter if it is empty."""
INLINE_BYTES: Final = 1 << 24
"""The most bytes of a variable to store inline where references cannot describe how to decode it."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """The variables to parse from a file, and those whose values to load."""

    group: str | None = None
    """The only group to parse, with the groups below it."""
    drop_variables: frozenset[str] = frozenset()
    """Names, or paths of variables in groups."""
    loadable_variables: frozenset[str] | None = None
    """None for the coordinates of dimensions."""
    contiguous_chunk_bytes: int | None = None
    """The largest chunk of a variable that is stored in one piece; None for one chunk."""
    version: str | None = None
    """The version of an Icechunk repository (see `resolve_version`); None for the branch main."""

    def drops(self, path: str) -> bool:
        """Tell whether to leave out a variable."""
        return not self.drop_variables.isdisjoint((path, path.rpartition("/")[2]))

    def loads(self, path: str, dimensions: Sequence[str], size_bytes: int) -> bool:
        """Tell whether to load the values of a variable."""
        name = path.rpartition("/")[2]
        if self.loadable_variables is not None:
            return not self.loadable_variables.isdisjoint((path, name))
        return tuple(dimensions) == (name,) and size_bytes <= LOADED_BYTES

    def chunks_of_contiguous(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Choose the shape of chunks for one run of bytes: equal parts along the first dimensions.

        Each chunk must be a run of bytes itself, and all must be equal: Zarr reads whole chunks at the edge.
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
