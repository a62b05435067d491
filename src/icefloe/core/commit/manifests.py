"""Decide which manifests of an array to keep, and create a new manifest for each changed window of the chunk
grid.

The configuration splits the chunk grid into windows. If an attempt to commit loses a race, the manifests that
it wrote are remembered by window, and the next attempt writes only windows that the winner also changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.config.repository import SplitSizes
from icefloe.core.changeset import ArrayDelta
from icefloe.core.early_manifests import EarlyManifest, JoinedManifests, describe_early_manifest
from icefloe.core.workspace import Workspace
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.files import pack_blocks
from icefloe.format.manifest import ArrayManifest, ChunkRef, Manifest
from icefloe.format.manifest_blocks import FewRefs, RefBlocks
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ArrayNodeData, ManifestFileInfo, ManifestRef, NodeSnapshot

UNSPLIT: Final = 0xFFFFFFFF

Window: TypeAlias = tuple[int, ...] | None
"""The index of a manifest window along each dimension of the chunk grid; None for several windows at once."""

Place: TypeAlias = tuple[NodeId, Window]
"""An array and one of its windows."""


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """The inputs for the new manifests of one window: old manifests and changes."""

    manifests: tuple[ManifestRef, ...]
    written: ArrayManifest | FewRefs | None
    gone: Coords
    grid: tuple[range, ...]

    @property
    def columns(self) -> ArrayManifest | None:
        """The written chunk references, as columns."""
        return _to_columns(self.written, len(self.grid))

    def same_as(self, other: Sources) -> bool:
        """Return True if these inputs would produce the same manifests as other inputs."""
        return (
            self.grid == other.grid
            and [ref.id for ref in self.manifests] == [ref.id for ref in other.manifests]
            and np.array_equal(self.gone, other.gone)
            and (self.written is other.written or self.written == other.written)
        )


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new manifests that a commit writes for one window, or for several interdependent windows."""

    sources: Sources
    refs: tuple[ManifestRef, ...]
    infos: tuple[ManifestFileInfo, ...]


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """The plan for one array in a commit: the manifests to keep and those to write."""

    node: NodeSnapshot
    data: ArrayNodeData
    kept: tuple[ManifestRef, ...]
    places: dict[Place, Sources]
    infos: tuple[ManifestFileInfo, ...] = ()
    """The entries of kept manifests that are not yet part of a snapshot."""

    def finished(self, rewritten: Mapping[Place, Rewritten]) -> NodeSnapshot:
        """Return the array node with its kept and new manifests."""
        refs = [*self.kept, *(ref for place in self.places for ref in rewritten[place].refs)]
        refs.sort(key=lambda ref: [extent.start for extent in ref.extents])
        return replace(self.node, node_data=replace(self.data, manifests=tuple(refs)))


