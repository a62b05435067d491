"""The chunk grids of Zarr arrays: chunk boundaries and decoded chunk sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SHARDING: Final = "sharding_indexed"
_VARIABLE_BYTES: Final = 64
"""The assumed size in bytes of a string or another variable-length value."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The chunk grid of an array, given by the chunk boundaries along each dimension."""

    shape: tuple[int, ...]
    edges: tuple[NDArray[np.int64], ...]
    """For each dimension, the first element of every chunk, followed by the end of the last chunk."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return tuple(len(each) - 1 for each in self.edges)

    def box(self, coords: Sequence[int]) -> tuple[slice, ...]:
        """Return the elements that a chunk covers. An edge chunk can extend beyond the array."""
        return tuple(
            slice(int(edge[at]), int(edge[at + 1])) for edge, at in zip(self.edges, coords, strict=True)
        )

    def inside(self, coords: Sequence[int]) -> tuple[slice, ...]:
        """Return the elements of the array that a chunk covers, clipped to the shape."""
        return tuple(
            slice(each.start, min(each.stop, size))
            for each, size in zip(self.box(coords), self.shape, strict=True)
        )

    def find_touched(self, window: Sequence[slice]) -> tuple[range, ...]:
        """Return the range of chunk indices per dimension that a window of elements touches."""
        found = []
        for edge, part in zip(self.edges, window, strict=True):
            first = int(np.searchsorted(edge, part.start, "right")) - 1
            last = int(np.searchsorted(edge, part.stop, "left"))
            found.append(range(first, max(last, first + 1)))
        return tuple(found)

    def elements(self, chunks: Sequence[range]) -> int:
        """Return the number of elements in a window of whole chunks."""
        total = 1
        for edge, part in zip(self.edges, chunks, strict=True):
            total *= int(edge[part.stop] - edge[part.start])
        return total


def get_stored_grid(document: Mapping[str, Any]) -> Grid:
    """Return the grid of the stored objects of an array: its shards, or its chunks if it is not sharded."""
    shape = tuple(document["shape"])
    grid = document["chunk_grid"]
    configuration = grid["configuration"]
    sizes = configuration["chunk_shape"] if grid["name"] == "regular" else configuration["chunk_shapes"]
    return Grid(shape, tuple(_expand_edges(size, length) for size, length in zip(sizes, shape, strict=True)))


def get_decoded_grid(document: Mapping[str, Any]) -> Grid:
    """Return the grid of the smallest parts that can be decoded separately. For sharded arrays, these are the
    inner chunks.
    """
    outer = get_stored_grid(document)
    inner = _find_inner_chunk(document)
    if inner is None:
        return outer
    # Rectilinear shards consist of inner chunks of one size, so the inner grid is regular.
    return Grid(
        outer.shape,
        tuple(_expand_edges(size, length) for size, length in zip(inner, outer.shape, strict=True)),
    )


def count_item_bytes(dtype: np.dtype[Any]) -> int:
    """Return the size of one decoded element in bytes."""
    return _VARIABLE_BYTES if dtype.kind in "OT" else max(dtype.itemsize, 1)


def _find_inner_chunk(document: Mapping[str, Any]) -> Sequence[int] | None:
    codecs = document["codecs"]
    first = codecs[0] if len(codecs) == 1 else None
    if isinstance(first, Mapping) and first["name"] == _SHARDING:
        shape: Sequence[int] = first["configuration"]["chunk_shape"]
        return shape
    return None


def _expand_edges(size: Any, length: int) -> NDArray[np.int64]:
    """Expand a chunk size, or a list of sizes and `[size, count]` runs, into chunk boundaries."""
    if isinstance(size, int):
        count = max(-(-length // max(size, 1)), 1)
        return np.arange(count + 1, dtype=np.int64) * max(size, 1)
    runs = [run if isinstance(run, list) else [run, 1] for run in size]
    sizes = np.repeat([run[0] for run in runs], [run[1] for run in runs]).astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
