"""Convert files of old formats to version 2, with ids that are derived from the old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.ids import ManifestId, SnapshotId
from icefloe.format.files import pack_manifest, write_manifest
from icefloe.format.manifest import NATIVE, ArrayManifest, Manifest
from icefloe.format.snapshot import (
    ArrayNodeData,
    ManifestFileInfo,
    ManifestFiles,
    ManifestRef,
    Nodes,
    NodeSnapshot,
    Snapshot,
)
from icefloe.format.spec import V2
from icefloe.legacy.assets import LegacyAssets
from icefloe.legacy.inventory import ManifestUse


@dataclass(frozen=True, slots=True)
class NewManifest:
    """The new manifest that replaces the legacy manifests of an array."""

    info: ManifestFileInfo
    extents: tuple[range, ...] | None


def make_lost_manifest_id(use: ManifestUse) -> ManifestId:
    """Return the id of a placeholder for a manifest that cannot be created, because the legacy manifests are
    unreadable.
    """
    return _derive_id(b"".join((*use.manifests, use.node)))


def collect_references(assets: LegacyAssets, uses: Sequence[ManifestUse]) -> dict[ManifestUse, ArrayManifest]:
    """Collect the references of arrays that use the same legacy manifests.

    If several manifests contain a chunk, the first one wins.
    """
    files = [assets.arrays(id) for id in reversed(uses[0].manifests)]
    found = {}
    for use in uses:
        empty = ArrayManifest.of(np.zeros((0, use.rank), np.uint32), NATIVE)
        by_rank = [file.get(use.node, {}) for file in files]
        found[use] = ArrayManifest.concat([empty, *(part[use.rank] for part in by_rank if use.rank in part)])
    return found


def encode_manifest_file(use: ManifestUse, found: ArrayManifest, level: int) -> tuple[ManifestId, bytes]:
    """Encode the references of an array from legacy manifests as a manifest file of version 2.

    The id of the manifest is derived from its content, so that an interrupted upgrade can be resumed and
    snapshots in which the array is unchanged share the manifest.
    """
    unnamed = pack_manifest(Manifest(ManifestId(bytes(ManifestId.SIZE)), {use.node: found}), V2)
    id = _derive_id(unnamed.payload.tobytes())
    return id, write_manifest(Manifest(id, {use.node: found}), V2, level)


def _derive_id(contents: bytes) -> ManifestId:
    return ManifestId(sha256(contents).digest()[: ManifestId.SIZE])


def find_chunk_ends(found: ArrayManifest) -> Mapping[bytes, int]:
    """Return the chunk objects that a legacy manifest refers to, each with the end of the last referenced
    byte range.
    """
    native = found.kind == NATIVE
    ids: NDArray[np.void] = np.ascontiguousarray(found.chunk_ids[native]).view("V12").reshape(-1)
    ends = found.offsets[native] + found.lengths[native]
    distinct, group = np.unique(ids, return_inverse=True)
    highest = np.zeros(len(distinct), np.uint64)
    np.maximum.at(highest, group, ends)
    return {id.tobytes(): int(end) for id, end in zip(distinct, highest, strict=True)}


def convert_snapshot(
    assets: LegacyAssets, id: SnapshotId, made: Mapping[ManifestUse, NewManifest]
) -> Snapshot:
    """Convert a legacy snapshot to version 2, without its parent."""
    old = assets.snapshot(id)
    nodes, files = [], {}
    for node in old.nodes:
        use = ManifestUse.of(node)
        new = None if use is None else made[use]
        nodes.append(_with_manifest(node, new))
        if new is not None and _is_needed(new):
            files[new.info.id] = new.info
    listed = ManifestFiles.of(files.values())
    return replace(old, parent_id=None, manifest_files=listed, nodes=Nodes.of(nodes))


def _is_needed(new: NewManifest) -> bool:
    return new.extents is None or new.info.num_chunk_refs > 0


def _with_manifest(node: NodeSnapshot, new: NewManifest | None) -> NodeSnapshot:
    data = node.node_data
    if new is None or not isinstance(data, ArrayNodeData):
        return node
    if not _is_needed(new):
        return replace(node, node_data=replace(data, manifests=()))
    # A manifest that could not be read covers all chunks, so that none is mistaken for an unwritten one.
    whole = tuple(range(max(dimension.num_chunks, 1)) for dimension in data.shape)
    ref = ManifestRef(new.info.id, whole if new.extents is None else new.extents)
    return replace(node, node_data=replace(data, manifests=(ref,)))
