"""Arrays that change their rank in place: official releases keep extents and references of the old rank."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

import icefloe

pytestmark = pytest.mark.compat


def document(rank: int) -> cpu.Buffer:
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3] * rank,
        "data_type": "int8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * rank}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    return cpu.Buffer.from_bytes(json.dumps(metadata).encode())


def test_array_with_changed_rank_is_read_compared_and_written(tmp_path: Path) -> None:
    official = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    for steps in ([(1, "a/c/0")], [(2, "a/c/1/1")], [(1, "b/c/1"), (2, "b/c/1/2")]):
        session = official.writable_session("main")
        for rank, key in steps:
            asyncio.run(session.store.set(key.split("/")[0] + "/zarr.json", document(rank)))
            asyncio.run(session.store.set(key, cpu.Buffer.from_bytes(b"x")))
        session.commit("step")

    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))

    store = repo.readonly_session("main").store
    assert np.argwhere(zarr.open_array(store, path="a", mode="r")[:] == ord("x")).tolist() == [[1, 1]]
    assert np.argwhere(zarr.open_array(store, path="b", mode="r")[:] == ord("x")).tolist() == [[1, 2]]
    root = list(repo.ancestry(branch="main"))[-1].id
    chunks = repo.diff(from_snapshot_id=root, to_branch="main").updated_chunks
    assert chunks == {"/a": [[0], [1, 1]], "/b": [[1], [1, 2]]}

    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0, 0] = 5
    session.commit("ours")
    again = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    values = zarr.open_array(again.readonly_session("main").store, path="a", mode="r")[:]
    assert np.asarray(values).tolist() == [[5, 0, 0], [0, ord("x"), 0], [0, 0, 0]]
