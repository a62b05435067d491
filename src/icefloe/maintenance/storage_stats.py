"""Storage statistics: the size of the chunks that a repository, its arrays and its snapshots refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId, NodeId, SnapshotId
from icefloe._internal.report import Report
from icefloe._internal.table import Table
from icefloe.config.display import Shown, Tree, qualify_name
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.encoding.columns import Blobs
from icefloe.format.files import CHUNKS, MANIFESTS, SNAPSHOTS, read_manifest
from icefloe.format.id_columns import is_member, sort_ids, view_id_keys
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.format.schema import ARRAY_NODE
from icefloe.maintenance.commit_graph import History
from icefloe.maintenance.listings import Ids, ObjectListing, iterate_ids, list_folder
from icefloe.maintenance.reachable import (
    DistinctItems,
    list_chunks_used,
    list_manifests_used,
    list_reachable_snapshots,
    read_manifest_ids,
)
from icefloe.storage.base import Storage

_HASH: Final = 16
_NATIVE: Final = np.dtype([("id", "S12"), ("length", "<u8")])
_VIRTUAL: Final = np.dtype([("location", f"S{_HASH}"), ("offset", "<u8"), ("length", "<u8")])
_KINDS: Final = ((NATIVE, "native_bytes"), (VIRTUAL, "virtual_bytes"), (INLINE, "inlined_bytes"))
_UNIT: Final = np.dtype(
    [
        ("kind", "u1"),
        ("key", "S32"),
        ("node", "S8"),
        ("length", "<u8"),
        ("first", "<u4"),
        ("last", "<u4"),
    ]
)
"""A chunk of an array, with the positions of the first and last snapshot that refer to it."""
_AT_LEAST: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class _ManifestChunks:
    """The chunks of one manifest. Other manifests may contain the same native and virtual chunks, but not its
    inline chunks.
    """

    native: NDArray[np.void]
    virtual: NDArray[np.void]
    inline_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(Shown, Report):
    """The total size of chunks in bytes: in chunk objects, in external files and inline in manifests."""

    native_bytes: int = 0
    """Bytes in chunk objects of the repository."""
    virtual_bytes: int = 0
    """Bytes in files outside the repository."""
    inlined_bytes: int = 0
    """Bytes stored inline in manifests."""

    def non_virtual_bytes(self) -> int:
        """Return the size of all chunks that are stored in the repository itself, in bytes."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Return the size of all chunks, including virtual ones, in bytes."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes

    def __add__(self, other: ChunkStorageStats) -> ChunkStorageStats:
        if not isinstance(other, ChunkStorageStats):
            return NotImplemented
        return ChunkStorageStats(
            self.native_bytes + other.native_bytes,
            self.virtual_bytes + other.virtual_bytes,
            self.inlined_bytes + other.inlined_bytes,
        )

    def tree(self) -> Tree:
        # docstring inherited
        rows = tuple((item.name, str(getattr(self, item.name))) for item in fields(self))
        return Tree(qualify_name("stats", "ChunkStorageStats"), rows)


def sum_chunk_storage(refs: RefStore, assets: AssetStore, executor: Executor) -> ChunkStorageStats:
    """Sum the sizes of all chunks that reachable snapshots refer to.

    Each native chunk object counts once, each virtual chunk once per location and range, and each inline
    chunk once per manifest.
    """
    manifests = list_manifests_used(assets.storage, list_reachable_snapshots(refs), executor)
    natives, virtuals, inline_bytes = DistinctItems(_NATIVE), DistinctItems(_VIRTUAL), 0
    for part in executor.map(Task(partial(_count, assets.storage), "manifests"), iterate_ids(manifests)):
        natives.add(part.native)
        virtuals.add(part.virtual)
        inline_bytes += part.inline_bytes
    native = natives.result()
    longest = np.ones(len(native), np.bool_)
    longest[:-1] = native["id"][1:] != native["id"][:-1]
    return ChunkStorageStats(
        native_bytes=int(native["length"][longest].sum()),
        virtual_bytes=int(virtuals.result()["length"].sum()),
        inlined_bytes=inline_bytes,
    )


