"""Manifests that are written before their commit, by the process that has the references.

A writer with millions of references does not send them to the committer: it writes the manifests of its part
of the chunk grid, and sends their ids, extents and coordinates. The committer uses such a manifest unchanged
if nothing else is in its window; otherwise it is read like any other.
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
"""Reads the manifest with an id and a size in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlyManifest:
    """References of one array in a manifest that is not part of a snapshot yet."""

    node: NodeId
    info: ManifestFileInfo
    extents: tuple[range, ...]
    sparse: Coords | None
    """The sorted coordinates of the chunks; None if the extents are filled completely."""
    read: ReadManifest

    @property
    def ref(self) -> ManifestRef:
        """The manifest reference for the array."""
        return ManifestRef(self.info.id, self.extents)

    @property
    def coords(self) -> Coords:
        """The coordinates of the chunks."""
        return coordinates.list_window(self.extents) if self.sparse is None else self.sparse

    def has(self, coords: Sequence[int]) -> bool:
        """Return whether the manifest contains a chunk."""
        if not all(number in extent for number, extent in zip(coords, self.extents, strict=True)):
            return False
        return self.sparse is None or coordinates.find(self.sparse, coords) is not None

    def refs(self) -> ArrayManifest:
        """Read the references."""
        return self.read(self.info.id, self.info.size_bytes).array(self.node, len(self.extents))


def describe_early_manifest(
    node: NodeId, info: ManifestFileInfo, refs: ArrayManifest, read: ReadManifest
) -> EarlyManifest:
    """Describe a manifest that was written from some references."""
    extents = refs.extents()
    dense = math.prod(map(len, extents)) == len(refs)
    return EarlyManifest(node, info, extents, None if dense else refs.coords, read)
