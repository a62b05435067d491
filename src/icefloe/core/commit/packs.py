"""Packs: manifests that contain the references of several small arrays.

With `ManifestConfig.pack_small_arrays`, a commit packs the small arrays that it changes, together with the
other arrays in their previous packs. Arrays are packed in the order of their paths, so that arrays of a group
are close to each other. A new array joins the pack of its nearest neighbor if there is room. Arrays with many
references, or with a splitting rule, keep their own manifests.

Other writers do not have to support packs: an array that they change gets its own manifest.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, NodeId
from icefloe.core.commit.manifests import UNSPLIT, ManifestPlan, Sources, split_sizes
from icefloe.core.workspace import Workspace
from icefloe.format.coordinates import Coords
from icefloe.format.files import pack_numbered_refs
from icefloe.format.manifest import ArrayManifest, ChunkRef, Manifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ArrayNodeData, ManifestFileInfo, ManifestRef, NodeSnapshot

MAX_REFS: Final = 10_000
MAX_BYTES: Final = 1024 * 1024
"""The limits of a pack: the number of references, and the total size of inline data and locations."""
_REF_BYTES: Final = 40
_NEIGHBORS: Final = 8
"""The number of neighboring paths on each side of a new array that are searched for a pack with room."""


@dataclass(frozen=True, slots=True)
class PackMember:
    """A small array that a commit puts into a pack, a manifest shared by several arrays."""

    path: str
    id: NodeId
    rank: int
    old: tuple[ManifestRef, ...] | ManifestId
    """The old manifests: all manifests of a changed array, or the only manifest of an unchanged array."""
    plan: ManifestPlan | None = None
    """The manifest plan, if the session changed the array; otherwise None."""

    @property
    def sources(self) -> Sources | None:
        """The old manifests and changes of the array; None if the array was not changed."""
        return None if self.plan is None else next(iter(self.plan.places.values()), None)

    @property
    def manifests(self) -> list[ManifestId]:
        """The manifests that contain the array's old references."""
        return [self.old] if isinstance(self.old, ManifestId) else [ref.id for ref in self.old]


@dataclass(frozen=True, slots=True)
class Packed:
    """The packs of a commit, which are manifests shared by several small arrays."""

    nodes: tuple[NodeSnapshot, ...]
    """The nodes of changed arrays, with their new manifests."""
    moved: Mapping[str, ManifestId]
    """The new manifests of unchanged arrays, whose references were repacked."""
    infos: tuple[ManifestFileInfo, ...]


def select_small_arrays(
    workspace: Workspace, plans: Sequence[ManifestPlan]
) -> tuple[list[ManifestPlan], list[ManifestPlan]]:
    """Separate the small arrays that belong in packs from all other changed arrays."""
    if not workspace.assets.config.pack_small_arrays or workspace.changes.moved:
        return [], list(plans)
    small = [each for each in plans if _is_small(workspace, each)]
    chosen = {each.node.path for each in small}
    return small, [each for each in plans if each.node.path not in chosen]


def _is_small(workspace: Workspace, plan: ManifestPlan) -> bool:
    sizes = split_sizes(workspace.assets.config.split_sizes, plan.node)
    if any(size != UNSPLIT for size in sizes) or len(plan.places) + len(plan.kept) > 1 or plan.infos:
        return False
    sources = next(iter(plan.places.values()), None)
    if sources is None:
        return bool(plan.kept)
    if sources.written is not None and len(sources.written) > MAX_REFS:
        return False
    return all(_has_room(workspace, ref.id, 0) for ref in sources.manifests)


def _has_room(workspace: Workspace, id: ManifestId, added: int) -> bool:
    info = workspace.base.manifest_files.find(id)
    return info is not None and info.num_chunk_refs + added <= MAX_REFS and info.size_bytes <= MAX_BYTES


def pack_arrays(
    workspace: Workspace,
    plans: Sequence[ManifestPlan],
    executor: Executor,
    put: Callable[[PackedManifest], ManifestFileInfo],
) -> Packed:
    """Write new packs with the changed small arrays, and with the other arrays of their old packs."""
    members = _find_members(workspace, plans)
    there = {member.path for member in members}
    kept = [each.finished({}) for each in plans if each.node.path not in there]
    if not members:
        return Packed(tuple(kept), {}, ())
    refs = _read_refs(workspace, members, executor)
    infos: list[ManifestFileInfo] = []
    ids: dict[int, ManifestId] = {}
    for rows in _partition(len(members), refs):
        packed = _encode(workspace, [members[row].id for row in rows], _select_members(refs, rows))
        if packed is not None:
            infos.append(put(packed))
            ids |= dict.fromkeys(rows, packed.id)
    boxes = _find_boxes(refs)
    nodes, moved = kept, dict[str, ManifestId]()
    for row, member in enumerate(members):
        if member.plan is None:
            moved[member.path] = ids[row]
            continue
        found = (ManifestRef(ids[row], boxes[row]),) if row in boxes else ()
        data = replace(member.plan.data, manifests=found)
        nodes.append(replace(member.plan.node, node_data=data))
    return Packed(tuple(nodes), moved, tuple(infos))