def _count(storage: Storage, manifest: bytes) -> _ManifestChunks:
    id = ManifestId(manifest)
    packed = read_manifest(storage.get(f"{MANIFESTS}/{id}")[0], id)
    arrays = [packed.array(node) for node in packed.nodes]
    return _ManifestChunks(
        np.unique(np.concatenate([np.zeros(0, _NATIVE), *map(_native, arrays)])),
        np.unique(np.concatenate([np.zeros(0, _VIRTUAL), *map(_virtual, arrays)])),
        sum(int((refs.inline.lengths[refs.kind == INLINE]).sum()) for refs in arrays),
    )


def _native(refs: ArrayManifest) -> NDArray[np.void]:
    rows = refs.kind == NATIVE
    found = np.zeros(int(rows.sum()), _NATIVE)
    found["id"] = np.ascontiguousarray(refs.chunk_ids[rows]).view("S12").reshape(-1)
    found["length"] = refs.lengths[rows]
    return found


def _virtual(refs: ArrayManifest) -> NDArray[np.void]:
    rows = refs.kind == VIRTUAL
    found = np.zeros(int(rows.sum()), _VIRTUAL)
    found["location"] = _location_hashes(refs.locations)[refs.location_codes[rows]]
    found["offset"], found["length"] = refs.offsets[rows], refs.lengths[rows]
    return found


def _location_hashes(locations: Blobs) -> NDArray[np.bytes_]:
    """Hash each location to 16 bytes."""
    digests = b"".join(blake2b(location, digest_size=_HASH).digest() for location in locations)
    return np.frombuffer(digests, f"S{_HASH}")


# By snapshot and by array


def measure_by_snapshot(assets: AssetStore, history: History, executor: Executor) -> Table:
    """Compute the total chunk size of each snapshot, and the size of the chunks that no other snapshot uses.

    A chunk with several references counts once per snapshot.
    """
    order = np.argsort(np.asarray(history.snapshots.columns["flushed_at"]), kind="stable")
    uses = _find_uses(assets.storage, history.snapshots.ids[order], executor)
    units = _DistinctChunks()
    sums = np.zeros((len(order), len(_KINDS)), np.int64)
    for manifest, found in uses.read(assets.storage, executor):
        rows = uses.snapshots(manifest)
        for at, (kind, _) in enumerate(_KINDS):
            sums[rows, at] += int(_list_chunks(found)["length"][_list_chunks(found)["kind"] == kind].sum())
        units.add(found, rows)
    chunks = _sort_by_chunk(units.result())
    alone = (chunks["first"] == chunks["last"]) & (chunks["kind"] != VIRTUAL)
    unique = np.zeros(len(order), np.int64)
    np.add.at(unique, chunks["first"][alone], chunks["length"][alone].astype(np.int64))
    infos = [history.snapshots[row] for row in order.tolist()]
    stored = sums[:, 0] + sums[:, 2]
    return Table(
        {
            "snapshot": [str(info.id) for info in infos],
            "written_at": np.array([info.flushed_at_us for info in infos], "M8[us]"),
            "message": [info.message for info in infos],
            **{name: sums[:, at] for at, (_, name) in enumerate(_KINDS)},
            "unique_bytes": unique,
            "shared_bytes": stored - unique,
        }
    ).take(slice(None, None, -1))


def measure_by_array(
    assets: AssetStore, history: History, only: SnapshotId | None, executor: Executor
) -> Table:
    """Compute the total chunk size of each array, and the size of the chunks that it does not share.

    The chunks of one snapshot or of all snapshots are counted. An array is listed by its path at the tip of a
    branch or tag, or in the given snapshot, and a deleted array by its node id.
    """
    snapshots = history.snapshots.ids
    if only is not None:
        snapshots = np.frombuffer(only, np.uint8).reshape(1, -1)
    uses = _find_uses(assets.storage, snapshots, executor)
    units = _DistinctChunks()
    for manifest, found in uses.read(assets.storage, executor):
        units.add(found, uses.snapshots(manifest))
    rows = units.result()
    nodes, place = np.unique(rows["node"], return_inverse=True)
    sums = np.zeros((len(nodes), len(_KINDS)), np.int64)
    counts = np.bincount(place, minlength=len(nodes)).astype(np.int64)
    for at, (kind, _) in enumerate(_KINDS):
        some = rows["kind"] == kind
        np.add.at(sums[:, at], place[some], rows["length"][some].astype(np.int64))
    alone = _mark_alone(rows) & (rows["kind"] != VIRTUAL)
    unique = np.zeros(len(nodes), np.int64)
    np.add.at(unique, place[alone], rows["length"][alone].astype(np.int64))
    paths = _find_paths(assets, history, snapshots)
    names = [NodeId(each.ljust(8, b"\0")) for each in nodes.tolist()]
    table = Table(
        {
            "array": [paths.get(node, f"(deleted) {node}") for node in names],
            "chunks": counts,
            **{name: sums[:, at] for at, (_, name) in enumerate(_KINDS)},
            "unique_bytes": unique,
            "shared_bytes": sums[:, 0] + sums[:, 2] - unique,
        }
    )
    return table.take(np.argsort(-(sums.sum(axis=1)), kind="stable"))


