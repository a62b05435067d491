"""Small repositories with a history, and functions that read their content."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import zarr

import icefloe
from icefloe import Repository, in_memory_storage
from icefloe.storage.base import Storage


def now() -> datetime:
    """Return a time after all earlier and before all later operations."""
    time.sleep(0.002)
    moment = datetime.now(UTC)
    time.sleep(0.002)
    return moment


def repository(version: int = 2, storage: icefloe.Storage | None = None) -> Repository:
    """Create a repository with one array in the first commit."""
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    place = storage or icefloe.in_memory_storage()
    repo = Repository.create(place, config=config, spec_version=version)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), dtype="i4")
    session.commit("make a")
    return repo


def commit(repo: Repository, value: int, branch: str = "main") -> str:
    """Commit one chunk."""
    session = repo.writable_session(branch)
    array = zarr.open_array(session.store, path="a")
    array[value % 8] = value
    return session.commit(f"write {value}")


def history(repo: Repository, branch: str = "main") -> list[str]:
    """Return the messages of a branch, newest first."""
    return [info.message for info in repo.ancestry(branch=branch)]


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def names(repo: Repository, folder: str) -> set[str]:
    """Return the names of the objects in a folder."""
    return {key for key, _ in repo.storage.list_objects(prefix=folder)}


def overwrite_ten_times() -> Repository:
    """Overwrite one chunk, so that nine chunk objects belong only to old snapshots."""
    repo = repository()
    for value in range(8, 88, 8):
        commit(repo, value)
    return repo


def objects(storage: Storage) -> dict[str, int]:
    """Return all immutable objects with their sizes."""
    folders = ("chunks", "manifests", "transactions", "snapshots")
    return {k: size for k, size in storage.list_objects() if k.split("/")[0] in folders}


def values(repo: Repository, **ref: Any) -> list[int]:
    """Return the content of one state of a repository."""
    session = repo.readonly_session(**(ref or {"branch": "main"}))
    found: list[int] = np.asarray(zarr.open_array(session.store, path="a", mode="r")[:]).tolist()
    return found


def lived_in(version: int = 2) -> Repository:
    """Create a repository with two branches, a tag, a deleted tag and unused objects."""
    repo = repository(version)
    first = commit(repo, 1)
    repo.create_tag("v1", first)
    repo.create_tag("gone", first)
    repo.delete_tag("gone")
    repo.create_branch("dev", commit(repo, 2))
    commit(repo, 3, "dev")
    commit(repo, 4)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[7] = 7
    session.flush("on no branch")
    return repo


def copy_of(storage: Storage) -> Storage:
    """Copy all objects to another storage."""
    other = in_memory_storage()
    for key, _ in storage.list_objects():
        other.put(key, storage.get(key)[0])
    return other
