"""Chunk maps of arrays, coloured by kind, size, commit, source file or missing values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.redaction import redact
from icefloe.comparison.blame import Blame
from icefloe.comparison.versions import ChunkDifferences
from icefloe.core.chunk_grid import get_stored_grid
from icefloe.errors import IcechunkError
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.maintenance.statistics.lookup import ChunkStatistics
from icefloe.serve.asgi import RequestError
from icefloe.serve.windows import ArrayView
from icefloe.session import Session

MAX_BINS: Final = 250
"""The number of bins along each side of the map. Larger grids are summarized."""
MAX_CHUNKS_COUNTED: Final = 100_000
"""The maximum number of chunks to count while a page is rendered. Larger numbers are counted on request."""
KINDS: Final = {NATIVE: "native", VIRTUAL: "virtual", INLINE: "inline"}
_MAX_CATEGORIES: Final = 12
_MAX_LABELLED: Final = 400
"""The maximum number of chunks along a dimension for which a page contains labels."""
_OTHER: Final = "other"
_SHARES: Final = (0.01, 0.1, 0.5)
_MISSING: Final = {
    "none missing": "#b4c3cf",
    "up to 1 % missing": "#fed976",
    "up to 10 % missing": "#fd8d3c",
    "up to 50 % missing": "#e31a1c",
    "more than 50 % missing": "#99000d",
    "all missing": "#7a0177",
    "no statistics": "#79828a",
}
"""Colours for classes of chunks by their share of missing values."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkMap:
    """A map of an array's chunks as a grid of coloured cells.

    Cells with code 0 have no chunk. All other codes are categories, counted from 1, or sizes.
    """

    codes: NDArray[np.uint8]
    """The code of each cell, of shape `(rows, columns)`."""
    legend: tuple[str, ...]
    """The meaning of each code, starting with code 1."""
    counts: tuple[int, ...]
    """The number of chunks in each category."""
    sizes: tuple[int, ...]
    """The number of bytes in each category."""
    grid: tuple[int, ...]
    across: int
    """The horizontal dimension; all others are stacked vertically."""
    ids: tuple[str, ...] = ()
    """The snapshot id of each category, if the categories are commits."""
    colours: tuple[str, ...] = ()
    """The colour of each category, if the categories are ordered."""

    def facts(self) -> dict[str, Any]:
        """Return everything about the chunk map except its cells."""
        rows, columns = self.codes.shape
        return {
            "rows": rows,
            "columns": columns,
            "legend": self.legend,
            "counts": self.counts,
            "sizes": self.sizes,
            "grid": self.grid,
            "across": self.across,
            "ids": self.ids,
            "colours": self.colours,
        }


def count_references(session: Session, node: NodeSnapshot) -> int:
    """Return the number of chunk references in an array's manifests, without reading them."""
    files = session._workspace.base.manifest_files
    if not isinstance(node.node_data, ArrayNodeData):
        return 0
    found = [files.find(ref.id) for ref in node.node_data.manifests]
    return sum(each.num_chunk_refs for each in found if each is not None)


def chunk_references(view: ArrayView) -> ArrayManifest:
    """Return all chunk references of an array as columns."""
    return view.session._workspace.refs(view.node)


def reference_lengths(refs: ArrayManifest) -> NDArray[np.int64]:
    """Return the stored size of each chunk in bytes."""
    return np.where(refs.kind == INLINE, refs.inline.lengths, refs.lengths).astype(np.int64)


def label_chunks(view: ArrayView) -> list[list[str] | None]:
    """Return the label of each chunk's first element along each dimension.

    A dimension is None if it has no labels, or too many chunks to send their labels.
    """
    found: list[list[str] | None] = []
    for axis, edges in enumerate(get_stored_grid(view.document).edges):
        starts = [int(edge) for edge in edges[:-1]] if 1 < len(edges) <= _MAX_LABELLED + 1 else []
        found.append(_label_cells(view, axis, starts) if starts else None)
    return found


def _label_cells(view: ArrayView, axis: int, cells: list[int]) -> list[str] | None:
    try:
        coordinate = view.coordinate(axis)
    except (RequestError, IcechunkError):  # a coordinate that cannot be read
        return None
    return None if coordinate.values is None else coordinate.labels(cells)