@dataclass(frozen=True, slots=True)
class ReclaimableStorage(Report):
    """An estimate of what a garbage collection could free once snapshots have expired."""

    snapshots: int
    """Number of snapshots to delete."""
    manifests: int
    """Number of manifests to delete."""
    chunks: int
    """Number of chunk objects to delete."""
    bytes: int
    """Total size of these objects."""


def measure_reclaimable(
    assets: AssetStore, history: History, keep: NDArray[np.bool_], executor: Executor
) -> ReclaimableStorage:
    """Measure the objects that no kept snapshot refers to."""
    storage = assets.storage
    ids = history.snapshots.ids
    stay, go = ids[keep], ids[~keep]
    kept_manifests = list_manifests_used(storage, stay, executor)
    old = list_manifests_used(storage, go, executor)
    manifests = old[~is_member(old, kept_manifests)]
    used = list_chunks_used(storage, manifests, executor)
    chunks = (
        used[~is_member(used, list_chunks_used(storage, kept_manifests, executor))] if len(used) else used
    )
    size = sum(
        _sum_bytes(list_folder(storage, folder), wanted)
        for folder, wanted in ((SNAPSHOTS, go), (MANIFESTS, manifests), (CHUNKS, chunks))
        if len(wanted)
    )
    return ReclaimableStorage(len(go), len(manifests), len(chunks), size)


def _sum_bytes(listed: ObjectListing, wanted: Ids) -> int:
    return int(listed.sizes[is_member(listed.ids, sort_ids(wanted))].sum())


# The manifests that snapshots use


