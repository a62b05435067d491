"""Early manifests, which are written before their commit by the process that has the references.

A writer with millions of references does not send them to the committer. It writes the manifests of its part
of the chunk grid, and sends their ids, extents and coordinates. The committer uses such a manifest unchanged
if nothing else is in its window. Otherwise the manifest is read and rewritten. A writer that finds committed
references in its window adds them to its manifest, so that the committer need not read them either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icefloe._internal.ids import ManifestId, NodeId
from icefloe.errors import ErrorKind, StorageError
from icefloe.format import coordinates
from icefloe.format.coordinates import Coords
from icefloe.format.manifest import ArrayManifest
from icefloe.format.manifest_codec import PackedManifest
from icefloe.format.snapshot import ManifestFileInfo, ManifestRef
from icefloe.storage.base import ObjectNotFoundError

ReadManifest: TypeAlias = Callable[[ManifestId, int], PackedManifest]
"""A function that reads a manifest, given its id and size in bytes."""


@dataclass(frozen=True, slots=True)
class JoinedManifests:
    """Committed manifests of an array whose references are also contained in an early manifest."""

    ids: frozenset[ManifestId]
    extents: tuple[range, ...]
    """The extents of the early manifest, including the committed references."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlyManifest:
    """An early manifest: a manifest of one array that is written before its commit."""

    node: NodeId
    info: ManifestFileInfo
    extents: tuple[range, ...]
    """The smallest window of the chunk grid that contains all changed chunks."""
    sparse: Coords | None
    """The sorted coordinates of the changed chunks; None if all chunks in the extents were changed."""
    read: ReadManifest
    joined: JoinedManifests | None = None
    """The committed manifests that the early manifest replaces, if there are any."""

    @property
    def ref(self) -> ManifestRef:
        """The manifest reference for the array, to be committed later."""
        return ManifestRef(self.info.id, self.joined.extents if self.joined else self.extents)

    @property
    def replaces(self) -> frozenset[ManifestId]:
        """The committed manifests that the early manifest replaces."""
        return self.joined.ids if self.joined else frozenset()

    def has(self, coords: Sequence[int]) -> bool:
        """Return True if the chunk is one of the changed chunks in this manifest."""
        if not all(number in extent for number, extent in zip(coords, self.extents, strict=True)):
            return False
        return self.sparse is None or coordinates.find(self.sparse, coords) is not None

    def refs(self, path: str) -> ArrayManifest:
        """Read the changed references from the manifest; raise an error if it was garbage-collected. The
        error mentions the `path` of the array.
        """
        try:
            manifest = self.read(self.info.id, self.info.size_bytes)
        except ObjectNotFoundError:
            raise make_collected_error(f"manifest {self.info.id} of {path}") from None
        found = manifest.array(self.node, len(self.extents))
        if self.joined is None:
            return found
        if self.sparse is None:
            return found.within(self.extents)
        return found.take(coordinates.contains(found.coords, self.sparse))


def make_collected_error(what: str) -> StorageError:
    """Return the error for an early manifest or a chunk that was garbage-collected before its commit."""
    return StorageError(
        f"{what} was deleted by a garbage collection before it was committed; nothing was committed. Write "
        "the data again in a new session, and run collections with a cutoff that is older than the longest "
        "session",
        kind=ErrorKind.OBJECT_NOT_FOUND,
    )


def describe_early_manifest(
    node: NodeId,
    info: ManifestFileInfo,
    refs: ArrayManifest,
    read: ReadManifest,
    joined: JoinedManifests | None = None,
) -> EarlyManifest:
    """Create the description of an early manifest from the references that were written to it."""
    extents = refs.extents()
    dense = math.prod(map(len, extents)) == len(refs)
    return EarlyManifest(node, info, extents, None if dense else refs.coords, read, joined)
