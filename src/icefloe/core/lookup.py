"""Look up single chunk references in the manifests of an array.

A lookup in an encoded manifest takes tens of microseconds and requires no preparation. For many lookups,
columns are built once, after which a lookup takes two or three microseconds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from icefloe._internal.ids import ChunkId, ManifestId, NodeId
from icefloe.core.cache import WeightedCache
from icefloe.format import coordinates
from icefloe.format.manifest import NATIVE, ArrayManifest, ChunkRef, NativeRef
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ArrayNodeData, ManifestRef

_FEW_FINDS: Final = 4
_ROWS_PER_FIND: Final = 1500
"""Building columns for this many references costs as much as one lookup without columns."""
_FEW_MANIFESTS: Final = 8

LookupCache = WeightedCache[tuple[NodeId, ManifestId], "ManifestLookup"]


class ArrayLookup:
    """Looks up chunk references of an array in the manifests of one snapshot."""

    __slots__ = (
        "_boxed",
        "_cache",
        "_last",
        "_latest",
        "_load",
        "_starts",
        "_stops",
        "_unbounded",
        "data",
        "node",
    )

    def __init__(
        self,
        node: NodeId,
        data: ArrayNodeData,
        load: Callable[[ManifestRef], PackedManifest],
        cache: LookupCache,
    ) -> None:
        self.node = node
        self.data = data
        self._load = load
        self._cache = cache
        # Official writers keep extents of the old rank when the rank of an array changes. Ignore these.
        self._boxed = [ref for ref in data.manifests if ref.extents and len(ref.extents) == len(data.shape)]
        self._unbounded = [ref for ref in data.manifests if ref not in self._boxed]
        self._last = self._boxed[0] if self._boxed else None
        self._latest: tuple[ManifestRef, weakref.ref[ManifestLookup]] | None = None
        """The most recently used manifest lookup, available without locking the cache. A weak reference, so
        that the cache can drop it.
        """
        edges = [[(e.start, e.stop) for e in ref.extents] for ref in self._boxed]
        boxes = np.array(edges, np.int64).reshape(len(edges), len(data.shape), 2)
        self._starts, self._stops = boxes[:, :, 0], boxes[:, :, 1]

    def find(self, coords: tuple[int, ...]) -> ChunkRef | None:
        """Return the reference of a chunk; None if the chunk does not exist."""
        ref = self._find_covering(coords)
        if ref is not None:
            found = self._get_lookup(ref).find(coords)
            if found is not None:
                return found
        for ref in self._unbounded:
            found = self._get_lookup(ref).find(coords)
            if found is not None:
                return found
        return None

    def _find_covering(self, coords: tuple[int, ...]) -> ManifestRef | None:
        """Return the manifest whose extents contain a chunk; None if there is none."""
        last = self._last
        if last is None or may_contain(last, coords):
            return last
        if len(self._boxed) <= _FEW_MANIFESTS:
            found = next((ref for ref in self._boxed if may_contain(ref, coords)), None)
        else:
            place = np.array(coords)
            rows = np.flatnonzero(((self._starts <= place) & (self._stops > place)).all(axis=1))
            found = self._boxed[int(rows[0])] if len(rows) else None
        if found is not None:
            self._last = found
        return found

    def _get_lookup(self, ref: ManifestRef) -> ManifestLookup:
        latest = self._latest
        lookup = latest[1]() if latest is not None and latest[0] is ref else None
        if lookup is None:
            lookup = self._cache.get(
                (self.node, ref.id),
                lambda: ManifestLookup(self._load(ref), self.node, len(self.data.shape)),
            )
            self._latest = ref, weakref.ref(lookup)
        return lookup


class ManifestLookup:
    """Looks up chunk references in one manifest. Thread-safe, although two threads may both build its
    columns.
    """

    __slots__ = ("__weakref__", "_finds", "_manifest", "_node", "_rank", "_rows", "count")

    def __init__(self, manifest: PackedManifest, node: NodeId, rank: int) -> None:
        self._manifest = manifest
        self._node = node
        self._rank = rank
        self._finds = 0
        self._rows: _ReferenceIndex | None = None
        self.count = manifest.count(node)

    def find(self, coords: tuple[int, ...]) -> ChunkRef | None:
        """Return the reference of a chunk; None if the manifest does not contain it."""
        rows = self._rows
        if rows is None:
            self._finds += 1
            if self._finds <= max(_FEW_FINDS, self.count // _ROWS_PER_FIND) or not self.count:
                return self._manifest.find(self._node, coords)
            self._rows = rows = _ReferenceIndex(self._manifest.array(self._node, self._rank))
        return rows.find(coords)


class _ReferenceIndex:
    """Columns of references, and the row of each position in the chunk grid."""

    __slots__ = ("_dense", "_ids", "_keys", "_native", "_refs", "_sizes")

    def __init__(self, refs: ArrayManifest) -> None:
        self._refs = refs
        self._sizes = coordinates.find_limits(refs.coords)
        self._keys = coordinates.sort_keys(refs.coords, self._sizes)
        self._dense = self._keys is not None and len(refs) > 0 and int(self._keys[-1]) == len(refs) - 1
        self._native = bool((refs.kind == NATIVE).all())
        self._ids = np.ascontiguousarray(refs.chunk_ids).tobytes() if self._native else b""

    def find(self, coords: tuple[int, ...]) -> ChunkRef | None:
        row = self._find_row(coords)
        if row is None:
            return None
        if not self._native:
            return self._refs.ref(row)
        id = ChunkId(self._ids[12 * row : 12 * row + 12])
        return NativeRef(id, self._refs.offsets.item(row), self._refs.lengths.item(row))

    def _find_row(self, coords: tuple[int, ...]) -> int | None:
        keys = self._keys
        if keys is None:  # a grid with more than 2**64 cells
            return coordinates.find(self._refs.coords, coords)
        key = 0
        for number, size in zip(coords, self._sizes, strict=False):
            if number >= size:
                return None
            key = key * size + number
        if self._dense:  # the keys ascend from 0 without gaps, but the grid may end with missing chunks
            return key if key < len(keys) else None
        row = int(keys.searchsorted(np.uint64(key)))
        return row if row < len(keys) and keys.item(row) == key else None


def may_contain(ref: ManifestRef, coords: Sequence[int]) -> bool:
    """Return True if the extents of a manifest contain a chunk, so that a lookup is worthwhile."""
    for number, extent in zip(coords, ref.extents, strict=False):  # noqa: SIM110 - hot path
        if number not in extent:
            return False
    return True
