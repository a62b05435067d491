"""A repository of a few files."""

from __future__ import annotations

from functools import cache
from typing import Any

import zarr

from icefloe.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage


@cache
def tiny() -> Repository:
    """Return two commits on main, one on a branch, a tag, two arrays, an inline and a native chunk."""
    repo = Repository.create(in_memory_storage(), RepositoryConfig(inline_chunk_threshold_bytes=8))
    session = repo.writable_session("main")
    root: Any = zarr.create_group(session.store, attributes={"a": 1})
    root.create_array("small", shape=(2,), chunks=(1,), dtype="int8", compressors=None)[0] = 1
    root.create_array("large", shape=(8,), chunks=(8,), dtype="int64", compressors=None)[:] = 5
    first = session.commit("first", {"n": 1})
    repo.create_tag("one", first)
    repo.create_branch("dev", first)
    for branch in ("main", "dev"):
        session = repo.writable_session(branch)
        array: Any = zarr.open_array(session.store, path="small")
        array[1] = 2
        session.commit(f"second on {branch}")
    return repo
