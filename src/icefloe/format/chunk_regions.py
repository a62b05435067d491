"""Sets of chunks as regions of an array's chunk grid, for changes with too many chunks to list
individually.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, overload

import numpy as np

from icefloe.format import coordinates
from icefloe.format.coordinates import Coords

BLOCK_CHUNKS: Final = 1 << 17
"""The maximum number of coordinates in one block."""
MAX_LISTED: Final = 1 << 20
"""The maximum number of chunks of one array that are returned as a plain list."""

Region: TypeAlias = tuple[range, ...] | Coords
"""A window of the chunk grid in which every chunk is selected, or an array of sorted coordinates."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRegions:
    """A set of chunks of one array, stored as regions that may overlap."""

    rank: int
    """The number of dimensions of the chunk grid."""
    regions: tuple[Region, ...]

    @staticmethod
    def of_sorted(coords: Coords) -> ChunkRegions:
        """Create chunk regions from sorted coordinates. They are copied unless they fill a window of the
        grid.
        """
        if not len(coords):
            return ChunkRegions(coords.shape[1], ())
        window = coordinates.find_bounding_box(coords)
        is_filled = math.prod(map(len, window)) == len(coords)
        return ChunkRegions(len(window), (window if is_filled else np.ascontiguousarray(coords),))

    def __len__(self) -> int:
        return _count_chunks(self.regions)

    def blocks(self) -> Iterator[Coords]:
        """Yield the sorted, unique coordinates of all chunks in the regions, in blocks of at most
        `BLOCK_CHUNKS` rows.
        """
        for regions in _split_in_order(self.regions):
            yield _list_chunks(regions)

    def coords(self) -> Coords:
        """Return the sorted coordinates of all chunks in the regions."""
        return np.concatenate([np.zeros((0, self.rank), np.uint32), *self.blocks()])


class ListedChunks(Sequence[list[int]]):
    """A lazy sequence of the chunk coordinates of one array, for very many chunks.

    A list of a million chunks takes 160 MB. This sequence stores regions and creates the coordinates block by
    block.
    """

    __slots__ = ("_count", "_regions")

    def __init__(self, regions: ChunkRegions) -> None:
        self._regions = regions
        self._count = len(regions)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        for block in self._regions.blocks():
            yield from block.tolist()

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        rows = range(self._count)[index]
        if isinstance(rows, int):
            return self._take(rows, rows + 1)[0]
        if not rows:
            return []
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        return self._take(first, last + 1)[:: abs(rows.step)][:: 1 if rows.step > 0 else -1]

    def _take(self, start: int, stop: int) -> list[list[int]]:
        found: list[list[int]] = []
        at = 0
        for block in self._regions.blocks():
            if at + len(block) > start:
                found += block[max(start - at, 0) : stop - at].tolist()
            at += len(block)
            if at >= stop:
                break
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | ListedChunks):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ListedChunks({self._regions!r})"


def list_chunks(chunks: Coords | ChunkRegions) -> Sequence[list[int]]:
    """Return the coordinates of all chunks in some regions: as a list, or as `ListedChunks` if there are very
    many.
    """
    if len(chunks) > MAX_LISTED:
        return ListedChunks(chunks if isinstance(chunks, ChunkRegions) else ChunkRegions.of_sorted(chunks))
    listed: list[list[int]] = (chunks.coords() if isinstance(chunks, ChunkRegions) else chunks).tolist()
    return listed


def _split_in_order(regions: Sequence[Region]) -> Iterator[Sequence[Region]]:
    """Split regions into small groups. All chunks of a group sort before the chunks of the next group."""
    if len(regions) == 1 and not isinstance(only := regions[0], tuple):
        yield from ([only[start : start + BLOCK_CHUNKS]] for start in range(0, len(only), BLOCK_CHUNKS))
        return
    if sum(map(_count_one, regions)) <= BLOCK_CHUNKS or (axis := _find_first_axis(regions)) is None:
        if regions:
            yield regions
        return
    for part in _split_at_middle(regions, axis):
        yield from _split_in_order(part)


def _count_chunks(regions: Sequence[Region]) -> int:
    """Count the distinct chunks in regions that may overlap. Coordinates are listed only for overlapping
    regions.
    """
    if len(regions) < 2:
        return sum(map(_count_one, regions))
    axis = _find_first_axis(regions)
    if axis is None or sum(map(_count_one, regions)) <= BLOCK_CHUNKS:
        return len(_list_chunks(regions))
    return sum(map(_count_chunks, _split_at_middle(regions, axis)))


def _split_at_middle(regions: Sequence[Region], axis: int) -> tuple[Sequence[Region], Sequence[Region]]:
    """Split regions at the middle of an axis. On every earlier axis they share a single index."""
    starts, stops = zip(*(_find_span(region, axis) for region in regions), strict=True)
    first, last = min(starts), max(stops)
    middle = (first + last) // 2
    lower, upper = (
        [part for region in regions if _count_one(part := _clip(region, axis, *span))]
        for span in ((first, middle), (middle, last))
    )
    return lower, upper


def _find_first_axis(regions: Sequence[Region]) -> int | None:
    """Return the first axis along which the regions span more than one index; None if they contain a single
    chunk.
    """
    for axis in range(_get_rank(regions[0])):
        spans = [_find_span(region, axis) for region in regions]
        if max(stop for _, stop in spans) - min(start for start, _ in spans) > 1:
            return axis
    return None


def _get_rank(region: Region) -> int:
    return len(region) if isinstance(region, tuple) else region.shape[1]


def _count_one(region: Region) -> int:
    return math.prod(map(len, region)) if isinstance(region, tuple) else len(region)


def _find_span(region: Region, axis: int) -> tuple[int, int]:
    if isinstance(region, tuple):
        return region[axis].start, region[axis].stop
    column = region[:, axis]
    return int(column.min()), int(column.max()) + 1


def _clip(region: Region, axis: int, start: int, stop: int) -> Region:
    """Return the part of a region between two indices along the first axis that it spans."""
    if isinstance(region, tuple):
        extent = range(max(region[axis].start, start), min(region[axis].stop, stop))
        return (*region[:axis], extent, *region[axis + 1 :])
    low, high = np.searchsorted(region[:, axis], [start, stop])  # earlier columns are constant
    return region[low:high]


def _list_chunks(regions: Sequence[Region]) -> Coords:
    """Return the sorted, unique coordinates of the chunks in some regions."""
    lists = [coordinates.list_window(each) if isinstance(each, tuple) else each for each in regions]
    return coordinates.keep_last_of_equal(np.concatenate(lists))[0] if len(lists) > 1 else lists[0]
