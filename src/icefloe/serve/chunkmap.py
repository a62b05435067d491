"""The chunks of an array as a map: kind, size, commit or source file of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.redaction import redact
from icefloe.core.merge.state_changes import same_chunks
from icefloe.errors import IcechunkError
from icefloe.format import coordinates
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot
from icefloe.serve.windows import ArrayView
from icefloe.serve.work import check_job
from icefloe.session import Session
from icefloe.snapshots import SnapshotInfo

MOST_BINS: Final = 250
"""Bins along each side of the map; larger grids are summarized."""
KINDS: Final = {NATIVE: "native", VIRTUAL: "virtual", INLINE: "inline"}
_MOST_CATEGORIES: Final = 12
_MOST_COMMITS: Final = 200
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True, eq=False)
class ChunkMap:
    """A map of chunks. Cells with code 0 have no chunk; others are categories, counted from 1, or sizes."""

    codes: NDArray[np.uint8]
    """(rows, columns)"""
    legend: tuple[str, ...]
    """The meaning of each code from 1 on."""
    counts: tuple[int, ...]
    """Chunks of each category."""
    sizes: tuple[int, ...]
    """Bytes of each category."""
    grid: tuple[int, ...]
    across: int
    """The dimension that runs from left to right; the others are stacked."""
    ids: tuple[str, ...] = ()
    """Snapshot ids of the categories, where they are commits."""

    def facts(self) -> dict[str, Any]:
        """Return everything except the cells."""
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
        }


def chunk_references(view: ArrayView) -> ArrayManifest:
    """Return the references of all chunks of an array, as columns."""
    return view.session._workspace.refs(view.node)


def reference_lengths(refs: ArrayManifest) -> NDArray[np.int64]:
    """Return the stored bytes of each chunk."""
    return np.where(refs.kind == INLINE, refs.inline.lengths, refs.lengths).astype(np.int64)


def draw_chunk_map(view: ArrayView, refs: ArrayManifest, by: str, writers: Writers | None = None) -> ChunkMap:
    """Draw the chunks of an array.

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
        codes, legend = writers.codes, tuple(each.message.partition("\n")[0] for each in writers.commits)
        ids = tuple(each.id for each in writers.commits)
        codes, legend = np.where(codes < 0, len(legend), codes), (*legend, "older")
    elif by == "source":
        codes, legend = _sources(refs)
    elif by == "size":
        codes, legend = _size_classes(lengths)
    else:
        codes, legend = refs.kind.astype(np.int64) - 1, ("native", "virtual", "inline")
    codes, legend, ids = _most_frequent(codes, legend, ids)
    counts = np.bincount(codes, minlength=len(legend))
    sizes = np.bincount(codes, weights=lengths, minlength=len(legend))
    grid = tuple(size.num_chunks or 1 for size in _data(view).shape) or (1,)
    across = int(np.argmax(grid))
    cells = _bins(refs.coords, codes, len(legend), grid, across)
    return ChunkMap(
        cells, legend, tuple(counts.tolist()), tuple(int(each) for each in sizes), grid, across, ids
    )


def _data(view: ArrayView) -> ArrayNodeData:
    data = view.node.node_data
    if not isinstance(data, ArrayNodeData):
        raise TypeError(f"{view.path} is not an array")
    return data


