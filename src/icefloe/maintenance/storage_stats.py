"""How many bytes of chunks a repository refers to, each counted once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ManifestId
from icefloe.core.assets import AssetStore
from icefloe.core.refs.base import RefStore
from icefloe.encoding.columns import Blobs
from icefloe.format.files import MANIFESTS, read_manifest
from icefloe.format.manifest import INLINE, NATIVE, VIRTUAL, ArrayManifest
from icefloe.maintenance.reachable import Gathered, each_id, manifests_used, reachable_snapshots
from icefloe.ops import ChunkStorageStats
from icefloe.storage.base import Storage

_HASH: Final = 16
_NATIVE: Final = np.dtype([("id", "S12"), ("length", "<u8")])
_VIRTUAL: Final = np.dtype([("location", f"S{_HASH}"), ("offset", "<u8"), ("length", "<u8")])


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """The chunks of one manifest: what to count once in all, and bytes that are nobody else's."""

    native: NDArray[np.void]
    virtual: NDArray[np.void]
    inline_bytes: int


def chunk_storage(refs: RefStore, assets: AssetStore, executor: Executor) -> ChunkStorageStats:
    """Bytes of all chunks that snapshots on branches and tags refer to.

    A native chunk counts once however many references lie in it, a virtual one once per place and range, an
    inline one in each manifest that holds it.
    """
    manifests = manifests_used(assets.storage, reachable_snapshots(refs), executor)
    natives, virtuals, inline_bytes = Gathered(_NATIVE), Gathered(_VIRTUAL), 0
    for part in executor.map(Task(partial(_count, assets.storage), "manifests"), each_id(manifests)):
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


def _count(storage: Storage, manifest: bytes) -> _Counted:
    id = ManifestId(manifest)
    packed = read_manifest(storage.get(f"{MANIFESTS}/{id}")[0], id)
    arrays = [packed.array(node) for node in packed.nodes]
    return _Counted(
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
    found["location"] = location_hashes(refs.locations)[refs.location_codes[rows]]
    found["offset"], found["length"] = refs.offsets[rows], refs.lengths[rows]
    return found


def location_hashes(locations: Blobs) -> NDArray[np.bytes_]:
    """A key of 16 bytes for each location."""
    digests = b"".join(blake2b(location, digest_size=_HASH).digest() for location in locations)
    return np.frombuffer(digests, f"S{_HASH}")
