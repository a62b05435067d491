"""Manifests that are written before the commit that brings them, by whoever has the references.

A writer with millions of references need not send them to the committer: it writes the manifests of its part
of the chunk grid and sends their ids, what they cover and which chunks they have. The committer takes such a
manifest as it is where nothing else lies in its window; elsewhere it is read like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ManifestFileInfo, ManifestRef

ReadManifest: TypeAlias = Callable[[ManifestId, int], PackedManifest]
"""Gives the manifest with an id and a size in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlyManifest:
    """References of one array that are in a manifest already, and in no snapshot yet."""

    node: NodeId
    info: ManifestFileInfo
    extents: tuple[range, ...]
    sparse: Coords | None
    """The sorted coordinates of its chunks; None where they are all that the extents have."""
    read: ReadManifest

    @property
    def ref(self) -> ManifestRef:
        """It, as one of the manifests of its array."""
        return ManifestRef(self.info.id, self.extents)

    @property
    def coords(self) -> Coords:
        """The coordinates of its chunks."""
        return coordinates.of_window(self.extents) if self.sparse is None else self.sparse

    def has(self, coords: Sequence[int]) -> bool:
        """Whether a chunk is in it."""
        if not all(number in extent for number, extent in zip(coords, self.extents, strict=True)):
            return False
        return self.sparse is None or coordinates.find(self.sparse, coords) is not None

    def refs(self) -> ArrayManifest:
        """Its references, read."""
        return self.read(self.info.id, self.info.size_bytes).array(self.node, len(self.extents))


def early_manifest(
    node: NodeId, info: ManifestFileInfo, refs: ArrayManifest, read: ReadManifest
) -> EarlyManifest:
    """What to say of a manifest that was written from these references."""
    extents = refs.extents()
    dense = math.prod(map(len, extents)) == len(refs)
    return EarlyManifest(node, info, extents, None if dense else refs.coords, read)
