"""Move chunks within the chunk grid of an array."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import Final

import numpy as np

from icefloe.core.commit.limits import check_changed_chunks
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, NodeSnapshot

Reindex = Callable[[Iterable[int]], Iterable[int] | None]
_TOO_MANY: Final = "rechunk the array to fewer, larger chunks first"


def shift(workspace: Workspace, node: NodeSnapshot, offset: Sequence[int]) -> None:
    """Shift all chunks of an array by an offset per dimension.

    Chunks that leave the grid are dropped.
    """
    steps = [index(step) for step in offset]
    grid = _get_regular_grid(node)
    if len(steps) != len(grid):
        raise InvalidInputError(
            f"{node.path} has {len(grid)} dimensions, but the offset has {len(steps)}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    if not any(steps):
        return
    # A shift by the length of the grid empties it. Longer shifts are clipped to fit into 64 bits.
    cut = np.array([max(-len(axis), min(step, len(axis))) for axis, step in zip(grid, steps, strict=True)])
    with workspace.editing():
        _check_count(workspace, node)
        refs = workspace.refs(node)
        moved = refs.coords.astype(np.int64) + cut
        kept = ((moved >= 0) & (moved < [len(axis) for axis in grid])).all(axis=1)
        written = replace(refs.take(kept), coords=moved[kept].astype(np.uint32))
        gone = refs.coords[~coordinates.contains(refs.coords, written.coords)]
        check_changed_chunks([(len(written) + len(gone), len(grid))], _TOO_MANY)
        workspace.replace_chunks(node, written, gone)


def reindex(workspace: Workspace, node: NodeSnapshot, forward: Reindex, backward: Reindex | None) -> None:
    """Move the chunks of an array to new coordinates in the chunk grid. See `Session.reindex_array`."""
    for function in (forward, backward):
        if function is not None and not callable(function):
            raise TypeError(f"'{type(function).__name__}' object is not callable")
    with workspace.editing():
        _check_count(workspace, node)
        written, gone = _reindex_refs(workspace.refs(node), node, forward, backward)
        check_changed_chunks([(len(written) + len(gone), written.rank)], _TOO_MANY)
        workspace.replace_chunks(node, written, gone)


def _check_count(workspace: Workspace, node: NodeSnapshot) -> None:
    """Raise an error if an array has more chunks than one commit may move. Manifests are not read."""
    data, base = node.node_data, workspace.base
    if not isinstance(data, ArrayNodeData) or node.path in workspace.changes.updated:
        return
    infos = [info for ref in data.manifests if (info := base.manifest_files.find(ref.id)) is not None]
    grid = math.prod(max(1, dimension.num_chunks) for dimension in data.shape)
    # A manifest may be shared with other arrays, so it may have more references than the array.
    count = min(grid, sum(info.num_chunk_refs for info in infos))
    check_changed_chunks([(count, len(data.shape))], _TOO_MANY)


def _reindex_refs(
    refs: ArrayManifest, node: NodeSnapshot, forward: Reindex, backward: Reindex | None
) -> tuple[ArrayManifest, Coords]:
    """Return the references at their new coordinates, and the coordinates that become empty."""
    grid = _get_regular_grid(node)
    rows, targets, gone = [], [], []
    for row, coords in enumerate(refs.coords.tolist()):  # calls the user's function once per chunk
        target = _check_coordinates(forward(list(coords)), grid, node.path)
        if target is not None:
            rows.append(row)
            targets.append(target)
        if backward is not None:
            source = _check_coordinates(backward(list(coords)), grid, node.path)
            if source is None or coordinates.find(refs.coords, source) is None:
                gone.append(coords)
    rank = len(grid)
    return _move_refs(refs, rows, targets, rank), np.array(gone, np.uint32).reshape(-1, rank)


def _get_regular_grid(node: NodeSnapshot) -> list[range]:
    """Return the chunk grid. Raise an error if it is irregular, because then chunks of different sizes would
    trade places.
    """
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        raise InvalidInputError(f"not an array: {node.path}", kind=ErrorKind.NOT_AN_ARRAY)
    name = json.loads(node.user_data)["chunk_grid"]["name"]
    if name != "regular":
        raise SessionStateError(
            f"{node.path} has a {name} chunk grid; chunks can only be moved in regular grids",
            kind=ErrorKind.UNIMPLEMENTED,
        )
    return [range(dimension.num_chunks) for dimension in data.shape]


def _check_coordinates(
    coords: Iterable[int] | None, grid: Sequence[range], path: str
) -> tuple[int, ...] | None:
    """Check that the coordinates returned by the user's function are inside the grid, and return them."""
    if coords is None:
        return None
    numbers = tuple(index(number) for number in coords)
    if len(numbers) != len(grid) or any(n not in axis for n, axis in zip(numbers, grid, strict=True)):
        raise InvalidInputError(
            f"{list(numbers)} is not in the chunk grid of {path}, which has {[len(axis) for axis in grid]} "
            "chunks",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )
    return numbers


def _move_refs(
    refs: ArrayManifest, rows: Sequence[int], targets: Sequence[Sequence[int]], rank: int
) -> ArrayManifest:
    """Return references at new coordinates. If several move to the same coordinates, the last one wins."""
    coords = np.array(targets, np.uint32).reshape(-1, rank)
    moved = replace(refs.take(np.array(rows, np.int64)), coords=coords)
    _, order = coordinates.keep_last_of_equal(coords)
    return moved if order is None else moved.take(order)
