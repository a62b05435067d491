"""Parsers, one module or folder per file format, and their options.

A new parser is registered in `icefloe.virtual.open`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOADED_BYTES: Final = 1 << 24
"""Coordinates larger than this are not loaded unless they are selected by name."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip file, and of an empty one."""
INLINE_BYTES: Final = 1 << 24
"""Largest size of values that are stored inline because references cannot describe their encoding."""


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """Selection of the variables to parse and of those to load."""

    group: str | None = None
    """Path of the group to parse; None for the whole file."""
    drop_variables: frozenset[str] = frozenset()
    """Names or paths of variables to exclude."""
    loadable_variables: frozenset[str] | None = None
    """Names or paths of variables to load; None for dimension coordinates."""
    contiguous_chunk_bytes: int | None = None
    """Largest chunk of a contiguous variable; None for one chunk."""
    version: str | None = None
    """The version of an Icechunk repository (see `resolve_version`); None for the branch main."""
    grib_parts: bool = False
    """True to make a group of each part of a GRIB file, even if all parts fit into one dataset."""

    def drops(self, path: str) -> bool:
        """Check whether a variable is excluded."""
        return not self.drop_variables.isdisjoint((path, path.rpartition("/")[2]))

    def loads(self, path: str, dimensions: Sequence[str], size_bytes: int) -> bool:
        """Check whether to load the values of a variable."""
        name = path.rpartition("/")[2]
        if self.loadable_variables is not None:
            return not self.loadable_variables.isdisjoint((path, name))
        return tuple(dimensions) == (name,) and size_bytes <= LOADED_BYTES

    def chunks_of_contiguous(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """Choose the chunk shape of a contiguous variable by dividing its first dimensions.

        Each chunk must be contiguous as well, and all must have the same size, because Zarr always reads
        whole chunks, even at the edge of an array.
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