def _find_members(workspace: Workspace, plans: Sequence[ManifestPlan]) -> list[PackMember]:
    """Return the changed arrays and the arrays that share a manifest with them, by path.

    Arrays without changed chunks are included only if their pack is rewritten.
    """
    # A file is never changed, so a pack with one changed array is rewritten for all of its arrays. Packs with
    # content of a later version stay as they are, because the rewrite would lose that content.
    changed = [each for each in plans if each.places]
    dirty = {ref.id for each in changed for sources in each.places.values() for ref in sources.manifests}
    if not workspace.rewrites_all:
        dirty |= _find_neighbors(workspace, [each for each in changed if not each.data.manifests])
    dirty = {id for id in dirty if not workspace.manifest(ManifestRef(id, ())).has_extras}
    members = {each.node.path: _describe(each) for each in changed}
    for each in plans:
        if not each.places and each.kept[0].id in dirty:
            members[each.node.path] = _describe(each)
    gone, touched = workspace.changes.deleted, {each.node.path for each in plans}
    for path, id, rank, manifest in workspace.base.nodes.find_arrays_of(dirty):
        if path in gone or path in touched or path in members or path in workspace.changes.updated:
            continue
        if workspace.manifest(ManifestRef(manifest, ())).count(id):
            members[path] = PackMember(path, id, rank, manifest)
    return [members[path] for path in sorted(members)]


def _describe(plan: ManifestPlan) -> PackMember:
    sources = next(iter(plan.places.values()), None)
    old = plan.kept if sources is None else sources.manifests
    return PackMember(plan.node.path, plan.node.id, len(plan.data.shape), old, plan)


def _find_neighbors(workspace: Workspace, plans: Sequence[ManifestPlan]) -> set[ManifestId]:
    """Find the pack with room that is nearest to each new array in path order."""
    base, found = workspace.base.nodes, set[ManifestId]()
    if not plans or not len(workspace.base.manifest_files):
        return found
    paths = base.paths()
    seen: dict[str, ManifestId | None] = {}

    def find_manifest(path: str) -> ManifestId | None:
        node = None if path in workspace.changes.deleted else base.find(path)
        data = None if node is None else node.node_data
        if node is None or not isinstance(data, ArrayNodeData) or len(data.manifests) != 1:
            return None
        if any(size != UNSPLIT for size in split_sizes(workspace.assets.config.split_sizes, node)):
            return None
        return data.manifests[0].id

    for plan in plans:
        at = bisect_left(paths, plan.node.path)
        for distance in range(_NEIGHBORS):
            near = [row for row in (at - 1 - distance, at + distance) if 0 <= row < len(paths)]
            for path in (paths[row] for row in near):
                if path not in seen:
                    seen[path] = find_manifest(path)
            ids = [id for row in near if (id := seen[paths[row]]) is not None]
            fitting = next((id for id in ids if id in found or _has_room(workspace, id, _count(plan))), None)
            if fitting is not None:
                found.add(fitting)
                break
    return found


def _count(plan: ManifestPlan) -> int:
    return sum(len(each.written) for each in plan.places.values() if each.written is not None)


# The references of many arrays are one ArrayManifest per rank, with the row of the array as first coordinate


def _read_refs(
    workspace: Workspace, members: Sequence[PackMember], executor: Executor
) -> dict[int, ArrayManifest]:
    """Return the up-to-date references of all members, by rank."""
    parts: dict[int, list[ArrayManifest]] = {}
    readable: dict[tuple[ManifestId, int], list[int]] = {}
    for row, member in enumerate(members):
        for id in member.manifests:
            readable.setdefault((id, member.rank), []).append(row)
    ids = list({id for id, _ in readable})
    list(executor.map(Task(lambda id: workspace.manifest(ManifestRef(id, ())), "manifests"), ids))
    for (id, rank), rows in readable.items():
        manifest = workspace.manifest(ManifestRef(id, ()))
        inside = sorted((members[row].id, row) for row in rows if manifest.count(members[row].id))
        if inside:
            found = manifest.numbered_refs([node for node, _ in inside], rank)
            parts.setdefault(rank, []).append(
                _renumber(found, np.array([row for _, row in inside], np.uint32))
            )
    gone: dict[int, list[Coords]] = {}
    written: dict[int, list[ArrayManifest]] = {}
    few: dict[int, dict[tuple[int, ...], ChunkRef]] = {}
    limits: dict[int, NDArray[np.int64]] = {}
    for row, member in enumerate(members):
        sources, rank = member.sources, member.rank
        if sources is None:
            continue
        bounds = limits.setdefault(rank, np.full((len(members), rank), np.iinfo(np.int64).max))
        bounds[row] = [extent.stop for extent in sources.grid]
        if len(sources.gone):
            gone.setdefault(rank, []).append(_number_coords(sources.gone, row))
        if isinstance(sources.written, ArrayManifest):
            coords = _number_coords(sources.written.coords, row)
            written.setdefault(rank, []).append(replace(sources.written, coords=coords))
        elif sources.written is not None:
            few.setdefault(rank, {}).update(((row, *coords), ref) for coords, ref in sources.written.items())
    for rank, refs in few.items():
        written.setdefault(rank, []).append(ArrayManifest.from_refs(refs, rank + 1))
    joined: dict[int, ArrayManifest] = {}
    for rank in {*parts, *written}:
        # Deletions apply to the old references only: a chunk that was deleted and written again must survive.
        each = parts.get(rank, [])
        if each and rank in gone:
            each = [ArrayManifest.concat(each).without(np.concatenate(gone[rank]))]
        whole = ArrayManifest.concat([*each, *written.get(rank, [])])
        if rank in limits:
            # After a resize to a smaller shape, old references may be outside the grid (`make_manifests`).
            numbers = whole.coords.astype(np.int64)
            inside_grid = (numbers[:, 1:] < limits[rank][numbers[:, 0]]).all(axis=1)
            whole = whole if inside_grid.all() else whole.take(inside_grid)
        joined[rank] = whole
    return joined