def _bins(
    coords: NDArray[np.uint32], codes: NDArray[np.int64], categories: int, grid: tuple[int, ...], across: int
) -> NDArray[np.uint8]:
    """Give each bin the category that most of its chunks have."""
    columns = grid[across]
    others = [axis for axis in range(len(grid)) if axis != across]
    rows = math.prod(grid[axis] for axis in others)
    row = np.zeros(len(coords), np.int64)
    for axis in others:
        row = row * grid[axis] + coords[:, axis].astype(np.int64)
    column = coords[:, across].astype(np.int64) if coords.shape[1] else np.zeros(len(coords), np.int64)
    height, width = min(rows, MOST_BINS), min(columns, MOST_BINS)
    cell = (row * height // rows) * width + column * width // columns
    counted = np.bincount(cell * categories + codes, minlength=height * width * categories)
    by_cell = counted.reshape(height, width, categories)
    found = np.where(by_cell.sum(axis=2) > 0, by_cell.argmax(axis=2) + 1, 0)
    return found.astype(np.uint8)


def _sources(refs: ArrayManifest) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    names = [redact(text.decode("utf-8", "replace")) for text in refs.locations.tolist()]
    codes = np.where(refs.kind == VIRTUAL, refs.location_codes.astype(np.int64) + 1, 0)
    return codes, ("this repository", *names)


def _size_classes(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Sort sizes into classes of powers of four."""
    edges = [1 << 10 << 2 * power for power in range(8)]
    names = [
        "below 1 KiB",
        *(f"{_size(low)} to {_size(4 * low)}" for low in edges[:-1]),
        f"{_size(edges[-1])} and more",
    ]
    return np.searchsorted(edges, lengths, "right").astype(np.int64), tuple(names)


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _most_frequent(
    codes: NDArray[np.int64], legend: tuple[str, ...], ids: tuple[str, ...]
) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[str, ...]]:
    """Keep the categories that occur, at most a dozen; put the rest together."""
    counts = np.bincount(codes, minlength=len(legend))
    there = np.flatnonzero(counts)
    kept = there if len(there) <= _MOST_CATEGORIES else np.sort(np.argsort(-counts)[: _MOST_CATEGORIES - 1])
    place = np.full(len(legend), len(kept), np.int64)
    place[kept] = np.arange(len(kept))
    names = tuple(legend[each] for each in kept)
    chosen = tuple(ids[each] if each < len(ids) else "" for each in kept) if ids else ()
    if len(there) > len(kept):
        names, chosen = (*names, _OTHER), (*chosen, "") if ids else ()
    return place[codes], names, chosen


@dataclass(frozen=True, slots=True, eq=False)
class Writers:
    """The commit that wrote each chunk."""

    commits: tuple[SnapshotInfo, ...]
    codes: NDArray[np.int64]
    """For each reference the number of its commit; -1 for commits that are older than those looked at."""


def find_writers(
    view: ArrayView, refs: ArrayManifest, history: Iterator[SnapshotInfo], open_session: Any
) -> Writers:
    """Find the commit that wrote each chunk, by comparing references along the first-parent history.

    Parameters
    ----------
    view
        The array at the newest snapshot of the history.
    refs
        Its references.
    history
        The commits, newest first.
    open_session
        Opens a session by snapshot id.
    """
    codes = np.full(len(refs), -1, np.int64)
    commits: list[SnapshotInfo] = []
    current: tuple[NodeSnapshot | None, ArrayManifest] = (view.node, refs)
    newer = next(history, None)
    for _ in range(_MOST_COMMITS):
        if newer is None or not (codes < 0).any():
            break
        check_job()
        older = next(history, None)
        before = (
            (None, refs.take(slice(0, 0)))
            if older is None
            else _at(open_session, older.id, view.path, current)
        )
        if before[0] is not current[0]:
            changed = _changed(current[1], before[1])
            own = (codes < 0) & coordinates.contains(refs.coords, changed)
            if own.any():
                codes[own] = len(commits)
                commits.append(newer)
        current, newer = before, older
    return Writers(tuple(commits), codes)


def _at(
    open_session: Any, id: str, path: str, newer: tuple[NodeSnapshot | None, ArrayManifest]
) -> tuple[NodeSnapshot | None, ArrayManifest]:
    """Return the array and its references in an older snapshot; those of the newer one if nothing changed."""
    try:
        session: Session = open_session(id)
        node = session._workspace.node(path)
        if node is None or not isinstance(node.node_data, ArrayNodeData):
            return (None, newer[1].take(slice(0, 0)))
        known = newer[0]
        if known is not None and isinstance(known.node_data, ArrayNodeData):
            if known.node_data.manifests == node.node_data.manifests:
                return newer
            if len(known.node_data.shape) != len(node.node_data.shape):
                return (node, newer[1].take(slice(0, 0)))
        return (node, session._workspace.refs(node))
    except IcechunkError:  # an expired snapshot: what it had is not known
        return (None, newer[1].take(slice(0, 0)))


def _changed(newer: ArrayManifest, older: ArrayManifest) -> NDArray[np.uint32]:
    """Return the coordinates of references that an older list does not have."""
    if not len(older):
        return newer.coords
    same = same_chunks(newer, older)
    return newer.coords[~coordinates.contains(newer.coords, same)]