def plan(workspace: Workspace, node: NodeSnapshot) -> ManifestPlan:
    """Plan the manifests of an array in a commit by assigning old manifests and changes to windows."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        raise TypeError(f"{node.path} is a group and has no manifests")
    grid = tuple(range(max(dimension.num_chunks, 1)) for dimension in data.shape)
    sizes = split_sizes(workspace.assets.config.split_sizes, node)
    with workspace.exclusive():  # readers in other threads may convert the delta to columns
        delta = workspace.changes.chunks.get(node.id) or ArrayDelta(node.path, len(grid))
        whole_delta = None
        if delta.early and delta.rank == len(grid) and not workspace.rewrites_all:
            whole_delta = delta.copy()
    early: Sequence[EarlyManifest] = ()
    if whole_delta is not None:
        # Early manifests can be used as they are only if nothing else is in their window, because the extents
        # of two manifests of an array MUST NOT overlap (spec, ManifestRef).
        early, delta = _separate_early(whole_delta, data.manifests, grid, sizes)
    done, infos = [each.ref for each in early], tuple(each.info for each in early)
    replaced = frozenset[ManifestId]().union(*(each.replaces for each in early))
    manifests = [ref for ref in data.manifests if ref.id not in replaced]
    with workspace.exclusive():
        written: ArrayManifest | FewRefs | None = delta.to_single_refs() if delta.rank == len(grid) else None
        gone = np.zeros((0, len(grid)), np.uint32)
        if written is None:
            written, gone = delta.resolve()
    puts = _split_written_by_window(written, sizes)
    drops = {window: gone[rows] for window, rows in _split_rows_by_window(gone, sizes)}
    dirty = {_find_window(ref, sizes) for ref in manifests} if workspace.rewrites_all else {*puts, *drops}
    kept, loose = _separate_manifests(manifests, grid, sizes, dirty)
    # A manifest with unknown or too large extents may contain references of any window, so no window can be
    # rewritten separately.
    if None in loose:
        old = tuple(ref for refs in loose.values() for ref in refs)
        whole = Sources(old, _to_columns(written, len(grid)), gone, grid)
        kept, whole = _join_windows(workspace, node, kept, whole, sizes)
        return ManifestPlan(node, data, (*kept, *done), {(node.id, None): whole}, infos)
    places: dict[Place, Sources] = {}
    for window in {*puts, *drops, *loose}:
        old = tuple(loose.get(window, ()))
        places[node.id, window] = Sources(old, puts.get(window), drops.get(window, gone[:0]), grid)
    return ManifestPlan(node, data, (*kept, *done), places, infos)


def _separate_early(
    delta: ArrayDelta, manifests: Sequence[ManifestRef], grid: Sequence[range], sizes: Sequence[int]
) -> tuple[list[EarlyManifest], ArrayDelta]:
    """Separate early manifests that can be used unchanged, because they are alone in their window or replace
    all other manifests there, from all other changes, which are returned as columns.
    """
    rest = delta.without_early()
    old: dict[Window, set[ManifestId]] = {}
    for ref in manifests:
        old.setdefault(_find_window(ref, sizes), set()).add(ref.id)
    mine = [_find_window(each.ref, sizes) for each in delta.early]
    count = Counter([*mine, *(window for window, _ in _split_rows_by_window(rest.coords(), sizes))])
    alone: list[EarlyManifest] = []
    others: list[EarlyManifest] = []
    for window, each in zip(mine, delta.early, strict=True):
        in_grid = all(e.stop <= g.stop for e, g in zip(each.ref.extents, grid, strict=True))
        known = None not in old and window is not None
        fits = known and in_grid and count[window] == 1 and old.get(window, set()) == each.replaces
        (alone if fits else others).append(each)
    read: list[ArrayManifest | Coords] = [each.refs(delta.path) for each in others]
    return alone, replace(rest, segments=[*read, *rest.segments])


def _join_windows(
    workspace: Workspace, node: NodeSnapshot, kept: list[ManifestRef], whole: Sources, sizes: Sequence[int]
) -> tuple[list[ManifestRef], Sources]:
    """Combine all windows if an old manifest covers several of them, which happens if the manifest split
    sizes used to be larger.

    A manifest that could be kept is also rewritten if another manifest extends into its window.
    """
    spilled = {
        window
        for ref in whole.manifests
        for window, _ in _split_rows_by_window(workspace.manifest_refs(node, ref).coords, sizes)
    }
    more = tuple(ref for ref in kept if _find_window(ref, sizes) in spilled)
    rest = [ref for ref in kept if _find_window(ref, sizes) not in spilled]
    return rest, replace(whole, manifests=(*whole.manifests, *more))


def splice_refs(
    workspace: Workspace, node: NodeSnapshot, sources: Sources
) -> tuple[PackedManifest, ManifestRef] | None:
    """Add a few changed references to the only manifest of a window; None if the manifest needs a full
    rewrite.
    """
    few, assets = sources.written, workspace.assets
    if few is None or isinstance(few, ArrayManifest) or len(sources.gone) or len(sources.manifests) > 1:
        return None
    rank = len(sources.grid)
    refs: RefBlocks | None = RefBlocks.none(rank)
    if sources.manifests:
        refs = workspace.manifest(sources.manifests[0]).blocks(node.id, rank)
    if refs is None or assets.config.compress_locations:
        return None
    id = ManifestId.random()
    spliced = refs.upsert(few, f"a manifest of {node.path}")
    if any(extent.stop > of_grid.stop for extent, of_grid in zip(spliced.extents, sources.grid, strict=True)):
        return None
    return pack_blocks(id, node.id, spliced), ManifestRef(id, spliced.extents)


def make_manifests(workspace: Workspace, node: NodeSnapshot, sources: Sources) -> list[Manifest]:
    """Create new manifests from old manifests and changes. Windows without remaining chunks get no
    manifest.
    """
    refs = [workspace.manifest_refs(node, ref) for ref in sources.manifests]
    if refs and len(sources.gone):
        refs = [ArrayManifest.concat(refs).without(sources.gone)]
    if (written := sources.columns) is not None:
        refs.append(written)
    if not refs:
        return []
    joined = ArrayManifest.concat(refs)
    # After a resize to a smaller shape, old manifests contain references outside the grid. They are
    # dropped here and not during the resize, so that a resize does not read manifests.
    inside = coordinates.are_inside(joined.coords, sources.grid)
    joined = joined if inside.all() else joined.take(inside)
    sizes = split_sizes(workspace.assets.config.split_sizes, node)
    return [
        Manifest(ManifestId.random(), {node.id: part})
        for part in split_refs_by_window(joined, sizes).values()
    ]


def _separate_manifests(
    manifests: Sequence[ManifestRef], grid: Sequence[range], sizes: Sequence[int], dirty: set[Window]
) -> tuple[list[ManifestRef], dict[Window, list[ManifestRef]]]:
    """Return the manifests to keep, and those to rewrite, by window."""
    kept: list[ManifestRef] = []
    loose: dict[Window, list[ManifestRef]] = {}
    for ref in manifests:
        window = _find_window(ref, sizes)
        in_grid = all(e.stop <= g.stop for e, g in zip(ref.extents, grid, strict=False))
        if window is not None and window not in dirty and in_grid:
            kept.append(ref)
        else:
            loose.setdefault(window, []).append(ref)
    stays: list[ManifestRef] = []
    for ref in kept:  # rewrite two manifests of one window together, because their extents might overlap
        window = _find_window(ref, sizes)
        loose.get(window, stays).append(ref)
    return stays, loose


def _find_window(ref: ManifestRef, sizes: Sequence[int]) -> Window:
    """Return the window of a manifest; None if it covers several windows, has no extents or has another
    rank.
    """
    if len(ref.extents) != len(sizes):
        return None
    first = tuple(e.start // size for e, size in zip(ref.extents, sizes, strict=True))
    last = tuple(max(e.stop - 1, e.start) // size for e, size in zip(ref.extents, sizes, strict=True))
    return first if first == last else None


def _to_columns(written: ArrayManifest | FewRefs | None, rank: int) -> ArrayManifest | None:
    if written is None or isinstance(written, ArrayManifest):
        return written
    return ArrayManifest.from_refs(written, rank)


def _split_written_by_window(
    written: ArrayManifest | FewRefs | None, sizes: Sequence[int]
) -> Mapping[Window, ArrayManifest | FewRefs]:
    """Split the written references by window."""
    if written is None:
        return {}
    if isinstance(written, ArrayManifest):
        return split_refs_by_window(written, sizes)
    parts: dict[Window, dict[tuple[int, ...], ChunkRef]] = {}
    for coords, ref in written.items():
        window = tuple(number // size for number, size in zip(coords, sizes, strict=True))
        parts.setdefault(window, {})[coords] = ref
    return parts


def split_refs_by_window(refs: ArrayManifest, sizes: Sequence[int]) -> dict[Window, ArrayManifest]:
    """Split chunk references by manifest window. References in a single window are not copied."""
    parts = list(_split_rows_by_window(refs.coords, sizes))
    if len(parts) == 1:
        return {parts[0][0]: refs}
    return {window: refs.take(rows) for window, rows in parts}


def _split_rows_by_window(coords: Coords, sizes: Sequence[int]) -> Iterator[tuple[Window, NDArray[np.int64]]]:
    """Yield each manifest window that contains some of the chunks, with the ascending row numbers of these
    chunks.
    """
    if not len(coords):
        return
    places = coords // np.array(sizes, np.uint32).reshape(1, -1)
    if not places.shape[1] or (places == places[0]).all():
        yield tuple(places[0].tolist()), np.arange(len(coords))
        return
    windows, group = np.unique(places, axis=0, return_inverse=True)
    order = group.reshape(-1).argsort(kind="stable")
    ends = np.bincount(group.reshape(-1)).cumsum()
    for window, rows in zip(windows.tolist(), np.split(order, ends[:-1]), strict=True):
        yield tuple(window), rows


def split_sizes(rules: SplitSizes, node: NodeSnapshot) -> list[int]:
    """Return the number of chunks per manifest along each dimension, according to the first matching
    splitting rule."""
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return []
    names = data.names
    sizes: list[int | None] = [None] * len(data.shape)
    for condition, dimensions in rules:
        if not condition.matches(node.path):
            continue
        # A file may have more names than dimensions. Ignore the additional ones.
        for axis, name in enumerate(names[: len(sizes)]):
            if sizes[axis] is None:
                sizes[axis] = next((size for dim, size in dimensions if dim.matches(axis, name)), None)
    return [UNSPLIT if size is None else size for size in sizes]


def write_early(workspace: Workspace, path: str, window: Sequence[range] | None = None) -> int:
    """Write the uncommitted references of an array to manifests before the commit, and return their number.

    If a `window` of the chunk grid is given, references outside it are dropped.
    """
    node, assets = workspace.array(path), workspace.assets
    with workspace.editing():
        delta = workspace.changes.chunks.get(node.id)
        if delta is None:
            return 0
        written, gone = delta.resolve()
        if not isinstance(node.node_data, ArrayNodeData) or not node.node_data.manifests:
            gone = gone[:0]  # without manifests, there is nothing to delete
        if window is not None:
            gone = gone[coordinates.are_inside(gone, window)]
            written = None if written is None else written.within(window)
        early = []
        if written is not None and len(written):
            sizes = split_sizes(assets.config.split_sizes, node)
            old = {} if len(gone) else _group_by_window(node, sizes)
            for place, refs in split_refs_by_window(written, sizes).items():
                whole = ArrayManifest.concat(
                    [*(workspace.manifest_refs(node, ref) for ref in old.get(place, ())), refs]
                )
                joined = None
                if ids := frozenset(ref.id for ref in old.get(place, ())):
                    joined = JoinedManifests(ids, whole.extents())
                info = assets.write_manifest(Manifest(ManifestId.random(), {node.id: whole}))
                early.append(describe_early_manifest(node.id, info, refs, assets.manifest, joined))
        delta.early = early
        delta.segments = [gone] if len(gone) else []
        if not early and not len(gone):
            del workspace.changes.chunks[node.id]
    return len(early)


def _group_by_window(node: NodeSnapshot, sizes: Sequence[int]) -> dict[Window, list[ManifestRef]]:
    """Return the committed manifests of an array by window. The result is empty if a manifest covers several
    windows or chunks outside the grid, because a commit then rewrites all manifests.
    """
    data = node.node_data
    if not isinstance(data, ArrayNodeData):
        return {}
    grid = [max(dimension.num_chunks, 1) for dimension in data.shape]
    found: dict[Window, list[ManifestRef]] = {}
    for ref in data.manifests:
        found.setdefault(_find_window(ref, sizes), []).append(ref)
        if any(extent.stop > size for extent, size in zip(ref.extents, grid, strict=False)):
            return {}
    return {} if None in found else found