def _number_coords(coords: Coords, row: int) -> Coords:
    first = np.full((len(coords), 1), row, np.uint32)
    return np.concatenate([first, coords], axis=1)


def _renumber(refs: ArrayManifest, rows: NDArray[np.uint32]) -> ArrayManifest:
    """Renumber the first coordinate of references, which is the row of their array, and sort them again."""
    coords = refs.coords.copy()
    coords[:, 0] = rows[refs.coords[:, 0]]
    order = coords[:, 0].argsort(kind="stable")
    return replace(refs.take(order), coords=coords[order])


def _partition(count: int, refs: Mapping[int, ArrayManifest]) -> list[range]:
    """Divide members, in path order, into packs of about equal size within the limits."""
    # The weight of a member is the share of a pack that it fills, by the limit that it reaches first. A pack
    # is closed when it is full, or when more than half of the next member would lie above the average weight.
    weights = np.zeros(count)
    for part in refs.values():
        rows = part.coords[:, 0].astype(np.int64)
        size = _REF_BYTES + part.inline.lengths
        weights += np.maximum(
            np.bincount(rows, minlength=count) / MAX_REFS,
            np.bincount(rows, weights=size, minlength=count) / MAX_BYTES,
        )
    target = weights.sum() / max(1, math.ceil(weights.sum()))
    packs, start, filled = [], 0, 0.0
    for row, weight in enumerate(weights.tolist()):
        if row > start and (filled + weight > 1 or filled + weight / 2 > target):
            packs.append(range(start, row))
            start, filled = row, 0.0
        filled += weight
    return [*packs, range(start, count)]


def _select_members(refs: Mapping[int, ArrayManifest], rows: range) -> list[ArrayManifest]:
    """Return the references of some members, with the members numbered from zero."""
    parts = []
    for part in refs.values():
        first, last = part.coords[:, 0].searchsorted(np.array([rows.start, rows.stop], np.uint32)).tolist()
        if first < last:
            chosen = part.take(slice(first, last))
            coords = chosen.coords.copy()
            coords[:, 0] -= np.uint32(rows.start)
            parts.append(replace(chosen, coords=coords))
    return parts


def _encode(
    workspace: Workspace, nodes: Sequence[NodeId], parts: Sequence[ArrayManifest]
) -> PackedManifest | None:
    """Encode a pack; None if none of its arrays has references."""
    filled = sorted({row for part in parts for row in np.unique(part.coords[:, 0]).tolist()})
    if not filled:
        return None
    # Members are in the order of paths, but a manifest lists arrays in the order of their ids (spec,
    # Manifest).
    filled.sort(key=lambda row: nodes[row])
    numbers = np.zeros(len(nodes), np.uint32)
    numbers[filled] = np.arange(len(filled), dtype=np.uint32)
    parts = [_renumber(part, numbers) for part in parts]
    names, id = [nodes[row] for row in filled], ManifestId.random()
    if not workspace.assets.config.compress_locations and len(names) > 1:
        return pack_numbered_refs(id, names, parts)
    arrays = {}
    for part in parts:
        rows, starts = np.unique(part.coords[:, 0], return_index=True)
        for row, start, stop in zip(rows.tolist(), starts, [*starts[1:], len(part)], strict=True):
            alone = part.take(slice(int(start), int(stop)))
            arrays[names[row]] = replace(alone, coords=alone.coords[:, 1:])
    return workspace.assets.pack(Manifest(id, arrays))


def _find_boxes(refs: Mapping[int, ArrayManifest]) -> dict[int, tuple[range, ...]]:
    """Return the smallest window of the chunk grid that contains the references of each member."""
    boxes: dict[int, tuple[range, ...]] = {}
    for part in refs.values():
        if not len(part):
            continue
        rows, starts = np.unique(part.coords[:, 0], return_index=True)
        low = np.minimum.reduceat(part.coords[:, 1:], starts, axis=0).tolist()
        high = np.maximum.reduceat(part.coords[:, 1:], starts, axis=0).tolist()
        for row, first, last in zip(rows.tolist(), low, high, strict=True):
            boxes[row] = tuple(range(a, b + 1) for a, b in zip(first, last, strict=True))
    return boxes
