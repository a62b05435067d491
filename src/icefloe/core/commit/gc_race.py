"""Protection of a commit against a garbage collection that ran since the session started.

Chunks of a session are unreferenced until it commits. A collection whose cutoff is later than their creation
treats them as garbage, and may still be deleting them. Copies of the chunks are newer than the cutoff. So a
commit refers to copies, or fails if a chunk is already gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from icefloe._internal.executor import Executor, Task
from icefloe._internal.ids import ChunkId
from icefloe.core.assets import AssetStore
from icefloe.core.workspace import Workspace
from icefloe.errors import ErrorKind, StorageError
from icefloe.format.files import CHUNKS, MANIFESTS
from icefloe.format.id_columns import to_id_bytes, view_id_keys
from icefloe.format.manifest import NATIVE, ArrayManifest
from icefloe.storage.base import ObjectNotFoundError

_LOOKED_FOR: Final = 10_000
"""The number of chunks to check per array. Each check is a request, so larger arrays are sampled evenly."""


def check_presence(workspace: Workspace, executor: Executor) -> None:
    """Raise an error if chunks or manifests of uncommitted changes are gone.

    Needed where collections leave no record: other programs also collect garbage in V1 repositories, without
    recording it.
    """

    storage = workspace.assets.storage

    def look(id: ChunkId) -> ChunkId | None:
        return None if storage.exists(f"{CHUNKS}/{id}") else id

    for delta in workspace.changes.chunks.values():
        for manifest in delta.early:
            if not storage.exists(f"{MANIFESTS}/{manifest.info.id}"):
                raise _make_collected_error(f"manifest {manifest.info.id}", delta.path)
        with workspace.exclusive():
            written, _ = delta.resolve()
        if written is None or not (written.kind == NATIVE).any():
            continue
        ids = written.chunk_ids[written.kind == NATIVE]
        ids = ids[:: -(-len(ids) // _LOOKED_FOR)]
        for gone in executor.map(Task(look, "groups of files"), [ChunkId(row.tobytes()) for row in ids]):
            if gone is not None:
                raise _make_collected_error(f"chunk {gone}", delta.path)


def _make_collected_error(what: str, path: str) -> StorageError:
    return StorageError(
        f"{what} of {path} was deleted by a garbage collection before it was committed; "
        "nothing was committed. Write the data again in a new session, and run collections with a cutoff "
        "that is older than the longest session",
        kind=ErrorKind.OBJECT_NOT_FOUND,
    )


def rescue(workspace: Workspace, executor: Executor) -> None:
    """Replace all chunk objects of uncommitted changes by copies. Manifests are written again."""
    # Manifests of an earlier attempt are as old as the chunks, so the same collection may delete them.
    workspace.rewritten = {}
    for delta in workspace.changes.chunks.values():
        try:
            with workspace.exclusive():
                written, gone = delta.resolve()
        except ObjectNotFoundError as error:
            raise _make_collected_error(f"a manifest ({error.message})", delta.path) from None
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
            raise _make_collected_error(f"chunk {old}", path) from None
        return new

    news = list(executor.map(Task(copy, "chunks"), [ChunkId(row.tobytes()) for row in to_id_bytes(olds)]))
    ids = np.array(refs.chunk_ids)
    ids[native] = np.frombuffer(b"".join(news), np.uint8).reshape(-1, ChunkId.SIZE)[where]
    return replace(refs, chunk_ids=ids)
