"""Write references of virtual variables to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from icefloe import Repository, VirtualChunkContainer, in_memory_storage, local_filesystem_store
from icefloe.config import RepositoryConfig
from icefloe.session import Session
from icefloe.virtual.sources import Source
from icefloe.virtual.variables import ChunkReferences
from icefloe.virtual.write import Placed, write_placed

SIZE = 2000


def make_repository() -> Repository:
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("file:///data/", local_filesystem_store("/data"))
    )
    return Repository.create(in_memory_storage(), config=config)


def place(session: Session, coords: list[list[int]], step: tuple[int, int], grid: tuple[int, int]) -> None:
    rows = np.array(coords, np.uint32).reshape(len(coords), 2)
    numbers = np.zeros(len(rows), np.uint64)
    references = ChunkReferences.of(rows, numbers, numbers + np.uint64(8), np.zeros(len(rows), np.uint32), {})
    part = Placed(references, (Source("file:///data/a.bin", None),), step, grid)
    write_placed(session.store, "t", [part])


def existing(session: Session) -> list[tuple[int, ...]]:
    return sorted(map(tuple, session._workspace.chunk_coords(session._workspace.array("/t")).tolist()))


def test_sparse_references_delete_only_existing_chunks() -> None:
    """A GRIB file with a message per month and lead time fills a small part of its grid."""
    repo = make_repository()
    session = repo.writable_session("main")
    options: dict[str, Any] = {"shape": (SIZE, SIZE), "chunks": (1, 1), "dtype": "f8"}
    zarr.create_array(session.store, name="t", **options)
    place(session, [[0, 0], [5, 5], [SIZE - 1, 7]], (0, 0), (SIZE, SIZE))
    first = session.commit("sparse")
    again = repo.writable_session("main")
    place(again, [[1, 1]], (4, 4), (10, 10))
    place(again, [[0, 0]], (SIZE - 1, 0), (1, 8))
    assert existing(again) == [(0, 0), (5, 5), (SIZE - 1, 0)]
    place(again, [], (5, 5), (1, 1))

    second = again.commit("replaced")

    assert existing(repo.readonly_session(snapshot_id=second)) == [(0, 0), (SIZE - 1, 0)]
    changed = repo.diff(from_snapshot_id=first, to_snapshot_id=second).updated_chunks["/t"]
    assert len(changed) <= 3
