"""Look up the chunk statistics of an array in one snapshot, in chunk grid order.

Statistics are used for a chunk only if three things match: the reference (by its fingerprint), the clip (how
many cells of the chunk are inside the array) and the meaning. A reference therefore keeps its statistics if
it is moved, merged, or written to another manifest. A chunk that is clipped by a resize loses them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.core.chunk_grid import Grid, get_stored_grid
from icefloe.core.fingerprints import fingerprint_refs
from icefloe.format.manifest import NO_ETAG, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.maintenance.statistics.files import Rows, list_files, read_files
from icefloe.maintenance.statistics.meaning import Meaning, find_meaning
from icefloe.maintenance.statistics.summarize import Statistics, repeat_value
from icefloe.session import Session

_LARGEST_GRID: Final = 50_000_000
"""The maximum number of chunks in a grid for which statistics are looked up."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayChunks:
    """The stored chunks of an array in one snapshot, in chunk grid order, for looking up their statistics."""

    path: str
    node: NodeSnapshot
    grid: Grid
    meaning: Meaning
    refs: ArrayManifest
    numbers: NDArray[np.int64]
    """The index of each reference in the flattened chunk grid."""
    keys: NDArray[np.uint64]
    """The fingerprint of each reference."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return self.grid.counts

    def clips(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return how many cells of the given chunks are inside the array, along each dimension."""
        return _take_sizes(self._sizes(clipped=True), numbers, self.counts)

    def shapes(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the shapes of the given chunks."""
        return _take_sizes(self._sizes(clipped=False), numbers, self.counts)

    def count_cells(self) -> NDArray[np.int64]:
        """Count the cells of each chunk that are inside the array."""
        cells = np.ones(1, np.int64)
        for sizes in self._sizes(clipped=True):
            cells = np.multiply.outer(cells, sizes.astype(np.int64)).ravel()
        return cells

    @property
    def is_checked(self) -> NDArray[np.bool_]:
        """A mask of the references with a checksum. Only they identify their bytes, so that statistics
        apply.
        """
        refs = self.refs
        unchecked = (refs.kind == VIRTUAL) & (refs.etag_codes == NO_ETAG) & (refs.last_modified == 0)
        return np.asarray(~unchecked, np.bool_)

    def _sizes(self, *, clipped: bool) -> list[NDArray[np.int64]]:
        return [
            np.diff(np.minimum(edges, length) if clipped else edges)
            for edges, length in zip(self.grid.edges, self.grid.shape, strict=True)
        ]


def _take_sizes(
    sizes: Sequence[NDArray[np.int64]], numbers: NDArray[np.int64], counts: Sequence[int]
) -> NDArray[np.uint32]:
    if not counts:
        return np.zeros((len(numbers), 0), np.uint32)
    places = np.unravel_index(numbers, counts)
    return np.stack([own[at] for own, at in zip(sizes, places, strict=True)], axis=1).astype(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStatistics:
    """The chunk statistics of an array in one snapshot, with one row per grid chunk in C order."""

    chunks: ArrayChunks
    known: NDArray[np.bool_]
    """A mask of the chunks whose statistics are known."""
    cells: NDArray[np.int64]
    """The number of cells of each chunk inside the array."""
    rows: Statistics
    """The statistics. Rows of chunks without known statistics are meaningless."""

    @property
    def meaning(self) -> Meaning:
        """The meaning of the array's chunks: the metadata that determines how they are decoded."""
        return self.chunks.meaning


def list_chunks(session: Session, path: str) -> ArrayChunks | None:
    """List the chunks of an array. Return None if its data type or chunk grid does not support statistics."""
    workspace = session._workspace
    node = workspace.node(path)
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        return None
    meaning = find_meaning(node.user_data)
    if meaning is None:
        return None
    grid = get_stored_grid(json.loads(node.user_data))
    if math.prod(grid.counts) > _LARGEST_GRID or 0 in grid.shape:
        return None
    refs = workspace.refs(node)
    numbers = np.zeros(len(refs), np.int64)
    for axis, count in enumerate(grid.counts):
        numbers = numbers * count + refs.coords[:, axis].astype(np.int64)
    return ArrayChunks(path, node, grid, meaning, refs, numbers, fingerprint_refs(refs)[:, 1])


def load_statistics(session: Session, path: str) -> ChunkStatistics | None:
    """Look up the statistics of an array in a session's snapshot. Return None if it cannot have any."""
    chunks = list_chunks(session, path)
    return None if chunks is None else find_statistics(session, chunks)


def find_statistics(
    session: Session,
    chunks: ArrayChunks,
    more: Sequence[Rows] = (),
    *,
    only_own: bool = False,
    use_files: bool = True,
) -> ChunkStatistics:
    """Look up chunk statistics: in `more`, then in files of the same manifests, then in all other files.

    With `only_own`, files of other manifests are not read; without `use_files`, none are.
    """
    count = math.prod(chunks.counts)
    cells = chunks.count_cells()
    known = np.ones(count, np.bool_)
    known[chunks.numbers] = False  # chunks that are not stored have the fill value
    rows = repeat_value(chunks.meaning, cells)
    waiting = np.flatnonzero(chunks.is_checked)
    for found in chain(more, _read_all(session, chunks, only_own=only_own) if use_files else ()):
        if not len(waiting):
            break
        mine, theirs = _match(chunks, waiting, found)
        places = chunks.numbers[waiting[mine]]
        for column, other in zip(rows.columns, found.statistics.columns, strict=True):
            column[places] = other[theirs]
        known[places] = True
        waiting = np.delete(waiting, mine)
    return ChunkStatistics(chunks, known, cells, rows)


def _read_all(session: Session, chunks: ArrayChunks, *, only_own: bool) -> Iterator[Rows]:
    """Read the statistics files of the array's manifests, then those of other manifests."""
    storage, node, rank = session._assets.storage, chunks.node.id, len(chunks.counts)
    data = chunks.node.node_data
    own = [str(ref.id) for ref in data.manifests] if isinstance(data, ArrayNodeData) else []
    first = list_files(storage, own)
    yield from read_files(storage, first, node, chunks.meaning, rank, session.executor)
    if only_own:
        return
    done = set(first)
    rest = [name for name in list_files(storage) if name not in done]
    yield from read_files(storage, rest, node, chunks.meaning, rank, session.executor)


def _match(
    chunks: ArrayChunks, waiting: NDArray[np.int64], found: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match references to rows with the same fingerprint, clip and chunk shape. Return their positions in
    both.
    """
    numbers = chunks.numbers[waiting]
    clips, shapes = chunks.clips(numbers), chunks.shapes(numbers)
    mine = _mix_keys(chunks.keys[waiting], clips, shapes)
    theirs = _mix_keys(found.keys, found.clips, found.chunks)
    if not len(theirs):
        return waiting[:0], waiting[:0]
    if len(mine) == len(theirs) and bool((mine == theirs).all()):  # the statistics file of the same manifest
        places = np.arange(len(mine))
    else:
        order = np.argsort(theirs)
        places = order[np.minimum(np.searchsorted(theirs, mine, sorter=order), len(order) - 1)]
    same = (theirs[places] == mine) & (found.keys[places] == chunks.keys[waiting])
    same &= (found.clips[places] == clips).all(axis=1) & (found.chunks[places] == shapes).all(axis=1)
    here = np.flatnonzero(same)
    return here, places[here]


def _mix_keys(
    keys: NDArray[np.uint64], clips: NDArray[np.uint32], shapes: NDArray[np.uint32]
) -> NDArray[np.uint64]:
    """Mix clips and shapes into fingerprints, because equal inline chunks may have different clips."""
    mixed = keys.copy()
    for part in (clips, shapes):
        for axis in range(part.shape[1]):
            mixed = (mixed ^ part[:, axis].astype(np.uint64)) * _MIX
    return mixed


def to_rows(found: ChunkStatistics, wanted: Any = slice(None)) -> Rows:
    """Convert the statistics of all or some references to rows for a statistics file."""
    chunks = found.chunks
    numbers = chunks.numbers[wanted]
    kept = found.known[numbers] & chunks.is_checked[wanted]
    numbers = numbers[kept]
    return Rows(
        chunks.keys[wanted][kept], chunks.clips(numbers), chunks.shapes(numbers), found.rows.take(numbers)
    )