def draw_chunk_map(view: ArrayView, refs: ArrayManifest, by: str, writers: Blame | None = None) -> ChunkMap:
    """Draw the chunk map of an array, coloured by kind, size, commit or source file.

    Parameters
    ----------
    view
        The array.
    refs
        Its references.
    by
        kind, size, commit or source.
    writers
        The commits that wrote the chunks, for `by="commit"`.
    """
    lengths = reference_lengths(refs)
    ids: tuple[str, ...] = ()
    if by == "commit" and writers is not None:
        codes, legend = writers.writers, tuple(each.message.partition("\n")[0] for each in writers.commits)
        ids = tuple(each.id for each in writers.commits)
        codes, legend = np.where(codes < 0, len(legend), codes), (*legend, "older")
    elif by == "source":
        codes, legend = _sources(refs)
    elif by == "size":
        codes, legend = _classify_sizes(lengths)
    else:
        codes, legend = refs.kind.astype(np.int64) - 1, ("native", "virtual", "inline")
    codes, legend, ids = _keep_most_frequent(codes, legend, ids)
    counts = np.bincount(codes, minlength=len(legend))
    sizes = np.bincount(codes, weights=lengths, minlength=len(legend))
    grid = tuple(size.num_chunks or 1 for size in _get_data(view).shape) or (1,)
    across = int(np.argmax(grid))
    cells = _assign_bins(refs.coords, codes, len(legend), grid, across)
    return ChunkMap(
        cells, legend, tuple(counts.tolist()), tuple(int(each) for each in sizes), grid, across, ids
    )


def draw_missing(found: ChunkStatistics) -> ChunkMap:
    """Draw a chunk map that shows the share of missing values in each chunk.

    Chunks that are not stored are included.
    """
    missing = np.where(found.known, found.rows.nulls, 0)
    cells = np.where(found.known, found.cells, 0)
    grid = found.chunks.counts or (1,)
    across = int(np.argmax(grid))
    drawn = classify_missing(_sum_bins(missing, grid, across), _sum_bins(cells, grid, across))
    counts = np.bincount(classify_missing(missing, cells), minlength=len(_MISSING))
    colours = tuple(_MISSING.values())
    codes = (drawn + 1).astype(np.uint8)
    return ChunkMap(codes, tuple(_MISSING), tuple(counts.tolist()), (), grid, across, colours=colours)


def classify_missing(missing: NDArray[Any], cells: NDArray[Any]) -> NDArray[np.int64]:
    """Sort chunks into classes by their share of missing values. Chunks with 0 cells are unknown."""
    classes = 1 + np.searchsorted(_SHARES, missing / np.maximum(cells, 1))
    return np.select([cells == 0, missing == 0, missing == cells], [len(_MISSING) - 1, 0, 5], classes)


def _sum_bins(values: NDArray[np.int64], grid: tuple[int, ...], across: int) -> NDArray[np.float64]:
    """Sum per-chunk numbers within each bin of the chunk map."""
    table = np.moveaxis(values.reshape(grid), across, -1).reshape(-1, grid[across])
    rows, columns = table.shape
    height, width = min(rows, MAX_BINS), min(columns, MAX_BINS)
    row, column = np.arange(rows) * height // rows, np.arange(columns) * width // columns
    bins = (row[:, None] * width + column).reshape(-1)
    return np.asarray(np.bincount(bins, table.reshape(-1), height * width), "f8").reshape(height, width)


def draw_changes(view: ArrayView, refs: ArrayManifest, changes: ChunkDifferences | None) -> ChunkMap:
    """Draw a chunk map of the later of two versions, in which the differing chunks are marked.

    Parameters
    ----------
    view
        The array in the later version.
    refs
        Its references.
    changes
        The chunks that differ; None if there are none.
    """
    grid = tuple(size.num_chunks or 1 for size in _get_data(view).shape) or (1,)
    parts = [refs.coords[:, : len(grid)]]
    if changes is not None:
        parts += [changes.changed, changes.added, changes.removed]
    inside = [_keep_inside(part, grid) for part in parts]
    codes = np.repeat(np.arange(len(inside)), [len(each) for each in inside])
    counts = [len(each) for each in parts]
    counts[0] -= sum(counts[1:3])
    across = int(np.argmax(grid))
    cells = _assign_bins(np.concatenate(inside), codes, len(inside), grid, across, last_wins=True)
    legend = ("unchanged", "changed", "added", "deleted")[: len(parts)]
    return ChunkMap(cells, legend, tuple(counts), (), grid, across)


