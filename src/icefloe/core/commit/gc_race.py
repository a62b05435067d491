"""Protect a commit from garbage collections that ran since the session started.

Chunks of a session are unreferenced until it commits. A collection whose cutoff is later than their creation
treats them as garbage, and may still be deleting them. Copies of the chunks are newer than the cutoff. A
commit therefore refers to copies, or fails if a chunk was already deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ChunkId
from icefloe.core.assets import AssetStore
from icefloe.core.early_manifests import make_collected_error
from icefloe.core.workspace import Workspace
from icefloe.format.files import CHUNKS, MANIFESTS
from icefloe.format.id_columns import to_id_bytes, view_id_keys
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.storage.base import ObjectNotFoundError

_MAX_CHECKED_CHUNKS: Final = 10_000
"""The maximum number of chunks to check per array. Each check is a request, so larger arrays are sampled at
even intervals.
"""


def check_presence(workspace: Workspace, executor: Executor) -> None:
    """Raise an error if a concurrent garbage collection has deleted chunks or manifests that a commit needs.

    This check is needed where collections leave no record: other programs collect garbage in V1 repositories
    without recording it.
    """

    storage = workspace.assets.storage

    def look(id: ChunkId) -> ChunkId | None:
        return None if storage.exists(f"{CHUNKS}/{id}") else id

    for delta in workspace.changes.chunks.values():
        for manifest in delta.early:
            if not storage.exists(f"{MANIFESTS}/{manifest.info.id}"):
                raise make_collected_error(f"manifest {manifest.info.id} of {delta.path}")
        with workspace.exclusive():
            written, _ = delta.resolve()
        if written is None or not (written.kind == NATIVE).any():
            continue
        ids = written.chunk_ids[written.kind == NATIVE]
        # A collection deletes all chunks before its cutoff, usually all chunks of a slow session, and a
        # single missing chunk is enough to reject the commit. An even sample of a large array is therefore
        # sufficient.
        ids = ids[:: -(-len(ids) // _MAX_CHECKED_CHUNKS)]
        for gone in executor.map(Task(look, "groups of files"), [ChunkId(row.tobytes()) for row in ids]):
            if gone is not None:
                raise make_collected_error(f"chunk {gone} of {delta.path}")


def rescue(workspace: Workspace, executor: Executor) -> None:
    """Copy all chunk objects of uncommitted changes, so that a concurrent garbage collection cannot delete
    them.
    """
    # Manifests of an earlier attempt are as old as the chunks, so the same collection may delete them.
    workspace.rewritten = {}
    for delta in workspace.changes.chunks.values():
        with workspace.exclusive():
            written, gone = delta.resolve()
        if written is None or not (written.kind == NATIVE).any():
            continue
        delta.segments = [
            _copy(written, delta.path, workspace.assets, executor),
            *([gone] if len(gone) else []),
        ]


def _copy(refs: ArrayManifest, path: str, assets: AssetStore, executor: Executor) -> ArrayManifest:
    native = refs.kind == NATIVE
    olds, where = np.unique(view_id_keys(refs.chunk_ids[native]), return_inverse=True)

    def copy(old: ChunkId) -> ChunkId:
        new = ChunkId.random()
        try:
            assets.storage.copy(f"{CHUNKS}/{old}", f"{CHUNKS}/{new}")
        except ObjectNotFoundError:
            raise make_collected_error(f"chunk {old} of {path}") from None
        return new

    news = list(executor.map(Task(copy, "chunks"), [ChunkId(row.tobytes()) for row in to_id_bytes(olds)]))
    ids = np.array(refs.chunk_ids)
    ids[native] = np.frombuffer(b"".join(news), np.uint8).reshape(-1, ChunkId.SIZE)[where]
    return replace(refs, chunk_ids=ids)