class _ManifestUses:
    """The snapshots that use each manifest. Snapshots are identified by position."""

    def __init__(self, manifests: Ids, owners: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        self.manifests = manifests
        order = places.argsort(kind="stable")
        self._owners = owners[order]
        self._ends = np.bincount(places, minlength=len(manifests)).cumsum()

    def snapshots(self, manifest: int) -> NDArray[np.int64]:
        """Return the positions of the snapshots that use a manifest."""
        start = self._ends[manifest - 1] if manifest else 0
        return self._owners[start : self._ends[manifest]]

    def read(self, storage: Storage, executor: Executor) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield the position and the chunks of every manifest."""
        return enumerate(
            executor.map(Task(partial(_read_units, storage), "manifests"), iterate_ids(self.manifests))
        )


def _find_uses(storage: Storage, snapshots: Ids, executor: Executor) -> _ManifestUses:
    found = list(
        executor.map(Task(partial(read_manifest_ids, storage, False), "snapshots"), iterate_ids(snapshots))
    )
    owners = np.repeat(np.arange(len(found)), [len(each) for each in found])
    keys = view_id_keys(np.concatenate([snapshots[:0], *found]))
    manifests, places = np.unique(keys, return_inverse=True)
    return _ManifestUses(manifests.view(np.uint8).reshape(-1, ManifestId.SIZE), owners, places.reshape(-1))


def _read_units(storage: Storage, manifest: bytes) -> NDArray[np.void]:
    id = ManifestId(manifest)
    packed = read_manifest(storage.get(f"{MANIFESTS}/{id}")[0], id)
    parts = [_make_units(id, node, packed.array(node)) for node in packed.nodes]
    return np.unique(np.concatenate([np.zeros(0, _UNIT), *parts]))


def _make_units(manifest: ManifestId, node: NodeId, refs: ArrayManifest) -> NDArray[np.void]:
    found = np.zeros(len(refs), _UNIT)
    found["kind"], found["node"] = refs.kind, bytes(node)
    keys = np.zeros((len(refs), 32), np.uint8)
    native, virtual, inline = (refs.kind == kind for kind, _ in _KINDS)
    keys[native, :12] = refs.chunk_ids[native]
    hashes = _location_hashes(refs.locations)
    keys[virtual, :16] = hashes.view(np.uint8).reshape(-1, 16)[refs.location_codes[virtual]]
    keys[virtual, 16:24] = refs.offsets[virtual].astype("<u8").view(np.uint8).reshape(-1, 8)
    keys[inline, :12] = np.frombuffer(manifest, np.uint8)
    keys[inline, 24:] = np.flatnonzero(inline).astype("<u8").view(np.uint8).reshape(-1, 8)
    found["key"] = keys.view("S32").reshape(-1)
    found["length"] = np.where(inline, refs.inline.lengths, refs.lengths)
    return found


class _DistinctChunks:
    """The distinct chunks of many manifests. Memory use is proportional to their number."""

    def __init__(self) -> None:
        self._all = np.zeros(0, _UNIT)
        self._pending: list[NDArray[np.void]] = []
        self._waiting = 0

    def add(self, units: NDArray[np.void], snapshots: NDArray[np.int64]) -> None:
        """Add the chunks of a manifest that is used by the snapshots at the given positions."""
        units["first"], units["last"] = snapshots.min(), snapshots.max()
        self._pending.append(units)
        self._waiting += len(units)
        if self._waiting > max(_AT_LEAST, len(self._all)):
            self.result()

    def result(self) -> NDArray[np.void]:
        """Return the distinct chunks of each array, sorted by chunk, with their first and last snapshots."""
        if self._pending:
            rows = np.concatenate([self._all, *self._pending])
            rows = rows[np.lexsort((rows["length"], rows["node"], rows["key"], rows["kind"]))]
            self._all = _merge_rows(rows, ("kind", "key", "node"))
            self._pending, self._waiting = [], 0
        return self._all


def _merge_rows(rows: NDArray[np.void], names: Iterable[str]) -> NDArray[np.void]:
    """Merge adjacent rows with equal keys. Keep the greatest length and the union of their snapshots."""
    if not len(rows):
        return rows
    starts = np.flatnonzero(_changes(rows, names))
    ends = np.append(starts[1:], len(rows)) - 1
    merged: NDArray[np.void] = rows[ends].copy()
    merged["first"] = np.minimum.reduceat(rows["first"], starts)
    merged["last"] = np.maximum.reduceat(rows["last"], starts)
    return merged


def _changes(rows: NDArray[np.void], names: Iterable[str]) -> NDArray[np.bool_]:
    found = np.ones(len(rows), np.bool_)
    found[1:] = False
    for name in names:
        found[1:] |= rows[name][1:] != rows[name][:-1]
    return found


def _sort_by_chunk(rows: NDArray[np.void]) -> NDArray[np.void]:
    return _merge_rows(rows, ("kind", "key"))


def _list_chunks(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Return the distinct chunks of one manifest, each with its greatest length."""
    last = np.append(_changes(rows, ("kind", "key"))[1:], True)[: len(rows)]
    found: NDArray[np.void] = rows[last]
    return found


def _mark_alone(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose chunk belongs to no other array."""
    starts = _changes(rows, ("kind", "key"))
    ends = np.append(starts[1:], True)
    alone: NDArray[np.bool_] = starts & ends
    return alone


def _find_paths(assets: AssetStore, history: History, snapshots: Ids) -> dict[NodeId, str]:
    tips = {*history.branches.values(), *history.tags.values()}
    if len(snapshots) == 1:
        tips.add(SnapshotId(snapshots[0].tobytes()))
    found: dict[NodeId, str] = {}
    for tip in tips:
        columns: Any = assets.snapshot(tip).nodes.columns
        if not len(columns):
            continue
        for row in np.flatnonzero(columns["node_data"].kinds == ARRAY_NODE).tolist():
            found[NodeId(columns["id"][row].tobytes())] = columns["path"][row].decode("utf-8", "replace")
    return found
