"""Compare the nodes and chunks of any two versions, without reading chunks.

`Repository.diff` reads transaction logs, so one version must be an ancestor of the other, and chunks that
were changed and changed back are also listed. This module compares the two states, so the versions can be
unrelated and even come from different repositories.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.paths import normalize
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe.comparison.array_references import to_coordinate_columns
from icefloe.core.chunk_grid import Grid, get_stored_grid
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, NodeNotFoundError
from icefloe.format import coordinates
from icefloe.format.chunk_regions import list_chunks
from icefloe.format.manifest import ArrayManifest
from icefloe.format.snapshot import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.session import Session
from icefloe.snapshots import Diff

__all__ = ["ChunkDifferences", "Comparison", "compare"]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDifferences(Report):
    """The chunks of one array that differ between two versions, as arrays of shape `(chunks, dimensions)`."""

    path: str
    """The path of the array in the later version, or in the earlier version if it was deleted."""
    added: NDArray[np.uint32]
    """The coordinates of chunks that only the later version has."""
    removed: NDArray[np.uint32]
    """The coordinates of chunks that only the earlier version has."""
    changed: NDArray[np.uint32]
    """The coordinates of chunks that have different references in the two versions."""
    same_grid: bool = True
    """False if the chunk grids differ. Equal coordinates then refer to different cells, and all chunks are in
    `added` and `removed`.
    """

    def __len__(self) -> int:
        return len(self.added) + len(self.removed) + len(self.changed)

    @property
    def coords(self) -> NDArray[np.uint32]:
        """The sorted coordinates of all chunks that differ between the two versions."""
        parts = [each for each in (self.added, self.removed, self.changed) if len(each)]
        if len({each.shape[1] for each in parts}) > 1:  # the number of dimensions differs
            return self.added
        return coordinates.keep_last_of_equal(np.concatenate(parts))[0] if parts else self.changed

    def table(self) -> Table:
        """Return the differing chunks as a table: `chunk_0`, `chunk_1`, ... and `change` ("added", "removed",
        "changed").

        Returns
        -------
        Table
            The chunks, in the order added, removed, changed.
        """
        parts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        rank = max(each.shape[1] for each in parts.values())
        filled = [each if each.shape[1] == rank else each[:0].reshape(0, rank) for each in parts.values()]
        columns: dict[str, Any] = to_coordinate_columns(np.concatenate(filled))
        counts = [len(each) for each in filled]
        return Table(columns | {"change": np.repeat(np.array(list(parts), object), counts)})


@dataclass(frozen=True, slots=True)
class Comparison(Report):
    """The result of comparing two versions: the nodes and chunks that differ.

    Nodes are identified by their paths, in sorted order.
    """

    new_groups: tuple[str, ...] = ()
    """The groups that only the later version has."""
    new_arrays: tuple[str, ...] = ()
    """The arrays that only the later version has."""
    deleted_groups: tuple[str, ...] = ()
    """The groups that only the earlier version has."""
    deleted_arrays: tuple[str, ...] = ()
    """The arrays that only the earlier version has."""
    updated_groups: tuple[str, ...] = ()
    """The groups with different Zarr metadata."""
    updated_arrays: tuple[str, ...] = ()
    """The arrays with different Zarr metadata."""
    moved_nodes: tuple[tuple[str, str], ...] = ()
    """The moved nodes: the path in the earlier version, and the path in the later version."""
    chunks: Mapping[str, ChunkDifferences] = field(default_factory=dict)
    """The chunks that differ, by the path of their array. Arrays without differences are omitted."""

    def is_empty(self) -> bool:
        """Return True if both versions have the same nodes, metadata and references.

        Returns
        -------
        bool
            True if nothing differs.
        """
        return self == Comparison()

    def to_diff(self) -> Diff:
        """Convert this comparison to a `Diff`, the type that `Repository.diff` returns.

        Returns
        -------
        Diff
            The same differences, without distinguishing added, removed and changed chunks.
        """
        return Diff(
            set(self.new_groups),
            set(self.new_arrays),
            set(self.deleted_groups),
            set(self.deleted_arrays),
            set(self.updated_groups),
            set(self.updated_arrays),
            {path: list_chunks(each.coords) for path, each in self.chunks.items()},
            list(self.moved_nodes),
        )


def compare(before: Session, after: Session, *, path: str = "/") -> Comparison:
    """Compare any two versions: find the nodes and chunks that differ, without reading chunks.

    Nodes are matched by id, so moved nodes are recognized, and otherwise by path. Chunks are equal if their
    references are equal, so a chunk that was rewritten with equal values counts as different.

    Parameters
    ----------
    before
        The earlier version, or any other version. Uncommitted changes of writable sessions are included.
    after
        The later version.
    path
        Compare only this node and the nodes below it, by their paths in either version.

    Returns
    -------
    Comparison
        All differences.

    Raises
    ------
    NodeNotFoundError
        Neither version has the node `path`.

    Examples
    --------
    >>> import numpy as np, zarr, icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repo.transaction("main", message="data") as store:
    ...     _ = zarr.create_array(store, name="a", data=np.arange(1, 4), chunks=2)
    >>> repo.create_branch("dev", repo.lookup_branch("main"))
    >>> for branch, value in {"main": 7, "dev": 8}.items():
    ...     with repo.transaction(branch, message=branch) as store:
    ...         zarr.open_array(store, path="a")[0 if branch == "dev" else 2] = value
    >>> found = icefloe.compare(repo.readonly_session("dev"), repo.readonly_session("main"))
    >>> found.chunks["/a"].changed.tolist()
    [[0], [1]]
    """
    root = normalize(f"/{path}")
    pairs = list(_pair_nodes(before._workspace, after._workspace, root))
    if not pairs and root != "/":
        raise NodeNotFoundError(
            f"there is no node at {root} in either version", kind=ErrorKind.NODE_NOT_FOUND
        )
    names: dict[str, list[str]] = {}
    moved: list[tuple[str, str]] = []
    chunks: dict[str, ChunkDifferences] = {}
    for old, new in pairs:  # a loop over nodes, not over chunks
        if new is None:
            gone = cast(NodeSnapshot, old)
            names.setdefault(_choose_section("deleted", gone), []).append(gone.path)
        elif old is None:
            names.setdefault(_choose_section("new", new), []).append(new.path)
        else:
            if old.user_data != new.user_data:
                names.setdefault(_choose_section("updated", new), []).append(new.path)
            if old.path != new.path:
                moved.append((old.path, new.path))
        found = _find_chunk_differences(before._workspace, after._workspace, old, new)
        if found is not None and len(found):
            chunks[found.path] = found
    return Comparison(
        **{name: tuple(sorted(paths)) for name, paths in names.items()},
        moved_nodes=tuple(sorted(moved)),
        chunks=dict(sorted(chunks.items())),
    )


def find_array_differences(
    before: Workspace, after: Workspace, old: NodeSnapshot, new: NodeSnapshot
) -> ChunkDifferences:
    """Compare two versions of an array: find the chunks that differ."""
    if not _has_same_grid(old, new):
        added, removed = after.refs(new).coords, before.refs(old).coords
        return ChunkDifferences(new.path, added, removed, added[:0], same_grid=False)
    olds, news = read_differing_references(before, after, old, new)
    kept = coordinates.contains(news.coords, olds.coords)
    still = coordinates.contains(olds.coords, news.coords)
    both = news.take(kept)
    changed = both.coords[~both.equal_rows(olds.take(still))]
    return ChunkDifferences(new.path, news.coords[~kept], olds.coords[~still], changed)


def read_differing_references(
    before: Workspace, after: Workspace, old: NodeSnapshot, new: NodeSnapshot
) -> tuple[ArrayManifest, ArrayManifest]:
    """Read the references of an array in two versions, skipping manifests that both versions share."""
    is_shrunk = any(size < was for was, size in zip(_get_shape(old), _get_shape(new), strict=True))
    is_changed = any(each.id in space.changes.chunks for space, each in ((before, old), (after, new)))
    if is_shrunk or is_changed or old.id != new.id:
        return before.refs(old), after.refs(new)
    apart = _get_manifests(old) ^ _get_manifests(new)
    sides = []
    for workspace, node in ((before, old), (after, new)):
        parts = [workspace.manifest_refs(node, ref) for ref in _get_manifests(node) & apart]
        empty = ArrayManifest.of(np.zeros((0, len(_get_shape(node))), np.uint32), 1)
        sides.append(ArrayManifest.concat(parts) if parts else empty)
    return sides[0], sides[1]


def _choose_section(change: str, node: NodeSnapshot) -> str:
    return f"{change}_{'arrays' if isinstance(node.node_data, ArrayNodeData) else 'groups'}"


def _pair_nodes(
    before: Workspace, after: Workspace, root: str
) -> Iterator[tuple[NodeSnapshot | None, NodeSnapshot | None]]:
    """Pair the nodes of two versions by id, otherwise by path. A missing counterpart is None."""
    olds, news = _list_nodes(before), _list_nodes(after)
    by_id = {node.id: node for node in olds.values()}
    counterparts: dict[str, NodeSnapshot] = {}
    for path, node in news.items():
        same = by_id.get(node.id)
        if same is not None and _choose_section("", same) == _choose_section("", node):
            counterparts[path] = same
    taken = {node.path for node in counterparts.values()}
    for path in news.keys() & olds.keys() - counterparts.keys() - taken:
        if _choose_section("", olds[path]) == _choose_section("", news[path]):
            counterparts[path] = olds[path]
    taken = {node.path for node in counterparts.values()}
    for path, node in news.items():
        old = counterparts.get(path)
        if _is_below(path, root) or (old is not None and _is_below(old.path, root)):
            yield old, node
    for path, node in olds.items():
        if path not in taken and _is_below(path, root):
            yield node, None


def _list_nodes(workspace: Workspace) -> dict[str, NodeSnapshot]:
    found = ((path, workspace.node(path)) for path in workspace.paths())
    return {path: node for path, node in found if node is not None}


def _is_below(path: str, root: str) -> bool:
    return root in ("/", path) or path.startswith(f"{root}/")


def _find_chunk_differences(
    before: Workspace, after: Workspace, old: NodeSnapshot | None, new: NodeSnapshot | None
) -> ChunkDifferences | None:
    """Find the chunks of an array that differ between two versions. Return None for groups."""
    node = new or old
    if node is None or not isinstance(node.node_data, ArrayNodeData):
        return None
    if old is not None and new is not None:
        return find_array_differences(before, after, old, new)
    coords = (before if new is None else after).refs(node).coords
    none = coords[:0]
    return ChunkDifferences(node.path, *((none, coords) if new is None else (coords, none)), none)


def _get_manifests(node: NodeSnapshot) -> set[ManifestRef]:
    data = node.node_data
    return set(data.manifests) if isinstance(data, ArrayNodeData) else set()


def _get_shape(node: NodeSnapshot) -> tuple[int, ...]:
    data = node.node_data
    return data.lengths if isinstance(data, ArrayNodeData) else ()


def _has_same_grid(old: NodeSnapshot, new: NodeSnapshot) -> bool:
    """Return True if chunks with the same coordinates contain the same cells in both versions."""
    if old.user_data == new.user_data:
        return True
    if len(_get_shape(old)) != len(_get_shape(new)):
        return False
    one, other = get_array_grid(old), get_array_grid(new)
    counts = [min(len(a), len(b)) for a, b in zip(one.edges, other.edges, strict=True)]
    return all(
        np.array_equal(a[:count], b[:count])
        for a, b, count in zip(one.edges, other.edges, counts, strict=True)
    )


def get_array_grid(node: NodeSnapshot) -> Grid:
    """Return the grid in which two versions of an array are compared: its chunk grid, or its shard grid."""
    return get_stored_grid(json.loads(node.user_data))