def _keep_inside(coords: NDArray[np.uint32], grid: tuple[int, ...]) -> NDArray[np.uint32]:
    """Drop chunks outside the grid, because the array can be larger in the other version."""
    if coords.shape[1] != len(grid):  # a scalar, or an array with a different number of dimensions
        return np.zeros((len(coords) if not coords.shape[1] else 0, len(grid)), np.uint32)
    return coords[(coords < np.array(grid, np.uint32)).all(axis=1)]


def _get_data(view: ArrayView) -> ArrayNodeData:
    data = view.node.node_data
    if not isinstance(data, ArrayNodeData):
        raise TypeError(f"{view.path} is not an array")
    return data


def _assign_bins(
    coords: NDArray[np.uint32],
    codes: NDArray[np.int64],
    categories: int,
    grid: tuple[int, ...],
    across: int,
    *,
    last_wins: bool = False,
) -> NDArray[np.uint8]:
    """Assign to each bin the most frequent category of its chunks or, with `last_wins`, the last category."""
    columns = grid[across]
    others = [axis for axis in range(len(grid)) if axis != across]
    rows = math.prod(grid[axis] for axis in others)
    row = np.zeros(len(coords), np.int64)
    for axis in others:
        row = row * grid[axis] + coords[:, axis].astype(np.int64)
    column = coords[:, across].astype(np.int64) if coords.shape[1] else np.zeros(len(coords), np.int64)
    height, width = min(rows, MAX_BINS), min(columns, MAX_BINS)
    cell = (row * height // rows) * width + column * width // columns
    counted = np.bincount(cell * categories + codes, minlength=height * width * categories)
    by_cell = counted.reshape(height, width, categories)
    if not categories:  # no chunk was written
        return np.zeros((height, width), np.uint8)
    last = categories - 1 - (by_cell[..., ::-1] > 0).argmax(axis=2)
    chosen = last if last_wins else by_cell.argmax(axis=2)
    found = np.where(by_cell.sum(axis=2) > 0, chosen + 1, 0)
    return found.astype(np.uint8)


def _sources(refs: ArrayManifest) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    names = [redact(text.decode("utf-8", "replace")) for text in refs.locations.tolist()]
    codes = np.where(refs.kind == VIRTUAL, refs.location_codes.astype(np.int64) + 1, 0)
    return codes, ("this repository", *names)


def _classify_sizes(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Sort sizes into classes of powers of four."""
    edges = [1 << 10 << 2 * power for power in range(8)]
    names = [
        "below 1 KiB",
        *(f"{_format_size(low)} to {_format_size(4 * low)}" for low in edges[:-1]),
        f"{_format_size(edges[-1])} and more",
    ]
    return np.searchsorted(edges, lengths, "right").astype(np.int64), tuple(names)


def _format_size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _keep_most_frequent(
    codes: NDArray[np.int64], legend: tuple[str, ...], ids: tuple[str, ...]
) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[str, ...]]:
    """Keep at most a dozen of the most frequent categories, and merge all others into one."""
    counts = np.bincount(codes, minlength=len(legend))
    there = np.flatnonzero(counts)
    kept = there if len(there) <= _MAX_CATEGORIES else np.sort(np.argsort(-counts)[: _MAX_CATEGORIES - 1])
    place = np.full(len(legend), len(kept), np.int64)
    place[kept] = np.arange(len(kept))
    names = tuple(legend[each] for each in kept)
    chosen = tuple(ids[each] if each < len(ids) else "" for each in kept) if ids else ()
    if len(there) > len(kept):
        names, chosen = (*names, _OTHER), (*chosen, "") if ids else ()
    return place[codes], names, chosen
